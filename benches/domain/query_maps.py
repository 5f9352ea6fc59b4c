"""Trains on frozen vectors: linear maps of the query, and vectors of documents from those of their sentences.

    python benches/domain/query_maps.py COLLECTION ... --cache DIR [--json FILE]

The encoder is the untrained model of ``rankings.py``, which also defines smoothing, feedback and the fusion with BM25;
``--cache`` is its cache. No queries or judgements are used for training. The program prints the changes of two
rankings, each with 95 % intervals of a paired bootstrap over queries: by the vectors alone, from the dense ranking of
``rankings.py``, and by ``smoothed, feedback, w 0.2``, from the same ranking without training. Then it prints what the
best setting for the other collections gains on the collection left out of the choice.

Definitions. X: the vectors of at most 12,000 sentences of at least four words; S: the smoothed vectors of the
documents. Maps are ``q' = normalise(q W)``:

* ``ridge``: ``W = (X'X + c I)^-1 (X'Y + c I)``, where Y has for each sentence the row of S of its document;
* ``distilled``: ``W = I + M`` minimises the cross-entropy of ``softmax(x W S' / 0.05)`` with
  ``softmax((.6 z(x S') + .4 z(BM25)) / 0.4)`` by Adam from ``M = 0`` (learning rate 5e-4, batches of 128 sentences);
  the results are averaged over ``SEEDS``.

``sentences``: before smoothing, a document has the vector ``normalise(.7 d + .3 mean)``, where ``mean`` is that of its
sentences, of unit length.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent))
from domain_scores import SENTENCE_WORDS
from rankings import SHARE, SMOOTHING, Array, N, Trial, W, best, choose, print_table, rounded, unit, z

MOST = 12_000
SEEDS = (0, 1, 2)
STEPS = (20, 40)
PENALTIES = (100, 300, 1000, 3000)


class Sentences:
    """Sentences of the documents of a trial.

    Attributes:
        texts: n different sentences.
        vectors: ``(n, D)``, of unit length.
        owners: ``(n,)``, the position of the first document with the sentence.
    """

    def __init__(self, trial: Trial) -> None:
        found: dict[str, int] = {}
        for number, text in enumerate(trial.collection.documents):
            for part in re.split(r"(?<=[.!?])\s+", text):
                if len(part.split()) >= SENTENCE_WORDS:
                    found.setdefault(part.strip(), number)
        self.texts = list(found)
        random.Random(0).shuffle(self.texts)
        self.texts = self.texts[:MOST]
        self.owners = np.array([found[text] for text in self.texts])

        def encode() -> Array:
            import cse

            order = sorted(range(len(self.texts)), key=lambda row: len(self.texts[row]))
            vectors = cse.Encoder("minilm", device="cpu").encode([self.texts[row] for row in order], batch_size=32)
            result: Array = np.empty_like(vectors)
            result[order] = vectors
            return result

        self.vectors: Array = unit(trial.stored("sentences", encode).astype(np.float64))


def documents_of(trial: Trial, sentences: Sentences | None) -> Array:
    """Returns the smoothed vectors of the documents, with or without the mean vectors of their sentences."""
    vectors = trial.documents.vectors
    if sentences is not None:
        means = np.zeros_like(vectors)
        np.add.at(means, sentences.owners, sentences.vectors)
        means = unit(means)
        means = np.where(np.abs(means).sum(1, keepdims=True) > 0, means, vectors)
        vectors = unit(0.7 * vectors + 0.3 * means)
    k, share = SMOOTHING
    return unit((1 - share) * vectors + share * vectors[trial.neighbours()[:, :k]].mean(1))


def ridge(sentences: Sentences, documents: Array, penalty: float) -> Array:
    """Returns the map ``ridge``, ``(D, D)``."""
    x, y = sentences.vectors, documents[sentences.owners]
    identity = np.eye(x.shape[1])
    result: Array = np.linalg.solve(x.T @ x + penalty * identity, x.T @ y + penalty * identity)
    return result


def softmax(scores: Array) -> Array:
    """Returns the softmax of each row."""
    values = np.exp(scores - scores.max(1, keepdims=True))
    result: Array = values / values.sum(1, keepdims=True)
    return result


def distilled(trial: Trial, sentences: Sentences, documents: Array, seed: int) -> dict[int, Array]:
    """Returns the map ``distilled`` after each number of ``STEPS``."""
    generator = np.random.default_rng(seed)
    targets: Any = documents.astype(np.float32)
    change: Any = np.zeros((targets.shape[1],) * 2, np.float32)
    first, second = change, change
    found: dict[int, Array] = {}
    for step in range(1, max(STEPS) + 1):
        rows = np.sort(generator.choice(len(sentences.texts), min(128, len(sentences.texts)), replace=False))
        x = sentences.vectors[rows].astype(np.float32)
        words = trial.words["english"].scores([sentences.texts[row] for row in rows])
        wanted = softmax((0.6 * z(x @ targets.T) + 0.4 * z(words)) / 0.4)
        error = (softmax((x + x @ change) @ targets.T / 0.05) - wanted) / 0.05 / len(rows)
        gradient = x.T @ (error.astype(np.float32) @ targets)
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        change = change - 5e-4 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
        if step in STEPS:
            found[step] = np.eye(len(change)) + change
    return found


def ranked(trial: Trial, queries: Array, documents: Array) -> Array:
    """Returns the scores of the ranking ``smoothed, feedback, w 0.2``."""
    dense = z(queries @ documents.T)
    chosen = best((1 - W) * dense + W * trial.lexical, N)
    moved = unit((1 - SHARE) * queries + SHARE * documents[chosen].mean(1))
    total: Array = (1 - W) * z(moved @ documents.T) + W * trial.lexical
    return total


def candidates(trial: Trial) -> Iterator[tuple[str, Array, list[Array]]]:
    """Yields the candidates: name, vectors of the documents, and maps of the query, whose results are averaged."""
    sentences = Sentences(trial)
    plain, mixed = documents_of(trial, None), documents_of(trial, sentences)
    identity = np.eye(plain.shape[1])
    yield "smoothed", plain, [identity]
    for penalty in PENALTIES:
        yield f"smoothed, ridge {penalty}", plain, [ridge(sentences, plain, penalty)]
    for name, documents in (("smoothed", plain), ("sentences, smoothed", mixed)):
        if documents is mixed:
            yield name, mixed, [identity]
        maps = [distilled(trial, sentences, documents, seed) for seed in SEEDS]
        for steps in STEPS:
            yield f"{name}, distilled {steps} steps", documents, [each[steps] for each in maps]


def judged(trial: Trial) -> tuple[dict[str, list[Array]], dict[str, list[Array]]]:
    """Returns nDCG@10 and recall@100 of each query by the vectors alone and by the whole ranking, by candidate.

    They are stored in the cache as ``maps.json``; delete it there after a change of a definition.
    """
    path = trial.folder / "maps.json"
    if not path.exists():
        found: tuple[dict[str, Any], dict[str, Any]] = {}, {}
        for name, documents, maps in candidates(trial):
            queries = [unit(trial.queries.vectors @ each) for each in maps]
            scores = [each @ documents.T for each in queries], [ranked(trial, each, documents) for each in queries]
            for part, kind in zip(found, scores, strict=True):
                part[name] = np.mean([trial.measured(each) for each in kind], axis=0).tolist()
        path.write_text(json.dumps(found))
    alone, whole = ({key: list(np.array(v)) for key, v in part.items()} for part in json.loads(path.read_text()))
    return alone, whole


def left_out(names: list[str], changes: dict[str, npt.NDArray[np.float64]]) -> list[tuple[str, str, float]]:
    """Prints what the setting chosen on the other collections gains on each; returns name, setting and gain."""
    held = []
    for number, name in enumerate(names):
        chosen = choose(changes, [each for each in range(len(names)) if each != number])
        held.append((name, chosen, float(changes[chosen][number])))
    gains = [gain for _, _, gain in held]
    said = ", ".join(f"{name} {gain:+.1f} ({chosen})" for name, chosen, gain in held)
    print(f"left out: {said}; mean {np.mean(gains):+.1f}, worst {min(gains):+.1f}\n")
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", type=Path, nargs="+")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="file of the results")
    options = parser.parse_args()
    names: list[str] = []
    alone: dict[str, list[list[Array]]] = {}
    whole: dict[str, list[list[Array]]] = {}
    for folder in options.collections:
        trial = Trial(folder, options.cache)
        names.append(trial.name)
        alone.setdefault("dense", []).append(trial.measured(trial.dense))
        for kept, found in zip((alone, whole), judged(trial), strict=True):
            for key, values in found.items():
                kept.setdefault(key, []).append(values)
    whole["dense"] = whole.pop("smoothed")  # what the changes are from
    report: dict[str, Any] = {"names": names}
    for title, part in (("vectors alone", alone), ("smoothed, feedback, w 0.2", whole)):
        print(f"{title}: {', '.join(f'{np.mean(each[0]):.2f}' for each in part['dense'])}\n")
        rows = print_table(names, part)
        changes = {
            key: np.array([np.mean(new[0] - old[0]) for new, old in zip(values, part["dense"], strict=True)])
            for key, values in part.items()
        }
        report[title] = {"rows": rows, "left out": left_out(names, changes) if len(names) > 1 else []}
    if options.json:
        options.json.write_text(json.dumps(rounded(report), indent=1) + "\n")


if __name__ == "__main__":
    main()
