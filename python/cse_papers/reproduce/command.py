"""The command ``cse reproduce``."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
from annotated_types import Ge, Le

from cse.cli import printing
from cse.cli.command import command
from cse.cli.options import AsJson
from cse.errors import InputError, RunError
from cse.options import Device, Opt, Precision, Threads
from cse.progress import progress_of

if TYPE_CHECKING:
    from .cells import Cell
    from .inputs import Inputs
    from .plan import Plan
    from .suites import Row, Scorer, Table


@command("reproduce", short_help="Reproduce a published table.")
def reproduce_command(
    table: str | None = None,
    *,
    as_list: Annotated[bool, Opt("List the tables, or the rows of TABLE.", flag="--list")] = False,
    names: Annotated[bool, Opt("List only the names of the tables that can be run.")] = False,
    data: Annotated[str | None, Opt("Folder of the evaluation data.", "DIR")] = None,
    corpus: Annotated[str | None, Opt("File of sentences to train on.", "FILE")] = None,
    pairs: Annotated[str | None, Opt("Table of labelled pairs, for supervised rows.", "FILE")] = None,
    files: Annotated[
        tuple[str, ...],
        Opt("File that a row needs; cse reproduce TABLE --list shows the names.", "NAME=PATH", flag="--file"),
    ] = (),
    selected: Annotated[tuple[str, ...], Opt("Only these rows.", "NAME", "all", flag="--row")] = (),
    seeds: Annotated[int, Ge(1), Le(100), Opt("Run each row with seeds 0 to N - 1.", "N")] = 1,
    max_steps: Annotated[int | None, Ge(1), Opt("Step limit per run.", "N", "as in the recipe")] = None,
    dev: Annotated[
        Literal["clean"] | None,
        Opt(
            "Select checkpoints on STS-B dev and SICK-R train and dev without pairs of the test sets.",
            default="as in the papers",
            excludes=("smoke",),
        ),
    ] = None,
    output: Annotated[str | None, Opt("Folder for the results.", "DIR", "reproduce/TABLE", short="-o")] = None,
    smoke: Annotated[
        bool,
        Opt(
            "Run each cell for two steps with a tiny model, and print only whether it runs.",
            excludes=("data", "corpus", "pairs", "files", "max_steps", "picture"),
        ),
    ] = False,
    dry_run: Annotated[bool, Opt("Only print what would run, and the estimated cost.")] = False,
    keep_models: Annotated[bool, Opt("Keep the encoders, not only their scores.")] = False,
    picture: Annotated[str | None, Opt("Plot the table to this .png or .svg file.", "FILE")] = None,
    device: Device = "auto",
    precision: Precision = "auto",
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Reproduce a published TABLE: train and evaluate its rows, and print the published values next to the new ones.

    Rows are completed one after another. Each cell (one run of a row, with one seed) is stored as soon as it is scored.
    If the command is interrupted, run it again to resume; more rows or seeds may be added. For rows without a recipe,
    only the published values are printed. The authors of cse have not reproduced any table at full size, which needs a
    GPU.
    """
    from .plan import plan
    from .suites import Scorer, find_table, tables

    if names:
        printing.echo("\n".join(entry.name for entry in tables().values() if entry.suite))
        return
    if table is None or as_list:
        show_list(None if table is None else find_table(table), as_json)
        return
    printing.check_output()
    check_picture(picture)
    published = find_table(table)
    if not published.suite:
        raise InputError(
            f"{table}: has no row that can be reproduced; to list the tables with such rows: cse reproduce --names"
        )
    rows = published.find_rows(selected)
    place = Path(output or f"reproduce/{table}{'-smoke' if smoke else ''}")
    settings = {"data": data, "corpus": corpus, "pairs": pairs, "files": files, "max_steps": max_steps}
    settings["dev"] = dev
    settings |= {"device": device, "precision": precision, "threads": threads}
    inputs = find_inputs(published, place, smoke, dry_run, settings)
    scorer = Scorer(published.suite, published.columns, inputs.data, inputs.partial)
    chosen = plan(published, rows, range(seeds), inputs, scorer, place)
    known = sum(map(len, chosen.stored.values()))
    total = known + len(chosen.wanted)
    printing.say(f"{table}: {total:,} cell{'s' * (total != 1)}, {known:,} of them stored in {place}")
    for name, note in chosen.notes.items():
        printing.say(f"{name}: {note}")
    if chosen.wanted and not smoke:
        announce(chosen.wanted, inputs, place)
    if dry_run:
        for cell in chosen.wanted:
            printing.say(f"would run {cell.name}")
        return
    failed = run(chosen, inputs, scorer, place, keep_models, smoke)
    from .results import markdown, panels, to_dict, trial

    if smoke:
        found = trial(published, rows, failed, chosen)
        lines = ["| row | |", "| --- | --- |"]
        lines += [f"| {row.name} | {each['status']} |" for row, each in zip(rows, found["rows"], strict=True)]
        printing.result(found, as_json, lines)
        if failed:
            raise RunError(f"{table}: {len(failed)} of {len(rows)} rows fail")
        return
    stored, notes = chosen.stored, chosen.notes
    printing.result(to_dict(published, rows, stored, notes), as_json, [markdown(published, rows, stored, notes)])
    if picture is not None:
        from cse.reports.style import write

        write(panels(published, rows, stored), Path(picture))
        printing.say(f"wrote {picture}")


