"""Preparation of a training run from its configuration, including validation of its input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..augment import AUGMENTATIONS
from ..augment.base import Draws, Edit, Example, Pairing, TextMethod
from ..background import ProgressCallback
from ..context import Context
from ..data.corpus import Corpus
from ..data.held_out import hold_out
from ..data.pairs import LabelledPairs
from ..errors import InputError
from ..evaluation.sts import Pairs, Task, load_tasks, read_pairs
from ..losses import CONTRASTIVE, CONTRASTIVE_LOSSES
from ..models.device import describe_device, pick_device, pick_precision, set_threads
from ..models.merging import BaseWeights
from ..models.prompts import training_prompts
from ..models.resolve import find_model
from ..tfidf.index import TfidfIndex
from .batches import Batches
from .callbacks import Callback
from .checks import check_learnable, corpus_warnings, once_warnings
from .distributed import World
from .encode import Forward
from .facts import facts_of
from .inputs import check_indexed, open_corpus, open_labelled
from .interrupts import check_free
from .loggers import loggers
from .modules import build_modules, connect, create, views_of
from .optimizer import build_optimizer
from .precedence import DEFAULT_MODEL, recipe_reason, resolve, with_preset
from .same_inputs import fingerprints
from .saturation import SaturationCheck
from .selection import Selector
from .settings import flag
from .state import TrainState
from .token_files import StoredTokens, open_tokens
from .train_config import LOSS_SETTINGS, ResolvedConfig, TrainConfig
from .unchanged_augmentations import unchanged_warning

__all__ = ["Run", "prepare"]


@dataclass
class Run:
    """A training run, ready to start."""

    config: ResolvedConfig
    """The configuration, including the options of all methods that are used."""
    folder: Path
    device: str
    state: TrainState
    base: BaseWeights
    """The weights before training, for ``merge_with_base``."""
    batches: Batches
    forward: Forward
    """How batches are encoded."""
    tokens: dict[int, StoredTokens]
    """Stored token ids by column number; see ``open_tokens``."""
    tasks: list[tuple[Task, Pairs]]
    facts: dict[str, str]
    """Descriptions of device, model, loss, corpus and so on, by name; they are shown before training."""
    examples: list[Example]
    """Sentences with their augmented forms, shown before training."""
    loggers: list[Callback]
    precision_reason: str
    """Why ``config.precision`` has its value."""
    data: dict[str, Any]
    """Fingerprints of the corpus, the index and the files of methods; a resumed run must have the same ones."""

    @contextmanager
    def saved_weights(self) -> Iterator[None]:
        """Context manager in which the encoder has the weights that are evaluated and saved."""
        with self.state.for_evaluation(), self.base.merged(self.state.encoder):
            yield


def prepare(
    config: TrainConfig,
    world: World | None = None,
    folder: Path | None = None,
    callback: Callback | None = None,
    texts: Sequence[str] | None = None,
) -> Run:
    """Opens the inputs of a run, loads the model, and creates the initial state.

    Args:
        config: The configuration.
        world: The ranks of the run. Default: one.
        folder: Folder of the run, if it is resumed. Default: a new folder.
        callback: Its ``on_progress`` is called while a large corpus is written to the cache or tokenized.
        texts: Sentences in memory that are used instead of a corpus; see ``with_texts``.

    Raises:
        InputError: For an invalid configuration, or an invalid index, corpus, model or data file.
        OSError: For a file that cannot be read, or a cache that cannot be written.
    """
    callback = callback or Callback()
    config = with_preset(config)
    set_threads(config.threads)
    world = world or World()
    device = world.device(pick_device(config.device))
    own, reason = pick_precision(device, config.precision)
    precision = world.agreed(lambda: own)  # speeds measured by the ranks may suggest different precisions
    watching = loggers(config.loggers)
    context = Context(
        lambda: TfidfIndex.open(config.tfidf, min_df=config.min_df, max_terms=config.max_terms), part=world.part
    )
    for path in config.imports:
        context.depends_on(path)
    data = open_data(config, context, callback.on_progress, texts)
    pairs = {path: read_pairs(path) for path in config.dev}
    tasks = load_tasks(config.data, config.allow_partial) if config.data else []
    resumed = folder is not None
    if config.name is not None:
        folder = folder or choose_folder(config)  # checked before the model is loaded
    source = find_model(config.model or DEFAULT_MODEL)
    resolved = resolve(config, source.family, source.pooler, precision)
    folder = folder or choose_folder(resolved)
    if resolved.max_length > source.max_length:
        raise InputError(
            f"--max-length: {resolved.max_length} is more than the {source.max_length} tokens of the model; lower it"
        )

    data.divide(context, resolved.seed, wanted=not pairs)
    corpus, split, context.device = data.corpus, data.split, device
    positive: Edit | Pairing = create(AUGMENTATIONS, resolved.positive, resolved.options, context)
    negatives = {name: _negative(name, resolved.options, context) for name in resolved.negatives}
    if context.index_is_used:
        check_indexed(corpus, context.index)
    batches = Batches(
        corpus,
        split.train,
        positive,
        list(negatives.values()),
        batch_size=resolved.batch_size,
        seed=resolved.seed,
        epochs=resolved.epochs,
        max_steps=resolved.max_steps,
        accumulate=resolved.accumulate,
        keep_duplicates=resolved.keep_duplicates,
        part=world.part,
    )
    check_sizes(batches, resolved.accumulate, world.size)
    check_learnable((resolved.positive, positive), negatives.items(), corpus, split.train, resolved.seed)
    source, prompts = training_prompts(source, resolved.prompt, bool(resolved.pairs))
    modules = build_modules(resolved, source, context, world.rank)
    for name in ("min_df", "max_terms"):
        if (resolved.given or {}).get(name) and not context.index_is_used:
            raise InputError(
                f"{flag(name)}: selects terms of the TF-IDF index, which the run does not use; add a method that uses "
                f"it, such as --una, or leave {flag(name)} out"
            )
    batches.prompts = prompts.counted(modules.encoder.tokenizer, source)
    connect(batches, views_of(resolved), modules)
    resolved = _with_used_options(resolved, {resolved.positive: positive, **negatives, **modules.by_name})
    encoder = modules.encoder
    reading = {"encoding_errors": resolved.encoding_errors, "max_line_bytes": resolved.max_line_bytes}
    tokens = open_tokens(
        batches, data.columns, encoder.tokenizer, resolved.max_length, reading, resolved.cache, callback.on_progress
    )
    optimizer = build_optimizer(modules.all, resolved.lr, resolved.weight_decay)
    held_out = corpus.take(split.held_out)
    first = next(iter(negatives.values()), None)
    synthetic = first(held_out, split.held_out, Draws(resolved.seed, 0)) if held_out and first else []
    selector = Selector(encoder, pairs, held_out, synthetic)
    text, warnings = corpus_warnings(
        corpus,
        split.train,
        positive,
        resolved.seed,
        encoder.tokenizer,
        resolved.max_length,
        source.max_length,
        resolved.model,
    )
    unchanged = unchanged_warning(
        list(negatives.values()), corpus, split.train, resolved.seed, encoder.tokenizer, resolved.max_length
    )
    warnings += [unchanged] if unchanged else []
    if not resumed:  # a resumed run takes the weights of the terms from its checkpoint
        warnings += [term.warning for term in modules.terms.values() if term.warning]
    warnings += once_warnings(negatives, len(batches))
    rows = batches[0].rows[:3]
    if any(block.shared and len({view.passes for view in block.views}) > 1 for block in batches[0].blocks.values()):
        raise InputError(
            f"--positive {resolved.positive}: its options share a dropout mask between the two views, which needs the "
            "same encoder, dropout and hook for both; leave one of them out"
        )
    shown: list[tuple[str, TextMethod]] = [(resolved.positive, positive), *negatives.items()]
    examples = [
        replace(item, method=name)
        for name, each in shown
        for item in each.examples(corpus.take(rows), rows, Draws(resolved.seed, 0))
    ]
    return Run(
        config=resolved,
        folder=folder,
        device=device,
        state=TrainState(
            encoder,
            modules.terms,
            modules.features,
            optimizer,
            selector,
            SaturationCheck(resolved.positive, resolved.temperature),
            second=modules.second,
            hooks=modules.hooks,
            methods=modules.methods,
            steps=len(batches),
        ),
        base=BaseWeights(encoder, resolved.merge_with_base),
        batches=batches,
        forward=Forward(device, precision, resolved.chunk_size, resolved.compile, resolved.seed),
        tokens=tokens,
        tasks=tasks,
        facts={
            "device": describe_device(device, precision, reason),
            "recipe": recipe_reason(resolved, source.family),
            **facts_of(resolved, corpus, split, batches),
            **({"processes": f"{world.size}, each with a part of the batch"} if world.size > 1 else {}),
            **({"columns": data.labelled.describe()} if data.labelled is not None else {}),
            **({"prompt": prompts.describe()} if prompts.anchor or prompts.document else {}),
            "text": text,
            **({"warning": "; ".join(warnings)} if warnings else {}),
        },
        examples=examples,
        loggers=watching,
        precision_reason=reason,
        data=fingerprints(data.labelled or corpus, config.tfidf if context.index_is_used else None, context.files),
    )


@dataclass
class Data:
    """The sentences of a run."""

    corpus: Corpus
    """The sentences; for labelled pairs, the anchors."""
    labelled: LabelledPairs | None

    @property
    def columns(self) -> list[Corpus]:
        """The corpora by column number."""
        return [self.corpus] if self.labelled is None else self.labelled.corpora

    def divide(self, context: Context, seed: int, wanted: bool) -> None:
        """Sets ``split`` (training rows and, if ``wanted``, held-out rows) and ``context.rows`` (training rows)."""
        labelled = self.labelled
        self.split = hold_out(self.corpus, seed, wanted=wanted, rows=None if labelled is None else labelled.complete())
        if labelled is not None:  # rows excluded by --where or --min-score do not count as blank
            self.split = replace(self.split, blank=self.split.blank - labelled.left_out)
        context.rows = self.split.train


def open_data(config: TrainConfig, context: Context, progress: ProgressCallback, texts: Sequence[str] | None) -> Data:
    """Opens labelled pairs or the corpus, and passes them to the context."""
    context.pairs = open_labelled(config, progress)
    if context.pairs is None:
        context.corpus = open_corpus(config, None if config.corpus else context.index, progress, texts)
    else:
        context.corpus = context.pairs.anchors
    return Data(context.corpus, context.pairs)


def check_sizes(batches: Batches, accumulate: int, ranks: int) -> None:
    """Raises ``InputError`` if there are too few sentences for a step, or more ranks than rows in a batch."""
    rows = len(batches.rows)
    if rows < 2:
        raise InputError(
            f"CORPUS: has {rows} sentence{'s' * (rows != 1)}; contrastive learning needs at least two, and preferably "
            "thousands"
        )
    if batches.size > rows:
        raise InputError(f"--batch-size: {batches.size} is more than the {rows} training sentences; lower it")
    if not len(batches):
        raise InputError(f"--accumulate: {accumulate} batches are more than the run has; lower it")
    if batches.size < ranks:
        raise InputError(f"--batch-size: {batches.size} is less than the {ranks} processes; raise it")


def choose_folder(config: TrainConfig | ResolvedConfig) -> Path:
    """Returns the folder of a new run; raises ``InputError`` for a name that is invalid or in use."""
    parent = Path(config.output)
    if config.name is not None:
        if not config.name.isprintable() or not config.name.strip() or "/" in config.name or config.name in (".", ".."):
            raise InputError(f"--name: {config.name!r} cannot be the name of a folder; use letters, digits, - and _")
        check_free(parent / config.name)
        return parent / config.name
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.model or DEFAULT_MODEL).name) or "model"
    methods = "".join(f"-{name}" for name in config.negatives)
    stem = f"{model}-{config.loss}{methods}-seed{config.seed}"
    number = 1
    while (folder := parent / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return folder


def _negative(name: str, options: Mapping[str, Mapping[str, Any]], context: Context) -> Edit:
    method = create(AUGMENTATIONS, name, options, context)
    if not isinstance(method, Edit):
        raise InputError(f"--negative {name}: this method makes positives; use --positive {name}")
    return method


def _with_used_options(config: ResolvedConfig, methods: dict[str, Any]) -> ResolvedConfig:
    """Returns the configuration with all options of the methods, including defaults."""
    used = {name: asdict(method.options) for name, method in methods.items()}
    if config.loss in CONTRASTIVE_LOSSES:
        used[CONTRASTIVE] = {name: value for name, value in used[CONTRASTIVE].items() if name not in LOSS_SETTINGS}
    return config.model_copy(update={"options": {name: table for name, table in used.items() if table}})
