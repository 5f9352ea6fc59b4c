"""The candidates of benches/domain/domain.py, in the order in which they are run; each lists its changes to
``COMMON``."""

from __future__ import annotations

from typing import Any

UNA: dict[str, Any] = {"negatives": ["una"], "una": {"every": 1, "use_as": "hard-negatives", "beta": 0.5}}
PLAIN: dict[str, Any] = {"negatives": []}
KEEP: dict[str, Any] = {"loss_terms": ["keep"], "keep": {"weight": 1.0, "temperature": 0.05, "views": "both"}}

# ``rows`` is the form of the rows to train on (see ``domain_scores.Collection.rows``); the other keys are fields of
# ``TrainConfig``.
COMMON: dict[str, Any] = {
    "rows": "documents",
    "max_length": 64,
    "max_steps": 60,
    "batch_size": 64,
    "lr": 1e-5,
    "loss": "focal",
    "temperature": 0.05,
    "positive": "spans",
    "spans": {"shortest": 0.3, "longest": 0.7},
    "merge_with_base": 0.0,
    **UNA,
}


def keep(**options: Any) -> dict[str, Any]:
    """Returns settings with the loss term ``keep``; ``options`` override the values in ``KEEP``."""
    return {"loss_terms": ["keep"], "keep": {**KEEP["keep"], **options}}


def search(**options: Any) -> dict[str, Any]:
    """Returns settings with ``positive = "search"``, which makes anchors that look like search queries."""
    return {"positive": "search", "search": options}


# Spans that are about as long as a search query. Training on them is three times as fast as training on spans of 30 to
# 70 % of a document.
SHORT: dict[str, Any] = {"positive": "cuts", "cuts": {"shortest": 8, "longest": 24}, "max_length": 32}

DISTIL: dict[str, Any] = {**PLAIN, "loss": "distil", "lr": 2e-5, "distil": {"lexical": 0.5}}

# Like "short cuts, kept, no UNA", but with built-in methods. Spans have 30 to 70 % of the words of a short row, and
# 8 to 24 words of a long row.
PASSAGES: dict[str, Any] = {
    **PLAIN,
    "positive": "spans",
    "spans": {"shortest": 0.3, "longest": 0.7, "most_words": 24},
    "max_length": 32,
    "loss_terms": ["keep-similarities"],
}

CANDIDATES: dict[str, dict[str, Any]] = {
    "passages, kept, no UNA": PASSAGES,
    "passages, kept, standard tau .1, no UNA": {**PASSAGES, "loss": "standard", "temperature": 0.1},
    "short cuts, kept, no UNA": {**PLAIN, **KEEP, **SHORT},
    "search by words, distilled with TF-IDF .5, lr 2e-5": {**DISTIL, **search(kind="words", longest=40)},
    "short cuts, no UNA": {**PLAIN, **SHORT},
    "documents": {},
    "sentences": {"rows": "sentences", "max_length": 32},
    "short cuts, kept with TF-IDF .3, no UNA": {**PLAIN, **keep(lexical=0.3), **SHORT},
    "search by words, cut, kept, no UNA": {**PLAIN, **KEEP, **search(kind="words", longest=24), "max_length": 32},
    "shorter cuts, kept, no UNA": {**PLAIN, **KEEP, **SHORT, "cuts": {"shortest": 4, "longest": 16}},
    "short cuts, kept, no UNA, lr 2e-5": {**PLAIN, **KEEP, **SHORT, "lr": 2e-5},
    "short cuts, guided, kept, no UNA": {**PLAIN, **KEEP, **SHORT, "feature_augmentations": ["guided"]},
    "short cuts, distilled with TF-IDF .5, lr 2e-5": {**DISTIL, **SHORT},
    "short cuts, kept": {**KEEP, **SHORT},
    "documents, standard, no UNA": {**PLAIN, "loss": "standard"},
    "short cuts, kept 3 times, no UNA": {**PLAIN, **keep(weight=3.0), **SHORT},
    "search by words, distilled, lr 2e-5": {**DISTIL, **search(kind="words", longest=40), "distil": {"lexical": 0.0}},
    "documents, kept": KEEP,
    "documents, kept, no UNA": {**PLAIN, **KEEP},
    "search by words, kept, no UNA": {**PLAIN, **KEEP, **search(kind="words")},
    "documents, guided, kept, no UNA": {**PLAIN, **KEEP, "feature_augmentations": ["guided"]},
    "documents, kept with TF-IDF .3, no UNA": {**PLAIN, **keep(lexical=0.3)},
    "neighbours, kept, no UNA": {**PLAIN, **KEEP, "positive": "neighbours", "neighbours": {"words": 40}},
    "cuts, kept, no UNA": {**PLAIN, **KEEP, "positive": "cuts", "cuts": {"shortest": 8, "longest": 48}},
    "documents, lr 5e-6": {"lr": 5e-6},
    "documents, frozen embeddings and 3 layers": {"encoder_methods": ["freeze"], "freeze": {"layers": 3}},
    "documents, kept 5 times": keep(weight=5.0),
    "documents, mined by TF-IDF, kept": {
        **KEEP,
        "negatives": ["mined"],
        "mined": {"by": "tfidf", "first": 10, "last": 50},
    },
    "search by span, kept, no UNA": {**PLAIN, **KEEP, **search(kind="span")},
    "documents, UNA beta .25": {"una": {**UNA["una"], "beta": 0.25}},
    "documents, near base": {"loss_terms": ["near-base"], "near-base": {"weight": 1.0}},
    "documents, guided": {"feature_augmentations": ["guided"]},
    "documents, UNA radius 20": {"una": {**UNA["una"], "radius": 20}},
    "search by words, standard, no UNA": {**PLAIN, **search(kind="words"), "loss": "standard"},
    "search by ordered words, kept, no UNA": {**PLAIN, **KEEP, **search(kind="ordered")},
    "documents, kept across views": keep(views="cross"),
    "documents, mined by the base model, guided, kept": {
        **KEEP,
        "negatives": ["mined"],
        "mined": {"by": "base", "first": 10, "last": 50},
        "feature_augmentations": ["guided"],
    },
    "documents of 128 tokens, kept, no UNA": {**PLAIN, **KEEP, "max_length": 128},
    "sentences, kept": {"rows": "sentences", "max_length": 32, **KEEP},
    "documents, lr 2e-5": {"lr": 2e-5},
}

# Keys with the options of a method; ``settings_of`` leaves them out if the candidate does not use the method.
METHODS = ("distil", "una", "spans", "keep", "near-base", "freeze", "guided", "cuts", "neighbours", "search", "mined")


def settings_of(name: str, steps: int | None = None) -> dict[str, Any]:
    """Returns all settings of a candidate; ``steps``, if given, replaces its number of steps."""
    settings = {**COMMON, **CANDIDATES[name]}
    settings |= {"max_steps": steps} if steps else {}
    if settings["loss"] == "distil":  # has a temperature of its own
        settings.pop("temperature")
    used = {settings["positive"], settings["loss"]}
    for key in ("negatives", "loss_terms", "encoder_methods", "feature_augmentations"):
        used |= set(settings.get(key, ()))
    return {key: value for key, value in settings.items() if key not in METHODS or key in used}
