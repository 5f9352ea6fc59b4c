"""Writes docs/commands.md and docs/settings.md from the declarations of the options.

    python docs/reference.py [--check]

With ``--check``, nothing is written, and the exit code is 1 if a page differs from the declarations.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cse.cli import group
from cse.cli.train_options import setting_options
from cse.options import Option, options_of
from cse.training.settings.config import method_flags
from cse.training.settings.declared import GROUPS

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
        text = command.get_help(click.Context(command, parent=root, info_name=name, terminal_width=100))
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
            mark = " *" if option.opt.may_change in ("yes", "elsewhere") else ""
            lines.append(f"| `{key}`{mark} | `{option.flag}` | {kind(option)} | {text} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    different = []
    for page, made in (("commands.md", commands()), ("settings.md", settings())):
        path = DOCS / page
        if not path.is_file() or path.read_text(encoding="utf8") != made:
            different.append(page)
        if "--check" not in sys.argv:
            path.write_text(made, encoding="utf8")
    if different and "--check" in sys.argv:
        sys.exit(f"{', '.join(different)}: differs from the declarations; run python docs/reference.py")
