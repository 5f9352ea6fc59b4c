"""Training with several processes: gradients, signals, a killed rank, and resumption."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

from cse import train
from cse.training.batches.tokens import Prefetcher
from cse.training.folder.checkpoint import read_checkpoint
from cse.training.folder.find import find_checkpoint, list_checkpoints
from cse.training.folder.interrupts import Agreement, StopRequest
from cse.training.loop import resumed_config
from cse.training.setup import prepare
from cse.training.step.distributed import World
from cse.training.step.step import propagate
from runs import VIEWS, same_run

DISTRIBUTED = """
import json, os, sys, torch
from cse import TrainConfig
from cse.training.batches.tokens import Prefetcher
from cse.training.step.distributed import connected
from cse.training.setup import prepare
from cse.training.step.state import unique_parameters
from cse.training.step.step import propagate

values, out = json.loads(sys.argv[1]), sys.argv[2]
with connected("cpu") as world:
    found = {}
    for name, more in values["cases"].items():
        run = prepare(TrainConfig(**values["base"], **more), world)
        state = run.state
        for module in state.modules().values():
            module.double().eval()
        with Prefetcher(run.batches, state.encoder.tokenizer, 32, world.part) as batches:
            (batch,) = batches.get(0)
        metrics = propagate(state, batch, run.forward, world)
        parameters = unique_parameters(state.modules().values())
        world.sum_gradients(parameters, name)
        found[name] = {
            "metrics": {key: float(value) for key, value in metrics.items()},
            "gradients": [None if p.grad is None else p.grad for p in parameters],
            "texts": batch.blocks["synthetic"].texts if "synthetic" in batch.blocks else [],
            "rows": batch.rows.tolist(),
        }
    if world.is_main:
        torch.save(found, out)
print(f"rank {world.rank} is done", flush=True)
"""
ABORT = "terminate called without an active exception"


def aborted_after_its_work(out, err):
    """Returns whether a rank of ``DISTRIBUTED`` was aborted by the C++ runtime after its last statement.

    This happened at the exit of the interpreter in one of seven runs of the tests on a busy machine, although the
    process group is closed before. The cause is not known; the work of the rank is complete.
    """
    failed = re.search(r"rank\s*: (\d+) .*\n\s*exitcode\s*: -6 ", err)
    return ABORT in err and failed is not None and f"rank {failed[1]} is done" in out


def torchrun(processes, *arguments, cwd=None, wait=True, retry=True):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if not wait:
        return process
    out, err = process.communicate(timeout=300)
    if process.returncode and retry and aborted_after_its_work(out, err):
        print(f"torchrun is started again, because a rank was aborted after its work: {ABORT}\n{err[-3000:]}")
        return torchrun(processes, *arguments, cwd=cwd, retry=False)
    assert process.returncode == 0, err[-3000:]
    return out


def run_here(script, *arguments):
    """Runs a program in this process, with a single rank."""
    given, sys.argv = sys.argv, [str(script), *map(str, arguments)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = given


@pytest.mark.slow
@pytest.mark.parametrize(("place", "again"), [("after", True), ("before", False), ("other", False)])
def test_a_launch_is_repeated_only_if_a_rank_was_aborted_after_its_work(tmp_path, place, again):
    script = tmp_path / "abort.py"
    script.write_text(
        f"""
import os, pathlib, sys
place, rank, first = sys.argv[1], os.environ["RANK"], pathlib.Path(sys.argv[2])
failing = rank == "1" and not first.exists()
if rank == "1":
    first.touch()
if place != "before":
    print(f"rank {{rank}} is done", flush=True)
if failing:
    print("other" if place == "other" else {ABORT!r}, file=sys.stderr, flush=True)
    os.abort()
