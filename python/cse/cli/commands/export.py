"""The command ``cse export``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from ...errors import InputError
from ...options import Column, EncodingErrors, MaxLineBytes, Opt, Threads
from ...progress import counting
from .. import options, printing
from ..command import Heading, command
from ..options import AsJson, open_corpus


@command("export")
def export_command(
    model: str,
    *,
    onnx: Annotated[bool, Heading("Format"), Opt("Write onnx/model.onnx (extra cse[onnx]).")] = False,
    static: Annotated[bool, Opt("Write a static encoder in the format of model2vec (cse[static]).")] = False,
    output: Annotated[
        str | None,
        Opt(
            "New folder for the static encoder, or for a copy of MODEL.",
            "DIR",
            "with --onnx and a folder as MODEL: that folder",
            short="-o",
        ),
    ] = None,
    license: Annotated[
        str | None, Heading("Model card"), Opt("Licence of the model, such as apache-2.0.", "ID", "not stated")
    ] = None,
    language: Annotated[
        tuple[str, ...], Opt("Language of the texts, such as en; may be repeated.", "CODE", "not stated")
    ] = (),
    corpus: Annotated[
        tuple[str, ...],
        Heading("Static encoder"),
        Opt("Texts like those to be encoded, one per row; may be repeated.", "FILE", needs="static"),
    ] = (),
    dims: Annotated[int | None, Opt("Number of principal components to keep.", "N", "all", needs="static")] = None,
    column: Annotated[Column, Opt(needs="static")] = None,
    encoding_errors: Annotated[EncodingErrors, Opt(needs="static")] = "strict",
    max_line_bytes: Annotated[MaxLineBytes, Opt(needs="static")] = 1 << 20,
    threads: Annotated[Threads, Heading("Other")] = 0,
    as_json: AsJson = False,
) -> None:
    """Export MODEL (a folder, a name or a run) to a format that other programs can read.

    --onnx writes a file for onnxruntime. SentenceTransformer(FOLDER, backend="onnx") loads it, and cse eval, compare
    and encode accept it as onnx:FOLDER. The export fails if the embeddings from the file do not agree with PyTorch's.

    --static writes an encoder that averages one vector per token, and is many times faster than the transformer. It is
    made for search in the rows of --corpus, to whose embeddings the vectors are fitted. cse, model2vec and
    SentenceTransformer(FOLDER) load the folder.

    Without a format, MODEL is copied to the new folder -o, which can be uploaded. --license and --language are written
    to the model card (README.md) of the folder, for the Hugging Face hub.
    """
    if onnx and static:
        raise InputError("cse export writes one format; name it, either --onnx or --static")
    printing.check_output()
    if static and not corpus:
        raise InputError("--static needs texts to fit the vectors to; name them with --corpus FILE")
    card = {"license": license, "language": list(language)}
    if onnx:
        from ...encoder.device import set_threads
        from ...encoder.onnx_export import export_onnx
        from ...encoder.saving import write_card

        set_threads(threads)
        made = export_onnx(options.model_folder(model), output, lambda text: printing.say(f"{text} ..."))
        write_card(made.folder, card)
        size = f"{made.bytes / 1e6:,.1f} MB"
        line = f"{made.file}: {size}, embeddings differ from PyTorch's by at most {made.difference:.1g}"
        printing.result(asdict(made), as_json, [line])
        return
    if output is None:
        raise InputError(
            "--static writes a new folder; name it with -o"
            if static
            else "cse export: name a format, --onnx or --static, or a new folder for a copy of MODEL with -o"
        )
    from ...encoder.encoder import Encoder
    from ...encoder.saving import copy_encoder, write_card

    if static:
        from ...encoder.device import set_threads
        from ...encoder.static_export import check_static, export_static

        check_static(output)
        set_threads(threads)
        rows = open_corpus(corpus, column, encoding_errors=encoding_errors, max_line_bytes=max_line_bytes)
        saved = export_static(Encoder(options.model_folder(model)), rows, output, dims=dims, counting=counting)
        value = asdict(saved)
        lines = [
            f"{saved.folder}: {saved.bytes / 1e6:,.1f} MB, {saved.tokens:,} tokens, {saved.embedding_dim} dimensions",
            f"fitted to {saved.rows:,} rows: mean cosine {saved.cosine:.3f} with the embeddings of the encoder, after "
            "subtracting their mean",
        ]
    else:
        copy_encoder(Encoder(options.model_folder(model), device="cpu"), output)
        value, lines = {"folder": output}, [output]
    write_card(output, card)
    printing.result(value, as_json, lines)
