"""What a run keeps of what judges it, so that other encoders can be judged by it later.

``judges.json`` lists the evaluations: suites with the paths of their data and, of texts that were held out, row keys
(``cse.identity``), classes and scores. Texts are found again by their keys in the files of the run, or in another file;
they are stored only if the run had them in memory. As row keys can be tested for guessed sentences, the file stays in
the folder of the run, as ``seen.npy`` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from .. import io
from .._core import hash_file
from ..data import tables
from ..data.corpus import Corpus
from ..data.readers import find_again
from ..errors import InputError, sentence
from ..identity import Keys, row_keys
from ..options import NoOptions, parse_options
from . import EVALUATIONS
from .base import Evaluation, Mask, Pairs
from .geometry import PairSearch
from .labels import LabelledTexts, Labels
from .options import LabelsOptions, STSOptions
from .sts import STS, read_dev

JUDGES = "judges.json"
NAMES: dict[type, str] = {Labels: "labels", STS: "scored pairs", PairSearch: "pairs"}


class Source(TypedDict):
    """A file in which texts are found: rows of a text file, a column of a table, or scored pairs."""

    path: str
    column: NotRequired[str | None]
    scored: NotRequired[bool]
    data: NotRequired[str | None]
    xxh3: NotRequired[str]


class Kept(TypedDict):
    """An evaluation: a suite with its data and options, or texts that were held out, by their keys, and numbers."""

    suite: str
    data: NotRequired[str]
    options: NotRequired[dict[str, Any]]
    title: NotRequired[str]
    keys: NotRequired[dict[str, list[str]]]
    """Row keys as hexadecimal numbers, since JSON of other programs has no integers of 64 bits."""
    numbers: NotRequired[dict[str, list[float]]]


class Judges(TypedDict):
    """The contents of ``judges.json``."""

    sources: list[Source]
    texts: list[str]
    judges: list[Kept]


def columns_of(evaluation: Evaluation) -> tuple[str, dict[str, Sequence[str]], dict[str, Any]] | None:
    """Returns the title, the columns of texts and the numbers of an evaluation on held-out texts; None of others."""
    if isinstance(evaluation, Labels):
        judged = evaluation.texts
        numbers = {"labels": judged.labels, "labels_of_others": judged.labels_of_others}
        return judged.column, {"texts": judged.texts, "others": judged.others}, numbers
    if isinstance(evaluation, STS):
        ((task, pairs),) = evaluation.tasks
        return task.title, {"left": pairs.left, "right": pairs.right}, {"gold": pairs.gold}
    if isinstance(evaluation, PairSearch):
        return "", dict(zip(("left", "right"), evaluation.columns, strict=True)), {}
    return None


def write_judges(
    run: Path, evaluations: Iterable[Evaluation], suites: Iterable[str], sources: list[Source], inline: bool
) -> None:
    """Writes ``judges.json``; ``suites`` are the names of those of ``--judge``, "" of what was held out. With
    ``inline``, texts are stored, because they are in no file. What trains encoders of its own is left out.
    """
    judges: list[Kept] = []
    texts: dict[str, None] = {}
    for each, suite in zip(evaluations, suites, strict=True):
        if suite:  # rows that are left out now are left out again when it is opened
            path = str(Path(each.source).absolute())
            judges.append({"suite": suite, "data": path, "options": asdict(each.options)})
        elif (found := columns_of(each)) is not None:
            title, columns, numbers = found
            keys = {name: hexadecimal(row_keys(list(column))) for name, column in columns.items()}
            listed = {name: np.asarray(values).tolist() for name, values in numbers.items()}
            judges.append({"suite": NAMES[type(each)], "title": title, "keys": keys, "numbers": listed})
            texts |= dict.fromkeys(text for column in columns.values() for text in column) if inline else {}
    record: Judges = {"sources": sources, "texts": list(texts), "judges": judges}
    io.write_text(run / JUDGES, io.dumps(record) + "\n")


def hexadecimal(keys: Keys) -> list[str]:
    return [f"{key:x}" for key in keys.tolist()]


def sources_of(corpora: Iterable[Corpus], dev: Iterable[str], data: str | None) -> list[Source]:
    """Returns where the texts of a run are found: the files of its corpora, and its development sets."""
    files = {(file.path, file.column): file.xxh3 for corpus in corpora for file in corpus.files}
    found: list[Source] = [
        {"path": _absolute(path), "column": column, "xxh3": xxh3} for (path, column), xxh3 in files.items()
    ]
    folder = None if data is None else _absolute(data)
    return [*found, *({"path": _absolute(name), "scored": True, "data": folder} for name in dev)]  # type: ignore[list-item]


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if Path(path).exists() else path


def files_of(run: Path) -> list[str]:
    """Returns the files on which a run was trained, as absolute paths; none if one is not known, or gone."""
    if not (run / JUDGES).is_file():
        return []
    sources = io.read_json(run / JUDGES, Judges)["sources"]
    files = dict.fromkeys(find_again(source["path"]) for source in sources if not source.get("scored"))
    return list(files) if all(map(os.path.isfile, files)) else []


def read_judges(run: Path, data: str | PathLike[str] | None = None) -> tuple[list[Evaluation], list[str]] | None:
    """Returns the evaluations that judged a run, and remarks on rows that were not found; None if it has no
    ``judges.json``. Texts are also looked for in the table ``data``, which replaces files that no longer exist."""
    path = run / JUDGES
    if not path.is_file():
        return None
    stored = io.read_json(path, Judges)
    sources = stored["sources"]
    if data is not None:
        columns = dict.fromkeys(source["column"] for source in sources if source.get("column"))
        moved: list[Source] = [{"path": str(data), "column": column} for column in columns]
        sources = [*moved, *(source for source in sources if Path(find_again(source["path"])).exists())]
    texts = dict(zip(hexadecimal(row_keys(stored["texts"])), stored["texts"], strict=True))
    wanted = {key for judge in stored["judges"] for keys in judge.get("keys", {}).values() for key in keys} - {*texts}
    notes, evaluations = [], []
    if wanted:
        try:
            keys = np.array([int(key, 16) for key in sorted(wanted)], dtype=np.uint64)
        except (ValueError, OverflowError):
            raise InputError(f"{path}: is damaged; restore it, or train the run again") from None
        texts |= _found(sources, keys, run)
    for judge in stored["judges"]:
        try:
            rest, missing, total = _opened(judge, texts, run, data)
        except (KeyError, IndexError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}: is damaged; restore it, or train the run again") from None
        if missing:
            where = ", ".join(dict.fromkeys(source["path"] for source in sources))
            changed = ", which has changed since" if any(map(_has_changed, sources)) else ""
            notes.append(f"{missing:,} of the {total:,} examples that judged {run} are no longer in {where}{changed}")
        evaluations += [] if rest is None else [rest]
    return evaluations, notes


def is_table_of(run: Path, data: str) -> bool:
    """Returns whether a table has the column of the texts of a run, so that these may be found in it."""
    if not ((run / JUDGES).is_file() and tables.is_table(data)):
        return False
    stored = io.read_json(run / JUDGES, Judges)
    columns = {source.get("column") for source in stored["sources"]}
    columns |= {judge.get("options", {}).get("column") for judge in stored["judges"]}
    return bool((columns - {None}) & {*tables.column_names(data)})


def _has_changed(source: Source) -> bool:
    path = find_again(source["path"])
    return "xxh3" in source and Path(path).is_file() and hash_file(path) != source["xxh3"]


def _found(sources: Iterable[Source], wanted: Keys, run: Path) -> dict[str, str]:
    """Returns texts by their keys, of those that are wanted."""
    texts: dict[str, str] = {}
    for source in sources:
        path, column = find_again(source["path"]), source.get("column")
        try:
            if source.get("scored"):
                sets = read_dev([path], source.get("data")).values()
                rows = [text for pairs in sets for text in (*pairs.left, *pairs.right)]
                keys = row_keys(rows)
                chosen = np.flatnonzero(np.isin(keys, wanted))[::-1]  # the first of equal texts is kept
                texts |= dict(zip(hexadecimal(keys[chosen]), [rows[row] for row in chosen], strict=True))
                continue
            corpus = Corpus.open([path if column is None else tables.Column(path, column)], max_line_bytes=1 << 31)
        except (InputError, OSError) as error:
            raise InputError(
                f"{run}: the texts that judged it cannot be read again ({sentence(error)}); put the file back, or name "
                "the table with --data"
            ) from None
        keys, hashes = corpus.row_keys(), corpus.hashes()
        chosen = np.flatnonzero(np.isin(keys, wanted))
        chosen = chosen[np.argsort(hashes[chosen], kind="stable")][::-1]  # of a text, the row that ``labels`` takes
        texts |= dict(zip(hexadecimal(keys[chosen]), corpus.take(chosen), strict=True))
    return texts


def _opened(
    judge: Kept, texts: Mapping[str, str], run: Path, data: str | PathLike[str] | None
) -> tuple[Evaluation | None, int, int]:
    """Returns an evaluation with the texts that were found, or None if too few were; the number of examples whose texts
    were not found, and of all."""
    if "data" in judge:
        kind = EVALUATIONS.get(judge["suite"])
        place = judge["data"] if data is None or Path(judge["data"]).exists() else str(data)
        if not Path(place).exists():
            raise InputError(f"{run}: {place}, which judged it, is not there; put it back, or name it with --data")
        return kind(parse_options(judge["suite"], kind.Options, judge.get("options", {})), place), 0, 0
    known, numbers = judge.get("keys", {}), judge.get("numbers", {})
    columns = {name: [texts.get(key) for key in keys] for name, keys in known.items()}
    evaluation: Evaluation
    if judge["suite"] == NAMES[Labels]:
        there = [text is not None for text in columns["others"]]
        others = [text for text in columns["others"] if text is not None]
        of_others = np.array(numbers["labels_of_others"], dtype=np.int64)[np.array(there, dtype=bool)]
        labels = np.array(numbers["labels"], dtype=np.int64)
        judged = LabelledTexts(
            judge.get("title", ""), [text or "" for text in columns["texts"]], labels, others, of_others
        )
        evaluation, kept = Labels(LabelsOptions(), judged), _there(columns["texts"])
    else:
        left, right = ([text or "" for text in columns[name]] for name in ("left", "right"))
        kept = _there(columns["left"]) & _there(columns["right"])
        if judge["suite"] == NAMES[STS]:
            evaluation = STS(STSOptions(), {judge.get("title", ""): Pairs(np.array(numbers["gold"]), left, right)})
        else:
            evaluation = PairSearch(NoOptions(), (left, right))
    return evaluation if kept.all() else evaluation.only(kept), int((~kept).sum()), len(kept)


def _there(column: Sequence[str | None]) -> Mask:
    return np.array([text is not None for text in column], dtype=bool)
