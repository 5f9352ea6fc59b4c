"""The training run, read from top to bottom: setup, data, model, optimiser, loop, evaluate, save."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.corpus import Corpus, hold_out, open_corpus
from ..errors import InputError
from ..evaluation.sts import Pairs, Task, find_tasks, read_pairs, score_pairs
from ..io import naming, write_atomically
from ..losses.contrastive import contrastive_loss, similarity_summary
from ..models.card import environment, model_card
from ..models.encoder import SentenceEncoder, load_encoder, save_encoder, tokenize
from ..models.inference import pick_device
from ..models.resolve import find_model
from ..tfidf.index import Replacement, TfidfIndex
from ..training import config as configuration
from .batches import Batch, Batches
from .config import TrainConfig
from .loggers import Reporter, dumps
from .selection import Selector

__all__ = ["RunResult", "train"]


@dataclass(frozen=True)
class RunResult:
    """What a run came to; ``folder`` holds best/, last/, log.jsonl, config.toml, environment.json, result.json."""

    folder: Path
    steps: int
    una_steps: int
    seconds: float
    best_step: int
    before: dict[str, float]
    after: dict[str, float]
    """Of the last step; ``best`` is what best/ scores."""
    best: dict[str, float]
    notes: list[str]
    sts: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self.__dict__, "folder": str(self.folder)}


def train(config: TrainConfig, reporter: Reporter | None = None) -> RunResult:
    """Trains an encoder and saves it under ``config.output``; mistakes raise ``InputError``."""
    say = reporter or Reporter()

    # Setup: everything that can be wrong with the input is found before anything long begins.
    configuration.validate(config)
    if config.threads:
        torch.set_num_threads(config.threads)
    device = pick_device(config.device)
    index = None
    if config.una or not config.corpus:
        index = TfidfIndex.open(config.tfidf, min_df=config.min_df, max_terms=config.max_terms)
    corpus = open_corpus(
        config.corpus,
        index,
        column=config.column,
        encoding_errors=config.encoding_errors,
        max_line_bytes=config.max_line_bytes,
    )
    if not config.una:
        index = None
    pairs = read_pairs(config.dev) if config.dev else None
    tasks = [(task, read_pairs(task.path)) for task in find_tasks(config.data)] if config.data else []
    folder = _choose_folder(config)
    source = find_model(config.model)
    config = configuration.resolve(config, source.family, source.pooler)
    if index is not None:
        config = replace(config, radius=index.ranks(config.radius))
    configuration.validate(config)
    if (config.max_length or 0) > source.max_length:
        raise InputError(
            f"--max-length: {config.max_length} is more than the {source.max_length} tokens the model takes"
        )

    # Data.
    split = hold_out(corpus, config.seed, wanted=pairs is None)
    batches = Batches(config, corpus, split.train, index)
    if batches.size > len(split.train):
        raise InputError(
            f"--batch-size: {batches.size} is more than the {len(split.train)} sentences there are to train on"
        )
    held_out = corpus.take(split.held_out)

    # Model, optimiser, schedule. The head's weights and dropout are the generator's; nothing else is.
    torch.manual_seed(config.seed)
    model = load_encoder(source, config.pooler or "cls").to(device)
    optimizer = torch.optim.AdamW(
        _groups(model, config.weight_decay or 0.0), lr=config.lr or 0.0, betas=(0.9, 0.999), eps=1e-8, fused=True
    )
    negatives = None
    if index is not None and held_out:
        negatives = index.augment(
            held_out,
            rows=split.held_out.tolist(),
            **config.drawing(),
        )
    selector = Selector(model, pairs, held_out, negatives)

    say.beginning(_opening(config, corpus, batches, device, split.blank, len(held_out), index))
    if index is not None:
        say.negatives(_examples(index, corpus, batches))

    with _run_folder(folder):
        return _run(config, say, folder, model, optimizer, selector, batches, tasks, device)


def _run(
    config: TrainConfig,
    say: Reporter,
    folder: Path,
    model: SentenceEncoder,
    optimizer: torch.optim.Optimizer,
    selector: Selector,
    batches: Batches,
    tasks: list[tuple[Task, Pairs]],
    device: str,
) -> RunResult:
    """The loop: evaluate, train, evaluate, save."""
    source = model.source
    _write(folder / "config.toml", config.to_toml())
    _write(folder / "environment.json", dumps(environment(device), indent=2) + "\n")
    log = Log(folder / "log.jsonl")

    def evaluate(step: int) -> float:
        began = time.perf_counter()
        say.note("evaluating")
        record, keep = selector.score(step)
        log.write({"step": step, "event": "evaluation", **record})
        if keep:
            save_encoder(model, folder / "best", model_card(config, source, selector, step))
        say.evaluated(step, record)
        return time.perf_counter() - began

    with ThreadPoolExecutor(1, thread_name_prefix="cse-prefetch") as ahead:
        evaluate(0)
        per_step = _time_one_step(config, model, batches, device)
        say.training(len(batches), per_step)
        started, una_steps, sentences = time.perf_counter(), 0, 0
        prefetch = Prefetch(ahead, batches, model, config.max_length or 32)
        model.train()
        step = 0
        try:
            for step in range(len(batches)):
                batch, tokens = prefetch.get(step)
                rate = (config.lr or 0.0) * (1 - step / len(batches) if config.schedule == "linear" else 1.0)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                z = _views(model, batch, tokens, device)
                loss = _loss(config, batch, z)
                if not math.isfinite(loss.item()):
                    raise InputError(f"the loss is not finite at step {step}; lower --lr, now {config.lr:g}")
                loss.backward()  # type: ignore[no-untyped-call]
                if config.clip_norm:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

                una_steps += len(batch.views) > 2
                sentences += len(batch.rows)
                record = {
                    "step": step + 1,
                    "epoch": batch.epoch,
                    "loss": loss.item(),
                    "lr": rate,
                    **similarity_summary(z.detach()),
                    "una_steps": una_steps,
                    "una_unchanged": batch.unchanged,
                    "sentences_per_second": round(sentences / (time.perf_counter() - started), 2),
                }
                log.write(record)
                say.stepped(step + 1, record)
                last = step + 1 == len(batches)
                if last or (config.eval_every and (step + 1) % config.eval_every == 0):
                    started += evaluate(step + 1)  # its time is not training's
        except KeyboardInterrupt:
            if step:  # before that there is nothing to keep
                save_encoder(model, folder / "last", model_card(config, source, selector, step))
                say.stopped(f"stopped at step {step}; {folder / 'last'} holds the model as it was")
            raise
        seconds = time.perf_counter() - started
        save_encoder(model, folder / "last", model_card(config, source, selector, len(batches)))

    sts = {}
    if tasks:
        say.note("evaluating best/ on the STS tasks")
        best = load_encoder(find_model(str(folder / "best")), config.pooler or "cls").to(device).eval()
        sts = {task.title: score_pairs(best, scored).spearman for task, scored in tasks}
    result = RunResult(
        folder=folder,
        steps=len(batches),
        una_steps=una_steps,
        seconds=round(seconds, 2),
        best_step=selector.best_step,
        before=selector.records[0],
        after=selector.records[-1],
        best=selector.best_record,
        notes=selector.verdict(),
        sts=sts,
    )
    _write(folder / "result.json", dumps(result.to_dict(), indent=2) + "\n")
    say.ended(result)
    return result


def _views(model: SentenceEncoder, batch: Batch, tokens: list[dict[str, Tensor]], device: str) -> Tensor:
    """``(V, B, D)``: blocks of texts are encoded once for each view, dropout differing.

    Sentences and synthetic negatives are padded apart, so UNA's turn does not lengthen the sentences' block.
    """
    blocks = []
    for block, inputs in enumerate(tokens):
        times = batch.views.count(block)
        inputs = {key: value.repeat(times, 1).to(device, non_blocking=True) for key, value in inputs.items()}
        with _autocast(device):
            z = model(inputs)
        blocks.append(z.float().view(times, len(batch.rows), -1))
    return torch.cat(blocks)


def _loss(config: TrainConfig, batch: Batch, z: Tensor) -> Tensor:
    partners = None if batch.partners is None else torch.from_numpy(batch.partners).to(z.device)
    return contrastive_loss(
        z,
        loss=config.loss,
        structure=config.negatives or "cross",
        temperature=config.temperature or 0.05,
        margin=config.margin,
        mix_lambda=config.mix_lambda,
        mix_variant=config.mix_variant,
        partners=partners,
    )


def _autocast(device: str) -> AbstractContextManager[Any]:
    """bf16 where there is CUDA, float32 elsewhere."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.startswith("cuda") else nullcontext()


