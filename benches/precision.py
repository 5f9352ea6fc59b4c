"""Measures how bfloat16 changes the scores of a model that encodes in bfloat16, and of models trained in bfloat16.

    python benches/precision.py encode --sts DIR --retrieval DIR [DIR ...]    # evaluates minilm, without training
    python benches/precision.py train --sts DIR [--seeds 31 32 33 34 35]      # trains and evaluates minilm
    python benches/precision.py table --sts DIR

The model is all-MiniLM-L6-v2 (``minilm``). ``encode`` scores it on the STS sets and on retrieval collections, in
float32 and in bfloat16. ``train`` trains it on the shipped sample, with the same seeds in both precisions. Settings are
the defaults of ``cse train --model minilm``, except that the loss is ``standard`` without further terms. The models are
evaluated in float32 on STS-B dev, SICK-R dev and STS16; the label-free MRR that a run computes is compared too.
Differences between models of the same seed have 95 % intervals over sentence pairs and over seeds. Each result is
written to benches/results/precision.json as soon as it is computed, and stored results are not computed again.

If the processor has no instructions for bfloat16, benches/emulated.py emulates them: the results equal those of such
instructions up to the order of summation, but the times do not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emulated import EmulatedBf16

sys.path.append(str(Path(__file__).parent / "domain"))

from adapt import TASKS, over_seeds, spearman, versions

RESULTS = Path(__file__).parent / "results" / "precision.json"
STS = ("sts16.test", "stsb.test", "stsb.dev", "sts12.test", "sickr.test", "sts13.test", "sts15.test", "sts14.test")
TRAINED = ("stsb.dev", "sickr.dev", "sts16.test")
SEEDS = (31, 32, 33, 34, 35)
# Conditions for making bfloat16 a default. If a model encodes in bfloat16, every score x 100 changes by less than
# ENCODE_LIMIT. If a model is trained in bfloat16, no score x 100 falls by TRAIN_LIMIT or more.
ENCODE_LIMIT, TRAIN_LIMIT = 0.05, 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("encode", "train", "table"))
    parser.add_argument("--sts", type=Path, help="Folder with stsb.dev.tsv, sts16.test.tsv and the other data sets.")
    parser.add_argument("--retrieval", type=Path, nargs="*", default=[], help="Folders of retrieval collections.")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--minutes", type=float, default=1e9, help="Start no measurement after this many minutes.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.results.read_text()) if options.results.exists() else {}
    if options.sts is None:
        parser.error("--sts: missing; name the folder of the STS files")
    TASKS.data = options.sts
    if options.what != "table":
        torch.set_num_threads(1)
        until = time.monotonic() + 60 * options.minutes
        for key, measure in (encoding if options.what == "encode" else training)(options):
            if key in found or time.monotonic() > until:
                continue
            started = time.perf_counter()
            record = {**measure(), "emulated": emulates(), "versions": versions()}
            record["seconds"] = round(time.perf_counter() - started, 1)
            shown = {name: value for name, value in record.items() if not isinstance(value, list)}
            print(f"{key}: {json.dumps(shown)}", file=sys.stderr, flush=True)
            # Another process may have written results in the meantime.
            found = json.loads(options.results.read_text()) if options.results.exists() else {}
            found[key] = record
            part = options.results.with_suffix(f".{options.what}")
            part.write_text(json.dumps(found) + "\n")
            part.replace(options.results)
    print(tables(found))


def emulates() -> bool:
    """Returns whether bfloat16 is emulated, which is the case if the processor has no instructions for it."""
    from cse.models.device import bf16_instructions

    return not bf16_instructions()


@contextmanager
def emulation() -> Iterator[None]:
    """Emulates bfloat16 within the context if the processor has no instructions for it."""
    if not emulates():
        yield
        return
    with EmulatedBf16() as mode:
        yield
    assert mode.count, "nothing was computed in bfloat16"


class InBf16:
    """An encoder whose transformer computes in bfloat16."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder

    def encode(self, texts: Sequence[str], **settings: Any) -> Any:
        """Returns the embeddings."""
        with torch.autocast("cpu", dtype=torch.bfloat16), emulation():
            return self.encoder.encode(texts, **settings)


def encoding(options: Any) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    from cse import Encoder

    encoder = Encoder("minilm", device="cpu")
    collections = [(f"encode/{folder.name}", partial(retrieval, encoder, folder)) for folder in options.retrieval]
    sets = [(f"encode/{name}", partial(sts, encoder, options.sts / f"{name}.tsv")) for name in STS]
    # Three small sets and one collection come first, so that there are results of each kind if time runs out.
    yield from [*sets[:3], *collections[:1], *sets[3:], *collections[1:]]


def sts(encoder: Any, path: Path) -> dict[str, Any]:
    """Returns Spearman's correlation x 100 in both precisions.

    ``smallest_cosine`` is the smallest cosine between a sentence's embeddings in the two precisions.
    """
    from cse.evaluation.base import embed, read_pairs
    from cse.evaluation.geometry import unit

    pairs = read_pairs(path)
    scores, vectors = {}, []
    for name, each in (("fp32", encoder), ("bf16", InBf16(encoder))):
        left, right = (unit(z) for z in embed(each, [pairs.left, pairs.right]))
        scores[name] = {"spearman": spearman((left * right).sum(1), pairs.gold)}
        vectors.append(np.concatenate([left, right]))
    return {**scores, "smallest_cosine": float((vectors[0] * vectors[1]).sum(1).min())}


