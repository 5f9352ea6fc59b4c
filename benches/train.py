"""Compares the training speed of cse with that of sentence-transformers and a plain loop, and with the minimum time.

    python benches/train.py [--rounds 3] [--json FILE]     # all-MiniLM-L6-v2 on the CPU, in fp32 and bf16
    python benches/train.py --gpu                          # BERT-base with random weights on CUDA, bf16, compiled
    python benches/train.py --gpu --model random-roberta --batch-size 512

All systems train on the same sentences, in batches of 64 sentences (``--batch-size``) of at most 32 tokens each:

(a) cse, with the losses standard, focal and mixed, and with the standard loss and UNA's negatives at every step;
(b) sentence-transformers' trainer with MultipleNegativesRankingLoss;
(c) a plain loop as in SimCSE's code: every sentence twice in one forward pass, loss.item() at every step;
(d) the minimum time of a step: that of 6 x matrix parameters x tokens (without padding) operations at the speed of a
    large matrix product, which is measured in the same run.

If peft is installed, (a) has a row with LoRA of rank 16, as with ``cse train --lora 16``. In bf16 on the CPU, (a) has
only the standard loss, with and without UNA, and (c) is left out. --memory prints only the peak memory of training all
weights and, if peft is installed, of training with LoRA, each in a separate process.

The systems are timed alternately, in ``--rounds`` rounds. Figures are medians over the rounds. The first two steps of a
round are not timed (on CUDA, the first 20, in which models are compiled and graphs recorded). Before anything is timed,
the loss of cse must equal that of the plain loop on random embeddings. The table counts the tokens of a step over all
views, without padding. On the CPU, --breakdown also prints how the time of a step is divided among operations,
measured with PyTorch's profiler. If the processor has no instructions for bfloat16, the rows in bf16 are left out. With
--emulate, they are computed with benches/emulated.py, but their times are not those of a processor with such
instructions.
"""

# The trainer of sentence-transformers has no type annotations.
# mypy: disable-error-code="arg-type,import-untyped,import-not-found,attr-defined"
# mypy: disable-error-code="override,no-any-return,no-untyped-call"
from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from breakdown import breakdown
from emulated import EmulatedBf16

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
THEIRS = "sentence-transformers"
LENGTH = 32
TOKENS: Any = {"padding": True, "truncation": True, "max_length": LENGTH, "return_tensors": "pt"}
TEMPERATURE = 0.05
# Dropout positives and the standard loss without further terms, instead of the default recipe of the model.
PLAIN = {"positive": "dropout", "temperature": TEMPERATURE, "pooler": "avg", "loss": "standard", "loss_terms": []}
ADAMW = {"lr": 1e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}


# Models with random weights: family, and changes to its default configuration. The tokenizer's pad_token_id is 0.
RANDOM = {
    "random-bert": ("Bert", {}),
    "random-roberta": ("Roberta", {"pad_token_id": 0, "max_position_embeddings": 514}),
    "random-tiny": (
        "Bert",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    ),
}


