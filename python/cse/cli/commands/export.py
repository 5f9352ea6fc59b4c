"""The command ``cse export``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ...errors import InputError
from .. import options, printing
from ..progress import progress_of


@click.command("export")
@click.argument("model")
@options.option("--onnx", is_flag=True, help="Write onnx/model.onnx (extra cse[onnx]).")
@options.option(
    "-o",
    "--output",
    metavar="DIR",
    help="New folder for a copy of MODEL with the exported files.",
    default_text="the folder of MODEL; required if MODEL is a name",
)
@options.option("--int8", is_flag=True, help="Also write onnx/model_int8.onnx, with 8-bit weights.")
@options.option("--sts", metavar="FILE", help="STS pairs (stsb.dev.tsv) to evaluate the 8-bit file.")
@options.option("--retrieval", metavar="DIR", help="Retrieval data to evaluate the 8-bit file.")
@options.threads
@options.as_json
def export_command(
    model: str,
    onnx: bool,
    output: str | None,
    int8: bool,
    sts: str | None,
    retrieval: str | None,
    threads: int,
    as_json: bool,
) -> None:
    """Export MODEL (a folder, a name or a run) to a format that other programs can read.

    --onnx writes a file for onnxruntime. SentenceTransformer(FOLDER, backend="onnx") loads it, and cse eval, compare
    and encode accept it as onnx:FOLDER. The export fails if the embeddings from the file do not agree with PyTorch's.

    With --int8 and --sts or --retrieval, the model in PyTorch and the 8-bit file are evaluated, and both scores are
    printed with a confidence interval for their difference.
    """
    if not onnx:
        raise InputError("cse export: name a format; --onnx is the only one")
    if (sts or retrieval) and not int8:
        raise InputError(f"--{'sts' if sts else 'retrieval'}: is data for evaluating the 8-bit file; add --int8")
    data = {"sts": sts, "retrieval": retrieval}
    data = {suite: path for suite, path in data.items() if path is not None}
    printing.check_output()
    from ...evaluation.run import compare_models
    from ...evaluation.suites import open_suites
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
    click.echo("\n".join(lines))
    if tables:
        from .evaluate import compared_cells

        records = [compared_cells(record) for tasks in tables.values() for record in tasks]
        printing.table(records, title="int8 (B) against PyTorch (A)")
    elif int8:
        click.echo("Note: pass data with --sts or --retrieval to see how int8 changes the scores")
