"""Compares the model before training and the model in ``best/`` on held-out texts: scores, cosines, neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..data.words import cut_in_two
from ..encoder.checking import is_static
from ..errors import InputError
from ..evaluation.base import Pairs, counted
from ..evaluation.geometry import nearest_others, score_halves
from ..evaluation.sts import CLEAN, pair_cosines, read_dev, score_pairs
from .runs import StoredRun

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder

# Maximum number of sentences in the map plot, and of sentences compared to find nearest neighbours.
SHOWN = 500

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HeldOut:
    """The texts on which the models before and after training are compared."""

    sets: dict[str, Pairs]
    """Development sets by path; empty if sentences of the corpus were held out instead."""
    sentences: list[str]
    """Held-out sentences, or the distinct sentences of the development sets."""
    synthetic: list[str]
    """One synthetic negative per sentence; empty if the run has none, or has development sets."""

    @property
    def texts(self) -> list[str]:
        texts: list[str] = []
        for pairs in self.sets.values():
            texts += [*pairs.left, *pairs.right]
        if not self.sets:
            texts += [half for sentence in self.sentences for half in cut_in_two(sentence)]
        return list(dict.fromkeys([*texts, *self.sentences[:SHOWN], *self.synthetic[:SHOWN]]))


@dataclass(frozen=True)
class Change:
    """A score before and after training, on texts that also selected best/ or that have no labels."""

    name: str
    before: float
    after: float
    better: int = 1
    """1 if higher is better, -1 if lower is better."""

    @property
    def difference(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class Neighbours:
    """A sentence and its nearest neighbours before and after training, with their cosines."""

    sentence: str
    before: str
    before_cosine: float
    after: str
    after_cosine: float


@dataclass(frozen=True)
class Compared:
    """The models before and after training, compared on held-out texts."""

    held_out: HeldOut
    base: str
    """The model before training, as given by the user."""
    before: Mapping[str, npt.NDArray[np.float32]]
    """Embeddings ``(D,)`` by text."""
    after: Mapping[str, npt.NDArray[np.float32]]
    changes: list[Change] = field(default_factory=list)

    def sides(self, texts: Sequence[str]) -> tuple[Vectors, Vectors]:
        return np.stack([self.before[text] for text in texts]), np.stack([self.after[text] for text in texts])

    def cosines(self) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
        """Returns the cosines of the pairs in each group, before and after training, by the name of the group.

        For development sets, there is one group for each third of the range of gold scores. For held-out sentences, the
        groups are: the two halves of each sentence; halves of different sentences (the first half of each sentence and
        the second half of the next); and each sentence and its synthetic negative, if the run has synthetic negatives.
        """
        held = self.held_out
        groups: dict[str, tuple[list[str], list[str]]] = {}
        if held.sets:
            for pairs in held.sets.values():
                low, high = pairs.gold.min(), pairs.gold.max()
                third = np.minimum((pairs.gold - low) / (high - low) * 3, 2).astype(int)
                for number, name in ((2, "similar pairs"), (1, "intermediate pairs"), (0, "dissimilar pairs")):
                    left, right = groups.setdefault(f"{name} (gold score in the {_THIRDS[number]} third)", ([], []))
                    left += [text for text, part in zip(pairs.left, third, strict=True) if part == number]
                    right += [text for text, part in zip(pairs.right, third, strict=True) if part == number]
        else:
            halves = [cut_in_two(sentence) for sentence in held.sentences]
            first, second = [list(side) for side in zip(*halves, strict=True)]
            groups["halves of the same sentence"] = (first, second)
            if held.synthetic:
                both = list(zip(held.sentences[:SHOWN], held.synthetic[:SHOWN], strict=True))
                # A sentence without words is left as it is, so it has no synthetic negative to compare.
                changed = [pair for pair in both if pair[0] != pair[1]]
                groups["sentence and its synthetic negative"] = (
                    [old for old, _ in changed],
                    [new for _, new in changed],
                )
            groups["halves of different sentences"] = (first, second[1:] + second[:1])
        cosines = {}
        for name, (left, right) in groups.items():
            if left:
                (one, two), (other, another) = self.sides(left), self.sides(right)
                cosines[name] = (pair_cosines(one, other), pair_cosines(two, another))
        return cosines


_THIRDS = ("lowest", "middle", "highest")


def held_out(run: StoredRun) -> HeldOut:
    """Returns the held-out texts of a run: its development sets, or the sentences that it stored.

    Raises ``InputError`` if there are none.
    """
    if files := run.config.get("dev", ()):
        for name in files:
            if name != CLEAN and not Path(name).is_file():
                raise InputError(f"--dev {name}: the development set of the run is no longer there; restore it")
        sets = read_dev(files, run.config.get("data"))
        sentences = list(dict.fromkeys(text for pairs in sets.values() for text in (*pairs.left, *pairs.right)))
        return HeldOut(sets, sentences, [])
    if run.texts is None:
        raise InputError(
            f"{run.folder}: has no data.json with held-out sentences, because an older version of cse made the run; "
            "train again"
        )
    sentences = run.texts["held_out"]
    if len(sentences) < 2:
        raise InputError(
            f"{run.folder}: no sentences were held out; train on at least 40 rows, with at least two different texts "
            "of 8 words or more"
        )
    return HeldOut({}, sentences, run.texts["synthetic"])


def compare_models(
    run: StoredRun, *, device: str = "auto", progress: Callable[[int, int], None] | None = None
) -> Compared:
    """Encodes the held-out texts with the model before training and the model in ``best/``, in float32; scores both.

    ``progress`` is called with the number of texts encoded, and the number to encode with both models together. Raises
    ``InputError`` if held-out texts or a model are missing, or if the model before training was not stored.
    """
    from ..encoder.encoder import Encoder

    texts = held_out(run)
    config = run.config
    if config.get("encoder_methods"):
        name = config["encoder_methods"][0]
        raise InputError(f"--encoder-method {name} changes the model before step 1, which is not stored")
    pooler = config.get("eval_pooler") or config["pooler"]
    if pooler == "cls" and not config.get("keep_head"):
        pooler = "cls_before_pooler"  # the head is used in training only
    if is_static(run.folder / "best"):
        pooler = None  # a static encoder has none to choose
    best = run.folder / "best"
    if not (best / "config.json").is_file():
        raise InputError(f"{best}: no encoder there; resume the run, or begin it again")
    distinct = texts.texts
    advance = counted(2 * len(distinct), progress)

    def encoded(encoder: Encoder) -> dict[str, npt.NDArray[np.float32]]:
        return dict(zip(distinct, encoder.encode(distinct, progress=advance), strict=True))

    before = encoded(Encoder(config["model"], pooler=pooler, device=device))
    after = encoded(Encoder(best, device=device))
    return Compared(texts, config["model"], before, after, _changes(texts, _Known(before), _Known(after)))


class _Known:
    """An encoder that looks up embeddings by text; it is passed to functions that score encoders."""

    def __init__(self, vectors: Mapping[str, npt.NDArray[np.float32]]) -> None:
        self.vectors = vectors

    def encode(self, texts: Sequence[str], **_: Any) -> Vectors:
        return np.stack([self.vectors[text] for text in texts])


def _changes(held: HeldOut, before: _Known, after: _Known) -> list[Change]:
    if not held.sets:
        return _halves_changes(held.sentences, before, after)
    return [item for name, pairs in held.sets.items() for item in _pairs_changes(Path(name).name, pairs, before, after)]


def _halves_changes(sentences: list[str], before: _Known, after: _Known) -> list[Change]:
    old, new = score_halves(before, sentences), score_halves(after, sentences)
    first = [100 * float(side.found_first.mean()) for side in (old, new)]
    return [
        Change("Mean reciprocal rank of the other half", old.mrr, new.mrr),
        Change("Other half found first, %", first[0], first[1]),
        Change("Alignment of the halves", old.alignment, new.alignment, better=-1),
        Change("Uniformity of the halves", old.uniformity, new.uniformity, better=-1),
    ]


def _pairs_changes(name: str, pairs: Pairs, before: _Known, after: _Known) -> list[Change]:
    old, new = score_pairs(before, pairs), score_pairs(after, pairs)
    return [
        Change(f"Spearman's correlation x 100 on {name} (all pairs)", old.spearman, new.spearman),
        Change(f"Alignment on {name}", old.alignment, new.alignment, better=-1),
        Change(f"Uniformity on {name}", old.uniformity, new.uniformity, better=-1),
    ]


def neighbours(compared: Compared, count: int = 8) -> tuple[list[Neighbours], int, int]:
    """Returns held-out sentences whose nearest neighbour changed, the number of all of these, and that of all compared.

    At most ``count`` are returned: the first that qualify, so that they are not cherry-picked.
    """
    texts = compared.held_out.sentences[:SHOWN]
    (old, old_cosine), (new, new_cosine) = map(nearest_others, compared.sides(texts))
    changed = np.flatnonzero(old != new)
    listed = [
        Neighbours(texts[row], texts[old[row]], float(old_cosine[row]), texts[new[row]], float(new_cosine[row]))
        for row in changed[:count]
    ]
    return listed, len(changed), len(texts)
