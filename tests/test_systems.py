"""Systems in the training loop: gradients in chunks and in several processes, resumed runs, and training on CUDA."""

import traceback
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from cse import InputError, registry, train
from cse.augment import AUGMENTATIONS
from cse.encoder.fast.attention import mask_always
from cse.training.batches.prepared import Prefetcher
from cse.training.loop import resumed_config
from cse.training.setup import prepare
from cse.training.step.ranks import World
from cse.training.step.step import propagate
from cse.views import Frozen
from methods import METHODS, STEPS, SYSTEMS
from ranks import two_ranks_equal_one
from runs import first_batches, gradients, in_float64, resumed_run_equals_whole
from test_device import CUDA, assert_close

pytestmark = pytest.mark.usefixtures("registered")
# A method of a user replaces a method of the same name, so that a process has systems of one kind only.
USERS = [name for name, values in SYSTEMS.items() if "imports" in values]
OURS = [name for name in SYSTEMS if name not in (*USERS, *STEPS)]


@pytest.mark.parametrize("name", SYSTEMS)
def test_gradients_do_not_depend_on_the_chunk_size(run_config, system, name):
    """At the second of two steps: the first one begins clusters and queues."""
    found = []
    for chunk_size in (None, 3):
        run = prepare(run_config.replace(**system(name)))
        in_float64(run)
        for _ in range(2):
            now = gradients(run, first_batches(run), chunk_size=chunk_size)
        found.append(now)
    (whole, metrics), (chunks, others) = found
    assert whole.keys() == chunks.keys()
    assert "clusterns" not in name or float(metrics["loss/clusterns"]) > 0
    for key, values in whole.items():
        assert torch.allclose(chunks[key], values, rtol=1e-9, atol=1e-11), key
    for key, value in metrics.items():
        assert float(others[key]) == pytest.approx(float(value), rel=1e-9, nan_ok=True), key


@pytest.mark.slow
@pytest.mark.parametrize("names", [OURS[::2], OURS[1::2], USERS], ids=["even", "odd", "user"])
def test_two_processes_have_the_gradients_of_one(run_config, system, tmp_path, names):
    cases = {name: system(name) for name in names}
    for name in {"two encoders", "diffcse"} & set(names):
        cases[f"{name} in chunks of three"] = {**cases[name], "chunk_size": 3, "batch_size": 7}
    two_ranks_equal_one(run_config, cases, tmp_path)


class FirstOfThree(World):
    """Rank 0 of 3, which has neither of the two rows of a batch; embeddings of the other ranks are random."""

    def gather(self, local, rows):
        assert len(local) == 0
        return torch.cat([local, torch.randn(rows, local.shape[1])])

    def total(self, value):
        return value.detach()


OFTEN = ("standard", "standard mlm")
SELDOM = [pytest.param(name, marks=pytest.mark.slow) for name in SYSTEMS if name not in OFTEN]