class Prefetch:
    """Prepares the next two batches in one thread: Rust and the tokenizer run without the interpreter's lock."""

    def __init__(self, pool: ThreadPoolExecutor, batches: Batches, model: SentenceEncoder, max_length: int) -> None:
        self.pool, self.batches, self.max_length = pool, batches, max_length
        # One of its own: evaluation uses the model's at the same time, with another limit.
        self.tokenizer = deepcopy(model.tokenizer)
        self.waiting: dict[int, Future[tuple[Batch, list[dict[str, Tensor]]]]] = {}

    def prepare(self, step: int) -> tuple[Batch, list[dict[str, Tensor]]]:
        """A batch and the tokens of its blocks."""
        batch = self.batches[step]
        size = len(batch.rows)
        blocks = [batch.texts[start : start + size] for start in range(0, len(batch.texts), size)]
        return batch, [tokenize(self.tokenizer, block, self.max_length) for block in blocks]

    def get(self, step: int) -> tuple[Batch, list[dict[str, Tensor]]]:
        """The batch of this step; starts on the two after it."""
        for later in range(step, min(step + 3, len(self.batches))):
            if later not in self.waiting:
                self.waiting[later] = self.pool.submit(self.prepare, later)
        return self.waiting.pop(step).result()


def _groups(model: SentenceEncoder, weight_decay: float) -> list[dict[str, Any]]:
    """No decay for biases and normalisation weights, as in the Hugging Face trainer."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def _time_one_step(config: TrainConfig, model: SentenceEncoder, batches: Batches, device: str) -> float:
    """Seconds a mean step will take, from one warm forward and backward pass; leaves no trace in the run."""
    half = len(batches[0].rows) // 2
    texts = batches.corpus.take(batches[0].rows[:half])
    cpu, gpu = torch.get_rng_state(), torch.cuda.get_rng_state_all() if device.startswith("cuda") else []
    model.train()
    seconds = 0.0
    for _ in range(2):  # the first warms up
        inputs = tokenize(model.tokenizer, texts, config.max_length or 32)
        inputs = {key: value.repeat(2, 1).to(device) for key, value in inputs.items()}
        started = time.perf_counter()
        with _autocast(device):
            z = model(inputs)
        z.float().square().mean().backward()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds = 2 * (time.perf_counter() - started)
    model.zero_grad(set_to_none=True)
    torch.set_rng_state(cpu)
    if gpu:
        torch.cuda.set_rng_state_all(gpu)
    if batches.una_turn(0):  # those steps encode n (and n+) as well
        seconds *= 1 + (1.0 if config.una_as == "rows" else 0.5) / config.una_every
    return seconds


def _opening(
    config: TrainConfig,
    corpus: Corpus,
    batches: Batches,
    device: str,
    blank: int,
    held_out: int,
    index: TfidfIndex | None,
) -> dict[str, Any]:
    """What the user is told before training."""
    return {
        "device": f"{device} ({torch.cuda.get_device_name() if device.startswith('cuda') else 'fp32'}, "
        f"{torch.get_num_threads()} threads)",
        "model": f"{config.model}, pooler {config.pooler}",
        "loss": _describe_loss(config),
        "corpus": f"{len(corpus):,} rows: {len(batches.rows):,} to train on"
        + (f", {held_out:,} held out (they stay in the index)" if held_out else "")
        + (f", {blank:,} blank" if blank else "")
        + (f", {corpus.repaired:,} with repaired bytes" if corpus.repaired else "")
        + (f", {corpus.joined_lines:,} with line breaks joined" if corpus.joined_lines else ""),
        "una": f"every {config.una_every} steps as {config.una_as}, beta {config.beta:g}, radius {config.radius} "
        f"of {len(index):,} terms" + (f", step 2 {config.step2}, step 3 {config.step3}" if config.ablated else "")
        if index is not None and config.una_every
        else "off",
        "steps": f"{len(batches):,} of {batches.size} sentences, lr {config.lr:g} {config.schedule}",
    }


def _describe_loss(config: TrainConfig) -> str:
    parts = [f"{config.loss}, temperature {config.temperature:g}"]
    if config.loss == "focal":
        parts.append(f"margin {config.margin:g}")
    if config.loss == "mixed":
        parts.append(f"lambda {config.mix_lambda:g} ({config.mix_variant})")
    return ", ".join([*parts, f"negatives {config.negatives}"])


def _examples(index: TfidfIndex, corpus: Corpus, batches: Batches) -> list[tuple[str, str, list[Replacement]]]:
    """The first batch's first three sentences, their negatives, and which words were replaced."""
    config, rows = batches.config, batches[0].rows[:3]
    shown = []
    for row, text in zip(rows.tolist(), corpus.take(rows), strict=True):
        negative, replaced = index.replacements(text, row=row, **config.drawing())
        shown.append((text, negative, replaced))
    return shown


