"""The commands ``cse build-tfidf``, ``cse merge-tfidf`` and ``cse doctor``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

import cse._core as _core

from ..._core import is_blank
from ...data import readers
from ...data.doctor import findings
from ...errors import InputError, visible
from ...identity import row_keys
from ...options import If, Opt
from ...progress import counting, in_background, progress_of
from ...tfidf.build import build_index
from ...tfidf.index import TfidfIndex
from ...tfidf.options import Words, word_options
from ...tfidf.pieces import FILE, Pieces
from .. import options, printing
from ..command import command
from ..options import AsJson, Reading, open_corpus

BLOCK = 16384
"""Number of rows that are read at a time for ``cse doctor --model``."""
MAX_LENGTH = 32
"""Number of tokens by which ``cse doctor --model`` compares texts: the default of ``cse train --max-length``."""


@command("build-tfidf")
def build_tfidf_command(
    corpus: tuple[str, ...],
    *,
    output: Annotated[str, Opt("Folder of the index.", "DIR", short="-o")] = "tfidf",
    words: Words,
    model: Annotated[
        str | None, Opt("With --tokenizer wordpieces: the model whose tokenizer splits text into pieces.", "MODEL")
    ] = None,
    matrix: Annotated[
        bool,
        Opt(
            "Also write the TF-IDF matrix, DIR/matrix.npz; it must fit in memory.",
            excludes=If("engine", ("ray",)),
        ),
    ] = True,
    engine: Annotated[
        Literal["local", "ray"], Opt("Run on this machine, or on a Ray cluster with one task per file.")
    ] = "local",
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Build a TF-IDF index from CORPUS: text files with one sentence per line (.gz and .zst are decompressed, - is
    standard input), patterns like 'shards/*.txt', or tables (see --column).

    Writes DIR/index.safetensors, from which negatives are sampled, and DIR/matrix.npz, the TF-IDF matrix (rows x terms,
    CSR), which scipy.sparse.load_npz reads. The matrix takes 12 bytes for each word of a row, counted once, in memory
    while the index is built and then in the file; with --no-matrix, memory use is proportional to the vocabulary.

    For text without spaces between words (Chinese, Japanese, Thai), use --tokenizer wordpieces with the --model that
    will be trained: the terms are the pieces of its WordPiece tokenizer, which is stored as DIR/tokenizer.json.
    """
    matrix = matrix and engine == "local"
    splitting = word_options(**asdict(words), pieces=None if model is None else Pieces.of(_tokenizer(model), model))
    paths = readers.expand(corpus)  # in the main thread, so that Ctrl-C interrupts the wait for a server
    started = time.perf_counter()
    build = partial(
        build_index,
        paths,
        output,
        column=reading.column,
        matrix=matrix,
        engine=engine,
        words=splitting,
        reading=reading.options,
    )
    if engine == "ray":  # in the main thread, so that Ctrl-C interrupts the wait for the cluster
        with progress_of("counting", "files") as show:
            info, files, joined = build(counted=show)
    else:
        info, files, joined = in_background("building", lambda progress: build(progress=progress))
    seconds = time.perf_counter() - started
    names = ["index.safetensors", *(["matrix.npz"] if matrix else []), *([FILE] if model else [])]
    written = {name: (Path(output) / name).stat().st_size for name in names}
    pieces = splitting["pieces"] and splitting["pieces"].hash
    value = {**asdict(info), **asdict(words), "pieces": pieces, "joined_lines": joined, "output": output}
    value |= {"written": written, "files": [asdict(file) for file in files]}
    printing.result(
        {**value, "seconds": round(seconds, 3), "sentences_per_second": round(info.rows / seconds)},
        as_json,
        [
            f"{info.documents:,} sentences, {info.blank:,} blank rows, {info.tokens:,} words, "
            f"{info.terms:,} terms ({words.tokenizer} tokenizer)",
            *([f"{info.wordless:,} sentences without a word"] if info.wordless else []),
            *([f"{info.repaired:,} rows had bytes that are not UTF-8"] if info.repaired else []),
            *filter(None, [readers.repeated(files)]),
            *([f"{joined:,} fields had a line break, which was replaced by a space"] if joined else []),
            *[f"{Path(output) / name}: {size / 1e6:,.1f} MB" for name, size in written.items()],
            f"{seconds:.2f} s, {info.rows / seconds:,.0f} rows/s",
        ],
    )


