"""Checkpoints, resuming, signals, gradient caching, and several processes."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from cse import InputError, TrainConfig, _core, train
from cse.errors import RunError
from cse.training.checkpoint import find_checkpoint, list_checkpoints, read_checkpoint
from cse.training.distributed import World
from cse.training.loop import resumed_config
from cse.training.setup import prepare
from cse.training.step import learning_rate, propagate

LOSSES = {
    "standard": {},
    "focal una": {"loss": "focal", "negatives": ("una",), "una": {"every": 2, "beta": 0.5}},
    "mixed una columns": {"loss": "mixed", "negatives": ("una",), "una": {"every": 1, "use_as": "hard-negatives"}},
    "standard mlm": {"loss_terms": ("mlm",)},
    "focal chunks": {"loss": "focal", "chunk_size": 3},
    "accumulated": {"accumulate": 2},
}


@pytest.fixture
def base(indexed, sample, tiny_bert, tmp_path):
    return TrainConfig(
        corpus=sample,
        model=tiny_bert,
        tfidf=indexed / "tfidf",
        output=tmp_path / "runs",
        batch_size=8,
        max_steps=8,
        eval_every=3,
        log_every=2,
        device="cpu",
        # Results are equal bit by bit only for equal numbers of threads, and these tests start processes.
        threads=1,
        lr=1e-3,
    )


@pytest.fixture(autouse=True)
def own_threads():
    """Restores PyTorch's number of threads, which a run with ``threads`` sets for the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    _core.set_default_threads(0)


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "last" / "model.safetensors")


def same_run(first, second):
    """Asserts that two runs have the same weights, log and scores, bit by bit."""
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    logs = []
    for folder in (first, second):
        lines = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf8").splitlines())
        logs.append([{k: v for k, v in line.items() if k != "sentences_per_second"} for line in lines])
    assert logs[0] == logs[1]
    results = [json.loads((folder / "result.json").read_text(encoding="utf8")) for folder in (first, second)]
    for result in results:
        del result["seconds"], result["folder"]
    assert results[0] == results[1]