""",
        encoding="utf8",
    )
    arguments = (2, script, place, tmp_path / "started")
    if again:
        assert "rank 1 is done" in torchrun(*arguments)
    else:
        with pytest.raises(AssertionError, match=r"SIGABRT|exitcode"):
            torchrun(*arguments)


@pytest.mark.slow
def test_two_processes_compute_the_gradients_of_a_single_process(run_config, tmp_path):
    script = tmp_path / "gradients.py"
    script.write_text(DISTRIBUTED, encoding="utf8")
    names = [name for name in VIEWS if name != "spans"]
    cases = {name: {**VIEWS[name]} for name in names} | {"odd": {"batch_size": 7}, "chunks": {"chunk_size": 3}}
    twins = [f"{first} {i} of a few" for i in range(4) for first in ("Sentence", "sentence")]  # of different ranks
    (tmp_path / "twins.txt").write_text("\n".join(twins), encoding="utf8")
    for name, more in {"dropout": {}, "halves": {"positive": "halves"}, "mixed": {"loss": "mixed"}}.items():
        cases[f"twins {name}"] = {"corpus": [str(tmp_path / "twins.txt")], "max_steps": 1, **more}
    given = {name: value for name, value in run_config.values().items() if value is not None}
    cases = {name: {**given, **values} for name, values in cases.items()}
    payload = json.dumps({"base": {}, "cases": cases})
    found = []
    for launch in (run_here, partial(torchrun, 2)):
        out = tmp_path / "gradients.pt"
        launch(script, payload, out)
        found.append(torch.load(out))
    one, two = found
    assert one["twins dropout"]["metrics"]["duplicates"] == 8
    for name in cases:
        assert one[name]["rows"] == two[name]["rows"]
        assert one[name]["texts"] == two[name]["texts"]
        assert one[name]["metrics"].keys() == two[name]["metrics"].keys()
        for key, value in one[name]["metrics"].items():
            assert two[name]["metrics"][key] == pytest.approx(value, rel=1e-10, abs=1e-12), (name, key)
        for left, right in zip(one[name]["gradients"], two[name]["gradients"], strict=True):
            if left is None:  # a parameter that no view uses
                assert right is None or not right.any()
                continue
            assert torch.allclose(left, right, rtol=1e-10, atol=1e-12), name


class FirstOfThree(World):
    """Rank 0 of 3, which has neither of the two rows of a batch; embeddings of the other ranks are random."""

    def gather(self, local, rows):
        assert len(local) == 0
        return torch.cat([local, torch.randn(rows, local.shape[1])])

    def total(self, value):
        return value.detach()


@pytest.mark.parametrize("terms", [(), ("mlm",)])
def test_a_rank_without_rows_takes_part_in_the_step(run_config, terms):
    world = FirstOfThree(0, 3)
    run = prepare(run_config.replace(batch_size=2, loss_terms=terms))
    with Prefetcher(run.batches, run.state.encoder.tokenizer, 32, world.part) as batches:
        (batch,) = batches.get(0)
    metrics = propagate(run.state, batch, run.forward, world)
    assert torch.isfinite(metrics["loss"])
    assert not any(p.grad is not None and p.grad.any() for p in run.state.encoder.parameters())


SEVERAL = """
import sys, time
from pathlib import Path
from cse import TrainConfig, train
from cse.training.callbacks import Callback

class Slow(Callback):
    def on_step_end(self, step, steps):
        time.sleep(0.3)
        if step == 3:
            Path("began").touch()

config = TrainConfig.from_toml(sys.argv[1])
for seed in (0, 1):
    train(config.replace(name=f"seed{seed}", seed=seed))
