"""The command ``cse encode``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from ...data import readers
from ...errors import InputError
from ...io import write_atomically
from ...options import If, Opt
from ...progress import counting
from .. import options, printing
from ..command import command
from ..options import AsJson, AsParts, Encoding, Engine, open_corpus


@command("encode")
def encode_command(
    model: str,
    sentences: tuple[str, ...] = (),
    *,
    output: Annotated[
        str | None,
        Opt(
            "The .npy, .safetensors or .parquet file to write; with --parts, a folder.",
            "FILE",
            "standard output, .npy",
            short="-o",
        ),
    ] = None,
    as_parts: AsParts = False,
    engine: Engine = "local",
    gpus_per_worker: Annotated[
        float | None, Ge(0), Opt("GPUs per Ray worker.", "G", "0", needs=If("engine", ("ray",)))
    ] = None,
    form: Annotated[
        Literal["npy", "safetensors", "parquet"] | None,
        Opt("Format of the parts.", default="npy; without --parts, from the suffix of FILE", flag="--format"),
    ] = None,
    encoding: Encoding,
    as_json: AsJson = False,
) -> None:
    """Encode each row of the files SENTENCES (default: standard input) with MODEL, a folder or a name.

    The output file has a float32 embedding for each row, in the order of the rows; a blank row has a zero embedding.
    .npy is a NumPy array; .safetensors has one tensor, named embeddings; .parquet has the columns row and embedding.
    Memory use does not grow with the input. If the command is interrupted, FILE.part remains; run the same command
    again to resume from it.

    With --parts, -o is a folder with one part per file, and a record of each part. Rows are numbered across all files.
    If the command is interrupted, run it again to make the missing parts. --engine ray writes the same folder, but
    distributes the files over the workers of a Ray cluster, each of which loads the model once.
    """
    as_parts = options.wants_parts(as_parts, engine, output, sentences)
    if form is not None and not as_parts:
        raise InputError("--format applies only to --parts; add --parts, or choose the format by the suffix of FILE")
    model = options.model_folder(model)
    if not as_parts:
        encode_file(model, sentences, output, encoding, as_json)
        return
    there = engine == "ray"
    if there and encoding.precision == "auto":
        raise InputError("--precision auto: the processors of a cluster may differ; choose fp32 or bf16")
    from ...encoder.device import describe_device, set_threads
    from ...encoder.encoder import Encoder
    from ...sharding import encode_job
    from .. import parts

    set_threads(encoding.threads)
    arguments = {"model": model, **encoding.arguments}
    encoder = Encoder(**{**arguments, "device": "cpu"} if there else arguments)
    if not there:
        printing.say(f"on {describe_device(str(encoder.device), encoder.precision, encoder.precision_reason)}")
    names = ("encoding_errors", "max_line_bytes", "threads")
    job = encode_job(
        encoder,
        arguments,
        suffix=f".{form or 'npy'}",
        batch_size=encoding.batch_size,
        cache=encoding.cache,
        reading=readers.reading_options(**{name: getattr(encoding, name) for name in names}),
        elsewhere=there,
    )
    further: dict[str, Any] = {"precision": encoder.precision, "embedding_dim": encoder.embedding_dim}
    gpus = gpus_per_worker or 0
    parts.run(job, sentences, encoding.column, str(output), engine, "rows", as_json, gpus=gpus, **further)


def encode_file(model: str, sentences: tuple[str, ...], output: str | None, encoding: Encoding, as_json: bool) -> None:
    if output is None:
        printing.check_output()
        if as_json or sys.stdout.isatty():
            raise InputError(
                "-o: name the output file; binary output cannot go to a terminal, nor be combined with --json"
            )
    place = Path(output or "-")
    is_device = place.exists() and not place.is_file() and not place.is_dir()  # such as /dev/null or a pipe
    target = None if output is None or is_device else output
    if target is not None:
        printing.check_suffix(target, ".npy", ".safetensors", ".parquet")
    for item in readers.resolve(sentences or ["-"], encoding.column):  # before torch is imported
        if isinstance(item, str) and item != "-":
            os.stat(item)
    printing.loading()
    from ...encoder.device import describe_device, set_threads
    from ...encoder.encoder import Encoder
    from ...encoder.vector_files import encode_to_file, made_by, resume_precision

    set_threads(encoding.threads)
    corpus = open_corpus(sentences or ["-"], **encoding.reading)
    filled = len(corpus.filled())
    encoder = Encoder(model, **encoding.arguments)
    if encoder.plain:
        printing.say(f"{model}: the folder does not declare a pooling; using --pooler {encoder.pooler}")
    elif encoder.pooler == "cls":
        printing.say(f"pooling {encoder.pooling}")
    files = [[file.xxh3, file.column, file.rows] for file in corpus.files]
    key = {"corpus": files, "encoding_errors": encoding.reading["encoding_errors"], **made_by(encoder)}
    if target is not None:
        resume_precision(encoder, target, key, encoding.precision)
    printing.say(f"on {describe_device(str(encoder.device), encoder.precision, encoder.precision_reason)}")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="cse-encode-") as folder, counting("encoding", len(corpus), "rows") as more:
        written = target or str(Path(folder) / "vectors.npy")
        done = encode_to_file(encoder, corpus, written, key, batch_size=encoding.batch_size, progress=more)
        seconds = time.perf_counter() - started
        if target is None:
            with open(written, "rb") as source:
                if output is None:
                    shutil.copyfileobj(source, sys.stdout.buffer)
                else:
                    write_atomically(output, lambda file: shutil.copyfileobj(source, file))
    if done.resumed:
        printing.say(f"{done.resumed:,} rows were encoded by an earlier call")
    rate = round(max(filled - done.resumed, 0) / seconds, 1)
    if as_json:
        size = {"output": output, "rows": len(corpus), "embedding_dim": encoder.embedding_dim, "blank": done.blank}
        how = {"resumed": done.resumed, "precision": encoder.precision}
        printing.result({**size, **how, "seconds": round(seconds, 2), "sentences_per_second": rate}, True, [])
        return
    printing.say(
        f"{len(corpus):,} rows x {encoder.embedding_dim} in {seconds:.1f} s ({rate:,} sentences/s), "
        f"{done.blank:,} blank rows"
    )
