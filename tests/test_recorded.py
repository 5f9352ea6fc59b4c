"""Recorded steps have the bits of eager ones, on an emulated graph and, if there is a GPU, on CUDA graphs."""

import json

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

from cse import Callback, train
from cse.encoder.device import recorder_of
from cse.hooks import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from cse.hooks.base import FeatureMethod
from cse.losses import LOSS_TERMS
from cse.training.batches.prepared import Prefetcher
from cse.training.loop import Trainer
from cse.training.setup import prepare
from cse.training.step import recorded
from cse.training.step.ranks import World
from cse.training.step.recorded import RecordedStep, Watch
from cse.training.step.step import training_step
from emulated_graph import EmulatedRecorder
from methods import SYSTEMS
from runs import Warnings, resumed_run_equals_whole, same_run
from test_device import LIKE_A_GPU
from test_device import deterministic as deterministic

STEPS = 12
LAYERS = {"sscl": 2, "pca jitter": 3}  # of other models, one
CASES = {
    **SYSTEMS,
    "clipped": {"max_grad_norm": 0.5},
    "bf16": {"precision": "bf16", **SYSTEMS["una pairs"]},
    "two batches a step": {"accumulate": 2},
    "prefixed": {"prompt": "a text: ", "pooler": "avg"},
    **{name: {"feature_augmentations": (name,)} for name in ("momentum", "projector")},
}
del CASES["augcse release"]  # whose one_hot reads values on the CPU, and not on CUDA
NOT_RECORDED = {  # and why
    "chunks": "--chunk-size is set",
    "pca jitter": "pca does not declare itself recordable",
    "whitenedcse": "group-whitening does not declare itself recordable",
    "a term on gathered embeddings": "ball does not declare itself recordable",
}


def test_every_method_and_loss_is_recorded():
    used = json.dumps(CASES)
    for table in (FEATURE_AUGMENTATIONS, ENCODER_METHODS, HOOKS, LOSS_TERMS):
        names = {*table.names()} - {"state-projector", "second-template"}  # which come with infocse and two templates
        assert not [name for name in names if f'"{name}"' not in used]


@pytest.fixture
def config_of(run_config, system, shallow):
    """A function that returns the configuration of a case of ``CASES``."""

    def config(name, device=LIKE_A_GPU, **changes):
        shared = {"model": shallow(LAYERS.get(name, 1)), "device": device, "max_steps": STEPS, "eval_every": 0}
        return run_config.replace(**{"max_length": 16, **shared, **system(CASES[name]), **changes})

    return config


def batches_of(run):
    """The batches of all steps, padded to one length, as those of a compiled model on CUDA."""
    with Prefetcher(
        run.batches, run.state.encoder.tokenizer, run.settings.data.max_length, device=run.device
    ) as prefetcher:
        prefetcher.tokens.length = prefetcher.tokens.longest
        return [prefetcher.get(step) for step in range(STEPS)]


def copied(state):
    # An attached copy would keep nodes of the default stream, to which a recorded backward pass cannot return.
    return {name: values.detach().clone() for name, values in state.weights().items()}


def steps(run, batches, step):
    """Performs all steps from the initial weights; returns the weights after them, and the metrics of each."""
    torch.manual_seed(1)
    metrics = []
    for number, batch in enumerate(batches):
        found = step(batch, run.schedule.at(number, STEPS))
        metrics.append({name: float(value) for name, value in found.items()})
    return copied(run.state), metrics


