"""The data of a run: its sentences or labelled pairs, which of them are trained on, and its TF-IDF index.

This module does not import torch, since the command line calls ``check_inputs`` before it does.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._core import hash_bytes
from ..background import ProgressCallback
from ..data import readers, tables
from ..data.classes import Classes, classes_of, likely_labels, read_classes
from ..data.corpus import IN_MEMORY, Corpus, Split, hold_out
from ..data.pairs import LabelledPairs, check_column, open_pairs
from ..encoder.resolve import check_local
from ..encoder.taught import Taught
from ..errors import InputError, shortened
from ..evaluation.sts import CLEAN
from ..identity import first_rows, row_keys
from ..io import dumps
from ..options import NoOptions
from ..tfidf.index import TfidfIndex
from .settings import declared

if TYPE_CHECKING:
    from ..classifier.labelled import Labelled
    from ..evaluation.base import Evaluation
    from ..evaluation.labels import Fold, LabelledTexts
    from .settings.given import TrainConfig

FOLDER = "tfidf"
"""The index that is used if no other is given, and the index in the folder of a run that was built for the run."""
MOST_INDEXED = 5_000_000
"""Rows of which an index is built for a run; a million rows take about a second. More rows need cse build-tfidf."""


@dataclass
class TrainingData:
    """The sentences of a run, or its labelled pairs."""

    corpus: Corpus  # for labelled pairs, the anchors
    labelled: LabelledPairs | None
    split: Split
    reading: dict[str, Any]  # options with which the files were read
    judged: LabelledTexts | None = None  # texts that judge the encoder by their labels; ``split`` leaves them out
    unjudged: str = ""  # why none do, although a column of labels was named
    likely: dict[str, int] = field(default_factory=dict)  # columns that look like labels, if none was named
    folds: list[Fold] = field(default_factory=list)  # of the rows with labels, if all of these teach
    labels: str = ""  # a hash of the labels of all rows; "" without labels
    labelled_texts: Labelled | None = None  # what the classifier of the run is fitted to
    classes: Classes | None = None  # the labels that teach

    @property
    def columns(self) -> list[Corpus]:
        """The corpora by column number."""
        return [self.corpus] if self.labelled is None else self.labelled.corpora

    def describe(self) -> dict[str, str]:
        """Returns the numbers of rows and, for labelled pairs, the columns."""
        corpus, split = self.corpus, self.split
        counts = {
            "held out to judge by their labels": 0 if self.judged is None else len(self.judged.texts),
            "held out to check for collapse": len(split.held_out),
            "left out because they share a text with held-out rows": split.joined,
            "blank": split.blank,
            "with invalid UTF-8 replaced": corpus.repaired,
            "with line breaks replaced by spaces": corpus.joined_lines,
        }
        parts = [f"{len(corpus):,} rows: {len(split.train):,} to train on"]
        parts += [f"{count:,} {what}" for what, count in counts.items() if count]
        if count := len(split.common):
            texts = f"{count:,} texts, each" if count > 1 else "1 text"
            parts.append(f"{texts} in more than 1 % of the rows, by which no rows are joined")
        text = ", ".join(filter(None, [*parts, readers.repeated(corpus.files)]))
        facts = {"corpus": text} | ({} if self.labelled is None else {"columns": self.labelled.describe()})
        if self.likely:
            named = ", ".join(f"{name} ({count} values)" for name, count in self.likely.items())
            facts["labels"] = f"none named; {named} may be a column of labels: --labels COLUMN judges the run by it"
        return facts

    def evaluations(self) -> list[Evaluation]:
        """Returns what judges the encoder at the end: the texts with labels, or the held-out pairs."""
        from ..evaluation.base import FEWEST
        from ..evaluation.geometry import PairSearch
        from ..evaluation.labels import CrossFitted, Labels
        from ..evaluation.options import LabelsOptions

        if self.judged is not None:
            return [Labels(LabelsOptions(), self.judged)]
        if self.folds:
            return [CrossFitted(LabelsOptions(), self.folds)]
        if self.labelled is None or len(self.split.held_out) < FEWEST:
            return []
        rows, keys = self.split.held_out, [corpus.row_keys() for corpus in self.labelled.corpora]
        trained = np.concatenate([key[used] for key, used in zip(keys, self.trained_rows(), strict=True)])
        rows = rows[~np.isin(np.stack([key[rows] for key in keys[:2]]), trained).any(0)]
        for column in keys[:2]:
            rows = rows[first_rows(column[rows])]
        anchors, positives = (corpus.take(rows) for corpus in self.labelled.corpora[:2])
        return [PairSearch(NoOptions(), (anchors, positives))] if len(rows) >= FEWEST else []

    def trained_rows(self) -> list[npt.NDArray[np.int64]]:
        """Returns for each column the rows whose text is trained on: without hard negatives that are not used."""
        rows = self.split.train
        usable = [] if self.labelled is None else self.labelled.usable or []
        return [rows] * (len(self.columns) - len(usable)) + [rows[used[rows]] for used in usable]

    def taught(self, selecting: Sequence[str]) -> Taught:
        """Returns what the encoder is taught: the texts that are trained on and those by which best/ is selected."""
        columns = [*zip(self.columns, self.trained_rows(), strict=True)]
        texts = np.concatenate([*(each.row_keys()[rows] for each, rows in columns), row_keys(selecting)])
        if (classes := self.classes) is not None:
            rows = self.split.train
            return Taught.by(texts, self.corpus.take(rows[classes.of_rows[rows] >= 0]), classes.column)
        paired = [] if self.labelled is None else [text for each, rows in columns for text in each.take(rows)]
        return Taught.by(texts, paired=paired)

    def fingerprints(
        self, index: str | None, others: dict[str, str], model: str = "", evaluated: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Returns what ``check_same`` compares in a resumed run; ``others`` are from ``TextContext.depends_on``,
        ``model`` is a hash of the files of the base model, and ``evaluated`` are hashes of what the run is evaluated
        on, by name."""
        files = [[file.xxh3, file.rows, file.column] for corpus in self.columns for file in corpus.files]
        return {
            "corpus": files,
            "index": index,
            **({"files": others} if others else {}),
            **({"labels": self.labels} if self.labels else {}),
            **({"model": model} if model else {}),
            **({"evaluated": evaluated} if evaluated else {}),
        }


