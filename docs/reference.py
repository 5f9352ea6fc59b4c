"""Writes docs/commands.md, docs/settings.md and the table of cse methods from the declarations.

    python docs/reference.py [--check]

With ``--check``, nothing is written, and the exit code is 1 if a page differs from the declarations.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import click

from cse.cli import group
from cse.cli.command import Command
from cse.cli.commands.train import setting_options
from cse.evaluation import EVALUATIONS
from cse.options import Option, options_of
from cse.training.settings.declared import GROUPS
from cse.training.settings.names import TABLES, method_flags

DOCS = Path(__file__).resolve().parent


def commands() -> str:
    """Returns the page with the help of every command of cse."""
    lines = [
        "# Commands",
        "",
        "The text of `cse COMMAND --help` for each command. `python docs/reference.py` writes this page.",
        "",
        "The exit code is 0 on success, 1 after an internal error or if training fails partway, 2 for invalid input,",
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
        "Those marked with * may change when a run is resumed. `python docs/reference.py` writes this page.",
        "",
    ]
    shown = {option.name: option for option in setting_options()}
    for each in GROUPS:
        lines += [f"## {each.__doc__}", "", "| key | flag | value | meaning |", "| --- | --- | --- | --- |"]
        rows = [(option.name, option) for option in options_of(each) if not option.opt.hidden]
        rows += [
            (f"{flag.method}.{flag.option.name}", flag.option) for flag in method_flags().values() if flag.group is each
        ]
        for key, option in rows:
            keyword = option.flag.removeprefix("--").replace("-", "_") if "." in key else key
            text = (shown[keyword].help or "").replace("|", "\\|").replace("  [default:", " [default:")
            mark = " *" if option.opt.may_change else ""
            lines.append(f"| `{key}`{mark} | `{option.flag}` | {kind(option)} | {text} |")
        lines.append("")
    return "\n".join(lines)


LABORATORY = DOCS / "effects.md"
# Rows of docs/effects.md that measure a method: the heading above the table, and the beginning of the row.
MEASURED = {
    "una": ("Systems", "UNA | 0.1, best"),
    "uda": ("Systems", "UDA | 0.03, best"),
    "hardness": ("Rivals of focal logits at 0.1", "hardness, alpha 9"),
    "gist": ("Rivals of focal logits at 0.1", "GIST, margin 0.1"),
    "orthogonality": ("Rivals of focal logits at 0.1", "orthogonality"),
    "dimensions": ("Later systems: system", "SimCSE++"),
    "sscl": ("Later systems: system", "SSCL"),
    "group-whitening": ("Later systems: system", "WhitenedCSE"),
    "infocse": ("Later systems: system", "InfoCSE"),
    "rankcse": ("Later systems: system", "RankCSE"),
    "clusterns": ("Later systems: system", "ClusterNS"),
    "pcl": ("Later systems: system", "PCL"),
    "retrieved": ("Later systems: system", "CARDS, retrieved negatives"),
    "prompt": ("Later systems: system", "PromptBERT"),
    "soft-negative": ("Later systems: system", "SNCSE"),
    "eda-swap": ("UNA, Table C3", "EDA swap"),
    "eda-delete": ("UNA, Table C3", "EDA delete"),
    "pca": ("UNA, Table C3", "PCA jitter"),
    "modals": ("UNA, Table C3", "MODALS interpolation"),
}
CHANGE = re.compile(r"[+-]\d+\.\d+ \[[^]]*\]")


def measured(name: str) -> str:
    """Returns the change that the laboratory measured for a method, from docs/effects.md; "" if there is none."""
    if name not in MEASURED:
        return ""
    heading, start = MEASURED[name]
    sections = LABORATORY.read_text(encoding="utf8").split("\n### ")
    rows = [
        line
        for section in sections
        if section.startswith(heading)
        for line in section.splitlines()
        if line.startswith(f"| {start} |")
    ]
    change = CHANGE.search(rows[0]) if rows else None
    if change is None:
        raise ValueError(f"{name}: docs/effects.md has no row {start!r} below {heading!r}")
    tau = "each at its best temperature" if "best" in start else "at 0.1" if "at 0.1" in heading else "at 0.05"
    return f"{change[0]} {tau}"


def methods() -> str:
    """Returns the table of methods that ``cse methods`` prints: by kind and name, a summary and what was measured."""
    kinds = {
        table.kind: {name: {"summary": table.get(name).summary, "measured": measured(name)} for name in table.names()}
        for table in (*TABLES, EVALUATIONS)
    }
    return json.dumps(kinds, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    different = []
    made_pages = (
        (DOCS / "commands.md", commands()),
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
