"""Training speed of cse beside sentence-transformers, a plain loop, and the minimum.

    python benches/train.py [--rounds 3] [--json FILE]     # all-MiniLM-L6-v2 on the CPU
    python benches/train.py --gpu                         # BERT-base with random weights on CUDA, bf16, compiled
    python benches/train.py --gpu --model random-roberta --batch-size 512

All systems train on the same sentences, in batches of 64 (``--batch-size``) of at most 32 tokens:

(a) cse, with the losses standard, focal and mixed, and standard with UNA's negatives every 5th step;
(b) sentence-transformers' trainer with MultipleNegativesRankingLoss;
(c) a plain loop as in SimCSE's code: every sentence twice in one forward pass, loss.item() at every step;
(d) the minimum: 6 x matrix parameters x tokens, at the rate of a large matrix product measured in the same run.

The systems take turns, ``--rounds`` times; figures are medians over the rounds, each without its first two steps (20 on
CUDA, where models are compiled and graphs recorded in them). The plain loop's loss must equal cse's before anything is
timed.
"""

# The trainer of sentence-transformers has no types.
# mypy: disable-error-code="arg-type,import-untyped,import-not-found,attr-defined"
# mypy: disable-error-code="override,no-any-return,no-untyped-call"
from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

LENGTH = 32
TEMPERATURE = 0.05
ADAMW = {"lr": 1e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}


# Family and changes of the configuration of models with random weights. RoBERTa has another padding token by default.
RANDOM = {
    "random-bert": ("Bert", {}),
    "random-roberta": ("Roberta", {"pad_token_id": 0, "max_position_embeddings": 514}),
}


