"""Preparation of a training run: its parts are built in order, each from its settings and the parts before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..background import ProgressCallback
from ..context import Context
from ..encoder import prompts, resolve
from ..encoder.device import describe_device, pick_device, pick_precision, set_threads
from ..encoder.trained import check_mask, load_encoder
from ..errors import InputError
from ..features import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ..registry import Registry
from .batches import batches, checks, tokens
from .build import data, evaluation, index, methods, optimisation
from .folder.outputs import choose_folder
from .run import Run
from .settings import config, precedence, presets
from .step import distributed, encode, state
from .watching import SaturationCheck

# Steps from which compiling, which took 32 s on an H200, took less time than it saved (2.4 ms a step there, 4.0 with
# UNA's pairs).
WORTH_COMPILING = 10_000


def prepare(
    settings: config.TrainConfig,
    world: distributed.World | None = None,
    folder: Path | None = None,
    progress: ProgressCallback = lambda *_: None,
    texts: Sequence[str] | None = None,
) -> Run:
    """Builds the parts of a run in order: data, encoder, batches, objective, optimiser, evaluation and folder.

    ``world`` are the ranks (default: one), ``folder`` is that of the run if it is resumed, and ``progress`` is called
    while a large corpus is written to the cache or tokenized. ``texts`` are sentences in memory that are used instead
    of a corpus. Raises ``InputError`` for an invalid configuration, index, corpus, model or data file, and ``OSError``
    for a file that cannot be read, or a cache that cannot be written.
    """
    world, settings = world or distributed.World(), precedence.with_preset(settings)
    set_threads(settings.threads)
    device = world.device(pick_device(settings.device))
    own, reason = pick_precision(device, settings.precision)
    precision = world.agreed(lambda: own)  # speeds measured by the ranks may suggest different precisions
    context = Context(device=device, part=world.part)
    for path in settings.imports:
        context.depends_on(path)
    named = bool(settings.corpus or settings.pairs or texts is not None)
    filters = {"min_df": settings.min_df, "max_terms": settings.max_terms}
    run_index = index.RunIndex(settings.tfidf, folder, named, filters, context)
    context.open_index = run_index.open
    evaluated = evaluation.open_evaluation(settings, presets.is_published((settings.given or {}).get("preset")))
    opened = data.open_data(context, progress, texts, settings)
    place = folder
    if settings.name is not None:
        place = place or choose_folder(settings)  # checked before the model is searched for
    context.model = settings.model or precedence.DEFAULT_MODEL
    source = resolve.find_model(context.model)
    final = precedence.resolve(settings, source.family, source.pooler, precision)
    place = place or choose_folder(final)
    made = methods.text_methods(final, context)
    run_index.check()
    rows = made.batches(opened, final, world)
    built = build_modules(final, source, context, rows, world.rank)
    final = final.with_used_options({**made.all, **built.by_name})
    tokenizer = built.encoder.tokenizer
    ids = tokens.open_tokens(rows, opened.columns, tokenizer, final.max_length, opened.reading, progress)
    negative = next(iter(made.negatives.values()), None)
    selector = evaluated.selector(built.encoder, opened, negative, final.seed, precision)
    optimizer = optimisation.build_optimizer(list(built.modules().values()), final.lr, final.weight_decay)
    saturation = SaturationCheck(final.positive, final.temperature)
    started = state.TrainState(
        **vars(built), optimizer=optimizer, selector=selector, saturation=saturation, steps=len(rows)
    )
    examples = made.examples(rows, final.seed)
    text, warnings = checks.examine(
        rows, made.negatives, tokenizer, final.max_length, built.encoder.max_length, final.model
    )
    warnings += [opened.unjudged] if opened.unjudged else []
    if folder is None:  # a resumed run takes the weights of the terms from its checkpoint
        warnings += [term.warning for term in built.terms.values() if term.warning]
    ranks = {"processes": f"{world.size}, each with a part of the batch"} if world.size > 1 else {}
    in_evaluation = f" in training, {final.eval_pooler} in evaluation" if final.eval_pooler else ""
    facts = {
        "device": describe_device(device, precision, reason),
        **ranks,
        "recipe": precedence.recipe_reason(final, source.family),
        "model": f"{final.model}, pooler {final.pooler}{in_evaluation}",
        "loss": methods.describe_loss(final),
        **made.describe(),
        **opened.describe(),
        **run_index.facts,
        "steps": describe_steps(final, rows, device),
        **({"prompt": rows.prompts.describe()} if rows.prompts.anchor or rows.prompts.document else {}),
        "text": text,
        **({"warning": "; ".join(warnings)} if warnings else {}),
    }
    return Run(
        config=final,
        folder=place,
        state=started,
        schedule=optimisation.Schedule(final.lr, final.lr_scheduler, final.warmup),
        batches=rows,
        forward=encode.Forward(device, precision, final.chunk_size, final.compile, final.seed),
        reason=reason,
        tokens=ids,
        evaluation=evaluated,
        measures=evaluated.measures(opened),
        unjudged=opened.unjudged,
        facts=facts,
        card=card_of(final, made),
        examples=examples,
        data=opened.fingerprints(run_index.sha256, context.files),
        index=run_index,
    )


def card_of(final: config.ResolvedConfig, made: methods.TextMethods) -> dict[str, Any]:
    """Returns what the card of a saved model says about the run."""
    negatives = "; ".join(f"{name} {method.describe()}" for name, method in made.negatives.items())
    text = f"Loss: {methods.describe_loss(final)}. Positives: {final.positive}. " + (
        f"Synthetic negatives: {negatives}." if negatives else "No synthetic negatives."
    )
    public = final.public().to_toml()
    return {"model": final.model, "seed": final.seed, "methods": final.public_text(text), "config": public}


def build_modules(
    final: config.ResolvedConfig, source: resolve.Source, context: Context, rows: batches.Batches, rank: int
) -> state.Modules:
    """Loads the encoder, creates the other modules of a run on its device, and sets the prompts and views of batches.

    The order of creation determines the initial weights, which come from PyTorch's generator.
    """
    torch.manual_seed(final.seed)  # for the initial weights of new modules and, in training, for dropout
    loaded = load_encoder(source, final.pooler, keep_head=final.keep_head, eval_pooler=final.eval_pooler)
    trained = context.encoder = loaded.to(context.device)
    if final.max_length > trained.max_length:
        raise InputError(
            f"--max-length: {final.max_length} is more than the {trained.max_length} tokens of the model; lower it"
        )
    prompted = prompts.training_prompts(trained.evaluated, final.prompt, bool(final.pairs))
    hooks = {"anchor": final.anchor_hook, "positive": final.positive_hook}
    dropout = {"anchor": final.anchor_dropout, "positive": final.positive_dropout}

    def created(table: Registry[Any], names: Iterable[str | None]) -> dict[str, Any]:
        return {name: methods.create(table, name, final.options, context) for name in names if name}

    changes = created(ENCODER_METHODS, final.encoder_methods)
    check_mask(trained.to(context.device))
    built = state.Modules(
        encoder=trained,
        methods=changes,
        second=methods.second_encoder(final.positive_encoder, final.pooler, final.keep_head, context),
        terms=methods.loss_terms(final, context),
        features=created(FEATURE_AUGMENTATIONS, final.feature_augmentations),
        hooks=created(HOOKS, hooks.values()),
    )
    methods.check_used(built, context, final.given or {}, dropout)
    state.accelerate(built, context.device, compiled=final.compile)
    if rank:  # rank 0 continues after the initial weights
        torch.manual_seed(final.seed + 2**32 * rank)
    views = methods.views_of(hooks, dropout, second=final.positive_encoder is not None)
    state.connect(rows, views, built, prompted.counted(trained))
    return built


def describe_steps(final: config.ResolvedConfig, rows: batches.Batches, device: str) -> str:
    """Returns the number and size of the steps, and the learning rate; long runs on a GPU without --compile: a hint."""
    times = f" x {final.accumulate}" if final.accumulate > 1 else ""
    text = f"{len(rows):,} of {rows.size}{times} sentences, lr {final.lr:g} {final.lr_scheduler}"
    if final.merge_with_base:
        text += f", averaged with the base model (weight {final.merge_with_base:.0%})"
    if device.startswith("cuda") and not final.compile and len(rows) >= WORTH_COMPILING:
        text += "; --compile may make steps of small batches faster, after a minute or two"
    return text
