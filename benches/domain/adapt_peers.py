"""Compares cse with other methods on the documents of retrieval collections.

    python benches/domain/adapt_peers.py [--data DIR] [--collections NAME ...]

With ``--data``, a folder of collections, runs whose results are not stored are made first; then the table is printed.

Every method trains all-MiniLM-L6-v2 on the documents that ``domain_scores.Collection`` does not hold out, in the same
precision and in a separate process. The other methods train for as much processor time as ``cse train`` with its
defaults takes on the same collection. Processor time is summed over threads; unlike elapsed time, it depends little on
other processes of the machine. The methods are:

* ``cse, default``: ``cse train --model minilm`` without further flags.
* ``SimCSE``: MultipleNegativesRankingLoss of sentence-transformers, each document as its own positive, batches of 64.
* ``TSDAE``: DenoisingAutoEncoderLoss of sentence-transformers, batches of 8, with the mean pooling of the model. Each
  word is deleted with probability 0.6; this file deletes the words, because the deletion in sentence-transformers
  requires data files of NLTK.
* ``ContrastiveTension``: ContrastiveTensionLoss of sentence-transformers, batches of 32; on average, one pair in eight
  consists of a document and itself.
* ``continued MLM``: the trainer of transformers, batches of 32, 15 % of the tokens masked; the head starts
  with random weights.

Each of the last four methods is run once with the learning rate 5e-5 (the default of both trainers) and once with 1e-5
(the default of cse). They truncate texts to 64 tokens. The learning rate is constant, without warm-up, because
the number of steps is not known in advance. Three further rows of the table show BM25 alone (bm25s, Lucene's formula,
k1 = 1.5, b = 0.75), the reciprocal rank fusion of BM25 and the encoder before training, and the fusion of BM25 and the
encoder after ``cse train``.
"""

# The trainers of sentence-transformers and of transformers have no type annotations.
# mypy: disable-error-code="arg-type,import-untyped,import-not-found,attr-defined"
# mypy: disable-error-code="no-untyped-call,no-any-return,override"
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from domain_scores import Collection, Vectors, judged

RESAMPLES = 2000
RESULTS = Path(__file__).parents[1] / "results" / "adapt_peers.json"
MODEL = "minilm"
DEFAULT = "cse, default"
LENGTH = 64
DELETED = 0.6
EQUAL_PAIRS = 8
TEMPERATURE = 0.05
CONSTANT = 60  # k of reciprocal rank fusion


def peers(data: Path, results: Path, collections: list[str] | None, seed: int) -> None:
    """Runs each method on each collection and stores its result; runs whose result is already stored are skipped."""
    for folder in sorted(path.parent for path in data.glob("*/corpus.*")):
        if collections and folder.name not in collections:
            continue
        budget = 0.0
        for name in ("before", DEFAULT, *OTHERS):
            key = f"{folder.name}/{name}/{seed}"
            if key not in read(results):
                command = [sys.executable, __file__, "--seed", str(seed), "--one", str(folder), name, str(budget)]
                said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                record = json.loads(said.splitlines()[-1])  # the trainers print other lines first
                part = results.with_suffix(".tmp")
                lines = [
                    f"{json.dumps(each)}: {json.dumps(row)}" for each, row in (read(results) | {key: record}).items()
                ]
                part.write_text("{\n" + ",\n".join(lines) + "\n}\n")
                part.replace(results)
                shown = {kind: round(float(np.mean(each["ndcg"])), 2) for kind, each in record["found"].items()}
                print(f"{key}: {record['processor_seconds']:.0f} s, {shown}", file=sys.stderr, flush=True)
            if name == DEFAULT:
                budget = read(results)[key]["processor_seconds"]


