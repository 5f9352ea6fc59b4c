"""Preparation of a training run: its parts are built in order, each from its settings and the parts before it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..augment import AUGMENTATIONS, LABELS_POSITIVE
from ..augment.base import Draws, Edit, Example, Pairing, TextMethod, View
from ..augment.same_label import SameLabel
from ..background import ProgressCallback
from ..context import Context
from ..encoder import prompts
from ..encoder.device import describe_device, pick_device, pick_precision, set_threads
from ..encoder.resolve import Source, find_model
from ..encoder.trained import SentenceEncoder, check_mask, load_encoder
from ..errors import InputError
from ..evaluation.labels import CrossFitted, Labels
from ..hooks import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ..losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS
from ..losses.base import BatchTerm, LossTerm
from ..options import parse_options
from ..registry import Registry
from ..tfidf.pieces import Pieces
from .batches.batches import Batches
from .batches.checks import check_learnable, examine
from .batches.tokens import open_tokens
from .data import RunIndex, TrainingData, open_data
from .folder.outputs import choose_folder
from .judging import Judge
from .run import Run
from .selection import open_evaluation
from .settings import precedence
from .settings.config import ResolvedConfig, TrainConfig
from .step.acceleration import accelerate, has_no_dropout
from .step.encode import Forward, rates_of
from .step.optimiser import Schedule, build_optimizer
from .step.ranks import World
from .step.state import Modules, TrainState
from .watching import SaturationCheck

# Steps from which compiling, which took 32 s on an H200, took less time than it saved (2.4 ms a step there, 4.0 with
# UNA's pairs).
WORTH_COMPILING = 10_000


def prepare(
    settings: TrainConfig,
    world: World | None = None,
    folder: Path | None = None,
    progress: ProgressCallback = lambda *_: None,
    texts: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    left_out: npt.NDArray[np.int64] | None = None,
) -> Run:
    """Builds the parts of a run in order: data, encoder, batches, objective, optimiser, evaluation and folder.

    ``world`` are the ranks (default: one), ``folder`` is that of the run if it is resumed, ``progress`` is called while
    a large corpus is read, and ``texts`` are sentences in memory that are used instead of a corpus, with their
    ``labels``, "" for none. For ``left_out`` see ``open_data``.
    """
    world, settings = world or World(), precedence.with_preset(settings)
    set_threads(settings.threads)
    device = world.device(pick_device(settings.device))
    own, reason = pick_precision(device, settings.precision)
    precision = world.agreed(lambda: own)  # speeds measured by the ranks may suggest different precisions
    context = Context(device=device, part=world.part)
    for path in settings.imports:
        context.depends_on(path)
    named = bool(settings.corpus or settings.pairs or texts is not None)
    filters = {"min_df": settings.min_df, "max_terms": settings.max_terms}
    index = RunIndex(settings.tfidf, folder, named, filters, context)
    context.open_index = index.open
    evaluated = open_evaluation(settings)
    opened = open_data(context, progress, texts, settings, labels, left_out)
    place = folder
    if settings.name is not None:
        place = place or choose_folder(settings)  # checked before the model is searched for
    context.model = settings.model or precedence.DEFAULT_MODEL
    source = find_model(context.model)
    final = precedence.resolve(settings, source.family, source.pooler, precision)
    place = place or choose_folder(final)
    positive, negatives = text_methods(final, context)
    used: dict[str, TextMethod] = {final.positive: positive, **negatives}
    methods = dict(used)  # as far as examples of them are shown
    if final.learn:
        positive = used[LABELS_POSITIVE] = SameLabel(final.options_of(LABELS_POSITIVE), context, positive)
        methods = {LABELS_POSITIVE: positive, **negatives}
    index.check()
    rows = build_batches(final, opened, positive, negatives, world)
    built = build_modules(final, source, context, rows, world.rank)
    final = final.with_used_options({**used, **built.by_name})
    tokenizer = built.encoder.tokenizer
    ids = open_tokens(rows, opened.columns, tokenizer, final.max_length, opened.reading, progress)
    negative = next(iter(negatives.values()), None)
    started = TrainState(
        **vars(built),
        optimizer=build_optimizer(list(built.modules().values()), final.lr, final.weight_decay),
        selector=evaluated.selector(built.encoder, opened, negative, final.seed, precision),
        saturation=SaturationCheck(final.positive, final.temperature),
        steps=len(rows),
    )
    judge = Judge.of(evaluated, opened)
    labelled = [each for each in judge.evaluations if isinstance(each, (Labels, CrossFitted))]
    started.selector.teaching = final.learn
    examples = make_examples(rows, methods, final.positive, final.seed)
    text, warnings = examine(rows, negatives, tokenizer, final.max_length, built.encoder.max_seq_length, final.model)
    warnings += [*filter(None, (opened.unjudged, positive.warning))]
    if folder is None:  # a resumed run takes the weights of the terms from its checkpoint
        warnings += [term.warning for term in built.terms.values() if term.warning]
    ranks = {"processes": f"{world.size}, each with a part of the batch"} if world.size > 1 else {}
    in_evaluation = f" in training, {final.eval_pooler} in evaluation" if final.eval_pooler else ""
    loss, options, name = describe_loss(final), positive.describe(), final.positive
    if final.learn:
        options, name = f"{options}; the others: {name}", LABELS_POSITIVE
    synthetic = [f"{name} {method.describe()}" for name, method in negatives.items()]
    facts = {
        "device": describe_device(device, precision, reason),
        **ranks,
        "recipe": precedence.recipe_reason(final, source.family),
        "model": f"{final.model}, pooler {final.pooler}{in_evaluation}",
        "loss": loss,
        "positive": f"{name}{f' ({options})' if options else ''}",
        "negatives": "; ".join(["in the batch", *synthetic]),
        **opened.describe(),
        **({"labels": labelled[0].describe()} if labelled else {}),
        **index.facts,
        "steps": describe_steps(final, rows, device),
        **({"prompt": rows.prompts.describe()} if rows.prompts.anchor or rows.prompts.document else {}),
        "text": text,
        **({"warning": "; ".join(warnings)} if warnings else {}),
    }
    card = f"Loss: {loss}. Positives: {name}. "
    card += f"Synthetic negatives: {'; '.join(synthetic)}." if synthetic else "No synthetic negatives."
    public = {"config": final.public().to_toml(), "methods": final.public_text(card)}
    return Run(
        config=final,
        folder=place,
        state=started,
        schedule=Schedule(final.lr, final.lr_scheduler, final.warmup),
        batches=rows,
        forward=Forward(device, precision, final.chunk_size, final.compile, final.seed),
        reason=reason,
        tokens=ids,
        evaluation=evaluated,
        judge=judge,
        facts=facts,
        card={"model": final.model, "seed": final.seed, **public},
        examples=examples,
        data=opened.fingerprints(index.sha256, context.files),
        index=index,
    )


def build_modules(final: ResolvedConfig, source: Source, context: Context, rows: Batches, rank: int) -> Modules:
    """Loads the encoder, creates the other modules, and sets prompts and views of the batches.

    The order of creation determines the initial weights, which come from PyTorch's generator.
    """
    torch.manual_seed(final.seed)  # for the initial weights of new modules and, in training, for dropout
    loaded = load_encoder(source, final.pooler, keep_head=final.keep_head, eval_pooler=final.eval_pooler)
    trained = context.encoder = loaded.to(context.device)
    if final.max_length > trained.max_seq_length:
        raise InputError(
            f"--max-length: {final.max_length} is more than the {trained.max_seq_length} tokens of the model; lower it"
        )
    prompted = prompts.training_prompts(trained, final.prompt, bool(final.pairs))
    hooks = {"anchor": final.anchor_hook, "positive": final.positive_hook}
    dropout = {"anchor": final.anchor_dropout, "positive": final.positive_dropout}

    def created(table: Registry[Any], names: Iterable[str | None]) -> dict[str, Any]:
        return {name: create(table, name, final, context) for name in names if name}

    changes = created(ENCODER_METHODS, final.encoder_methods)
    check_mask(trained.to(context.device))
    built = Modules(
        encoder=trained,
        methods=changes,
        second=second_encoder(final, context),
        terms=loss_terms(final, context),
        features=created(FEATURE_AUGMENTATIONS, final.feature_augmentations),
        hooks=created(HOOKS, hooks.values()),
    )
    check_used(built, context, final.given or {}, dropout)
    accelerate(built, context.device, compiled=final.compile)
    if rank:  # rank 0 continues after the initial weights
        torch.manual_seed(final.seed + 2**32 * rank)
    # If both views have the same hook, the purposes of the positives' random numbers get a prefix, so that the two
    # views are changed differently.
    draws = "positive " if hooks["positive"] == hooks["anchor"] is not None else ""
    encoder = "first" if built.second is None else "second"
    views = (
        View("anchor", "anchor", dropout=dropout["anchor"], hook=hooks["anchor"]),
        View("positive", "positive", encoder, dropout["positive"], hooks["positive"], draws),
    )
    rows.prompts, rows.views = prompted.counted(trained), views
    compared = [term for term in built.terms.values() if isinstance(term, BatchTerm)]
    rows.partner_views = lambda roles: next((names for term in compared if (names := term.partner_views(roles))), None)
    rows.without_dropout = built.second is None and all(has_no_dropout(view, trained) for view in views)
    return built


def describe_steps(final: ResolvedConfig, rows: Batches, device: str) -> str:
    """Returns the number and size of the steps, and the learning rate; long runs on a GPU without --compile: a hint."""
    times = f" x {final.accumulate}" if final.accumulate > 1 else ""
    text = f"{len(rows):,} of {rows.size}{times} sentences, lr {final.lr:g} {final.lr_scheduler}"
    if final.merge_with_base:
        text += f", averaged with the base model (weight {final.merge_with_base:.0%})"
    if device.startswith("cuda") and not final.compile and len(rows) >= WORTH_COMPILING:
        text += "; --compile may make steps of small batches faster, after a minute or two"
    return text


def create(table: Registry[Any], name: str, config: ResolvedConfig, context: Context) -> Any:
    """Constructs a method with its options."""
    method = table.get(name)
    return method(parse_options(name, method.Options, config.options.get(name, {})), context)


def text_methods(config: ResolvedConfig, context: Context) -> tuple[Edit | Pairing, dict[str, Edit]]:
    """Constructs the method that makes positives, and by name those that make synthetic negatives."""
    positive = create(AUGMENTATIONS, config.positive, config, context)
    negatives = {name: create(AUGMENTATIONS, name, config, context) for name in config.negatives}
    for name, method in negatives.items():
        if not isinstance(method, Edit):
            raise InputError(f"--negative {name}: this method makes positives; use --positive {name}")
        if method.further():
            raise InputError(f"--negative {name} makes several sentences, and a negative is one; use --positive {name}")
    return positive, negatives


def build_batches(
    config: ResolvedConfig, data: TrainingData, positive: Edit | Pairing, negatives: Mapping[str, Edit], world: World
) -> Batches:
    """Returns the batches of the run; raises ``InputError`` for unusable sizes, or if nothing can be learned."""
    names = ("batch_size", "seed", "epochs", "max_steps", "accumulate", "keep_duplicates")
    sizes = {name: getattr(config, name) for name in names}
    rows = data.split.train
    if config.learn:  # few labels make small epochs
        sizes["batch_size"] = min(config.batch_size, len(positive.rows_of_epoch(rows, Draws(config.seed, 0))))
    batches = Batches(data.corpus, rows, positive, list(negatives.values()), part=world.part, **sizes)
    if batches.size > len(rows):
        remedy = "lower it" if len(rows) > 1 else "training needs at least two, and preferably thousands"
        raise InputError(f"--batch-size: {batches.size} is more than the {len(rows)} training sentences; {remedy}")
    if not len(batches):
        raise InputError(f"--accumulate: {batches.accumulate} batches are more than the run has; lower it")
    check_learnable(batches, config.positive, negatives)
    return batches


def make_examples(batches: Batches, methods: Mapping[str, TextMethod], positive: str, seed: int) -> list[Example]:
    """Returns the first three sentences of the first batch with the texts that the methods make from them."""
    first = batches[0]
    if any(block.shared and len({view.passes for view in block.views}) > 1 for block in first.blocks.values()):
        raise InputError(
            f"--positive {positive}: its options share a dropout mask between the two views, which needs the same "
            "encoder, dropout and hook for both; omit one of them"
        )
    rows = first.rows[:3]
    texts = batches.corpus.take(rows)
    return [
        replace(item, method=name)
        for name, method in methods.items()
        for item in method.examples(texts, rows, Draws(seed, 0))
    ]


def loss_terms(config: ResolvedConfig, context: Context) -> dict[str, LossTerm]:
    """Constructs the loss terms by name: the run's loss first, then the additional terms."""
    loss, names, terms = config.loss, config.loss_terms, {}
    if loss in CONTRASTIVE_LOSSES:
        terms[CONTRASTIVE] = LOSS_TERMS.get(CONTRASTIVE)(config.contrastive, context)
    else:
        names = (loss, *names)
    terms |= {name: create(LOSS_TERMS, name, config, context) for name in names}
    hard_negatives = context.pairs is not None and bool(context.pairs.hard_negatives)
    if hard_negatives and not any("negative" in term.reads for term in terms.values()):
        raise InputError(
            f"--loss {loss} does not use the hard negatives of --pairs; name anchor and positive with --columns A,B"
        )
    return terms


