"""The commands ``cse build-tfidf``, ``cse merge-tfidf`` and ``cse doctor``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from ... import _core
from ...data import readers
from ...data.diagnostics import findings
from ...data.readers import reading_options
from ...errors import InputError
from ...tfidf.build import build_index
from ...tfidf.index import TfidfIndex
from ...tfidf.options import word_options
from ...tfidf.pieces import FILE, Pieces
from .. import options, printing
from ..progress import in_background


@click.command("build-tfidf")
@click.argument("corpus", nargs=-1, required=True)
@options.option("-o", "--output", default="tfidf", metavar="DIR", help="Folder of the index.")
@options.words
@options.option(
    "--model", metavar="MODEL", help="With --tokenizer wordpieces: the model whose tokenizer splits text into pieces."
)
@options.option(
    "--matrix/--no-matrix", default=True, help="Also write the TF-IDF matrix, DIR/matrix.npz; it must fit in memory."
)
@options.option("--stream", is_flag=True, help="Same as --no-matrix.")
@options.option(
    "--engine",
    default="local",
    metavar="local|ray",
    help="Run on this machine, or on a Ray cluster with one task per file.",
)
@options.reading
@options.threads
@options.as_json
@click.pass_context
def build_tfidf_command(
    ctx: click.Context,
    /,
    corpus: tuple[str, ...],
    output: str,
    model: str | None,
    matrix: bool,
    stream: bool,
    engine: str,
    column: str | None,
    encoding_errors: str,
    max_line_bytes: int,
    threads: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Build a TF-IDF index from CORPUS: text files with one sentence per line (.gz and .zst are decompressed, - is
    standard input), patterns like 'shards/*.txt', or tables (see --column).

    Writes DIR/index.safetensors, from which negatives are sampled, and DIR/matrix.npz, the TF-IDF matrix (rows x terms,
    CSR), which scipy.sparse.load_npz reads. The matrix is held in memory while the index is built; with --no-matrix,
    memory use is proportional to the vocabulary.

    For text without spaces between words (Chinese, Japanese, Thai), use --tokenizer wordpieces with the --model that
    will be trained: the terms are the pieces of its WordPiece tokenizer, which is stored as DIR/tokenizer.json.
    """
    asked = options.was_given(ctx, "matrix")
    if matrix and asked and (stream or engine == "ray"):
        raise InputError(
            "--matrix: cannot be combined with --stream or --engine ray, which write no matrix; leave out --matrix"
        )
    matrix = matrix and not stream and engine == "local"
    words = word_options(**given, pieces=None if model is None else pieces_of(model))
    reading = reading_options(encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, threads=threads)
    started = time.perf_counter()
    build = partial(
        build_index, corpus, output, column=column, matrix=matrix, engine=engine, words=words, reading=reading
    )
    if engine == "ray":  # in the main thread, so that Ctrl-C interrupts the wait for the cluster
        info, files, joined = build(say=printing.say)
    else:
        info, files, joined = in_background("counting", lambda progress: build(progress=progress))
    seconds = time.perf_counter() - started
    names = ["index.safetensors", *(["matrix.npz"] if matrix else []), *([FILE] if model else [])]
    written = {name: (Path(output) / name).stat().st_size for name in names}
    printing.result(
        {
            **asdict(info),
            **given,
            "pieces": words["pieces"] and words["pieces"].hash,
            "joined_lines": joined,
            "output": output,
            "written": written,
            "files": [asdict(file) for file in files],
            "seconds": round(seconds, 3),
            "sentences_per_second": round(info.rows / seconds),
        },
        as_json,
        [
            f"{info.documents:,} sentences, {info.blank:,} blank rows, {info.tokens:,} words, "
            f"{info.terms:,} terms ({words['tokenizer']} tokenizer)",
            *([f"{info.wordless:,} sentences without a word"] if info.wordless else []),
            *([f"{info.repaired:,} rows had bytes that are not UTF-8"] if info.repaired else []),
            *([f"{joined:,} fields had a line break, which was replaced by a space"] if joined else []),
            *[f"{Path(output) / name}: {size / 1e6:,.1f} MB" for name, size in written.items()],
            f"{seconds:.2f} s, {info.rows / seconds:,.0f} rows/s",
        ],
    )


def pieces_of(model: str) -> Pieces:
    """Returns the pieces of a model's tokenizer; raises ``InputError`` if it is not found or not a WordPiece."""
    from ...models.reading.resolve import find_model
    from ...models.running.encoder import load_tokenizer

    return Pieces.of(load_tokenizer(find_model(options.model_folder(model))), model)


