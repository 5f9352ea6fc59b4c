"""The commands that a person types for the runs of a table: ``cse reproduce TABLE --print-commands``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from cse.evaluation.sts import SEVEN
from cse.training.settings.flat import flat
from cse.training.settings.names import SETTINGS

from .cells import Cell, config_of, encoder_of, index_of
from .inputs import Inputs
from .scores import TASKS, Scorer

if TYPE_CHECKING:
    from cse.training.settings.given import TrainConfig


def commands_of(cell: Cell, inputs: Inputs, scorer: Scorer, place: Path) -> list[str]:
    """Returns the commands that make and score the encoder of a cell, as lines of a shell: its TF-IDF index, if it
    needs one, its run, and its scores."""
    lines: list[list[str]] = []
    if cell.recipe.encoder is not None:
        encoder = [encoder_of(cell.recipe, inputs)]
        encoder += ["--pooler", cell.recipe.pooler] if cell.recipe.pooler else []
    else:
        config = config_of(cell, inputs, place)
        if (index := index_of(config)) and config.tfidf:
            lines.append(["cse", "build-tfidf", *index[1], "--tokenizer", index[0], "-o", config.tfidf])
        lines.append(train_words(config))
        encoder = [str(cell.path(place).with_suffix("") / "best")]
    partial = ["--allow-partial"] if inputs.partial else []
    lines += [["cse", "eval", *encoder, *what, *partial] for what in evaluated(scorer, cell.column)]
    return [shlex.join(line) for line in lines]


def train_words(config: TrainConfig) -> list[str]:
    """Returns the words of the command ``cse train`` of a configuration."""
    values = flat(config.values())
    words = ["cse", "train", *values.pop("corpus", ())]
    if "loss_terms" in values:  # --loss-term adds to those of the preset, which none removes
        words += ["--loss-term", "none"]
    if values.get("negatives") == ():  # none, although the preset has some
        words.append("--no-una")
    for name, value in values.items():
        if "." in name:
            words += ["--set", f"{name}={tomli_w.dumps({'': value}).partition('=')[2].strip()}"]
        elif value is not None:
            words += _option(name, value)
    return words


def _option(name: str, value: Any) -> list[str]:
    setting = SETTINGS[name]
    if isinstance(value, bool):
        return [setting.flag if value else f"--no-{setting.flag.removeprefix('--')}"]
    if isinstance(value, (list, tuple)):
        each = list(map(str, value))
        if setting.opt.separator:
            return [setting.flag, setting.opt.separator.join(each)]
        return [word for item in each for word in (setting.flag, item)]
    return [setting.flag, str(value)]


def evaluated(scorer: Scorer, column: str | None = None) -> list[list[str]]:
    """Returns the options of ``cse eval`` for what a scorer measures, or for one column of the suite ``domain``."""
    pairs = dict(scorer.pairs) if scorer.suite != "domain" or column is None else {}
    found: list[list[str]] = []
    folders = {str(scorer.paths[stem].parent) for stem in SEVEN if stem in pairs}
    if pairs.keys() >= SEVEN.keys() and len(folders) == 1:
        found.append(["--data", *folders])
        pairs = {stem: each for stem, each in pairs.items() if stem not in SEVEN}
    if scorer.clean:
        found.append(["--suite", "sts-dev", "--data", str(scorer.paths[next(iter(SEVEN))].parent)])
    if scorer.suite in ("geometry, stsb-test", "effects"):
        stem = "stsb.test" if scorer.suite == "geometry, stsb-test" else "stsb.dev"
        found.append(["--suite", "geometry", "--data", str(scorer.paths[stem])])
    found += [["--data", str(scorer.paths[stem])] for stem in pairs if stem in TASKS]
    for name in scorer.suites if scorer.suite != "domain" or column is None else (column,):
        kind = "transfer" if name == "transfer" else "retrieval"
        found.append(["--suite", kind, "--data", str(scorer.paths[name])])
    return found


def listed(cells: Sequence[Cell], inputs: Inputs, scorer: Scorer, place: Path) -> list[dict[str, Any]]:
    """Returns the commands of cells, with the names of the cells; a command that several cells need is listed once."""
    known: set[str] = set()
    found = []
    for cell in cells:
        lines = [line for line in commands_of(cell, inputs, scorer, place) if line not in known]
        known.update(lines)
        found.append({"cell": cell.name, "commands": lines})
    return found