def retrieval(encoder: Any, folder: Path) -> dict[str, Any]:
    """Returns nDCG@10, MRR@10 and recall@100 of a collection, x 100, in both precisions."""
    from cse.evaluation.run import open_suites

    suite = open_suites(("retrieval",), str(folder))["retrieval"]
    found = {}
    for name, each in (("fp32", encoder), ("bf16", InBf16(encoder))):
        row = suite(each, lambda count: None).rows[0]
        found[name] = {key: row[key] for key in ("ndcg@10", "mrr@10", "recall@100")}
    return found


def training(options: Any) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for seed in options.seeds:
        for precision in ("fp32", "bf16"):
            yield f"train/{precision}/{seed}", partial(train_one, seed, precision, options)


def train_one(seed: int, precision: str, options: Any) -> dict[str, Any]:
    """Trains in one precision; returns the scores x 100 of the saved model, evaluated in float32."""
    from cse import Encoder, TrainConfig, train
    from cse.evaluation.base import read_pairs
    from cse.evaluation.geometry import unit

    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            corpus=str(files("cse") / "resources" / "sample.txt"),
            model="minilm",
            loss="standard",  # the default when the stored runs were made
            loss_terms=(),
            output=folder,
            seed=seed,
            precision=precision,
            device="cpu",
            threads=1,
            eval_every=0,
            log_every=1,
        )
        if precision == "bf16":
            with emulation():
                result = train(config)
        else:
            result = train(config)
        lines = map(json.loads, (result.folder / "log.jsonl").read_text().splitlines())
        losses = [record["loss"] for record in lines if "loss" in record]
        encoder = Encoder(result.folder / "last", device="cpu")
    record = {"mrr": 100 * result.after["mrr"], "first_loss": losses[0], "last_loss": losses[-1], "steps": len(losses)}
    for name in TRAINED:
        pairs = read_pairs(options.sts / f"{name}.tsv")
        left, right = unit(encoder.encode(pairs.left)), unit(encoder.encode(pairs.right))
        cosines = (left * right).sum(1)
        record[name] = spearman(cosines, pairs.gold)
        record[f"{name}/cosines"] = cosines.round(6).tolist()
    return record


def over_pairs(found: dict[str, Any], name: str, seeds: list[str]) -> str:
    """Returns the 95 % interval of the difference on a set, from a bootstrap of clusters of pairs.

    For the MRR, which has no pairs, returns "".
    """
    from cse.evaluation.significance import resampled_difference

    if name not in TRAINED:
        return ""
    gold, clusters = TASKS[name]
    before, after = (
        [np.array(found[f"train/{precision}/{seed}"][f"{name}/cosines"]) for seed in seeds]
        for precision in ("fp32", "bf16")
    )
    difference, _ = resampled_difference(before, after, gold, clusters)
    return f"[{difference.low:+.3f}, {difference.high:+.3f}]"


def tables(found: dict[str, Any]) -> str:
    """Returns the tables of the stored results."""
    encoded = {key.split("/")[1]: record for key, record in found.items() if key.startswith("encode/")}
    parts = []
    if encoded:
        lines = ["| dataset | score | fp32 | bf16 | difference |", "| --- | --- | ---: | ---: | ---: |"]
        differences = []
        for name, record in encoded.items():
            for score, before in record["fp32"].items():
                after = record["bf16"][score]
                differences.append(after - before)
                lines.append(f"| {name} | {score} | {before:.3f} | {after:.3f} | {after - before:+.3f} |")
        largest = max(map(abs, differences))
        lines += ["", f"Largest change {largest:.3f} (threshold {ENCODE_LIMIT})."]
        parts.append("\n".join(lines))
    keys = [key.split("/") for key in found if key.startswith("train/")]
    seeds = sorted({seed for _, _, seed in keys if all(f"train/{p}/{seed}" in found for p in ("fp32", "bf16"))})
    if seeds:
        lines = [f"| score after training, {len(seeds)} seeds | fp32 | bf16 | bf16 - fp32 | over pairs | over seeds |"]
        lines.append("| --- |" + " ---: |" * 5)
        for name in (*TRAINED, "mrr"):
            before, after = ([found[f"train/{p}/{seed}"][name] for seed in seeds] for p in ("fp32", "bf16"))
            each = [b - a for a, b in zip(before, after, strict=True)]
            cells = [
                f"{statistics.fmean(before):.2f}",
                f"{statistics.fmean(after):.2f}",
                f"{statistics.fmean(each):+.3f}",
            ]
            lines.append(f"| {name} | {' | '.join(cells)} | {over_pairs(found, name, seeds)} | {over_seeds(each, 3)} |")
        lines += ["", f"Scores x 100 with 95 % intervals. Threshold for a decrease: {TRAIN_LIMIT}."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "no results are stored"


if __name__ == "__main__":
    main()