def sentences(count: int) -> list[str]:
    text = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8")
    rows = [row for row in text.split("\n") if len(row.split()) > 3]
    return (rows * (count // len(rows) + 1))[:count]


class Timing(NamedTuple):
    """Mean seconds of a step (without the first steps), mean tokens of a step, and loss of the first step, or NaN."""

    seconds: float
    tokens: float
    loss: float = float("nan")


@contextmanager
def counted(encoder: Any, name: str, counts: list[torch.Tensor]) -> Iterator[None]:
    """Context manager in which each call of the method ``name`` in training mode appends its tokens to ``counts``.

    The numbers of tokens are scalar tensors on the device, because reading a value would make the host wait.
    """
    forward = getattr(encoder, name)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the length of the list would be compiled as a constant
    def count(features: Any) -> None:
        counts.append(features["attention_mask"].sum())

    def counting(self: Any, features: Any, *arguments: Any, **settings: Any) -> Any:
        if self.training:
            count(features)
        return forward(self, features, *arguments, **settings)

    with patch.object(encoder, name, counting):
        yield


@contextmanager
def counted_batches(counts: list[torch.Tensor]) -> Iterator[None]:
    """Context manager in which each batch that cse trains on appends the tokens of all its views to ``counts``.

    They are not counted in the encoder, because a recorded step does not call it.
    """
    from cse.training.batches.prepared import Prefetcher

    get = Prefetcher.get

    def counting(self: Any, step: int) -> Any:
        batches = get(self, step)
        for batch in batches:
            for name, block in batch.blocks.items():
                times = 1 if block.shared else len(block.views)
                counts.append(times * batch.tokens[name]["attention_mask"].sum())
        return batches

    with patch.object(Prefetcher, "get", counting):
        yield


def total(counts: list[torch.Tensor]) -> int:
    return int(torch.stack(counts).sum())


def sync(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()  # noqa: TID251


def time_cse(
    model: str, rows: list[str], options: Any, precision: str, profiler: Any = None, /, **settings: Any
) -> Timing:
    """Times cse; a profiler, if given, is started after the first steps and stopped after the last step."""
    from cse import TfidfIndex, TrainConfig, train
    from cse.training.callbacks import Callback

    class Clock(Callback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, step: int, steps: int) -> None:
            if step in (options.warm, steps):
                sync(options.device)
                self.times.append(time.perf_counter())
                if profiler is not None:
                    profiler.start() if step < steps else profiler.stop()

    counts: list[torch.Tensor] = []
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
            compile=options.compile,
            precision=precision,
            dev=write_pairs(folder, rows),
            **{**PLAIN, **ADAM_FLAGS, **settings},
        )
        clock = Clock()
        with emulation(precision, options), counted_batches(counts):
            result = train(config, clock)
        first = json.loads((result.folder / "log.jsonl").read_text().splitlines()[1])
    seconds = (clock.times[1] - clock.times[0]) / (options.steps - options.warm)
    return Timing(seconds, total(counts) / options.steps, first["loss"])


@contextmanager
def emulation(precision: str, options: Any) -> Iterator[None]:
    """Emulates bf16 within the context if ``--emulate`` is given and the precision is bf16."""
    with ExitStack() as stack:
        if precision == "bf16" and options.emulate:
            stack.enter_context(EmulatedBf16())
        yield


ADAM_FLAGS = {"lr": 1e-5, "lr_scheduler": "constant", "weight_decay": 0.0}


def write_pairs(folder: str, rows: list[str]) -> str:
    """Writes a development set of two pairs, so that evaluation takes no time and no sentence is held out."""
    path = Path(folder) / "dev.tsv"
    path.write_text(f"1\t{rows[0]}\t{rows[1]}\n2\t{rows[2]}\t{rows[3]}\n", encoding="utf8")
    return str(path)


def load(model: str, device: str) -> tuple[Any, Any]:
    from cse.encoder.resolve import find_model
    from cse.encoder.trained import load_encoder

    source = find_model(model)
    encoder = load_encoder(source, "avg").to(device)
    return encoder, source


def time_plain(model: str, rows: list[str], options: Any, precision: str) -> Timing:
    torch.manual_seed(0)
    encoder, _ = load(model, options.device)
    encoder.train()
    optimizer = torch.optim.AdamW(encoder.parameters(), **ADAMW)
    first, started, tokens = 0.0, 0.0, 0
    for step in range(options.steps):
        if step == options.warm:
            sync(options.device)
            started = time.perf_counter()
        texts = rows[step * options.batch_size : (step + 1) * options.batch_size]
        batch = encoder.tokenizer(texts, **TOKENS)
        inputs = {key: value.repeat(2, 1).to(options.device) for key, value in batch.items()}
        tokens += 2 * int(batch["attention_mask"].sum())
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=precision == "bf16"):
            z = torch.nn.functional.normalize(encoder.embed(inputs).float(), dim=-1)
        scores = z[: options.batch_size] @ z[options.batch_size :].T / TEMPERATURE
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        first = value if step == 0 else first
    sync(options.device)
    return Timing((time.perf_counter() - started) / (options.steps - options.warm), tokens / options.steps, first)


def time_sentence_transformers(model: str, rows: list[str], options: Any, precision: str) -> Timing:
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
            bf16=precision == "bf16",
            torch_compile=options.compile,
            optim="adamw_torch_fused",
            dataloader_num_workers=0,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=options.device == "cpu",
        )
        loss = MultipleNegativesRankingLoss(encoder, scale=1 / TEMPERATURE)
        data = Dataset.from_dict({"anchor": rows, "positive": rows})
        trainer = SentenceTransformerTrainer(
            model=encoder, args=arguments, train_dataset=data, loss=loss, callbacks=[Clock()]
        )
        counts: list[torch.Tensor] = []
        with emulation(precision, options), counted(Transformer, "forward", counts):
            trainer.train()
    return Timing((times[1] - times[0]) / (options.steps - options.warm), total(counts) / options.steps)


def matrix_parameters(encoder: Any) -> int:
    """Returns the number of weights with which a token is multiplied in a forward pass of an encoder."""
    return sum(p.numel() for p in encoder.backbone.encoder.parameters() if p.ndim == 2)


