"""Kills a training run at random moments, resumes it each time, and compares it with an uninterrupted run.

    python tests/kill_at_random.py [--kills 20] [--seed 0]

The run uses the focal loss and UNA. Every second kill is delayed until a checkpoint is being written. At the end,
weights, log and scores must be bit-identical to those of the uninterrupted run. The test takes a few minutes, because
a new process starts after every kill. Its file name keeps pytest from collecting it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from conftest import make_tiny, run_cse
from runs import same_run

STEPS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="seed for the random moments at which the run is killed")
    options = parser.parse_args()
    moments = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = prepare(folder)
        done = run_cse("train", *flags, "--name", "whole", cwd=folder)
        assert done.returncode == 0, done.stderr
        counts: Counter[str] = Counter()
        command: list[object] = ["train", *flags, "--name", "killed"]
        run = folder / "runs" / "killed"
        while counts["kills"] < options.kills:
            process = start(command, folder)
            during_save = counts["kills"] % 2 == 0
            if not kill(process, run, moments, during_save):
                break
            left = list((run / "checkpoints").glob(".cse-*"))
            counts["kills"] += 1
            counts["in a save"] += bool(left)
            step = last_step(run)
            print(f"kill {counts['kills']}: after step {step}{', during a save' if left else ''}", flush=True)
            for part in left:  # so that the next kill does not count them again
                shutil.rmtree(part)
            command = ["train", "--resume", "runs/killed"]
        done = run_cse(*command, cwd=folder)
        assert done.returncode == 0, done.stderr
        same_run(folder / "runs" / "whole", run)
        assert not [*run.rglob(".*"), *run.parent.glob(".*")], "a killed process left files"
        print(f"{counts['kills']} kills, {counts['in a save']} during a save: bit-identical to the uninterrupted run")
        if counts["kills"] < options.kills:
            sys.exit(f"the run ended after {counts['kills']} kills; raise STEPS")


def prepare(folder: Path) -> list[object]:
    """Makes a tiny model and an index in the folder; returns the flags of a run that takes about a minute."""
    model = make_tiny(folder / "model", "bert")
    sample = Path(__file__).parents[1] / "python" / "cse" / "resources" / "sample.txt"
    done = run_cse("build-tfidf", sample, "-o", "tfidf", cwd=folder)
    assert done.returncode == 0, done.stderr
    flags = ["--loss", "focal", "--una", "--una-every", 2, "--model", model, "--tfidf", "tfidf", "--max-steps", STEPS]
    return [*flags, "--batch-size", 16, "--save-every", 1, "--eval-every", 50, "--threads", 1, "--lr", 1e-3]


def start(command: list[object], folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "cse", *map(str, command)],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def kill(process: subprocess.Popen[bytes], run: Path, moments: random.Random, during_save: bool) -> bool:
    """Kills a process at a random moment after its first new checkpoint; returns False if the process ended first.

    With ``during_save``, the kill is delayed until a checkpoint is being written.
    """
    before = last_step(run)
    until = time.monotonic() + 180
    while last_step(run) == before:
        if process.poll() is not None or time.monotonic() > until:
            error = process.communicate()[1].decode()
            assert process.returncode == 0, error
            return False
        time.sleep(0.001)
    time.sleep(moments.random())
    while during_save and process.poll() is None and not list((run / "checkpoints").glob(".cse-*")):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def last_step(run: Path) -> int:
    """Returns the step of the last complete checkpoint; -1 if there is none."""
    steps = [int(path.name.split("-")[1]) for path in (run / "checkpoints").glob("step-*")]
    return max(steps, default=-1)


if __name__ == "__main__":
    main()
