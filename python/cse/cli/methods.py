"""The command ``cse methods``."""

from __future__ import annotations

from typing import Any

import click

from ..registry import Registry, option_notes
from . import options, printing


@click.command("methods")
@click.argument("name", required=False)
@options.option(
    "--combinations",
    is_flag=True,
    help="List which combinations of positives, losses and UNA are valid.",
)
@options.as_json
def command(name: str | None, combinations: bool, as_json: bool) -> None:
    """List augmentations, loss terms, evaluations and other methods with their options, or only the method NAME.

    Set an option in the table of its method in the configuration file, or with --set NAME.OPTION=VALUE.
    """
    printing.check_output()
    if combinations:
        from ..training.settings import combinations as found

        records = [
            {"positive": positive, "loss": loss, "una": form, "refused": reason}
            for (positive, loss, form), reason in found.combinations().items()
        ]
        printing.result({"combinations": records}, as_json, [found.markdown()])
        return
    from ..augment import AUGMENTATIONS
    from ..errors import InputError
    from ..evaluation import EVALUATIONS
    from ..features import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
    from ..losses import LOSS_TERMS

    tables: list[Registry[Any]] = [
        AUGMENTATIONS,
        FEATURE_AUGMENTATIONS,
        ENCODER_METHODS,
        HOOKS,
        LOSS_TERMS,
        EVALUATIONS,
    ]
    methods = [
        {
            "name": each,
            "kind": table.kind,
            "summary": table.get(each).summary,
            "options": option_notes(table.get(each).Options),
        }
        for table in tables
        for each in table.names()
        if name in (None, each)
    ]
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
                Text(f"  {method['name']}.{key}"), Text(str(option["default"])), Text(option["description"] + flag)
            )
        out.print(grid)