@command("merge-tfidf")
def merge_tfidf_command(
    shards: tuple[str, ...],
    *,
    output: Annotated[str, Opt("Folder of the merged index.", "DIR", short="-o")] = "tfidf",
    as_json: AsJson = False,
) -> None:
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
            f"{len(shards)} indexes, built from {len(index.files)} files: {info.documents:,} sentences, "
            f"{info.terms:,} terms",
            *filter(None, [readers.repeated(index.files)]),
            f"{output}/index.safetensors",
        ],
    )


@command("doctor")
def doctor_command(
    corpus: tuple[str, ...],
    *,
    model: Annotated[
        str | None, Opt("Also count the pieces into which the tokenizer of this model divides the words.", "MODEL")
    ] = None,
    top: Annotated[
        int | None, Ge(1), Le(2**31), Opt("List N frequent words that it divides.", "N", "none", needs="model")
    ] = None,
    labels: Annotated[str | None, Opt("Also count the labels in this column of CORPUS.", "COLUMN")] = None,
    words: Words,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Check CORPUS in one pass before training: encoding, blank and duplicate rows, lengths, scripts, rare words, and
    the fraction of words that UNA would replace. Each problem is reported with a recommendation.

    Rows that other commands reject, such as rows with invalid UTF-8, are counted here and are not errors.

    With --labels, the labels are counted, the rows without one, and the texts with two. With --model, the pieces of
    words are counted; --top lists words that are divided, beginning with those that take the most additional tokens.
    Texts that differ, but whose first 32 tokens (the default of cse train
    --max-length) are equal, are counted.
    """
    printing.check_output()
    if model is not None and "-" in corpus:
        raise InputError("--model reads CORPUS twice, so it cannot be standard input; name a file, or omit --model")
    tokenizer = None if model is None else _tokenizer(model)
    if words.tokenizer == "wordpieces":
        raise InputError("--tokenizer wordpieces: cse doctor counts words; choose unicode, whitespace or treebank")
    inputs = readers.resolve(corpus, reading.column)
    from ...search.bm25 import SAMPLE, looks_like_code

    started = time.perf_counter()
    seen: dict[str, Any] = json.loads(
        in_background(
            "checking",
            lambda progress: _core.diagnose(inputs, word_options(**asdict(words)), reading.options, progress),
        )
    )
    seconds = time.perf_counter() - started
    seen["joined_lines"] = readers.joined_lines(inputs)
    seen["repeated"] = readers.repeated(readers.SourceFile(**file) for file in seen["files"])
    sample = list(readers.first_rows(readers.resolve(corpus, reading.column), SAMPLE))
    seen["code"] = looks_like_code(sample)
    seen["divided"] = _divided(sample) if model is None else 0.0
    advice = findings(seen, reading.max_line_bytes)
    value = {**seen, "advice": [{"level": level, "finding": what, "do": do} for level, what, do in advice]}
    if model is not None:
        # A corpus in the cache is found there only with the same option.
        again = replace(reading, encoding_errors="replace") if seen["faults"]["invalid"]["rows"] else reading
        value["model"] = _count_words(corpus, tokenizer, model, 20 if top is None else top, **asdict(again))
    if labels is not None:
        value["labels"] = _count_labels(corpus, labels, reading)
    if as_json:
        printing.result({**value, "seconds": round(seconds, 3)}, True, [])
        return
    _print(seen, advice, value, seconds)
    if labels is not None:
        _print_labels(value["labels"])
    if model is not None:
        _print_words(value["model"], top is not None)


def _divided(texts: Sequence[str]) -> float:
    """Returns into how many pieces the default model cuts a word of the texts on average, if it can hardly read them;
    else, and if the model is not on this machine, 0."""
    from ...encoder.resolve import tokenizer_of_minilm
    from ...encoder.vocabulary import readability

    tokenizer = tokenizer_of_minilm()
    found = None if tokenizer is None else readability(tokenizer, texts)
    return 0.0 if found is None or found.good else found.pieces


def _tokenizer(model: str) -> Any:
    from ...encoder.resolve import find_model
    from ...encoder.trained import load_tokenizer

    return load_tokenizer(find_model(options.model_folder(model)))


def _count_words(files: Sequence[str], tokenizer: Any, model: str, top: int, **reading: Any) -> dict[str, Any]:
    from ...encoder.tokens import token_lists
    from ...encoder.vocabulary import TEXTS, count_words, readability

    corpus = open_corpus(files, **reading)
    with counting("counting words", len(corpus), "rows") as more:
        texts: set[tuple[int, int]] = set()  # row key and hash of the token ids

        def blocks() -> Iterator[list[str]]:
            for start in range(0, len(corpus), BLOCK):
                yield (block := corpus.take(range(start, min(start + BLOCK, len(corpus)))))
                if filled := [text for text in block if not is_blank(text)]:
                    ids = token_lists(tokenizer, filled, MAX_LENGTH)["input_ids"]
                    texts.update(zip(row_keys(filled).tolist(), map(hash, map(tuple, ids)), strict=True))
                more(len(block))

        counts = count_words(tokenizer, blocks(), f"--model {model}")
    sample = range(0, len(corpus), max(1, len(corpus) // TEXTS))
    return {
        "name": model,
        "words": counts.words,
        "tokens": counts.tokens,
        "unknown_words": counts.unknown,
        "tokens_by_pieces": counts.by_pieces,
        "token_share_divided": counts.share(2),
        "token_share_3_or_more_pieces": counts.share(3),
        "divided_words": len(counts.divided),
        "listed_words": [
            {"word": word.word, "count": word.count, "pieces": list(word.pieces)}
            | {"saved_tokens": word.saved, "saved_share": word.saved / counts.tokens}
            for word in counts.divided[:top]
        ],
        "equal_texts": len(texts) - len({ids for _, ids in texts}),
        "warning": readability(tokenizer, corpus.take(sample)).warning(model),
    }


def _count_labels(files: Sequence[str], column: str, reading: Reading) -> dict[str, Any]:
    """Returns the numbers of distinct texts by label and with two labels, and remarks on them."""
    from ...data.classes import read_classes
    from ...evaluation.base import FEWEST
    from ...evaluation.labels import distinct

    read = {"encoding_errors": reading.encoding_errors, "max_line_bytes": reading.max_line_bytes, "cache": None}
    corpus = open_corpus(files, reading.column, **read)
    classes = read_classes(corpus, column, f"--labels {column}")
    texts = distinct(corpus)
    own = classes.of_rows[texts]
    counts = np.bincount(own[own >= 0], minlength=len(classes.names)).tolist()
    named = dict(zip(classes.names, counts, strict=True))
    return {"column": column, "labels": named, "with_two": classes.two, "notes": classes.describe(texts, FEWEST)}


def _print_labels(seen: dict[str, Any]) -> None:
    printing.echo()
    printing.echo("\n".join([f"{seen['column']}: {seen['notes'][0]}", *seen["notes"][1:]]))
    if seen["with_two"]:
        printing.echo(f"{seen['with_two']:,} texts have two labels; they neither teach nor judge")


def _print_words(seen: dict[str, Any], listed: bool) -> None:
    printing.echo()
    printing.echo(
        f"{seen['name']}: {seen['tokens']:,} tokens; {seen['token_share_divided']:.1%} of them are in words (and "
        f"signs) of 2 or more pieces, {seen['token_share_3_or_more_pieces']:.1%} in words of 3 or more; "
        f"{seen['unknown_words']:,} words have an unknown character."
    )
    if seen["equal_texts"]:
        printing.echo(
            f"{seen['equal_texts']:,} texts have the first {MAX_LENGTH} tokens of another text: in a batch, they are "
            "not negatives of each other."
        )
    if seen["warning"]:
        printing.echo(f"Warning: {seen['warning']}.")
    if not listed:
        return
    totals = accumulate(entry["saved_tokens"] for entry in seen["listed_words"])
    rows = [
        {
            "word": entry["word"],
            "count": f"{entry['count']:,}",
            "pieces": " ".join(entry["pieces"]),
            "additional tokens": f"{entry['saved_tokens']:,}",
            "together": f"{total / seen['tokens']:.2%}",
        }
        for entry, total in zip(seen["listed_words"], totals, strict=True)
    ]
    printing.table(rows, "Divided words")
    if rows:
        printing.echo(f"{len(rows):,} of {seen['divided_words']:,} words.")


def _print(seen: dict[str, Any], advice: list[tuple[str, str, str]], value: dict[str, Any], seconds: float) -> None:
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
        table.add_row(Text(name, style="bold"), Text(visible(text)))
    out = Console(highlight=False)
    out.print(table)
    out.print()
    grid = Table.grid(padding=(0, 2))
    for level, what, do in advice:
        grid.add_row(Text(level, style="red" if level == "fault" else "yellow"), Text(visible(what)))
        grid.add_row("", Text(f"-> {do}", style="dim"))
    out.print(grid)
    unreadable = seen["divided"] or ("model" in value and value["model"]["warning"])
    if not unreadable and not any(level == "fault" for level, _, _ in advice):
        out.print("No fault found.")
    out.print(f"{seconds:.2f} s, {seen['rows'] / seconds:,.0f} rows/s", style="dim")
