"""The methods of a run: text methods, loss terms, and what changes the encoder or its forward passes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...augment import AUGMENTATIONS
from ...augment.base import Draws, Edit, Example, Pairing, TextMethod, View
from ...context import Context
from ...encoder.resolve import find_model
from ...encoder.trained import SentenceEncoder, load_encoder
from ...errors import InputError
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS
from ...losses.base import LossTerm
from ...options import parse_options
from ...registry import Registry
from ...tfidf.pieces import Pieces
from ..batches.batches import Batches
from ..batches.checks import check_learnable
from ..step.distributed import World
from ..step.encode import rates_of
from ..step.state import Modules
from .data import TrainingData

Options = Mapping[str, Mapping[str, Any]]


def create(table: Registry[Any], name: str, options: Options, context: Context) -> Any:
    """Constructs a method; ``options`` holds the options of all methods by name."""
    method = table.get(name)
    return method(parse_options(name, method.Options, options.get(name, {})), context)


@dataclass(frozen=True)
class TextMethods:
    """The text methods of a run, by name."""

    positive: dict[str, Edit | Pairing]
    """The method that makes positives; one entry."""
    negatives: dict[str, Edit]
    """The methods that make synthetic negatives."""

    @property
    def all(self) -> dict[str, TextMethod]:
        """All methods by name."""
        return {**self.positive, **self.negatives}

    def batches(self, data: TrainingData, config: Any, world: World) -> Batches:
        """Returns the batches of the run; raises ``InputError`` for unusable sizes, or if nothing can be learned."""
        (positive,) = self.positive.values()
        for name, edit in self.negatives.items():
            if edit.further():
                raise InputError(
                    f"--negative {name} makes several sentences, and a negative is one; use --positive {name}"
                )
        names = ("batch_size", "seed", "epochs", "max_steps", "accumulate", "keep_duplicates")
        sizes = {name: getattr(config, name) for name in names}
        rows, negatives = data.split.train, list(self.negatives.values())
        batches = Batches(data.corpus, rows, positive, negatives, part=world.part, **sizes)
        if len(rows) < 2:
            raise InputError(
                f"CORPUS has {len(rows)} sentence{'s' * (len(rows) != 1)}; contrastive learning needs at least two, "
                "and preferably thousands"
            )
        if batches.size > len(rows):
            raise InputError(f"--batch-size: {batches.size} is more than the {len(rows)} training sentences; lower it")
        if not len(batches):
            raise InputError(f"--accumulate: {batches.accumulate} batches are more than the run has; lower it")
        if batches.size < world.size:
            raise InputError(f"--batch-size: {batches.size} is less than the {world.size} processes; raise it")
        check_learnable(batches, self.positive, self.negatives)
        return batches

    def describe(self) -> dict[str, str]:
        """Returns descriptions of the methods for the header of the run."""
        ((name, positive),) = self.positive.items()
        options = positive.describe()
        return {
            "positive": f"{name}{f' ({options})' if options else ''}",
            "negatives": "; ".join(
                ["in the batch", *(f"{key} {method.describe()}" for key, method in self.negatives.items())]
            ),
        }

    def examples(self, batches: Batches, seed: int) -> list[Example]:
        """Returns the first three sentences of the first batch with the texts that the methods make from them.

        Raises ``InputError`` if the views of the batch cannot share the dropout mask that the positives share.
        """
        first = batches[0]
        if any(block.shared and len({view.passes for view in block.views}) > 1 for block in first.blocks.values()):
            name = next(iter(self.positive))
            raise InputError(
                f"--positive {name}: its options share a dropout mask between the two views, which needs the same "
                "encoder, dropout and hook for both; omit one of them"
            )
        rows = first.rows[:3]
        texts = batches.corpus.take(rows)
        return [
            replace(item, method=name)
            for name, method in self.all.items()
            for item in method.examples(texts, rows, Draws(seed, 0))
        ]


def text_methods(config: Any, context: Context) -> TextMethods:
    """Constructs the methods that make positives and synthetic negatives.

    Raises ``InputError`` if a method of ``--negative`` makes positives.
    """
    made = create(AUGMENTATIONS, config.positive, config.options, context)
    edits = {}
    for name in config.negatives:
        edits[name] = create(AUGMENTATIONS, name, config.options, context)
        if not isinstance(edits[name], Edit):
            raise InputError(f"--negative {name}: this method makes positives; use --positive {name}")
    return TextMethods({config.positive: made}, edits)


def loss_terms(config: Any, context: Context) -> dict[str, LossTerm]:
    """Constructs the loss terms by name: the run's loss first, then the additional terms.

    Raises ``InputError`` if the labelled pairs have hard negatives that no term uses.
    """
    loss, names, terms = config.loss, config.loss_terms, {}
    if loss in CONTRASTIVE_LOSSES:
        terms[CONTRASTIVE] = LOSS_TERMS.get(CONTRASTIVE)(config.contrastive, context)
    else:
        names = (loss, *names)
    terms |= {name: create(LOSS_TERMS, name, config.options, context) for name in names}
    hard_negatives = context.pairs is not None and bool(context.pairs.hard_negatives)
    if hard_negatives and not any("negative" in term.reads for term in terms.values()):
        raise InputError(
            f"--loss {loss} does not use the hard negatives of --pairs; name anchor and positive with --columns A,B"
        )
    return terms


def describe_loss(config: Any) -> str:
    """Returns the parts of the loss as text."""
    if config.loss not in CONTRASTIVE_LOSSES:
        return ", ".join([config.loss, *config.loss_terms])
    options = config.contrastive
    parts = [f"{options.objective} with {options.logits} logits, temperature {options.temperature:g}"]
    if options.logits == "focal":
        parts.append(f"margin {options.margin:g}")
    if options.mixed:
        gradient = "" if options.stop_gradient else ", with a gradient"
        parts.append(f"mixed negatives ({options.mixed}, lambda {options.mix_lambda:g}{gradient})")
    return ", ".join([*parts, *config.loss_terms])


def second_encoder(name: str | None, pooler: str, keep_head: bool, context: Context) -> SentenceEncoder | None:
    """Returns the separate encoder of the positives (a copy of the first encoder, or another model), or None."""
    first = context.trained
    if name is None:
        return None
    if name == "copy":
        return copy.deepcopy(first)
    source = find_model(name)
    second = load_encoder(source, source.pooler or pooler, keep_head=keep_head)
    context.check_tokens(second.tokenizer, name, "--positive-encoder")
    if second.embedding_dim != first.embedding_dim:
        raise InputError(
            f"--positive-encoder {name}: its embeddings have {second.embedding_dim} dimensions, and those of "
            f"{first.source.name} have {first.embedding_dim}; name a model with embeddings of the same size"
        )
    return second.to(context.device)


def check_used(
    modules: Modules, context: Context, settings: Mapping[str, Any], dropout: Mapping[str, float | None]
) -> None:
    """Raises ``InputError`` for a setting that the user gave (``dropout``: by role) and that would have no effect."""
    for role, rate in dropout.items():
        encoder = modules.second or modules.encoder if role == "positive" else modules.encoder
        if rate is not None and not rates_of(encoder.backbone):
            raise InputError(
                f"--{role}-dropout: {encoder.source.name} has no dropout that can be set; omit --{role}-dropout"
            )
    if context.index_is_used and context.index.pieces is not None:
        model = modules.encoder.source.name
        context.index.pieces.check_same(Pieces.of(modules.encoder.tokenizer, model), "--tfidf", model)
    for flag in ("--min-df", "--max-terms"):
        if settings.get(flag.removeprefix("--").replace("-", "_")) and not context.index_is_used:
            raise InputError(
                f"{flag} selects terms of the TF-IDF index, which the run does not use; add a method that uses it, "
                f"such as --una, or omit {flag}"
            )
    if settings.get("keep_head") and modules.encoder.head is None:
        pooler = modules.encoder.pooler
        raise InputError(f"--keep-head: --pooler {pooler} has no MLP head to keep; use --pooler cls")


def views_of(
    hooks: Mapping[str, str | None], dropout: Mapping[str, float | None], *, second: bool
) -> tuple[View, View]:
    """Returns the views of anchors and positives, with the encoder, dropout probability and hook of each.

    If both views have the same hook, the purposes of the positives' random numbers get a prefix, so that the two views
    are changed differently. The random numbers of a hook that only one view has do not depend on the view.
    """
    draws = "positive " if hooks["positive"] == hooks["anchor"] is not None else ""
    encoder = "second" if second else "first"
    return (
        View("anchor", "anchor", dropout=dropout["anchor"], hook=hooks["anchor"]),
        View("positive", "positive", encoder, dropout["positive"], hooks["positive"], draws),
    )
