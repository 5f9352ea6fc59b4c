"""Device-dependent behaviour: steps without synchronisation, compiled models, memory, and the precision.

Tests marked ``cuda`` need a CUDA device. Of other devices, test_systems.py and test_recorded.py test what a step does.
"""

import json
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from cse import Encoder, InputError, train
from cse.encoder import device as devices
from cse.encoder.device import bf16_speedup, pick_precision
from cse.encoder.fast.attention import mask_always
from cse.errors import RunError
from cse.training.batches.prepared import Prefetcher
from cse.training.setup import prepare
from cse.training.step.step import training_step
from cse.training.watching import failures
from forked import Forked
from methods import STEPS
from runs import first_batches, gradients, records_of, resumed_run_equals_whole

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler, which torch.compile needs")

CUDA = "cuda"
AVX512 = ("AVX512-BF16",)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "Llama"])
def test_always_passing_the_attention_mask_does_not_change_the_hidden_states(family, padded):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = getattr(transformers, f"{family}Config")(vocab_size=100, **sizes)
    backbone = getattr(transformers, f"{family}Model")(config).double().eval()
    ids = torch.randint(5, 100, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 7, dtype=torch.long)
    if padded:
        mask[1, 4:] = 0
    used = mask[..., None].bool()
    expected = backbone(ids, attention_mask=mask).last_hidden_state
    mask_always(backbone)
    assert backbone.config._attn_implementation == "cse_masked"
    found = backbone(ids, attention_mask=mask).last_hidden_state
    assert torch.allclose(found.where(used, 0), expected.where(used, 0), rtol=0, atol=1e-12)


def of_first_step(config):
    """Returns gradients and metrics of the first step on the configured device, in float64 without dropout."""
    run = prepare(config)
    for module in (run.state.encoder, *run.state.terms.values()):
        module.double().eval()
    return gradients(run, first_batches(run, device=run.device))


def assert_close(found, expected, tolerance=1e-8):
    """Compares relative errors with ``tolerance``, and absolute errors of float32 values, the metrics, with 1e-6."""
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, values in other.items():
            error = (one[name].cpu() - values.cpu()).double().norm()
            if values.dtype == torch.float32:
                assert error < 1e-6 * max(1, values.norm()), (name, error)
            else:
                assert error < tolerance * values.double().norm().cpu().clamp(min=1e-6), (name, error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "name"),
    [
        pytest.param("cpu", "una pairs", marks=needs_compiler),
        *(pytest.param("cuda", name, marks=pytest.mark.cuda) for name in ("standard", "una pairs", "standard mlm")),
    ],
)
def test_compiling_the_model_does_not_change_the_gradients(run_config, shallow, device, name):
    config = run_config.replace(model=shallow(1), **STEPS[name], precision="fp32", device=device)
    assert_close(of_first_step(config.replace(compile=True)), of_first_step(config))


@pytest.mark.cuda
def test_bf16_on_cuda_changes_loss_and_gradients_little(run_config):
    found = []
    for device, precision in (("cpu", "fp32"), (CUDA, "bf16")):
        run = prepare(run_config.replace(device=device, precision=precision))
        for module in run.state.modules().values():
            module.eval()
        gradient, metrics = gradients(run, first_batches(run, device=run.device))
        assert all(each.dtype == torch.float32 for each in gradient.values())
        found.append((torch.cat([gradient[name].cpu().flatten() for name in sorted(gradient)]), float(metrics["loss"])))
    (expected, before), (rounded, after) = found
    assert after == pytest.approx(before, rel=0.02)
    assert torch.cosine_similarity(expected, rounded, dim=0) > 0.99
    assert not torch.equal(expected, rounded)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 0.05)])
@pytest.mark.cuda
def test_embeddings_on_cuda_equal_those_on_the_cpu(tiny_bert, short_rows, precision, tolerance):
    expected = Encoder(tiny_bert, device="cpu").encode(short_rows[:100])
    found = Encoder(tiny_bert, device=CUDA, precision=precision).encode(short_rows[:100])
    assert abs(found - expected).max() < tolerance * abs(expected).max()


