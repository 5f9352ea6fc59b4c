"""Compares six training steps of every preset and of every method between two installations of cse.

    python benches/same_presets.py BASE_PYTHON NEW_PYTHON [--only esimcse] [--save base.json]

Both arguments are Python interpreters in which cse is installed. ``--save`` writes the results of the first one to a
file, which later comparisons on the same machine read instead of running it again (``--saved``). Each run trains a tiny
model with random weights, of the family of its preset, on the CPU. The script prints one line per run: ``same`` if the
lines of log.jsonl (without times) and the saved weights are equal, else ``DIFFERENT``. It exits with 1 if a run
differs.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

# Runs of methods that no preset uses, or that have several forms.
METHODS: dict[str, dict[str, Any]] = {
    **{
        f"positive {name}": {"positive": name}
        for name in ("crop", "delete", "eda-swap", "eda-delete", "aeda", "repetition", "masked-span", "one-of")
    },
    **{f"positive {name}": {"positive": name} for name in ("halves", "spans", "next-sentence", "uda")},
    "positive eda-synonym": {"positive": "eda-synonym", "eda-synonym": {"synonyms": "synonyms.txt"}},
    "positive eda-insert": {"positive": "eda-insert", "eda-insert": {"synonyms": "synonyms.txt"}},
    "positive substitution": {"positive": "substitution", "substitution": {"model": "generator"}},
    "positive parallel": {"positive": "parallel", "parallel": {"file": "parallel.txt"}},
    **{f"negative {name}": {"negatives": (name,)} for name in ("una", "eda-swap", "delete", "repetition")},
    **{
        f"modals {kind}": {"feature_augmentations": ("modals",), "modals": {"kind": kind}}
        for kind in ("interpolation", "extrapolation", "linear", "noise")
    },
    **{
        f"hook {name}": {"positive_hook": name, "anchor_hook": name}
        for name in ("feature-cutoff", "token-cutoff", "token-shuffle", "pca")
    },
    "dclr paper": {"feature_augmentations": ("dclr",), "dclr": {"model": "second", "threshold": 0.3, "noise": 1.5}},
    "momentum paper": {"feature_augmentations": ("momentum",), "momentum": {"size": 20}},
    "diffcse release": {"loss_terms": ("diffcse",), "diffcse": {"generator": "generator", "variant": "release"}},
    "augcse": {"loss_terms": ("augcse",), "positive": "one-of"},
    "encoder method ema": {"encoder_methods": ("ema",)},
    "encoder method lora": {"encoder_methods": ("lora",)},
    "mlm": {"loss_terms": ("mlm",)},
    "keep-similarities": {"loss_terms": ("keep-similarities",)},
    "matryoshka": {"loss_terms": ("matryoshka",), "pooler": "avg", "matryoshka": {"dims": "16,8"}},
}

RUNNER = """
import hashlib, json, sys, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
from cse import InputError, TrainConfig, train
for name, values in json.loads(Path(sys.argv[1]).read_text()).items():
    try:
        train(TrainConfig(**values, output=sys.argv[2], name=name.replace(" ", "-")))
        folder = Path(sys.argv[2]) / name.replace(" ", "-")
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        kept = [{k: v for k, v in line.items() if "second" not in k} for line in lines]
        weights = hashlib.sha256((folder / "last" / "model.safetensors").read_bytes()).hexdigest()
        found = [hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16], weights[:16], len(kept)]
    except InputError as error:
        found = [str(error)]
    print(json.dumps([name, found]), flush=True)
