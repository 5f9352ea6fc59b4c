"""Encodes held-out texts with the model before training and the model in ``best/``: cosines and nearest neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.words import cut_in_two
from ..encoder.layout import is_adapter, is_static, transformer_folder
from ..encoder.resolve import MINILM
from ..errors import InputError
from ..evaluation.base import Pairs, counted
from ..evaluation.geometry import nearest_others
from ..evaluation.sts import pair_cosines
from .runs import StoredRun

# The groups of pairs of a development set by the third of the range of gold scores.
THIRDS = {
    2: "similar pairs (gold score in the highest third)",
    1: "intermediate pairs (gold score in the middle third)",
    0: "dissimilar pairs (gold score in the lowest third)",
}
# Maximum number of sentences that are compared with their synthetic negatives, and to find nearest neighbours.
SHOWN = 500

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HeldOut:
    """The texts on which the models are compared: development sets by path and their sentences, or held-out sentences
    and, if the run has them, their synthetic negatives."""

    sets: dict[str, Pairs]
    sentences: list[str]
    synthetic: list[str]

    @property
    def texts(self) -> list[str]:
        texts: list[str] = []
        for pairs in self.sets.values():
            texts += [*pairs.left, *pairs.right]
        if not self.sets:
            texts += [half for sentence in self.sentences for half in cut_in_two(sentence)]
        return list(dict.fromkeys([*texts, *self.sentences[:SHOWN], *self.synthetic[:SHOWN]]))


@dataclass(frozen=True)
class Compared:
    """The embeddings ``(D,)`` of held-out texts before and after training, by text."""

    held_out: HeldOut
    before: Mapping[str, Vectors]
    after: Mapping[str, Vectors]

    def sides(self, texts: Sequence[str]) -> tuple[Vectors, Vectors]:
        return np.stack([self.before[text] for text in texts]), np.stack([self.after[text] for text in texts])

    def cosines(self) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
        """Returns the cosines of the pairs in each group, before and after training, by the name of the group.
        Development sets have one group for each third of the range of gold scores."""
        held = self.held_out
        groups: dict[str, list[tuple[str, str]]] = {}
        for pairs in held.sets.values():
            low, high = pairs.gold.min(), pairs.gold.max()
            third = np.minimum((pairs.gold - low) / (high - low) * 3, 2).astype(int)
            for number, name in THIRDS.items():
                group = groups.setdefault(name, [])
                rows = zip(pairs.left, pairs.right, third, strict=True)
                group += [(left, right) for left, right, part in rows if part == number]
        if not held.sets:
            halves = [cut_in_two(sentence) for sentence in held.sentences]
            groups["halves of the same sentence"] = halves
            # A sentence without words is left as it is, so it has no synthetic negative to compare.
            negatives = zip(held.sentences, held.synthetic[:SHOWN], strict=False)
            groups["sentence and its synthetic negative"] = [pair for pair in negatives if pair[0] != pair[1]]
            others = [second for _, second in [*halves[1:], *halves[:1]]]
            groups["halves of different sentences"] = list(zip([first for first, _ in halves], others, strict=True))
        cosines = {}
        for name, group in groups.items():
            if group:
                (one, two), (other, another) = (self.sides(side) for side in zip(*group, strict=True))
                cosines[name] = (pair_cosines(one, other), pair_cosines(two, another))
        return cosines

    def neighbours(self, count: int = 8) -> tuple[list[dict[str, Any]], int, int]:
        """Returns the first ``count`` sentences whose nearest neighbour changed, the number of all, and of compared."""
        texts = self.held_out.sentences[:SHOWN]
        (old, old_cosine), (new, new_cosine) = map(nearest_others, self.sides(texts))
        changed = np.flatnonzero(old != new)
        rows = [
            {
                "sentence": texts[row],
                "before": texts[old[row]],
                "after": texts[new[row]],
                "cosines": (float(old_cosine[row]), float(new_cosine[row])),
            }
            for row in changed[:count]
        ]
        return rows, len(changed), len(texts)


def held_out(run: StoredRun) -> HeldOut:
    """Returns the held-out texts that a run stored: its development sets, or sentences."""
    texts = run.stored_texts()
    if "dev" in texts:
        sets = {}
        for name, rows in texts["dev"].items():
            pairs = sets[name] = Pairs(np.array(rows["gold"], float), rows["left"], rows["right"])
            if len(pairs.left) != len(pairs.gold) or len(pairs.right) != len(pairs.gold) or len(set(rows["gold"])) < 2:
                raise InputError(
                    f"{run.folder / 'data.json'}: dev: {name} does not hold pairs with gold scores that differ"
                )
        sentences = list(dict.fromkeys(text for pairs in sets.values() for text in (*pairs.left, *pairs.right)))
        return HeldOut(sets, sentences, [])
    sentences = texts["held_out"]
    if len(sentences) < 2:
        raise InputError(
            f"{run.folder}: no sentences were held out; train on at least 40 rows, with at least two different texts "
            "of 8 words or more"
        )
    return HeldOut({}, sentences, texts["synthetic"])


def compare_models(
    run: StoredRun,
    before: str | None = None,
    *,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Compared:
    """Encodes the held-out texts with the model before training and the model in ``best/``, in float32.

    ``before`` is the model before training. Default: ``minilm``, if the run began with it; any other model that the
    configuration names is not opened, because the folder of a run may come from anybody.
    """
    from ..encoder.encoder import Encoder

    texts = held_out(run)
    config = run.config
    if before is None and config["model"] != MINILM:
        raise InputError(
            "the model before training is opened only if you name it; if you trust the configuration of the run: "
            f"--before {quote(config['model'])}"
        )
    if config.get("encoder_methods"):
        name = config["encoder_methods"][0]
        raise InputError(f"--encoder-method {name} changes the model before step 1, which is not stored")
    pooler = config.get("eval_pooler") or config["pooler"]
    if pooler == "cls" and not config.get("keep_head"):
        pooler = "cls_before_pooler"  # the head is used in training only
    best = run.folder / "best"
    if not (best / "config.json").is_file() or is_adapter(transformer_folder(best)):  # before a model is loaded
        raise InputError(f"{best}: no encoder there; resume the run, or begin it again")
    if is_static(best):
        pooler = None  # a static encoder has none to choose
    distinct = texts.texts
    advance = counted(2 * len(distinct), progress)
    models = ((before or MINILM, pooler), (best, None))
    sides = (Encoder(name, pooler=by, device=device).encode(distinct, progress=advance) for name, by in models)
    return Compared(texts, *(dict(zip(distinct, side, strict=True)) for side in sides))
