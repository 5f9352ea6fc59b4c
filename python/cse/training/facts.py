"""Descriptions of a run, which are shown before training and in the model card."""

from __future__ import annotations

from ..data.corpus import Corpus
from ..data.held_out import Split
from ..losses import CONTRASTIVE_LOSSES
from .batches import Batches
from .train_config import ResolvedConfig

__all__ = ["describe_loss", "facts_of"]


def facts_of(config: ResolvedConfig, corpus: Corpus, split: Split, batches: Batches) -> dict[str, str]:
    """Returns the descriptions that are shown before training (model, loss, corpus and so on), by name."""
    negatives = [f"{name} {each.describe()}" for name, each in zip(config.negatives, batches.negatives, strict=True)]
    options = batches.positive.describe()
    return {
        "model": f"{config.model}, pooler {config.pooler}"
        + (f" in training, {config.eval_pooler} in evaluation" if config.eval_pooler else ""),
        "loss": describe_loss(config),
        "positive": f"{config.positive}{f' ({options})' if options else ''}",
        "negatives": "; ".join(["in the batch", *negatives]),
        "corpus": f"{len(corpus):,} rows: {len(split.train):,} to train on"
        + (f", {len(split.held_out):,} held out" if len(split.held_out) else "")
        + (f", {split.repeats:,} left out because they repeat held-out rows" if split.repeats else "")
        + (f", {split.blank:,} blank" if split.blank else "")
        + (f", {corpus.repaired:,} with invalid UTF-8 replaced" if corpus.repaired else "")
        + (f", {corpus.joined_lines:,} with line breaks replaced by spaces" if corpus.joined_lines else ""),
        "steps": f"{len(batches):,} of {batches.size}{_times(config)} sentences, lr {config.lr:g} {config.lr_scheduler}"
        + (f", averaged with the base model (weight {config.merge_with_base:.0%})" if config.merge_with_base else ""),
    }


def _times(config: ResolvedConfig) -> str:
    return f" x {config.accumulate}" if config.accumulate > 1 else ""


def describe_loss(config: ResolvedConfig) -> str:
    """Returns the parts of the loss as text."""
    if config.loss not in CONTRASTIVE_LOSSES:
        return ", ".join([config.loss, *config.loss_terms])
    loss = config.contrastive
    parts = [f"{loss.objective} with {loss.logits} logits, temperature {loss.temperature:g}"]
    if loss.logits == "focal":
        parts.append(f"margin {loss.margin:g}")
    if loss.mixed:
        parts.append(f"mixed negatives ({loss.mixed}, lambda {loss.mix_lambda:g})")
    return ", ".join([*parts, *config.loss_terms])
