"""The methods of a run that make positives and negatives, or change the encoder or its forward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...augment import AUGMENTATIONS
from ...errors import InputError
from ...features import ENCODER_METHODS
from ...options import parse_options
from ...registry import Registry

if TYPE_CHECKING:
    from ...augment.base import Edit, Example, Pairing, TextMethod, View
    from ...context import Context
    from ...encoder.trained import SentenceEncoder
    from ...features.base import EncoderMethod
    from ..batches.batches import Batches
    from ..step.distributed import World
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

    def batches(self, data: TrainingData, seed: int, world: World, *, accumulate: int, **sizes: Any) -> Batches:
        """Returns the batches of the run; raises ``InputError`` if nothing can be learned from them.

        ``sizes`` are the arguments ``batch_size``, ``epochs``, ``max_steps`` and ``keep_duplicates`` of ``Batches``.
        """
        from ..batches.batches import Batches
        from ..batches.checks import check_learnable
        from .optimisation import check_sizes

        (positive,) = self.positive.values()
        for name, edit in self.negatives.items():
            if edit.further():
                raise InputError(
                    f"--negative {name} makes several sentences, and a negative is one; use --positive {name}"
                )
        batches = Batches(
            data.corpus,
            data.rows,
            positive,
            list(self.negatives.values()),
            seed=seed,
            accumulate=accumulate,
            part=world.part,
            **sizes,
        )
        check_sizes(batches, accumulate, world.size)
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
        from ...rng import Draws

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


def open_context(imports: Sequence[str], device: str, part: Callable[[int], slice]) -> Context:
    """Returns the resources that methods are given.

    Args:
        imports: Python files that registered methods.
        device: Device of this rank.
        part: Returns the slice of the rows of a batch that this rank encodes.
    """
    from ...context import Context

    context = Context(device=device, part=part)
    for path in imports:
        context.depends_on(path)
    return context


def text_methods(positive: str, negatives: Sequence[str], options: Options, context: Context) -> TextMethods:
    """Constructs the methods that make positives and synthetic negatives.

    Raises ``InputError`` if a method of ``--negative`` makes positives.
    """
    from ...augment.base import Edit

    made = create(AUGMENTATIONS, positive, options, context)
    edits = {}
    for name in negatives:
        edits[name] = create(AUGMENTATIONS, name, options, context)
        if not isinstance(edits[name], Edit):
            raise InputError(f"--negative {name}: this method makes positives; use --positive {name}")
    return TextMethods({positive: made}, edits)


def encoder_methods(names: Sequence[str], options: Options, context: Context) -> dict[str, EncoderMethod]:
    """Constructs the methods that change the encoder, which is then moved to the device again."""
    from ...encoder.trained import check_mask

    methods = {name: create(ENCODER_METHODS, name, options, context) for name in names}
    check_mask(context.trained.to(context.device))
    return methods


def second_encoder(name: str | None, pooler: str, keep_head: bool, context: Context) -> SentenceEncoder | None:
    """Returns the separate encoder of the positives (a copy of the first encoder, or another model), or None."""
    import copy

    from ...encoder.resolve import find_model
    from ...encoder.trained import load_encoder

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
    """Raises ``InputError`` for a given setting that would have no effect with these modules.

    Args:
        modules: The modules of the run.
        context: The resources of the run.
        settings: The values that the user gave, by name.
        dropout: The dropout probabilities of anchors and positives that were set, by role.
    """
    from ...tfidf.pieces import Pieces
    from ..step.encode import rates_of

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
    from ...augment.base import View

    draws = "positive " if hooks["positive"] == hooks["anchor"] is not None else ""
    encoder = "second" if second else "first"
    return (
        View("anchor", "anchor", dropout=dropout["anchor"], hook=hooks["anchor"]),
        View("positive", "positive", encoder, dropout["positive"], hooks["positive"], draws),
    )
