"""Selects the encoder that is saved as ``best/`` by its scores during training.

With development sets, the encoder with the highest Spearman correlation is selected; this may be the encoder before
training. Without labels, the last encoder whose embeddings have not collapsed is selected, because the label-free score
differs too little between steps to choose by it.

The label-free score is the mean reciprocal rank (MRR) with which one half of a held-out sentence retrieves the other;
see ``cse.evaluation.geometry``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..evaluation.base import Pairs
from ..evaluation.geometry import HalvesScore, nearest_others, score_halves, unit
from ..evaluation.significance import direction, paired_bootstrap
from ..evaluation.sts import NOT_SCORED, score_pairs
from ..models.base import NotFinite
from ..models.running.encoder import SentenceEncoder

# The embeddings count as collapsed if the MRR is below this fraction of the highest MRR of earlier evaluations.
COLLAPSED = 0.5
# Maximum number of held-out sentences for which neighbours and the cosine with synthetic negatives are computed.
NEIGHBOURS = 500
# If the uniformity is above this value, nearly all embeddings are equal; see is_collapsed.
FLAT = -0.01
# Vectors of unit length of which no dimension differs by more than this are equal.
EQUAL = 1e-5
REMEDY = "lower --lr or raise --temperature"
# Below this number of held-out sentences, a score close to chance is no sign of a useless model.
FEW = 100
# The MRR is close to chance if it is below both NEAR_CHANCE * c and c + SHARE_OF_THE_WAY * (1 - c), where c is the MRR
# of a random ranking. The second bound is the lower one for fewer than 39 sentences. See is_collapsed.
NEAR_CHANCE, SHARE_OF_THE_WAY = 3.0, 0.25


def is_collapsed(score: HalvesScore) -> bool:
    """Returns whether embeddings are nearly all equal, or retrieve halves hardly better than chance."""
    chance = sum(1 / rank for rank in range(1, score.sentences + 1)) / score.sentences
    close_to_chance = score.mrr < min(NEAR_CHANCE * chance, chance + SHARE_OF_THE_WAY * (1 - chance))
    return score.uniformity > FLAT or close_to_chance


class Selector:
    """Evaluates the encoder during training and selects the best step.

    Args:
        model: The encoder.
        pairs: Development sets by name; if there are none, the label-free score is used.
        held_out: Held-out sentences for the label-free score; may be empty.
        negatives: Synthetic negatives of the held-out sentences; their mean cosine with these sentences is logged as
            ``cos_syn``.
        precision: Precision in which held-out sentences are encoded, that of the run. Development sets are encoded in
            float32, since their scores are compared with those of other programs.
        sample: Different sentences that are trained on, whose embeddings must be finite.
    """

    def __init__(
        self,
        model: SentenceEncoder,
        pairs: Mapping[str, Pairs],
        held_out: list[str],
        negatives: list[str] | None = None,
        precision: str = "fp32",
        sample: Sequence[str] = (),
    ) -> None:
        self.model, self.pairs, self.held_out, self.precision = model, pairs, held_out, precision
        self.sample = sample
        self.negatives = negatives or []
        self.records: list[dict[str, Any]] = []
        self.best_step = 0
        self.misses = 0
        """Number of evaluations since an encoder was last selected."""
        self.best_record: dict[str, Any] = {}
        self.collapsed: list[int] = []
        self.halves: list[HalvesScore] = []
        self.vectors: list[npt.NDArray[np.float64]] = []

    def state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.float64]]]:
        """Returns what ``restore`` needs: values that can be serialised to JSON, and arrays."""
        arrays = {f"vectors.{i}": vector for i, vector in enumerate(self.vectors)}
        for place, score in (("first", self.halves[:1]), ("last", self.halves[-1:])):
            for half in score:
                arrays |= {f"{place}.per_sentence": half.per_sentence, f"{place}.found_first": half.found_first}
        scores = [{k: v for k, v in vars(half).items() if not isinstance(v, np.ndarray)} for half in self.halves]
        values = {
            "records": self.records,
            "best_step": self.best_step,
            "collapsed": self.collapsed,
            "halves": scores,
            "misses": self.misses,
        }
        return values, arrays

    def restore(self, values: dict[str, Any], arrays: dict[str, npt.NDArray[np.float64]]) -> None:
        """Restores what ``state`` returned.

        Scores per sentence are stored only for the first and the last evaluation; other evaluations get those of the
        last.
        """
        self.records, self.best_step = values["records"], values["best_step"]
        self.best_record = next((record for record in self.records if record["step"] == self.best_step), {})
        self.collapsed, self.misses = values["collapsed"], values["misses"]
        self.vectors = [arrays[f"vectors.{i}"] for i in range(len([k for k in arrays if k.startswith("vectors.")]))]
        self.halves = []
        for number, score in enumerate(values["halves"]):
            place = "first" if number == 0 else "last"
            per_sentence, found_first = arrays[f"{place}.per_sentence"], arrays[f"{place}.found_first"]
            self.halves.append(HalvesScore(**score, per_sentence=per_sentence, found_first=found_first))

    @property
    def metric(self) -> str | None:
        """Metric by which encoders are evaluated: ``spearman``, ``mrr``, or None without evaluation data."""
        return "spearman" if self.pairs else "mrr" if self.held_out else None

    def score(self, step: int) -> tuple[dict[str, Any], bool]:
        """Evaluates the encoder; returns its scores by name, and whether it is selected as best/.

        Without development sets, the encoder is selected unless its embeddings have collapsed: the MRR is below
        ``COLLAPSED`` times the highest MRR of earlier evaluations, or ``is_collapsed`` is True and was False in an
        earlier evaluation. An encoder whose embeddings are not finite is never selected; its scores are NaN.

        Raises:
            InputError: In the first evaluation, if embeddings are not finite, or those of the sample are all equal.
        """
        try:
            record, keep = self._scored(step)
        except NotFinite:
            if not self.records:
                raise
            record, keep = {name: math.nan for name in self.records[0] if name != "step"}, False
            self.collapsed.append(step)
        self.records.append({"step": step, **record})
        self.misses = 0 if keep else self.misses + 1
        if keep:
            self.best_step, self.best_record = step, self.records[-1]
        return record, keep

    def fault(self, texts: Sequence[str]) -> str:
        """Returns the error of the first text whose embedding is not finite; "" if there is none."""
        try:
            self.encode(texts)
        except NotFinite as error:
            return str(error)
        return ""

    def _scored(self, step: int) -> tuple[dict[str, Any], bool]:
        record: dict[str, Any] = {}
        keep = True
        sample = self.encode(self.sample)
        if not self.records and len(sample) > 1 and np.ptp(unit(sample), axis=0).max() < EQUAL:
            raise InputError(
                f"--model {self.model.source.name}: gives {len(sample)} different sentences the same vector, so that "
                "it cannot be trained; use another model or --pooler"
            )
        if self.pairs:
            record = self._score_pairs()
            best = self.best_record.get("spearman", -math.inf)
            keep = not self.records or record["spearman"] > best or math.isnan(best)
            if record["uniformity"] > FLAT and self.records and self.records[0]["uniformity"] <= FLAT:
                self.collapsed.append(step)
        elif self.held_out:
            score = score_halves(self, self.held_out)
            record = score.to_dict()
            vectors = unit(self.encode(self.held_out[:NEIGHBOURS]))
            if self.negatives:
                record["cos_syn"] = float((vectors * unit(self.encode(self.negatives[:NEIGHBOURS]))).sum(1).mean())
            peak = max((earlier.mrr for earlier in self.halves), default=0.0)
            keep = score.mrr >= COLLAPSED * peak
            if is_collapsed(score) and not all(is_collapsed(earlier) for earlier in self.halves):
                keep = False
            self.halves.append(score)
            if not keep:
                self.collapsed.append(step)
            if keep or not self.vectors:
                # ``neighbours`` needs the vectors of the first evaluation and of the selected encoder.
                self.vectors = [*self.vectors[:1], vectors]
        return record, keep

    def encode(self, texts: Sequence[str], **settings: Any) -> npt.NDArray[np.float32]:
        """Returns the embeddings of texts in the precision of the run, ``(n, D)``."""
        return self.model.encode(texts, precision=self.precision, **settings)

    def _score_pairs(self) -> dict[str, float]:
        """Returns the mean scores over the development sets and, if there are several, the correlation on each."""
        scores = {name: score_pairs(self.model, pairs).to_dict() for name, pairs in self.pairs.items()}
        record = {key: float(np.mean([score[key] for score in scores.values()])) for key in next(iter(scores.values()))}
        if len(scores) > 1:
            record.update({f"spearman/{name}": score["spearman"] for name, score in scores.items()})
        return record

    def _change(self) -> list[str]:
        """Returns sentences that describe the change of the label-free scores over the run, with intervals."""
        before, after = self.halves[0], self.halves[-1]
        first, low, high = (100 * x for x in paired_bootstrap(after.found_first - before.found_first))
        mrr, mrr_low, mrr_high = paired_bootstrap(after.per_sentence - before.per_sentence)
        change = {1: "rose", -1: "fell", 0: "showed no clear change"}[direction(mrr_low, mrr_high)]
        return [
            f"Each of {before.sentences:,} held-out sentences was cut in two. A search with one half ranks the "
            f"other half first in {before.found_first.mean():.1%} of the cases before training and in "
            f"{after.found_first.mean():.1%} after "
            f"(difference {first:+.1f} points, 95 % interval [{low:+.1f}, {high:+.1f}]).",
            f"The mean reciprocal rank {change}: {mrr:+.4f}, 95 % interval [{mrr_low:+.4f}, {mrr_high:+.4f}].",
        ]

    def neighbours(self, count: int = 3) -> list[dict[str, str]]:
        """Returns the first ``count`` held-out sentences whose nearest neighbour changed, with both neighbours.

        The neighbours are those before training and those with the selected encoder.
        """
        if len(self.vectors) < 2:
            return []
        (old, _), (new, _) = (nearest_others(vectors) for vectors in self.vectors)
        text = self.held_out
        return [
            {"sentence": text[row], "before": text[old[row]], "after": text[new[row]]}
            for row in np.flatnonzero(old != new)[:count]
        ]

    def verdict(self) -> list[str]:
        """Returns remarks for the user on the interpretation of the scores."""
        notes = []
        last = self.records[-1]["step"]
        if self.pairs:
            if self.best_step == 0 and last:
                notes.append("No checkpoint scored higher than the model before training, so best/ is that model.")
            several = f"the mean of {len(self.pairs)} development sets"
            sets = several if len(self.pairs) > 1 else "the development set"
            missing = [record["step"] for record in self.records if math.isnan(record["spearman"])]
            if missing:
                notes.append(f"{NOT_SCORED} or an embedding is not finite (first at step {missing[0]}).")
            if last in self.collapsed:
                notes.append(f"The embeddings collapsed (at step {self.collapsed[0]}); {REMEDY}.")
            notes.append(f"best/ is step {self.best_step} of {last}, chosen by Spearman on {sets}.")
        elif self.held_out:
            if last and math.isfinite(self.records[-1]["mrr"]):
                notes += self._change()
            if last in self.collapsed:
                notes.append(
                    f"The embeddings collapsed (at step {self.collapsed[0]}): best/ is step {self.best_step}, "
                    f"the last evaluation without collapse; {REMEDY}."
                )
            elif is_collapsed(self.halves[-1]):
                score = self.halves[-1]
                flat = score.uniformity > FLAT
                what = f"are nearly all equal (uniformity {score.uniformity:.3f})"
                if not flat:
                    what = "find the other half of a sentence hardly better than chance "
                    what += f"(MRR {score.mrr:.4f}, {score.sentences} held-out sentences)"
                remedy = "train longer, or choose another --pooler or --model"
                if not flat and score.sentences < FEW:
                    remedy = "so few sentences say little: judge search results instead (cse label), or give --dev"
                notes.append(f"The embeddings of step {last} {what}, as before training; {remedy}.")
            else:
                notes.append(
                    f"best/ is the last step, {last}: the embeddings have not collapsed. MRR only "
                    "detects collapse; to measure similarity, give --dev a file of scored pairs."
                )
        else:
            keep = last not in self.collapsed
            notes.append(
                "No sentences were held out, because the corpus is too small or too few of its sentences have 8 words "
                f"or more; best/ is {'the last step' if keep else f'step {self.best_step}'}, which was not scored."
            )
            if not keep:
                notes.append(f"The embeddings of step {last} are not finite; {REMEDY}.")
        return notes
