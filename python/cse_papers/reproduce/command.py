"""The command ``cse reproduce``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from cse.cli import printing
from cse.cli.command import command
from cse.cli.options import AsJson
from cse.errors import InputError
from cse.options import Device, Imports, Opt, Precision, Threads

if TYPE_CHECKING:
    from .cells import Cell
    from .effects import Laboratory
    from .printed import Shown
    from .scores import Records
    from .tables import Row, Table
    from .work import Work


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
    seeds: Annotated[
        int | None, Ge(1), Le(100), Opt("Run each row with seeds 0 to N - 1.", "N", "1; with --small 2")
    ] = None,
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
            excludes=(
                "data",
                "corpus",
                "pairs",
                "files",
                "max_steps",
                "picture",
                "csv",
                "latex",
                "base",
                "stored",
                "also",
            ),
        ),
    ] = False,
    small: Annotated[
        bool,
        Opt(
            "With effects, train rows for 60 steps on the package's sample, and judge by halves of its sentences.",
            excludes=("data", "corpus", "pairs", "files", "dev", "smoke", "stored", "also"),
        ),
    ] = False,
    print_commands: Annotated[
        bool,
        Opt(
            "Only print the commands that would make the runs which are not stored; such runs are then read.",
            excludes=("smoke", "small"),
        ),
    ] = False,
    base: Annotated[
        str | None,
        Opt("Train this model instead of those of the rows; effects makes a masked model otherwise.", "MODEL"),
    ] = None,
    stored: Annotated[
        str | None, Opt("File of stored runs, which are not repeated; without --data, print them.", "FILE")
    ] = None,
    imports: Imports = (),
    rows_file: Annotated[
        str | None, Opt("TOML file of your own rows for effects.", "FILE.toml", flag="--rows", paths=True)
    ] = None,
    also: Annotated[
        tuple[str, ...],
        Opt("With effects, also score transfer, or the retrieval collection of this name.", "NAME", flag="--also"),
    ] = (),
    jobs: Annotated[int, Ge(1), Opt("Number of runs at a time, each in its own process.", "N")] = 1,
    keep_models: Annotated[bool, Opt("Keep the encoders, not only their scores.")] = False,
    csv: Annotated[
        str | None, Opt("Also write the tables to this file, one cell per line, with numbers apart.", "FILE.csv")
    ] = None,
    latex: Annotated[str | None, Opt("Also write the tables to this file, for booktabs.", "FILE.tex")] = None,
    picture: Annotated[
        str | None,
        Opt("Plot the table to this .png, .svg or .pdf file; of effects, published and measured changes.", "FILE"),
    ] = None,
    device: Device = "auto",
    precision: Precision = "auto",
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Reproduce a published TABLE: train and evaluate its rows, and print the published values next to the new ones.

    Each cell (one run of a row, with one seed) is stored as soon as it is scored.
    If the command is interrupted, run it again to resume; more rows or seeds may be added. For rows without a recipe,
    only the published values are printed. The authors of cse have not reproduced any table at full size, which needs a
    GPU.
    """
    from .effects import known_tables, laboratory
    from .inputs import open_inputs
    from .printed import Shown
    from .scores import Scorer
    from .smoke import run_smoke, smoke_inputs
    from .stored import read_sets
    from .tables import find_table
    from .work import Work

    if names:
        printing.echo("\n".join(entry.name for entry in known_tables().values() if entry.suite))
        return
    lab = laboratory(None if rows_file is None else Path(rows_file), imports) if table == "effects" else None
    if lab is None and (rows_file is not None or also or small):
        raise InputError("--rows, --also and --small belong to the table effects: cse reproduce effects")
    published = lab.table if lab is not None else None if table is None else find_table(table)
    if published is None or as_list:
        show_list(published, as_json)
        return
    check_outputs(published, picture)
    if data is not None:
        published = published.within(Path(data))
    rows = published.find_rows(selected)
    shown = Shown(as_json, csv, latex, picture)
    sets = {} if stored is None else read_sets(stored)
    if data is None and stored is not None and not print_commands and published.suite in ("effects", "domain"):
        if selected:
            raise InputError("--row has no effect on the tables of --stored; add --data to run rows, or omit --row")
        show_stored(lab, published, sets, stored, shown)
        return
    place = Path(output or f"reproduce/{table}{'-smoke' if smoke else '-small' if small else ''}")
    if lab is not None and base is not None and Path(base).suffix == ".zip":
        from .base_file import unpack

        base = str(unpack(Path(base), place / "inputs"))
    runs: dict[str, Any] = {"keep_models": keep_models, "jobs": jobs}
    settings: dict[str, Any] = {"device": device, "threads": threads or int(jobs > 1)}
    if smoke:
        if jobs > 1:
            raise InputError("--jobs has no effect with --smoke; omit --jobs")
        inputs = smoke_inputs(published, place / "smoke", **settings)
    else:
        settings |= {"max_steps": max_steps, "precision": precision, "model": base}
        if lab is not None and small:
            from .printed import show_small
            from .small import run_small, small_work

            work = small_work(lab, selected, place, seeds, **settings, **runs)
            show_small(run_small(lab, work), max_steps or lab.small.steps, shown)
            return
        made = place / "inputs"
        inputs = open_inputs(published, data, corpus, pairs, files, made, dev, **settings)
    inputs = replace(inputs, stored=sets)
    scorer = Scorer(published.suite, published.columns, inputs.data, inputs.partial, also)
    work = Work(published, rows, range(seeds or 1), inputs, scorer, place, **runs)
    if smoke:
        run_smoke(work, None if lab is None else lab.trial([row.name for row in rows]), as_json)
    elif print_commands:
        if lab is not None and base is None:
            raise InputError("--print-commands: name the base of the laboratory with --base MODEL")
        print_commands_of(lab, work, as_json)
    else:
        run_and_show(lab, work, shown)