def _choose_folder(config: TrainConfig) -> Path:
    parent = Path(config.output)
    if config.name is not None:
        if not config.name or "/" in config.name or config.name in (".", ".."):
            raise InputError(f"--name: {config.name!r} cannot be the name of a folder")
        if (parent / config.name).exists():
            raise InputError(f"--name: {parent / config.name} exists; choose another name or remove it")
        return parent / config.name
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.model).name) or "model"
    una = f"-una-{config.una_as}" if config.una else ""
    stem = f"{model}-{config.loss}{una}-seed{config.seed}"
    number = 1
    while (folder := parent / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return folder


@contextmanager
def _run_folder(folder: Path) -> Iterator[None]:
    """The run's folder; taken away again if the run fails before its first step, so that its name stays free."""
    folder.mkdir(parents=True)
    try:
        yield
    except BaseException:
        log = folder / "log.jsonl"
        if not log.exists() or '"loss"' not in log.read_text(encoding="utf8"):
            shutil.rmtree(folder, ignore_errors=True)
        raise


class Log:
    """JSON lines, each on the disk before the next step begins."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, record: dict[str, Any]) -> None:
        """Appends a line."""
        with naming(self.path), open(self.path, "a", encoding="utf8") as file:
            file.write(dumps(record) + "\n")


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))
