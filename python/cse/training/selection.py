"""Which evaluated checkpoint becomes best/.

With a development set it is the one with the highest Spearman correlation, the untrained model included. Without labels
it is the last one whose embeddings have not collapsed: differences in the label-free score are too small to select by.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..evaluation.geometry import unit
from ..evaluation.split_half import HalvesScore, score_halves
from ..evaluation.sts import Pairs, score_pairs
from ..models.encoder import SentenceEncoder

__all__ = ["COLLAPSED", "Selector"]

# An MRR below this share of the best one so far means that the embeddings have collapsed.
COLLAPSED = 0.5


# Uniformity above this, or an MRR below this multiple of chance: the embeddings carry nearly no information.
FLAT = -0.01
NEAR_CHANCE = 3.0


def is_collapsed(score: HalvesScore) -> bool:
    """Whether nearly all embeddings are equal, or halves find each other hardly better than by chance."""
    chance = sum(1 / rank for rank in range(1, score.sentences + 1)) / score.sentences
    return not math.isfinite(score.uniformity) or score.uniformity > FLAT or score.mrr < NEAR_CHANCE * chance


class Selector:
    """Evaluates the encoder during training and keeps track of the best step."""

    def __init__(
        self, model: SentenceEncoder, pairs: Pairs | None, held_out: list[str], negatives: list[str] | None = None
    ) -> None:
        self.model, self.pairs, self.held_out = model, pairs, held_out
        # Synthetic negatives of the held-out sentences, if the run makes any.
        self.negatives = negatives or []
        self.records: list[dict[str, Any]] = []
        self.best_step = 0
        self.best_record: dict[str, Any] = {}
        self.collapsed: list[int] = []
        self.halves: list[HalvesScore] = []

    @property
    def metric(self) -> str | None:
        """``spearman``, ``mrr``, or None if there is nothing to evaluate on."""
        return "spearman" if self.pairs else "mrr" if self.held_out else None

    def score(self, step: int) -> tuple[dict[str, Any], bool]:
        """The scores of this step, and whether it becomes best/."""
        record: dict[str, Any] = {}
        keep = True
        if self.pairs:
            record = score_pairs(self.model, self.pairs).to_dict()
            best = self.best_record.get("spearman", -math.inf)
            keep = not self.records or record["spearman"] > best or math.isnan(best)
        elif self.held_out:
            score = score_halves(self.model, self.held_out)
            record = score.to_dict()
            if self.negatives:
                own, other = unit(self.model.encode(self.held_out)), unit(self.model.encode(self.negatives))
                record["cos_syn"] = float((own * other).sum(1).mean())
            peak = max((earlier.mrr for earlier in self.halves), default=0.0)
            keep = score.mrr >= COLLAPSED * peak and math.isfinite(score.uniformity)
            if is_collapsed(score) and not all(is_collapsed(earlier) for earlier in self.halves):
                keep = False
            self.halves.append(score)
            if not keep:
                self.collapsed.append(step)
        self.records.append({"step": step, **record})
        if keep:
            self.best_step, self.best_record = step, self.records[-1]
        return record, keep

    def verdict(self) -> list[str]:
        """What the scores mean, in sentences for the user."""
        notes = []
        last = self.records[-1]["step"]
        if self.pairs:
            if self.best_step == 0 and last:
                notes.append("No evaluation beat the model before training: best/ holds that one.")
            notes.append(f"best/ is step {self.best_step} of {last}, chosen by Spearman on the development set.")
        elif self.held_out:
            change = self.halves[-1].per_sentence - self.halves[0].per_sentence
            error = change.std(ddof=1) / np.sqrt(len(change))
            size = f"{change.mean():+.4f} +- {error:.4f} (standard error of the paired difference)"
            if last and abs(change.mean()) > 2 * error:
                notes.append(f"MRR changed by {size}.")
            elif last:
                notes.append(f"MRR did not change beyond its error: {size}.")
            if last in self.collapsed:
                notes.append(
                    f"The embeddings collapsed (at step {self.collapsed[0]}): best/ is step {self.best_step}, "
                    "the last before that; lower --lr or raise --temperature."
                )
            elif is_collapsed(self.halves[-1]):
                notes.append(
                    f"The embeddings of step {last} are nearly all equal (uniformity {self.halves[-1].uniformity:.3f}, "
                    f"MRR {self.halves[-1].mrr:.4f}), as they were before training: they cannot tell sentences apart; "
                    "train longer, or choose another --pooler or --model."
                )
            else:
                notes.append(
                    f"best/ is the last step, {last}: the embeddings have not collapsed. MRR guards against that, and "
                    "is no measure of similarity: for one, give --dev a file of scored pairs."
                )
        else:
            notes.append("Too few sentences of 8 words or more to hold any out: best/ is the last step, unscored.")
        return notes
