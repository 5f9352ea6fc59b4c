"""Reads the folders of runs, and finds the settings that differ between runs; does not import PyTorch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ..errors import InputError
from ..io import Finite, checked, dumps, read_json, read_toml, repaired
from ..training.folder.find import files_of
from ..training.settings.names import SAME_RESULTS

# Names in ``config.toml`` that are not compared: settings that do not affect what a step computes, and the table
# ``given``.
REMEDY = "; remove it, or restore it"
NOT_COMPARED = {*SAME_RESULTS, "save_every", "keep_checkpoints", "given"}


@dataclass(frozen=True)
class StoredRun:
    """The contents of the files of a run; values are empty or None for files that do not exist."""

    folder: Path
    config: dict[str, Any]
    """``config.toml``; its table ``given`` repeats the settings that the user gave."""
    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    """The records of evaluations in ``log.jsonl``; the first one was made before training."""
    result: dict[str, Any] | None
    """``result.json``; None for a run that has not finished, or that was extended and has not finished since."""
    environment: dict[str, Any]
    texts: dict[str, Any] | None
    """``data.json``: descriptions of the data, examples, and held-out sentences. None for runs of older versions."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def stored_texts(self) -> dict[str, Any]:
        """Returns ``texts``; raises ``InputError`` without them."""
        if self.texts is None:
            raise InputError(
                f"{self.folder}: has no data.json with texts, because an older version of cse made the run; train again"
            )
        return self.texts

    @property
    def given(self) -> dict[str, Any]:
        """The settings that the user gave; empty for older runs, which did not store them."""
        return dict(self.config.get("given", {}))

    @property
    def verdict(self) -> dict[str, Any]:
        """The verdict; empty for a run that has not finished, or of an older version."""
        return dict((self.result or {}).get("verdict") or {})

    @property
    def changed(self) -> float:
        """Seconds since 1970 at which the run last wrote its result or, before that, its log or configuration."""
        names = ("result.json", "log.jsonl", "config.toml")
        return next((self.folder / name).stat().st_mtime for name in names if (self.folder / name).exists())

    @property
    def step(self) -> int:
        return max((int(record["step"]) for record in (*self.steps[-1:], *self.evaluations[-1:])), default=0)

    @property
    def metric(self) -> str | None:
        """``spearman`` with a development set, ``mrr`` with held-out sentences, None if nothing was scored."""
        first = self.evaluations[0] if self.evaluations else {}
        return next((name for name in ("spearman", "mrr") if first.get(name) is not None), None)

    @property
    def status(self) -> str:
        return "finished" if self.result is not None else f"not finished, log up to step {self.step:,}"

    @property
    def best(self) -> dict[str, Any]:
        """The evaluation of ``best/``; in an unfinished run, the one with the highest Spearman score, or the last."""
        if self.result is not None:
            return {**self.result["best"], "step": self.result["best_step"]}
        scored = [record for record in self.evaluations if record.get("spearman") is not None]
        return max(scored, key=lambda record: float(record["spearman"]), default=(self.evaluations or [{}])[-1])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that affect what is computed, by name; see ``flat``."""
        return flat({name: value for name, value in self.config.items() if name not in NOT_COMPARED})


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a table and of the tables in it, whose values have names like ``una.beta``."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        values |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
    return values


def read_run(folder: str | Path, needs_log: bool = True) -> StoredRun:
    """Reads the folder of a run."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; name the folder of a run (to list runs: cse runs DIR)")
    if not (folder / "config.toml").is_file():
        why = "not the folder of a run (config.toml is missing); to list runs: cse runs DIR"
        if (folder.resolve().parent / "config.toml").is_file():
            why = f"is inside the folder of a run; name the run: {folder.resolve().parent}"
        elif inside := _runs_in(folder):
            why = f"is a folder of {len(inside)} runs; name one, like {inside[-1]}"
        raise InputError(f"{folder}: {why}")
    files_of(folder)
    file = folder / "config.toml"
    config: dict[str, Any] = {**read_toml(file, ConfigFile, "; restore it")}
    try:
        dumps(config)
    except (TypeError, RecursionError):
        raise InputError(f"{file}: holds a date, or is nested too deeply; restore it") from None
    records = _records(folder / "log.jsonl")
    if needs_log and not records:
        raise InputError(
            f"{folder}: has no log (log.jsonl), because the run ended before its first evaluation or the file was "
            f"removed; begin the run again with cse train --config {folder / 'config.toml'} --name {folder.name}"
        )
    evaluations = [record for record in records if record.get("event") == "evaluation"]
    steps = [record for record in records if "event" not in record]
    result = _stored(folder / "result.json", Result)
    last = max((int(record["step"]) for record in records), default=0)
    if result is not None and last > result["steps"]:  # the run was extended, and has not finished since
        result = None
    for number, measure in enumerate(result["verdict"]["measures"] if result else (), 1):
        if "low" in measure or "visible" in measure:
            checked(measure, Interval, f"{folder / 'result.json'}: verdict: measures: {number}", REMEDY)
    environment = _stored(folder / "environment.json", Environment) or {}
    return StoredRun(folder, config, steps, evaluations, result, environment, _stored(folder / "data.json", DataFile))


