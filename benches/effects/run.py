r"""Trains and evaluates the experiments of benches/effects, and stores one JSON file for each.

    python benches/effects/run.py --corpus enwiki1m.txt.gz --data DIR [--stage grid] [--only 'una-*'] [--jobs 2]

DIR holds the STS files in SentEval's form (sts12.test.tsv, ..., sickr.test.tsv, stsb.dev.tsv). The base is the model of
masked_model.py, or another one with --base MODEL. ``cse train`` trains each system for 400 steps of 64 sentences on the
first 60,000 sentences of the corpus, and ``cse encode`` encodes the STS sentences, each in a process with one thread.
Stored runs are not repeated; an interrupted run starts again. Results are written to
benches/results/effects/BASE/NAME.json, and the cosines of all pairs to target/effects/cosines; ``stored.py`` adds new
results to benches/results/effects.parquet.

The results of a folder are of one base and one device, since the dropout of a GPU and of a processor differ. The masked
model depends on the processor. On another machine, ``masked_model.py`` makes another base, whose runs go to a folder of
their own, with the temperatures of the first one's grid and other seeds:

    python benches/effects/run.py --corpus ... --data ... --base target/effects/masked-KEY --name masked-2 \
        --stage seeds --grid benches/results/effects/masked --only '*-seed1'
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import masked_model
import numpy as np
import scores
import table
from experiments import (
    ABLATIONS,
    BASE,
    BEFORE,
    SEEDS,
    Experiment,
    best_taus,
    declared,
    trained,
)
from stored import RESULTS, records

SENTENCES = 60_000
# Commands run in processes that are forked from one that has imported these modules, which takes several seconds.
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["torch", "transformers.models.bert.modeling_bert", "sentence_transformers", "cse.training", "cse.cli"]
STAGES = ("grid", "seeds", "ablations", "repeats")
BEFORE_FLAGS = ["--pooler", "avg"]
# Prints versions and the device of the interpreter that runs cse, and the git revision of cse, if it has one.
VERSIONS = """
import importlib.metadata, json, pathlib, platform, shutil, subprocess, cse
from cse.encoder.device import device_name, pick_device
git = ["git", "-C", str(pathlib.Path(cse.__file__).parent), "rev-parse", "--short=12", "HEAD"]
names = ("torch", "transformers", "tokenizers", "numpy")
versions = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}
versions["cse"] = subprocess.run(git, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
print(json.dumps(versions | {"device": device_name(pick_device("auto"))}))
"""


def command(arguments: list[str], log: Path) -> tuple[int, float]:
    """Runs a command of cse in this process, with its output in ``log``; returns exit code and processor seconds."""
    from cse.cli import main

    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.argv = ["cse", *arguments]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return code, time.process_time()


def measure(suite: scores.Suite, vectors: Path, cosines: Path) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Scores of stored embeddings and resampled scores; ``cosines`` is written."""
    found, values = scores.evaluate(suite, np.load(vectors))
    compact: dict[str, Any] = {title: each.astype(np.float32) for title, each in values.items()}
    np.savez_compressed(cosines, **compact)
    return found, scores.resample(suite, values)


@dataclass
class Lab:
    """What all runs share. ``identity``, stored with every result: device, and digests of base, corpus and data."""

    results: Path
    identity: dict[str, Any]
    work: Path = masked_model.KEPT
    base: Path = Path()
    corpus: Path = Path()
    index: Path = Path()
    texts: Path = Path()
    suite: scores.Suite | None = None
    environment: dict[str, Any] = field(default_factory=dict)

    def cse(self, name: str, *arguments: str) -> dict[str, float]:
        """Runs a command of cse with one thread; returns its elapsed and processor seconds. ``name`` names its log."""
        start, log = time.time(), self.work / f"{name}.{arguments[0]}.log"
        with ProcessPoolExecutor(1, mp_context=CONTEXT) as process:
            code, core = process.submit(command, list(arguments), log).result()
        if code:
            raise RuntimeError(f"exit code {code}; {log} ends with:\n{log.read_text('utf-8')[-1000:]}")
        return {"elapsed": round(time.time() - start, 1), "core": round(core, 1)}

    def is_stored(self, name: str, arguments: Sequence[str]) -> bool:
        """Whether a result of these arguments is stored; exits if it is of another base, corpus, data or device."""
        record = records(self.results).get(name)
        if record is None:
            return False
        different = [key for key, value in self.identity.items() if record["identity"].get(key) != value]
        if different:
            raise SystemExit(f"{name} was made with another {' and '.join(different)}; choose a folder with --results")
        return bool(record["arguments"] == list(arguments))

    def evaluate(self, model: Path, name: str, *flags: str) -> dict[str, Any]:
        """Scores of a model, resampled scores, and the cost of encoding; the cosines are written to ``work``."""
        assert self.suite is not None
        vectors = self.work / f"{name}.npy"
        vectors.unlink(missing_ok=True)
        cost = self.cse(name, "encode", str(model), str(self.texts), "-o", str(vectors), *flags, "--threads", "1")
        (self.work / "cosines").mkdir(exist_ok=True)
        cosines = self.work / "cosines" / f"{name}.npz"
        with ProcessPoolExecutor(1, mp_context=CONTEXT) as process:
            found, resampled = process.submit(measure, self.suite, vectors, cosines).result()
        vectors.unlink()
        return {
            "scores": {title: round(value, 4) for title, value in found.items()},
            "resampled": {title: " ".join(f"{value:.2f}" for value in draws) for title, draws in resampled.items()},
            "encode_seconds": cost,
        }

    def store(self, name: str, record: Mapping[str, Any]) -> None:
        """Writes a result, all of it or nothing."""
        whole = {"name": name, **record, "identity": self.identity, "environment": self.environment}
        part = self.results / f"{name}.part"
        part.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        part.replace(self.results / f"{name}.json")

    @property
    def runs(self) -> Path:
        """The folder of the models that are trained from this base on this device."""
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()
        return self.work / "runs" / digest[:12]

    def model(self, name: str) -> Path:
        """The folder of the model that a run trains."""
        return self.runs / name / "last"

    def train(self, experiment: Experiment) -> dict[str, float]:
        """Trains the model of an experiment; returns the cost. The models of its teachers must have been trained."""
        folder = self.model(experiment.name).parent
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        places = ["--model", str(self.base), "--output", str(folder.parent), "--name", folder.name]
        places += ["--tfidf", str(self.index)] if experiment.uses_index else []
        folders = {BASE: self.base} | {trained(name): self.model(name) for name in experiment.teachers}
        flags = experiment.arguments()
        for word, path in folders.items():
            flags = [flag.replace(word, str(path)) for flag in flags]
        return self.cse(experiment.name, "train", str(self.corpus), *places, *flags)

    def run(self, experiment: Experiment, *, keep: bool = False) -> dict[str, Any]:
        """Trains and evaluates an experiment and stores the result; the model is removed unless ``keep`` is True."""
        cost = self.train(experiment)
        record = {
            "system": experiment.system,
            "tau": experiment.tau,
            "seed": experiment.seed,
            "change": experiment.change,
            "arguments": experiment.arguments(),
            **self.evaluate(self.model(experiment.name), experiment.name),
            "train_seconds": cost | {"core_per_step": round(cost["core"] / experiment.keywords()["max_steps"], 3)},
        }
        self.store(experiment.name, record)
        if not keep:
            shutil.rmtree(self.model(experiment.name).parent)
        return record


def undecided(results: Path) -> list[Experiment]:
    """Two further seeds of the rows of ablations whose change has no sign with seed 0, and of what they change."""
    stored = table.Stored([results])
    runs = {run.name: run for each in ABLATIONS for run in table.undecided(stored, each)}
    return [replace(run, seed=seed) for seed in SEEDS[1:3] for run in runs.values()]


def prepare(options: argparse.Namespace, results: Path) -> Lab:
    """Makes what the runs need: the masked model, the corpus, its index, and the texts to encode."""
    work = masked_model.KEPT
    work.mkdir(parents=True, exist_ok=True)
    results.mkdir(parents=True, exist_ok=True)
    base = masked_model.make(options.corpus)[0] if options.base is None else Path(options.base)
    text = "".join(f"{line}\n" for line in masked_model.read_sentences(options.corpus, SENTENCES))
    digest = hashlib.sha256(text.encode()).hexdigest()
    suite = scores.read_suite(options.data)
    asked = subprocess.run([options.python, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout
    environment = {"processor": masked_model.processor(), "threads": 1} | json.loads(asked)
    device = environment.pop("device")
    lab = Lab(
        results,
        {"base": masked_model.digest(base), "corpus": digest, "data": suite.digest, "device": device},
        base=base,
        corpus=work / f"corpus-{digest[:12]}.txt",
        index=work / f"tfidf-{digest[:12]}",
        texts=work / f"sts-{suite.digest[:12]}.txt",
        suite=suite,
        environment=environment,
    )
    lab.corpus.write_text(text, encoding="utf-8")
    lab.texts.write_text("".join(f"{line}\n" for line in suite.texts), encoding="utf-8")
    lab.cse("index", "build-tfidf", str(lab.corpus), "--no-matrix", "-o", str(lab.index))
    return lab


def main() -> None:
    """Runs the selected experiments that are not stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="sentences in the order of the documents")
    parser.add_argument("--data", type=Path, required=True, help="folder of the STS files")
    parser.add_argument("--base", metavar="MODEL", help="folder of a model to train instead of the masked model")
    parser.add_argument("--name", help="name of the base, a folder of the results (default: that of its folder)")
    parser.add_argument(
        "--grid", type=Path, metavar="DIR", help="results whose grid chooses the temperatures (default: the base's)"
    )
    parser.add_argument("--stage", choices=STAGES, help="default: all, in this order")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only the runs whose names match")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one core (default: 1)")
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs cse (default: this one)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true", help="print the names of the runs that are not stored, and exit")
    options = parser.parse_args()
    CONTEXT.set_forkserver_preload(PRELOADED)
    CONTEXT.set_executable(options.python)
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    results = options.results / (options.name or ("masked" if options.base is None else Path(options.base).name))
    lab = Lab(results, {}) if options.list else prepare(options, results)
    if not options.list and not lab.is_stored(BEFORE, BEFORE_FLAGS):
        lab.store(BEFORE, {"arguments": BEFORE_FLAGS, **lab.evaluate(lab.base, BEFORE, *BEFORE_FLAGS)})
    failed: list[str] = []

    every = {run.name: run for runs in declared({}).values() for run in runs}
    teachers = {name for run in every.values() for name in run.teachers}

    def attempt(experiment: Experiment) -> None:
        try:
            record = lab.run(experiment, keep=experiment.name in teachers)
        except RuntimeError as error:
            failed.append(experiment.name)
            print(f"{experiment.name}: {error}", file=sys.stderr, flush=True)
            return
        mean, seconds = record["scores"]["mean"], record["train_seconds"]["core"] + record["encode_seconds"]["core"]
        print(f"{experiment.name}: mean of seven {mean:.2f}, {seconds:.0f} core-seconds", flush=True)

    def teach(experiment: Experiment) -> None:
        try:
            lab.train(experiment)
        except RuntimeError as error:  # the runs that need the model fail, the others do not
            print(f"{experiment.name}: {error}", file=sys.stderr, flush=True)

    def stop(*_: Any) -> None:
        for child in multiprocessing.active_children():
            child.terminate()
        os._exit(143)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    for stage in STAGES if options.stage is None else (options.stage,):
        # The runs with further seeds depend on the results of earlier stages, so a stage is listed when it begins.
        runs = undecided(results) if stage == "repeats" else declared(best_taus(options.grid or results))[stage]
        listed = [run for run in runs if fnmatch.fnmatch(run.name, options.only)]
        missing = [run for run in listed if not lab.is_stored(run.name, run.arguments())]
        if options.list:
            print("".join(f"{stage} {run.name}\n" for run in missing), end="")
            continue
        asked = {name for run in missing for name in run.teachers}
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(teach, (every[name] for name in sorted(asked) if not lab.model(name).exists())))
            list(pool.map(attempt, missing))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