def check_same(before: dict[str, Any], now: dict[str, Any], where: str, remedy: str = "start a new run") -> None:
    """Raises ``InputError`` if the fingerprints of a resumed run differ from those stored when it began."""
    missing = {"model", "evaluated"} - before.keys()  # in runs of an earlier version
    now = {name: value for name, value in now.items() if name not in missing}
    old, new = ({**each.get("files", {}), **each.get("evaluated", {})} for each in (before, now))
    changed = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    if before != now:
        same = before.get("labels") == now.get("labels")
        base = before.get("model") == now.get("model")
        what = "the corpus or the index" if same else "the column of labels"
        what = changed[0] if changed else what if base else "the base model"
        raise InputError(f"{where}: {what} has changed since the run began; restore it, or {remedy}")


def has_index(folder: str | Path) -> bool:
    """Returns whether a folder holds a TF-IDF index."""
    return (Path(folder) / "index.safetensors").exists()


def check_source(corpus: Sequence[str], pairs: Sequence[str], tfidf: str | None) -> None:
    """Raises ``InputError`` if no corpus and no pairs were given, and there is no index whose files can be used."""
    if not corpus and not pairs and not has_index(tfidf or FOLDER):
        raise InputError(
            f"CORPUS: no file was given, and {tfidf or './tfidf'} is no TF-IDF index that names files to train on; "
            "name a text file with one sentence per line (cse train corpus.txt), or build its index first (cse "
            "build-tfidf corpus.txt)"
        )


def check_device(name: str) -> None:
    """Raises ``InputError`` for a GPU that the installed torch was built without; torch is not imported."""
    if name.startswith("cuda") and version("torch").endswith("+cpu"):
        raise InputError(
            f"--device {name}: torch is installed without CUDA; use --device cpu, or install its CUDA build"
        )


