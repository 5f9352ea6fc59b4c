"""The commands ``cse runs`` and ``cse report``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

from ...errors import InputError
from ...options import Device, Opt, Threads
from ...progress import progress_of
from .. import printing
from ..command import command, given_options
from ..options import AsJson

if TYPE_CHECKING:
    from ...reports.runs import StoredRun


@command("runs")
def runs_command(
    folder: Annotated[str, Opt(metavar="[DIR]")] = "runs",
    *,
    picture: Annotated[
        str | None, Opt("Also draw the models by alignment and uniformity, coloured by their STS scores.", "FILE.png")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs in DIR (default: runs), with their verdicts, scores and dates, and the settings that differ.

    Settings that do not change what is computed, such as the output folder, the device or the loggers, are not
    compared. --json prints all compared settings of each run.
    """
    printing.check_output()
    from ...reports.runs import differing, find_runs

    runs = find_runs(folder)
    names = differing(runs)
    if picture is not None:
        from ...reports.curves import models_panel
        from ...reports.style import require_extra, write

        require_extra("cse runs --picture")
        write([models_panel(runs)], Path(picture))
    if as_json:
        listed = []
        for run in runs:
            about = {"name": run.name, "folder": str(run.folder), "status": run.status, "steps": run.step}
            evaluations = run.evaluations or [{}]
            scores = {"metric": run.metric, "before": evaluations[0], "best": run.best, "last": evaluations[-1]}
            sts = (run.result or {}).get("sts", {})
            listed.append({**about, **scores, "sts": sts, "settings": run.settings, "given": run.given})
        printing.result({"folder": folder, "differing": names, "runs": listed}, True, [])
        return
    scored = [_score(run) for run in runs]
    judges = [judge for judge in dict.fromkeys(judge for judge, _ in scored) if judge]
    # Scores of different data are in different columns, even if the judges have the same name.
    titles = {
        judge: judge[0] + " " * [other[0] for other in judges[:n]].count(judge[0]) for n, judge in enumerate(judges)
    }
    rows = [
        {
            "run": run.name,
            "verdict": run.verdict.get("word", "-") if run.result is not None else run.status,
            **{title: score if judge == own else "-" for judge, title in titles.items()},
            "date": datetime.fromtimestamp(run.changed).strftime("%Y-%m-%d %H:%M"),
        }
        for run, (own, score) in zip(runs, scored, strict=True)
    ]
    printing.table(rows, title=f"{folder}: {len(runs)} run{'' if len(runs) == 1 else 's'}")
    if names:
        printing.echo("what differs:")
    for run in runs if names else []:
        values = [f"{name} {printing.plain(run.settings.get(name)) or '-'}" for name in names]
        printing.echo("\n".join(wrap(f"{run.name}: {', '.join(values)}", 78, subsequent_indent="    ")))


def _score(run: StoredRun) -> tuple[tuple[Any, ...], str]:
    """Returns what judged a run, its name first, and the first score of the verdict with its change; without a verdict,
    what selected best/, and that score."""
    data = tuple(map(str, (run.config.get(name) for name in ("corpus", "pairs", "judges", "judged_queries", "dev"))))
    for record in run.verdict.get("measures", []):
        if None not in (record["b"], record["mean"]):
            judge = f"{record['task']}, {record['examples']:,} {record['unit']}"
            return (judge, *data), f"{record['b']:.2f} ({record['mean']:+.2f})"
    value = run.best.get(run.metric or "")
    if value is None:
        return (), "-"
    if run.metric == "spearman":
        return ("Spearman, which selected best/", *data), f"{value:.2f}"
    return ("MRR, a check for collapse", *data, run.config.get("seed")), f"{value:.4f}"


@command("report")
def report_command(
    runs: Annotated[tuple[str, ...], Opt(metavar="RUN...")],
    *,
    output: Annotated[str | None, Opt("Path of the page.", "FILE.html", "report.html in RUN", short="-o")] = None,
    pictures: Annotated[str | None, Opt("Also write the plots as .png files to this folder.", "DIR")] = None,
    before: Annotated[
        str | None,
        Opt("Model before training, to compare embeddings of held-out texts.", "MODEL", "minilm, if RUN began with it"),
    ] = None,
    encode: Annotated[bool, Opt("Compare embeddings of held-out texts before and after training.")] = True,
    device: Device = "auto",
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Write a report page about RUN, the folder of a run: a single HTML file that works offline. With several runs,
    only draw their alignment against uniformity in one plot, which --pictures writes.

    The page states which model was trained on which data and whether the training helped, with confidence intervals. It
    shows positives and negatives with the replaced words marked, nearest neighbours before and after training, how to
    load the model, and these plots:

    \b
    training   loss, learning rate and scores over the steps
    cosines    mean cosine of anchors with positives and with each kind of negative over the steps
    alignment  alignment against uniformity (SimCSE, figure 2)
    focal      with --loss focal: the re-scaled similarities of Focal-InfoNCE for several margins
    pairs      histograms of cosines of held-out pairs before and after training

    The page contains sentences of the corpus. Only files in RUN are read, and the model named with --before. Needs the
    extra cse[plots].
    """
    printing.check_output()
    from ...reports.style import require_extra

    require_extra("cse report")
    from ...reports.runs import read_run

    stored, *others = map(read_run, runs)
    if others:
        several([stored, *others], pictures, as_json)
        return
    from ...encoder.device import set_threads
    from ...io import write_text
    from ...reports.curves import Material
    from ...reports.page import report_page

    path = Path(output) if output is not None else stored.folder / "report.html"
    set_threads(threads)
    with progress_of("encoding held-out texts", "texts") as progress:
        material = Material(stored, before, device=device, progress=progress, encode=encode)
        page = report_page(material)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page.html)
    files = [] if pictures is None else material.write_pictures(Path(pictures))
    value = {"page": str(path), "pictures": files, "changes": page.changes, "left_out": page.left_out}
    left_out = [f"{name} is left out: {why}" for name, why in page.left_out.items()]
    printing.result(value, as_json, [*left_out, *files, str(path)])


def several(runs: Sequence[StoredRun], pictures: str | None, as_json: bool) -> None:
    """Writes the plot of alignment against uniformity of several runs."""
    from ...reports.curves import trainings_panel
    from ...reports.style import write

    if pictures is None or given_options() - {"runs", "pictures", "as_json"}:
        raise InputError("RUN: with several runs, only --pictures DIR and --json apply; a page is about one run")
    path = Path(pictures) / "alignment.png"
    panel = trainings_panel(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    write([panel], path)
    printing.result({"pictures": [str(path)]}, as_json, [str(path)])
