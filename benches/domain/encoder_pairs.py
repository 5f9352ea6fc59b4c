"""Trains the encoder on pairs from the fused ranking of the untrained model, to see if ``cse search --hybrid`` gains.

    python benches/domain/encoder_pairs.py train COLLECTION ... --cache DIR --models DIR [--only NAME ...] [--seeds 0]
    python benches/domain/encoder_pairs.py table COLLECTION ... --cache DIR --models DIR [--json FILE]

``--cache`` has the vectors of the untrained all-MiniLM-L6-v2, as for ``rankings.py``, which also defines smoothing,
feedback and the fusion with BM25; missing ones are stored there, without the states of tokens. ``--models`` has a
folder of models for each entry of ``RECIPES`` and each part of the queries, in the layout of ``trained_rankings.py``;
a stored model is not trained again. ``table`` prints the changes of nDCG@10 and recall@100 from the same ranking by the
untrained model, with 95 % intervals of a paired bootstrap over queries. Judgements are never used for training.

Definitions. Fused: the ranking ``smoothed, feedback, w 0.2`` of the untrained model. A row to train on is an anchor, a
positive and a hard negative, and the loss is InfoNCE over the positives and the hard negatives of the batch, by ``cse
train --pairs``. A window is at most ``WINDOW`` words in a row of a document; a span is made as by the default recipe
for sentence encoders. Each recipe takes its share of rows from one kind of pairs, and the others from ``spans``:

* ``spans``: two spans of a document, and a span of another document.
* ``queries``: a query of the collection, a window of one of the ``POSITIVES`` documents first in its fused ranking, and
  a window of one at the places ``NEGATIVES``.
* ``mined``: as ``queries``, by ``cse mine --by hybrid``; all settings are those of the preset ``encoder-queries``.
* ``agreed``: a sentence of at least four words, whose document is among the first ``POSITIVES`` of its fused ranking,
  a window of the other sentences of this document, and a window of a document at the places ``NEGATIVES``.
* ``neighbours``: a span of a document, a span of one of its five neighbours that ``rankings.py`` defines for smoothing,
  and a span of a document at the places ``NEGATIVES`` of the ranking of neighbours.

With ``queries`` and ``mined``, a model is trained on each of two halves of the queries, drawn at random. Each half is
evaluated with the model trained on the other half ("other queries"), and with the model trained on the same queries
("the same queries"). If at least as many queries of a collection have no judgements as have some, only they are trained
on, by one model for all ("other queries").
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent))
from domain_scores import SENTENCE_WORDS, Collection
from rankings import SHARE, SMOOTHING, Array, N, Trial, W, best, resampled, rounded, rows, shown, unit, z
from trained_rankings import place_of

Numbers = npt.NDArray[np.int64]

ROWS = ("dense", "smoothed", "w 0.2", "smoothed, feedback, w 0.2")
"""Names of rows of ``rankings.py``."""

WINDOW = 30
POSITIVES = 3
NEGATIVES = (20, 60)
MAX_LENGTH = 48
HALVES = ("first half", "second half")
SAME, OTHER = "the same queries", "other queries"


@dataclass(frozen=True)
class Recipe:
    """What is trained on, and how."""

    kind: str
    """``queries``, ``mined``, ``agreed`` or ``neighbours``."""
    share: float = 0.5
    """Share of the rows of this kind; the others are ``spans``."""
    steps: int = 20
    rows: int = 32
    """Rows of a batch."""
    rate: float = 5e-5
    kept: bool = False
    """Whether the loss term ``keep-similarities`` is added."""


RECIPES = {
    "queries": Recipe("queries"),
    "queries, 60 steps": Recipe("queries", steps=60),
    "queries, 60 steps, kept": Recipe("queries", steps=60, rate=2e-5, kept=True),
    "cse mine --by hybrid": Recipe("mined"),
    "agreed": Recipe("agreed"),
    "neighbours": Recipe("neighbours"),
}


class Source:
    """A collection, its untrained ranking, and pairs from it.

    Args:
        trial: The untrained model's.
        seed: Seed of the choice of rows.
    """

    def __init__(self, trial: Trial, seed: int) -> None:
        self.trial, self.texts = trial, trial.collection.documents
        self.seed, self.random = seed, random.Random(seed)
        self.split = [text.split() for text in self.texts]
        self.filled = [number for number, words in enumerate(self.split) if len(words) >= SENTENCE_WORDS]

    def fused(self, texts: list[str], vectors: Array) -> Numbers:
        """Returns the documents of the places up to the last of ``NEGATIVES`` of the fused ranking of each text."""
        documents, found = self.trial.smoothed(*SMOOTHING)[0], []
        for start in range(0, len(texts), 500):
            queries = vectors[start : start + 500]
            lexical = z(self.trial.words["english"].scores(texts[start : start + 500]))
            chosen = best((1 - W) * z(queries @ documents.T) + W * lexical, N)
            moved = unit((1 - SHARE) * queries + SHARE * documents[chosen].mean(1))
            found.append(best((1 - W) * z(moved @ documents.T) + W * lexical, NEGATIVES[1]))
        return np.concatenate(found)

    def window(self, words: list[str]) -> str:
        """Returns at most ``WINDOW`` of the words, from a random one on."""
        start = self.random.randint(0, max(len(words) - WINDOW, 0))
        return " ".join(words[start : start + WINDOW])

    def span(self, number: int) -> str:
        """Returns 8 to 24 words of a document; of fewer than 27 words, 30 to 70 %."""
        words = self.split[number]
        low, high = (8, 24) if len(words) >= 27 else (max(1, round(0.3 * len(words))), max(1, round(0.7 * len(words))))
        size = self.random.randint(low, high)
        start = self.random.randint(0, max(len(words) - size, 0))
        return " ".join(words[start : start + size])

    def ranked(
        self, texts: list[str], vectors: Array, hit: Callable[[int, int], bool]
    ) -> Iterator[tuple[int, int, int]]:
        """Yields, without end, the number of a text, a document first in its fused ranking, and one further below.

        Args:
            texts: The texts.
            vectors: Their vectors.
            hit: Whether a document may be the first, given the number of the text and of the document.
        """
        near = self.fused(texts, vectors)
        order: list[int] = []
        while True:
            if not order:
                order = list(range(len(texts)))
                self.random.shuffle(order)
            text = order.pop()
            firsts = [each for each in near[text, :POSITIVES].tolist() if self.split[each] and hit(text, each)]
            lasts = [each for each in near[text, slice(*NEGATIVES)].tolist() if self.split[each]]
            if firsts and lasts:
                yield text, self.random.choice(firsts), self.random.choice(lasts)

    def spans(self) -> Iterator[tuple[str, str, str]]:
        """Yields rows of the kind ``spans``."""
        while True:
            own, other = self.random.sample(self.filled, 2)
            yield self.span(own), self.span(own), self.span(other)

    def queries(self, texts: list[str], vectors: Array) -> Iterator[tuple[str, str, str]]:
        """Yields rows of the kind ``queries``."""
        for text, first, last in self.ranked(texts, vectors, lambda _, __: True):
            yield texts[text], self.window(self.split[first]), self.window(self.split[last])

    def agreed(self) -> Iterator[tuple[str, str, str]]:
        """Yields rows of the kind ``agreed``, from at most 2,000 sentences."""
        found = []
        for number in self.filled:
            parts = re.split(r"(?<=[.!?])\s+", self.texts[number])
            found += [(number, n, parts) for n, part in enumerate(parts) if len(part.split()) >= SENTENCE_WORDS]
        found = [each for each in found if len(" ".join(each[2]).split()) >= 2 * len(each[2][each[1]].split())]
        self.random.shuffle(found)
        found = found[:2000]
        texts = [parts[n] for _, n, parts in found]
        for text, _, last in self.ranked(texts, vectors_of("minilm", texts), lambda row, each: found[row][0] == each):
            n, parts = found[text][1:]
            yield texts[text], self.window(" ".join(parts[:n] + parts[n + 1 :]).split()), self.window(self.split[last])

    def neighbours(self) -> Iterator[tuple[str, str, str]]:
        """Yields rows of the kind ``neighbours``."""
        vectors, near = self.trial.documents.vectors, self.trial.neighbours()[:, : SMOOTHING[0]]
        while True:
            chosen = self.random.sample(self.filled, min(200, len(self.filled)))
            lexical = z(self.trial.words["english"].scores([self.texts[each] for each in chosen]))
            order = best(0.5 * z(vectors[chosen] @ vectors.T) + 0.5 * lexical, NEGATIVES[1])
            for row, own in enumerate(chosen):
                firsts = [each for each in near[own].tolist() if self.split[each]]
                lasts = [each for each in order[row, slice(*NEGATIVES)].tolist() if self.split[each] and each != own]
                if firsts and lasts:
                    yield self.span(own), self.span(self.random.choice(firsts)), self.span(self.random.choice(lasts))


def vectors_of(model: str, texts: list[str]) -> Array:
    """Returns the vectors of texts, ``(n, D)``; the encoder computes in bfloat16 where this is faster."""
    import cse

    return unit(cse.Encoder(model, device="cpu", precision="auto").encode(texts).astype(np.float64))


def encode(folder: Path, store: Path, model: str) -> Trial:
    """Returns the rankings of a collection by a model, and stores its vectors without the states of tokens."""
    collection = Collection(folder)
    place = store / f"{collection.name}-{collection.hash}"
    if not place.exists():
        part = place.with_suffix(".tmp")
        part.mkdir(parents=True, exist_ok=True)
        for role, texts in (("documents", collection.documents), ("queries", collection.queries)):
            np.save(part / f"{role}-vectors.npy", vectors_of(model, texts))
        part.rename(place)
    for role in ("documents", "queries"):
        if not (place / f"{role}-states.npy").exists():
            count = len(np.load(place / f"{role}-vectors.npy", mmap_mode="r"))
            np.save(place / f"{role}-states.npy", np.zeros((0, 1), np.float16))
            np.save(place / f"{role}-ids.npy", np.zeros(0, np.int64))
            np.save(place / f"{role}-starts.npy", np.zeros(count + 1, np.int64))
    return Trial(folder, store, model)


def further(collection: Collection) -> list[str]:
    """Returns the queries of a collection that have no judgements."""
    path = collection.folder / "queries.jsonl"
    lines = path.read_text(encoding="utf8").splitlines() if path.exists() else []
    known = set(collection.queries)
    return [text for text in (json.loads(line)["text"] for line in lines if line.strip()) if text not in known]


def halves(count: int) -> Numbers:
    """Returns 0 or 1 for each query."""
    result: Numbers = np.random.default_rng(0).permutation(count) % 2
    return result


def parts(recipe: Recipe, collection: Collection) -> dict[str, tuple[list[str], Numbers | None]]:
    """Returns, by name of the part, the texts of the queries to train on and their rows, if they have judgements."""
    if recipe.kind not in ("queries", "mined"):
        return {"": ([], None)}
    texts, others = collection.queries, further(collection)
    if len(others) >= len(texts):
        return {OTHER: (others, None)}
    chosen = {name: np.flatnonzero(halves(len(texts)) == number) for number, name in enumerate(HALVES)}
    return {name: ([texts[row] for row in each], each) for name, each in chosen.items()}


def pairs_of(recipe: Recipe, source: Source, texts: list[str], known: Numbers | None) -> list[tuple[str, str, str]]:
    """Returns the rows to train on, as many as the steps take."""
    if recipe.kind == "mined":
        import cse
        from cse.search.mining import QueryRows

        encoder = cse.Encoder("minilm", device="cpu", precision="auto")
        return QueryRows(seed=source.seed)(cse.SearchIndex.build(encoder, source.texts), texts)
    if recipe.kind == "queries":
        vectors = source.trial.queries.vectors[known] if known is not None else vectors_of("minilm", texts)
        own = source.queries(texts, vectors)
    else:
        own = source.agreed() if recipe.kind == "agreed" else source.neighbours()
    spans, count = source.spans(), recipe.steps * recipe.rows
    found = [next(own if row < recipe.share * count else spans) for row in range(count)]
    source.random.shuffle(found)
    return found


def train_one(recipe: Recipe, rows_: list[tuple[str, str, str]], seed: int, target: Path) -> None:
    """Trains all-MiniLM-L6-v2 on rows, and stores the model."""
    from cse import TrainConfig, train

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "pairs.jsonl"
        names = ("anchor", "positive", "negative")
        path.write_text(
            "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows_), encoding="utf8"
        )
        own: dict[str, Any] = {
            "loss": "standard",
            "temperature": 0.05,
            "loss_terms": ("keep-similarities",) if recipe.kept else (),
            "merge_with_base": 0.0,
            "max_length": MAX_LENGTH,
            "batch_size": recipe.rows,
            "max_steps": recipe.steps,
            "lr": recipe.rate,
            "lr_scheduler": "constant",
            "eval_every": 0,
        }
        config = TrainConfig(
            pairs=str(path),
            columns=names,
            output=place,
            model="minilm",
            seed=seed,
            device="cpu",
            threads=1,
            **({"preset": "encoder-queries"} if recipe.kind == "mined" else own),
        )
        found = train(config).folder / "last"
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".tmp")
        shutil.copytree(found, part, dirs_exist_ok=True)
        part.rename(target)


def stored_at(models: Path, name: str, part: str) -> Path:
    """Returns the folder of the models of a recipe and a part of the queries."""
    return models / re.sub(r"[^a-z0-9.]+", "-", f"{name} {part}".lower()).strip("-")


def train(folders: list[Path], cache: Path, models: Path, only: list[str], seeds: list[int]) -> None:
    """Trains the models that are not stored, and encodes the collections with them."""
    for folder in folders:
        base = encode(folder, cache, "minilm")
        for seed in seeds:
            for name, recipe in RECIPES.items():
                if only and name not in only:
                    continue
                for part, (texts, known) in parts(recipe, base.collection).items():
                    place = stored_at(models, name, part)
                    target = place_of(base.collection, place) / str(seed)
                    started, used = time.perf_counter(), time.process_time()
                    if not target.exists():
                        train_one(recipe, pairs_of(recipe, Source(base, seed), texts, known), seed, target)
                    trained = time.process_time() - used
                    encode(folder, place / "encoded" / str(seed), str(target))
                    spent = f"{time.process_time() - used:.0f} s of processor time, {trained:.0f} s of them training"
                    print(f"{target}: {time.perf_counter() - started:.0f} s, {spent}", file=sys.stderr, flush=True)


def judged(trial: Trial) -> dict[str, Array]:
    """Returns nDCG@10 and recall@100 of each query, ``(2, queries)``, for each of ``ROWS``."""
    return {name: np.stack(trial.judge(name, make)) for name, make in rows(trial) if name in ROWS}


def after(folder: Path, base: Trial, models: Path, name: str, seed: int) -> dict[str, dict[str, Array]]:
    """Returns ``judged`` of the stored models of a recipe, by what they were trained on."""
    found = {}
    for part in parts(RECIPES[name], base.collection):
        place = stored_at(models, name, part)
        target = place_of(base.collection, place) / str(seed)
        if target.exists():
            found[part] = judged(encode(folder, place / "encoded" / str(seed), str(target)))
    if all(part in found for part in HALVES):
        mine = halves(len(base.queries.vectors)) == 0
        first, second = (found.pop(part) for part in HALVES)
        found[SAME] = {row: np.where(mine, first[row], second[row]) for row in ROWS}
        found[OTHER] = {row: np.where(mine, second[row], first[row]) for row in ROWS}
    return {part: each for part, each in found.items() if part not in HALVES}


def table(folders: list[Path], cache: Path, models: Path, seeds: list[int]) -> dict[str, Any]:
    """Prints a table of the changes; returns its numbers."""
    changes: dict[tuple[str, str], dict[str, dict[str, Array]]] = {}
    before: dict[str, Any] = {}
    for folder in folders:
        base = encode(folder, cache, "minilm")
        old = judged(base)
        before[base.name] = {row: each.mean(1).tolist() for row, each in old.items()}
        for name in RECIPES:
            kept: dict[str, list[dict[str, Array]]] = {}
            for seed in seeds:
                for part, new in after(folder, base, models, name, seed).items():
                    kept.setdefault(part, []).append({row: new[row] - old[row] for row in ROWS})
            for part, each in kept.items():
                mean = {row: np.mean([found[row] for found in each], axis=0) for row in ROWS}
                changes.setdefault((name, part), {})[base.name] = mean
    print(f"| recipe | ranking | {' | '.join(before)} | mean nDCG@10 | worst | recall@100, mean | worst |")
    print("| --- | --- |" + " ---: |" * (len(before) + 4))
    numbers: dict[str, Any] = {}
    for (name, part), own in changes.items():
        title = f"{name}, {part}" if part else name
        for row in ROWS:
            drawn = {collection: [resampled(values) for values in kept[row]] for collection, kept in own.items()}
            single = {key: [(got.mean, got.low, got.high) for got, _ in pair] for key, pair in drawn.items()}
            cells, means = [shown(single[key][0]) if key in single else "" for key in before], []
            for figure in (0, 1):
                low, high = np.quantile(np.mean([pair[figure][1] for pair in drawn.values()], axis=0), [0.025, 0.975])
                means.append((float(np.mean([pair[figure][0] for pair in single.values()])), float(low), float(high)))
                cells += [shown(means[-1]), f"{min(pair[figure][0] for pair in single.values()):+.1f}"]
            print(f"| {title} | {row} | {' | '.join(cells)} |")
            numbers.setdefault(title, {})[row] = {
                "names": list(single),
                "ndcg": [pair[0] for pair in single.values()],
                "recall": [pair[1] for pair in single.values()],
                "means": means,
            }
    return {"before": before, "seeds": seeds, "changes": numbers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "table"))
    parser.add_argument("collections", type=Path, nargs="+")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the vectors of the untrained model")
    parser.add_argument("--models", type=Path, required=True, help="folder of the trained models")
    parser.add_argument("--only", nargs="*", default=[], choices=list(RECIPES), help="recipes to train; default: all")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--json", type=Path, help="file of the results")
    options = parser.parse_args()
    if options.what == "train":
        train(options.collections, options.cache, options.models, options.only, options.seeds)
        return
    report = table(options.collections, options.cache, options.models, options.seeds)
    if options.json:
        options.json.write_text(json.dumps(rounded(report), indent=1) + "\n")


if __name__ == "__main__":
    main()
