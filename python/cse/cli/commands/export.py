"""The command ``cse export``."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Any

import click

from ...errors import InputError
from .. import options, printing
from ..progress import PhaseDisplay, counting, progress_of

READING = ("column", "encoding_errors", "max_line_bytes")


@click.command("export", cls=options.GroupedCommand)
@click.argument("model")
@options.group("Format")
@options.option("--onnx", is_flag=True, help="Write onnx/model.onnx (extra cse[onnx]).")
@options.option("--static", is_flag=True, help="Write a static encoder in the format of model2vec (cse[static]).")
@options.option(
    "-o",
    "--output",
    metavar="DIR",
    help="New folder for the static encoder, or for a copy of MODEL with the ONNX files.",
    default_text="the folder of MODEL; required with --static, or if MODEL is a name",
)
@options.group("ONNX")
@options.option("--int8", is_flag=True, help="Also write onnx/model_int8.onnx, with 8-bit weights.")
@options.option("--sts", metavar="FILE", help="STS pairs (stsb.dev.tsv) to evaluate the 8-bit file.")
@options.option("--retrieval", metavar="DIR", help="Retrieval data to evaluate the 8-bit file.")
@options.group("Static encoder")
@options.option(
    "--corpus", multiple=True, metavar="FILE", help="Texts like those to be encoded, one per row; may be repeated."
)
@options.option("--dims", type=int, metavar="N", help="Number of principal components to keep.", default_text="all")
@options.option(
    "--words", default=0, type=click.IntRange(min=0), metavar="N", help="Add N frequent words of the corpus as tokens."
)
@options.reading
@options.group("Other")
@options.threads
@options.as_json
@click.pass_context
def export_command(ctx: click.Context, /, model: str, onnx: bool, static: bool, **values: Any) -> None:
    """Export MODEL (a folder, a name or a run) to a format that other programs can read.

    --onnx writes a file for onnxruntime. SentenceTransformer(FOLDER, backend="onnx") loads it, and cse eval, compare
    and encode accept it as onnx:FOLDER. The export fails if the embeddings from the file do not agree with PyTorch's.

    --static averages one vector per token, many times faster than the transformer. The vectors are fitted to the
    embeddings of the rows of --corpus. cse, model2vec and SentenceTransformer(FOLDER) load the folder.

    With --int8 and --sts or --retrieval, the model in PyTorch and the 8-bit file are evaluated, and both scores are
    printed with a confidence interval for their difference.
    """
    if onnx == static:
        raise InputError("cse export: name one format, either --onnx or --static")
    only_onnx, only_static = ("int8", "sts", "retrieval"), ("corpus", "dims", "words", *READING)
    for name in only_static if onnx else only_onnx:
        if options.was_given(ctx, name):
            this, other = ("onnx", "static") if onnx else ("static", "onnx")
            raise InputError(f"--{name.replace('_', '-')}: has no effect with --{this}; leave it out, or use --{other}")
    printing.check_output()
    if onnx:
        write_onnx(model, **{name: values[name] for name in (*only_onnx, "output", "threads", "as_json")})
    else:
        write_static(model, **{name: values[name] for name in (*only_static, "output", "threads", "as_json")})


def write_static(
    model: str,
    output: str | None,
    corpus: tuple[str, ...],
    dims: int | None,
    words: int,
    threads: int,
    as_json: bool,
    **reading: Any,
) -> None:
    """Runs ``cse export --static``, and prints what was written."""
    if not corpus:
        raise InputError("--static: name the texts to fit the vectors to with --corpus FILE")
    if output is None:
        raise InputError("--static: name a new folder with -o")
    from ...data import readers
    from ...data.corpus import Corpus
    from ...models.device import set_threads
    from ...models.running.inference import Encoder
    from ...models.saving.static_export import check_static, export_static

    check_static(output)
    set_threads(threads)
    files = readers.resolve(list(corpus), reading.pop("column"))
    with closing(PhaseDisplay()) as phases:
        rows = Corpus.open(files, progress=phases, **reading)
    encoder = Encoder(options.model_folder(model))
    found = export_static(encoder, rows, output, dims=dims, words=words, counting=counting)
    if as_json:
        printing.result(asdict(found), True, [])
        return
    printing.echo(
        f"{found.folder}: {found.bytes / 1e6:,.1f} MB, {found.tokens:,} tokens ({found.words:,} of them added words), "
        f"{found.embedding_dim} dimensions\nfitted to {found.rows:,} rows: mean cosine {found.cosine:.3f} with the "
        "embeddings of the encoder, after subtracting their mean"
    )


def write_onnx(
    model: str,
    output: str | None,
    int8: bool,
    sts: str | None,
    retrieval: str | None,
    threads: int,
    as_json: bool,
) -> None:
    """Runs ``cse export --onnx``, and prints what was written."""
    if (sts or retrieval) and not int8:
        raise InputError(f"--{'sts' if sts else 'retrieval'}: is data for evaluating the 8-bit file; add --int8")
    data = {"sts": sts, "retrieval": retrieval}
    data = {suite: path for suite, path in data.items() if path is not None}
    from ...evaluation.run import compare_models, open_suites
    from ...models.device import set_threads
    from ...models.saving.onnx_export import export_onnx

    for suite, path in data.items():
        open_suites(suite, path, allow_partial=True)  # fails before the export, which takes a minute
    set_threads(threads)
    found = export_onnx(options.model_folder(model), output, int8, lambda text: printing.say(f"{text} ..."))
    lines = [
        f"{found.file}: {found.bytes / 1e6:,.1f} MB, embeddings differ from PyTorch's by at most {found.difference:.1g}"
    ]
    tables: dict[str, list[dict[str, Any]]] = {}
    if int8:
        lines.append(
            f"{found.int8_file}: {found.int8_bytes / 1e6:,.1f} MB, cosine with PyTorch's embeddings: "  # type: ignore[operator]
            f"mean {found.int8_cosine:.4f}, minimum {found.int8_lowest_cosine:.4f}"
        )
    for suite, path in data.items():
        with progress_of(f"evaluating {suite}", "texts") as progress:
            sides = [[found.folder], [f"onnx:{found.int8_file}"]]
            (compared,) = compare_models(sides, suite, path, allow_partial=True, device="cpu", progress=progress)
        tables[suite] = compared.tasks
    if as_json:
        printing.result({**asdict(found), "int8_differences": tables}, True, [])
        return
    printing.echo("\n".join(lines))
    if tables:
        from .evaluate import compared_cells

        records = [compared_cells(record) for tasks in tables.values() for record in tasks]
        printing.table(records, title="int8 (B) against PyTorch (A)")
    elif int8:
        printing.echo("Note: pass data with --sts or --retrieval to see how int8 changes the scores")
