"""The commands ``cse augment``, ``cse explain`` and ``cse bench``."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le

from ...data import readers
from ...errors import InputError, visible
from ...options import Column, If, Opt, Threads
from ...progress import in_background
from ...tfidf.build import AugmentReport
from ...tfidf.index import TfidfIndex
from ...tfidf.options import Epoch, MaxTerms, MinDf, Mode, Sampling, Tfidf
from .. import options, printing
from ..command import command
from ..options import AsJson, AsParts, Engine, Reading


@command("augment")
def augment_command(
    sentences: tuple[str, ...] = (),
    *,
    output: Annotated[
        str | None, Opt("Output file; with --parts, a folder.", "FILE", "standard output", short="-o")
    ] = None,
    form: Annotated[
        Literal["text", "jsonl"], Opt("Lines of text, or JSON objects that list the replacements.", flag="--format")
    ] = "text",
    copies: Annotated[int, Ge(1), Le(10_000), Opt("Negatives per row.", "N")] = 1,
    mode: Mode = "negative",
    tfidf: Tfidf = "tfidf",
    min_df: MinDf = 0,
    max_terms: MaxTerms = None,
    sampling: Sampling,
    epoch: Epoch = 0,
    as_parts: AsParts = False,
    engine: Engine = "local",
    compression: Annotated[
        Literal["none", "gz", "zst"] | None,
        Opt("Compression of the parts.", default="zst; none without --parts", needs="as_parts"),
    ] = None,
    reading: Reading,
    as_json: Annotated[
        AsJson,
        Opt(needs=If("output", named="-o FILE", why="because otherwise the negatives are written to standard output")),
    ] = False,
) -> None:
    """Write synthetic hard negatives for each row of the files SENTENCES (default: standard input), in row order.

    Each input row gives --copies output rows, which are blank if the input row is blank. The negatives of a row depend
    only on its text, its row number, the index, --seed, --epoch and the sampling options. With --format jsonl, each
    negative is a JSON object that lists the replaced words with their character offsets, replacements, probabilities
    and ranks.

    With --parts, -o is a folder with one part per file, such as part-00000.txt.zst, and a record of each part. Rows are
    numbered across all files, so the negatives are the same as without --parts. If the command is interrupted, run it
    again to make the missing parts. --engine ray writes the same folder, but distributes the files over a Ray cluster.
    """
    output = None if output == "-" else output
    as_parts = options.wants_parts(as_parts, engine, output, sentences)
    if output is not None and not as_parts and output.lower().endswith((".gz", ".zst", ".parquet", ".csv")):
        raise InputError(f"-o {output}: the output is plain lines; give it another suffix, such as .txt")
    index = TfidfIndex.open(tfidf, min_df=min_df, max_terms=max_terms)
    drawn = index.draw_options(**asdict(sampling), epoch=epoch, mode=mode)
    if as_parts:
        if engine == "ray" and index.pieces is not None:
            raise InputError("--engine ray cannot be combined with an index of wordpieces; use --engine local")
        from ...sharding import augment_job
        from .. import parts

        assert output is not None
        job = augment_job(
            index,
            Path(tfidf) / "index.safetensors",
            filtered={"min_df": min_df, "max_terms": max_terms},
            drawing=dict(drawn),
            copies=copies,
            form=form,
            compression=compression or "zst",
            reading=reading.options,
            elsewhere=engine == "ray",
        )
        parts.run(job, sentences, reading.column, output, engine, "sentences", as_json, known=index.files)
        return
    inputs = readers.resolve(sentences or ["-"], reading.column)
    started = time.perf_counter()
    given = inputs, output, copies, form == "jsonl", drawn, index.reading(reading.options)
    found, _ = in_background("augmenting", lambda more: index._core.augment_files(*given, more))
    report = AugmentReport(**found)
    seconds = time.perf_counter() - started
    joined = readers.joined_lines(inputs)
    if as_json:
        rates = {"replacement_rate": round(report.replacement_rate, 4), "unseen_rate": round(report.unseen_rate, 4)}
        settings = {"joined_lines": joined, "copies": copies, "output": output, **drawn, "terms": len(index)}
        speed = {"seconds": round(seconds, 3), "sentences_per_second": round(report.rows / seconds)}
        printing.result({**asdict(report), **rates, **settings, **speed}, True, [])
        return
    excluded = " or excluded by --min-df or --max-terms" if min_df > 1 or max_terms is not None else ""
    printing.say(
        f"{report.rows:,} rows in {seconds:.2f} s ({report.rows / seconds:,.0f}/s): {report.replacement_rate:.1%} of "
        f"{report.words:,} words replaced, {report.unseen_rate:.1%} not in the index{excluded}, "
        f"{report.unchanged:,} rows unchanged ({report.blank:,} blank)"
        + (f", {report.repaired:,} with invalid UTF-8 replaced" if report.repaired else "")
        + (f", {joined:,} with line breaks replaced by spaces" if joined else "")
    )
    if drawn["beta"] == 0 and drawn["replace_which"] == drawn["replace_with"] == "random":
        printing.say("warning: with --beta 0 and both steps random, no word is replaced; raise --beta")
    if drawn["replace_with"] == "radius":
        printing.say(f"replacements sampled from {printing.span(index.ranks(drawn['radius']), len(index))}")


@command("explain")
def explain_command(
    sentence: Annotated[str, Opt(blank=True)],
    *,
    tfidf: Tfidf = "tfidf",
    min_df: MinDf = 0,
    max_terms: MaxTerms = None,
    sampling: Sampling,
    samples: Annotated[int, Ge(0), Le(100_000), Opt("Number of sampled replacements per word.")] = 4,
    as_json: AsJson = False,
) -> None:
    """Show why UNA replaces a word: for each word of SENTENCE, its TF-IDF score, the probability that it is replaced,
    its rank in the index, and some replacements.
    """
    printing.check_output()
    index = TfidfIndex.open(tfidf, min_df=min_df, max_terms=max_terms)
    words = index.explain(sentence, samples=samples, **asdict(sampling))
    radius = index.ranks(sampling.radius)
    if as_json:
        value = {"sentence": sentence, "radius": radius, "terms": len(index), "words": [asdict(w) for w in words]}
        printing.result(value, True, [])
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = f"{len(index):,} terms, {printing.span(radius, len(index))}, beta {sampling.beta:g}"
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
    elif len({word.score for word in words}) == 1 and {sampling.replace_which, sampling.replace_with} != {"random"}:
        printing.echo("All words have the same score: one of them, chosen at random, is always replaced.")


@command("bench")
def bench_command(
    what: Annotated[Literal["augment"], Opt(metavar="augment")],
    corpus: tuple[str, ...],
    *,
    repeat: Annotated[int, Ge(1), Opt("Number of timed runs.", "N")] = 5,
    column: Column = None,
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how many hard negatives a minute cse augment makes, compared with a plain Python loop and nlpaug.

    The loop does the same on the first 2,000 rows, with one thread. Before anything is timed, its probabilities and
    replacements are compared with cse's on 200 rows. nlpaug (TfIdfAug, 200 rows, one run) is included if it is
    installed. Rates are medians of --repeat runs, with the lowest and the highest.
    """
    printing.check_output()
    from ...tfidf.speed import measure

    rates = measure(corpus, column, repeat, threads)
    if as_json:
        printing.result(rates, True, [])
        return
    printing.table(
        [
            {
                "program": name,
                "sentences a minute": f"{rate['per_minute']:,.0f}",
                "lowest to highest": f"{rate['lowest']:,.0f} to {rate['highest']:,.0f}",
                "cse is faster by": "" if name == "cse" else f"{rate['ratio']:,.0f} times",
            }
            for name, rate in rates.items()
        ]
    )
    if "nlpaug" not in rates:
        printing.say("nlpaug is not installed; pip install nlpaug adds its row")
