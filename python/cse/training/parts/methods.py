"""The methods of a run that make positives and negatives, or change the encoder or its forward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...augment import AUGMENTATIONS
from ...errors import InputError
from ...features import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ...options import parse_options
from ...registry import Registry

if TYPE_CHECKING:
    from ...augment.base import Edit, Example, Pairing, TextMethod, View
    from ...context import Context
    from ...features.base import EncoderMethod, FeatureMethod, Hook
    from ...models.running.encoder import SentenceEncoder
    from ..batches.batches import Batches
    from ..settings.config import ResolvedConfig
    from ..settings.declared import Settings
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

    @property
    def first_negative(self) -> Edit | None:
        """The first method that makes synthetic negatives, if any."""
        return next(iter(self.negatives.values()), None)

    def batches(
        self,
        settings: ResolvedConfig,
        sizes: ResolvedConfig,
        data: TrainingData,
        seed: int,
        world: World,
    ) -> Batches:
        """Returns the batches of the run; raises ``InputError`` if nothing can be learned from them."""
        from ..batches.batches import Batches
        from ..batches.checks import check_learnable
        from .optimisation import check_sizes

        (positive,) = self.positive.values()
        batches = Batches(
            data.corpus,
            data.rows,
            positive,
            list(self.negatives.values()),
            batch_size=sizes.batch_size,
            seed=seed,
            epochs=sizes.epochs,
            max_steps=sizes.max_steps,
            accumulate=sizes.accumulate,
            keep_duplicates=settings.keep_duplicates,
            part=world.part,
        )
        check_sizes(sizes, batches, world.size)
        check_learnable(batches, self.positive, self.negatives)
        return batches

    def describe(self) -> dict[str, str]:
        """Returns descriptions of the methods for the header of the run."""
        ((name, positive),) = self.positive.items()
        options = positive.describe()
        return {
            "positive": f"{name}{f' ({options})' if options else ''}",
            "negatives": "; ".join(
                ["in the batch", *(f"{key} {each.describe()}" for key, each in self.negatives.items())]
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
                "encoder, dropout and hook for both; leave one of them out"
            )
        rows = first.rows[:3]
        texts = batches.corpus.take(rows)
        return [
            replace(item, method=name)
            for name, each in self.all.items()
            for item in each.examples(texts, rows, Draws(seed, 0))
        ]


def open_context(settings: Settings, data: Settings, device: str, part: Callable[[int], slice]) -> Context:
    """Returns the resources that methods are given; the TF-IDF index is opened when a method first uses it.

    Args:
        settings: The settings of the methods.
        data: The settings of the data, which name the folder of the index.
        device: Device of this rank.
        part: Returns the slice of the rows of a batch that this rank encodes.
    """
    from ...context import Context
    from ...tfidf.index import TfidfIndex

    context = Context(
        lambda: TfidfIndex.open(data.tfidf, min_df=settings.min_df, max_terms=settings.max_terms),
        device=device,
        part=part,
    )
    for path in settings.imports:
        context.depends_on(path)
    return context


def text_methods(settings: ResolvedConfig, options: Options, context: Context) -> TextMethods:
    """Constructs the methods that make positives and synthetic negatives.

    Raises ``InputError`` if the index does not match the corpus, or if a method of ``--negative`` makes positives.
    """
    from ...augment.base import Edit
    from .data import check_indexed

    positive = create(AUGMENTATIONS, settings.positive, options, context)
    negatives = {}
    for name in settings.negatives:
        negatives[name] = create(AUGMENTATIONS, name, options, context)
        if not isinstance(negatives[name], Edit):
            raise InputError(f"--negative {name}: this method makes positives; use --positive {name}")
    if context.index_is_used and context.corpus is not None:
        check_indexed(context.corpus, context.index)
    return TextMethods({settings.positive: positive}, negatives)


def encoder_methods(settings: Settings, options: Options, context: Context) -> dict[str, EncoderMethod]:
    """Constructs the methods that change the encoder, which is then moved to the device again."""
    from ...models.running.encoder import check_mask

    methods = {name: create(ENCODER_METHODS, name, options, context) for name in settings.encoder_methods}
    check_mask(context.trained.to(context.device))
    return methods


def feature_methods(settings: Settings, options: Options, context: Context) -> dict[str, FeatureMethod]:
    """Constructs the methods that change embeddings."""
    names = settings.feature_augmentations
    return {name: create(FEATURE_AUGMENTATIONS, name, options, context) for name in names}


def hooks(settings: Settings, options: Options, context: Context) -> dict[str, Hook]:
    """Constructs the hooks of the anchors and of the positives."""
    names = (settings.anchor_hook, settings.positive_hook)
    return {name: create(HOOKS, name, options, context) for name in names if name}


def second_encoder(settings: Settings, model: ResolvedConfig, context: Context) -> SentenceEncoder | None:
    """Returns the separate encoder of the positives (a copy of the first encoder, or another model), or None."""
    import copy

    from ...models.reading.resolve import find_model
    from ...models.running.encoder import load_encoder

    first, name = context.trained, settings.positive_encoder
    if name is None:
        return None
    if name == "copy":
        return copy.deepcopy(first)
    source = find_model(name)
    second = load_encoder(source, source.pooler or model.pooler, keep_head=model.keep_head)
    context.check_tokens(second.tokenizer, name, "--positive-encoder")
    if second.embedding_dim != first.embedding_dim:
        raise InputError(
            f"--positive-encoder {name}: its embeddings have {second.embedding_dim} dimensions, and those of "
            f"{first.source.name} have {first.embedding_dim}; name a model with embeddings of the same size"
        )
    return second.to(context.device)


def check_used(settings: Settings, modules: Modules, context: Context, given: Mapping[str, Any]) -> None:
    """Raises ``InputError`` for a given setting that would have no effect with these modules.

    Args:
        settings: The settings of the methods.
        modules: The modules of the run.
        context: The resources of the run.
        given: The values that the user gave, by name.
    """
    from ...tfidf.pieces import Pieces
    from ..step.encode import rates_of

    for role, rate, each in (
        ("anchor", settings.anchor_dropout, modules.encoder),
        ("positive", settings.positive_dropout, modules.second or modules.encoder),
    ):
        if rate is not None and not rates_of(each.backbone):
            raise InputError(f"--{role}-dropout: {each.source.name} has no dropout that can be set; leave it out")
    if context.index_is_used and context.index.pieces is not None:
        model = modules.encoder.source.name
        context.index.pieces.check_same(Pieces.of(modules.encoder.tokenizer, model), "--tfidf", model)
    for flag in ("--min-df", "--max-terms"):
        if given.get(flag.removeprefix("--").replace("-", "_")) and not context.index_is_used:
            raise InputError(
                f"{flag}: selects terms of the TF-IDF index, which the run does not use; add a method that uses it, "
                f"such as --una, or leave {flag} out"
            )
    if given.get("keep_head") and modules.encoder.head is None:
        pooler = modules.encoder.pooler
        raise InputError(f"--keep-head: --pooler {pooler} has no MLP head to keep; use --pooler cls")


def views_of(settings: Settings) -> tuple[View, View]:
    """Returns the views of anchors and positives, with the encoder, dropout probability and hook of each.

    If both views have the same hook, the purposes of the positives' random numbers get a prefix, so that the two views
    are changed differently. The random numbers of a hook that only one view has do not depend on the view.
    """
    from ...augment.base import View

    second = "first" if settings.positive_encoder is None else "second"
    draws = "positive " if settings.positive_hook == settings.anchor_hook is not None else ""
    return (
        View("anchor", "anchor", dropout=settings.anchor_dropout, hook=settings.anchor_hook),
        View("positive", "positive", second, settings.positive_dropout, settings.positive_hook, draws),
    )
