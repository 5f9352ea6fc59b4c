"""Training with several processes: gradients, signals, a killed rank, and resumption."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from cse import TrainConfig, train
from cse.errors import RunError
from cse.training.callbacks import Callback
from cse.training.folder.find import find_checkpoint, list_checkpoints
from cse.training.folder.outputs import read_checkpoint
from cse.training.loop import resumed_config
from cse.training.selection import Selector
from cse.training.step.ranks import Agreement, StopRequest, World
from methods import STEPS
from ranks import run_ranks, start_ranks, two_ranks_equal_one
from runs import same_run


@pytest.mark.slow
def test_two_processes_compute_the_gradients_of_a_single_process(run_config, tmp_path):
    cases = {**STEPS, "odd": {"batch_size": 7}}
    twins = [f"{first} {i} of a few" for i in range(4) for first in ("Sentence", "sentence")]  # of different ranks
    (tmp_path / "twins.txt").write_text("\n".join(twins), encoding="utf8")
    for name, more in {"dropout": {}, "halves": {"positive": "halves"}, "mixed": {"loss": "mixed"}}.items():
        cases[f"twins {name}"] = {"corpus": [str(tmp_path / "twins.txt")], "max_steps": 1, **more}
    one = two_ranks_equal_one(run_config, cases, tmp_path)
    assert one["twins dropout"]["metrics"]["duplicates"] == 8


def train_several_times():
    class Slow(Callback):
        def on_step_end(self, step, steps):
            time.sleep(0.3)
            if step == 3:
                Path("began").touch()

    config = TrainConfig.from_toml(sys.argv[1])
    for seed in (0, 1):
        train(config.replace(name=f"seed{seed}", seed=seed))
    train(config.replace(name="stopped", max_steps=500), Slow())


@pytest.mark.slow
def test_two_processes_train_several_times_and_stop_at_a_signal_to_one(run_config, tmp_path):
    """Steps are slow and logging is rare, so that the ranks must exchange the signal between two log lines."""
    config = run_config.replace(output=str(tmp_path), max_steps=2, eval_every=0, log_every=1000)
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf8")
    ranks = start_ranks(2, "config.toml", cwd=tmp_path, entry="test_distributed:train_several_times")
    wait_for(lambda: (tmp_path / "began").exists(), ranks[1])
    ranks[1].send_signal(signal.SIGTERM)
    errors = [rank.communicate(timeout=30)[1] for rank in ranks]
    for seed in (0, 1):
        assert json.loads((tmp_path / f"seed{seed}" / "result.json").read_text(encoding="utf8"))["steps"] == 2, errors
    stopped = tmp_path / "stopped"
    assert read_checkpoint(*list_checkpoints(stopped)).step < 20
    assert (stopped / "last" / "model.safetensors").exists()
    assert not list(stopped.rglob(".cse-*"))


@pytest.mark.parametrize("begun", [0, 10_000])
def test_ranks_exchange_signals_about_once_a_second_of_new_steps(monkeypatch, begun):
    asked, found, step = [], 0, begun
    monkeypatch.setattr("time.perf_counter", lambda: 0.49 * step)

    class Told(World):
        """Rank 0 of 2. The simulated rank 1 is as fast, and receives SIGTERM (15) at its step 14."""

        def highest(self, *values):
            asked.append(step - begun)
            return [15 if step >= begun + 14 else 0, values[1]]

    agreement = Agreement(Told(0, 2), StopRequest(), begun)
    for step in range(begun + 1, begun + 20):
        found = found or agreement.signal(step, now=step == begun + 4)
    assert (asked, found) == ([1, 3, 4, 6, 8, 10, 12, 14], 15)
    assert Agreement(World(), StopRequest()).signal(1) == 0


def train_with_an_evaluation_that_fails():
    with patch.object(Selector, "score", side_effect=RunError("the evaluation fails")):
        train(TrainConfig.from_toml(sys.argv[1]))


@pytest.mark.slow
def test_an_error_of_rank_0_ends_the_ranks_that_wait_for_it(run_config, tmp_path):
    (tmp_path / "config.toml").write_text(run_config.replace(output=str(tmp_path)).to_toml(), encoding="utf8")
    ranks = start_ranks(2, "config.toml", cwd=tmp_path, entry="test_distributed:train_with_an_evaluation_that_fails")
    errors = [rank.communicate(timeout=120)[1].decode() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert all("RunError: the evaluation fails" in each for each in errors), errors


def wait_for(condition, process):
    until = time.monotonic() + 120
    while not condition() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.005)


@pytest.mark.slow
def test_torchrun_ends_all_processes_if_one_is_killed_and_the_run_can_be_resumed(run_config, tmp_path):
    config = run_config.replace(una=True, loss="focal", save_every=2, output=str(tmp_path), max_steps=6)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf8")
    out = run_ranks(2, "train", "--config", path, "--name", "whole", "--json", cwd=tmp_path)
    assert json.loads(out)["steps"] == 6
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*torchrun, "-m", "cse", "train", "--config", path, "--name", "cut"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_for(lambda: list_checkpoints(tmp_path / "cut"), process)
    ranks = subprocess.run(
        ["pgrep", "-f", "--parent", str(process.pid), "cse"], capture_output=True, text=True, check=False
    ).stdout.split()
    os.kill(int(ranks[-1]), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    saved = find_checkpoint(tmp_path / "cut")
    # The result of the resumed run is bit-identical to that of the uninterrupted run.
    run_ranks(2, "train", "--resume", "cut", cwd=tmp_path)
    same_run(tmp_path / "whole", tmp_path / "cut")
    assert saved.parent.exists()
    # A single process can also resume the run.
    single = train(resumed_config(tmp_path / "cut", {"max_steps": 8}), resume=tmp_path / "cut")
    assert single.steps == 8
