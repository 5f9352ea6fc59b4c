"""Makes and reports the parts, for commands that write one output part per input file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..cluster import connected
from ..data.readers import SourceFile
from ..errors import InputError, sentence
from ..progress import counting
from ..sharding import Job, find_shards, make_parts, parts_folder
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
    **further: Any,
) -> None:
    with connected() if engine == "ray" else nullcontext() as ray:
        shards = find_shards(job, files, column, known, ray)
        started = time.perf_counter()
        with parts_folder(Path(output), shards) as made:
            missing, failed = [shard for shard in shards if shard.part not in made], []
            rows = sum(shard.source.rows for shard in missing)
            if made:
                printing.say(f"{output}: {len(made):,} of {len(shards):,} parts were made by an earlier call")
            if missing:
                with counting(job.kind, rows, "rows") as more:
                    for shard, outcome in make_parts(job, missing, Path(output), ray, gpus, more):
                        if isinstance(outcome, Exception):
                            path = shard.source.path
                            failed.append(f"{path} ({sentence(outcome).removeprefix(f'{path}: ')})")
                        else:
                            made[shard.part] = outcome
        seconds = time.perf_counter() - started
    if failed:
        others = f" and {len(failed) - LISTED:,} more" if len(failed) > LISTED else ""
        raise InputError(
            f"{output}: {len(failed):,} of {len(shards):,} parts could not be made: {', '.join(failed[:LISTED])}"
            f"{others}; fix the causes, and run the same command again"
        )
    counted = Counter[str]()
    for record in made.values():
        counted.update(record["counted"])
    rate, total = round(rows / seconds), sum(shard.source.rows for shard in shards)
    summary = {"output": output, "files": len(shards), "made": len(missing), **counted, "rows": total}
    summary |= {"seconds": round(seconds, 3), "rows_per_second": rate, **further}
    line = f"{Path(output)}: {len(shards):,} parts, {total:,} rows; {len(missing):,} parts made in "
    printing.result(summary, as_json, [f"{line}{summary['seconds']:.1f} s ({rate:,} {unit}/s)"])
