"""Static encoders (``cse export --static``) against the encoder that they are distilled from.

    python benches/static.py COLLECTION ... --sts DIR --sentences FILE --cache DIR [--json FILE]

A collection is a folder in the layout of BEIR (``convert_collections.py`` writes some). For each of them, variants of
the static encoder are fitted to its documents, without queries or judgements, and nDCG@10 is computed with
``SearchIndex``, for the vectors alone and fused with BM25 (``Fusion()``). For the STS sets in ``--sts``, the vectors
are fitted to the rows of ``--sentences``. The encoder's embeddings are stored in ``--cache``. Speed is measured on one
core, in turns, with the default batch size; it is the only part that encodes texts again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

import numpy as np

import cse
from cse.data.corpus import Corpus
from cse.evaluation.retrieval import Retrieval, RetrievalOptions
from cse.models.saving import static_export
from cse.search.hybrid import Fusion
from cse.search.index import SearchIndex

MODULE = "cse.models.saving.static_export"
SEARCHES: dict[str, bool | Fusion] = {"dense": False, "fused": Fusion()}


def zipf(alone: Any, design: Any) -> tuple[Any, Any]:
    """Returns the vectors and weights of model2vec's own recipe: PCA, and weights from the rank in the vocabulary."""
    ranks = 1 / np.arange(2, len(alone) + 2)
    weights = (1e-4 / (1e-4 + ranks / ranks.sum())).astype(np.float32)
    filled = np.any(alone, axis=1)
    centred = np.where(filled[:, None], alone - alone[filled].mean(axis=0), 0)
    axes = np.linalg.eigh(np.cov(centred[filled].T))[1][:, ::-1][:, :256]
    vectors = np.zeros_like(alone)
    vectors[:, :256] = centred @ axes
    return vectors * weights[:, None], weights


# Changed values of the module and arguments of ``export_static``; "half": fitted to every other document.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "weights by Zipf's law, no fit, 256": ({"RIDGE": 1e12, "first_vectors": zipf}, {}),
    "weights from the corpus, no fit": ({"RIDGE": 1e12}, {}),
    "default": ({}, {}),
    "ridge 0.3": ({"RIDGE": 0.3}, {}),
    "ridge 0.1": ({"RIDGE": 0.1}, {}),
    "ridge 0.03": ({"RIDGE": 0.03}, {}),
    "smoothing 3e-4": ({"SMOOTHING": 3e-4}, {}),
    "smoothing 3e-3": ({"SMOOTHING": 3e-3}, {}),
    "2,000 added words": ({}, {"words": 2000}),
    "256 dimensions": ({}, {"dims": 256}),
    "128 dimensions": ({}, {"dims": 128}),
    "64 dimensions": ({}, {"dims": 64}),
    "fitted to half of the documents": ({"half": True}, {}),
}


class Stored(cse.Encoder):
    """An encoder that stores embeddings by text in a file of ``cache``, so that each text is encoded once.

    Args:
        model: See ``cse.Encoder``.
        cache: The folder.
        name: Name of the file.
    """

    def __init__(self, model: str, cache: Path, name: str) -> None:
        super().__init__(model, device="cpu")
        self.file = cache / f"{name}.npz"

    @cached_property
    def known(self) -> dict[str, Any]:
        """The stored embeddings."""
        if not self.file.exists():
            return {}
        with np.load(self.file) as file:
            return dict(zip(json.loads(str(file["texts"])), file["vectors"], strict=True))

    def encode(self, texts: Iterable[str], **settings: Any) -> Any:
        """Returns the embeddings; prompts are not supported."""
        listed = list(texts)
        fresh = sorted({text for text in listed if text not in self.known}, key=len)
        for start in range(0, len(fresh), 20_000):
            part = fresh[start : start + 20_000]
            self.known.update(zip(part, super().encode(part, batch_size=32), strict=True))
        if fresh:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            np.savez(self.file, texts=json.dumps(list(self.known)), vectors=np.stack(list(self.known.values())))
        return np.stack([self.known[text] for text in listed])


def distilled(encoder: cse.Encoder, texts: list[str], name: str, folder: Path) -> dict[str, Any]:
    """Exports the variant ``name``, fitted to ``texts``, to the folder; returns what ``export_static`` reports."""
    changes, arguments = VARIANTS[name]
    with ExitStack() as stack:
        for key, value in changes.items():
            if key != "half":
                stack.enter_context(patch(f"{MODULE}.{key}", value))
        corpus = Corpus.from_texts(texts[::2] if "half" in changes else texts)
        return vars(static_export.export_static(encoder, corpus, str(folder), **arguments))


def dcg(gains: list[float]) -> float:
    return float(sum(gain / np.log2(2 + place) for place, gain in enumerate(gains[:10])))


def ndcg(index: SearchIndex, retrieval: Retrieval) -> dict[str, float]:
    """Returns nDCG@10, x 100, of each kind of search."""
    result = {}
    for kind, hybrid in SEARCHES.items():
        hits = index.search(list(retrieval.queries.values()), k=10, hybrid=hybrid)
        values = []
        for found, judged in zip(hits, retrieval.judgements.values(), strict=True):
            ideal = dcg(sorted((max(value, 0.0) for value in judged.values()), reverse=True))
            values.append(dcg([max(judged.get(hit.id, 0), 0) for hit in found]) / ideal if ideal else 0.0)
        result[kind] = 100 * float(np.mean(values))
    return result


