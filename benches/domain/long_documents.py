"""Measures ``--passages`` of ``cse search`` on documents that are longer than the model reads, and late chunking.

    python benches/domain/long_documents.py COLLECTION ... --cache DIR [--model MODEL] [--size 64] [--json FILE]

A collection is a folder in the layout of BEIR. The program prints nDCG@10 x 100 of the vectors of documents that are
cut off, and the changes from it, with 95 % intervals of a bootstrap over queries, by

* ``max``: ``--passages max``; a document has the score of its best passage;
* ``SIZE``: ``--passages SIZE``;
* ``late SIZE``: late chunking (Guenther et al. 2024, arXiv:2409.04701). Each passage of ``max`` is encoded once, and
  its tokens, without special tokens, are divided into pieces of SIZE tokens, of which the last may be shorter. The
  vector of a piece is the mean of the last states of its tokens, scaled to unit length. A document has the score of its
  best piece. This trial is not part of the package.

The columns are the vectors alone, the pool of ``cse search --hybrid --no-smooth`` with its weight of BM25 (indexes with
passages are not smoothed), and with that for texts which the model reads. A last line compares late chunking with the
better of the two other ways. The model must average the states of its tokens. Vectors are stored in ``--cache``; texts
are encoded in bfloat16 where this is faster.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cse.models.running.passages import Cutter
from cse.search import hybrid
from pool import RESAMPLES, Scored, pooled, rows_standardised

Array = npt.NDArray[np.float64]


def cut(cutter: Cutter, documents: list[str]) -> tuple[list[str], list[int]]:
    """Returns the passages of all documents, and the number of the document of each."""
    texts, owners = [], []
    for number, (text, spans) in enumerate(zip(documents, cutter(documents), strict=True)):
        texts += [text[start:end] for start, end in spans]
        owners += [number] * len(spans)
    return texts, owners


def late(encoder: Any, passages: list[str], owners: list[int], size: int) -> dict[str, Any]:
    """Encodes passages once; returns the means of all their tokens and of their pieces, and the owners of the pieces.

    Raises ``AssertionError`` if the means of all tokens are not the vectors of ``encode_document``.
    """
    import torch

    from cse.models.tokens import pad, prompt_length, token_lists

    prompt = encoder.prompts.get("document") or encoder.prompts.get("passage") or ""
    before = prompt_length(encoder.tokenizer, prompt) if prompt else 1
    tokens = token_lists(encoder.tokenizer, [prompt + text for text in passages], encoder.max_seq_length)
    lengths = [len(ids) for ids in tokens["input_ids"]]
    whole = np.empty((len(passages), encoder.embedding_dim))
    pieces: list[list[Array]] = [[] for _ in passages]
    order = sorted(range(len(passages)), key=lengths.__getitem__)
    with torch.inference_mode():
        for start in range(0, len(order), 16):
            chosen = order[start : start + 16]
            batch = pad(encoder.tokenizer, tokens, chosen)
            with torch.autocast("cpu", torch.bfloat16):
                states = encoder[0].auto_model(**batch).last_hidden_state.float()
            for row, own in zip(chosen, states.double().numpy(), strict=True):
                kept = own[: lengths[row]]
                whole[row] = kept.mean(axis=0)
                kept = kept[before:-1]
                pieces[row] = [kept[at : at + size].mean(axis=0) for at in range(0, len(kept), size)]
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    some = order[:: max(1, len(order) // 8)]
    expected = encoder.encode_document([passages[each] for each in some])
    cosines = (whole[some] * expected).sum(axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.999, f"the means of the states are not the vectors of the model: {cosines.min()}"
    counts = [len(each) for each in pieces]
    vectors = np.array([each for own in pieces for each in own])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return {"max": whole, "max owners": np.array(owners), "late": vectors, "late owners": np.repeat(owners, counts)}


def best_of(queries: Array, vectors: Array, owners: Array, count: int) -> Array:
    """Returns the largest product of each query and document, ``(queries, count)``."""
    products = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    found = np.full((len(queries), count), -1.0)
    for number in range(count):
        own = products[:, owners == number]
        if own.shape[1]:
            found[:, number] = own.max(axis=1)
    return found


def measure(folder: Path, encoder: Any, store: Path, size: int) -> dict[str, Any]:
    """Prints the table of one collection; returns its numbers."""
    scored = Scored(folder, encoder, store, sys.maxsize)
    ways: dict[str, Array] = {}
    counts: dict[str, int] = {}
    for name in ("late", "short"):
        file = store / f"{scored.name}-{Path(encoder.given[0]).name}-{name}-{size}.npz"
        if not file.exists():
            cutter = Cutter(encoder, size if name == "short" else None)
            passages, owners = cut(cutter, scored.documents)
            found: dict[str, Any] = (
                late(encoder, passages, owners, size)
                if name == "late"
                else {"short": encoder.encode_document(passages), "short owners": np.array(owners)}
            )
            np.savez(file, **found)
        with np.load(file) as stored:
            for way in stored.files[::2]:
                title = way.replace("short", str(size)).replace("late", f"late {size}")
                counts[title] = len(stored[way])
                ways[title] = best_of(scored.asked, stored[way], stored[f"{way} owners"], len(scored.documents))
    lexical = rows_standardised(scored.lexical)
    weight = hybrid.READABLE if scored.readable else hybrid.UNREADABLE

    def judged(dense: Array) -> dict[str, Array]:
        found = {"vectors": scored.ndcg(dense)}
        for name, own in (("hybrid", weight), (f"weight {hybrid.READABLE}", hybrid.READABLE)):
            both = pooled(rows_standardised(dense), lexical, hybrid.DENSE, hybrid.LEXICAL, own, hybrid.EXPONENT)
            found[name] = scored.ndcg(both)
        return found

    before = judged(scored.dense)
    after = {name: judged(dense) for name, dense in ways.items()}
    draws = np.random.default_rng(0).integers(0, len(scored.queries), (RESAMPLES, len(scored.queries)))

    def interval(change: Array) -> list[float]:
        low, high = np.quantile(change[draws].mean(axis=1), [0.025, 0.975])
        return [round(float(each), 2) for each in (change.mean(), low, high)]

    result: dict[str, Any] = {"queries": len(scored.queries), "documents": len(scored.documents)}
    result["passages"] = counts
    result["cut off"] = {name: round(float(values.mean()), 2) for name, values in before.items()}
    result["bm25"] = round(float(scored.ndcg(scored.lexical).mean()), 2)
    for name, each in after.items():
        result[name] = {column: interval(values - before[column]) for column, values in each.items()}
    late_name = f"late {size}"
    for column in before:
        others = max((name for name in after if name != late_name), key=lambda name: after[name][column].mean())
        change = interval(after[late_name][column] - after[others][column])
        result.setdefault("late against", {})[column] = [others, *change]
    print(f"{scored.name}: cut off {result['cut off']}, BM25 {result['bm25']}")
    for name in after:
        cells = ", ".join(f"{column} {x:+.1f} [{y:+.1f}, {z:+.1f}]" for column, (x, y, z) in result[name].items())
        print(f"  {name} ({counts[name]:,} vectors): {cells}")
    print(f"  late chunking against: {result['late against']}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from cse import Encoder

    encoder = Encoder(options.model, device="cpu", precision="auto")
    found = {folder.name: measure(folder, encoder, options.cache, options.size) for folder in options.collections}
    if options.json:
        stored = json.loads(options.json.read_text(encoding="utf8")) if options.json.exists() else {}
        stored[Path(options.model).name] = found
        options.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