def read(path: Path) -> dict[str, Any]:
    """Returns the stored records by ``collection/method/seed``; an empty dict if the file does not exist."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def one(folder: Path, name: str, seed: int, budget: float) -> dict[str, Any]:
    """Trains with a method, unless ``name`` is ``before``; returns the scores, times and peak memory."""
    from cse import Encoder
    from cse.evaluation.geometry import unit
    from cse_papers.reproduce.runner import peak_bytes

    collection = Collection(folder)
    rows = collection.rows()
    with tempfile.TemporaryDirectory() as place:
        started, used = time.perf_counter(), time.process_time()
        steps, path = (0, MODEL) if name == "before" else TRAINERS[name](rows, place, seed, budget)
        spent = {"seconds": time.perf_counter() - started, "processor_seconds": time.process_time() - used}
        peak = peak_bytes()  # measured here, because the evaluation needs more memory
        encoder = Encoder(path, device="cpu")
        cosines: Vectors = unit(encoder.encode(collection.queries)) @ unit(encoder.encode(collection.documents)).T
    lexical = collection.lexical(collection.queries)
    ranks = [(-scores).argsort(1).argsort(1) + 1 for scores in (cosines, lexical)]
    found = {"alone": judged(collection, cosines)}
    if name in ("before", DEFAULT):
        found["with BM25"] = judged(collection, 1 / (CONSTANT + ranks[0]) + 1 / (CONSTANT + ranks[1]))
    if name == "before":
        found["BM25"] = judged(collection, lexical)
    versions = {each: version(each) for each in ("cse", "torch", "transformers", "sentence-transformers", "bm25s")}
    return {"hash": collection.hash, "steps": steps, **spent, "peak": peak, "found": found, "versions": versions}


def train_cse(rows: list[str], place: str, seed: int, budget: float, device: str = "cpu") -> tuple[int, str]:
    """Trains like ``cse build-tfidf`` and ``cse train --model minilm``; returns the number of steps and the folder."""
    from cse import TfidfIndex, TrainConfig, train

    corpus = Path(place) / "corpus.txt"
    corpus.write_text("\n".join(rows) + "\n", encoding="utf8")
    TfidfIndex.build(corpus).save(f"{place}/tfidf")
    config = TrainConfig(
        corpus=str(corpus), tfidf=f"{place}/tfidf", output=place, model=MODEL, seed=seed, device=device, eval_every=0
    )
    result = train(config)
    return result.steps, str(result.folder / "last")


def deadline(budget: float) -> Any:
    """Returns a callback that ends training after the step in which ``budget`` processor seconds are used up."""
    from transformers import TrainerCallback

    end = time.process_time() + budget

    class Deadline(TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = time.process_time() >= end

    return Deadline()


def arguments_of(kind: Any, place: str, batch_size: int, rate: float, seed: int) -> Any:
    """Returns arguments for a trainer: constant learning rate, the precision of cse, no logs, no checkpoints."""
    from cse.encoder.device import pick_precision

    return kind(
        f"{place}/trainer",
        per_device_train_batch_size=batch_size,
        num_train_epochs=10_000,
        learning_rate=rate,
        lr_scheduler_type="constant",
        bf16=pick_precision("cpu", "auto")[0] == "bf16",
        optim="adamw_torch_fused",
        seed=seed,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )


def by_sentence_transformers(
    columns: Callable[[list[str], int], dict[str, list[Any]]],
    build_loss: Callable[[Any], Any],
    batch_size: int,
    rate: float,
) -> Callable[[list[str], str, int, float], tuple[int, str]]:
    """Returns a function that trains with the trainer of sentence-transformers until the budget is used up."""

    def run(rows: list[str], place: str, seed: int, budget: float) -> tuple[int, str]:
        from datasets import Dataset
        from sentence_transformers import (
            SentenceTransformer,
            SentenceTransformerTrainer,
            SentenceTransformerTrainingArguments,
        )

        from cse.encoder.resolve import find_model

        encoder = SentenceTransformer(str(find_model(MODEL).path), device="cpu")
        encoder.max_seq_length = LENGTH
        trainer = SentenceTransformerTrainer(
            model=encoder,
            args=arguments_of(SentenceTransformerTrainingArguments, place, batch_size, rate, seed),
            train_dataset=Dataset.from_dict(columns(rows, seed)),
            loss=build_loss(encoder),
            callbacks=[deadline(budget)],
        )
        trainer.train()
        encoder.max_seq_length = SentenceTransformer(str(find_model(MODEL).path), device="cpu").max_seq_length
        encoder.save(f"{place}/model", create_model_card=False)
        return trainer.state.global_step, f"{place}/model"

    return run


def equal_pairs(rows: list[str], seed: int) -> dict[str, list[Any]]:
    """Returns pairs of each document with itself."""
    return {"anchor": rows, "positive": rows}


def damaged(rows: list[str], seed: int) -> dict[str, list[Any]]:
    """Returns pairs of a damaged document and the original document.

    Each word is deleted with probability ``DELETED``; at least one is kept.
    """
    found = []
    for number, row in enumerate(rows):
        words, generator = row.split(), np.random.default_rng([seed, number])
        kept = np.flatnonzero(generator.random(len(words)) >= DELETED)
        kept = kept if len(kept) else generator.integers(0, len(words), 1)
        found.append(" ".join(words[place] for place in kept))
    return {"damaged": found, "original": rows}


def tension_pairs(rows: list[str], seed: int) -> dict[str, list[Any]]:
    """Returns pairs of a document with itself (on average, one in ``EQUAL_PAIRS``) or with a random document."""
    generator = np.random.default_rng(seed)
    others = generator.integers(0, len(rows), len(rows))
    equal = generator.random(len(rows)) < 1 / EQUAL_PAIRS
    return {
        "first": rows,
        "second": [rows[n if same else o] for n, (same, o) in enumerate(zip(equal, others, strict=True))],
    }


def ranking_loss(encoder: Any) -> Any:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    return MultipleNegativesRankingLoss(encoder, scale=1 / TEMPERATURE)


def denoising_loss(encoder: Any) -> Any:
    from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss

    return DenoisingAutoEncoderLoss(encoder, tie_encoder_decoder=True)


def tension_loss(encoder: Any) -> Any:
    from sentence_transformers.sentence_transformer.losses import ContrastiveTensionLoss

    return ContrastiveTensionLoss(encoder)


def masked_language_model(rate: float) -> Callable[[list[str], str, int, float], tuple[int, str]]:
    """Returns a function that continues masked language modelling, and loads the trained weights into the encoder."""

    def run(rows: list[str], place: str, seed: int, budget: float) -> tuple[int, str]:
        from sentence_transformers import SentenceTransformer
        from transformers import (
            AutoModelForMaskedLM,
            AutoTokenizer,
            DataCollatorForLanguageModeling,
            Trainer,
            TrainingArguments,
            set_seed,
        )

        from cse.encoder.resolve import find_model

        set_seed(seed)  # the head has random initial weights
        source = str(find_model(MODEL).path)
        tokenizer, model = AutoTokenizer.from_pretrained(source), AutoModelForMaskedLM.from_pretrained(source)
        data = [{"input_ids": ids} for ids in tokenizer(rows, truncation=True, max_length=LENGTH)["input_ids"]]
        trainer = Trainer(
            model=model,
            args=arguments_of(TrainingArguments, place, 32, rate, seed),
            train_dataset=data,
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
            callbacks=[deadline(budget)],
        )
        trainer.train()
        encoder = SentenceTransformer(source, device="cpu")
        encoder[0].auto_model.load_state_dict(model.base_model.state_dict(), strict=False)
        encoder.save(f"{place}/model", create_model_card=False)
        return trainer.state.global_step, f"{place}/model"

    return run


RATES = (5e-5, 1e-5)
OTHERS: dict[str, Callable[[list[str], str, int, float], tuple[int, str]]] = {}
for _rate in RATES:
    OTHERS |= {
        f"SimCSE, rate {_rate:g}": by_sentence_transformers(equal_pairs, ranking_loss, 64, _rate),
        f"TSDAE, rate {_rate:g}": by_sentence_transformers(damaged, denoising_loss, 8, _rate),
        f"ContrastiveTension, rate {_rate:g}": by_sentence_transformers(tension_pairs, tension_loss, 32, _rate),
        f"continued MLM, rate {_rate:g}": masked_language_model(_rate),
    }
TRAINERS = {DEFAULT: train_cse, **OTHERS}


def table(found: dict[str, Any]) -> str:
    """Returns a table of differences from the model before training, for the smallest stored seed.

    Collections that lack the results of a method are left out. The column ``over queries`` holds 95 % intervals of the
    mean nDCG@10.
    """
    seed = min(key.split("/")[2] for key in found)
    whole = ("before", *TRAINERS)
    begun = sorted({key.split("/")[0] for key in found})
    names = [name for name in begun if all(f"{name}/{system}/{seed}" in found for system in whole)]
    if not names:
        return "No collection has the results of all methods yet."
    before = {name: found[f"{name}/before/{seed}"]["found"]["alone"] for name in names}
    lines = [
        f"| nDCG@10 / recall@100 | {' | '.join(names)} | mean nDCG@10 | over queries | mean recall@100 | steps | "
        "processor seconds | peak GB |"
    ]
    lines.append("| --- |" + " ---: |" * (len(names) + 6))
    cells = [f"{np.mean(before[name]['ndcg']):.2f} / {np.mean(before[name]['recall']):.2f}" for name in names]
    lines.append(f"| before training | {' | '.join(cells)} | | | | | | |")
    wanted = [
        *((system, "alone", system) for system in TRAINERS),
        ("before", "BM25", "BM25"),
        ("before", "with BM25", "before training, fused with BM25"),
        (DEFAULT, "with BM25", f"{DEFAULT}, fused with BM25"),
    ]
    for system, kind, label in wanted:
        records = [found[f"{name}/{system}/{seed}"] for name in names]
        changes = {
            metric: [
                np.array(record["found"][kind][metric]) - np.array(before[name][metric])
                for name, record in zip(names, records, strict=True)
            ]
            for metric in ("ndcg", "recall")
        }
        cells = [f"{a.mean():+.2f} / {b.mean():+.2f}" for a, b in zip(changes["ndcg"], changes["recall"], strict=True)]
        mean, low, high = stratified(changes["ndcg"])
        recall = np.mean([each.mean() for each in changes["recall"]])
        cells += [f"{mean:+.2f}", f"[{low:+.2f}, {high:+.2f}]", f"{recall:+.2f}"]
        trained = system != "before"
        cells += [span([r["steps"] for r in records]) if trained else ""]
        cells += [span([r["processor_seconds"] for r in records]) if trained else ""]
        cells += [f"{max(r['peak'] for r in records) / 1e9:.1f}" if trained else ""]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def stratified(values: list[Vectors]) -> tuple[float, float, float]:
    """Returns the mean over collections of the means over queries, with its 95 % bootstrap interval over queries."""
    generator = np.random.default_rng(0)
    means = np.zeros(RESAMPLES)
    for each in values:
        means += each[generator.integers(0, len(each), (RESAMPLES, len(each)))].mean(1) / len(values)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(np.mean([each.mean() for each in values])), float(low), float(high)


def span(values: list[float]) -> str:
    """Returns the smallest and the largest value as text; one number if both are equal."""
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def main() -> None:
    """Runs one method (``--one``, in a process of its own), or runs all that are not stored and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the collections")
    parser.add_argument("--collections", nargs="*", help="names of collections; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=3, metavar=("COLLECTION", "METHOD", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        folder, name, budget = options.one
        print(json.dumps(one(Path(folder), name, options.seed, float(budget))))
        return
    if options.data is not None:
        peers(options.data, options.results, options.collections, options.seed)
    print(table(read(options.results)))


if __name__ == "__main__":
    main()
