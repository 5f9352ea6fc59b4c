"""Static encoders (``cse export --static``) against the encoder that they are distilled from.

    python benches/static.py COLLECTION ... --cache DIR [--check COLLECTION ...] [--json FILE]
    python benches/static.py --sts DIR --sentences FILE ... --speed COLLECTION --cache DIR [--json FILE]

A collection is a folder in the layout of BEIR (``convert_collections.py`` writes some). For each of them, variants of
the static encoder are fitted to its documents, without queries or judgements, and nDCG@10 is computed with
``SearchIndex``, for the vectors alone and fused with BM25 (``--hybrid``). For the STS sets in ``--sts``, the vectors
are fitted to the rows of each file of ``--sentences``. The encoder's embeddings are stored in ``--cache``. Only the
measurement of speed encodes texts again: on one core, in turns, with the default batch size, in processor time.
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
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

import numpy as np

import cse
from cse.data.corpus import Corpus
from cse.encoder import static_export
from cse.evaluation.options import RetrievalOptions
from cse.evaluation.retrieval import Retrieval
from cse.search.index import SearchIndex

MODULE = "cse.encoder.static_export"
# Arguments of ``SearchIndex.search``.
SEARCHES: dict[str, dict[str, Any]] = {"dense": {}, "fused": {"hybrid": True}}


def single_tokens(cache: Path) -> Any:
    """Returns model2vec's embeddings of the tokens of ``minilm``: means over three states, of ``[CLS] token [SEP]``."""
    import torch

    path = cache / "tokens.npy"
    if not path.exists():
        model = cse.Encoder("minilm", device="cpu")
        first, last = model.tokenizer.cls_token_id, model.tokenizer.sep_token_id
        parts = []
        for ids in torch.split(torch.arange(len(model.tokenizer)), 1024):
            given = torch.stack([torch.full_like(ids, first), ids, torch.full_like(ids, last)], dim=1)
            with torch.inference_mode():
                states = model[0].model(input_ids=given, attention_mask=torch.ones_like(given)).last_hidden_state
            parts.append(states.mean(dim=1).numpy())
        np.save(path, np.concatenate(parts))
    return np.load(path)


