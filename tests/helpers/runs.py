"""Helpers for tests of training: variants of a small run, and functions that start, kill and compare runs."""

import csv
import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import torch

from cse import Callback, train
from cse.data import readers
from cse.data.classes import read_classes
from cse.data.corpus import Corpus
from cse.encoder.resolve import Source
from cse.training.batches.prepared import Prefetcher
from cse.training.batches.texts import Batches, Order
from cse.training.folder.find import list_checkpoints
from cse.training.loop import resumed_config
from cse.training.settings.resolve import resolve
from cse.training.step.ranks import World
from cse.training.step.step import propagate
from forked import Forked


def resolved(given, family="bert-base", pooler=None):
    """Returns the settings of a run of a model that has this family and declares this pooling."""
    return resolve(given, lambda name: Source(name, name, name, family, pooler))


def write_table(path, rows, names=("text", "label")):
    with open(path, "w", newline="", encoding="utf8") as file:
        csv.writer(file).writerows([names, *rows])
    return str(path)


def labelled_corpus(path, rows):
    """Writes a table of texts and labels; returns its corpus, and the labels of its rows."""
    corpus = Corpus.read(readers.resolve(write_table(path, rows), "text"))
    return corpus, read_classes(corpus, "label", "--labels label")


def batches_of(settings, corpus, rows, positive, negatives=()):
    """Returns the ``Batches`` of a run with these settings."""
    names = ("batch_size", "seed", "epochs", "max_steps", "accumulate")
    order = Order(rows, positive, **{name: settings.values()[name] for name in names})
    return Batches(order, corpus, positive, negatives, settings.methods.keep_duplicates)


def first_batches(run, part=None, **more):
    """Returns the prepared batches of the first step of a run; ``part`` selects the rows of a rank."""
    tokenizer, length = run.state.encoder.tokenizer, run.settings.data.max_length
    run.batches.part = part or run.batches.part
    with Prefetcher(run.batches, tokenizer, length, stored=run.tokens, **more) as prefetcher:
        return prefetcher.get(0)


def drawn(*shape, seed=0):
    """Returns normally distributed numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def in_float64(run, training=False):
    for module in run.state.modules().values():
        module.double().train(training)


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "last" / "model.safetensors")


def records_of(folder):
    """Returns the records of the log of a run: those of the steps, and those of the evaluations."""
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf8").splitlines()]
    return [each for each in records if "loss" in each], [each for each in records if "event" in each]


def same_run(first, second):
    """Asserts that two runs have bit-identical weights, and equal logs and scores apart from timings."""
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    logs = [records_of(folder) for folder in (first, second)]
    for steps, _ in logs:
        for record in steps:
            del record["sentences_per_second"]
    assert logs[0] == logs[1]
    results = [json.loads((folder / "result.json").read_text(encoding="utf8")) for folder in (first, second)]
    for result in results:
        del result["seconds"], result["folder"]
    assert results[0] == results[1]


def resumed_run_equals_whole(config, step):
    """Trains, and resumes a copy of the run at the checkpoint of a step; the two must be equal. Returns the folder."""
    whole = train(config).folder
    part = Path(shutil.copytree(whole, whole.with_name("part")))
    (part / "last" / "model.safetensors").unlink()  # so that only the resumed run can write it
    resumed = part / "checkpoints" / f"step-{step:08}"
    train(resumed_config(resumed), resume=resumed)
    same_run(whole, part)
    return whole


class Warnings(Callback):
    """Keeps the warnings of a run."""

    def __init__(self):
        self.texts = []

    def on_warning(self, text):
        self.texts.append(text)


def start(config, folder, extra=()):
    """Starts `cse train` with a configuration in a separate process."""
    path = folder / "config.toml"
    path.write_text(config.to_toml(), encoding="utf8")
    imports = [word for file in config.imports for word in ("--import", file)]
    return Forked("train", "--config", path, "--name", "run", *imports, *extra, cwd=folder)


def kill_after(process, run, step, number=signal.SIGKILL):
    """Sends a signal once a checkpoint of ``step`` or a later step exists; returns stdout and stderr of the process."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if any(int(path.name.split("-")[1]) >= step for path in list_checkpoints(run)):
            process.send_signal(number)
            break
        time.sleep(0.002)
    out, err = process.communicate(timeout=120)
    return out.decode(), err.decode()


def gradients(run, batches, world=None, **changes):
    """Returns the gradients, summed over the batches, and the metrics of the first batch.

    ``changes`` replace fields of ``run.forward``.
    """
    state = run.state
    metrics = [propagate(state, batch, replace(run.forward, **changes), world or World()) for batch in batches]
    found = {name: p.grad.clone() for name, p in state.weights().items() if p.grad is not None}
    for parameter in state.weights().values():
        parameter.grad = None
    return found, metrics[0]


def after_head(encoder, z):
    """Returns pooled vectors after the MLP head of an encoder."""
    return encoder.head({"sentence_embedding": z})["sentence_embedding"]
