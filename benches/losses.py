"""The second table of the README: three losses, with and without UNA, on the shipped sample and minilm.

    python benches/losses.py --data DIR      # DIR contains stsb.dev.tsv and sickr.dev.tsv

For each loss, without and with UNA, and each seed: 100 steps on the CPU recipe, then STS-B dev and SICK-R dev
(Spearman x 100), the label-free MRR, and the mean cosine of held-out sentences to their own synthetic negatives, before
and after; the loss is the mean over the first and the last five steps. Each result is written to
benches/results/losses.json when its run ends; runs with a stored result are skipped. The table is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "losses.json"
LOSSES = ("standard", "focal", "mixed")
SEEDS = (0, 1, 2)
STEPS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    cells: dict[str, Any] = json.loads(options.results.read_text()) if options.results.exists() else {}
    wanted = [("before", False, seed) for seed in SEEDS]
    wanted += [(loss, una, seed) for seed in SEEDS for una in (False, True) for loss in LOSSES]
    for loss, una, seed in wanted:
        key = f"{loss}{'+una' if una else ''}/{seed}"
        if key in cells:
            continue
        started = time.perf_counter()
        cells[key] = cell(loss, una, seed, options.data, options.threads)
        cells[key]["seconds"] = round(time.perf_counter() - started, 1)
        print(f"{key}: {json.dumps(cells[key])}", file=sys.stderr, flush=True)
        options.results.parent.mkdir(exist_ok=True)
        part = options.results.with_suffix(".tmp")
        part.write_text(json.dumps(cells, indent=1) + "\n")
        part.replace(options.results)
    print(table(cells))


def cell(loss: str, una: bool, seed: int, data: Path, threads: int) -> dict[str, Any]:
    from cse import TfidfIndex, TrainConfig, train
    from cse.data.corpus import Corpus, hold_out
    from cse.evaluation.split_half import score_halves
    from cse.evaluation.sts import read_pairs, score_pairs
    from cse.models.inference import Encoder

    sample = str(files("cse") / "resources" / "sample.txt")
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        index = TfidfIndex.build(sample)
        index.save(f"{folder}/tfidf")
        model = "minilm"
        if loss != "before":
            run = train(
                TrainConfig(
                    corpus=(sample,),
                    tfidf=f"{folder}/tfidf",
                    output=folder,
                    model="minilm",
                    loss=loss,
                    una=una,
                    seed=seed,
                    max_steps=STEPS,
                    eval_every=0,
                    device="cpu",
                    threads=threads,
                )
            )
            model = str(run.folder / "last")
            lines = (run.folder / "log.jsonl").read_text().splitlines()
            steps = [record for record in map(json.loads, lines) if "loss" in record]
            result["loss_first"] = statistics.fmean(record["loss"] for record in steps[:5])
            result["loss_last"] = statistics.fmean(record["loss"] for record in steps[-5:])
        encoder = Encoder(model, device="cpu")
        corpus = Corpus.read([sample])
        rows = hold_out(corpus, seed, wanted=True).held_out
        held_out = corpus.take(rows)
        negatives = index.augment(held_out, rows=rows.tolist(), seed=seed)
        vectors, others = encoder.encode(held_out), encoder.encode(negatives)
        result["cos_syn"] = float((vectors * others).sum(1).mean())  # minilm's vectors have length 1
        result["mrr"] = score_halves(encoder.model, held_out).mrr
        for task in ("stsb.dev", "sickr.dev"):
            result[task] = score_pairs(encoder, read_pairs(data / f"{task}.tsv")).spearman
    result["versions"] = {name: version(name) for name in ("cse", "torch", "transformers")}
    result["machine"] = platform.machine()
    return result


def table(cells: dict[str, Any]) -> str:
    lines = [
        "| loss | UNA | STS-B dev | SICK-R dev | MRR | cosine of synthetic negatives | loss, first 5 -> last 5 steps |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    names = [("before", False)] + [(loss, una) for loss in LOSSES for una in (False, True)]
    for loss, una in names:
        runs = [cells.get(f"{loss}{'+una' if una else ''}/{seed}") for seed in SEEDS]
        found = [run for run in runs if run]
        if len(found) < len(SEEDS):
            lines.append(f"| {loss} | {'yes' if una else 'no'} | {len(found)} of {len(SEEDS)} seeds run | | | | |")
            continue
        columns = [
            spread(found, "stsb.dev", 2),
            spread(found, "sickr.dev", 2),
            spread(found, "mrr", 3),
            spread(found, "cos_syn", 3),
            ""
            if loss == "before"
            else f"{spread(found, 'loss_first', 1, 'e')} -> {spread(found, 'loss_last', 1, 'e')}",
        ]
        label = "before training" if loss == "before" else loss
        lines.append(f"| {label} | {'' if loss == 'before' else 'yes' if una else 'no'} | {' | '.join(columns)} |")
    return "\n".join(lines)


def spread(runs: list[dict[str, Any]], key: str, digits: int, form: str = "f") -> str:
    values = [run[key] for run in runs]
    return f"{statistics.fmean(values):.{digits}{form}} ± {statistics.stdev(values):.{digits}{form}}"


if __name__ == "__main__":
    main()