def compare(config, recorder, change=lambda state: None):
    """Compares eager and recorded steps bit for bit; returns the recorded steps and the warnings.

    ``change`` is called with the state of the run before the eager steps, and before the recorded ones.
    """
    run = prepare(config)
    state, batches, warnings = run.state, batches_of(run), []
    state.train()
    before, norm = copied(state), run.settings.optimisation.max_grad_norm
    change(state)
    weights, metrics = steps(run, batches, lambda batch, rate: training_step(state, batch, run.forward, rate, norm))
    # A metric that holds the graph of a step keeps it alive, and no later step can be recorded on CUDA.
    kept = {name: tree_leaves(term.metrics) for name, term in state.terms.items()}
    assert not [name for name, values in kept.items() if any(isinstance(x, Tensor) and x.requires_grad for x in values)]
    with torch.no_grad():
        for name, values in state.weights().items():
            values.copy_(before[name])
    state.optimizer.state.clear()
    del state.optimizer.found_inf
    change(state)
    step = RecordedStep(state, run.forward, norm, recorder, warnings.append, World())
    again, others = steps(run, batches, step)
    assert weights.keys() == again.keys()
    assert not [name for name, values in weights.items() if not torch.equal(again[name], values)]
    for number, (one, other) in enumerate(zip(metrics, others, strict=True)):
        assert one.keys() == other.keys()
        assert not [(number, k, one[k], other[k]) for k in one if repr(one[k]) != repr(other[k])]
    return step, warnings


class Counted:
    """Counts what a recorder records and replays."""

    def __init__(self, recorder):
        self.recorder, self.recorded, self.replayed = recorder, 0, 0
        self.running = recorder.running

    def record(self, function):
        replay = self.recorder.record(function)
        self.recorded += 1

        def counted():
            self.replayed += 1
            replay()

        return counted


# They differ from other cases by their values, or take longer.
LONG = {"two encoders", "two dropout rates", "release", "pcl", "pcl release", "infocse", "esimcse release", "prompt"}
LONG |= {"clusterns", "clusterns, nt-xent", "dclr", "dclr release", "sncse", "substitution", "cards"}
LONG |= {"momentum", "projector"}
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_recorded_steps_have_the_bits_of_eager_ones(config_of, name):
    recorder = Counted(EmulatedRecorder())
    _, warnings = compare(config_of(name), recorder)
    if name in NOT_RECORDED:
        assert warnings[0].startswith("steps are not recorded as CUDA graphs, because ")
        assert warnings[0].endswith(NOT_RECORDED[name])
        assert not recorder.recorded
    else:
        assert not warnings
        assert recorder.replayed >= STEPS - 3 * (1 + recorder.recorded)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.cuda
def test_recorded_steps_on_cuda_have_the_bits_of_eager_ones(config_of, name, deterministic):
    recorder = Counted(recorder_of("cuda"))
    _, warnings = compare(config_of(name, "cuda"), recorder)
    assert bool(warnings) == (not recorder.replayed) == (name in NOT_RECORDED)


class Odd(FeatureMethod):
    """A method that says that it can be recorded, and cannot. ``change`` gets anchors, number of the call, and step."""

    recordable = True

    def __init__(self, change):
        super().__init__(None, None)
        self.change, self.count = change, 0

    def forward(self, views, step):
        self.count += 1
        anchors = self.change(views["anchor"], self.count, step)
        return views.replace(embeddings={**views.embeddings, "anchor": anchors})


WAITS = "makes the host wait for the device"
DIFFER = "two steps of one shape differ in aten.mul.Tensor"
NOT_RECORDABLE = {
    "reads": (lambda z, n, step: z * (1 + float(z.detach().abs().mean())), f"_local_scalar_dense.default {WAITS}"),
    "selects": (lambda z, n, step: z + 0.01 * z[z[:, 0] > 0].mean(0), f"aten.index.Tensor {WAITS}"),
    "counts": (lambda z, n, step: z * (1 + 0.01 * n), DIFFER),
    "sometimes": (lambda z, n, step: z * 0.5 if n % 2 else z, "operations"),
    "draws": (lambda z, n, step: z + 0.01 * step.uniform(f"odd {n}", 1), "draw different random numbers"),
    "progress": (lambda z, n, step: z * (1 + step.progress), DIFFER),
}


@pytest.mark.parametrize("kind", NOT_RECORDABLE)
def test_a_step_that_cannot_be_recorded_stays_eager(config_of, kind):
    recorder, (change, reason) = Counted(EmulatedRecorder()), NOT_RECORDABLE[kind]

    def add(state):
        state.features["odd"] = Odd(change)

    _, (warning,) = compare(config_of("standard"), recorder, add)
    assert warning.startswith("steps are not recorded as CUDA graphs, because ")
    assert reason in warning
    assert not recorder.recorded


