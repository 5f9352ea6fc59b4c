"""Preparation of a training run: its parts are built in order, each from its settings and the parts before it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
import torch

from .._core import hash_bytes
from ..augment import AUGMENTATIONS, LABELS_POSITIVE
from ..augment.base import Draws, Edit, Example, Pairing, TextMethod, View
from ..background import ProgressCallback
from ..context import ModelContext, TextContext
from ..encoder import prompts
from ..encoder.device import describe_device, pick_device, pick_precision, set_threads
from ..encoder.resolve import Source, find_model, hashed_files
from ..encoder.taught import declare
from ..encoder.trained import SentenceEncoder, check_mask, load_encoder
from ..errors import InputError, for_markdown
from ..evaluation.kept import sources_of
from ..hooks import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ..io import contents
from ..losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS, TEACHER
from ..losses.base import BatchTerm, LossTerm
from ..losses.options import ContrastiveOptions
from ..options import parse_options
from ..registry import Registry
from ..tfidf.pieces import Pieces
from .batches.checks import check_learnable, examine
from .batches.texts import Batches, Order, PartnerViews
from .batches.tokens import open_tokens
from .data import RunIndex, TrainingData, open_data, open_index
from .folder.outputs import choose_folder, named_folder
from .inputs import taught_by_model
from .judging import Judge, accents
from .run import Run
from .selection import EvaluationData, open_evaluation
from .sequence import begun_with, models_before, seconds_before
from .settings.declared import Loss, Methods, Model, Optimisation, Output
from .settings.described import public_text, public_toml, recipe_reason
from .settings.given import TrainConfig
from .settings.presets import is_published
from .settings.resolve import Resolved, resolve
from .step.acceleration import accelerate, has_no_dropout
from .step.encode import Forward, rates_of
from .step.optimiser import Schedule, build_optimizer
from .step.ranks import World
from .step.state import Modules, TrainState
from .watching import SaturationCheck

# Steps from which compiling, which took 32 s on an H200, took less time than it saved (2.4 ms a step there, 4.0 with
# UNA's pairs).
WORTH_COMPILING = 10_000


class Encoding(TypedDict):
    """How the modules of a run encode its batches; see ``Batches``."""

    prompts: prompts.TrainingPrompts
    views: tuple[View, View]
    without_dropout: bool
    partner_views: PartnerViews


Create: TypeAlias = Callable[[Registry[Any], str], Any]
"""Constructs the method of a registry that has a name, with its options."""


def prepare(
    given: TrainConfig,
    world: World | None = None,
    folder: Path | None = None,
    progress: ProgressCallback = lambda *_: None,
    texts: Sequence[str] | None = None,
    labels: Sequence[Any] | None = None,
    left_out: npt.NDArray[np.int64] | None = None,
    judging: bool = True,
) -> Run:
    """Builds the parts of a run in order: data, encoder, batches, objective, optimiser, evaluation and folder.

    ``world`` are the ranks (default: one), ``folder`` is the run's if it is resumed, ``progress`` is called while
    a large corpus is read, and ``texts`` are sentences in memory that are used instead of a corpus, with their
    ``labels``, "" for none. For ``left_out`` and ``judging`` see ``open_data``.
    """
    world, find = world or World(), cache(find_model)
    if folder is None and given.name is not None:
        named_folder(given)  # checked before the model is searched for
    settings = resolve(given, find)
    model, methods, seed = settings.model.model, settings.methods, settings.output.seed
    device, precision, reason = pick_compute(settings.output, settings.optimisation, world)
    index = open_index(settings.data, methods, folder, in_memory=texts is not None)
    whole = is_published(settings.given.get("preset"))
    evaluated = open_evaluation(settings.evaluation, settings.options, settings.data.column, whole)
    groups = (settings.data, methods, settings.evaluation, settings.output)
    data = open_data(*groups, index, progress, texts, labels, left_out, judging)
    context = TextContext(
        open_index=index.of,
        corpus=data.corpus,
        pairs=data.labelled,
        classes=data.classes,
        rows=data.split.train,
        model=model,
        device=device,
        part=world.part,
        progress=progress,
        cache=settings.data.cache,
    )
    for path in methods.imports:
        context.depends_on(path)
    for path in (judge.partition("=")[2] for judge in settings.evaluation.judges):
        for file in sorted(contents(Path(path))) if Path(path).is_dir() else [""]:
            if Path(path).exists():
                context.depends_on(Path(path, file) if file else path)
    if (
        settings.contrastive.hard_negative_weight != 1
        and data.labelled is not None
        and not data.labelled.hard_negatives
    ):
        raise InputError(
            "--hard-negative-weight needs a third column of hard negatives in --pairs; add it, or leave out the weight"
        )
    create = partial(create_method, settings.options, context)
    positives, negatives = text_methods(methods, create)
    name, positive = next(iter(positives.items()))
    index.check()
    order = build_order(settings, data, positive)
    check_learnable(order, data.corpus, (methods.positive, positive), negatives)
    built, encoding = build_modules(settings, find, context, order, world.rank)
    check_used(built, index, settings)
    duplicates = methods.keep_duplicates
    rows = Batches(order, data.corpus, positive, [*negatives.values()], duplicates, world.part, **encoding)
    used = {methods.positive: positives[methods.positive], **negatives, **positives, **built.by_name}
    used |= evaluated.judges
    settings = settings.changed(precision=precision).with_used_options(used)
    tokenizer, length = built.encoder.tokenizer, settings.data.max_length
    tokens = open_tokens(rows, data.columns, tokenizer, length, data.reading, progress)
    state = build_state(settings, built, data, evaluated, negatives, len(rows))
    against = settings.evaluation.against
    models = dict.fromkeys(filter(None, (settings.model.model, methods.positive_encoder, against, *context.models)))
    earlier = {name: taught_by_model(name) for name in models if name != "copy"}
    own = data.taught(evaluated.selecting)
    apart, again = None, 0.0
    if methods.tune_teacher and data.folds:  # the teacher and what learned from it are trained anew for each fold
        before, again = models_before(given, settings.model.model, models), seconds_before(given)
        apart = {name: taught_by_model(name) for name in before if name != "copy"}
    judge = Judge.of(evaluated, data, own, earlier, against, apart)
    taught = own.after(earlier.values())
    declare(built.encoder.backbone.config, taught.columns)
    base = hash_bytes("\n".join(hashed_files(built.encoder)).encode())
    examples = make_examples(rows, {name: positive, **negatives}, methods.positive, seed)
    text, warnings = examine(rows, negatives, tokenizer, length, built.encoder.max_seq_length, model)
    warnings += [data.unjudged, positive.warning, accents(judge.evaluations, data.corpus, data.split.train, tokenizer)]
    if folder is None:  # a resumed run takes the weights of the terms from its checkpoint
        warnings += [term.warning for term in built.terms.values()]
    optimisation = settings.optimisation
    run = Run(
        settings=settings,
        folder=folder or Path(world.agreed(lambda: str(choose_folder(settings)))),  # rank 0 may claim it at once
        state=state,
        schedule=Schedule(optimisation.lr, optimisation.lr_scheduler, optimisation.warmup),
        batches=rows,
        forward=Forward(device, precision, optimisation.chunk_size, optimisation.compile, seed),
        reason=reason,
        tokens=tokens,
        evaluation=evaluated,
        judge=judge,
        taught=taught,
        earlier=[*(earlier if apart is None else apart).values()],
        again=again,
        labelled=data.labelled_texts,
        examples=examples,
        sources=sources_of(data.columns, settings.evaluation.dev, settings.evaluation.data),
        data=data.fingerprints(index.sha256, context.files, base, evaluated.fingerprints(settings.evaluation)),
        index=index,
    )
    run.facts, run.card = describe(run, data, name, negatives, world.size)
    run.facts |= {"text": text} | ({"warning": "; ".join(filter(None, warnings))} if any(warnings) else {})
    return run


def pick_compute(output: Output, optimisation: Optimisation, world: World) -> tuple[str, str, str]:
    """Sets the number of threads; returns the device of this rank, the precision of all, and why it was chosen."""
    set_threads(output.threads)
    device = world.device(pick_device(output.device))
    own, reason = pick_precision(device, optimisation.precision)
    return device, world.agreed(lambda: own), reason  # speeds measured by the ranks may suggest different precisions


def build_state(
    settings: Resolved,
    built: Modules,
    data: TrainingData,
    evaluated: EvaluationData,
    negatives: Mapping[str, Edit],
    steps: int,
) -> TrainState:
    """Returns the state before the first step: the modules, their optimiser, and what selects best/."""
    optimisation, negative = settings.optimisation, next(iter(negatives.values()), None)
    guarding = LABELS_POSITIVE if settings.methods.learn else TEACHER
    most_lost = settings.options.get(guarding, {}).get("most_lost")
    chosen = (settings.output.seed, optimisation.precision, most_lost)
    selector = evaluated.selector(built.encoder, data, negative, *chosen)
    return TrainState(
        **vars(built),
        optimizer=build_optimizer(list(built.modules().values()), optimisation.lr, optimisation.weight_decay),
        selector=selector,
        saturation=SaturationCheck(settings.methods.positive, settings.loss.temperature),
        steps=steps,
    )


def describe(
    run: Run, data: TrainingData, name: str, negatives: Mapping[str, Edit], processes: int
) -> tuple[dict[str, str], dict[str, Any]]:
    """Returns what the header of a run says about it, and what the card of its models does."""
    settings, rows, model = run.settings, run.batches, run.settings.model
    options = rows.positive.describe()
    if settings.methods.learn:
        options = f"{options}; the others: {settings.methods.positive}"
    synthetic = [f"{each} {method.describe()}" for each, method in negatives.items()]
    in_evaluation = f" in training, {model.eval_pooler} in evaluation" if model.eval_pooler else ""
    compared = any("negative" in term.reads for term in run.state.terms.values())
    judging = [text for each in run.judge.evaluations if (text := each.describe())]
    facts = {
        "device": describe_device(run.device, run.forward.precision, run.reason),
        **({"processes": f"{processes}, each with a part of the batch"} if processes > 1 else {}),
        "recipe": recipe_reason(settings, run.state.encoder.family),
        "model": f"{model.model}, pooler {model.pooler}{in_evaluation}",
        "loss": describe_loss(settings),
        **{name: term.about for name, term in run.state.terms.items() if term.about},
        "positive": f"{name}{f' ({options})' if options else ''}",
        **({"negatives": "; ".join(["in the batch", *synthetic])} if compared else {}),
        **data.describe(),
        **({"labels": "; ".join(judging)} if judging else {}),
        **run.index.facts,
        "steps": describe_steps(settings.optimisation, rows, run.device),
        **({"prompt": rows.prompts.describe()} if rows.prompts.anchor or rows.prompts.document else {}),
    }
    made = f"Synthetic negatives: {'; '.join(synthetic)}." if synthetic else "No synthetic negatives."
    base, before = begun_with(model.model, settings.evaluation.against)
    sentences = [before, f"Loss: {facts['loss']}.", f"Positives: {name}.", made, *run.taught.described()]
    card = for_markdown(public_text(settings, " ".join(filter(None, sentences))))
    public = {"config": public_toml(settings), "methods": card}
    return facts, {"model": base, "seed": settings.output.seed, **public}


def build_modules(
    settings: Resolved, find: Callable[[str], Source], given: TextContext, order: Order, rank: int
) -> tuple[Modules, Encoding]:
    """Loads the encoder and creates the other modules; returns them, and how they encode the batches.

    The order of creation determines the initial weights, which come from PyTorch's generator.
    """
    model, methods, seed = settings.model, settings.methods, settings.output.seed
    torch.manual_seed(seed)  # for the initial weights of new modules and, in training, for dropout
    source = find(model.model)
    loaded = load_encoder(source, model.pooler, keep_head=model.keep_head, eval_pooler=model.eval_pooler)
    trained = loaded.to(given.device)
    context = ModelContext.of(given, encoder=trained, used_rows=order.used_rows, first_rows=order.first_rows)
    create = partial(create_method, settings.options, context)
    length, most = settings.data.max_length, trained.max_seq_length
    if length > most:
        raise InputError(f"--max-length: {length} is more than the {most} tokens of the model; lower it")
    prompted = prompts.training_prompts(trained, model.prompt, bool(settings.data.pairs))
    hooks = {"anchor": methods.anchor_hook, "positive": methods.positive_hook}
    dropout = {"anchor": methods.anchor_dropout, "positive": methods.positive_dropout}

    def created(table: Registry[Any], names: Iterable[str | None]) -> dict[str, Any]:
        return {name: create(table, name) for name in names if name}

    changes = created(ENCODER_METHODS, methods.encoder_methods)
    check_mask(trained.to(context.device))
    built = Modules(
        encoder=trained,
        methods=changes,
        second=second_encoder(methods.positive_encoder, model, find, context),
        terms=loss_terms(settings.loss, settings.contrastive, context, create),
        features=created(FEATURE_AUGMENTATIONS, methods.feature_augmentations),
        hooks=created(HOOKS, hooks.values()),
    )
    accelerate(built, context.device, compiled=settings.optimisation.compile)
    if rank:  # rank 0 continues after the initial weights
        torch.manual_seed(seed + 2**32 * rank)
    # If both views have the same hook, the purposes of the positives' random numbers get a prefix, so that the two
    # views are changed differently.
    draws = "positive " if hooks["positive"] == hooks["anchor"] is not None else ""
    encoder = "first" if built.second is None else "second"
    views = (
        View("anchor", "anchor", dropout=dropout["anchor"], hook=hooks["anchor"]),
        View("positive", "positive", encoder, dropout["positive"], hooks["positive"], draws),
    )
    compared = [term for term in built.terms.values() if isinstance(term, BatchTerm)]
    return built, {
        "prompts": prompted.counted(trained),
        "views": views,
        "without_dropout": built.second is None and all(has_no_dropout(view, trained) for view in views),
        "partner_views": lambda roles: next((names for term in compared if (names := term.partner_views(roles))), None),
    }


def describe_steps(optimisation: Optimisation, rows: Batches, device: str) -> str:
    """Returns the number and size of the steps, and the learning rate; long runs on a GPU without --compile: a hint."""
    times = f" x {optimisation.accumulate}" if optimisation.accumulate > 1 else ""
    text = f"{len(rows):,} of {rows.order.size}{times} sentences, lr {optimisation.lr:g} {optimisation.lr_scheduler}"
    if optimisation.merge_with_base:
        text += f", averaged with the base model (weight {optimisation.merge_with_base:.0%})"
    if device.startswith("cuda") and not optimisation.compile and len(rows) >= WORTH_COMPILING:
        text += "; --compile may make steps of small batches faster, after a minute or two"
    return text


def create_method(
    options: Mapping[str, Mapping[str, Any]], context: TextContext, table: Registry[Any], name: str
) -> Any:
    """Constructs a method with its options, which are given by name of the method."""
    method = table.get(name)
    return method(parse_options(name, method.Options, options.get(name, {})), context)


def text_methods(methods: Methods, create: Create) -> tuple[dict[str, Edit | Pairing], dict[str, Edit]]:
    """Constructs the methods that make positives and synthetic negatives, by name. The first makes the positives; with
    ``learn``, it leaves the rows without a label to the second."""
    positives = {methods.positive: create(AUGMENTATIONS, methods.positive)}
    negatives = {name: create(AUGMENTATIONS, name) for name in methods.negatives}
    for name, method in negatives.items():
        if not isinstance(method, Edit):
            raise InputError(f"--negative {name}: this method makes positives; use --positive {name}")
        if method.further():
            raise InputError(f"--negative {name} makes several sentences, and a negative is one; use --positive {name}")
    if methods.learn:
        taught = create(AUGMENTATIONS, LABELS_POSITIVE)
        taught.rest = positives[methods.positive]
        positives = {LABELS_POSITIVE: taught, **positives}
    return positives, negatives


def build_order(settings: Resolved, data: TrainingData, positive: Edit | Pairing) -> Order:
    """Returns the order of the rows; raises ``InputError`` for unusable sizes."""
    rows, optimisation, seed = data.split.train, settings.optimisation, settings.output.seed
    size = optimisation.batch_size
    if settings.methods.learn:  # few labels make small epochs
        size = min(size, len(positive.rows_of_epoch(rows, Draws(seed, 0))))
    order = Order(
        rows,
        positive,
        batch_size=size,
        seed=seed,
        epochs=optimisation.epochs,
        max_steps=optimisation.max_steps,
        accumulate=optimisation.accumulate,
    )
    if order.size > len(rows):
        remedy = "lower it" if len(rows) > 1 else "training needs at least two, and preferably thousands"
        raise InputError(f"--batch-size: {order.size} is more than the {len(rows)} training sentences; {remedy}")
    if not len(order):
        raise InputError(f"--accumulate: {order.accumulate} batches are more than the run has; lower it")
    return order


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


def loss_terms(
    settings: Loss, contrastive: ContrastiveOptions, context: ModelContext, create: Create
) -> dict[str, LossTerm]:
    """Constructs the loss terms by name: the run's loss first, then the additional terms."""
    loss, names, terms = settings.loss, settings.loss_terms, {}
    if loss in CONTRASTIVE_LOSSES:
        terms[CONTRASTIVE] = LOSS_TERMS.get(CONTRASTIVE)(contrastive, context)
    else:
        names = (loss, *names)
    terms |= {name: create(LOSS_TERMS, name) for name in names}
    hard_negatives = context.pairs is not None and bool(context.pairs.hard_negatives)
    if hard_negatives and not any("negative" in term.reads for term in terms.values()):
        raise InputError(
            f"--loss {loss} does not use the hard negatives of --pairs; name anchor and positive with --columns A,B"
        )
    return terms