def check_inputs(config: TrainConfig) -> None:
    """Raises an error for a file, column, folder or index of a configuration that is missing."""
    check_device(config.device)
    check_source(config.corpus, config.pairs, config.tfidf)
    files = corpus_files(config.corpus, config.column)
    if config.labels is not None and config.labels == config.column:
        raise InputError(f"--labels {config.labels}: is the column of the texts; name the column of their labels")
    for file in files if config.labels is not None else []:
        if not isinstance(file, str):
            check_column(file.path, f"--labels {config.labels}", str(config.labels), config.max_line_bytes)
    for judge in config.judges:
        if not (path := judge.partition("=")[2]) or not os.path.exists(path):
            raise InputError(f"--judge {judge}: must be SUITE=PATH, with a file or folder that exists")
    names = [*config.pairs, *(each for each in config.dev if each != CLEAN), config.data]
    for name in names:
        if name not in (None, "-") and not glob.has_magic(name) and "://" not in name:
            os.stat(name)
    if config.tfidf is not None and not has_index(config.tfidf):
        raise InputError(
            f"--tfidf {config.tfidf}: no TF-IDF index there; make one with cse build-tfidf CORPUS -o {config.tfidf}"
        )
    if config.model is not None:
        check_local(config.model)


def corpus_files(corpus: Sequence[str], column: str | None) -> list[Any]:
    """Returns the corpus files, if any, with the column of tables; raises an error for a missing file or column."""
    if tuple(corpus) in ((), (IN_MEMORY,)):
        return []
    for name in corpus:
        if " " in name and not glob.has_magic(name) and not os.path.exists(name):
            raise InputError(
                f"CORPUS: no such file {shortened(name, 60)!r}; name files with one sentence per line, or in Python "
                "pass the sentences themselves: train(config, texts=[...])"
            )
    files = readers.resolve(corpus, column)
    for name in (item for item in files if isinstance(item, str) and item != "-"):
        os.stat(name)
    return files


def open_data(
    settings: declared.Data,
    methods: declared.Methods,
    evaluation: declared.Evaluation,
    output: declared.Output,
    index: RunIndex,
    progress: ProgressCallback,
    texts: Sequence[str] | None = None,
    labels: Sequence[Any] | None = None,
    left_out: npt.NDArray[np.int64] | None = None,
    judging: bool = True,
) -> TrainingData:
    """Opens pairs or corpus, from which ``index`` may be built, and divides the rows.

    Unless ``keep_duplicates`` is set, hard negatives that are texts of held-out rows are not used. ``labels`` has
    the label of each text, "" for none. ``left_out`` are rows of a corpus that are not trained on, instead of the rows
    that judge by their labels; without ``judging``, these are not trained on, and do not judge.

    Rows are held out in one of these ways: ``data.corpus.hold_out`` (the check for collapse, and pairs of ``--pairs``),
    ``evaluation.labels.choose_labelled`` and ``choose_folds`` (by their labels). ``selection.halve`` divides
    development sets.
    """
    reading: dict[str, Any] = {
        "encoding_errors": settings.encoding_errors,
        "max_line_bytes": settings.max_line_bytes,
        "threads": output.threads,
        "cache": settings.cache,
    }
    labelled, rows, judged, unjudged, known, teach = None, None, None, "", "", None
    folds: list[Fold] = []
    found: Labelled | None = None
    if settings.pairs:
        labelled = open_pairs(
            settings.pairs, settings.columns, settings.where, settings.min_score, progress=progress, **reading
        )
        sentences, rows = labelled.anchors, labelled.complete()
    else:
        indexed = None if settings.corpus else index.of(None)
        sentences = open_corpus(settings.corpus, settings.column, indexed, progress, texts, **reading)
    count = 0 if labelled is None else labelled.left_out  # by --where or --min-score
    if evaluation.labels is not None:
        from ..classifier.labelled import labelled_texts
        from ..evaluation.labels import TooFewLabels, choose_folds, choose_labelled

        if texts is not None and labels is None:
            raise InputError(
                f"labels: --labels {evaluation.labels} was given, but no labels; pass labels=[...] with texts="
            )
        flag = f"--labels {evaluation.labels}"
        if labels is None:
            classes = read_classes(sentences, evaluation.labels, flag, given=True)
        else:
            classes = classes_of(sentences, evaluation.labels, labels)
        known = hash_bytes(dumps([classes.names, classes.of_rows.tolist()]).encode())
        chosen = sentences.filled()[:0] if left_out is None else left_out
        if left_out is None:
            try:
                folds = choose_folds(sentences, classes, evaluation.folds) if methods.learn else []
                if not folds:
                    judged, chosen = choose_labelled(sentences, classes, rare=methods.learn)
            except TooFewLabels as few:
                unjudged = str(few)
            if not judging:
                folds, judged, unjudged = [], None, ""
            elif not methods.learn:
                found = labelled_texts(sentences, classes)
            elif folds:
                found = labelled_texts(sentences, classes, [fold.rows for fold in folds], "encoders")
            else:
                found = labelled_texts(sentences, classes, [chosen] if len(chosen) else [], "held out")
        rows, count = np.setdiff1d(sentences.filled(), chosen, assume_unique=True), len(chosen)
        if methods.learn:
            teach = classes.only(rows)
    others = [] if labelled is None else [labelled.positives]
    teaching = None if teach is None else teach.of_rows >= 0
    split = hold_out(sentences, output.seed, not evaluation.dev, rows, others, teaching)
    if labelled is not None and not methods.keep_duplicates:
        labelled = labelled.without(split)
    split = replace(split, blank=split.blank - count)
    index.corpus = sentences
    likely = likely_labels(sentences) if judging and evaluation.labels is None and labelled is None else {}
    return TrainingData(sentences, labelled, split, reading, judged, unjudged, likely, folds, known, found, teach)


