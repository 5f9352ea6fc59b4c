"""Compares the encoding speed of cse and SentenceTransformer, with one model and the sentences of the STS tasks.

    python benches/encode.py --data DIR [--share 0.2] [--json FILE]

A fraction (--share) of the distinct sentences of the seven STS tasks is encoded alternately by SentenceTransformer and
by cse, in float32 and in bfloat16 (for SentenceTransformer: autocast around ``encode``). Before anything is timed, the
float32 embeddings of the first 64 sentences must agree (within 1e-5). Prints the median times, and the number of tokens
with padding relative to the number without padding. If the processor has no instructions for bfloat16, the
bfloat16 rows of the table are left out. With --emulate, they are computed with benches/emulated.py, but their times are
not those of a processor with such instructions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from cse import Encoder
from cse.encoder.device import bf16_instructions
from cse.encoder.resolve import find_model
from cse.evaluation.sts import load_tasks
from emulated import EmulatedBf16

THEIRS = "SentenceTransformer"


def padding(lengths: np.ndarray, order: np.ndarray, size: int) -> float:
    """Returns the number of tokens with padding, relative to the number without padding."""
    batches = [lengths[order[start : start + size]] for start in range(0, len(order), size)]
    return sum(len(batch) * int(batch.max()) for batch in batches) / int(lengths.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--emulate", action="store_true", help="emulate bf16 on a processor without bf16 instructions")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tasks = load_tasks(options.data)
    distinct = list(dict.fromkeys(text for _, pairs in tasks for side in (pairs.left, pairs.right) for text in side))
    texts = distinct[:: round(1 / options.share)]
    theirs = SentenceTransformer(find_model("minilm").path, device="cpu")
    kinds = ("fp32", "bf16") if bf16_instructions() or options.emulate else ("fp32",)
    encoders = {kind: Encoder("minilm", device="cpu", precision=kind) for kind in kinds}
    ours = encoders["fp32"]
    assert np.allclose(ours.encode(texts[:64]), theirs.encode(texts[:64]), atol=1e-5)
    found: dict[tuple[str, str], list[float]] = {(kind, name): [] for kind in kinds for name in (THEIRS, "cse")}
    for _ in range(options.rounds):
        for kind in kinds:
            with ExitStack() as stack:
                if kind == "bf16" and options.emulate:
                    stack.enter_context(EmulatedBf16())
                started = time.perf_counter()
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "bf16"):
                    theirs.encode(texts, show_progress_bar=False)
                middle = time.perf_counter()
                vectors = encoders[kind].encode(texts)
                found[kind, THEIRS].append(middle - started)
                found[kind, "cse"].append(time.perf_counter() - middle)
            if kind == "fp32":
                exact = vectors
            else:
                print(f"smallest cosine between embeddings in bf16 and in fp32: {(vectors * exact).sum(1).min():.5f}")
    tokens = ours.tokenizer(texts, truncation=True, max_length=ours.max_seq_length)["input_ids"]
    lengths = np.array([len(ids) for ids in tokens])
    by_characters = padding(lengths, np.argsort([-len(text) for text in texts], kind="stable"), 32)
    by_tokens = padding(lengths, np.argsort(-lengths, kind="stable"), 64)
    print(f"{len(texts):,} of {len(distinct):,} distinct sentences")
    if "bf16" not in kinds:
        print("bf16: left out, because the processor has no instructions for it (see --emulate)")
    elif options.emulate:
        print("bf16: emulated; the times are not those of a processor with instructions for it")
    measured: dict[str, Any] = {
        "sentences": len(texts),
        "seconds": {f"{kind}: {name}": times for (kind, name), times in found.items()},
        "padding": {THEIRS: by_characters, "cse": by_tokens},
    }
    print(table(measured))
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf8")


def table(found: dict[str, Any]) -> str:
    """Returns the results as a table in Markdown."""
    lines = [
        "| precision | system | seconds | range | sentences/s | speed-up | tokens with padding |",
        "| --- | --- |" + " ---: |" * 5,
    ]
    for key, times in found["seconds"].items():
        kind, name = key.split(": ")
        own, theirs = (statistics.median(each) for each in (times, found["seconds"][f"{kind}: {THEIRS}"]))
        lines.append(
            f"| {kind} | {name} | {own:.1f} | {min(times):.1f} to {max(times):.1f} | {found['sentences'] / own:,.0f} | "
            f"{theirs / own:.2f} | {found['padding'][name]:.2f} x |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
