"""The command ``cse runs``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options, printing

if TYPE_CHECKING:
    from ..reports.runs import StoredRun

# If more settings than this differ, they share one column of the table.
COLUMNS = 6


@click.command("runs")
@click.argument("folder", metavar="[DIR]", default="runs")
@options.as_json
def command(folder: str, as_json: bool) -> None:
    """List the runs in DIR (default: runs), with their scores and the settings that differ between them.

    Settings that do not change what is computed, such as the output folder, the device or the loggers, are not
    compared. --json prints all compared settings of each run.
    """
    printing.check_output()
    from ..reports.runs import differing, find_runs

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
    values = {name: _text(run.settings.get(name)) for name in names}
    if len(names) <= COLUMNS:
        return values
    return {"settings": "\n".join(f"{name} {value}" for name, value in values.items() if value != "-")}


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _score(metric: str, record: dict[str, Any]) -> str:
    value = record.get(metric)
    return "" if value is None else f"{value:.2f}" if metric == "spearman" else f"{value:.4f}"