def check_picture(picture: str | None) -> None:
    """Raises ``InputError`` unless a plot can be written to ``picture``; None is no plot."""
    if picture is None:
        return
    if Path(picture).suffix not in (".png", ".svg"):
        raise InputError(f"--picture {picture}: the name must end in .png or .svg")
    from cse.reports.style import require_extra

    require_extra("--picture")


def find_inputs(table: Table, place: Path, smoke: bool, dry_run: bool, options: dict[str, Any]) -> Inputs:
    """Returns the inputs of the runs; ``options`` holds the arguments of ``open_inputs`` that are options."""
    from .inputs import open_inputs, smoke_inputs

    if smoke:
        return smoke_inputs(table, place / "smoke", options["device"], options["threads"])
    # A dry run leaves no files, but counts the rows of the corpora that are made of the evaluation data.
    made = click.get_current_context().with_resource(TemporaryDirectory()) if dry_run else place / "inputs"
    return open_inputs(table, made=Path(made), **options)


def show_list(table: Table | None, as_json: bool) -> None:
    """Prints the tables, or the rows of one table and the files they need."""
    from .inputs import SENTENCES
    from .suites import tables

    if table is None:
        records = [
            {
                "table": entry.name,
                "rows": len(entry.rows),
                "with a recipe": sum(bool(row.recipes) for row in entry.rows),
                "source": entry.source,
            }
            for entry in tables().values()
        ]
    else:
        records = [
            {
                "row": row.name,
                "recipe": status(row),
                "needs": ", ".join(
                    [
                        f"{name} (else made of --data)" if name in SENTENCES else name
                        for name in sorted({name for recipe in row.recipes.values() for name in recipe.needs()})
                    ]
                    + (
                        ["--pairs"]
                        if any(each.labelled and "pairs" not in each.settings for each in row.recipes.values())
                        else []
                    )
                ),
            }
            for row in table.rows
        ]
        if any(row.remark for row in table.rows):
            records = [{**record, "remark": row.remark} for record, row in zip(records, table.rows, strict=True)]
    if as_json:
        printing.result({"tables" if table is None else "rows": records}, True, [])
    else:
        printing.table([{key: str(value) for key, value in record.items()} for record in records])


def status(row: Row) -> str:
    """Describes the recipe of a row: none, an encoder to evaluate, a preset, or the defaults of the model."""
    if not row.recipes:
        return row.status
    first = next(iter(row.recipes.values()))
    if first.encoder is not None:
        return f"evaluates {first.encoder}"
    return first.preset or "the defaults of the model"


def run(chosen: Plan, inputs: Inputs, scorer: Scorer, place: Path, keep_models: bool, smoke: bool) -> set[str]:
    """Runs the cells that are not stored yet, and stores them.

    With ``smoke``, the output of training is hidden, no scores are printed, and the next cell is run after an error.

    Returns:
        The names of the rows of which a cell failed; without ``smoke``, an error is raised instead.
    """
    from cse.cli.commands.train import ConsoleCallback
    from cse.encoder.device import set_threads

    from .cells import finish, run_cell

    failed: set[str] = set()
    set_threads(inputs.threads)
    for begun in place.glob("*/*.begun.json"):
        path = begun.with_name(f"{begun.name.removesuffix('.begun.json')}.json")
        if path.exists():  # the process was killed after it had stored the cell
            finish(path, keep_models)
    for number, cell in enumerate(chosen.wanted, 1):
        printing.say(f"cell {number:,} of {len(chosen.wanted):,}: {cell.name}")
        callback = None if smoke or cell.recipe.encoder is not None else ConsoleCallback()
        try:
            with progress_of("evaluating", "texts") as progress:
                record = run_cell(cell, inputs, scorer, place, callback, progress, keep_models)
        except Exception as error:  # whatever a method raises
            if not smoke:
                raise
            failed.add(cell.row.name)
            printing.say(f"  fails: {error}")
            continue
        chosen.add(cell, record)
        if smoke:
            printing.say("  runs")
            continue
        scores = ", ".join(
            f"{name if name != '*' else 'score'} {value:.2f}" for name, value in record["scores"].items()
        )
        printing.say(f"  {scores}; {record['seconds']:.0f} s")
    return failed


def announce(wanted: list[Cell], inputs: Inputs, place: Path) -> None:
    """Prints the estimated time and memory of the training runs, if any, without loading weights."""
    from .plan import estimate

    trained = [cell for cell in wanted if cell.recipe.encoder is None]
    if trained:
        seconds, memory = estimate(trained, inputs, place)
        hours = seconds / 3600
        shown = f"{hours:,.1f} hours" if hours >= 1 else f"{math.ceil(seconds / 60)} minutes"
        printing.say(
            f"{len(trained):,} training runs: about {shown} in total and {memory / 1e9:.1f} GB of memory, estimated "
            "from full batches of the longest rows, to within a factor of about two"
        )
