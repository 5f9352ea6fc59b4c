"""The base class of evaluations, and files of scored sentence pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from .._core import is_blank
from ..data.corpus import Corpus
from ..data.pairs import ROLE_OF, is_number, number_of
from ..data.tables import csv_records
from ..encoder.base import check_finite
from ..errors import EqualVectors, InputError, shown
from ..options import WithOptions
from ..ties import TIE

FEWEST = 10
"""Least number of rows of a class, of groups of pairs in each half of a development set, and of held-out pairs."""
Progress = Callable[[int], None]
Mask = npt.NDArray[np.bool_]
Seen = Callable[[list[str]], Mask]
T = TypeVar("T")


class Encodes(Protocol):
    """An encoder that can be evaluated."""

    def encode(
        self, texts: Sequence[str], *, batch_size: int = ..., progress: Progress | None = ...
    ) -> npt.NDArray[np.float32]:
        """Returns embeddings ``(n, D)`` float32; ``progress`` gets the number of texts encoded since its last call."""
        ...


class Adapted:
    """Gives any object with a method ``encode(texts)``, such as a ``SentenceTransformer``, the form of ``Encodes``."""

    encode: Callable[..., npt.NDArray[np.float32]]  # by __getattr__, as encode_query and encode_document

    def __init__(self, wrapped: Any, **settings: Any) -> None:
        self.wrapped, self.settings = wrapped, settings

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped" or name.startswith("__"):  # of an object that is being copied
            raise AttributeError(name)
        value = getattr(self.wrapped, name)
        encodes = name.partition("_")[0] == "encode" and callable(value)
        return partial(self._vectors, value) if encodes else value

    def _vectors(
        self, encode: Callable[..., Any], texts: Sequence[str], progress: Progress | None = None, **settings: Any
    ) -> npt.NDArray[np.float32]:
        settings = self.settings | settings
        parameter = signature(encode).parameters.get("progress")
        reports = parameter is not None and not isinstance(parameter.default, bool)  # in some encoders, it is a switch
        result = encode(list(texts), **settings, **({"progress": progress} if reports else {}))
        if hasattr(result, "detach"):  # a tensor
            result = result.detach().float().cpu()
        for dense in ("to_dense", "toarray"):  # of sparse tensors and of SciPy
            result = getattr(result, dense)() if hasattr(result, dense) else result
        try:
            vectors = np.asarray(result, dtype=np.float32)
        except (TypeError, ValueError, RuntimeError):
            vectors = np.zeros(0, dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
            raise InputError(
                f"encoder: encode must return one vector for each of {len(texts)} texts, got a "
                f"{type(result).__name__} of shape {np.shape(vectors)}"
            )
        check_finite(vectors, texts, "encoder")
        if progress and not reports:
            progress(len(texts))
        return vectors


def counted(total: int, progress: Callable[[int, int], None] | None) -> Progress:
    """Returns a function that adds its argument to a count and then calls ``progress(count, total)``."""
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    return advance


def embed(
    encoder: Encodes, columns: Sequence[Sequence[str]], progress: Progress | None = None
) -> list[npt.NDArray[np.float32]]:
    """Returns the embeddings of each list of texts, ``(n, D)`` float32; each distinct text is encoded once."""
    row = {text: number for number, text in enumerate(dict.fromkeys(chain.from_iterable(columns)))}
    vectors = encoder.encode(list(row), progress=progress)
    return [vectors[[row[text] for text in column]] for column in columns]


def check_apart(vectors: npt.NDArray[np.floating]) -> None:
    """Raises ``EqualVectors`` if all of at least two vectors of different texts ``(n, D)`` point in one direction."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if len(vectors) > 1 and np.ptp(vectors / np.maximum(lengths, 1e-12), axis=0).max() <= TIE:
        raise EqualVectors(
            f"the vectors of all {len(vectors):,} texts are equal, so that nothing can be scored; name another encoder"
        )


def read_lines(path: Path, blank: bool = False) -> list[tuple[int, str]]:
    """Returns the lines of a UTF-8 file, which may be compressed, with their numbers from 1; blank ones if wanted."""
    try:
        rows = Corpus.read([str(path)], max_line_bytes=2**40)
    except InputError as error:
        raise InputError(str(error).replace(", or pass --encoding-errors replace", "")) from None
    return [(number, line) for number, line in enumerate(rows.take(range(len(rows))), 1) if blank or not is_blank(line)]