def minimum(model: str, rows: list[str], options: Any, precision: str) -> tuple[float, float]:
    """Returns the minimum time of a step with two views in seconds, and the measured FLOP/s of a matrix product."""
    encoder, _ = load(model, "cpu")
    parameters = matrix_parameters(encoder)
    used = rows[: options.batch_size * options.steps]
    tokens = sum(
        int(encoder.tokenizer(used[i : i + options.batch_size], **TOKENS)["attention_mask"].sum())
        for i in range(0, len(used), options.batch_size)
    )
    size = 8192 if options.gpu else 2048
    kind = "fp32" if options.emulate else precision  # without bf16 instructions, the product would take minutes
    a = torch.randn(size, size, device=options.device, dtype=getattr(torch, DTYPES[kind]))
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

    from cse.encoder.resolve import find_model

    torch.manual_seed(0)
    family, changes = RANDOM[name]
    config = getattr(transformers, f"{family}Config")(**changes)
    getattr(transformers, f"{family}Model")(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(find_model("minilm").path).save_pretrained(folder)
    return folder


def print_memory(model: str, rows: list[str], options: Any, settings: dict[str, dict[str, Any]]) -> None:
    """Prints the peak memory of each run. Runs are separate processes, because the peak of a process never falls."""
    print("| precision | system | peak memory, GB |\n| --- | --- | ---: |")
    for name in settings:
        own = [argument for argument in sys.argv[1:] if argument != "--memory"]
        command = [sys.executable, __file__, *own, "--model", model, "--peak", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(f"| {precisions(options)[0]} | cse, {name} | {int(done.stdout) / 1e9:.2f} |", flush=True)


def print_peak(model: str, rows: list[str], options: Any, settings: dict[str, Any]) -> None:
    """Trains, and prints the peak memory of this process in bytes; on a GPU, the peak memory of tensors."""
    time_cse(model, rows, options, precisions(options)[0], **settings)
    print(peak(options.device))


def peak(device: str) -> int:
    """Returns the peak memory in bytes: of tensors on a GPU, or of this process on the CPU."""
    from cse_papers.reproduce.runner import peak_bytes

    return (torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else peak_bytes()) or 0  # noqa: TID251


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument(
        "--model", help=f"a model, or one of {', '.join(RANDOM)}; default: minilm, or random-bert with --gpu"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rounds", type=int, help="default: 3, or 2 with --gpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--emulate", action="store_true", help="emulate bf16 on a processor without bf16 instructions")
    parser.add_argument("--breakdown", action="store_true", help="also print how the time of a step is divided")
    parser.add_argument("--memory", action="store_true", help="print only the peak memory of full training and of LoRA")
    parser.add_argument("--peak", help=argparse.SUPPRESS)  # set in the processes that --memory starts
    options = parser.parse_args()
    options.device, options.compile = "cuda" if options.gpu else "cpu", options.gpu
    options.model = options.model or ("random-bert" if options.gpu else "minilm")
    options.rounds = options.rounds or (2 if options.gpu else 3)
    options.steps = options.steps or (200 if options.gpu else 12)
    options.warm = 20 if options.gpu else 2  # on a GPU, models are compiled and graphs recorded in the first steps
    if options.steps <= options.warm:
        parser.error(f"--steps: the first {options.warm} steps are not timed; give more steps")
    rows = sentences(options.batch_size * options.steps)
    una: dict[str, Any] = {"una": {"every": 1, "use_as": "pairs"}, "negatives": ("una",)}
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(options.model, folder) if options.model in RANDOM else options.model
        lora = {"LoRA 16": {"encoder_methods": ("lora",)}} if find_spec("peft") else {}
        trained: dict[str, dict[str, Any]] = {"standard": {}, **lora}
        if options.peak:
            print_peak(model, rows, options, trained[options.peak])
        if options.memory:
            print_memory(model, rows, options, trained)
        if options.peak or options.memory:
            return
        check_equal_losses(model, rows, options)
        systems: dict[tuple[str, str], Any] = {}
        for kind in precisions(options):
            losses = {"standard": {}, "UNA every step": una}
            if kind == "fp32" or options.gpu:
                losses |= {"focal": {"loss": "focal"}, "mixed": {"loss": "mixed"}, **lora}
                systems[kind, "plain loop"] = partial(time_plain, model, rows, options, kind)
            for name, settings in losses.items():
                systems[kind, f"cse, {name}"] = partial(time_cse, model, rows, options, kind, **settings)
            systems[kind, THEIRS] = partial(time_sentence_transformers, model, rows, options, kind)
        found: dict[tuple[str, str], list[Timing]] = {key: [] for key in systems}
        for number in range(options.rounds):
            for key, run in systems.items():
                found[key].append(run())
                print(f"round {number + 1}: {key}: {found[key][-1]}", file=sys.stderr, flush=True)
        least = {kind: minimum(model, rows, options, kind) for kind in precisions(options)}
        report(found, least, options)
        if options.breakdown:
            for kind in precisions(options):
                for name, settings in (("standard", {}), ("UNA every step", una)):
                    shares = breakdown(partial(time_cse, model, rows, options, kind, **settings))
                    text = ", ".join(f"{part} {share:.1%}" for part, share in shares.items() if share >= 0.02)
                    print(f"time of a step in {kind}, {name}: {text}")


def precisions(options: Any) -> tuple[str, ...]:
    """Returns the precisions to compare."""
    from cse.encoder.device import bf16_instructions

    if options.gpu:
        return ("bf16",)
    return ("fp32", "bf16") if bf16_instructions() or options.emulate else ("fp32",)


def check_equal_losses(model: str, rows: list[str], options: Any) -> None:
    """Checks that the loss of cse equals that of the plain loop on random embeddings."""
    from cse.losses.contrastive import contrastive_loss

    z = torch.randn(2, options.batch_size, 16, dtype=torch.float64)
    h = torch.nn.functional.normalize(z, dim=-1)
    plain = torch.nn.functional.cross_entropy(h[0] @ h[1].T / TEMPERATURE, torch.arange(options.batch_size))
    ours = contrastive_loss({"anchor": z[0], "positive": z[1]}, temperature=TEMPERATURE)
    assert torch.allclose(ours, plain, atol=1e-12), (ours, plain)


def report(found: dict[tuple[str, str], list[Timing]], least: dict[str, tuple[float, float]], options: Any) -> None:
    size = options.batch_size
    for kind, (seconds, rate) in least.items():
        print(f"{kind}: matrix product {rate / 1e9:,.0f} GFLOP/s, minimum {seconds:.4f} s a step (standard loss)")
    if "bf16" not in least:
        print("bf16: left out, because the processor has no instructions for it (see --emulate)")
    elif options.emulate:
        print("bf16: emulated; the times are not those of a processor with instructions for it")
    print(f"batches of {size}, {options.device}; speed-ups are over sentence-transformers")
    print(
        "| precision | system | ms a step | range | sentences/s | tokens a step | "
        "speed-up | speed-up per token | speed-up over fp32 | minimum / time |"
    )
    print("| --- | --- |" + " ---: |" * 8)
    theirs = {key[0]: middle(times) for key, times in found.items() if key[1] == THEIRS}
    default = theirs.get("fp32")
    for (kind, name), timings in found.items():
        own, base = middle(timings), theirs[kind]
        times = [1000 * each.seconds for each in timings]
        per_token = base.seconds / base.tokens / (own.seconds / own.tokens)
        tokens_of_standard = middle(found[kind, "cse, standard"]).tokens
        share = least[kind][0] / own.seconds * own.tokens / tokens_of_standard
        beside = f"{default.seconds / own.seconds:.2f}" if default else ""
        print(
            f"| {kind} | {name} | {1000 * own.seconds:,.1f} | {min(times):,.1f} to {max(times):,.1f} | "
            f"{size / own.seconds:,.1f} | {own.tokens:,.0f} | {base.seconds / own.seconds:.2f} | {per_token:.2f} | "
            f"{beside} | {share:.0%} |"
        )
    memory = peak(options.device)
    print(f"peak memory {memory / 1e9:.1f} GB")
    if options.json:
        names = ("cse", "torch", "transformers", "sentence-transformers")
        versions = {name: version(name) for name in names} | {"python": platform.python_version()}
        record = {
            "timings": {f"{kind}: {name}": [each._asdict() for each in times] for (kind, name), times in found.items()},
            "minimum": {kind: {"seconds": seconds, "flops": rate} for kind, (seconds, rate) in least.items()},
            "memory": memory,
            "versions": versions,
            "emulated": options.emulate,
            "batch_size": size,
        }
        options.json.write_text(json.dumps(record, indent=2).replace("NaN", "null") + "\n")


def middle(timings: list[Timing]) -> Timing:
    """Returns the median time of a step, with the number of tokens in the first round."""
    return timings[0]._replace(seconds=statistics.median(each.seconds for each in timings))


if __name__ == "__main__":
    main()