@pytest.mark.parametrize("name", [*OFTEN, *SELDOM])
def test_a_process_without_rows_has_a_finite_loss_and_zero_gradients(run_config, system, name):
    world = FirstOfThree(0, 3)
    run = prepare(run_config.replace(**system(name)))
    run.batches.order.size, run.batches.part = 2, world.part
    (batch,) = first_batches(run, world.part)
    run.state.train()
    metrics = propagate(run.state, batch, run.forward, world)
    assert torch.isfinite(metrics["loss"])
    assert not any(p.grad is not None and p.grad.any() for p in run.state.encoder.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_resumed_run_equals_an_uninterrupted_one(run_config, system, name):
    config = run_config.replace(**system(name), max_steps=4, save_every=2, eval_every=0, keep_checkpoints=5)
    resumed_run_equals_whole(config, 2)


class Copies(TorchDispatchMode):
    """Records a stack trace of each copy between devices that lacks ``non_blocking=True`` and therefore blocks."""

    def __init__(self):
        super().__init__()
        self.waiting = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        if name == "_to_copy":
            waits = kwargs.get("device", args[0].device) != args[0].device and not kwargs.get("non_blocking")
        else:
            waits = name == "copy_" and args[0].device != args[1].device and not (*args, False)[2]
        if waits:
            self.waiting.append(f"{name} in {''.join(traceback.format_stack(limit=12))}")
        return function(*args, **kwargs)


def move_to_fake_gpu(module):
    """Replaces the parameters and buffers with fake tensors; ``Module.to`` cannot move a fake tensor a second time."""
    for part in module.modules():
        if isinstance(part, Frozen):
            move_to_fake_gpu(part.model)
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is not None and not isinstance(tensor, FakeTensor):
                    moved = tensor.detach().to("cuda:0", non_blocking=True)
                    is_parameter = isinstance(tensor, torch.nn.Parameter)
                    table[name] = torch.nn.Parameter(moved, tensor.requires_grad) if is_parameter else moved


@pytest.mark.slow  # of most methods, test_recorded.py tests that they do not wait
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_forward_pass_on_cuda_uses_one_device_and_does_not_wait(run_config, system, name, monkeypatch):
    """Fake tensors have a device but no values: operations on tensors of several devices, and reading a value, raise.

    Gradients are left out, because autograd needs a GPU for tensors on CUDA, even if they are fake.
    """
    monkeypatch.setattr("cse.training.step.acceleration.use_fast_dropout", mask_always)
    monkeypatch.setattr("cse.encoder.device.for_transfer", lambda tensor, device: tensor)  # there is no pinned memory
    monkeypatch.setattr(torch.Tensor, "backward", lambda total: None)
    monkeypatch.setattr(torch.autograd, "grad", lambda output, *inputs: tuple(map(torch.zeros_like, inputs)))
    run = prepare(run_config.replace(**system(name)))
    run.state.train()
    with Prefetcher(run.batches, run.state.encoder.tokenizer, 32) as prefetcher:
        batches = [prefetcher.get(step)[0] for step in range(2)]
    with FakeTensorMode(allow_non_fake_inputs=True), Copies() as copies:
        for module in run.state.modules().values():
            move_to_fake_gpu(module)
        for batch in batches:
            metrics = propagate(run.state, batch, replace(run.forward, device="cuda:0"))
            assert metrics["loss"].device == torch.device("cuda:0")
    assert not copies.waiting, "\n".join(copies.waiting[:2])


@pytest.mark.cuda
@pytest.mark.parametrize("name", SYSTEMS)
def test_gradients_of_a_system_on_cuda_equal_those_on_the_cpu(run_config, system, name):
    found = []
    for device in ("cpu", CUDA):
        run = prepare(run_config.replace(**system(name), device=device))
        in_float64(run)
        found.append(gradients(run, first_batches(run)))
    (expected, before), (on_gpu, after) = found
    assert_close((on_gpu,), (expected,), 1e-6)
    for key, value in before.items():
        assert float(after[key]) == pytest.approx(float(value), rel=1e-6, abs=1e-6, nan_ok=True), key


def test_a_shared_dropout_mask_makes_both_views_equal(run_config, system):
    run = prepare(run_config.replace(**system("fixed mask")))
    _, metrics = gradients(run, first_batches(run))
    assert float(metrics["cos_pos"]) == pytest.approx(1, abs=1e-6)


def test_a_file_of_methods_that_has_changed_is_refused(run_config, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(METHODS.read_text(encoding="utf8"), encoding="utf8")
    folder = train(run_config.replace(imports=(mine,), positive="repetition", max_steps=2, save_every=1)).folder
    mine.write_text(METHODS.read_text(encoding="utf8") + "# changed\n", encoding="utf8")
    for load in (lambda: resumed_config(folder), lambda: registry.import_methods(mine)):
        with pytest.raises(InputError, match=r"mine\.py: the file has changed since this process imported it"):
            load()
    registry.IMPORTED.clear()
    with pytest.raises(InputError, match=r"needs the methods of the Python file .*mine\.py"):
        resumed_config(folder)
    registry.import_methods(mine)
    with pytest.raises(InputError, match=r"mine\.py has changed since the run began"):
        train(resumed_config(folder), resume=folder)


def test_unchanged_negatives_are_masked_and_unchanged_positives_are_kept(run_config, tmp_path, sample_rows):
    rows = ["only three words", *[row for row in sample_rows if 8 < len(row.split()) < 15][:31]]
    (tmp_path / "some.txt").write_text("\n".join(rows), encoding="utf8")
    config = run_config.replace(corpus=tmp_path / "some.txt", imports=(METHODS,), positive="repetition")

    def batch_of(**values):
        run = prepare(config.replace(**{"batch_size": 30, "max_length": 64, **values}))
        (batch,) = first_batches(run)
        return batch, np.array([len(run.batches.corpus.take([row])[0].split()) <= 3 for row in batch.rows])

    batch, short = batch_of(negatives=("repetition",))
    assert short.sum() == 1
    assert (batch.blocks["synthetic"].mask == ~short).all()
    assert batch.blocks["positive"].mask is None
    assert batch.unchanged == {"positive": 1, "synthetic": 1}
    # With keep_duplicates, as in the papers, unchanged negatives are not masked.
    assert batch_of(negatives=("repetition",), keep_duplicates=True)[0].blocks["synthetic"].mask is None
    # Without dropout, the embedding of an unchanged positive equals that of its anchor, so the positive is masked.
    without, short = batch_of(anchor_dropout=0.0, positive_dropout=0.0)
    assert (without.blocks["positive"].mask == ~short).all()
    # A change beyond the maximum length does not count, because the text is truncated.
    assert batch_of(max_length=3, negatives=("repetition",))[0].unchanged["synthetic"] > 15


def test_an_expensive_augmentation_gets_only_the_rows_of_its_process(run_config, masked_model):
    values = {"negatives": ("substitution",), "options": {"substitution": {"model": str(masked_model)}}}
    run = prepare(run_config.replace(**values))
    run.batches.part = part = World(1, 3).part
    rows = len(range(8)[part(8)])
    method = AUGMENTATIONS.get("substitution")
    with patch.object(method, "__call__", autospec=True, side_effect=method.__call__) as edit:
        batch = run.batches[0]
    (given,) = edit.call_args_list
    assert len(given.args[1]) == len(batch.blocks["synthetic"].texts) == rows
    (batch,) = first_batches(run, part)
    assert len(batch.tokens["synthetic"]["input_ids"]) == rows