train(config.replace(name="stopped", max_steps=500), Slow())
"""


@pytest.mark.slow
def test_two_processes_train_several_times_and_stop_at_a_signal(run_config, tmp_path):
    """Steps are slow and logging is rare, so that the ranks must exchange the signal between two log lines."""
    config = run_config.replace(output=str(tmp_path), max_steps=2, eval_every=0, log_every=1000)
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf8")
    (tmp_path / "several.py").write_text(SEVERAL, encoding="utf8")
    process = torchrun(2, tmp_path / "several.py", tmp_path / "config.toml", cwd=tmp_path, wait=False)
    until = time.monotonic() + 120
    while not (tmp_path / "began").exists() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.01)
    began = time.monotonic()
    process.terminate()
    _, err = process.communicate(timeout=60)
    took = time.monotonic() - began
    results = [json.loads((tmp_path / f"seed{seed}" / "result.json").read_text(encoding="utf8")) for seed in (0, 1)]
    assert [result["steps"] for result in results] == [2, 2], err[-3000:]
    assert took < 15, err[-3000:]
    stopped = tmp_path / "stopped"
    (saved,) = list_checkpoints(stopped)
    assert read_checkpoint(saved).step < 20
    assert (stopped / "last" / "model.safetensors").exists()
    assert not list(stopped.rglob(".cse-*"))


class Told(World):
    """Rank 0 of 2. The simulated rank 1 takes half a second per step and receives SIGTERM (15) at step 14."""

    def highest(self, *values):
        self.steps.append(self.step)
        return [15 if self.step >= 14 else 0, max(values[1], 500_000)]


def test_ranks_exchange_signals_about_once_a_second():
    world = Told(0, 2)
    agreement = Agreement(world, StopRequest())
    object.__setattr__(world, "steps", [])
    found = []
    for step in range(1, 20):
        object.__setattr__(world, "step", step)
        found.append(agreement.signal(step, now=step == 4))
        if found[-1]:
            break
    assert world.steps == [1, 3, 4, 6, 8, 10, 12, 14]
    assert found[-1] == 15
    assert Agreement(World(), StopRequest()).signal(1) == 0


class Alike(World):
    """Rank 0 of 2. The simulated rank 1 takes as long per step as rank 0."""

    def highest(self, *values):
        self.asked.append(values)
        return list(values)


def test_step_time_of_a_resumed_run_is_measured_over_new_steps_only(monkeypatch):
    seconds = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(seconds)))
    world = Alike(0, 2)
    object.__setattr__(world, "asked", [])
    agreement = Agreement(world, StopRequest(), 10_000)
    for step in range(10_001, 10_005):
        agreement.signal(step)
    assert len(world.asked) == 4


@pytest.mark.slow
def test_two_processes_train_resume_and_end_together(run_config, tmp_path):
    config = run_config.replace(una=True, loss="focal", save_every=2, output=str(tmp_path), max_steps=6)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf8")
    out = torchrun(2, "-m", "cse", "train", "--config", path, "--name", "whole", "--json", cwd=tmp_path)
    assert json.loads(out)["steps"] == 6
    # If one rank is killed, the other ends. If the run is then resumed with the same number of ranks, its result is
    # bit-identical to that of the uninterrupted run.
    process = torchrun(2, "-m", "cse", "train", "--config", path, "--name", "cut", cwd=tmp_path, wait=False)
    until = time.monotonic() + 120
    while not list_checkpoints(tmp_path / "cut") and time.monotonic() < until and process.poll() is None:
        time.sleep(0.005)
    ranks = subprocess.run(
        ["pgrep", "-f", "--parent", str(process.pid), "cse"], capture_output=True, text=True, check=False
    ).stdout.split()
    os.kill(int(ranks[-1]), signal.SIGKILL)
    began = time.monotonic()
    process.communicate(timeout=90)
    assert process.returncode != 0
    assert time.monotonic() - began < 60
    saved = find_checkpoint(tmp_path / "cut")
    torchrun(2, "-m", "cse", "train", "--resume", tmp_path / "cut", cwd=tmp_path)
    same_run(tmp_path / "whole", tmp_path / "cut")
    assert saved.parent.exists()
    # A single process can also resume the run.
    single = train(resumed_config(tmp_path / "cut", {"max_steps": 8}), resume=tmp_path / "cut")
    assert single.steps == 8