@click.command("merge-tfidf")
@click.argument("shards", nargs=-1, required=True)
@options.option("-o", "--output", default="tfidf", metavar="DIR", help="Folder of the merged index.")
@options.as_json
def merge_tfidf_command(shards: tuple[str, ...], output: str, as_json: bool) -> None:
    """Merge the indexes that cse build-tfidf wrote to the folders SHARDS, in the given order.

    The result is byte-for-byte identical to an index built from the files of all SHARDS in this order. matrix.npz is
    not written.
    """
    index = TfidfIndex.merge(shards, output)
    info = index.info
    printing.result(
        {**asdict(info), "tokenizer": index.tokenizer, "output": output, "files": [asdict(f) for f in index.files]},
        as_json,
        [
            f"{len(shards)} indexes, built from {len(index.files)} files in all: {info.documents:,} sentences, "
            f"{info.terms:,} terms",
            f"{output}/index.safetensors",
        ],
    )


@click.command("doctor")
@click.argument("corpus", nargs=-1, required=True)
@options.words
@options.reading
@options.threads
@options.as_json
def doctor_command(
    corpus: tuple[str, ...],
    column: str | None,
    encoding_errors: str,
    max_line_bytes: int,
    threads: int,
    as_json: bool,
    **words: Any,
) -> None:
    """Check CORPUS in one pass before training: encoding, blank and duplicate rows, lengths, scripts, rare words, and
    the fraction of words that UNA would replace. Each problem is reported with a recommendation.

    Rows that other commands reject, such as rows with invalid UTF-8, are counted here and are not errors.
    """
    printing.check_output()
    if words["tokenizer"] == "wordpieces":
        raise InputError("--tokenizer wordpieces: cse doctor counts words; choose unicode, whitespace or treebank")
    found = readers.resolve(corpus, column)
    reading = reading_options(encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, threads=threads)
    started = time.perf_counter()
    seen: dict[str, Any] = json.loads(
        in_background("checking", lambda progress: _core.diagnose(found, word_options(**words), reading, progress))
    )
    seconds = time.perf_counter() - started
    seen["joined_lines"] = readers.joined_lines(found)
    advice = findings(seen, max_line_bytes)
    value = {**seen, "advice": [{"level": level, "finding": what, "do": do} for level, what, do in advice]}
    if as_json:
        printing.result({**value, "seconds": round(seconds, 3)}, True, [])
        return
    _print(seen, advice, seconds)


def _print(seen: dict[str, Any], advice: list[tuple[str, str, str]], seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    low, middle, high, most = seen["words_quantiles"]
    longest = f"{most:,}" + (" or more" if most == 4096 else "")
    scripts = [(name, share) for name, share in seen["scripts"] if share >= 0.0005][:6]
    cut = [
        f"{words:.0%} of the words at a limit of {limit} words ({rows:.0%} of the rows are longer)"
        for limit, rows, words in seen["cut_off"]
        if rows >= 0.005
    ]
    facts = [
        ("files", f"{len(seen['files']):,}, {sum(file['bytes'] for file in seen['files']) / 1e6:,.1f} MB"),
        ("rows", f"{seen['rows']:,}; {seen['blank']:,} blank, {seen['duplicates']:,} repeat an earlier row"),
        (
            "words",
            f"{seen['tokens']:,}; per row {low} (5th percentile), {middle} (median), {high} (95th percentile), "
            f"{longest} (maximum)",
        ),
        (
            "cut off",
            f"{'; '.join(cut) or 'almost no words at a limit of 24 words'} "
            "(24, 48, 96 and 192 words are about 32, 64, 128 and 256 tokens)",
        ),
        ("terms", f"{seen['terms']:,}; {seen['singletons'] / seen['terms']:.1%} in one sentence only"),
        ("scripts", ", ".join(f"{name} {share:.1%}" for name, share in scripts) or "none"),
        (
            "UNA",
            f"about {seen['replacement_rate']:.1%} of the words would be replaced at --beta 0.5, "
            f"radius {seen['default_radius']:,} (estimated from {seen['sampled_rows']:,} rows)",
        ),
    ]
    table = Table.grid(padding=(0, 2))
    for name, text in facts:
        table.add_row(Text(name, style="bold"), Text(text))
    out = Console(highlight=False)
    out.print(table)
    out.print()
    told = Table.grid(padding=(0, 2))
    for level, what, do in advice:
        told.add_row(Text(level, style="red" if level == "fault" else "yellow"), Text(what))
        told.add_row("", Text(f"-> {do}", style="dim"))
    out.print(told)
    if not any(level == "fault" for level, _, _ in advice):
        out.print("No fault found.")
    out.print(f"{seconds:.2f} s, {seen['rows'] / seconds:,.0f} rows/s", style="dim")