def find_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Returns the files of these names in a folder, each as it is or compressed (.gz, .zst)."""
    paths = [[folder / f"{name}{suffix}" for suffix in ("", ".gz", ".zst")] for name in names]
    found = [next((path for path in each if path.is_file()), None) for each in paths]
    return [path for path in found if path is not None]


def find_file(folder: Path, names: Sequence[str]) -> Path:
    """Returns the first of ``find_files``; raises ``InputError`` if there is none."""
    for path in find_files(folder, names):
        return path
    raise InputError(f"{folder}: has none of {', '.join(names)}; name the folder that has the file")


def needed(data: T | None, what: str) -> T:
    """Returns the value of ``--data``; raises ``InputError`` if it was not given."""
    if data is None:
        raise InputError(f"--data: name {what}")
    return data


@dataclass(frozen=True)
class Pairs:
    """Scored sentence pairs: gold scores ``(n,)`` float64, and two lists of n sentences."""

    gold: npt.NDArray[np.float64]
    left: list[str]
    right: list[str]


def read_pairs(path: str | Path) -> Pairs:
    """Reads lines of score, sentence1 and sentence2, separated by tabs (in a ``.csv`` file, by commas).

    A first line of column names (see ``cse.data.pairs``) determines the columns; otherwise, the first three are read.
    Blank lines are skipped. Runs of white space in a sentence become one space, as in SentEval, the program that
    produced the published scores.
    """
    path = Path(path)
    if path.name.lower().removesuffix(".gz").removesuffix(".zst").endswith(".csv"):
        lines = csv_records(str(path), (f"{line}\n" for _, line in read_lines(path, blank=True)))
        separator, records = "commas", [(number, fields) for number, fields in lines if any(map(str.strip, fields))]
    else:
        separator, records = "tabs", [(number, line.split("\t")) for number, line in read_lines(path)]
    first, names = records[0] if records else (1, [])
    roles = [ROLE_OF.get(name.strip().lower()) for name in names]
    wanted = ("score" if "score" in roles else "label", "anchor", "positive")
    header = all(roles.count(role) == 1 for role in wanted)
    score_at, *texts_at = map(roles.index, wanted) if header else (0, 1, 2)
    numbers = set(range(len(names)))  # columns in which all values are numbers
    gold: list[float] = []
    texts: list[list[str]] = []
    for number, fields in records[1:] if header else records:
        if len(fields) != len(names):
            raise InputError(
                f"{path}: line {number} has {len(fields)} fields separated by {separator}, but line {first} has "
                f"{len(names)}; a sentence must not contain the separator"
            )
        numbers = {place for place in numbers if is_number(fields[place])}
        score = number_of(fields[score_at]) if len(fields) > 2 else None
        if score is None and (header or gold) and len(fields) > 2:
            given = shown(fields[score_at]) if fields[score_at].strip() else "nothing"
            raise InputError(
                f"{path}: line {number}: the score must be a finite number, got {given}; leave out pairs without one"
            )
        if score is None and not gold:
            sign = next((each for each in ";|" if each in fields[0]), "")
            if path.name.lower().removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".ndjson")):
                raise InputError(
                    f"{path}: is a file of JSON objects; write score, sentence1 and sentence2 to a .csv file"
                )
            if sign and len(fields) == 1:
                raise InputError(
                    f"{path}: its columns are separated by {sign!r}, not by {separator}; save it with {separator}"
                )
        if score is None:
            header_of = "" if gold else "; a header must name the columns score, sentence1 and sentence2"
            raise InputError(
                f"{path}: line {number} is not 'score, sentence1, sentence2' separated by {separator}{header_of}"
            )
        gold.append(score)
        texts.append([" ".join(fields[place].split()) for place in texts_at])
    if len(set(gold)) < 2:
        raise InputError(f"{path}: at least two pairs with different scores are needed for a correlation")
    whole = all(score.is_integer() for score in gold)
    counts = whole and len(gold) >= 10 and all(after > before for before, after in pairwise(gold))
    if not header and (1 in numbers or counts or (whole and len(set(gold)) == len(gold) and len(numbers) > 1)):
        raise InputError(
            f"{path}: the first column seems to hold ids, not scores; add a first line that names the columns score, "
            "sentence1 and sentence2"
        )
    left, right = zip(*texts, strict=True)
    return Pairs(np.array(gold), list(left), list(right))


@dataclass(frozen=True)
class Sample:
    """Results on the individual examples of a task, from which ``cse compare`` computes confidence intervals."""

    task: str
    """Name of the task in the report; some evaluations append the metric, as in ``FILE: mrr``."""
    values: npt.NDArray[np.float64]
    """``(n,)`` score of each example, or its cosine if ``gold`` is given."""
    gold: npt.NDArray[np.float64] | None = None
    """``(n,)`` gold scores, for a task scored by Spearman's correlation. None: the score is the mean of ``values``."""
    sentences: tuple[Sequence[str], Sequence[str]] | None = None
    """The two sentences of each example; examples that share a sentence are resampled together.

    None: the examples are independent.
    """
    unit: str = "examples"
    """What an example is, in the plural, such as ``rows``."""
    measure: str = ""
    """Name of the measure in a verdict; "": the name of the task."""
    classes: npt.NDArray[np.int64] | None = None
    """``(n,)`` the class of each example; the score is then the mean over the classes of their mean values, so that a
    frequent class does not count more than another. None: the mean of all values."""


