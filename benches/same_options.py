"""Compares the options and settings of two installations of cse, for example before and after a refactoring.

    python benches/same_options.py BASE_PYTHON NEW_PYTHON

For each installation, the script collects

- the help of every command;
- the settings of a run, or the sentence that refuses them, for each combination of positive, loss and UNA that
  ``cse methods --combinations`` lists, in six model families, and for each preset.

It prints what differs, and exits with 1 if anything does.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys

FAMILIES = {
    "bert-base": "bert-base",
    "bert-large": "bert-large",
    "roberta-base": "roberta-base",
    "roberta-large": "roberta-large",
    "minilm": "encoder",
    "other": "all",
}

COLLECT = """
import json, sys, tomllib
import click
from cse.cli import group
from cse.augment import AUGMENTATIONS, PAIRS_POSITIVE
from cse.errors import InputError
try:
    from cse.training.settings import changes
except ImportError:  # a version after that module
    from cse.training.settings import precedence as changes
from cse.training.settings.config import TrainConfig
from cse.training.settings.precedence import resolve
try:
    from cse.training.settings.presets import preset_names
except ImportError:  # a version before that module
    from cse.training.settings.precedence import preset_names

help = {}
parts = sys.argv[2].split(",")
root = click.Context(group.cli, info_name="cse", **group.cli.context_settings)
for name in group.cli.list_commands(root) if "help" in parts else ():
    command = group.cli.get_command(root, name)
    help[name] = command.get_help(click.Context(command, parent=root, info_name=name))

def resolved(family, **values):
    try:
        return json.dumps(tomllib.loads(resolve(TrainConfig(**values), family).to_toml()), sort_keys=True, indent=0)
    except InputError as error:
        return f"refused: {error}"

settings = {}
losses = changes.losses() if hasattr(changes, "losses") else changes.LOSSES
for family, table in json.loads(sys.argv[1]).items() if "settings" in parts else ():
    for positive in AUGMENTATIONS.names():
        source = {"pairs": "pairs.csv"} if positive == PAIRS_POSITIVE else {"corpus": "corpus.txt"}
        for loss, chosen in losses.items():
            for form, una in changes.UNA.items():
                values = {**source, "positive": positive, **chosen, **una}
                settings[f"{family}: {positive}, {loss}, {form}"] = resolved(table, **values)
    for preset in preset_names():
        pairs = "labelled" in resolved(table, preset=preset, pairs="p.csv") and {"pairs": "p.csv"}
        settings[f"{family}: preset {preset}"] = resolved(table, preset=preset)
        settings[f"{family}: preset {preset} with pairs"] = resolved(table, preset=preset, **(pairs or {}))
    settings[f"{family}: no settings"] = resolved(table)
json.dump({"help": help, "settings": settings}, sys.stdout)
"""


def collected(python: str, parts: str = "help,settings") -> dict[str, dict[str, str]]:
    """Returns the help and the settings of an installation."""
    done = subprocess.run(
        [python, "-c", COLLECT, json.dumps(FAMILIES), parts], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{python}: {done.stderr}")
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def without_new(base: dict[str, str], new: dict[str, str]) -> None:
    """Removes from both sides the settings that only one of the installations knows."""
    for name in base.keys() & new.keys():
        if base[name].startswith("{") and new[name].startswith("{"):
            old, now = json.loads(base[name]), json.loads(new[name])
            common = old.keys() & now.keys() | old.keys() & {"given"}
            for side, values in ((base, old), (new, now)):
                side[name] = json.dumps({key: values[key] for key in common}, sort_keys=True, indent=0)


def main() -> None:
    """Prints the differences between the two installations."""
    base, new = map(collected, sys.argv[1:3])
    different = 0
    without_new(base["settings"], new["settings"])
    for kind in base:
        names = list(dict.fromkeys([*base[kind], *new[kind]]))
        changed = [name for name in names if base[kind].get(name) != new[kind].get(name)]
        different += len(changed)
        print(f"{kind}: {len(names) - len(changed):,} of {len(names):,} are the same")
        for name in changed:
            old, now = (side[kind].get(name, "").splitlines() for side in (base, new))
            print("\n".join([f"== {kind}: {name}", *difflib.unified_diff(old, now, lineterm="", n=0)]))
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