def open_corpus(
    corpus: Sequence[str],
    column: str | None,
    index: TfidfIndex | None,
    progress: ProgressCallback | None = None,
    texts: Sequence[str] | None = None,
    **reading: Any,
) -> Corpus:
    """Opens the corpus files or, if there are none, the files that the index was built from."""
    if texts is not None:
        return Corpus.from_texts(texts)
    if tuple(corpus) == (IN_MEMORY,):
        raise InputError(
            "CORPUS: the run was trained on texts in memory; in Python, give them again: train(config, texts=[...])"
        )
    if corpus:
        files = corpus_files(corpus, column)
    elif column is not None:
        raise InputError("--column belongs to CORPUS, which was not given; name CORPUS, or omit --column")
    elif index is None or not index.files or any(file.path == "-" for file in index.files):
        raise InputError(
            "CORPUS: the index was built from standard input or from memory; name the text file to train on"
        )
    else:
        paths = [readers.find_again(file.path) for file in index.files]
        if gone := [path for path in paths if "://" not in path and not os.path.exists(path)]:
            raise InputError(
                f"CORPUS: the TF-IDF index was built from {gone[0]}, and there is no such file here; name the file to "
                "train on, or change to the folder in which the index was built"
            )
        files = [
            path if file.column is None else tables.Column(path, file.column)
            for path, file in zip(paths, index.files, strict=True)
        ]
    return Corpus.open(files, progress=progress, **reading)


def check_indexed(corpus: Corpus, index: TfidfIndex) -> None:
    """Raises ``InputError`` if a corpus file has changed since it was indexed, or if the index holds another column."""
    known: dict[str, list[Any]] = {}
    for file in index.files:
        known.setdefault(os.path.realpath(file.path), []).append(file)
    for file in corpus.files:
        indexed = known.get(os.path.realpath(file.path))
        if indexed and file.xxh3 not in [other.xxh3 for other in indexed]:
            raise InputError(
                f"{file.path}: the file has changed since it was indexed; build the index again with cse build-tfidf"
            )
        if indexed and file.column not in [other.column for other in indexed]:
            raise InputError(
                f"--column: the index holds column {indexed[0].column} of {file.path}, not {file.column}; "
                "build an index of the column you train on"
            )


