"""The commands ``cse runs``, ``cse plot``, ``cse report`` and ``cse push``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ...errors import InputError, unknown
from ...options import Device, Opt, Threads
from ...progress import progress_of
from .. import printing
from ..command import command
from ..options import AsJson

if TYPE_CHECKING:
    from ...reports.runs import StoredRun

# If more settings than this differ, they share one column of the table.
COLUMNS = 6


@command("runs")
def runs_command(
    folder: Annotated[str, Opt(metavar="[DIR]")] = "runs",
    *,
    as_json: AsJson = False,
) -> None:
    """List the runs in DIR (default: runs), with their scores and the settings that differ between them.

    Settings that do not change what is computed, such as the output folder, the device or the loggers, are not
    compared. --json prints all compared settings of each run.
    """
    printing.check_output()
    from ...reports.runs import differing, find_runs

    runs = find_runs(folder)
    names = differing(runs)
    if as_json:
        listed = [
            {
                "name": run.name,
                "folder": str(run.folder),
                "status": run.status,
                "steps": run.step,
                "metric": run.metric,
                "before": run.evaluations[0] if run.evaluations else {},
                "best": run.best,
                "last": run.evaluations[-1] if run.evaluations else {},
                "sts": (run.result or {}).get("sts", {}),
                "settings": run.settings,
                "given": run.given,
            }
            for run in runs
        ]
        printing.result({"folder": folder, "differing": names, "runs": listed}, True, [])
        return
    rows = []
    for run in runs:
        scored = run.metric or ""
        first = run.evaluations[0] if run.evaluations else {}
        rows.append(
            {
                "run": run.name,
                **_settings(run, names),
                "steps": f"{run.step:,}",
                "score": {"spearman": "Spearman", "mrr": "MRR"}.get(scored, "none"),
                "before": _score(scored, first),
                "best": _score(scored, run.best),
                "best step": f"{run.best['step']:,}" if run.best else "",
                "status": run.status,
            }
        )
    printing.table(rows, title=f"{folder}: {len(runs)} run{'' if len(runs) == 1 else 's'}")


def _settings(run: StoredRun, names: list[str]) -> dict[str, str]:
    """Returns the table cells of the differing settings: one each, or one for all if more than ``COLUMNS`` differ."""
    values = {name: printing.plain(run.settings.get(name)) or "-" for name in names}
    if len(names) <= COLUMNS:
        return values
    return {"settings": "\n".join(f"{name} {value}" for name, value in values.items() if value != "-")}


def _score(metric: str, record: dict[str, Any]) -> str:
    value = record.get(metric)
    return "" if value is None else f"{value:.2f}" if metric == "spearman" else f"{value:.4f}"


@command("plot")
def plot_command(
    runs: tuple[str, ...],
    *,
    output: Annotated[str, Opt("Folder for the plots.", "DIR", short="-o")] = "plots",
    kinds: Annotated[tuple[str, ...], Opt("Kinds of plots.", "NAME", "all", flag="--kind")] = (),
    form: Annotated[Literal["png", "svg"], Opt("Format of the files.", flag="--format")] = "png",
    word: Annotated[
        str | None,
        Opt("Word whose possible replacements are shown in the ranks plot.", "WORD", "one that UNA replaced"),
    ] = None,
    method: Annotated[
        Literal["tsne", "pca"], Opt("How the map plot projects sentences to two dimensions.", flag="--map")
    ] = "tsne",
    device: Device = "auto",
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Draw plots of one or more runs, and write them to files; RUNS are the folders of the runs.

    \b
    training   loss, learning rate and scores over the steps
    cosines    mean cosine of anchors with positives and with each kind of negative over the steps
    alignment  alignment against uniformity, one path per run (SimCSE, figure 2)
    focal      the re-scaled similarities of Focal-InfoNCE for several margins, and the weights of negatives
    pairs      histograms of cosines of held-out pairs before and after training
    ranks      maximum TF-IDF score against rank, and the possible replacements of --word in UNA
    map        held-out sentences in two dimensions before and after training

    training, alignment and focal show all runs in one plot. pairs and map encode held-out texts twice: with the
    model before training, and with the model in best/. Needs the extra cse[plots].
    """
    printing.check_output()
    from ...reports.style import require_extra

    require_extra("cse plot")
    from ...reports.runs import labels, read_run

    stored = [read_run(run) for run in dict.fromkeys(runs)]
    from ...reports.pictures import KINDS, OF_RUNS, Material, pictures
    from ...reports.style import write

    for kind in kinds:
        if kind not in KINDS:
            raise unknown("--kind", kind, KINDS)
    if set(kinds or KINDS) & {"pairs", "map"}:
        from ...models.device import set_threads

        set_threads(threads)
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    names = dict(zip((run.folder for run in stored), labels(stored), strict=True))
    with progress_of("encoding held-out texts", "texts") as progress:
        materials = [Material(run, word=word, device=device, method=method, progress=progress) for run in stored]
        for kind in kinds or KINDS:
            for some in [materials] if kind in OF_RUNS else [[material] for material in materials]:
                name = kind
                if len(stored) > 1 and kind not in OF_RUNS:  # the plot shows only one of several runs
                    name += f"-{names[some[0].run.folder].strip('./').replace('/', '-')}"
                try:
                    panels = pictures(kind, some)
                except InputError as error:
                    if kinds:
                        raise
                    left_out[name] = str(error)
                    continue
                path = folder / f"{name}.{form}"
                write(panels, path)
                about = [f"{panel.title}: {panel.caption}" for panel in panels]
                written.append({"kind": kind, "file": str(path), "shows": about})
    if as_json:
        printing.result({"pictures": written, "left_out": left_out}, True, [])
        return
    for name, why in left_out.items():
        printing.say(f"{name} is left out: {why}")
    printing.result({}, False, [picture["file"] for picture in written])