def model2vec_recipe(tokens: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Returns model2vec's ``distill`` without a vocabulary, as a replacement of ``first_vectors``.

    Its principal components of the tokens, and weights from the rank of a token in the vocabulary by Zipf's law.
    ``distill`` itself cannot be called, because model2vec 0.10 requires an older release of transformers for it.
    """

    def vectors(alone: Any, design: Any) -> tuple[Any, Any]:
        ranks = 1 / np.arange(2, len(tokens) + 2)
        weights = (1e-4 / (1e-4 + ranks / ranks.sum())).astype(np.float32)
        axes = np.linalg.eigh(np.cov(tokens.T))[1][:, ::-1]
        found = (tokens - tokens.mean(axis=0)) @ axes
        found[:, 256:] = 0
        return (found * weights[:, None]).astype(np.float32), weights

    return vectors


# Changed values of the module and arguments of ``export_static``; "half": fitted to every other document.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "model2vec's recipe": ({"RIDGE": 1e12, "model2vec": True}, {"dims": 256}),
    "weights from the corpus, no fit": ({"RIDGE": 1e12}, {}),
    "default": ({}, {}),
    "fitted to half of the documents": ({"half": True}, {}),
    "256 dimensions": ({}, {"dims": 256}),
    "128 dimensions": ({}, {"dims": 128}),
    "ridge 0.15": ({"RIDGE": 0.15}, {}),
    "ridge 0.02": ({"RIDGE": 0.02}, {}),
    "smoothing 3e-4": ({"SMOOTHING": 3e-4}, {}),
    "smoothing 3e-3": ({"SMOOTHING": 3e-3}, {}),
}
# The variants for --check and --sts.
MAIN = list(VARIANTS)[:4]


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

    def encode(self, texts: Iterable[str] | None = None, *arguments: Any, **settings: Any) -> Any:
        """Returns the embeddings; prompts are not supported."""
        listed = list(texts or ())
        fresh = sorted({text for text in listed if text not in self.known}, key=len)
        for start in range(0, len(fresh), 20_000):
            part = fresh[start : start + 20_000]
            self.known.update(zip(part, super().encode(part, batch_size=32), strict=True))
        if fresh:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            np.savez(self.file, texts=json.dumps(list(self.known)), vectors=np.stack(list(self.known.values())))
        return np.stack([self.known[text] for text in listed])


def distilled(encoder: Stored, texts: list[str], name: str, folder: Path) -> dict[str, Any]:
    """Exports the variant ``name``, fitted to ``texts``, to the folder; returns what ``export_static`` reports."""
    changes, arguments = VARIANTS[name]
    changes = dict(changes)
    half = changes.pop("half", False)
    if changes.pop("model2vec", False):
        changes["first_vectors"] = model2vec_recipe(single_tokens(encoder.file.parent))
    with ExitStack() as stack:
        for key, value in changes.items():
            stack.enter_context(patch(f"{MODULE}.{key}", value))
        corpus = Corpus.from_texts(texts[::2] if half else texts)
        return vars(static_export.export_static(encoder, corpus, str(folder), **arguments))


def dcg(gains: list[float]) -> float:
    return float(sum(gain / np.log2(2 + place) for place, gain in enumerate(gains[:10])))


def query_scores(index: SearchIndex, retrieval: Retrieval, kind: str) -> Any:
    """Returns nDCG@10, x 100, of each query, ``(n,)``."""
    hits = index.search(list(retrieval.queries.values()), k=10, **SEARCHES[kind])
    values = []
    for found, judged in zip(hits, retrieval.judgements.values(), strict=True):
        ideal = dcg(sorted((max(value, 0.0) for value in judged.values()), reverse=True))
        values.append(dcg([max(judged.get(hit.id, 0), 0) for hit in found]) / ideal if ideal else 0.0)
    return 100 * np.array(values)


def ndcg(index: SearchIndex, retrieval: Retrieval, name: str) -> dict[str, float]:
    """Returns nDCG@10, x 100, of each kind of search."""
    kinds = list(SEARCHES)
    return {kind: float(np.mean(query_scores(index, retrieval, kind))) for kind in kinds}


def collection_scores(folder: Path, cache: Path, variants: Iterable[str]) -> dict[str, Any]:
    """Returns nDCG@10 of the encoder and of each variant on a collection."""
    retrieval = Retrieval(RetrievalOptions(), str(folder))
    ids, texts = list(retrieval.documents), list(retrieval.documents.values())
    encoder = Stored("minilm", cache, folder.name)
    rows: dict[str, Any] = {"encoder": ndcg(SearchIndex.build(encoder, texts, ids=ids), retrieval, "encoder")}
    for name in variants:
        with tempfile.TemporaryDirectory() as temporary:
            made = distilled(encoder, texts, name, Path(temporary) / "static")
            own = cse.Encoder(Path(temporary) / "static", device="cpu")
            rows[name] = ndcg(SearchIndex.build(own, texts, ids=ids), retrieval, name)
            rows[name] |= {"MB": made["bytes"] / 1e6, "cosine": made["cosine"], "rows": made["rows"]}
        print(f"{folder.name}: {name}: {rows[name]}", flush=True)
    return rows


def sts_scores(folder: Path, files: list[Path], cache: Path) -> dict[str, Any]:
    """Returns Spearman's correlation, x 100, on each STS test set, of the encoder and of variants fitted to files."""
    encoder = Stored("minilm", cache, "sentences")
    with tempfile.TemporaryDirectory() as temporary:
        models: dict[str, Any] = {"encoder": "minilm"}
        for number, (file, name) in enumerate(product(files, MAIN[:3])):
            label = name if name == MAIN[0] else f"{name}, {file.stem}"
            if label not in models:
                models[label] = str(Path(temporary) / str(number))
                distilled(encoder, file.read_text(encoding="utf8").splitlines(), name, Path(models[label]))
        rows: dict[str, Any] = {name: {} for name in models}
        for path in sorted(folder.glob("*.test.tsv")):
            for name, model in models.items():
                (record,) = cse.evaluate(model, "sts", path, device="cpu", threads=1).reports["sts"].rows
                rows[name][path.name.removesuffix(".test.tsv")] = record["spearman"]
        for name, row in rows.items():
            print(f"{name}: {row}", flush=True)
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
    """Returns the mean nDCG@10 over collections, with the mean of the ratios to the encoder's, as a Markdown table."""
    kinds = [f"{kind}, of the encoder's" for kind in SEARCHES]
    lines = [f"| vectors | {' | '.join(kinds)} | fused, of the encoder's dense | MB |", "| --- |" + " ---: |" * 4]
    for name in next(iter(scores.values())):
        rows = [each[name] for each in scores.values()]
        base = [each["encoder"] for each in scores.values()]
        cells = []
        for kind, other in (*((kind, kind) for kind in SEARCHES), ("fused", "dense")):
            if kind not in rows[0]:
                cells.append("")
                continue
            share = 100 * np.mean([row[kind] / each[other] for row, each in zip(rows, base, strict=True)])
            mean = np.mean([row[kind] for row in rows])
            cells.append(f"{mean:.1f}, {share:.1f} %" if kind == other else f"{share:.1f} %")
        cells.append(f"{np.mean([row['MB'] for row in rows]):.1f}" if "MB" in rows[0] else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="*", type=Path)
    parser.add_argument("--check", nargs="*", type=Path, default=[], help="collections for the main variants only")
    parser.add_argument("--sts", type=Path, help="folder of STS files")
    parser.add_argument("--sentences", nargs="*", type=Path, default=[], help="sentences, for STS and the speed")
    parser.add_argument("--speed", type=Path, help="collection whose documents are encoded to measure the speed")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    found["collections"] = {each.name: collection_scores(each, options.cache, VARIANTS) for each in options.collections}
    found["check"] = {each.name: collection_scores(each, options.cache, MAIN) for each in options.check}
    for part in ("collections", "check"):
        if found[part]:
            print(table(found[part]))
    if options.sts:
        found["sts"] = sts_scores(options.sts, options.sentences, options.cache)
    if options.speed:
        found["speed"] = speed(options.speed, options.cache, options.sentences[0].read_text("utf8").splitlines())
        print(found["speed"])
    if options.json:
        before = json.loads(options.json.read_text()) if options.json.exists() else {}
        merged = before | {part: value for part, value in found.items() if value}
        options.json.write_text(json.dumps(merged, indent=1) + "\n")


if __name__ == "__main__":
    main()
