"""Preparation of a training run from its configuration, including all validation of the input."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..augment import AUGMENTATIONS, FEATURE_AUGMENTATIONS
from ..augment.base import Augmentation, Example, Resources
from ..data.corpus import Corpus, Split, hold_out
from ..errors import InputError
from ..evaluation.sts import Pairs, Task, load_tasks, read_pairs
from ..losses import LOSS_TERMS
from ..losses.base import LossTerm
from ..losses.contrastive import Contrastive, ContrastiveOptions
from ..models.attention import mask_always
from ..models.device import compile_backbone, describe_device, pick_device, set_threads
from ..models.dropout import use_fast_dropout
from ..models.encoder import SentenceEncoder, load_encoder
from ..models.merging import BaseWeights
from ..models.resolve import find_model
from ..registry import parse_options
from ..tfidf.index import TfidfIndex
from . import recipes
from .batches import Batches
from .callbacks import Callback
from .checks import corpus_warnings, unchanged_warning
from .config import ResolvedConfig, TrainConfig
from .distributed import World
from .inputs import check_indexed, fingerprints, open_corpus, open_labelled
from .loggers import Loggers
from .saturation import SaturationCheck
from .selection import Selector
from .state import TrainState
from .step import build_optimizer
from .token_files import StoredTokens, open_tokens

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
    tokens: dict[int, StoredTokens]
    """Stored token ids by column number; see ``open_tokens``."""
    tasks: list[tuple[Task, Pairs]]
    facts: dict[str, str]
    """Descriptions of device, model, loss, corpus and so on by name, shown before training."""
    examples: list[Example]
    """Sentences with their augmented forms, shown before training."""
    loggers: Loggers
    data: dict[str, Any]
    """Fingerprints of corpus and index, which must be the same when the run is resumed."""


def prepare(
    config: TrainConfig,
    world: World | None = None,
    folder: Path | None = None,
    callback: Callback | None = None,
) -> Run:
    """Opens index, corpus and model, and creates the initial state of the run.

    Args:
        config: The configuration.
        world: The ranks of the run. Default: one.
        folder: Folder of a run that is resumed. Default: a new one.
        callback: Its ``on_progress`` is called in phases that take time.

    Raises:
        InputError: For an invalid configuration, or an invalid index, corpus, model or data file.
        OSError: For a file that cannot be read.
    """
    callback = callback or Callback()
    config = recipes.with_preset(config)
    set_threads(config.threads)
    world = world or World()
    device = world.device(pick_device(config.device))
    loggers = Loggers(config.loggers)
    needs_index = any(method.needs_index for method in _augmentations(config))
    index = None
    if needs_index or not (config.corpus or config.pairs):
        index = TfidfIndex.open(config.tfidf, min_df=config.min_df, max_terms=config.max_terms)
    labelled = open_labelled(config, callback.on_progress)
    corpus = open_corpus(config, index, callback.on_progress) if labelled is None else labelled.anchors
    check_indexed(corpus, index)
    pairs = {path: read_pairs(path) for path in config.dev}
    tasks = load_tasks(config.data, config.allow_partial) if config.data else []
    folder = folder or choose_folder(config)
    source = find_model(config.model or recipes.DEFAULT_MODEL)
    resolved = recipes.resolve(config, source.family, source.pooler)
    if resolved.max_length > source.max_length:
        raise InputError(
            f"--max-length: {resolved.max_length} is more than the {source.max_length} tokens the model takes"
        )

    resources = Resources(index if needs_index else None, labelled)
    positive = _method(AUGMENTATIONS, resolved, resolved.positive, resources)
    negatives: list[Augmentation] = [_method(AUGMENTATIONS, resolved, name, resources) for name in resolved.negatives]
    features = [_method(FEATURE_AUGMENTATIONS, resolved, name) for name in resolved.feature_augmentations]
    split = hold_out(corpus, resolved.seed, wanted=not pairs, rows=None if labelled is None else labelled.complete())
    batches = Batches(resolved, corpus, split.train, positive, negatives)
    if len(split.train) < 2:
        raise InputError("CORPUS: has one sentence; contrastive learning needs at least two, and better thousands")
    if batches.size > len(split.train):
        raise InputError(
            f"--batch-size: {batches.size} is more than the {len(split.train)} sentences there are to train on"
        )
    if not len(batches):
        raise InputError(f"--accumulate: {resolved.accumulate} batches are more than an epoch has; lower it")
    if batches.size < world.size:
        raise InputError(f"--batch-size: {batches.size} is less than the {world.size} processes; raise it")

    check_roles(resolved, positive, negatives, corpus.take(split.train[:2]), split.train[:2])

    # PyTorch's generator is used only for the initial weights of heads and for dropout.
    torch.manual_seed(resolved.seed)
    encoder = load_encoder(source, resolved.pooler, keep_head=resolved.keep_head).to(device)
    terms = _loss_terms(resolved, encoder)
    if device != "cpu":
        mask_always(encoder.backbone)
    elif not resolved.compile:
        use_fast_dropout(encoder.backbone)
    if resolved.compile:
        one_pass = resolved.accumulate == 1 and resolved.chunk_size is None
        compile_backbone(encoder.backbone, device, graphs=one_pass)
    if world.rank:  # other dropout masks than those of rank 0; the weights are initialised alike
        torch.manual_seed(resolved.seed + 2**32 * world.rank)
    methods = {resolved.positive: positive, **dict(zip(resolved.negatives, negatives, strict=True)), **terms}
    methods |= dict(zip(resolved.feature_augmentations, features, strict=True))
    resolved = _with_used_options(resolved, methods)
    batches.config = resolved
    columns = [corpus] if labelled is None else labelled.corpora
    tokens = open_tokens(resolved, batches, columns, encoder.tokenizer, callback.on_progress)
    for term in terms.values():
        term.to(device)
    optimizer = build_optimizer([encoder, *terms.values()], resolved)
    held_out = corpus.take(split.held_out)
    synthetic: list[str] = []
    for augmentation in negatives:
        if held_out and not synthetic:
            blocks = augmentation(held_out, split.held_out, seed=resolved.seed, epoch=0)
            synthetic = blocks["synthetic"].texts if "synthetic" in blocks else []
    selector = Selector(encoder, pairs, held_out, synthetic)
    text, warnings = corpus_warnings(corpus, split.train, encoder.tokenizer, resolved.max_length, resolved.model)
    unchanged = unchanged_warning(negatives, corpus, split.train, resolved.seed)
    warnings += [unchanged] if unchanged else []
    rows = batches[0].rows[:3]
    shown = [each for each in (positive, *negatives) if each is not positive or resolved.positive != "dropout"]
    examples = [item for each in shown for item in each.examples(corpus.take(rows), rows, seed=resolved.seed)]
    return Run(
        config=resolved,
        folder=folder,
        device=device,
        state=TrainState(
            encoder, terms, features, optimizer, selector, SaturationCheck(resolved.positive, resolved.temperature)
        ),
        base=BaseWeights(encoder, resolved.merge_with_base),
        batches=batches,
        tokens=tokens,
        tasks=tasks,
        facts={
            **_facts(resolved, corpus, split, batches, device),
            **({"processes": f"{world.size}, each with a part of the batch"} if world.size > 1 else {}),
            "text": text,
            **({"warning": "; ".join(warnings)} if warnings else {}),
        },
        examples=examples,
        loggers=loggers,
        data=fingerprints(corpus if labelled is None else labelled, index, config.tfidf),
    )


def check_roles(
    config: ResolvedConfig,
    positive: Augmentation,
    negatives: list[Augmentation],
    texts: list[str],
    rows: npt.NDArray[np.int64],
) -> None:
    """Raises ``InputError`` if a positive or a negative makes other views than its role allows, or one twice."""
    made = [view for block in positive(texts, rows, seed=config.seed, epoch=0).values() for view in block.views]
    if sorted(made) not in (["anchor", "positive"], ["anchor", "hard_negative", "positive"]):
        raise InputError(f"--positive {config.positive}: makes the views {', '.join(made)}, not anchor and positive")
    seen: set[str] = set()
    for name, augmentation in zip(config.negatives, negatives, strict=True):
        blocks = augmentation(texts, rows, seed=config.seed, epoch=0)
        views = {view for block in blocks.values() for view in block.views}
        if not views <= {"synthetic", "synthetic_positive"}:
            raise InputError(f"--negative {name}: makes positives; use --positive {name}")
        if seen & views:
            raise InputError(f"--negative {name}: another augmentation makes synthetic negatives already; use one")
        seen |= views


def choose_folder(config: TrainConfig | ResolvedConfig) -> Path:
    """Returns the folder of the run, which does not exist; raises ``InputError`` for an invalid or existing name."""
    parent = Path(config.output)
    if config.name is not None:
        if not config.name or "/" in config.name or config.name in (".", ".."):
            raise InputError(f"--name: {config.name!r} cannot be the name of a folder")
        if (parent / config.name).exists():
            raise InputError(f"--name: {parent / config.name} exists; choose another name or remove it")
        return parent / config.name
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.model or recipes.DEFAULT_MODEL).name) or "model"
    methods = "".join(f"-{name}" for name in config.negatives)
    stem = f"{model}-{config.loss}{methods}-seed{config.seed}"
    number = 1
    while (folder := parent / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return folder


def _augmentations(config: TrainConfig) -> list[type[Augmentation]]:
    names = [config.positive] if config.positive else []
    return [AUGMENTATIONS.get(name) for name in (*names, *config.negatives)]


def _method(table: Any, config: ResolvedConfig, name: str, *arguments: Any) -> Any:
    method = table.get(name)
    return method(parse_options(name, method.Options, config.options.get(name, {})), *arguments)


def _loss_terms(config: ResolvedConfig, encoder: SentenceEncoder) -> dict[str, LossTerm]:
    """Creates the loss terms: the contrastive loss first, then the additional terms, by name."""
    parts = ContrastiveOptions(
        objective=config.objective,
        logits=config.logits,
        temperature=config.temperature,
        margin=config.margin,
        mixed=config.mix_variant if config.mixed_negatives else None,
        mix_lambda=config.mix_lambda,
        hard_negative_weight=config.hard_negative_weight,
    )
    terms: dict[str, LossTerm] = {"contrastive": Contrastive(parts, encoder)}
    for name in config.loss_terms:
        terms[name] = _method(LOSS_TERMS, config, name, encoder)
    return terms


def _with_used_options(config: ResolvedConfig, methods: dict[str, Any]) -> ResolvedConfig:
    """Returns the configuration with all options of the methods, including defaults."""
    used = {name: asdict(method.options) for name, method in methods.items() if name != "contrastive"}
    return config.replace(options={name: table for name, table in used.items() if table})


def _facts(config: ResolvedConfig, corpus: Corpus, split: Split, batches: Batches, device: str) -> dict[str, str]:
    negatives = [f"{name} {each.describe()}" for name, each in zip(config.negatives, batches.negatives, strict=True)]
    options = batches.positive.describe()
    return {
        "device": describe_device(device, config.precision),
        "model": f"{config.model}, pooler {config.pooler}",
        "loss": describe_loss(config),
        "positive": f"{config.positive}{f' ({options})' if options else ''}",
        "negatives": "; ".join(["in the batch", *negatives]),
        "corpus": f"{len(corpus):,} rows: {len(split.train):,} to train on"
        + (f", {len(split.held_out):,} held out" if len(split.held_out) else "")
        + (f", {split.repeats:,} left out because they repeat held-out rows" if split.repeats else "")
        + (f", {split.blank:,} blank" if split.blank else "")
        + (f", {corpus.repaired:,} with repaired bytes" if corpus.repaired else "")
        + (f", {corpus.joined_lines:,} with line breaks joined" if corpus.joined_lines else ""),
        "steps": f"{len(batches):,} of {batches.size}{_times(config)} sentences, lr {config.lr:g} {config.lr_scheduler}"
        + (f", merged with {config.merge_with_base:.0%} of the base weights" if config.merge_with_base else ""),
    }


def _times(config: ResolvedConfig) -> str:
    return f" x {config.accumulate}" if config.accumulate > 1 else ""


def describe_loss(config: ResolvedConfig) -> str:
    """Returns the parts of the loss as text."""
    parts = [f"{config.objective} with {config.logits} logits, temperature {config.temperature:g}"]
    if config.logits == "focal":
        parts.append(f"margin {config.margin:g}")
    if config.mixed_negatives:
        parts.append(f"mixed negatives ({config.mix_variant}, lambda {config.mix_lambda:g})")
    return ", ".join([*parts, *config.loss_terms])