def start(config, folder, extra=()):
    """Starts `cse train` with a configuration in a process of its own."""
    path = folder / "config.toml"
    path.write_text(config.to_toml(), encoding="utf8")
    command = [sys.executable, "-m", "cse", "train", "--config", path, "--name", "run", *extra]
    return subprocess.Popen(
        list(map(str, command)), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def kill_after(process, run, step, number=signal.SIGKILL):
    """Sends a signal as soon as the checkpoint of a step, or a later one, exists."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if any(int(path.name.split("-")[1]) >= step for path in list_checkpoints(run)):
            process.send_signal(number)
            break
        time.sleep(0.002)
    return process.communicate(timeout=120)


@pytest.mark.parametrize("name", LOSSES)
def test_a_killed_run_goes_on_bit_by_bit(base, tmp_path, name):
    # The log is written less often than checkpoints, which must not lose the records in between.
    config = base.replace(**LOSSES[name], save_every=2, log_every=100)
    whole = train(config.replace(name="whole"))
    process = start(config.replace(output=str(tmp_path)), tmp_path)
    kill_after(process, tmp_path / "run", 4)
    assert process.returncode == -signal.SIGKILL
    result = train(resumed_config(tmp_path / "run"), resume=tmp_path / "run")
    assert result.steps == 8
    same_run(whole.folder, result.folder)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_resume(base, tmp_path, cse, number, code):
    config = base.replace(max_steps=400, eval_every=0, save_every=2, output=str(tmp_path))
    process = start(config, tmp_path)
    _, said = kill_after(process, tmp_path / "run", 2, number)
    assert process.returncode == code, said
    assert "resume with: cse train --resume" in said
    stopped = read_checkpoint(find_checkpoint(tmp_path / "run")).step
    assert (tmp_path / "run" / "last" / "model.safetensors").exists()
    done = cse("train", "--resume", tmp_path / "run", "--max-steps", stopped + 2, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == stopped + 2


def test_only_settings_that_do_not_change_the_result_may_change(base, cse):
    result = train(base.replace(name="run", save_every=4))
    assert [path.name for path in list_checkpoints(result.folder)] == ["step-00000004", "step-00000008"]
    done = cse("train", "--resume", result.folder, "--lr", "0.5", "--seed", "3", "--max-steps", "9")
    assert done.returncode == 2
    assert "--seed 3 (the run has 0); --lr 0.5 (the run has 0.001) cannot change" in done.stderr.replace("\n", " ")
    with pytest.raises(InputError, match="has no checkpoint"):
        resumed_config(train(base.replace(name="plain", max_steps=1)).folder)


def test_a_changed_corpus_is_refused(base, tmp_path, sample_rows):
    corpus = tmp_path / "c.txt"
    corpus.write_text("\n".join(sample_rows[:300]), encoding="utf8")
    result = train(base.replace(corpus=corpus, max_steps=2, save_every=1))
    corpus.write_text("\n".join(sample_rows[1:301]), encoding="utf8")
    with pytest.raises(InputError, match="is not the one of the run"):
        train(resumed_config(result.folder), resume=result.folder)


def test_a_torn_checkpoint_is_named_and_the_one_before_offered(base, cse):
    folder = train(base.replace(name="run", save_every=4)).folder
    last = list_checkpoints(folder)[-1]
    data = (last / "weights.safetensors").read_bytes()
    (last / "weights.safetensors").write_bytes(data[: len(data) // 2])
    done = cse("train", "--resume", folder)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "use the one before: cse train --resume" in done.stderr
    assert "step-00000004" in done.stderr
    done = cse("train", "--resume", folder / "checkpoints" / "step-00000004", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 8


def test_two_processes_do_not_write_to_one_run(base, tmp_path):
    from cse.training.interrupts import locked

    folder = train(base.replace(save_every=4)).folder
    with locked(folder), pytest.raises(InputError, match="another process writes to this run"):
        train(resumed_config(folder), resume=folder)


def test_patience_ends_a_run_early(base, tmp_path, sample_rows):
    lines = [f"{i % 5}\t{a}\t{b}" for i, (a, b) in enumerate(zip(sample_rows[:40], sample_rows[40:80], strict=True))]
    (tmp_path / "dev.tsv").write_text("\n".join(lines), encoding="utf8")
    config = base.replace(dev=tmp_path / "dev.tsv", eval_every=1, max_steps=60, patience=2, lr=1e-8)
    result = train(config)
    assert result.steps - result.best_step == 2
    with pytest.raises(InputError, match="--patience: needs --dev"):
        TrainConfig(patience=2)


def test_rates_follow_their_schedules(base):
    def rates(**values):
        config = prepare(base.replace(**values)).config
        return [learning_rate(config, step, 10) / config.lr for step in range(10)]

    assert rates(lr_scheduler="linear", warmup=0.2) == pytest.approx([1 / 3, 2 / 3, *(1 - i / 8 for i in range(8))])
    assert rates(lr_scheduler="constant", warmup=0.1) == pytest.approx([0.5, *[1] * 9])
    assert rates(lr_scheduler="cosine") == pytest.approx([(1 + np.cos(np.pi * i / 10)) / 2 for i in range(10)])


def gradients(run, config, batches, world=None):
    """The gradients of some batches, and their metrics, in float64."""
    state = run.state
    metrics = [propagate(state, batch, config, "cpu", world or World(), 1.0) for batch in batches]
    modules = torch.nn.ModuleDict({"encoder": state.encoder, "terms": torch.nn.ModuleDict(state.terms)})
    found = {name: p.grad.clone() for name, p in modules.named_parameters() if p.grad is not None}
    for parameter in modules.parameters():
        parameter.grad = None
    return found, metrics[0]


VIEWS = {
    **{name: values for name, values in LOSSES.items() if name not in ("accumulated", "focal chunks")},
    "una pairs": {"negatives": ("una",), "una": {"every": 1}},
    "mixed una pairs": {"loss": "mixed", "negatives": ("una",), "una": {"every": 1}},
    "release": {"loss": "mixed", "mix_variant": "release"},
    "spans": {"positive": "spans"},
}


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_cached_gradients_are_those_of_the_whole_batch(base, name, dropout, monkeypatch):
    from cse.losses import chunks
    from cse.training.batches import Prefetcher

    run = prepare(base.replace(**VIEWS[name]))
    state = run.state
    state.encoder.double()
    for term in state.terms.values():
        term.double()
    state.encoder.train(dropout)
    for term in state.terms.values():
        term.train(dropout)
    with Prefetcher(run.batches, state.encoder.tokenizer, 32) as prefetcher:
        batches = prefetcher.get(0)
    cached = run.config.replace(chunk_size=3)
    # With dropout, the reference has the same chunks, with all graphs kept; without, it is the whole batch.
    torch.manual_seed(1)
    if dropout:
        with monkeypatch.context() as patch:
            patch.setattr(chunks, "checkpoint", lambda function, chunk, use_reentrant: function(chunk))
            expected, _ = gradients(run, cached, batches)
    else:
        expected, _ = gradients(run, run.config, batches)
    torch.manual_seed(1)
    found, _ = gradients(run, cached, batches)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert torch.allclose(found[key], values, rtol=1e-10, atol=1e-12), key


def test_cached_activations_are_those_of_one_chunk(base):
    """What the forward pass keeps for the encoder does not grow with the batch, but for the inputs of the chunks."""
    from cse.training.batches import Prefetcher
    from cse.training.step import encode_views

    kept = {}
    for size, chunk in ((8, None), (32, None), (8, 4), (32, 4)):
        run = prepare(base.replace(batch_size=size, chunk_size=chunk))
        with Prefetcher(run.batches, run.state.encoder.tokenizer, 32) as prefetcher:
            (batch,) = prefetcher.get(0)
        held = []

        def pack(tensor, held=held):
            held.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            encode_views(run.state.encoder.train(), batch, batch.tokens, run.config, "cpu")
        kept[size, chunk] = sum(held)
    assert kept[32, None] > 3 * kept[8, None]
    assert kept[32, 4] < 0.05 * kept[32, None]


def test_accumulated_gradients_are_the_mean_over_batches(base):
    from cse.training.batches import Prefetcher

    run = prepare(base.replace(accumulate=3))
    assert len(run.batches) == 8
    run.state.encoder.eval()
    with Prefetcher(run.batches, run.state.encoder.tokenizer, 32) as prefetcher:
        batches = prefetcher.get(0)
    assert len(batches) == 3
    singles = [gradients(run, run.config, [batch])[0] for batch in batches]
    rows = np.concatenate([batch.rows for batch in batches])
    assert len(set(rows.tolist())) == 24
    for batch in batches:
        propagate(run.state, batch, run.config, "cpu", World(), 1 / 3)
    parameters = dict(torch.nn.ModuleDict({"encoder": run.state.encoder}).named_parameters())
    for name, values in singles[0].items():
        if name.startswith("encoder"):
            mean = torch.stack([values, singles[1][name], singles[2][name]]).mean(0)
            assert torch.allclose(parameters[name].grad, mean, atol=1e-6)


def test_equal_sentences_are_not_each_others_negatives(base, tmp_path, sample_rows):
    rows = [row for row in sample_rows[:8] for _ in range(2)]
    (tmp_path / "twice.txt").write_text("\n".join(rows), encoding="utf8")
    config = base.replace(corpus=tmp_path / "twice.txt", batch_size=16, max_steps=1, eval_every=0)
    batch = prepare(config).batches[0]
    texts = batch.blocks["anchor"].texts
    expected = np.array([[a == b and i != j for j, b in enumerate(texts)] for i, a in enumerate(texts)])
    assert (batch.duplicates == expected).all()
    assert prepare(config.replace(keep_duplicates=True)).batches[0].duplicates is None
    lines = (train(config).folder / "log.jsonl").read_text(encoding="utf8").splitlines()
    assert json.loads(lines[-2])["duplicates"] == 16


def test_lack_of_memory_says_what_to_lower(base, monkeypatch):
    import cse.training.loop as loop

    def fail(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9999 bytes")

    monkeypatch.setattr(loop, "training_step", fail)
    with pytest.raises(RunError, match="set --chunk-size 4"):
        train(base)


def test_a_logger_is_a_class_of_four_methods(base):
    from cse.training.loggers import LOGGERS, Logger

    calls = []

    class Recorder(Logger):
        def start(self, folder, config, step):
            calls.append(("start", step))

        def log(self, records):
            calls.append(("log", [record["step"] for record in records]))

        def evaluation(self, step, record):
            calls.append(("evaluation", step))

        def close(self):
            calls.append(("close",))

    LOGGERS.register("recorder", Recorder)
    train(base.replace(max_steps=4, loggers=("recorder",)))
    assert calls[0] == ("start", 0)
    assert calls[-1] == ("close",)
    assert [call for call in calls if call[0] == "evaluation"] == [("evaluation", s) for s in (0, 3, 4)]
    assert [step for call in calls if call[0] == "log" for step in call[1]] == [1, 2, 3, 4]
    with pytest.raises(InputError, match="--logger: 'nothing' is unknown"):
        train(base.replace(loggers=("nothing",)))


def test_tensorboard_has_the_losses_and_scores(base):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(base.replace(max_steps=4, loggers=("tensorboard",)))
    events = EventAccumulator(str(result.folder / "tensorboard"))
    events.Reload()
    assert {"train/loss", "train/alignment", "train/uniformity", "eval/mrr"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4]


DISTRIBUTED = """
import json, os, sys, torch
from cse import TrainConfig
from cse.training.batches import Prefetcher
from cse.training.distributed import connected
from cse.training.setup import prepare
from cse.training.step import propagate, unique_parameters

values, out = json.loads(sys.argv[1]), sys.argv[2]
with connected("cpu") as world:
    found = {}
    for name, more in values["cases"].items():
        run = prepare(TrainConfig(**values["base"], **more), world)
        state = run.state
        for module in (state.encoder, *state.terms.values()):
            module.double().eval()
        with Prefetcher(run.batches, state.encoder.tokenizer, 32, world.part) as batches:
            (batch,) = batches.get(0)
        metrics = propagate(state, batch, run.config, "cpu", world, 1.0)
        parameters = unique_parameters([state.encoder, *state.terms.values()])
        world.sum_gradients(parameters, name)
        found[name] = {
            "metrics": {key: float(value) for key, value in metrics.items()},
            "gradients": [None if p.grad is None else p.grad for p in parameters],
            "texts": batch.blocks["synthetic"].texts if "synthetic" in batch.blocks else [],
            "rows": batch.rows.tolist(),
        }
    if world.is_main:
        torch.save(found, out)
"""


def torchrun(processes, *arguments, cwd=None, wait=True):
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
    assert process.returncode == 0, err[-3000:]
    return out


def test_two_processes_have_the_gradients_of_one(base, tmp_path):
    script = tmp_path / "gradients.py"
    script.write_text(DISTRIBUTED, encoding="utf8")
    names = [name for name in VIEWS if name != "spans"]
    cases = {name: {**VIEWS[name]} for name in names} | {"odd": {"batch_size": 7}, "chunks": {"chunk_size": 3}}
    given = base.model_dump(exclude_none=True, include=base.model_fields_set)
    cases = {name: {**given, **values} for name, values in cases.items()}
    payload = json.dumps({"base": {}, "cases": cases})
    found = []
    for processes in (1, 2):
        out = tmp_path / f"{processes}.pt"
        torchrun(processes, script, payload, out)
        found.append(torch.load(out))
    one, two = found
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


def test_two_processes_train_resume_and_end_together(base, tmp_path):
    config = base.replace(una=True, loss="focal", save_every=2, output=str(tmp_path), max_steps=6)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf8")
    out = torchrun(2, "-m", "cse", "train", "--config", path, "--name", "whole", "--json", cwd=tmp_path)
    assert json.loads(out)["steps"] == 6
    # A rank that dies ends the others, and the checkpoint goes on with the same number of ranks, bit by bit.
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
    # One process can go on with it too.
    single = train(resumed_config(tmp_path / "cut", {"max_steps": 8}), resume=tmp_path / "cut")
    assert single.steps == 8


def test_bf16_trains_on_the_cpu(base):
    result = train(base.replace(precision="bf16", max_steps=2))
    lines = (result.folder / "log.jsonl").read_text(encoding="utf8").splitlines()
    assert all(np.isfinite(record["loss"]) for record in map(json.loads, lines) if "loss" in record)


def test_masks_follow_bert(base):
    from cse.losses.mlm import mask_tokens

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 2000, (400, 50), generator=generator)
    special = torch.zeros_like(ids, dtype=torch.bool)
    special[:, 0] = True
    masked, labels = mask_tokens(ids, special, torch.rand(400, 150, generator=generator), 0.15, 4, 2000)
    chosen = labels != -100
    assert not chosen[:, 0].any()
    assert (labels[chosen] == ids[chosen]).all()
    assert (masked[~chosen] == ids[~chosen]).all()
    count = int(chosen.sum())
    assert count / (400 * 49) == pytest.approx(0.15, abs=0.008)
    assert float((masked[chosen] == 4).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float((masked[chosen] == ids[chosen]).float().mean()) == pytest.approx(0.1, abs=0.02)


def test_the_mlm_term_is_the_library_loss(base):
    from cse.training.batches import Prefetcher

    run = prepare(base.replace(loss_terms=("mlm",), options={"mlm": {"weight": 0.3, "share": 0.5}}))
    run.state.encoder.eval()
    term = run.state.terms["mlm"].eval()
    with Prefetcher(run.batches, run.state.encoder.tokenizer, 32) as prefetcher:
        (batch,) = prefetcher.get(0)
    seen = {}
    forward = term.model.forward
    term.model.forward = lambda **inputs: seen.update(inputs) or forward(**inputs)
    metrics = propagate(run.state, batch, run.config, "cpu", World(), 1.0)
    ids = batch.tokens["anchor"]["input_ids"]
    changed = seen["input_ids"] != ids
    assert changed.any()
    # Its labels are not visible here: the library's loss over the changed tokens is close to that over the selected.
    labels = torch.where(changed, ids, -100)
    expected = term.model(input_ids=seen["input_ids"], attention_mask=seen["attention_mask"], labels=labels).loss
    assert float(metrics["loss/mlm"]) == pytest.approx(0.3 * float(expected), rel=0.1)


FULL_DISK = """
import resource, sys
from cse.errors import RunError
from cse.training.loop import resumed_config, train

run, limit = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    train(resumed_config(run), resume=run)
except RunError as error:
    sys.exit(f"RunError: {error}")
"""


def test_a_full_disk_in_a_checkpoint_leaves_the_one_before(base, tmp_path):
    """A limit on file sizes simulates a full disk: the encoder can be written, the optimizer's moments cannot."""
    folder = train(base.replace(save_every=4, max_steps=4, eval_every=0)).folder
    (checkpoint,) = list_checkpoints(folder)
    sizes = {path.name: path.stat().st_size for path in checkpoint.iterdir()}
    limit = (sizes["weights.safetensors"] + sizes["optimizer.safetensors"]) // 2
    config = (folder / "config.toml").read_text(encoding="utf8").replace("max_steps = 4", "max_steps = 8")
    (folder / "config.toml").write_text(config, encoding="utf8")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, folder, str(limit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "RunError: " in done.stderr
    assert "the files of earlier steps were kept" in done.stderr
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [checkpoint.name]
    assert read_checkpoint(find_checkpoint(folder)).step == 4


NO_MEMORY = """
import resource, sys
from cse import TrainConfig
from cse.errors import RunError
from cse.training.callbacks import Callback
from cse.training.loop import train

class Limit(Callback):
    def on_step_end(self, step, steps):
        if step == 2:
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), used + (16 << 20)))

try:
    train(TrainConfig.from_toml(sys.argv[1]), Limit())
except RunError as error:
    sys.exit(f"RunError: {error}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux only")
def test_a_step_without_memory_ends_with_its_checkpoint_kept(base, tmp_path):
    config = base.replace(batch_size=512, save_every=1, eval_every=0, max_steps=4, name="run")
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf8")
    done = subprocess.run(
        [sys.executable, "-c", NO_MEMORY, tmp_path / "config.toml"],
        # Tensors are mapped, so that their memory is returned and the next step must ask for it again.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "RunError: out of memory at step 3 with batches of 512 sentences" in done.stderr
    assert "set --chunk-size 256" in done.stderr
    assert read_checkpoint(find_checkpoint(tmp_path / "runs" / "run")).step in (1, 2)


def test_a_resumed_run_may_go_on_in_another_folder(base, tmp_path):
    base = base.replace(save_every=2, lr_scheduler="constant")
    first = train(base.replace(max_steps=4, name="first")).folder
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    changed = resumed_config(first, {"max_steps": 8, "name": "second"})
    second = train(changed, resume=first)
    assert second.folder == tmp_path / "runs" / "second"
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    whole = train(base.replace(name="whole"))
    assert all(
        torch.equal(a, b) for a, b in zip(weights(whole.folder).values(), weights(second.folder).values(), strict=True)
    )
    with pytest.raises(InputError, match="second exists"):
        train(changed, resume=first)
    with pytest.raises(InputError, match="--max-steps: 3 is less than the 4 steps"):
        train(resumed_config(first, {"max_steps": 3}), resume=first)
