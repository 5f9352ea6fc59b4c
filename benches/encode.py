"""Speed of encoding the STS sentences, beside SentenceTransformer.encode with the same model.

    python benches/encode.py --data DIR [--share 0.2]

All distinct sentences of the seven STS tasks (or every n-th of them) are encoded by both in turns; embeddings must be
equal before anything is timed. Prints medians and how much of the tokens is padding in either order.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from cse import Encoder
from cse.evaluation.sts import load_tasks
from cse.models.resolve import find_model


def padding(lengths: np.ndarray, order: np.ndarray, size: int) -> float:
    """Returns the tokens with padding, relative to those without."""
    batches = [lengths[order[start : start + size]] for start in range(0, len(order), size)]
    return sum(len(batch) * int(batch.max()) for batch in batches) / int(lengths.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    tasks = load_tasks(options.data)
    distinct = list(dict.fromkeys(text for _, pairs in tasks for side in (pairs.left, pairs.right) for text in side))
    texts = distinct[:: round(1 / options.share)]
    ours = Encoder("minilm", device="cpu")
    theirs = SentenceTransformer(find_model("minilm").path, device="cpu")
    assert np.allclose(ours.encode(texts[:64]), theirs.encode(texts[:64]), atol=1e-5)
    found: dict[str, list[float]] = {"cse": [], "SentenceTransformer": []}
    for _ in range(options.rounds):
        started = time.perf_counter()
        theirs.encode(texts, show_progress_bar=False)
        middle = time.perf_counter()
        ours.encode(texts)
        found["SentenceTransformer"].append(middle - started)
        found["cse"].append(time.perf_counter() - middle)
    tokens = ours.model.tokenizer(texts, truncation=True, max_length=ours.model.source.max_length)["input_ids"]
    lengths = np.array([len(ids) for ids in tokens])
    by_characters = padding(lengths, np.argsort([-len(text) for text in texts], kind="stable"), 32)
    by_tokens = padding(lengths, np.argsort(-lengths, kind="stable"), 64)
    print(f"{len(texts):,} of {len(distinct):,} distinct sentences")
    print("| system | seconds | range | sentences/s | tokens with padding |")
    print("| --- |" + " ---: |" * 4)
    for name, share in (("SentenceTransformer", by_characters), ("cse", by_tokens)):
        times = found[name]
        middle = statistics.median(times)
        spread = f"{min(times):.1f} to {max(times):.1f}"
        print(f"| {name} | {middle:.1f} | {spread} | {len(texts) / middle:,.0f} | {share:.2f} x |")


if __name__ == "__main__":
    main()
