"""Makes and reports the parts, for commands that write one output part per input file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from ..background import connected
from ..data.readers import SourceFile
from ..errors import InputError
from ..progress import counting
from ..sharding.engines import Failure, count_here, count_on_cluster, run_here, run_on_cluster
from ..sharding.jobs import Job, find_sources
from ..sharding.parts import Parts, Shard
from . import printing

# Maximum number of files that an error message lists.
LISTED = 5


def run(
    job: Job,
    settings: dict[str, Any],
    files: Sequence[str],
    column: str | None,
    output: str,
    engine: str,
    *,
    gpus: float = 0,
    known: Sequence[SourceFile] = (),
    index: str = "",
) -> dict[str, Any]:
    """Counts the rows of the files, makes the missing parts with ``engine``, and shows the progress.

    ``known`` and ``index`` are those of ``find_sources``, and ``gpus`` is that of ``run_on_cluster``. Returns a summary
    for ``report``. Raises ``InputError`` if some parts could not be made.
    """
    with connected() if engine == "ray" else nullcontext() as ray:

        def count(unknown: Sequence[tuple[str, str | None]]) -> list[SourceFile]:
            if ray is not None:
                printing.say(f"counting the rows of {len(unknown):,} files")
                return count_on_cluster(ray, unknown, job.reading)
            with counting("counting rows", len(unknown), "files") as more:
                return count_here(unknown, job.reading, more)

        sources = find_sources(files, column, known, index, count, elsewhere=ray is not None)
        make = run_here if ray is None else partial(run_on_cluster, ray, gpus=gpus)
        folder = Parts(output, job.kind, settings, sources, job.suffix)
        started = time.perf_counter()
        with folder.locked():
            wanted = folder.missing()
            if kept := len(folder.shards) - len(wanted):
                printing.say(f"{output}: {kept:,} of {len(folder.shards):,} parts were made by an earlier call")
            rows = sum(shard.source.rows for shard in wanted)
            failures: list[Failure] = []
            try:
                if wanted:
                    with counting(job.kind, rows, "rows") as more:
                        failures = make(job, wanted, folder.folder, job.reading["threads"], more)
            finally:
                manifest = folder.finish()
        seconds = time.perf_counter() - started
    if failures:
        raise InputError(missing(output, failures, folder.missing(), len(folder.shards)))
    counted = Counter[str]()
    for part in manifest["parts"]:
        counted.update(part["counted"])
    return {
        "output": output,
        "files": len(folder.shards),
        "made": len(wanted),
        **{**counted, "rows": folder.rows},
        "seconds": round(seconds, 3),
        "rows_per_second": round(rows / seconds),
    }


def missing(output: str, failures: Sequence[Failure], left: Sequence[Shard], total: int) -> str:
    """Returns the error message for parts that could not be made."""
    reasons = {shard.part: error for shard, error in failures}
    named = []
    for shard in left[:LISTED]:
        error = reasons[shard.part]
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        named.append(f"{shard.source.path} ({why.removeprefix(f'{shard.source.path}: ')})")
    more = f" and {len(left) - LISTED:,} more" if len(left) > LISTED else ""
    return (
        f"{output}: {len(left):,} of {total:,} parts could not be made: {', '.join(named)}{more}; fix the "
        "causes, and run the same command again"
    )


def report(summary: dict[str, Any], unit: str, as_json: bool) -> None:
    """Prints the summary that ``run`` returned; ``unit`` names what the rate counts, such as ``rows``."""
    lines = [
        f"{Path(summary['output'])}: {summary['files']:,} parts, {summary['rows']:,} rows; {summary['made']:,} parts "
        f"made in {summary['seconds']:.1f} s ({summary['rows_per_second']:,} {unit}/s)"
    ]
    printing.result(summary, as_json, lines)
