"""cse methods."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import click

from ..registry import Registry
from . import console, options


@click.command("methods")
@click.argument("name", required=False)
@options.as_json
def command(name: str | None, as_json: bool) -> None:
    """List augmentations, loss terms and evaluations, or the options of the method NAME.

    Options are set in the method's own table of the configuration file, or by --set NAME.OPTION=VALUE.
    """
    from ..augment import AUGMENTATIONS, FEATURE_AUGMENTATIONS
    from ..errors import InputError
    from ..evaluation import EVALUATIONS
    from ..losses import LOSS_TERMS

    tables: list[Registry[Any]] = [AUGMENTATIONS, FEATURE_AUGMENTATIONS, LOSS_TERMS, EVALUATIONS]
    methods = [
        {"name": each, "kind": table.kind, "summary": table.get(each).summary, "options": describe(table.get(each))}
        for table in tables
        for each in table.names()
        if name in (None, each)
    ]
    if not methods:
        raise InputError(f"{name}: no such method; cse methods lists all")
    if as_json:
        console.result({"methods": methods}, True, [])
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = Console(highlight=False)
    for method in methods:
        out.print(Text.assemble((method["name"], "bold"), f"  {method['kind']}: {method['summary']}"))
        grid = Table.grid(padding=(0, 2))
        for option in method["options"]:
            title = f"  {method['name']}.{option['name']}"
            grid.add_row(Text(title), Text(str(option["default"])), Text(option["description"]))
        out.print(grid)


def describe(method: Any) -> list[dict[str, Any]]:
    """Name, default and description of each option."""
    hints = get_type_hints(method.Options, include_extras=True)
    listed = []
    for each in fields(method.Options):
        notes = [getattr(part, "description", None) for part in getattr(hints[each.name], "__metadata__", ())]
        default = each.default if each.default is not MISSING else None
        listed.append({"name": each.name, "default": default, "description": next(filter(None, notes), "")})
    return listed