def check_outputs(table: Table, picture: str | None) -> None:
    """Raises ``InputError`` if the table cannot be made, or cannot be shown as asked for."""
    printing.check_output()
    if picture is not None:
        from cse.reports.style import require_extra

        printing.check_suffix(picture, ".png", ".svg", ".pdf", flag="--picture")
        require_extra("--picture")
    if not table.suite:
        raise InputError(
            f"{table.name}: has no row that can be reproduced; to list the tables with such rows: cse reproduce --names"
        )
    if picture is not None and table.suite == "domain":
        raise InputError(f"--picture has no effect on the table {table.name}; omit --picture")


def show_stored(lab: Laboratory | None, table: Table, sets: Mapping[str, Records], file: str, shown: Shown) -> None:
    """Prints the tables of the runs of ``--stored``."""
    from .printed import show_domain, show_laboratory

    known = {row.name for row in table.rows}
    own = {
        name: found
        for name, records in sets.items()
        if (found := {key: record for key, record in records.items() if key[0] in known})
    }
    left_out = sum(map(len, sets.values())) - sum(map(len, own.values()))
    if not own:
        raise InputError(f"--stored {file}: holds no runs of the table {table.name}; name another file")
    if left_out:
        printing.say(f"--stored {file}: {left_out:,} runs of other rows than those of {table.name} are left out")
    if lab is not None:
        show_laboratory(lab, own, shown)
    else:
        show_domain(table, own, shown)


def run_and_show(lab: Laboratory | None, work: Work, shown: Shown) -> None:
    """Runs the cells that are not stored, and prints the table."""
    from .printed import show_domain, show_laboratory, show_published
    from .stored import key_of
    from .work import run, run_laboratory

    if lab is not None:
        work, results = run_laboratory(lab, work)
        show_laboratory(lab, {"": results.records}, shown, work.inputs.stored)
        return
    chosen = work.plan()
    run(chosen, work)
    if work.table.suite == "domain":
        records = {key_of(each): each for some in chosen.stored.values() for each in some}
        show_domain(work.table, {"": records}, shown)
        return
    show_published(work.table, work.rows, chosen, shown)


def print_commands_of(lab: Laboratory | None, work: Work, as_json: bool) -> None:
    """Prints the commands of the cells that are not stored; of the laboratory, those at the best temperatures if the
    runs that choose these are stored."""
    from .commands import listed
    from .inputs import laboratory_inputs
    from .work import check_settings, planned, results_of

    first: list[Cell] = []
    if lab is None:
        chosen = work.plan()
    else:
        names, seeds = [row.name for row in work.rows], len(work.seeds)
        cells = lab.cells(names, seeds, {})
        check_settings(cells, work)
        base = laboratory_inputs(work.inputs, work.place / "inputs", printing.say)
        known = results_of(lab, planned(lab, replace(work, inputs=base), cells)[2])
        work, first, chosen = planned(lab, replace(work, inputs=base), lab.cells(names, seeds, known.best()))
    found = listed([*first, *chosen.wanted], work.inputs, work.scorer, work.place)
    lines = [line for each in found for line in (f"# {each['cell']}", *each["commands"])]
    printing.result({"cells": found}, as_json, lines)


def show_list(table: Table | None, as_json: bool) -> None:
    """Prints the tables, or the rows of one table and the files they need."""
    from .effects import known_tables

    records: list[dict[str, Any]] = []
    for entry in known_tables().values() if table is None else ():
        trained = sum(bool(row.recipes) for row in entry.rows)
        records.append({"table": entry.name, "rows": len(entry.rows), "with a recipe": trained, "source": entry.source})
    rows = () if table is None else table.rows
    for row in rows:
        remark = {"remark": row.remark} if any(other.remark for other in rows) else {}
        records.append({"row": row.name, "recipe": status(row), "needs": ", ".join(needs(row)), **remark})
    count = {"papers": papers()} if table is None else {}
    if as_json:
        printing.result({"tables" if table is None else "rows": records, **count}, True, [])
        return
    printing.table([{key: str(value) for key, value in record.items()} for record in records])
    if count:
        printing.echo(f"cse_papers has the methods of {count['papers']} papers, one file each.")


def papers() -> int:
    """Returns the number of papers whose methods of training this package has: that of the modules with such methods,
    since each paper has one module."""
    from cse.evaluation import EVALUATIONS
    from cse.registry import declared
    from cse.training.settings.names import TABLES

    modules = {point.module for table in TABLES if table is not EVALUATIONS for point in declared(table.group)}
    return sum(module.startswith("cse_papers.") for module in modules)


def needs(row: Row) -> list[str]:
    """Returns the files that a row needs: names for ``--file``, and ``--pairs``."""
    from .inputs import SENTENCES, is_made

    names = sorted({name for recipe in row.recipes.values() for name in recipe.needs() if not is_made(name)})
    pairs = any(each.labelled and "pairs" not in each.settings for each in row.recipes.values())
    return [f"{name} (else made of --data)" if name in SENTENCES else name for name in names] + ["--pairs"] * pairs


def status(row: Row) -> str:
    """Describes the recipe of a row: none, an encoder to evaluate, a preset, or the defaults of the model."""
    if not row.recipes:
        return row.status
    first = next(iter(row.recipes.values()))
    return f"evaluates {first.encoder}" if first.encoder else first.preset or "the defaults of the model"
