"""Writes docs/settings.md and the table of cse methods from the declarations; returns the page of commands.

    python docs/reference.py [--check]

With ``--check``, nothing is written, and the exit code is 1 if a page differs from the declarations. The page of
commands is not stored: docs/build.py adds it to the site.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from cse.cli import group
from cse.cli.command import Command
from cse.cli.commands.train import setting_options
from cse.options import Option, options_of
from cse.training.settings.declared import GROUPS
from cse.training.settings.names import TABLES, method_flags
from cse_papers.reproduce.effects import laboratory
from cse_papers.reproduce.effects_tables import tables_of
from cse_papers.reproduce.stored import read_sets
from cse_papers.reproduce.tables import Printed

DOCS = Path(__file__).resolve().parent


def commands() -> str:
    """Returns the page with the help of every command of cse."""
    lines = [
        "# Commands",
        "",
        "The text of `cse COMMAND --help-all` for each command.",
        "",
        "The exit code is 0 on success, 1 after an internal error, if training fails partway, or if all vectors of an",
        "encoder are equal, 2 for invalid input,",
        "an invalid flag or a file error, 130 if interrupted, 143 if terminated, and 129 if the terminal was closed.",
        "",
    ]
    root = click.Context(group.cli, info_name="cse", terminal_width=100)
    for name in group.cli.list_commands(root):
        command = group.cli.get_command(root, name)
        assert command is not None
        context = click.Context(command, parent=root, info_name=name, terminal_width=100)
        text = command.get_help_all(context) if isinstance(command, Command) else command.get_help(context)
        lines += [f"## `cse {name}`", "", *(f"    {line}".rstrip() for line in text.splitlines()), ""]
    return "\n".join(lines)


def kind(option: Option) -> str:
    """Returns the type, the choices and the range of an option as text."""
    text = ", ".join(f"`{each}`" for each in option.choices) or option.kind.__name__
    text = f"list of {text}" if option.several else text
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = option.limits()
    return " ".join([text, *(f"{sign} {limits[name]}" for name, sign in signs.items() if name in limits)])


def settings() -> str:
    """Returns the page with the settings of a run, and the options of methods that have a flag."""
    lines = [
        "# Settings of a run",
        "",
        "Each setting is a flag of `cse train`, a key of `config.toml` and a keyword argument of `cse.TrainConfig`.",
        "The key is the name of the flag with underscores, unless another one is in brackets. Settings marked with *",
        "may change when a run is resumed. `python docs/reference.py` writes this page.",
        "",
    ]
    shown = {option.name: option for option in setting_options()}
    for each in GROUPS:
        lines += [f"## {each.__doc__}", "", "| flag | value | meaning |", "| --- | --- | --- |"]
        rows = [(option.name, option) for option in options_of(each) if not option.opt.hidden]
        rows += [
            (f"{flag.method}.{flag.option.name}", flag.option) for flag in method_flags().values() if flag.group is each
        ]
        for key, option in rows:
            keyword = option.flag.removeprefix("--").replace("-", "_") if "." in key else key
            text = (shown[keyword].help or "").replace("|", "\\|").replace("  [default:", " [default:")
            named = "" if key == option.flag.removeprefix("--").replace("-", "_") else f" (`{key}`)"
            mark = " *" if option.opt.may_change else ""
            lines.append(f"| `{option.flag}`{named}{mark} | {kind(option)} | {text} |")
        lines.append("")
    return "\n".join(lines)


STORED = DOCS.parent / "benches" / "results" / "effects.parquet"
# Rows of the laboratory that measure a method: the table, the beginning of the row, and what is said of the change.
RIVALS, LATER = "Rivals of focal logits at 0.1: loss (H200)", "Later systems: system (H200)"
SEEDS = "Later systems: system (H100)"
AUGMENTED = "UNA, Table C3: augmentation (H200)"
MEASURED = {
    "una": ("Systems (H200)", ["UNA", "0.1, best"], "each at its best temperature"),
    "uda": ("Systems (H200)", ["UDA", "0.03, best"], "each at its best temperature"),
    "hardness": (RIVALS, ["hardness, alpha 9"], "both at 0.1"),
    "gist": (RIVALS, ["GIST, margin 0.1"], "both at 0.1"),
    "orthogonality": (RIVALS, ["orthogonality"], "both at 0.1"),
    "dimensions": (LATER, ["SimCSE++"], "both at 0.05"),
    "sscl": (LATER, ["SSCL"], "both at 0.05"),
    "group-whitening": (SEEDS, ["WhitenedCSE"], "both at 0.05"),
    "infocse": (SEEDS, ["InfoCSE"], "both at 0.05"),
    "rankcse": (SEEDS, ["RankCSE"], "both at 0.05"),
    "clusterns": (SEEDS, ["ClusterNS"], "both at 0.05"),
    "pcl": (SEEDS, ["PCL"], "both at 0.05"),
    "retrieved": (LATER, ["CARDS, retrieved negatives"], "both at 0.05"),
    "prompt": (LATER, ["PromptBERT"], "both at 0.05"),
    "soft-negative": (SEEDS, ["SNCSE"], "both at 0.05"),
    "eda-swap": (AUGMENTED, ["EDA swap"], "both at 0.05"),
    "eda-delete": (AUGMENTED, ["EDA delete"], "both at 0.05"),
    "pca": (AUGMENTED, ["PCA jitter"], "both at 0.05"),
    "modals": (AUGMENTED, ["MODALS interpolation"], "both at 0.05"),
}


def measured(name: str, tables: dict[str, Printed]) -> str:
    """Returns the change that the laboratory measured for a method, and what it is compared with; "" if none."""
    if name not in MEASURED:
        return ""
    title, start, taus = MEASURED[name]
    head, rows = tables[title]
    row = next(row for row in rows if row[: len(start)] == start)
    other = "NT-Xent" if title == AUGMENTED else "the standard loss"
    return f"{row[head.index('change [95 % interval]')]}, compared with {other}, {taus}"


def methods() -> str:
    """Returns the table of methods that ``cse methods`` prints: by kind and name, a summary and what was measured."""
    tables = tables_of(laboratory(), read_sets(STORED))
    kinds = {
        table.kind: {
            name: {"summary": table.get(name).summary, "measured": measured(name, tables)} for name in table.names()
        }
        for table in TABLES
    }
    return json.dumps(kinds, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    different = []
    made_pages = (
        (DOCS / "settings.md", settings()),
        (DOCS.parent / "python" / "cse" / "resources" / "methods.json", methods()),
    )
    for path, made in made_pages:
        if not path.is_file() or path.read_text(encoding="utf8") != made:
            different.append(path.name)
        if "--check" not in sys.argv:
            path.write_text(made, encoding="utf8")
    if different and "--check" in sys.argv:
        sys.exit(f"{', '.join(different)}: differs from the declarations; run python docs/reference.py")
