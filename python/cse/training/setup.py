"""Preparation of a training run: its parts are built in order, each from its settings and the parts before it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..background import ProgressCallback
from ..context import Context
from ..models.reading import prompts, resolve
from ..models.saving import merging
from .batches import batches, checks, tokens
from .folder.outputs import choose_folder
from .parts import data, encoder, evaluation, loss, methods, optimisation, output
from .run import Run
from .settings import config as configs
from .settings import precedence
from .step import distributed, modules, state
from .watching import records, selection


def prepare(
    config: configs.TrainConfig,
    world: distributed.World | None = None,
    folder: Path | None = None,
    progress: ProgressCallback | None = None,
    texts: Sequence[str] | None = None,
) -> Run:
    """Builds the parts of a run in order: data, encoder, batches, objective, optimiser, evaluation and folder.

    Args:
        config: The configuration.
        world: The ranks of the run. Default: one.
        folder: Folder of the run, if it is resumed. Default: a new folder.
        progress: Called while a large corpus is written to the cache or tokenized.
        texts: Sentences in memory that are used instead of a corpus.

    Raises:
        InputError: For an invalid configuration, or an invalid index, corpus, model or data file.
        OSError: For a file that cannot be read, or a cache that cannot be written.
    """
    world, progress, resumed = world or distributed.World(), progress or (lambda *_: None), folder is not None
    config = precedence.with_preset(config)
    machine = output.use_machine(config, config.precision, world)
    context = methods.open_context(config, config, machine.device, world.part)
    evaluated = evaluation.open_evaluation(config)
    opened = data.open_data(config, context, progress, texts, config, config.weighted, held_out=not config.dev)
    source, final, folder = settle(config, machine, folder)
    made = methods.text_methods(final, final.options, context)
    rows = made.batches(final, final, opened, final.seed, world)
    source, prompted = prompts.training_prompts(source, final.prompt, bool(final.pairs))
    built = build_modules(final, source, context, world.rank)
    modules.connect(rows, methods.views_of(final), built, prompted.counted(built.encoder.tokenizer, source))
    final = final.with_used_options({**made.all, **built.by_name})
    columns, tokenizer = opened.columns, built.encoder.tokenizer
    stored = tokens.open_tokens(rows, columns, tokenizer, final.max_length, opened.reading, progress)
    selector = evaluated.selector(built.encoder, opened, made.first_negative, final.seed)
    started = begin(final, built, selector, len(rows))
    forward = optimisation.forward_of(final, final, machine)
    facts = describe(final, machine, source, opened, made, rows, built, resumed)
    index = final.tfidf if context.index_is_used else None
    same = opened.fingerprints(index, context.files, built.encoder.added_tokens)
    base, examples = merging.BaseWeights(built.encoder, final.merge_with_base), made.examples(rows, final.seed)
    return Run(final, folder, machine, started, base, rows, forward, stored, evaluated, facts, examples, same)


def settle(
    config: configs.TrainConfig, machine: output.Machine, folder: Path | None
) -> tuple[resolve.Source, configs.ResolvedConfig, Path]:
    """Finds the model, fills in the defaults that depend on it, and chooses the folder of the run."""
    if config.name is not None:
        folder = folder or choose_folder(config)  # checked before the model is searched for
    source = resolve.find_model(config.model or encoder.DEFAULT_MODEL)
    final = precedence.resolve(config, source.family, source.pooler, machine.precision)
    encoder.check_length(final.max_length, source)
    return source, final, folder or choose_folder(final)


def build_modules(config: configs.ResolvedConfig, source: resolve.Source, context: Context, rank: int) -> state.Modules:
    """Loads the encoder and creates the other modules of a run, on the device of the run.

    The order of creation determines the initial weights, which come from PyTorch's generator.
    """
    built = state.Modules(
        encoder=encoder.build_encoder(config, source, context, config.seed),
        methods=methods.encoder_methods(config, config.options, context),
        second=methods.second_encoder(config, config, context),
        terms=loss.loss_terms(config, config.contrastive, config.options, context),
        features=methods.feature_methods(config, config.options, context),
        hooks=methods.hooks(config, config.options, context),
    )
    methods.check_used(config, built, context, config.given or {})
    encoder.check_added(built.encoder)
    modules.accelerate(built, context.device, config.chunk_size, config.accumulate, compiled=config.compile)
    encoder.seed_dropout(config.seed, rank)
    return built


def begin(
    config: configs.ResolvedConfig, built: state.Modules, selector: selection.Selector, steps: int
) -> state.TrainState:
    """Returns the state of a run before its first step."""
    optimizer = optimisation.build_optimizer(config, list(built.modules().values()))
    saturation = records.SaturationCheck(config.positive, config.temperature)
    found = state.TrainState(**vars(built), optimizer=optimizer, selector=selector, saturation=saturation)
    found.steps = steps
    return found


def describe(
    config: configs.ResolvedConfig,
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
    text, warnings = checks.examine(rows, made.negatives, tokenizer, config.max_length, source.max_length, config.model)
    if not resumed:  # a resumed run takes the weights of the terms from its checkpoint
        warnings += [term.warning for term in built.terms.values() if term.warning]
    return {
        **machine.describe(),
        "recipe": precedence.recipe_reason(config, source.family),
        **encoder.describe_model(config, built.encoder.added_tokens),
        "loss": loss.describe_loss(config, config.contrastive),
        **made.describe(),
        **opened.describe(),
        **optimisation.describe_steps(config, rows),
        **({"prompt": prompted.describe()} if prompted.anchor or prompted.document else {}),
        "text": text,
        **({"warning": "; ".join(warnings)} if warnings else {}),
    }
