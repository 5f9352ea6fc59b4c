"""Preparation of a training run from its configuration, including all validation of the input."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..augment import AUGMENTATIONS
from ..augment.base import Draws, Edit, Example, Pairing, TextMethod, View
from ..context import Context
from ..data.corpus import Corpus, Split, hold_out
from ..errors import InputError
from ..evaluation.sts import Pairs, Task, load_tasks, read_pairs
from ..features import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ..losses import CONTRASTIVE_LOSSES, LOSS_TERMS
from ..losses.base import BatchTerm, LossTerm
from ..losses.contrastive import ContrastiveOptions
from ..models.attention import mask_always
from ..models.device import compile_backbone, describe_device, pick_device, pick_precision, set_threads
from ..models.dropout import use_fast_dropout
from ..models.encoder import SentenceEncoder, check_mask, load_encoder
from ..models.merging import BaseWeights
from ..models.resolve import find_model
from ..registry import parse_options
from ..tfidf.index import TfidfIndex
from . import recipes
from .batches import Batches
from .callbacks import Callback
from .checks import check_learnable, corpus_warnings, once_warnings, unchanged_warning
from .config import ResolvedConfig, TrainConfig
from .distributed import World
from .inputs import check_indexed, fingerprints, open_corpus, open_labelled
from .interrupts import check_free
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
    precision_reason: str
    """Why ``config.precision`` is what it is."""
    data: dict[str, Any]
    """Fingerprints of corpus and index, which must be the same when the run is resumed."""

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
    """Opens index, corpus and model, and creates the initial state of the run.

    Args:
        config: The configuration.
        world: The ranks of the run. Default: one.
        folder: Folder of a run that is resumed. Default: a new one.
        callback: Its ``on_progress`` is called in phases that take time.
        texts: The sentences, for a configuration of ``with_texts``.

    Raises:
        InputError: For an invalid configuration, or an invalid index, corpus, model or data file.
        OSError: For a file that cannot be read.
    """
    callback = callback or Callback()
    config = recipes.with_preset(config)
    set_threads(config.threads)
    world = world or World()
    device = world.device(pick_device(config.device))
    own, reason = pick_precision(device, config.precision, on_cpu=False)
    precision = world.agreed(lambda: own)  # another rank may have found another speed
    loggers = Loggers(config.loggers)
    context = Context(
        lambda: TfidfIndex.open(config.tfidf, min_df=config.min_df, max_terms=config.max_terms), part=world.part
    )
    for path in config.imports:
        context.depends_on(path)
    labelled = open_labelled(config, callback.on_progress)
    context.pairs = labelled
    if labelled is None:
        corpus = open_corpus(config, None if config.corpus else context.index, callback.on_progress, texts)
    else:
        corpus = labelled.anchors
    pairs = {path: read_pairs(path) for path in config.dev}
    tasks = load_tasks(config.data, config.allow_partial) if config.data else []
    resumed = folder is not None
    folder = folder or choose_folder(config)
    source = find_model(config.model or recipes.DEFAULT_MODEL)
    resolved = recipes.resolve(config, source.family, source.pooler).replace(precision=precision)
    if resolved.max_length > source.max_length:
        raise InputError(
            f"--max-length: {resolved.max_length} is more than the {source.max_length} tokens the model takes"
        )

    split = hold_out(corpus, resolved.seed, wanted=not pairs, rows=None if labelled is None else labelled.complete())
    if labelled is not None:  # rows that are not chosen are no blank rows
        split = replace(split, blank=split.blank - labelled.left_out)
    context.corpus, context.rows, context.device = corpus, split.train, device
    positive: Edit | Pairing = _method(AUGMENTATIONS, resolved, resolved.positive, context)
    negatives = [_negative(resolved, name, context) for name in resolved.negatives]
    if context.index_is_used:
        check_indexed(corpus, context.index)
    batches = Batches(resolved, corpus, split.train, positive, negatives, part=world.part)
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

    named = zip(resolved.negatives, negatives, strict=True)
    check_learnable((resolved.positive, positive), named, corpus, split.train, resolved.seed)

    # PyTorch's generator is used only for the initial weights of heads and for dropout.
    torch.manual_seed(resolved.seed)
    encoder = load_encoder(source, resolved.pooler, keep_head=resolved.keep_head).to(device)
    context.encoder = encoder
    encoder_methods = {name: _method(ENCODER_METHODS, resolved, name, context) for name in resolved.encoder_methods}
    check_mask(encoder.to(device))
    second = _second_encoder(resolved, context)
    terms = _loss_terms(resolved, context)
    partners = [term.partner_views for term in terms.values() if isinstance(term, BatchTerm)]
    batches.partner_views = lambda roles: next((found for each in partners if (found := each(roles))), None)
    features = {
        name: _method(FEATURE_AUGMENTATIONS, resolved, name, context) for name in resolved.feature_augmentations
    }
    hooks = {
        name: _method(HOOKS, resolved, name, context)
        for name in dict.fromkeys((resolved.anchor_hook, resolved.positive_hook))
        if name is not None
    }
    for each in (encoder, *([] if second is None else [second])):
        if device != "cpu":
            mask_always(each.backbone)
        elif not resolved.compile:
            use_fast_dropout(each.backbone)
    batches.views = _views(resolved)
    batches.without_dropout = second is None and all(_has_no_dropout(view, encoder) for view in batches.views)
    if resolved.compile:
        one_pass = resolved.accumulate == 1 and resolved.chunk_size is None and second is None and not hooks
        compile_backbone(encoder.backbone, device, graphs=one_pass)
    if world.rank:  # other dropout masks than those of rank 0; the weights are initialised alike
        torch.manual_seed(resolved.seed + 2**32 * world.rank)
    methods = {
        resolved.positive: positive,
        **dict(zip(resolved.negatives, negatives, strict=True)),
        **terms,
        **features,
    }
    methods |= {**hooks, **encoder_methods}
    resolved = _with_used_options(resolved, methods)
    batches.config = resolved
    columns = [corpus] if labelled is None else labelled.corpora
    tokens = open_tokens(resolved, batches, columns, encoder.tokenizer, callback.on_progress)
    trained = [*([] if second is None else [second]), *terms.values(), *features.values(), *hooks.values()]
    trained += encoder_methods.values()
    for module in trained:
        module.to(device)
    optimizer = build_optimizer([encoder, *trained], resolved)
    held_out = corpus.take(split.held_out)
    synthetic = negatives[0](held_out, split.held_out, Draws(resolved.seed, 0)) if held_out and negatives else []
    selector = Selector(encoder, pairs, held_out, synthetic)
    text, warnings = corpus_warnings(corpus, split.train, encoder.tokenizer, resolved.max_length, resolved.model)
    unchanged = unchanged_warning(negatives, corpus, split.train, resolved.seed)
    warnings += [unchanged] if unchanged else []
    if not resumed:  # else the weights of the terms are those of the checkpoint
        warnings += [term.warning for term in terms.values() if term.warning]
    warnings += once_warnings(dict(zip(resolved.negatives, negatives, strict=True)), len(batches))
    rows = batches[0].rows[:3]
    shown: list[TextMethod] = [positive, *negatives]
    examples = [item for each in shown for item in each.examples(corpus.take(rows), rows, Draws(resolved.seed, 0))]
    return Run(
        config=resolved,
        folder=folder,
        device=device,
        state=TrainState(
            encoder,
            terms,
            features,
            optimizer,
            selector,
            SaturationCheck(resolved.positive, resolved.temperature),
            second=second,
            hooks=hooks,
            methods=encoder_methods,
            steps=len(batches),
        ),
        base=BaseWeights(encoder, resolved.merge_with_base),
        batches=batches,
        tokens=tokens,
        tasks=tasks,
        facts={
            "device": describe_device(device, precision, reason),
            **_facts(resolved, corpus, split, batches),
            **({"processes": f"{world.size}, each with a part of the batch"} if world.size > 1 else {}),
            **({"columns": labelled.describe()} if labelled is not None else {}),
            "text": text,
            **({"warning": "; ".join(warnings)} if warnings else {}),
        },
        examples=examples,
        loggers=loggers,
        precision_reason=reason,
        data=fingerprints(
            corpus if labelled is None else labelled, config.tfidf if context.index_is_used else None, context.files
        ),
    )


def choose_folder(config: TrainConfig | ResolvedConfig) -> Path:
    """Returns the folder of the run, which does not exist; raises ``InputError`` for an invalid or existing name."""
    parent = Path(config.output)
    if config.name is not None:
        if not config.name.isprintable() or not config.name.strip() or "/" in config.name or config.name in (".", ".."):
            raise InputError(f"--name: {config.name!r} cannot be the name of a folder; use letters, digits, - and _")
        check_free(parent / config.name)
        return parent / config.name
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.model or recipes.DEFAULT_MODEL).name) or "model"
    methods = "".join(f"-{name}" for name in config.negatives)
    stem = f"{model}-{config.loss}{methods}-seed{config.seed}"
    number = 1
    while (folder := parent / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return folder


def _method(table: Any, config: ResolvedConfig, name: str, *arguments: Any) -> Any:
    method = table.get(name)
    return method(parse_options(name, method.Options, config.options.get(name, {})), *arguments)


def _negative(config: ResolvedConfig, name: str, context: Context) -> Edit:
    method = _method(AUGMENTATIONS, config, name, context)
    if not isinstance(method, Edit):
        raise InputError(f"--negative {name}: makes positives; use --positive {name}")
    return method


def _second_encoder(config: ResolvedConfig, context: Context) -> SentenceEncoder | None:
    """Returns the encoder of the positives, if it is another one: a copy of the first, or another model."""
    name, first = config.positive_encoder, context.trained
    if name is None:
        return None
    if name == "copy":
        return copy.deepcopy(first)
    source = find_model(name)
    second = load_encoder(source, source.pooler or config.pooler, keep_head=config.keep_head)
    context.check_tokens(second.tokenizer, name, "--positive-encoder")
    if second.embedding_dim != first.embedding_dim:
        raise InputError(
            f"--positive-encoder {name}: its embeddings have {second.embedding_dim} dimensions, those of "
            f"{config.model} {first.embedding_dim}; name a model of the same width"
        )
    return second.to(context.device)


def _views(config: ResolvedConfig) -> tuple[View, View]:
    """Returns how anchors and positives are encoded."""
    second = "first" if config.positive_encoder is None else "second"
    return (
        View("anchor", "anchor", dropout=config.anchor_dropout, hook=config.anchor_hook),
        View("positive", "positive", second, config.positive_dropout, config.positive_hook),
    )


def _has_no_dropout(view: View, encoder: SentenceEncoder) -> bool:
    if view.hook is not None or view.dropout is not None:
        return view.hook is None and view.dropout == 0
    return not any(getattr(module, "p", 0) for module in encoder.backbone.modules())


def _loss_terms(config: ResolvedConfig, context: Context) -> dict[str, LossTerm]:
    """Creates the loss terms: the run's loss first, then the additional terms, by name."""
    parts = ContrastiveOptions(
        objective=config.objective,
        logits=config.logits,
        temperature=config.temperature,
        margin=config.margin,
        mixed=config.mix_variant if config.mixed_negatives else None,
        mix_lambda=config.mix_lambda,
        hard_negative_weight=config.hard_negative_weight,
    )
    terms: dict[str, LossTerm] = {}
    if config.loss in CONTRASTIVE_LOSSES:
        terms["contrastive"] = LOSS_TERMS.get("contrastive")(parts, context)
    names = config.loss_terms if terms else (config.loss, *config.loss_terms)
    return terms | {name: _method(LOSS_TERMS, config, name, context) for name in names}


def _with_used_options(config: ResolvedConfig, methods: dict[str, Any]) -> ResolvedConfig:
    """Returns the configuration with all options of the methods, including defaults."""
    used = {name: asdict(method.options) for name, method in methods.items() if name != "contrastive"}
    return config.replace(options={name: table for name, table in used.items() if table})


def _facts(config: ResolvedConfig, corpus: Corpus, split: Split, batches: Batches) -> dict[str, str]:
    negatives = [f"{name} {each.describe()}" for name, each in zip(config.negatives, batches.negatives, strict=True)]
    options = batches.positive.describe()
    return {
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
