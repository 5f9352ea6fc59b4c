"""The command ``cse methods``."""

from __future__ import annotations

import json
from dataclasses import MISSING
from importlib.resources import files
from typing import Annotated, Any

from ...options import Imports, Opt, options_of, phrase
from ...registry import Registry
from .. import printing
from ..command import command
from ..options import AsJson


@command("methods")
def methods_command(
    name: str | None = None,
    *,
    combinations: Annotated[bool, Opt("List which combinations of positives, losses and UNA are valid.")] = False,
    imports: Imports = (),
    as_json: AsJson = False,
) -> None:
    """List augmentations, loss terms, evaluations and other methods by kind, or the options of the method NAME.

    The change in brackets is what docs/effects.md measured: points of the mean of the seven STS test sets, for a small
    masked language model, and what it is compared with. A change without an interval is of one seed, and may have the
    other sign with another one. Set an option in the table of its method in the configuration file, or with --set
    NAME.OPTION=VALUE.
    """
    printing.check_output()
    if combinations:
        from ...training.settings import precedence

        records = [
            {"positive": positive, "loss": loss, "una": form, "refused": reason}
            for (positive, loss, form), reason in precedence.combinations().items()
        ]
        printing.result({"combinations": records}, as_json, [precedence.table_of_combinations()])
        return
    if name is None:
        list_methods(as_json)
        return
    from ...errors import InputError, visible

    methods = []
    for table in tables():
        if name in table.names():
            method = table.get(name)
            described = {
                option.name: {
                    "default": None if option.default is MISSING else option.default,
                    "description": option.opt.help and phrase(option.opt.help),
                    "flag": option.opt.flag,
                }
                for option in options_of(method.Options)
            }
            methods.append({"name": name, "kind": table.kind, "summary": method.summary, "options": described})
    if not methods:
        raise InputError(f"{name}: no such method; to list all: cse methods")
    if as_json:
        printing.result({"methods": methods}, True, [])
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = Console(highlight=False)
    for method in methods:
        out.print(Text.assemble((method["name"], "bold"), f"  {method['kind']}: {method['summary']}"))
        grid = Table.grid(padding=(0, 2))
        for key, option in method["options"].items():
            flag = f" ({option['flag']})" if option["flag"] else ""
            grid.add_row(
                Text(f"  {method['name']}.{key}"),
                Text(visible(str(option["default"]))),
                Text(option["description"] + flag),
            )
        out.print(grid)


def tables() -> list[Registry[Any]]:
    from ...evaluation import EVALUATIONS
    from ...training.settings.values import TABLES

    return [*TABLES, EVALUATIONS]


def own(table: Registry[Any], name: str) -> dict[str, str]:
    """Returns what is listed of a method that is not part of cse: its summary, if a file of --import registered it."""
    return {"summary": table.get(name).summary if name in table.registered else "", "measured": ""}


def list_methods(as_json: bool) -> None:
    """Prints the methods by kind, importing only those of --import; docs/reference.py makes the table of summaries."""
    stored = json.loads((files("cse") / "resources" / "methods.json").read_text(encoding="utf8"))
    listed = [
        {"name": name, "kind": table.kind, **(stored.get(table.kind, {}).get(name) or own(table, name))}
        for table in tables()
        for name in table.installed()
    ]
    lines = []
    for kind in dict.fromkeys(item["kind"] for item in listed):
        lines.append(f"{kind}:")
        for item in (item for item in listed if item["kind"] == kind):
            change = f" ({item['measured']})" if item["measured"] else ""
            lines.append(f"  {item['name']:<18} {item['summary']}{change}")
    printing.result({"methods": listed}, as_json, [*lines, "options: cse methods NAME"])
