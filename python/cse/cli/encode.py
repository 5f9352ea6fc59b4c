"""cse encode."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from ..data import readers
from ..errors import InputError
from ..io import write_atomically
from . import console, options
from .progress import counting


@click.command("encode")
@click.argument("model")
@click.argument("sentences", nargs=-1)
@options.option("-o", "--output", metavar="FILE.npy", help="Output file.", default_text="standard output")
@options.option("--batch-size", default=64, type=click.IntRange(min=1))
@options.pooler
@options.device
@options.reading
@options.threads
@options.as_json
def command(
    model: str,
    sentences: tuple[str, ...],
    output: str | None,
    batch_size: int,
    pooler: str | None,
    device: str,
    column: str | None,
    encoding_errors: str,
    max_line_bytes: int,
    threads: int,
    as_json: bool,
) -> None:
    """Encode each row of SENTENCES (standard input if none) with MODEL, a folder or a name, into a NumPy file.

    The file contains a float32 array (rows, dimensions) in the order of the rows. Blank rows are encoded as zeros.
    """
    options.check_pooler(pooler)
    if output is None:
        console.check_output()
    if output is None and (as_json or sys.stdout.isatty()):
        raise InputError("-o: name the output file; binary output cannot go to a terminal or beside --json")
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise InputError(f"-o {output}: its folder does not exist")
    if output is not None and Path(output).is_dir():
        raise InputError(f"-o {output}: is a folder; name a file")
    import numpy as np

    from ..data.corpus import Corpus
    from ..models.device import set_threads
    from ..models.inference import Encoder

    set_threads(threads)
    found = readers.resolve(sentences or ["-"], column)
    corpus = Corpus.read(found, encoding_errors=encoding_errors, max_line_bytes=max_line_bytes)
    filled = corpus.filled()
    encoder = Encoder(model, pooler=pooler, device=device)
    if encoder.plain:
        console.say(f"{model}: the directory does not declare a pooling; using --pooler avg")
    elif encoder.model.pooler == "cls":
        console.say(f"pooling {encoder.pooling}")
    vectors = np.zeros((len(corpus), encoder.embedding_dim), dtype=np.float32)
    started = time.perf_counter()
    block = 64 * batch_size
    with counting("encoding", len(filled), "sentences") as progress:
        for start in range(0, len(filled), block):
            rows = filled[start : start + block]
            vectors[rows] = encoder.encode(corpus.take(rows), batch_size=batch_size, progress=progress)
    seconds = time.perf_counter() - started
    if output is None:
        # np.save would write to the file descriptor directly, and report a broken pipe as an incomplete write.
        np.lib.format.write_array(console.OutputStream(), vectors)
    else:
        write_atomically(output, lambda file: np.save(file, vectors))
    summary = {
        "output": output,
        "rows": len(corpus),
        "embedding_dim": encoder.embedding_dim,
        "blank": len(corpus) - len(filled),
        "seconds": round(seconds, 2),
        "sentences_per_second": round(len(filled) / seconds, 1),
    }
    if as_json:
        console.result(summary, True, [])
    else:
        console.say(
            f"{len(corpus):,} rows x {encoder.embedding_dim} in {seconds:.1f} s "
            f"({len(filled) / seconds:,.0f} sentences/s), {len(corpus) - len(filled):,} blank"
        )