def collection_scores(folder: Path, cache: Path, variants: Iterable[str]) -> dict[str, Any]:
    """Returns nDCG@10 of the encoder and of each variant on a collection."""
    retrieval = Retrieval(RetrievalOptions(), str(folder))
    ids, texts = list(retrieval.documents), list(retrieval.documents.values())
    encoder = Stored("minilm", cache, folder.name)
    rows: dict[str, Any] = {"encoder": ndcg(SearchIndex.build(encoder, texts, ids=ids), retrieval)}
    for name in variants:
        with tempfile.TemporaryDirectory() as temporary:
            made = distilled(encoder, texts, name, Path(temporary) / "static")
            own = cse.Encoder(Path(temporary) / "static", device="cpu")
            rows[name] = ndcg(SearchIndex.build(own, texts, ids=ids), retrieval)
            rows[name] |= {"MB": made["bytes"] / 1e6, "cosine": made["cosine"], "rows": made["rows"]}
        print(f"{folder.name}: {name}: {rows[name]}", flush=True)
    return rows


def sts_scores(folder: Path, sentences: list[str], cache: Path, names: Iterable[str]) -> dict[str, Any]:
    """Returns Spearman's correlation, x 100, on each STS test set."""
    encoder = Stored("minilm", cache, "sentences")
    with tempfile.TemporaryDirectory() as temporary:
        models: dict[str, Any] = {"encoder": "minilm"}
        for name in names:
            models[name] = str(Path(temporary) / name.replace(" ", "-"))
            distilled(encoder, sentences, name, Path(models[name]))
        rows: dict[str, Any] = {name: {} for name in models}
        for path in sorted(folder.glob("*.test.tsv")):
            for name, model in models.items():
                (record,) = cse.evaluate(model, "sts", path, device="cpu", threads=1).reports["sts"].rows
                rows[name][path.name.removesuffix(".test.tsv")] = record["spearman"]
            print(path.name, {name: row for name, row in rows.items()}, flush=True)
    return rows


def rates(encoder: cse.Encoder, static: cse.Encoder, texts: list[str], turns: int = 3) -> dict[str, float]:
    """Returns texts per second on one core: medians of turns, in which the two encoders alternate."""

    def rate(encode: Callable[[list[str]], Any], given: list[str]) -> float:
        start = time.process_time()
        encode(given)
        return len(given) / (time.process_time() - start)

    found = [(rate(encoder.encode, texts[:256]), rate(static.encode, texts)) for _ in range(turns)]
    slow, fast = (statistics.median(each) for each in zip(*found, strict=True))
    return {"encoder": slow, "static": fast, "ratio": statistics.median(each[1] / each[0] for each in found)}


def speed(folder: Path, cache: Path, sentences: list[str]) -> dict[str, Any]:
    """Returns the rates for documents of a collection and for sentences."""
    import torch

    torch.set_num_threads(1)
    documents = list(Retrieval(RetrievalOptions(), str(folder)).documents.values())
    with tempfile.TemporaryDirectory() as temporary:
        distilled(Stored("minilm", cache, folder.name), documents, "default", Path(temporary) / "static")
        encoder, static = (cse.Encoder(model, device="cpu") for model in ("minilm", Path(temporary) / "static"))
        given = {folder.name: documents[:1024], "sentences": sentences[:4096]}
        return {name: rates(encoder, static, texts) for name, texts in given.items()}


def table(scores: dict[str, dict[str, Any]]) -> str:
    """Returns the mean nDCG@10 over collections, and its ratios to the encoder's, as a Markdown table."""
    lines = [
        "| | dense | of encoder's | fused | of encoder's fused | of encoder's dense | MB |",
        "| --- |" + " ---: |" * 6,
    ]
    for name in next(iter(scores.values())):
        rows = [each[name] for each in scores.values()]
        base = [each["encoder"] for each in scores.values()]
        dense, fused = (np.mean([row[kind] for row in rows]) for kind in SEARCHES)
        pairs = [("dense", "dense"), ("fused", "fused"), ("fused", "dense")]
        shares = [np.mean([r[a] / b[c] for r, b in zip(rows, base, strict=True)]) for a, c in pairs]
        megabytes = f"{np.mean([row['MB'] for row in rows]):.1f}" if "MB" in rows[0] else ""
        first, second, third = (f"{100 * share:.1f} %" for share in shares)
        lines.append(f"| {name} | {dense:.1f} | {first} | {fused:.1f} | {second} | {third} | {megabytes} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="*", type=Path)
    parser.add_argument("--check", nargs="*", type=Path, default=[], help="collections for the main variants only")
    parser.add_argument("--sts", type=Path, help="folder of STS files")
    parser.add_argument("--sentences", type=Path, help="file of sentences, for STS and for the speed")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    found["collections"] = {each.name: collection_scores(each, options.cache, VARIANTS) for each in options.collections}
    few = ["weights by Zipf's law, no fit, 256", "default", "fitted to half of the documents"]
    found["check"] = {each.name: collection_scores(each, options.cache, few) for each in options.check}
    for part in ("collections", "check"):
        if found[part]:
            print(table(found[part]))
    sentences = options.sentences.read_text(encoding="utf8").splitlines() if options.sentences else []
    if options.sts:
        found["sts"] = sts_scores(options.sts, sentences, options.cache, few[:2])
    if sentences and options.collections:
        found["speed"] = speed(options.collections[0], options.cache, sentences)
        print(found["speed"])
    if options.json:
        before = json.loads(options.json.read_text()) if options.json.exists() else {}
        merged = before | {part: value for part, value in found.items() if value}
        options.json.write_text(json.dumps(merged, indent=1) + "\n")


if __name__ == "__main__":
    main()