@dataclass
class RunIndex:
    """Opens or builds the index of a run, when a method first uses it.

    The index is, in this order: the given one; in a resumed run, the one in its folder; ./tfidf, if no corpus was
    given, or if it was built from exactly the files and columns of the run, with the tokenizer that the method needs;
    else one built from all rows of the run, which is saved in the folder of the run. An index of other files is used
    only if it is given.
    """

    given: str | None  # folder of the index, if the user named one
    run: Path | None  # folder of a resumed run
    named: bool
    """Whether the run has files, pairs or texts of its own; otherwise, it is trained on the files of the index."""
    filters: dict[str, Any]  # the arguments min_df and max_terms of TfidfIndex.open
    corpus: Corpus | None = field(default=None, init=False)
    """The sentences of the run, set by ``open_data``; None before, when only an index of files can be opened."""
    used: TfidfIndex | None = field(default=None, init=False)  # the index, once a method has asked for it
    built: TfidfIndex | None = field(default=None, init=False)  # the index that was built for the run, without filters
    facts: dict[str, str] = field(default_factory=dict, init=False)
    """What the header of the run says about the index, if anything."""
    sha256: str | None = field(default=None, init=False)  # hash of the file of the index that is used; None if none is

    def of(self, tokenizer: str | None) -> TfidfIndex:
        """Returns the index, which is opened or built at the first call; ``tokenizer`` is that of an index that is
        built (None: the default). Raises ``InputError`` if it cannot be opened, or if the corpus is too large."""
        if self.used is None:
            self.used = self._open(tokenizer)
        return self.used

    def _open(self, tokenizer: str | None) -> TfidfIndex:
        corpus, stored = self.corpus, self.run / FOLDER if self.run else None
        if self.given is not None or not self.named:
            return self._opened(Path(self.given or FOLDER))
        if stored is not None and has_index(stored):
            self._describe(TfidfIndex.open(stored))
            return self._opened(stored)
        assert corpus is not None
        if has_index(FOLDER) and _is_of(corpus, tokenizer):
            return self._opened(Path(FOLDER))
        return self._build(corpus, tokenizer)

    def _opened(self, folder: Path) -> TfidfIndex:
        index = TfidfIndex.open(folder, **self.filters)
        with open(folder / "index.safetensors", "rb") as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return index

    def check(self) -> None:
        """Raises ``InputError`` if the index has an older state of a corpus file; notes if it is of other files."""
        corpus, index = self.corpus, self.used
        if corpus is None or index is None or self.built is not None:
            return
        check_indexed(corpus, index)
        if index.files and not {file.xxh3 for file in corpus.files} <= {file.xxh3 for file in index.files}:
            names = ", ".join(file.path for file in index.files[:3])
            self.facts["index"] = f"{self.given} was built from other files than the run trains on ({names})"

    def _describe(self, built: TfidfIndex) -> None:
        self.facts["index"] = f"built for the run from {built.info.documents:,} rows, {built.info.terms:,} terms"

    def _build(self, corpus: Corpus, tokenizer: str | None) -> TfidfIndex:
        if len(corpus) > MOST_INDEXED:
            raise InputError(
                f"--tfidf: {len(corpus):,} rows are more than the {MOST_INDEXED:,} of which an index is built for a "
                "run; build it with cse build-tfidf CORPUS"
            )
        words: Any = {} if tokenizer in (None, "wordpieces") else {"tokenizer": tokenizer}
        built = self.built = TfidfIndex.from_texts(corpus.take(range(len(corpus))), **words)
        data = built.to_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        self._describe(built)
        return TfidfIndex.from_bytes(data, **self.filters) if any(self.filters.values()) else built

    def save(self, folder: Path) -> None:
        """Writes an index that was built for the run to the folder of the run."""
        if self.built is not None:
            self.built.save(folder / FOLDER)


def open_index(
    settings: declared.Data, methods: declared.Methods, folder: Path | None, in_memory: bool = False
) -> RunIndex:
    """Returns the TF-IDF index of a run, which is opened or built when a method first asks for it; ``folder`` is the
    folder of a resumed run, and ``in_memory`` whether its texts are."""
    named = bool(settings.corpus or settings.pairs or in_memory)
    return RunIndex(settings.tfidf, folder, named, {"min_df": methods.min_df, "max_terms": methods.max_terms})


def _is_of(corpus: Corpus, tokenizer: str | None) -> bool:
    """Returns whether ./tfidf was built from exactly the files and columns of the corpus, with this tokenizer."""
    try:
        index = TfidfIndex.open(FOLDER)
    except InputError:  # damaged, or of another version
        return False
    same = [(file.xxh3, file.column) for file in index.files] == [(file.xxh3, file.column) for file in corpus.files]
    return same and tokenizer in (None, index.tokenizer)
