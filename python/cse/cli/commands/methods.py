"""The command ``cse methods``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING
from importlib.resources import files
from itertools import product
from typing import Annotated, Any

from ...augment import AUGMENTATIONS, PAIRS_POSITIVE
from ...losses import CONTRASTIVE_LOSSES, LOSS_TERMS
from ...options import Imports, Opt, options_of, phrase
from ...registry import Registry
from ...training.settings.names import TABLES
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
        messages = all_combinations()
        records = [
            {"positive": positive, "loss": loss, "una": form, "refused": reason}
            for (positive, loss, form), reason in messages.items()
        ]
        printing.result({"combinations": records}, as_json, [table_of_combinations(messages)])
        return
    if name is None:
        list_methods(as_json)
        return
    from ...errors import InputError, visible

    methods = []
    for table in TABLES:
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


def own(table: Registry[Any], name: str) -> dict[str, str]:
    """Returns what is listed of a method that is not part of cse: its summary, if a file of --import registered it."""
    return {"summary": table.get(name).summary if name in table.registered else "", "measured": ""}


def list_methods(as_json: bool) -> None:
    """Prints the methods by kind; only the files of --import are imported; docs/reference.py makes their table."""
    stored = json.loads((files("cse") / "resources" / "methods.json").read_text(encoding="utf8"))
    listed = [
        {"name": name, "kind": table.kind, **(stored.get(table.kind, {}).get(name) or own(table, name))}
        for table in TABLES
        for name in table.installed()
    ]
    lines = []
    for kind in dict.fromkeys(item["kind"] for item in listed):
        lines.append(f"{kind}:")
        for item in (item for item in listed if item["kind"] == kind):
            change = f" ({item['measured']})" if item["measured"] else ""
            lines.append(f"  {item['name']:<18} {item['summary']}{change}")
    printing.result({"methods": listed}, as_json, [*lines, "options: cse methods NAME"])


UNA: dict[str, dict[str, Any]] = {
    "": {},
    "UNA, pairs": {"negatives": ("una",), "options": {"una": {"use_as": "pairs"}}},
    "UNA, hard negatives": {"negatives": ("una",), "options": {"una": {"use_as": "hard-negatives"}}},
}


def losses() -> dict[str, dict[str, Any]]:
    """Returns the settings of each loss by its name in the table of combinations."""
    contrastive: dict[str, dict[str, Any]] = {name: {"loss": name} for name in CONTRASTIVE_LOSSES}
    contrastive["mixed, release"] = {"loss": "mixed", "mix_variant": "release"}
    return contrastive | {name: {"loss": name} for name in LOSS_TERMS.names() if LOSS_TERMS.get(name).is_loss}


def all_combinations(family: str = "bert-base") -> dict[tuple[str, str, str], str]:
    """Returns the error message for each combination (positive, loss, form of UNA); "" if it is allowed."""
    from ...encoder.resolve import Source
    from ...errors import InputError
    from ...training.settings.given import TrainConfig
    from ...training.settings.resolve import resolve

    messages = {}
    for positive, (loss, chosen), (form, una) in product(AUGMENTATIONS.names(), losses().items(), UNA.items()):
        source = {"pairs": "pairs.csv"} if positive == PAIRS_POSITIVE else {"corpus": "corpus.txt"}
        try:
            given = TrainConfig(**source, positive=positive, **chosen, **una)
            resolve(given, lambda name: Source(name, name, name, family, None))
            messages[positive, loss, form] = ""
        except InputError as error:
            messages[positive, loss, form] = str(error)
    return messages


def table_of_combinations(messages: Mapping[tuple[str, str, str], str]) -> str:
    """Returns a Markdown table (rows: positives; columns: losses with forms of UNA), followed by the error messages."""
    heads = dict.fromkeys(f"{loss}{f', {form}' if form else ''}" for _, loss, form in messages)
    rows: dict[tuple[str, ...], list[str]] = {}  # positives with equal entries share a row
    for positive in AUGMENTATIONS.names():
        rows.setdefault(tuple(text for key, text in messages.items() if key[0] == positive), []).append(positive)
    reasons = list(dict.fromkeys(reason for row in rows for reason in row if reason))
    lines = [f"| positive | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for row, names in rows.items():
        cells = ["yes" if not reason else f"no ({reasons.index(reason) + 1})" for reason in row]
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{number}. `{reason}`" for number, reason in enumerate(reasons, 1))])