"""


def presets(python: str) -> list[str]:
    """Returns the names of the presets of an installation, from the message about an unknown preset."""
    command = [python, "-m", "cse", "train", "corpus.txt", "--preset", "?"]
    message = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    return re.split(r",\s*", message.partition("choose one of ")[2].strip())


def make_models(folder: Path) -> None:
    """Writes a tiny BERT, a tiny RoBERTa, a second encoder and a masked language model, all with the same tokenizer."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertModel

    from conftest import make_tiny  # type: ignore[import-not-found]

    for kind in ("bert", "roberta"):
        make_tiny(folder / kind, kind)
    sizes: dict[str, Any] = {"vocab_size": 2000, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=32, max_position_embeddings=64)
    torch.manual_seed(1)
    for name, model in (("second", BertModel(config)), ("generator", BertForMaskedLM(config))):
        model.save_pretrained(folder / name)
        AutoTokenizer.from_pretrained(folder / "bert").save_pretrained(folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="Python interpreter of the starting revision.")
    parser.add_argument("new", help="Python interpreter of the changed revision.")
    parser.add_argument("--only", default="", help="Compare only runs whose name contains this text.")
    parser.add_argument("--save", type=Path, help="Write the results of the starting revision to this file.")
    parser.add_argument("--saved", type=Path, help="Read the results of the starting revision from this file.")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    sample = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8").splitlines()[:300]
    common: dict[str, Any] = {
        "max_steps": 6,
        "batch_size": 12,
        "log_every": 1,
        "eval_every": 0,
        "seed": 1,
        "device": "cpu",
    }
    common |= {"threads": 1, "precision": "fp32", "lr": 5e-4}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_models(folder)
        (folder / "corpus.txt").write_text("\n".join(sample) + "\n", encoding="utf8")
        (folder / "parallel.txt").write_text("\n".join(reversed(sample)) + "\n", encoding="utf8")
        words = sorted({word for row in sample for word in row.split()})
        (folder / "synonyms.txt").write_text("".join(f"{word}\tother, {word}s\n" for word in words), encoding="utf8")
        triples = [json.dumps({"a": a, "p": p, "n": n}) for a, p, n in zip(*[iter(sample)] * 3, strict=True)]
        (folder / "pairs.jsonl").write_text("\n".join(triples) + "\n", encoding="utf8")
        for tokenizer in ("treebank", "unicode"):
            command = [
                options.base,
                "-m",
                "cse",
                "build-tfidf",
                "corpus.txt",
                "--tokenizer",
                tokenizer,
                "-o",
                tokenizer,
            ]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        names = [presets(python) for python in (options.base, options.new)]
        runs: dict[str, dict[str, Any]] = {}
        for name in names[0]:
            values: dict[str, Any] = {"preset": name, "model": "roberta" if "roberta" in name else "bert"}
            labelled = name.startswith(("simcse-sup", "encoder-queries"))
            values |= {"pairs": "pairs.jsonl"} if labelled else {"corpus": "corpus.txt"}
            for method, table in (
                ("dclr", {"model": "second", "threshold": 0.3}),
                ("diffcse", {"generator": "generator"}),
                ("una", {"every": 2, "radius": 50}),
                ("scd", {"width": 64}),
                ("momentum", {"size": 30}),
            ):
                used = {"dclr": "dclr", "diffcse": "diffcse", "una": "una", "scd": "scd", "momentum": "esimcse"}[method]
                if name.startswith(f"{used}-"):
                    values[method] = table
            runs[name] = {**common, **values, "tfidf": "treebank"}
        for name, values in METHODS.items():
            values = {"model": "bert", "corpus": "corpus.txt", "pooler": "cls", "positive": "dropout", **values}
            runs[name] = {**common, "tfidf": "unicode", "loss": "standard", **values}
        runs = {name: values for name, values in runs.items() if options.only in name}
        (folder / "runs.json").write_text(json.dumps(runs))
        found: list[dict[str, Any]] = [json.loads(options.saved.read_text())] if options.saved else []
        for python, output in ((options.base, "one"), (options.new, "two"))[len(found) :]:
            done = subprocess.run(
                [python, "-c", RUNNER, "runs.json", output], cwd=folder, capture_output=True, text=True, check=False
            )
            found.append(dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")))
            if done.returncode:
                print(done.stderr)
        if options.save:
            options.save.write_text(json.dumps(found[0], indent=1) + "\n")
        different = len(set(names[0]) - set(names[1]))
        print(f"{'DIFFERENT' if different else 'same':<9}  names of {len(names[0])} presets")
        for name in runs:
            one, two = (each.get(name) for each in found)
            different += one != two or one is None
            print(
                f"{'same' if one == two is not None else 'DIFFERENT':<9}  {name}  {one if one == two else (one, two)}"
            )
        print(f"{len(runs)} runs compared, {different} different")
        sys.exit(different > 0)


if __name__ == "__main__":
    main()