def describe_loss(config: ResolvedConfig) -> str:
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


def second_encoder(config: ResolvedConfig, context: Context) -> SentenceEncoder | None:
    """Returns the separate encoder of the positives (a copy of the first encoder, or another model), or None."""
    first, name = context.trained, config.positive_encoder
    if name is None:
        return None
    if name == "copy":
        return copy.deepcopy(first)
    source = find_model(name)
    second = load_encoder(source, source.pooler or config.pooler, keep_head=config.keep_head)
    context.check_tokens(second.tokenizer, name, "--positive-encoder")
    if second.embedding_dim != first.embedding_dim:
        raise InputError(
            f"--positive-encoder {name}: its embeddings have {second.embedding_dim} dimensions, and those of "
            f"{first.source.name} have {first.embedding_dim}; name a model with embeddings of the same size"
        )
    second.to(context.device)
    return second


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
    for name, flag in (("min_df", "--min-df"), ("max_terms", "--max-terms")):
        if settings.get(name) and not context.index_is_used:
            raise InputError(
                f"{flag} selects terms of the TF-IDF index, which the run does not use; add a method that uses it, "
                f"such as --una, or omit {flag}"
            )
    if settings.get("keep_head") and modules.encoder.head is None:
        pooler = modules.encoder.training_pooler
        raise InputError(f"--keep-head: --pooler {pooler} has no MLP head to keep; use --pooler cls")
