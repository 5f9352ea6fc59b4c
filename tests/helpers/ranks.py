"""Ranks of a run in several processes, forked from a process that has imported PyTorch; and their gradients."""

import json
import os
import socket
import sys

import pytest
import torch

from cse import TrainConfig
from cse.training.setup import prepare
from cse.training.step.optimiser import unique_parameters
from cse.training.step.ranks import World, connected
from cse.training.step.step import propagate
from forked import Forked
from runs import first_batches


def start_ranks(size, *arguments, cwd=None, entry="cse.cli:main"):
    """Starts a cse command, or the function ``entry``, in processes with the environment that torchrun gives them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank), **shared} for rank in range(size)]
    return [Forked(*arguments, cwd=cwd, env=place, entry=entry) for place in places]


def run_ranks(size, *arguments, cwd=None, entry="cse.cli:main"):
    """Runs the ranks until they end; returns the standard output of rank 0."""
    ranks = start_ranks(size, *arguments, cwd=cwd, entry=entry)
    printed = [rank.communicate(timeout=300) for rank in ranks]
    for rank, (_, err) in zip(ranks, printed, strict=True):
        assert rank.returncode == 0, err.decode()[-3000:]
    return printed[0][0].decode()


def first_gradients(cases, world):
    """Returns metrics, gradients, texts and rows by case, of the second of two steps with the first batch."""
    found = {}
    for name, values in cases.items():
        run = prepare(TrainConfig(**values), world)
        state = run.state
        for module in state.modules().values():
            module.double().eval()
        (batch,) = first_batches(run, world.part)
        for _ in range(2):  # the first one begins clusters and queues
            metrics = propagate(state, batch, run.forward, world)
        parameters = unique_parameters(state.modules().values())
        world.sum_gradients(parameters, name)
        found[name] = {
            "metrics": {key: float(value) for key, value in metrics.items()},
            "gradients": [p.grad for p in parameters],
            "texts": batch.blocks["synthetic"].texts if "synthetic" in batch.blocks else [],
            "rows": batch.rows.tolist(),
        }
    return found


def first_gradients_of_a_rank():
    cases, out = sys.argv[1:]
    with connected("cpu") as world:
        found = first_gradients(json.loads(cases), world)
        if os.environ["RANK"] == "0":
            torch.save(found, out)


def two_ranks_equal_one(config, cases, folder):
    """Asserts that two ranks have the gradients of one process in the cases; returns what one process has."""
    given = {name: value for name, value in config.values().items() if value is not None}
    cases = {name: {**given, **values} for name, values in cases.items()}
    run_ranks(2, json.dumps(cases), folder / "two.pt", entry="ranks:first_gradients_of_a_rank")
    one, two = first_gradients(cases, World()), torch.load(folder / "two.pt")
    for name in cases:
        own = len(one[name]["rows"]) // 2  # an expensive edit makes the texts of this rank's rows only
        assert one[name]["rows"] == two[name]["rows"], name
        assert one[name]["texts"][:own] == two[name]["texts"][:own], name
        expected = {key: pytest.approx(value, 1e-9, 1e-12, nan_ok=True) for key, value in one[name]["metrics"].items()}
        assert two[name]["metrics"] == expected, name
        for left, right in zip(one[name]["gradients"], two[name]["gradients"], strict=True):
            if left is None:  # a parameter that no view uses
                assert right is None or not right.any()
            else:
                assert torch.allclose(left, right, rtol=1e-9, atol=1e-11), name
    return one
