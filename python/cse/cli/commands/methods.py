"""The command ``cse methods``."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Annotated, Any

from ...options import Opt, options_of, phrase
from ...registry import Registry
from .. import printing
from ..command import command
from ..options import AsJson


@command("methods")
def methods_command(
    name: str | None = None,
    *,
    combinations: Annotated[bool, Opt("List which combinations of positives, losses and UNA are valid.")] = False,
    as_json: AsJson = False,
) -> None:
    """List augmentations, loss terms, evaluations and other methods with their options, or only the method NAME.

    Set an option in the table of its method in the configuration file, or with --set NAME.OPTION=VALUE.
    """
    printing.check_output()
    if combinations:
        from ...training.settings import changes

        records = [
            {"positive": positive, "loss": loss, "una": form, "refused": reason}
            for (positive, loss, form), reason in changes.combinations().items()
        ]
        printing.result({"combinations": records}, as_json, [changes.table_of_combinations()])
        return
    from ...errors import InputError, visible
    from ...evaluation import EVALUATIONS
    from ...training.settings.config import TABLES

    tables: list[Registry[Any]] = [*TABLES, EVALUATIONS]
    methods = []
    for table in tables:
        for entry in table.names():
            if name not in (None, entry):
                continue
            try:
                method = table.get(entry)
            except InputError as error:  # its package cannot be imported
                if name is not None:
                    raise
                printing.say(str(error))
                continue
            described = {
                option.name: {
                    "default": None if option.default is MISSING else option.default,
                    "description": option.opt.help and phrase(option.opt.help),
                    "flag": option.opt.flag,
                }
                for option in options_of(method.Options)
            }
            methods.append({"name": entry, "kind": table.kind, "summary": method.summary, "options": described})
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
