"""Preparation of a training run: its parts are built in order, each from its settings and the parts before it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..background import ProgressCallback
from ..context import Context
from ..models.reading import prompts, resolve
from .batches import batches, checks, tokens
from .folder.outputs import choose_folder
from .parts import data, encoder, evaluation, loss, methods, optimisation, output
from .run import Run
from .settings import config, precedence
from .step import distributed, state


def prepare(
    given: config.TrainConfig,
    world: distributed.World | None = None,
    folder: Path | None = None,
    progress: ProgressCallback = lambda *_: None,
    texts: Sequence[str] | None = None,
) -> Run:
    """Builds the parts of a run in order: data, encoder, batches, objective, optimiser, evaluation and folder.

    Args:
        given: The configuration.
        world: The ranks of the run. Default: one.
        folder: Folder of the run, if it is resumed. Default: a new folder.
        progress: Called while a large corpus is written to the cache or tokenized.
        texts: Sentences in memory that are used instead of a corpus.

    Raises:
        InputError: For an invalid configuration, or an invalid index, corpus, model or data file.
        OSError: For a file that cannot be read, or a cache that cannot be written.
    """
    world, given = world or distributed.World(), precedence.with_preset(given)
    machine = output.use_machine(given, given.precision, world)
    context = methods.open_context(given, given, machine.device, world.part)
    evaluated = evaluation.open_evaluation(given)
    weighted = given.contrastive.hard_negative_weight != 1
    opened = data.open_data(given, context, progress, texts, given, weighted, held_out=not given.dev)
    source, final, place = settle(given, machine, folder)
    made = methods.text_methods(final, final.options, context)
    rows = made.batches(final, final, opened, final.seed, world)
    built, source = build_modules(final, source, context, rows, world.rank)
    final = final.with_used_options({**made.all, **built.by_name})
    ids = tokens.open_tokens(rows, opened.columns, built.encoder.tokenizer, final.max_length, opened.reading, progress)
    selector = evaluated.selector(built.encoder, opened, made.first_negative, final.seed)
    optimizer = optimisation.build_optimizer(final, list(built.modules().values()))
    started = built.begin(optimizer, selector, final.positive, final.temperature, len(rows))
    forward, examples = optimisation.forward_of(final, final, machine), made.examples(rows, final.seed)
    facts = describe(final, machine, source, opened, made, rows, built, resumed=folder is not None)
    index = final.tfidf if context.index_is_used else None
    same = opened.fingerprints(index, context.files)
    return Run(final, place, machine, started, rows, forward, ids, evaluated, facts, examples, same)


def settle(
    given: config.TrainConfig, machine: output.Machine, folder: Path | None
) -> tuple[resolve.Source, config.ResolvedConfig, Path]:
    """Finds the model, fills in the defaults that depend on it, and chooses the folder of the run."""
    if given.name is not None:
        folder = folder or choose_folder(given)  # checked before the model is searched for
    source = resolve.find_model(given.model or precedence.DEFAULT_MODEL)
    final = precedence.resolve(given, source.family, source.pooler, machine.precision)
    encoder.check_length(final.max_length, source)
    return source, final, folder or choose_folder(final)


def build_modules(
    final: config.ResolvedConfig,
    source: resolve.Source,
    context: Context,
    rows: batches.Batches,
    rank: int,
) -> tuple[state.Modules, resolve.Source]:
    """Loads the encoder, creates the other modules of a run on its device, and sets the prompts and views of batches.

    The order of creation determines the initial weights, which come from PyTorch's generator. Also returns the model,
    with the prompts to save.
    """
    source, prompted = prompts.training_prompts(source, final.prompt, bool(final.pairs))
    built = state.Modules(
        encoder=encoder.build_encoder(final, source, context, final.seed),
        methods=methods.encoder_methods(final, final.options, context),
        second=methods.second_encoder(final, final, context),
        terms=loss.loss_terms(final, final.contrastive, final.options, context),
        features=methods.feature_methods(final, final.options, context),
        hooks=methods.hooks(final, final.options, context),
    )
    methods.check_used(final, built, context, final.given or {})
    state.accelerate(built, context.device, final.chunk_size, final.accumulate, compiled=final.compile)
    encoder.seed_dropout(final.seed, rank)
    state.connect(rows, methods.views_of(final), built, prompted.counted(built.encoder.tokenizer, source))
    return built, source


def describe(
    final: config.ResolvedConfig,
    machine: output.Machine,
    source: resolve.Source,
    opened: data.TrainingData,
    made: methods.TextMethods,
    rows: batches.Batches,
    built: state.Modules,
    resumed: bool,
) -> dict[str, str]:
    """Returns the descriptions that are shown before training (model, loss, corpus and so on), by name."""
    tokenizer, prompted = built.encoder.tokenizer, rows.prompts
    text, warnings = checks.examine(rows, made.negatives, tokenizer, final.max_length, source.max_length, final.model)
    if not resumed:  # a resumed run takes the weights of the terms from its checkpoint
        warnings += [term.warning for term in built.terms.values() if term.warning]
    return {
        **machine.describe(),
        "recipe": precedence.recipe_reason(final, source.family),
        **encoder.describe_model(final),
        "loss": loss.describe_loss(final, final.contrastive),
        **made.describe(),
        **opened.describe(),
        **optimisation.describe_steps(final, rows),
        **({"prompt": prompted.describe()} if prompted.anchor or prompted.document else {}),
        "text": text,
        **({"warning": "; ".join(warnings)} if warnings else {}),
    }
