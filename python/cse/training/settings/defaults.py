"""The defaults of settings that neither the user nor a preset gave: one function, to be read from top to bottom.

Later lines override earlier ones. What a method needs to work as in its paper, it says itself (``implies``: an
objective, a pooler, positives), and that overrides these defaults; options of methods that are not named here have the
defaults of their dataclasses. This module imports neither NumPy nor torch, so that the command line starts quickly.
"""

from __future__ import annotations

from typing import Any

from ...augment import PAIRS_POSITIVE
from ...losses import CONTRASTIVE_LOSSES, TEACHER

COMMON: dict[str, Any] = {
    "temperature": 0.05,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "max_length": 32,
    "eval_every": 125,
    "pooler": "cls",
    "positive": "dropout",
    "objective": "infonce",
    "merge_with_base": 0.0,
    "keep_head": False,
    "keep_duplicates": False,
}
"""Defaults of all families."""

# The values of BERT and RoBERTa are from SimCSE, table A.1.
FAMILIES: dict[str, dict[str, Any]] = {
    "bert-base": {"batch_size": 64, "lr": 3e-5, "lr_scheduler": "linear"},
    "bert-large": {"batch_size": 64, "lr": 1e-5, "lr_scheduler": "linear"},
    "roberta-base": {"batch_size": 512, "lr": 1e-5, "lr_scheduler": "linear"},
    "roberta-large": {"batch_size": 512, "lr": 3e-5, "lr_scheduler": "linear"},
    # Models that were trained contrastively before, such as all-MiniLM-L6-v2. With dropout positives, the loss of such
    # a model is near 0 from the first step, and its weights drift; with short spans as positives, it can still learn.
    # The run ends after 60 steps, a minute or two on a processor. docs/domain.md has what the recipe gains for search.
    "encoder": {
        "batch_size": 64,
        "max_steps": 60,
        "lr": 1e-5,
        "lr_scheduler": "constant",
        "weight_decay": 0.01,
        "pooler": "avg",
        "positive": "spans",
        "temperature": 0.1,
        # With the standard and the mixed loss, the average of trained and base weights improves STS more than the
        # trained weights alone.
        "merge_with_base": 0.5,
        # Spans of 30 to 70 % of the words of a single sentence, or of at most 24 words of a longer row.
        "spans": {"min_share": 0.3, "max_share": 0.7, "max_span_words": 24},
        "una": {"every": 1, "use_as": "hard-negatives"},
    },
}
"""Defaults of model families; a table holds options of a method."""

FOCAL: dict[str, dict[str, Any]] = {
    "bert-base": {"temperature": 0.07},
    "bert-large": {"temperature": 0.07},
    "encoder": {"temperature": 0.05, "merge_with_base": 0.0},
}
"""Defaults of the focal loss, by family."""

# Whole rows, whose two views have the same dropout mask and are therefore encoded once. docs/training.md has what this
# gains.
ONLY_TEACHER: dict[str, Any] = {
    "positive": "dropout",
    "dropout": {"mask": "shared"},
    "batch_size": 128,
    "max_length": 64,
    "max_steps": 150,
    "lr": 5e-5,
    "lr_scheduler": "linear",
    "warmup": 0.06,
    "weight_decay": 0.0,
    "merge_with_base": 0.0,
}
"""Defaults of sentence encoders that learn the vectors of a teacher alone; to other models, a teacher adds a term."""

# A temperature and a schedule that suit texts that are not close before training; the loss is the standard one.
LEARN: dict[str, Any] = {
    "temperature": 0.05,
    "merge_with_base": 0.0,
    "lr": 3e-5,
    "lr_scheduler": "linear",
    "max_steps": 80,
}
"""Defaults with ``--learn``."""


def defaults(
    family: str,
    loss: str | None = None,
    *,
    pairs: bool = False,
    learn: bool = False,
    teacher: bool = False,
    published: bool = False,
    pooler: str | None = None,
) -> dict[str, Any]:
    """Returns the defaults of a run that differ from ``COMMON``, by name, with tables of options of methods.

    Args:
        family: Family of the model, a key of ``FAMILIES``.
        loss: The loss that was chosen; None: none was, and the result has one.
        pairs: Whether the run has labelled pairs.
        learn: Whether labels teach.
        teacher: Whether a teacher was named.
        published: Whether the run has the preset of a paper, whose values these defaults complete.
        pooler: The pooling that the folder of the model declares; None: none.
    """
    values = dict(FAMILIES[family])
    # Whether a sentence encoder learns from single texts, by the recipe of docs/training.md.
    recipe = family == "encoder" and not (pairs or published)
    if loss is None:
        loss = "standard" if learn or not recipe else TEACHER if teacher else "focal"
    if recipe and loss in CONTRASTIVE_LOSSES:
        # The similarities of the base are kept; without this term, training on whole documents improved retrieval in
        # one collection and worsened it in another.
        values["loss_terms"] = ["keep-similarities"]
    if loss == "focal":
        values |= FOCAL.get(family, {})
    if loss == TEACHER and family == "encoder":
        values |= ONLY_TEACHER
    values["loss"] = loss
    if pooler is not None:
        values["pooler"] = pooler
    if learn:
        values |= LEARN
    if pairs:  # the MLP head is kept at test time, as by supervised SimCSE (appendix B)
        values |= {"positive": PAIRS_POSITIVE, "keep_head": True, "merge_with_base": 0.0}
    return values


SITUATIONS: dict[str, dict[str, Any]] = {
    "with --loss standard": {"loss": "standard"},
    "with --loss focal": {"loss": "focal"},
    "with --pairs": {"pairs": True},
    "with --teacher": {"teacher": True},
    "with --learn": {"learn": True},
}
"""What the defaults of a family depend on, in words, for the documentation of the settings."""


def described(name: str, default: Any) -> list[tuple[str, Any]]:
    """Returns the defaults of a setting and where they apply, for the documentation; the first one applies elsewhere.

    ``name`` may be an option of a method, such as ``spans.min_share``; ``default`` is that of its dataclass.
    """

    def value(values: dict[str, Any]) -> Any:
        method, _, option = name.rpartition(".")
        found = values.get(method, {}).get(option) if method else values.get(name)
        return default if found is None else found

    def all_of(**situation: Any) -> dict[str, Any]:
        return {family: value({**COMMON, **defaults(family, **situation)}) for family in FAMILIES}

    usual = all_of()
    known = [*usual.values()]
    first = value(COMMON) if value(COMMON) is not None else max(known, key=known.count)
    found = [("", first), *((family, each) for family, each in usual.items() if each != first)]
    for words, situation in SITUATIONS.items():
        changed = all_of(**situation) if name not in situation else {}
        new = {family: each for family, each in changed.items() if each != usual[family]}
        if new and len({str(each) for each in changed.values()}) == 1:
            found.append((words, changed.popitem()[1]))
        else:
            found += [(f"{family} {words}", each) for family, each in new.items()]
    return found