@dataclass(frozen=True)
class Report:
    """The result of an evaluation."""

    rows: list[dict[str, Any]]
    """One record per task; its first value is the name of the task."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Scores over all tasks."""
    notes: list[str] = field(default_factory=list)
    """Remarks on how to interpret the scores."""
    samples: list[Sample] = field(default_factory=list)
    """Results on individual examples, one ``Sample`` per task; empty if there are none, as in ``geometry``."""
    beside: list[Sample] = field(default_factory=list)
    """Results of what needs no encoder, to compare ``samples`` with."""
    rankings: dict[str, dict[str, float]] = field(default_factory=dict)
    """Scores of the ranked documents by query and document, best first, in ``retrieval``."""


class Evaluation(WithOptions, ABC):
    """Base class for evaluations of an encoder.

    Subclasses define ``work``, ``__call__``, ``summary`` (one line for ``cse methods``) and, if they have options,
    ``Options``: a frozen dataclass filled from ``--set NAME.OPTION=VALUE``. The constructor reads and
    checks the data, so that errors are raised before the model is loaded.

    Args:
        options: An instance of ``Options``.
        data: Value of ``--data``, a file or a folder; None if it was not given. Some evaluations also take their data
            in memory; their constructors say in which form.
    """

    paper_row: ClassVar[tuple[str, str]] = ("", "")
    """The score of a task and the value of the summary that ``cse eval`` also prints in one row, as papers do."""
    ranks: ClassVar[bool] = False
    """Whether the evaluation ranks documents, so that it evaluates the options of a ``System`` (``ranking.py``)."""

    by_labels: ClassVar[bool] = False
    """Whether labels of texts judge: then, texts whose labels taught an encoder do not judge it (``apart.py``)."""

    by_pairs: ClassVar[bool] = False
    """Whether held-out pairs judge: then, texts that were in pairs that taught an encoder do not judge it."""

    by_rows: ClassVar[bool] = True
    """Whether examples can be left out; else, ``only`` returns None without some of them."""

    trains: ClassVar[bool] = False
    """Whether it judges a run by encoders that are trained for it (``cse.training.folds``), and no other encoder."""

    def __init__(self, options: Any, data: Any) -> None:
        self.options, self.data = options, data
        self.source = data
        """Where the data come from, also of an evaluation that ``only`` made."""

    def describe(self) -> str:
        """Returns what the data can show and how they judge, for the header of a run; "" if there is nothing to say."""
        return ""

    def judged(self, encoder: Encodes, by_fold: Callable[[Any], list[list[Sample]]] | None = None) -> Report:
        """Returns the report for the encoder of a run. ``by_fold`` trains encoders for an evaluation that ``trains``
        some, and returns their samples."""
        return self(encoder)

    def known(self, seen: Seen) -> Mask:
        """Returns for each example, ``(n,)``, whether one of its texts was seen; empty if examples cannot be left out.
        ``seen`` returns this for each of several texts."""
        return np.zeros(0, dtype=bool)

    def only(self, kept: Mask) -> Evaluation | None:
        """Returns the evaluation of the examples of a mask as ``known`` returns it; None if they are too few."""
        return self

    @abstractmethod
    def work(self) -> int:
        """Returns the number of units of work: usually one per encoded text, and several per trained classifier."""

    @abstractmethod
    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        """Evaluates an encoder; ``progress`` is called with the units of work done since its last call."""
