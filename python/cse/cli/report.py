"""The command ``cse report``."""

from __future__ import annotations

from pathlib import Path

import click

from . import options, printing
from .plot import encoding


@click.command("report")
@click.argument("run")
@options.option("-o", "--output", metavar="FILE.html", help="Path of the page.", default_text="report.html in RUN")
@options.option(
    "--word", metavar="WORD", help="Word whose possible replacements are shown.", default_text="one that UNA replaced"
)
@options.option(
    "--map",
    "method",
    default="tsne",
    type=click.Choice(("tsne", "pca")),
    help="How the map projects sentences to two dimensions.",
)
@options.option(
    "--encode/--no-encode", default=True, help="Compare embeddings of held-out texts before and after training."
)
@options.device
@options.threads
@options.as_json
def command(
    run: str,
    output: str | None,
    word: str | None,
    method: str,
    encode: bool,
    device: str,
    threads: int,
    as_json: bool,
) -> None:
    """Write a report page about RUN, the folder of a run: a single HTML file that works offline.

    The page states which model was trained on which data and whether the training helped, with confidence intervals. It
    shows the plots of cse plot, positives and negatives with the replaced words marked, nearest neighbours before and
    after training, a map of the held-out sentences, and how to load the model. The page contains sentences of the
    corpus. Needs the extra cse[plots].
    """
    printing.check_output()
    from ..reports.style import require_extra

    require_extra("cse report")
    from ..reports.runs import read_run

    stored = read_run(run)
    from ..io import write_text
    from ..models.device import set_threads
    from ..reports.page import report_page
    from ..reports.pictures import Material

    path = Path(output) if output is not None else stored.folder / "report.html"
    set_threads(threads)
    with encoding() as progress:
        material = Material(stored, word=word, device=device, method=method, progress=progress, encode=encode)
        page = report_page(material)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page.html)
    value = {"page": str(path), "changes": page.changes, "left_out": page.left_out}
    printing.result(value, as_json, [*(f"{name} is left out: {why}" for name, why in page.left_out.items()), str(path)])