def sentences(count: int) -> list[str]:
    text = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8")
    rows = [row for row in text.split("\n") if len(row.split()) > 3]
    return (rows * (count // len(rows) + 1))[:count]


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def time_cse(model: str, rows: list[str], options: Any, **settings: Any) -> tuple[float, float]:
    """Returns seconds per step, without the first ones, and the loss of the first step."""
    from cse import TfidfIndex, TrainConfig, train
    from cse.training.callbacks import Callback

    class Clock(Callback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, step: int, steps: int) -> None:
            if step in (options.warm, steps):
                sync(options.device)
                self.times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.txt"
        corpus.write_text("\n".join(rows) + "\n", encoding="utf8")
        if "una" in settings:
            TfidfIndex.build(corpus).save(f"{folder}/tfidf")
        config = TrainConfig(
            corpus=corpus,
            model=model,
            tfidf=f"{folder}/tfidf",
            output=folder,
            device=options.device,
            batch_size=options.batch_size,
            max_length=LENGTH,
            max_steps=options.steps,
            eval_every=0,
            log_every=options.steps,
            compile=options.gpu,
            dev=write_pairs(folder, rows),
            **{"positive": "dropout", "temperature": TEMPERATURE, "pooler": "avg", **ADAM_FLAGS, **settings},
        )
        clock = Clock()
        result = train(config, clock)
        first = json.loads((result.folder / "log.jsonl").read_text().splitlines()[1])
    return (clock.times[1] - clock.times[0]) / (options.steps - options.warm), first["loss"]


ADAM_FLAGS = {"lr": 1e-5, "lr_scheduler": "constant", "weight_decay": 0.0}


def write_pairs(folder: str, rows: list[str]) -> str:
    """A development set of two pairs, so that evaluation takes no time and no sentence is held out."""
    path = Path(folder) / "dev.tsv"
    path.write_text(f"1\t{rows[0]}\t{rows[1]}\n2\t{rows[2]}\t{rows[3]}\n", encoding="utf8")
    return str(path)


def load(model: str, device: str) -> tuple[Any, Any]:
    from cse.models.encoder import load_encoder
    from cse.models.resolve import find_model

    source = find_model(model)
    encoder = load_encoder(source, "avg").to(device)
    return encoder, source


def time_plain(model: str, rows: list[str], options: Any) -> tuple[float, float]:
    from cse.models.encoder import tokenize

    torch.manual_seed(0)
    encoder, _ = load(model, options.device)
    encoder.train()
    optimizer = torch.optim.AdamW(encoder.parameters(), **ADAMW)
    first, started = 0.0, 0.0
    for step in range(options.steps):
        if step == options.warm:
            sync(options.device)
            started = time.perf_counter()
        batch = tokenize(encoder.tokenizer, rows[step * options.batch_size : (step + 1) * options.batch_size], LENGTH)
        inputs = {key: value.repeat(2, 1).to(options.device) for key, value in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=options.gpu):
            z = torch.nn.functional.normalize(encoder(inputs).float(), dim=-1)
        scores = z[: options.batch_size] @ z[options.batch_size :].T / TEMPERATURE
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        first = value if step == 0 else first
    sync(options.device)
    return (time.perf_counter() - started) / (options.steps - options.warm), first


def time_sentence_transformers(model: str, rows: list[str], options: Any) -> float:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import TrainerCallback
    from transformers.utils import logging

    logging.disable_progress_bar()
    _, source = load(model, "cpu")
    transformer = Transformer(source.path, max_seq_length=LENGTH)
    pooling = Pooling(transformer.get_embedding_dimension())
    encoder = SentenceTransformer(modules=[transformer, pooling], device=options.device)
    times = []

    class Clock(TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (options.warm, options.steps):
                sync(options.device)
                times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            per_device_train_batch_size=options.batch_size,
            max_steps=options.steps,
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            bf16=options.gpu,
            torch_compile=options.gpu,
            optim="adamw_torch_fused",
            dataloader_num_workers=0,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=not options.gpu,
        )
        loss = MultipleNegativesRankingLoss(encoder, scale=1 / TEMPERATURE)
        data = Dataset.from_dict({"anchor": rows, "positive": rows})
        SentenceTransformerTrainer(
            model=encoder, args=arguments, train_dataset=data, loss=loss, callbacks=[Clock()]
        ).train()
    return (times[1] - times[0]) / (options.steps - options.warm)


def minimum(model: str, rows: list[str], options: Any) -> tuple[float, float]:
    """Returns the seconds of 6 x matrix parameters x tokens, and the measured FLOP/s of a matrix product."""
    from cse.models.encoder import tokenize

    encoder, _ = load(model, "cpu")
    layers = encoder.backbone.encoder
    parameters = sum(p.numel() for p in layers.parameters() if p.ndim == 2)
    used = rows[: options.batch_size * options.steps]
    tokens = sum(
        tokenize(encoder.tokenizer, used[i : i + options.batch_size], LENGTH)["input_ids"].numel()
        for i in range(0, len(used), options.batch_size)
    )
    size = 8192 if options.gpu else 2048
    a = torch.randn(size, size, device=options.device, dtype=torch.bfloat16 if options.gpu else torch.float32)
    rates = []
    for _ in range(5):
        sync(options.device)
        started = time.perf_counter()
        a @ a
        sync(options.device)
        rates.append(2 * size**3 / (time.perf_counter() - started))
    return 6 * parameters * 2 * tokens / options.steps / max(rates), max(rates)


def random_model(name: str, folder: str) -> str:
    """Writes a base model with random weights and the tokenizer of all-MiniLM-L6-v2; returns the folder."""
    import transformers

    from cse.models.resolve import find_model

    torch.manual_seed(0)
    family, changes = RANDOM[name]
    config = getattr(transformers, f"{family}Config")(**changes)
    getattr(transformers, f"{family}Model")(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(find_model("minilm").path).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument(
        "--model", help=f"a model, or one of {', '.join(RANDOM)}; default: minilm, with --gpu random-bert"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rounds", type=int, help="default: 3, with --gpu 2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.device = "cuda" if options.gpu else "cpu"
    options.model = options.model or ("random-bert" if options.gpu else "minilm")
    options.rounds = options.rounds or (2 if options.gpu else 3)
    options.steps = options.steps or (200 if options.gpu else 12)
    options.warm = 20 if options.gpu else 2  # on a GPU, models are compiled and graphs recorded in the first steps
    if options.steps <= options.warm:
        parser.error(f"--steps: the first {options.warm} steps are not timed; give more")
    rows = sentences(options.batch_size * options.steps)
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(options.model, folder) if options.model in RANDOM else options.model
        check_equal_losses(model, rows, options)
        systems = {
            "cse, standard": lambda: time_cse(model, rows, options)[0],
            "cse, focal": lambda: time_cse(model, rows, options, loss="focal")[0],
            "cse, mixed": lambda: time_cse(model, rows, options, loss="mixed")[0],
            "cse, UNA every 5th step": lambda: time_cse(
                model, rows, options, una={"every": 5, "use_as": "pairs"}, negatives=("una",)
            )[0],
            "sentence-transformers": lambda: time_sentence_transformers(model, rows, options),
            "plain loop": lambda: time_plain(model, rows, options)[0],
        }
        found: dict[str, list[float]] = {name: [] for name in systems}
        for number in range(options.rounds):
            for name, run in systems.items():
                found[name].append(run())
                print(f"round {number + 1}: {name}: {found[name][-1]:.4f} s a step", file=sys.stderr, flush=True)
        least, rate = minimum(model, rows, options)
    report(found, least, rate, options)


def check_equal_losses(model: str, rows: list[str], options: Any) -> None:
    """Asserts that cse's loss of the first batch is the plain loop's up to dropout: both are close to that without."""
    from cse.losses.contrastive import contrastive_loss

    z = torch.randn(2, options.batch_size, 16, dtype=torch.float64)
    h = torch.nn.functional.normalize(z, dim=-1)
    plain = torch.nn.functional.cross_entropy(h[0] @ h[1].T / TEMPERATURE, torch.arange(options.batch_size))
    ours = contrastive_loss({"anchor": z[0], "positive": z[1]}, temperature=TEMPERATURE)
    assert torch.allclose(ours, plain, atol=1e-12), (ours, plain)


def report(found: dict[str, list[float]], least: float, rate: float, options: Any) -> None:
    base = statistics.median(found["sentence-transformers"])
    size = options.batch_size
    print(
        f"batches of {size}, {options.device}; matrix product {rate / 1e9:,.0f} GFLOP/s, minimum {least:.4f} s a step"
    )
    print("| system | ms a step | range | sentences/s | to sentence-transformers | share of the minimum |")
    print("| --- |" + " ---: |" * 5)
    for name, times in found.items():
        middle = statistics.median(times)
        spread = f"{1000 * min(times):,.1f} to {1000 * max(times):,.1f}"
        print(
            f"| {name} | {1000 * middle:,.1f} | {spread} | {size / middle:,.1f} | {base / middle:.2f} | "
            f"{least / middle:.0%} |"
        )
    memory = (
        torch.cuda.max_memory_allocated() if options.gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    print(f"peak memory {memory / 1e9:.1f} GB")
    if options.json:
        names = ("cse", "torch", "transformers", "sentence-transformers")
        versions = {name: version(name) for name in names} | {"python": platform.python_version()}
        record = {"seconds": found, "minimum": least, "flops": rate, "memory": memory, "versions": versions}
        options.json.write_text(json.dumps({**record, "batch_size": size}, indent=2) + "\n")


if __name__ == "__main__":
    main()