def describe_loss(settings: Resolved) -> str:
    """Returns the parts of the loss as text."""
    loss, options = settings.loss.loss, settings.contrastive
    teacher = settings.options.get(TEACHER, {}).get("model")
    terms = [f"{name} {teacher}" if name == TEACHER else name for name in (loss, *settings.loss.loss_terms)]
    if loss not in CONTRASTIVE_LOSSES:
        return ", ".join(terms)
    parts = [f"{options.objective} with {options.logits} logits, temperature {options.temperature:g}"]
    if options.logits == "focal":
        parts.append(f"margin {options.margin:g}")
    if options.mixed:
        gradient = "" if options.stop_gradient else ", with a gradient"
        parts.append(f"mixed negatives ({options.mixed}, lambda {options.mix_lambda:g}{gradient})")
    return ", ".join([*parts, *terms[1:]])


def second_encoder(
    name: str | None, model: Model, find: Callable[[str], Source], context: ModelContext
) -> SentenceEncoder | None:
    """Returns the separate encoder of the positives (a copy of the first encoder, or another model), or None."""
    first = context.encoder
    if name is None:
        return None
    if name == "copy":
        return copy.deepcopy(first)
    source = find(name)
    second = load_encoder(source, source.pooler or model.pooler, keep_head=model.keep_head)
    context.check_tokens(second.tokenizer, name, "--positive-encoder")
    if second.embedding_dim != first.embedding_dim:
        raise InputError(
            f"--positive-encoder {name}: its embeddings have {second.embedding_dim} dimensions, and the embeddings "
            f"of {first.source.name} have {first.embedding_dim}; name a model with embeddings of the same size"
        )
    second.to(context.device)
    return second


