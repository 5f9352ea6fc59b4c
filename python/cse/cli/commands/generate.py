"""The command ``cse generate``."""

from __future__ import annotations

import time
from typing import Any

import click

from ...data import readers
from ...data.readers import reading_options
from ...errors import InputError
from .. import options, printing
from ..progress import counting

# Whether texts are sampled, by task. Paraphrases are decoded by beam search, because they should keep the meaning;
# queries are sampled, because the most likely query repeats the text (Nogueira and Lin 2019).
SAMPLED = {"paraphrase": False, "query": True}
BEAMS, VIA_BEAMS = 10, 4


@click.command("generate")
@click.argument("corpus", nargs=-1, required=True)
@options.option("--model", required=True, metavar="NAME", help="Sequence-to-sequence model.")
@options.option("--task", default="paraphrase", type=click.Choice(tuple(SAMPLED)), help="What the model generates.")
@options.option("--via", metavar="NAME", help="Model that translates the output of --model back.")
@options.option("-o", "--output", required=True, metavar="FILE", help="Output file: .txt for lines, .jsonl for pairs.")
@options.option("--prefix", default="", metavar="TEXT", help="Text to put before each row.", default_text="none")
@options.option(
    "--beams", type=click.IntRange(1, 100), metavar="N", help="Number of beams.", default_text="10; 4 with --via"
)
@options.option(
    "--sample/--no-sample",
    default=None,
    help="Sample instead of using beam search.",
    default_text="yes for queries without --beams, else no",
)
@options.option(
    "--top-p",
    default=0.95,
    type=click.FloatRange(0, 1, min_open=True),
    metavar="P",
    help="With --sample: sample from the likeliest tokens, up to this total probability.",
)
@options.option(
    "--temperature",
    default=1.0,
    type=click.FloatRange(0, min_open=True),
    metavar="T",
    help="With --sample: the divisor of the logits.",
)
@options.option(
    "--max-new-tokens", default=64, type=click.IntRange(1), metavar="N", help="Maximum number of tokens per text."
)
@options.option(
    "--max-input-tokens",
    default=256,
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of tokens read per row.",
)
@options.option("--batch-size", default=16, type=click.IntRange(1), metavar="N", help="Rows per forward pass.")
@options.seed
@options.reading
@options.device
@options.threads
@options.as_json
def generate_command(
    corpus: tuple[str, ...],
    model: str,
    task: str,
    via: str | None,
    output: str,
    beams: int | None,
    sample: bool | None,
    column: str | None,
    encoding_errors: str,
    max_line_bytes: int,
    device: str,
    threads: int,
    as_json: bool,
    **generation: Any,
) -> None:
    """Write a paraphrase, a back-translation or a query for each row of CORPUS.

    FILE.txt has one line per row of CORPUS, for cse train --positive parallel --set parallel.file=FILE.txt. FILE.jsonl
    has pairs of a generated text (the anchor) and its row (the positive), for cse train --pairs FILE.jsonl. If the
    command is interrupted, run it again to resume.
    """
    if not output.endswith((".txt", ".jsonl")):
        raise InputError(f"-o {output}: the name must end in .txt or .jsonl")
    if sample and beams is not None:
        raise InputError("--beams: cannot be combined with --sample; choose one")
    from ...data.corpus import Corpus
    from ...models.device import set_threads
    from ...models.running.generation import GenerationOptions, Generator, generate

    set_threads(threads)
    sampled = SAMPLED[task] if sample is None and beams is None else bool(sample)
    beams = 1 if sampled else beams or (VIA_BEAMS if via else BEAMS)
    given = GenerationOptions(beams=beams, sample=sampled, **generation)
    reading = reading_options(encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, threads=threads)
    texts = Corpus.read(readers.resolve(corpus, column), **reading)
    rows = texts.take(range(len(texts)))
    generator = Generator(model, given, via, device)
    started = time.perf_counter()
    with counting("generating", sum(bool(row.strip()) for row in rows), "rows") as more:
        counts = generate(rows, generator, output, more)
    seconds = time.perf_counter() - started
    lines = [
        f"{output}: {counts['rows']:,} rows, {counts['generated']:,} generated in {seconds:.1f} s "
        f"({counts['generated'] / max(seconds, 1e-9):,.1f} rows/s); {counts['unchanged']:,} texts equal "
        "their input row; "
        f"nothing was generated for {counts['empty']:,} rows"
    ]
    printing.result({"output": output, **counts, "seconds": round(seconds, 3)}, as_json, lines)
