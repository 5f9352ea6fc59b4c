"""cse build-tfidf."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from .. import tfidf
from . import console, options


@click.command("build-tfidf")
@click.argument("corpus", nargs=-1, required=True)
@options.option("-o", "--output", default="tfidf", metavar="DIR", help="Folder of the index.")
@options.option("--tokenizer", default="unicode", metavar="unicode|whitespace", help="Word rules.")
@options.option("--matrix/--no-matrix", default=True, help="Write DIR/matrix.npz too.")
@options.reading
@options.threads
@options.as_json
def command(
    corpus: tuple[str, ...],
    output: str,
    tokenizer: str,
    matrix: bool,
    encoding_errors: str,
    max_line_bytes: int,
    threads: int,
    as_json: bool,
) -> None:
    """Count CORPUS (one sentence per line; .gz and .zst are unpacked, - is standard input) into a TF-IDF index.

    Writes DIR/index.safetensors, from which negatives are drawn, and DIR/matrix.npz (documents x terms, CSR), which
    scipy.sparse.load_npz reads.
    """
    started = time.perf_counter()
    info, files = console.in_background(
        "counting",
        lambda progress: tfidf.build_index(
            corpus,
            output,
            tokenizer=tokenizer,
            matrix=matrix,
            encoding_errors=encoding_errors,
            max_line_bytes=max_line_bytes,
            threads=threads,
            progress=progress,
        ),
    )
    seconds = time.perf_counter() - started
    written = {path.name: path.stat().st_size for path in _written(Path(output), matrix)}
    console.result(
        {
            **asdict(info),
            "tokenizer": tokenizer,
            "output": output,
            "written": written,
            "files": [asdict(file) for file in files],
            "seconds": round(seconds, 3),
            "sentences_per_second": round(info.rows / seconds),
        },
        as_json,
        [
            f"{info.documents:,} sentences (N), {info.blank:,} blank rows, {info.tokens:,} words, "
            f"{info.terms:,} terms by the {tokenizer} tokenizer",
            *([f"{info.wordless:,} sentences without a word"] if info.wordless else []),
            *([f"{info.repaired:,} rows had bytes that are not UTF-8"] if info.repaired else []),
            *[f"{Path(output) / name}: {size / 1e6:,.1f} MB" for name, size in written.items()],
            f"{seconds:.2f} s, {info.rows / seconds:,.0f} sentences/s",
        ],
    )


def _written(folder: Path, matrix: bool) -> list[Path]:
    names = ["index.safetensors", *(["matrix.npz"] if matrix else [])]
    return [folder / name for name in names]
