"""What is said about the selection of best/: which step it is and why, the check for collapse, changed neighbours."""

from __future__ import annotations

import math

import numpy as np

from ..evaluation.geometry import nearest_others
from ..evaluation.sts import NOT_SCORED
from .selection import FLAT, NEAR_CEILING, REMEDY, Selector, chance_of, is_collapsed


def neighbours(selector: Selector, count: int = 3) -> list[dict[str, str]]:
    """Returns the first ``count`` held-out sentences whose nearest neighbour changed, with both neighbours."""
    if len(selector.vectors) < 2:
        return []
    (old, _), (new, _) = (nearest_others(vectors) for vectors in selector.vectors)
    text = selector.scorer.held_out
    return [
        {"sentence": text[row], "before": text[old[row]], "after": text[new[row]]}
        for row in np.flatnonzero(old != new)[:count]
    ]


def notes(selector: Selector) -> list[str]:
    """Returns sentences about which step was selected, and why."""
    last = selector.records[-1]["step"]
    if selector.teaching and selector.scorer.metric and last and last not in selector.collapsed:
        what = (
            "Spearman's correlation on the development set"
            if selector.scorer.pairs
            else "the MRR of halves of sentences"
        )
        name = f"step {selector.best_step}" if selector.best_step else "the encoder before training"
        if selector.best_step and selector.share:
            name += f", averaged with the base model (weight {selector.share:.0%})"
        change = f"{what} changed by {-selector.lost(selector.records[-1]):+.1f} points up to step {last}"
        return [f"best/ is {name}: {change}; at most {selector.most_lost:g} may be lost."]
    if selector.scorer.pairs:
        notes = []
        missing = [record["step"] for record in selector.records if math.isnan(record["spearman"])]
        if len(missing) == len(selector.records):
            return [f"{NOT_SCORED}, at any step, so none was selected, and best/ is the model before training."]
        if selector.best_step == 0 and last:
            notes.append("No checkpoint scored higher than the model before training, so best/ is that model.")
        several = f"the mean of {len(selector.scorer.pairs)} development sets"
        sets = several if len(selector.scorer.pairs) > 1 else "the development set"
        if missing:
            notes.append(f"{NOT_SCORED} or an embedding is not finite (first at step {missing[0]}).")
        if last in selector.collapsed:
            notes.append(f"The embeddings collapsed (at step {selector.collapsed[0]}); {REMEDY}.")
        half = f"one half of each file, {sum(len(pairs.left) for pairs in selector.scorer.pairs.values()):,} pairs"
        by = f"{sets} ({half if selector.scorer.halved else 'all pairs'})"
        return [*notes, f"best/ is step {selector.best_step} of {last}, chosen by Spearman on {by}."]
    if not selector.scorer.held_out:
        keep = last not in selector.collapsed
        step = "the last step" if keep else f"step {selector.best_step}"
        few = (
            "No sentences were held out, because the corpus is too small or too few of its sentences "
            f"{'without a label ' if selector.teaching else ''}have 8 words or more; best/ is {step}, which was not "
            "scored."
        )
        return [few] if keep else [few, f"The embeddings of step {last} are not finite; {REMEDY}."]
    if last in selector.collapsed:
        return [
            f"The embeddings collapsed (at step {selector.collapsed[0]}): best/ is step {selector.best_step}, "
            f"the last evaluation without collapse; {REMEDY}."
        ]
    return [f"best/ is the last step, {last}."]


def check(selector: Selector) -> str:
    """Returns a sentence about the score without labels, which only tells whether the embeddings collapsed."""
    before, after, number = selector.halves[0], selector.halves[-1], len(selector.scorer.held_out)
    text = (
        f"check for collapse, without labels: the halves of {number:,} held-out sentences find each other with MRR "
        f"{before['mrr']:.4f} before and {after['mrr']:.4f} after (chance {chance_of(number):.4f}, ceiling 1)"
    )
    if after["uniformity"] > FLAT:
        return f"{text}: the embeddings are nearly all equal (uniformity {after['uniformity']:.3f})"
    if selector.records[-1]["step"] in selector.collapsed:
        return f"{text}: collapsed"
    if is_collapsed(after, number):
        return f"{text}: near chance, so this check cannot tell"
    if min(before["mrr"], after["mrr"]) > NEAR_CEILING:
        return f"{text}: not collapsed; near the ceiling, so it cannot tell more"
    return f"{text}: not collapsed"