@pytest.mark.parametrize(
    ("compiled", "precision"), [(False, "fp32"), (False, "bf16"), pytest.param(True, "bf16", marks=pytest.mark.slow)]
)
@pytest.mark.cuda
def test_a_run_resumed_on_cuda_equals_an_uninterrupted_one(run_config, compiled, precision, deterministic):
    """Includes the dropout masks, whose generator is stored in the checkpoint."""
    config = run_config.replace(
        device=CUDA, compile=compiled, precision=precision, save_every=4, keep_checkpoints=5, eval_every=0
    )
    resumed_run_equals_whole(config, 4)


@pytest.fixture
def deterministic():
    """Selects deterministic operations; the gradients of some operations on CUDA are otherwise summed in any order."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.cuda
def test_a_run_on_cuda_learns_without_synchronisation_inside_steps(run_config, compiled, monkeypatch):
    def strict(*arguments):
        # Compiling, and recording a CUDA graph, synchronise; both happen in any step with a new shape.
        torch.cuda.set_sync_debug_mode("default" if compiled else "error")
        try:
            return training_step(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr("cse.training.loop.training_step", strict)
    config = run_config.replace(device="cuda", compile=compiled, graphs=False, max_steps=20, log_every=1, lr=1e-3)
    losses = [record["loss"] for record in records_of(train(config).folder)[0]]
    assert len(losses) == 20
    assert sum(losses[-5:]) < sum(losses[:5])


def test_intel_gpus_unknown_precisions_and_several_processes_on_mps_are_refused():
    with pytest.raises(InputError, match=r"^--device xpu:1: Intel's GPUs are not supported; use --device cpu$"):
        devices.pick_device("xpu:1")
    with pytest.raises(InputError, match="--device mps: only one process can train on mps; use --device cpu"):
        devices.distributed_backend("mps")
    with pytest.raises(InputError, match=r"--precision: 'fp16' is unknown.* choose one of fp32, bf16, auto"):
        pick_precision("cpu", "fp16")


CONFIG = SimpleNamespace(
    optimisation=SimpleNamespace(batch_size=64, chunk_size=None), data=SimpleNamespace(max_length=32)
)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("MPS backend out of memory (MPS allocated: 9.07 GB, other allocations: 8 MB)"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9999 bytes"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB"),
    ],
)
def test_errors_of_every_device_that_has_no_memory_left_propose_smaller_chunks(error):
    with pytest.raises(RunError, match=r"out of memory at step 3 .*set --chunk-size 32"), failures(2, CONFIG):
        raise error
    with pytest.raises(RuntimeError, match=r"^of another kind$"), failures(2, CONFIG):
        raise RuntimeError("of another kind")


def test_bf16_speedup_is_measured_once_and_leaves_the_random_state_unchanged():
    bf16_speedup.cache_clear()
    before = torch.get_rng_state()
    first = bf16_speedup()
    assert first > 0
    assert bf16_speedup() == first
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_records_its_precision(run_config, one_finished_run, processor):
    about = json.loads((one_finished_run / "environment.json").read_text(encoding="utf8"))
    assert (about["precision"], about["precision_reason"]) == ("fp32", "the value of --precision")
    processor(AVX512, 2.0)
    run = prepare(run_config.replace(precision="auto"))
    assert run.settings.optimisation.precision == "bf16"
    assert run.facts["device"].startswith("cpu (bf16: with AVX512-BF16, a matrix product is 2.0 times as fast as in")
    processor(())
    assert prepare(run_config.replace(precision="auto")).facts["device"].startswith("cpu (fp32: the processor has no ")


def test_batches_on_cuda_are_padded_to_a_multiple_of_eight_tokens(run_config, monkeypatch):
    monkeypatch.setattr("cse.training.batches.tokens.multiple_of_lengths", lambda device: 8)
    run = prepare(run_config.replace(max_length=30, batch_size=4))
    with Prefetcher(run.batches, run.state.encoder.tokenizer, 30) as prefetcher:
        blocks = [prefetcher.get(step)[0].tokens["anchor"] for step in range(8)]
    widths = [block["input_ids"].shape[1] for block in blocks]
    longest = [int(block["attention_mask"].sum(1).max()) for block in blocks]
    assert widths == [min(-(-length // 8) * 8, 30) for length in longest]
    assert any(length % 8 for length in longest)


# Unlike ``cpu``, this name of the CPU selects what cse does on a GPU.
LIKE_A_GPU = "cpu:0"


class Casts(TorchDispatchMode):
    """Counts the casts of single tensors to bfloat16 or from it."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket.__name__ == "_to_copy"
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("values", [{}, {"negatives": ("una",), "una": {"every": 1}}], ids=["one pass", "two passes"])
def test_weights_are_cast_together_without_a_change_of_the_gradients(run_config, values, monkeypatch):
    found = []
    for together in (False, True):
        with monkeypatch.context() as patch:
            if not together:
                patch.setattr("cse.training.step.acceleration.CastTogether", lambda backbone: None)
            run = prepare(run_config.replace(device=LIKE_A_GPU, precision="bf16", **values))
        run.state.train()
        torch.manual_seed(1)
        with Prefetcher(run.batches, run.state.encoder.tokenizer, 32) as prefetcher, Casts() as casts:
            found.append((casts, *gradients(run, prefetcher.get(0))))
    (before, expected, metrics), (after, rounded, same) = found
    assert after.count < before.count / 2
    assert expected.keys() == rounded.keys()
    assert all(torch.equal(rounded[name], value) for name, value in expected.items())
    assert all(torch.equal(same[name], value) or value.isnan() for name, value in metrics.items())
    assert all(type(parameter) is torch.nn.Parameter for parameter in run.state.encoder.backbone.parameters())