def _records(log: Path) -> list[dict[str, Any]]:
    """Returns the records of a log; skips lines that are no JSON, such as the last one of a killed process."""
    records: list[dict[str, Any]] = []
    for number, line in enumerate(log.read_bytes().splitlines() if log.exists() else (), 1):
        try:
            record = json.loads(line, object_hook=_shown_names)
        except (ValueError, RecursionError):
            continue
        records.append({**checked(record, Step, f"{log}: line {number}", "; remove the line, or restore the file")})
    return records


def _shown_names(table: dict[str, Any]) -> dict[str, Any]:
    """Returns a table of metrics, whose names are drawn, with U+FFFD for halves of surrogate pairs in the names."""
    return {repaired(name): value for name, value in table.items()}


def _stored(path: Path, shape: type[Any]) -> Any:
    """Returns the content of a JSON file; None if it does not exist."""
    return read_json(path, shape, REMEDY) if path.exists() else None


# The contents of the files of a run, which anybody may have written, and other versions. Step is a record of log.jsonl.
class Step(TypedDict):
    step: int
    event: NotRequired[str]
    __other__: Finite | None


class UnaOptions(TypedDict, total=False):
    every: int


class ContrastiveTable(TypedDict, total=False):
    margin: Finite


class ConfigFile(TypedDict):
    model: str
    pooler: str
    loss: str
    positive: NotRequired[str]
    negatives: NotRequired[list[str]]
    encoder_methods: NotRequired[list[str]]
    eval_pooler: NotRequired[str]
    keep_head: NotRequired[bool]
    temperature: NotRequired[Finite]
    tfidf: NotRequired[str]
    una: NotRequired[UnaOptions]
    contrastive: NotRequired[ContrastiveTable]
    given: NotRequired[dict[str, Any]]


class Measure(TypedDict):
    task: str
    examples: int
    unit: str
    a: Finite | None
    b: Finite | None
    mean: Finite | None
    word: str


class Interval(Measure):
    low: Finite | None
    high: Finite | None
    visible: NotRequired[Finite | None]


class StoredVerdict(TypedDict):
    word: str
    why: str
    measures: list[Measure]
    notes: list[str]


class Neighbours(TypedDict):
    sentence: str
    before: str
    after: str


class Result(TypedDict):
    steps: int
    seconds: Finite
    best_step: int
    best: dict[str, Finite | None]
    sts: dict[str, Finite | None]
    notes: list[str]
    verdict: StoredVerdict
    neighbours: list[Neighbours]


class Environment(TypedDict, total=False):
    versions: dict[str, str]
    __other__: str | int | None


class ScoredTexts(TypedDict):
    left: list[str]
    right: list[str]
    gold: list[Finite]


class StoredExample(TypedDict):
    method: str
    text: str
    augmented: str
    spans: list[tuple[int, int]]
    augmented_spans: list[tuple[int, int]]
    further: list[str]


class DataFile(TypedDict):
    held_out: list[str]
    synthetic: list[str]
    dev: NotRequired[dict[str, ScoredTexts]]
    facts: dict[str, str]
    examples: list[StoredExample]


def find_runs(folder: str | Path) -> list[StoredRun]:
    """Returns the run in ``folder``, or the runs in its subfolders, sorted by name (``seed2`` before ``seed10``)."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; to write runs to DIR: cse train -o DIR")
    paths = [folder] if (folder / "config.toml").is_file() else _runs_in(folder)
    if not paths:
        raise InputError(f"{folder}: no runs there; to write runs there: cse train -o {folder}")
    return [read_run(path, needs_log=False) for path in paths]


def _runs_in(folder: Path) -> list[Path]:
    folders = [path for path in folder.iterdir() if (path / "config.toml").is_file() and not path.name.startswith(".")]

    def natural(path: Path) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]

    return sorted(folders, key=natural)


def differing(runs: Sequence[StoredRun]) -> list[str]:
    """Returns the names of the settings that differ between the runs, in the order of their first occurrence."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    return [name for name in names if any(run.settings.get(name) != runs[0].settings.get(name) for run in runs[1:])]
