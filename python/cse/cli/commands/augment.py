"""The commands ``cse augment`` and ``cse explain``."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import click

from ...data import readers
from ...data.readers import reading_options
from ...errors import InputError, visible
from ...tfidf.build import AugmentReport
from ...tfidf.index import TfidfIndex
from .. import options, printing
from ..progress import in_background


@click.command("augment")
@click.argument("sentences", nargs=-1)
@options.option(
    "-o", "--output", metavar="FILE", help="Output file; with --parts, a folder.", default_text="standard output"
)
@options.option(
    "--format",
    "form",
    default="text",
    metavar="text|jsonl",
    help="Lines of text, or JSON objects that list the replacements.",
)
@options.option("--copies", default=1, type=click.IntRange(1, 10_000), metavar="N", help="Negatives per row.")
@options.option(
    "--mode",
    default="negative",
    metavar="negative|positive",
    help="Which words to replace: those with high TF-IDF (negative, UNA) or low TF-IDF (positive, UDA).",
)
@options.drawing
@options.seed
@options.option(
    "--epoch", default=0, type=click.IntRange(0, 2**64 - 1), metavar="N", help="Epoch; negatives differ between epochs."
)
@options.parts
@options.engine
@options.option(
    "--compression", metavar="none|gz|zst", help="Compression of the parts.", default_text="zst; none without --parts"
)
@options.reading
@options.threads
@options.as_json
def augment_command(
    sentences: tuple[str, ...],
    output: str | None,
    form: str,
    copies: int,
    as_parts: bool,
    engine: str,
    compression: str | None,
    tfidf: str,
    min_df: int,
    max_terms: int | None,
    column: str | None,
    encoding_errors: str,
    max_line_bytes: int,
    threads: int,
    as_json: bool,
    **drawing: Any,
) -> None:
    """Write synthetic hard negatives for each row of the files SENTENCES (default: standard input), in row order.

    Each input row gives --copies output rows, which are blank if the input row is blank. The negatives of a row depend
    only on its text, its row number, the index, --seed, --epoch and the sampling options. With --format jsonl, each
    negative is a JSON object that lists the replaced words with their character offsets, replacements, probabilities
    and ranks.

    With --parts, -o is a folder with one part per file, such as part-00000.txt.zst, and a manifest. Rows are numbered
    across all files, so the negatives are the same as without --parts. If the command is interrupted, run it again to
    make the missing parts. --engine ray writes the same folder, but distributes the files over a Ray cluster.
    """
    as_parts = options.wants_parts(as_parts, engine, output, sentences)
    check_output(output, form, as_parts, compression, as_json)
    index = TfidfIndex.open(tfidf, min_df=min_df, max_terms=max_terms)
    drawn = index.draw_options(**drawing)
    reading = reading_options(encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, threads=threads)
    if as_parts:
        if engine == "ray" and index.pieces is not None:
            raise InputError("--engine ray: cannot be combined with an index of wordpieces; use --engine local")
        from ...sharding.jobs import AugmentJob
        from .. import parts

        assert output is not None
        job = AugmentJob(tfidf, min_df, max_terms, dict(drawn), copies, form, compression or "zst", reading)
        made = parts.run(job, job.settings(), sentences, column, output, engine, known=index.files, index=tfidf)
        parts.report(made, "sentences", as_json)
        return
    found = readers.resolve(sentences or ["-"], column)
    started = time.perf_counter()
    report = AugmentReport(
        *in_background(
            "augmenting",
            lambda more: index._core.augment_files(
                found, output, copies, form == "jsonl", drawn, index.reading(reading), more
            ),
        )
    )
    seconds = time.perf_counter() - started
    joined = readers.joined_lines(found)
    if not as_json:
        print_report(report, seconds, joined, excluding=min_df > 1 or max_terms is not None)
        if drawn["replace_with"] == "radius":
            printing.say(f"replacements sampled from {printing.span(index.ranks(drawn['radius']), len(index))}")
        return
    further = {"copies": copies, "output": output, **drawn, "terms": len(index)}
    printing.result(summary_of(report, seconds, joined, further), True, [])


def check_output(output: str | None, form: str, as_parts: bool, compression: str | None, as_json: bool) -> None:
    """Raises ``InputError`` for an unknown format or compression, or one that the output cannot have."""
    if compression not in (None, "none", "gz", "zst"):
        raise InputError(f"--compression: {compression!r} is unknown; choose none, gz or zst")
    if compression is not None and not as_parts:
        raise InputError("--compression: applies only to --parts; add --parts, or leave out --compression")
    if as_json and output is None:
        raise InputError("--json: needs -o FILE, because otherwise the negatives are written to standard output")
    if output is not None and not as_parts and output.lower().endswith((".gz", ".zst", ".parquet", ".csv")):
        raise InputError(f"-o {output}: the output is plain lines; give it another suffix, such as .txt")
    if form not in ("text", "jsonl"):
        raise InputError(f"--format: {form!r} is unknown; choose text or jsonl")


def print_report(report: AugmentReport, seconds: float, joined: int, excluding: bool) -> None:
    """Prints how many rows and words were changed; ``excluding``: whether options exclude terms of the index."""
    unseen = "not in the index or excluded by --min-df or --max-terms" if excluding else "not in the index"
    printing.say(
        f"{report.rows:,} rows in {seconds:.2f} s ({report.rows / seconds:,.0f}/s): {report.replacement_rate:.1%} of "
        f"{report.words:,} words replaced, {report.unseen_rate:.1%} {unseen}, "
        f"{report.unchanged:,} rows unchanged ({report.blank:,} blank)"
        + (f", {report.repaired:,} with invalid UTF-8 replaced" if report.repaired else "")
        + (f", {joined:,} with line breaks replaced by spaces" if joined else "")
    )


def summary_of(report: AugmentReport, seconds: float, joined: int, further: dict[str, Any]) -> dict[str, Any]:
    """Returns the object that ``cse augment --json`` prints, which includes ``further``."""
    return {
        **asdict(report),
        "replacement_rate": round(report.replacement_rate, 4),
        "unseen_rate": round(report.unseen_rate, 4),
        "joined_lines": joined,
        **further,
        "seconds": round(seconds, 3),
        "sentences_per_second": round(report.rows / seconds),
    }


@click.command("explain")
@click.argument("sentence")
@options.drawing
@options.seed
@options.option("--samples", default=4, type=click.IntRange(min=0), help="Number of sampled replacements per word.")
@options.as_json
def explain_command(
    sentence: str, tfidf: str, min_df: int, max_terms: int | None, samples: int, as_json: bool, **drawing: Any
) -> None:
    """Show the TF-IDF, replacement probability, rank and sampled replacements of each word of SENTENCE."""
    printing.check_output()
    index = TfidfIndex.open(tfidf, min_df=min_df, max_terms=max_terms)
    words = index.explain(sentence, samples=samples, **drawing)
    radius = index.ranks(drawing["radius"])
    if as_json:
        value = {"sentence": sentence, "radius": radius, "terms": len(index), "words": [asdict(w) for w in words]}
        printing.result(value, True, [])
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = f"{len(index):,} terms, {printing.span(radius, len(index))}, beta {drawing['beta']:g}"
    table = Table(title=title, title_justify="left")
    for name in ("word", "df", "tf-idf", "p(replace)", "rank"):
        table.add_column(name, justify="left" if name == "word" else "right")
    table.add_column("samples", overflow="fold")
    unseen = "not in index" if min_df <= 1 and max_terms is None else "not in index or excluded"
    kept = "joined to another word" if index.pieces is None else "shares a character with another"
    for word in words:
        table.add_row(
            Text(visible(word.word)),
            f"{word.df:,}" if word.seen else unseen,
            f"{word.score:.4f}",
            f"{word.p:.3f}",
            f"{word.rank:,}",
            Text(visible(", ".join(word.samples)) or ("-" if word.replaceable else f"{kept}: never replaced")),
        )
    Console().print(table)
    if not words:
        printing.echo("The sentence has no words; cse augment would return it unchanged.")
    elif len({word.score for word in words}) == 1 and {drawing["replace_which"], drawing["replace_with"]} != {"random"}:
        printing.echo("All words have the same score: one of them, chosen at random, is always replaced.")
