"""Compares the results of two installations of cse on one machine, for example before and after a refactoring.

    python benches/same_results.py BASE_PYTHON NEW_PYTHON [--minilm] [--only augment]

Both arguments are Python interpreters of environments in which cse is installed. An environment for revision REV is
created by ``git worktree add ../base REV && make -C ../base .venv/ready``. For each installation, the script computes
digests of

- the index and the matrix, for each tokenizer;
- the negatives of ``cse augment``, for all combinations of the sampling options, with two values of beta and two
  radii;
- training runs on the CPU: the logged metrics (without times) and the saved weights, for each loss, without UNA and
  with each form of UNA that the loss allows. Each run trains a small BERT with random weights for 6 steps. With
  ``--minilm``, the same runs are also done with all-MiniLM-L6-v2, for 2 steps.

The script prints one line per result, ``same`` or ``DIFFERENT``, and exits with 1 if any result differs. An
installation from before the flags were renamed is called with the old names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
METRICS = ("step", "epoch", "loss", "lr", "cos_pos", "cos_neg", "cos_syn", "una_steps", "una_unchanged")

# Maps current flags to their names in revisions before 2026-11-21; None: the flag did not exist and is omitted.
OLD_FLAGS: dict[str, str | None] = {
    "--objective": "--negatives",
    "--replace-which": "--step2",
    "--replace-with": "--step3",
    "--lr-scheduler": "--schedule",
    "--max-grad-norm": "--clip-norm",
    "--log-every": None,
    "--positive": None,
}
OLD_VALUES = {"infonce": "cross", "nt-xent": "all", "pairs": "rows", "hard-negatives": "columns"}


class Installation:
    """An installation of cse: its Python interpreter, and a working folder."""

    def __init__(self, python: str, folder: Path, sentences: str) -> None:
        self.python, self.folder = python, folder
        folder.mkdir()
        (folder / "corpus.txt").write_text(sentences, encoding="utf8")
        self.renames = "--replace-which" not in self.run("augment", "--help").stdout.decode()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Runs a command of cse; ends the comparison if the command fails."""
        if arguments[0] != "augment" or arguments[-1] != "--help":
            arguments = tuple(self.translated(list(arguments)))
        command = [self.python, "-c", "from cse.cli import main; main()", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr.decode()}")
        return done

    def translated(self, arguments: list[str]) -> list[str]:
        """Returns the arguments with the names of flags and values that this installation knows."""
        if not self.renames:
            return arguments
        out = []
        waiting = iter(arguments)
        for argument in waiting:
            if argument in OLD_FLAGS:
                old, value = OLD_FLAGS[argument], next(waiting)
                out += [old, OLD_VALUES.get(value, value)] if old else []
            else:
                out.append(OLD_VALUES.get(argument, argument))
        return out