@command("report")
def report_command(
    run: str,
    *,
    output: Annotated[str | None, Opt("Path of the page.", "FILE.html", "report.html in RUN", short="-o")] = None,
    word: Annotated[
        str | None, Opt("Word whose possible replacements are shown.", "WORD", "one that UNA replaced")
    ] = None,
    method: Annotated[
        Literal["tsne", "pca"], Opt("How the map projects sentences to two dimensions.", flag="--map")
    ] = "tsne",
    encode: Annotated[bool, Opt("Compare embeddings of held-out texts before and after training.")] = True,
    device: Device = "auto",
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Write a report page about RUN, the folder of a run: a single HTML file that works offline.

    The page states which model was trained on which data and whether the training helped, with confidence intervals. It
    shows the plots of cse plot, positives and negatives with the replaced words marked, nearest neighbours before and
    after training, a map of the held-out sentences, and how to load the model. The page contains sentences of the
    corpus. Needs the extra cse[plots].
    """
    printing.check_output()
    from ...reports.style import require_extra

    require_extra("cse report")
    from ...reports.runs import read_run

    stored = read_run(run)
    from ...io import write_text
    from ...models.device import set_threads
    from ...reports.page import report_page
    from ...reports.pictures import Material
    from ...training.folder.lock import check_links

    path = Path(output) if output is not None else stored.folder / "report.html"
    if output is None:
        check_links(stored.folder)
    set_threads(threads)
    with progress_of("encoding held-out texts", "texts") as progress:
        material = Material(stored, word=word, device=device, method=method, progress=progress, encode=encode)
        page = report_page(material)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page.html)
    value = {"page": str(path), "changes": page.changes, "left_out": page.left_out}
    printing.result(value, as_json, [*(f"{name} is left out: {why}" for name, why in page.left_out.items()), str(path)])


@command("push")
def push_command(
    run: str,
    name: str,
    *,
    license: Annotated[str | None, Opt("Licence of the model, such as apache-2.0.", "ID", "not stated")] = None,
    language: Annotated[tuple[str, ...], Opt("Language of the texts, such as en.", "CODE", "not stated")] = (),
    dataset: Annotated[tuple[str, ...], Opt("Data set on the hub that was trained on.", "NAME", "not stated")] = (),
    private: Annotated[bool, Opt("Make a new repository private.")] = False,
    card_only: Annotated[bool, Opt("Print the model card, and upload nothing.", flag="--card")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload the encoder best/ of RUN to the Hugging Face hub as NAME, such as me/my-encoder, with a model card.

    The card states the base model, the loss, the size of the data, the command that repeats the training (without
    names of local files) and, as evaluation results, the scores in result.json. The hub is the one in HF_ENDPOINT; log
    in with hf auth login, or set HF_TOKEN.
    """
    printing.check_output()
    from ...reports import hub
    from ...reports.runs import read_run

    stored = read_run(run)
    card = hub.run_card(stored, name, license, language, dataset)
    address = None if card_only else hub.push(stored, name, card, private)
    shown = str(card) if card_only else f"{address}"
    printing.result({"address": address, "card": str(card)}, as_json, [shown])
    if license is None:
        printing.say("the card states no licence; add --license")
