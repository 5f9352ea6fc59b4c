"""The command ``cse generate``: paraphrases, back-translations and queries, written by sequence-to-sequence models.

Texts are appended to ``OUTPUT.part`` batch by batch, and repeating an interrupted call resumes it; a call with other
rows, models or options begins anew. A batch holds rows
of similar length from one window of consecutive rows, and random numbers are keyed by (seed, first row of the batch,
model). A resumed call therefore produces the same texts as one that was not interrupted.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from cse import InputError
from cse.cli import printing
from cse.cli.command import command
from cse.cli.options import AsJson
from cse.data import readers
from cse.errors import check_texts, first_line
from cse.io import Journal, naming, write_text
from cse.options import Column, Device, EncodingErrors, MaxLineBytes, Opt, Seed, Threads
from cse.progress import counting

# Rows per window; the rows of a window are sorted by length.
WINDOW = 2048
# Beams of the beam search, as for UNA: for paraphrases, and for each direction of a back-translation.
BEAMS, VIA_BEAMS = 10, 4


@dataclass(frozen=True)
class GenerationOptions:
    """How texts are generated. Limits above those of the model are reduced to them."""

    prefix: Annotated[str, Opt("Text to put before each row.", "TEXT", "none")] = ""
    beams: Annotated[
        int | None, Ge(1), Le(100), Opt("Number of beams.", "N", f"{BEAMS}; {VIA_BEAMS} with --via", excludes="sample")
    ] = None
    sample: Annotated[
        bool | None, Opt("Sample instead of using beam search.", default="yes for queries without --beams, else no")
    ] = None
    top_p: Annotated[
        float, Gt(0), Le(1), Opt("With --sample: sample from the likeliest tokens, up to this total probability.", "P")
    ] = 0.95
    temperature: Annotated[float, Gt(0), Opt("With --sample: the divisor of the logits.", "T")] = 1.0
    max_new_tokens: Annotated[int, Ge(1), Opt("Maximum number of tokens per text.", "N")] = 64
    max_input_tokens: Annotated[int, Ge(1), Opt("Maximum number of tokens read per row.", "N")] = 256
    batch_size: Annotated[int, Ge(1), Opt("Rows per forward pass.", "N")] = 16
    seed: Seed = 0


class Generator:
    """A sequence-to-sequence model and, for back-translation, a second one (``via``) that translates its output back.

    Models are folders or hub names. Raises ``InputError`` if one cannot be loaded, or is not a sequence-to-sequence
    model.
    """

    def __init__(self, model: str, options: GenerationOptions, via: str | None = None, device: str = "auto") -> None:
        from cse.encoder.device import pick_device

        self.options, self.device = options, pick_device(device)
        self.names = [model] if via is None else [model, via]
        self.steps = [self._load(name) for name in self.names]

    def _load(self, name: str) -> tuple[Any, Any]:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        from cse.encoder.resolve import find_folder

        folder = find_folder(name)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, ImportError, KeyError) as error:
            raise InputError(
                f"{name}: cannot be loaded as a sequence-to-sequence model ({first_line(error)}); name one, such as "
                "T5, PEGASUS or Marian"
            ) from None
        return tokenizer, model.eval().to(self.device)

    def __call__(self, texts: Sequence[str], first: int) -> list[str]:
        """Returns one generated text per input text; ``first``, the row number of the first, is part of the seed."""
        import torch

        from cse.encoder.device import kept_generators

        generated = [f"{self.options.prefix}{text}" for text in texts]
        for step, (tokenizer, model) in enumerate(self.steps):
            options = self.options
            limit = min(options.max_input_tokens, tokenizer.model_max_length, _positions(model))
            tokens = tokenizer(generated, padding=True, truncation=True, max_length=limit, return_tensors="pt")
            tokens = {name: tensor.to(self.device) for name, tensor in tokens.items() if name != "token_type_ids"}
            keyed = hashlib.sha256(f"{options.seed} {first} {step}".encode()).digest()
            drawn = {"top_p": options.top_p, "top_k": 0, "temperature": options.temperature} if options.sample else {}
            with kept_generators(self.device), torch.inference_mode():
                torch.manual_seed(int.from_bytes(keyed[:8], "big") >> 1)
                out = model.generate(
                    **tokens,
                    max_new_tokens=min(options.max_new_tokens, _positions(model) - 1),
                    max_length=None,
                    do_sample=bool(options.sample),
                    num_beams=1 if options.sample else options.beams or BEAMS,
                    **drawn,
                )
            generated = [" ".join(text.split()) for text in tokenizer.batch_decode(out, skip_special_tokens=True)]
        return generated


def _positions(model: Any) -> int:
    """Returns the maximum number of tokens of a model; 2**20 if its positions are relative or the limit is unknown."""
    for name in ("max_position_embeddings", "n_positions"):
        limit = getattr(model.config, name, None)
        if isinstance(limit, int) and limit > 1 and not hasattr(model.config, "relative_attention_num_buckets"):
            return limit
    return 2**20


def batches(texts: Sequence[str], size: int) -> Iterator[list[int]]:
    """Yields batches of row numbers; the rows of a batch have similar lengths and come from one window. Blank rows are
    left out."""
    for start in range(0, len(texts), WINDOW):
        rows = [row for row in range(start, min(start + WINDOW, len(texts))) if texts[row].strip()]
        rows.sort(key=lambda row: (-len(texts[row]), row))
        for first in range(0, len(rows), size):
            yield rows[first : first + size]


def generate(
    texts: Sequence[str],
    generator: Generator,
    output: str | Path,
    progress: Callable[[int], None] | None = None,
) -> dict[str, int]:
    """Generates a text for each row of a corpus, and writes the results to a text file or a ``.jsonl`` file.

    A text file has one line per row: the generated text, or the row itself if the row is blank or its generated text is
    empty. A ``.jsonl`` file has an object ``{"anchor": generated, "positive": row}`` for each row with a generated
    text, as input for ``cse train --pairs``. ``progress`` gets the number of rows of each batch, and first, if an
    interrupted call is resumed, of those already done. Raises ``InputError`` if another process is writing the file.

    Returns counts by name: ``rows``, all rows; ``generated``, generated texts that are not empty; ``unchanged``,
    generated texts that equal their row except for white space; ``empty``, generated texts that are empty.
    """
    texts, output = check_texts(texts), Path(output)
    part = output.with_name(output.name + ".part")
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\n")
    key = {**asdict(generator.options), "models": generator.names, "rows": digest.hexdigest()}
    generated: dict[int, str] = {}
    with (
        naming(output),
        closing(Journal(part, key, f"{output}: another process is writing it; wait for it")) as journal,
    ):
        for written in journal.records:
            generated |= dict(written)
        if progress and generated:
            progress(len(generated))
        for rows in batches(texts, generator.options.batch_size):
            if all(row in generated for row in rows):
                continue
            written = [*zip(rows, generator([texts[row] for row in rows], rows[0]), strict=True)]
            journal.add(written)
            generated |= dict(written)
            if progress:
                progress(len(rows))
        counts = _write(texts, generated, output)
        journal.remove()
    return counts


def _write(texts: Sequence[str], generated: dict[int, str], output: Path) -> dict[str, int]:
    """Writes the generated texts of rows, and returns counts; see ``generate``."""
    counts = {"rows": len(texts), "generated": sum(bool(text) for text in generated.values())}
    counts["empty"] = len(generated) - counts["generated"]
    counts["unchanged"] = sum(text == " ".join(texts[row].split()) for row, text in generated.items())
    if output.suffix == ".jsonl":
        pairs = ({"anchor": generated[row], "positive": text} for row, text in enumerate(texts) if generated.get(row))
        lines = [json.dumps(pair, ensure_ascii=False) for pair in pairs]
    else:
        lines = [generated.get(row) or text for row, text in enumerate(texts)]
    write_text(output, "".join(f"{line}\n" for line in lines))
    return counts


# Whether texts are sampled, by task. Paraphrases are decoded by beam search, because they should keep the meaning;
# queries are sampled, because the most likely query repeats the text (Nogueira and Lin 2019).
SAMPLED = {"paraphrase": False, "query": True}


@command("generate", short_help="Write a paraphrase or a query for each sentence.")
def generate_command(
    corpus: tuple[str, ...],
    *,
    model: Annotated[str, Opt("Sequence-to-sequence model.", "NAME")],
    task: Annotated[Literal["paraphrase", "query"], Opt("What the model generates.")] = "paraphrase",
    via: Annotated[str | None, Opt("Model that translates the output of --model back.", "NAME")] = None,
    output: Annotated[str, Opt("Output file: .txt for lines, .jsonl for pairs.", "FILE", short="-o")],
    generation: GenerationOptions,
    column: Column = None,
    encoding_errors: EncodingErrors = "strict",
    max_line_bytes: MaxLineBytes = 1 << 20,
    device: Device = "auto",
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Write a paraphrase, a back-translation or a query for each row of CORPUS.

    FILE.txt has one line per row of CORPUS, for cse train --positive parallel --set parallel.file=FILE.txt. FILE.jsonl
    has pairs of a generated text (the anchor) and its row (the positive), for cse train --pairs FILE.jsonl. If the
    command is interrupted, run it again to resume.
    """
    printing.check_suffix(output, ".txt", ".jsonl")
    from cse.data.corpus import Corpus
    from cse.encoder.device import set_threads

    set_threads(threads)
    sample = SAMPLED[task] if generation.sample is None and generation.beams is None else bool(generation.sample)
    beams = 1 if sample else generation.beams or (VIA_BEAMS if via else BEAMS)
    options = replace(generation, sample=sample, beams=beams)
    reading = readers.reading_options(encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, threads=threads)
    texts = Corpus.read(readers.resolve(corpus, column), **reading)
    rows = texts.take(range(len(texts)))
    generator = Generator(model, options, via, device)
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