def comparable(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the metrics of a step, without times, under the names that older revisions use."""
    record.setdefault("una_steps", record.get("synthetic_steps"))
    record.setdefault("una_unchanged", record.get("masked/synthetic", 0))
    return {key: record[key] for key in METRICS if key in record}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def index_digests(cse: Installation) -> Iterator[tuple[str, str]]:
    for tokenizer in ("unicode", "whitespace", "treebank"):
        cse.run("build-tfidf", "corpus.txt", "--tokenizer", tokenizer, "-o", tokenizer)
        for name in ("index.safetensors", "matrix.npz"):
            yield f"{tokenizer}/{name}", sha256((cse.folder / tokenizer / name).read_bytes())


def augment_digests(cse: Installation) -> Iterator[tuple[str, str]]:
    forms = [("unicode", "keep"), ("unicode", "plain"), ("whitespace", "keep"), ("whitespace", "plain")]
    forms += [("treebank", "plain")]
    options = product(
        forms, ("tfidf", "random"), ("radius", "random"), ("negative", "positive"), ("0.3", "0.7"), ("50", "5%")
    )
    for (tokenizer, surface), which, using, mode, beta, radius in options:
        arguments = ["augment", "corpus.txt", "--tfidf", tokenizer, "--surface", surface, "--replace-which", which]
        arguments += ["--replace-with", using, "--mode", mode, "--beta", beta, "--radius", radius, "--seed", "3"]
        name = f"augment {tokenizer} {surface} {which} {using} {mode} beta {beta} radius {radius}"
        yield name, sha256(cse.run(*arguments).stdout)


def training_digests(cse: Installation, model: str, steps: int) -> Iterator[tuple[str, str]]:
    losses = [["standard"], ["focal"], ["mixed", "--mix-variant", "paper"], ["mixed", "--mix-variant", "release"]]
    una = [[], ["--una", "--una-every", "2", "--una-as", "pairs"]]
    una += [["--una", "--una-every", "2", "--una-as", "hard-negatives"]]
    for number, (loss, negatives) in enumerate(product(losses, una)):
        release = "release" in loss
        if release and "pairs" in negatives:
            continue
        for objective in ("infonce", "nt-xent"):
            if objective == "nt-xent" and (release or "hard-negatives" in negatives):
                continue
            name = f"{Path(model).name}-{number}-{objective}"
            arguments = ["train", "corpus.txt", "--tfidf", "unicode", "--model", model, "--loss", *loss, *negatives]
            arguments += ["--objective", objective, "--max-steps", str(steps), "--batch-size", "16", "--lr", "5e-4"]
            arguments += ["--temperature", "0.05", "--pooler", "avg", "--lr-scheduler", "linear", "--weight-decay"]
            arguments += ["0.01", "--max-length", "32", "--eval-every", "0", "--device", "cpu", "--threads", "1"]
            arguments += ["--positive", "dropout", "--log-every", "1", "--name", name, "--seed", "1"]
            cse.run(*arguments)
            label = f"train {Path(model).name} {' '.join(loss + negatives)} {objective}"
            folder = cse.folder / "runs" / name
            records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
            kept = [comparable(record) for record in records if "loss" in record]
            yield f"{label}: metrics of {len(kept)} steps", sha256(json.dumps(kept).encode())
            yield f"{label}: weights", sha256((folder / "last" / "model.safetensors").read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="Python interpreter of the starting revision.")
    parser.add_argument("new", help="Python interpreter of the changed revision.")
    parser.add_argument(
        "--minilm", action="store_true", help="Also train all-MiniLM-L6-v2, for 2 steps a run; ignored with --only."
    )
    parser.add_argument(
        "--only",
        choices=("index", "augment", "train"),
        help="Compare only these results and the index that they need.",
    )
    parser.add_argument("--json", type=Path, help="Write the digests of the new revision to this file.")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    from conftest import make_tiny  # type: ignore[import-not-found]

    sample = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8")
    with tempfile.TemporaryDirectory() as folder:
        tiny = str(make_tiny(Path(folder) / "tiny", "bert"))
        base = Installation(options.base, Path(folder) / "base", sample)
        new = Installation(options.new, Path(folder) / "new", sample)
        kinds: dict[str, Callable[[Installation], Iterator[tuple[str, str]]]] = {
            "index": index_digests,
            "augment": augment_digests,
            "train": lambda cse: training_digests(cse, tiny, 6),
        }
        if options.minilm:
            kinds["minilm"] = lambda cse: training_digests(cse, "minilm", 2)
        different, digests = 0, {}
        for kind, results in kinds.items():
            if options.only and kind not in ("index", options.only):
                continue
            for (name, old), (_, found) in zip(results(base), results(new), strict=True):
                print(f"{'same' if old == found else 'DIFFERENT':<9}  {found[:16]}  {name}", flush=True)
                different += old != found
                digests[name] = found
        if options.json:
            options.json.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf8")
        print(f"{len(digests)} results compared, {different} different")
        sys.exit(different > 0)


if __name__ == "__main__":
    main()
