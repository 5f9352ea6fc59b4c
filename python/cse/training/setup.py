"""Preparation of a training run: its parts are built in order, each from its settings and the parts before it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from ..background import ProgressCallback
from ..context import Context
from ..encoder import prompts, resolve
from ..encoder.trained import load_encoder
from ..errors import InputError
from ..features import FEATURE_AUGMENTATIONS, HOOKS
from .batches import batches, checks, tokens
from .build import data, evaluation, index, loss, methods, optimisation
from .folder.outputs import choose_folder
from .machine import Machine, use_machine
from .run import Plan, Run
from .settings import config, precedence, presets
from .step import distributed, encode, state

# Steps from which compiling, which took 35 s on an H200, takes less time than it saves (30 ms a step there).
WORTH_COMPILING = 2000


def prepare(
    settings: config.TrainConfig,
    world: distributed.World | None = None,
    folder: Path | None = None,
    progress: ProgressCallback = lambda *_: None,
    texts: Sequence[str] | None = None,
) -> Run:
    """Builds the parts of a run in order: data, encoder, batches, objective, optimiser, evaluation and folder.

    Args:
        settings: The configuration.
        world: The ranks of the run. Default: one.
        folder: Folder of the run, if it is resumed. Default: a new folder.
        progress: Called while a large corpus is written to the cache or tokenized.
        texts: Sentences in memory that are used instead of a corpus.

    Raises:
        InputError: For an invalid configuration, or an invalid index, corpus, model or data file.
        OSError: For a file that cannot be read, or a cache that cannot be written.
    """
    world, settings = world or distributed.World(), precedence.with_preset(settings)
    machine = use_machine(settings.device, settings.threads, settings.precision, world)
    context = methods.open_context(settings.imports, machine.device, world.part)
    named = bool(settings.corpus or settings.pairs or texts is not None)
    filters = {"min_df": settings.min_df, "max_terms": settings.max_terms}
    run_index = index.RunIndex(settings.tfidf, folder, named, filters, context)
    context.open_index = run_index.open
    whole = presets.is_published((settings.given or {}).get("preset"))
    evaluated = evaluation.open_evaluation(
        settings.dev, whole, settings.judged_queries, settings.data, settings.allow_partial
    )
    of_data = ("corpus", "column", "pairs", "columns", "where", "min_score", "seed", "labels")
    opened = data.open_data(
        context,
        progress,
        texts,
        {name: getattr(settings, name) for name in ("encoding_errors", "max_line_bytes", "threads", "cache")},
        **{name: getattr(settings, name) for name in of_data},
        weighted=settings.contrastive.hard_negative_weight != 1,
        held_out=not settings.dev,
    )
    place = folder
    if settings.name is not None:
        place = place or free_folder(settings)  # checked before the model is searched for
    context.model = settings.model or precedence.DEFAULT_MODEL
    source = resolve.find_model(context.model)
    final = precedence.resolve(settings, source.family, source.pooler, machine.precision)
    place = place or free_folder(final)
    made = methods.text_methods(final.positive, final.negatives, final.options, context)
    run_index.check()
    sizes = ("batch_size", "epochs", "max_steps", "accumulate", "keep_duplicates")
    rows = made.batches(opened, final.seed, world, **{name: getattr(final, name) for name in sizes})
    built = build_modules(final, source, context, rows, world.rank)
    final = final.with_used_options({**made.all, **built.by_name})
    ids = tokens.open_tokens(rows, opened.columns, built.encoder.tokenizer, final.max_length, opened.reading, progress)
    negative = next(iter(made.negatives.values()), None)
    selector = evaluated.selector(built.encoder, opened, negative, final.seed, machine.precision)
    optimizer = optimisation.build_optimizer(list(built.modules().values()), final.lr, final.weight_decay)
    started = built.begin(optimizer, selector, final.positive, final.temperature, len(rows))
    forward = encode.Forward(machine.device, machine.precision, final.chunk_size, final.compile, final.seed)
    examples = made.examples(rows, final.seed)
    facts = describe(final, machine, source, opened, made, rows, built, run_index, resumed=folder is not None)
    same = opened.fingerprints(run_index.sha256, context.files)
    plan = plan_of(final, made)
    return Run(
        *(final, plan, place, machine, started, rows, forward, ids, evaluated),
        measures=evaluated.measures(opened),
        unjudged=opened.unjudged,
        facts=facts,
        examples=examples,
        data=same,
        index=run_index,
    )


def plan_of(final: config.ResolvedConfig, made: methods.TextMethods) -> Plan:
    """Returns how the run proceeds, and what the card of its model says."""
    negatives = "; ".join(f"{name} {method.describe()}" for name, method in made.negatives.items())
    text = (
        f"Loss: {loss.describe_loss(final.loss, final.loss_terms, final.contrastive)}. Positives: {final.positive}. "
        + (f"Synthetic negatives: {negatives}." if negatives else "No synthetic negatives.")
    )
    card = {
        "model": final.model,
        "seed": final.seed,
        "methods": final.public_text(text),
        "config": final.public().to_toml(),
    }
    same = ["batch_size", "max_length", "chunk_size", "max_grad_norm", "merge_with_base", "graphs"]
    same += ["eval_every", "log_every", "save_every", "keep_checkpoints", "patience"]
    return Plan(
        schedule=optimisation.Schedule(final.lr, final.lr_scheduler, final.warmup),
        compiled=final.compile,
        **{name: getattr(final, name) for name in same},
        free_folder=partial(free_folder, final),
        card=card,
    )


def free_folder(settings: config.TrainConfig) -> Path:
    """Returns the folder of a new run; raises ``InputError`` for a name that is invalid or in use."""
    model = settings.model or precedence.DEFAULT_MODEL
    return choose_folder(settings.output, settings.name, model, (settings.loss, *settings.negatives), settings.seed)


def build_modules(
    final: config.ResolvedConfig,
    source: resolve.Source,
    context: Context,
    rows: batches.Batches,
    rank: int,
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
    options = final.options
    built = state.Modules(
        encoder=trained,
        methods=methods.encoder_methods(final.encoder_methods, options, context),
        second=methods.second_encoder(final.positive_encoder, final.pooler, final.keep_head, context),
        terms=loss.loss_terms(final.loss, final.loss_terms, final.contrastive, options, context),
        features={
            name: methods.create(FEATURE_AUGMENTATIONS, name, options, context) for name in final.feature_augmentations
        },
        hooks={name: methods.create(HOOKS, name, options, context) for name in hooks.values() if name},
    )
    methods.check_used(built, context, final.given or {}, dropout)
    # The graphs of a compiled transformer require that a step encodes one batch as a whole.
    graphs = not final.graphs and final.chunk_size is None and final.accumulate == 1
    state.accelerate(built, context.device, compiled=final.compile, graphs=graphs)
    if rank:  # rank 0 continues after the initial weights
        torch.manual_seed(final.seed + 2**32 * rank)
    views = methods.views_of(hooks, dropout, second=final.positive_encoder is not None)
    state.connect(rows, views, built, prompted.counted(trained))
    return built


def describe(
    final: config.ResolvedConfig,
    machine: Machine,
    source: resolve.Source,
    opened: data.TrainingData,
    made: methods.TextMethods,
    rows: batches.Batches,
    built: state.Modules,
    run_index: index.RunIndex,
    resumed: bool,
) -> dict[str, str]:
    """Returns the descriptions that are shown before training (model, loss, corpus and so on), by name."""
    tokenizer, prompted = built.encoder.tokenizer, rows.prompts
    text, warnings = checks.examine(
        rows, made.negatives, tokenizer, final.max_length, built.encoder.max_length, final.model
    )
    warnings += [opened.unjudged] if opened.unjudged else []
    if not resumed:  # a resumed run takes the weights of the terms from its checkpoint
        warnings += [term.warning for term in built.terms.values() if term.warning]
    evaluated = f" in training, {final.eval_pooler} in evaluation" if final.eval_pooler else ""
    return {
        **machine.describe(),
        "recipe": precedence.recipe_reason(final, source.family),
        "model": f"{final.model}, pooler {final.pooler}{evaluated}",
        "loss": loss.describe_loss(final.loss, final.loss_terms, final.contrastive),
        **made.describe(),
        **opened.describe(),
        **run_index.facts,
        "steps": describe_steps(final, rows, machine.device),
        **({"prompt": prompted.describe()} if prompted.anchor or prompted.document else {}),
        "text": text,
        **({"warning": "; ".join(warnings)} if warnings else {}),
    }


def describe_steps(final: config.ResolvedConfig, rows: batches.Batches, device: str) -> str:
    """Returns the number and size of the steps, and the learning rate; long runs on a GPU without --compile: a hint."""
    times = f" x {final.accumulate}" if final.accumulate > 1 else ""
    text = f"{len(rows):,} of {rows.size}{times} sentences, lr {final.lr:g} {final.lr_scheduler}"
    if final.merge_with_base:
        text += f", averaged with the base model (weight {final.merge_with_base:.0%})"
    if device.startswith("cuda") and not final.compile and len(rows) >= WORTH_COMPILING:
        text += "; --compile can make steps of small batches more than twice as fast, after a minute or two"
    return text