def check_used(modules: Modules, index: RunIndex, settings: Resolved) -> None:
    """Raises ``InputError`` for a setting that the user gave and that would have no effect."""
    methods = settings.methods
    for role, rate in (("anchor", methods.anchor_dropout), ("positive", methods.positive_dropout)):
        encoder = modules.second or modules.encoder if role == "positive" else modules.encoder
        if rate is not None and not rates_of(encoder.backbone):
            raise InputError(
                f"--{role}-dropout: {encoder.source.name} has no dropout that can be set; omit --{role}-dropout"
            )
    if index.used is not None and index.used.pieces is not None:
        model = modules.encoder.source.name
        index.used.pieces.check_same(Pieces.of(modules.encoder.tokenizer, model), "--tfidf", model)
    for name, flag in (("min_df", "--min-df"), ("max_terms", "--max-terms")):
        if settings.given.get(name) and index.used is None:
            raise InputError(
                f"{flag} selects terms of the TF-IDF index, which the run does not use; add a method that uses it, "
                f"such as --una, or omit {flag}"
            )
    if settings.given.get("keep_head") and modules.encoder.head is None:
        pooler = modules.encoder.training_pooler
        raise InputError(f"--keep-head: --pooler {pooler} has no MLP head to keep; use --pooler cls")