BENCHES = Path(__file__).parents[1] / "benches"


def gpu_benchmark():
    sys.path.insert(0, str(BENCHES))
    runpy.run_path(str(BENCHES / "gpu.py"), run_name="__main__")


def whole_run():
    sys.path.insert(0, str(BENCHES))
    runpy.run_path(str(BENCHES / "whole.py"), run_name="__main__")


@pytest.mark.slow
@pytest.mark.skipif(not BENCHES.is_dir(), reason="there is no benches/ folder")
def test_the_whole_run_of_a_lease_runs_every_part_on_the_cpu(minilm, tmp_path):
    process = Forked("--smoke", "--json", tmp_path / "whole.json", cwd=tmp_path, entry="test_device:whole_run")
    out, err = process.communicate(900)
    assert process.returncode == 0, (out[-2000:] + err[-2000:]).decode()
    found = json.loads((tmp_path / "whole.json").read_text(encoding="utf8"))
    assert not found["errors"]
    losses = ("una focal", "una standard", "una mixed")
    assert [*found["parts"]] == ["index", "before", *losses, "sentence-transformers", "chunks", "resume"]
    assert found["parts"]["resume"] == {**found["parts"]["resume"], "steps": [6, 6], "largest difference": 0}
    assert found["parts"]["chunks"]["steps"] == 6
    for name in losses:
        record = found["parts"][name]
        assert (record["steps"], record["stopped"]) == (30, False)
        assert 0 < record["ms a step"][0] <= record["ms a step"][1]
        assert 0 <= record["device waits"] <= record["waits"] < 1
        assert record["tasks"]["STS-B"][2] is not None


@pytest.mark.slow
@pytest.mark.skipif(not BENCHES.is_dir(), reason="there is no benches/ folder")
def test_the_gpu_benchmark_runs_every_section_on_the_cpu(minilm, tmp_path):
    process = Forked("--smoke", "--json", tmp_path / "gpu.json", cwd=tmp_path, entry="test_device:gpu_benchmark")
    out, err = process.communicate(600)
    assert process.returncode == 0, (out[-2000:] + err[-2000:]).decode()
    found = json.loads((tmp_path / "gpu.json").read_text(encoding="utf8"))
    assert set(found["left_out"]) == {"compile"}
    assert not found["errors"]
    assert found["resume"] == {"deterministic": True}
    assert found["tests"]["tests"] > 10
    assert found["tests"]["failures"] == found["tests"]["errors"] == 0
    assert found["ranks"]["largest_error"] < 1e-3
