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
from ..sharding.jobs import find_sources, here, make_parts, on_cluster
from ..sharding.parts import Job, Parts
from . import printing

LISTED = 5
"""Maximum number of files that an error message lists."""


def run(
    job: Job,
    files: Sequence[str],
    column: str | None,
    output: str,
    engine: str,
    unit: str,
    as_json: bool,
    *,
    gpus: float = 0,
    known: Sequence[SourceFile] = (),
    index: str = "",
    **further: Any,
) -> None:
    with connected() if engine == "ray" else nullcontext() as ray:
        each = here if ray is None else partial(on_cluster, ray)
        sources = find_sources(job.reading, files, column, known, index, each, elsewhere=ray is not None)
        parts = Parts(output, job, sources)
        started = time.perf_counter()
        with parts.locked():
            wanted, total = parts.missing(), len(parts.shards)
            if kept := total - len(wanted):
                printing.say(f"{output}: {kept:,} of {total:,} parts were made by an earlier call")
            rows, failures = sum(shard.source.rows for shard in wanted), []
            if wanted:
                with counting(job.kind, rows, "rows") as more:
                    failures = make_parts(job, parts, ray, gpus, more)
        seconds = time.perf_counter() - started
    if failures:
        named = []
        for shard, error in failures[:LISTED]:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            named.append(f"{shard.source.path} ({why.removeprefix(f'{shard.source.path}: ')})")
        more_files = f" and {len(failures) - LISTED:,} more" if len(failures) > LISTED else ""
        raise InputError(
            f"{output}: {len(failures):,} of {total:,} parts could not be made: {', '.join(named)}{more_files}; fix "
            "the causes, and run the same command again"
        )
    counted = Counter[str]()
    for made in parts.made.values():
        counted.update(made["counted"])
    rate = round(rows / seconds)
    summary = {"output": output, "files": total, "made": len(wanted), **counted, "rows": parts.rows}
    summary |= {"seconds": round(seconds, 3), "rows_per_second": rate, **further}
    line = f"{Path(output)}: {total:,} parts, {parts.rows:,} rows; {len(wanted):,} parts made in "
    printing.result(summary, as_json, [f"{line}{summary['seconds']:.1f} s ({rate:,} {unit}/s)"])
