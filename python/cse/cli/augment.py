"""cse augment."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from ..errors import InputError
from ..tfidf import AugmentReport, TfidfIndex
from . import console, options


@click.command("augment")
@click.argument("sentences", nargs=-1)
@options.option("-o", "--output", metavar="FILE", help="Write there.  [default: standard output]")
@options.tfidf
@options.drawing
@options.surface
@options.seed
@options.option(
    "--epoch", default=0, type=click.IntRange(0, 2**64 - 1), metavar="N", help="Another epoch, other negatives."
)
@options.reading
@options.threads
@options.as_json
def command(
    sentences: tuple[str, ...],
    output: str | None,
    tfidf: str,
    beta: float,
    radius: int | None,
    surface: str,
    seed: int,
    epoch: int,
    encoding_errors: str,
    max_line_bytes: int,
    threads: int,
    as_json: bool,
) -> None:
    """Write a synthetic hard negative for each row of SENTENCES (standard input if none), in order.

    Blank rows stay blank, so rows of input and output match. A row's negative depends on its text, its number, --seed
    and --epoch alone.
    """
    if as_json and output is None:
        raise InputError("--json: needs -o FILE here, since standard output holds the negatives")
    index = TfidfIndex.open(tfidf)
    started = time.perf_counter()
    report = AugmentReport(
        *console.in_background(
            "augmenting",
            lambda progress: index._core.augment_files(
                list(sentences) or ["-"],
                output,
                seed,
                epoch,
                0,
                beta,
                radius,
                surface,
                encoding_errors,
                max_line_bytes,
                threads,
                progress,
            ),
        )
    )
    seconds = time.perf_counter() - started
    rate = report.replaced / max(report.words, 1)
    if as_json:
        summary = {
            **asdict(report),
            "replacement_rate": round(rate, 4),
            "output": output,
            "radius": radius or index.default_radius,
            "terms": len(index),
            "seconds": round(seconds, 3),
            "sentences_per_second": round(report.rows / seconds),
        }
        console.result(summary, True, [])
        return
    console.say(
        f"{report.rows:,} rows in {seconds:.2f} s ({report.rows / seconds:,.0f}/s): {rate:.1%} of "
        f"{report.words:,} words replaced, {report.unseen / max(report.words, 1):.1%} never seen, "
        f"{report.unchanged:,} rows unchanged ({report.blank:,} blank)"
        + (f", {report.repaired:,} with repaired bytes" if report.repaired else "")
    )