class Failing(EmulatedRecorder):
    """The second recording fails, after part of the step."""

    recorded = 0

    def record(self, function):
        self.recorded += 1
        replay = super().record(function)
        if self.recorded == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB\nmore")
        return replay


def test_after_a_recording_that_fails_steps_are_eager(config_of):
    step, (warning,) = compare(config_of("focal una"), Counted(Failing()))
    assert "a step could not be recorded (CUDA out of memory. Tried to allocate 20 MiB)" in warning
    assert not step.shapes


def test_the_number_of_recorded_shapes_is_limited(config_of, monkeypatch):
    monkeypatch.setattr(recorded, "MOST_SHAPES", 1)
    recorder = Counted(EmulatedRecorder())
    _, warnings = compare(config_of("focal una"), recorder)
    assert not warnings
    assert recorder.recorded == 1


def test_runs_of_several_processes_are_not_recorded(config_of):
    run, warnings = prepare(config_of("standard")), []
    RecordedStep(run.state, run.forward, 0.0, EmulatedRecorder(), warnings.append, World(0, 2))
    assert warnings == ["steps are not recorded as CUDA graphs, because there are several processes"]


@pytest.mark.parametrize(
    ("settings", "recorded"),
    [
        ({"max_steps": 49}, False),
        ({"max_steps": 50}, True),
        ({"max_steps": 50, "chunk_size": 4}, False),
        ({"max_steps": 50, "graphs": False}, False),
        ({"max_steps": 2, "graphs": True}, True),
    ],
)
def test_runs_of_50_steps_are_recorded_by_default(config_of, monkeypatch, settings, recorded):
    monkeypatch.setattr("cse.training.loop.recorder_of", lambda device: EmulatedRecorder())
    config = config_of("standard", **settings)
    assert isinstance(Trainer(prepare(config), World(), Callback()).step, RecordedStep) == recorded


def test_steps_are_eager_on_devices_without_graphs(config_of):
    callback = Warnings()
    train(config_of("standard", "cpu", graphs=True, max_steps=2), callback)
    assert [text for text in callback.texts if "CUDA graphs" in text] == [
        "steps are not recorded as CUDA graphs, because the device cpu has no CUDA graphs"
    ]


@pytest.mark.parametrize("name", ["bf16", pytest.param("momentum", marks=pytest.mark.slow)])
def test_a_recorded_run_can_be_resumed_and_equals_an_eager_one(config_of, name, monkeypatch):
    recorded_runs_are_equal(config_of(name), lambda device: EmulatedRecorder(), monkeypatch)


@pytest.mark.cuda
def test_a_recorded_run_on_cuda_can_be_resumed_and_equals_an_eager_one(config_of, deterministic, monkeypatch):
    recorded_runs_are_equal(config_of("bf16", "cuda"), recorder_of, monkeypatch)


def recorded_runs_are_equal(config, recorder, monkeypatch):
    recorders = []

    def counted(device):
        recorders.append(Counted(recorder(device)))
        return recorders[-1]

    monkeypatch.setattr("cse.training.loop.recorder_of", counted)
    monkeypatch.setattr("cse.training.batches.tokens.multiple_of_lengths", lambda device: 16)
    config = config.replace(save_every=STEPS // 2, keep_checkpoints=2)
    eager = train(config.replace(name="eager", graphs=False)).folder
    same_run(eager, resumed_run_equals_whole(config.replace(name="whole", graphs=True), STEPS // 2))
    assert [each.replayed > 0 for each in recorders] == [True] * 2


def test_a_copy_between_devices_is_not_recorded():
    with FakeTensorMode(), Watch() as watch:
        torch.ones(3, device="cuda:0").add_(1)
        assert not watch.reason
        torch.ones(3).to("cuda:0")
    assert watch.reason == "aten._to_copy.default copies a tensor from one device to another"
