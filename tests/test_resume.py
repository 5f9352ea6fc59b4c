"""Tests of checkpoints, resuming, signals, locks, and failures to write files."""

import errno
import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
import safetensors.torch
import torch

from cse import InputError, TfidfIndex, TrainConfig, _core, train
from cse.cli import main
from cse.errors import RunError
from cse.io import fresh_folder, remove_leftovers
from cse.training.callbacks import Callback
from cse.training.data import check_same
from cse.training.folder.find import find_checkpoint, list_checkpoints, locked
from cse.training.folder.outputs import read_checkpoint
from cse.training.loop import resumed_config
from forked import Forked
from methods import STEPS
from runs import Warnings, kill_after, records_of, same_run, start, weights


def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(run_config, tmp_path):
    # Checkpoints are written more often than the log, so each checkpoint must also write the pending log records.
    config = run_config.replace(**STEPS["focal una"], save_every=2, log_every=100)
    whole = train(config.replace(name="whole"))
    process = start(config.replace(output=str(tmp_path)), tmp_path)
    kill_after(process, tmp_path / "run", 4)
    assert process.returncode == -signal.SIGKILL
    result = train(resumed_config(tmp_path / "run"), resume=tmp_path / "run")
    assert result.steps == 8
    same_run(whole.folder, result.folder)


def test_a_resumed_run_keeps_its_precision(run_config, processor):
    folder = train(run_config.replace(precision="auto", save_every=1, max_steps=1, eval_every=0)).folder
    stored = resumed_config(folder).precision
    assert stored in ("fp32", "bf16")
    processor((), 0.5) if stored == "bf16" else processor(("AVX512-BF16",), 2.0)
    assert resumed_config(folder, {"precision": "auto"}).precision == stored
    other = "fp32" if stored == "bf16" else "bf16"
    with pytest.raises(InputError, match=rf"--precision {other} \(the run has {stored}\) cannot change"):
        resumed_config(folder, {"precision": other})


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_the_run_and_prints_how_to_resume(run_config, tmp_path, cse, number, code):
    config = run_config.replace(max_steps=400, eval_every=0, save_every=2, output=str(tmp_path))
    process = start(config, tmp_path)
    _, printed = kill_after(process, tmp_path / "run", 2, number)
    assert process.returncode == code, printed
    assert "resume with: cse train --resume" in printed
    stopped = read_checkpoint(find_checkpoint(tmp_path / "run")).step
    assert (tmp_path / "run" / "last" / "model.safetensors").exists()
    done = cse("train", "--resume", tmp_path / "run", "--max-steps", stopped + 2, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == stopped + 2


def test_a_checkpoint_that_a_killed_run_did_not_remove_is_removed_by_the_repeated_command(finished_run):
    shutil.copytree(list_checkpoints(finished_run)[0], finished_run / "checkpoints" / "step-00000002")
    train(resumed_config(finished_run), resume=finished_run)
    assert [path.name for path in list_checkpoints(finished_run)] == ["step-00000004", "step-00000008"]


def test_a_link_inside_a_run_is_never_written_through(finished_run, tmp_path, cse):
    run, other = Path(finished_run), tmp_path / "other"
    other.write_text("kept", encoding="utf8")
    for name, command in (("report.html", ("report", run, "--no-encode")), ("log.jsonl", ("train", "--resume", run))):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(other)
        done = cse(*command)
        assert done.returncode == 2
        assert f"{name}: is a link out of the folder" in " ".join(done.stderr.split())
        assert other.read_text(encoding="utf8") == "kept"
        (run / name).unlink()
    (run / "checkpoints").rename(tmp_path / "moved")
    (run / "checkpoints").symlink_to(tmp_path / "moved")
    assert "checkpoints: is a link" in cse("train", "--resume", run).stderr


def test_every_file_of_a_checkpoint_is_verified(finished_run):
    last = list_checkpoints(finished_run)[-1]
    files = [path for path in last.rglob("*") if path.is_file()]
    names = {path.relative_to(last).as_posix() for path in files}
    assert {"best/model.safetensors", "state.json", "config.toml", "manifest.json"} <= names
    best = {path: path.read_bytes() for path in (finished_run / "best").rglob("*") if path.is_file()}
    for path in files:
        data, half = path.read_bytes(), path.stat().st_size // 2
        for content in (None, data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]):
            # The file is removed before it is rewritten, because it may be a hard link to a file in the run's best/.
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(RunError, match=r"is damaged.*use the one before: cse train --resume .*step-00000004"):
                train(resumed_config(finished_run), resume=finished_run)
        path.write_bytes(data)
    assert {path: path.read_bytes() for path in best} == best
    assert read_checkpoint(last).step == 8


class Stop(Callback):
    """Ends a run after the step ``last``."""

    def __init__(self, last):
        self.last = last

    def on_step_end(self, step, steps):
        if step == self.last:
            raise MemoryError("a crash")


@pytest.fixture
def rising(monkeypatch):
    """Makes the score rise with each evaluation, so that each evaluated model is saved as best/."""
    scores = ({"spearman": float(score), "uniformity": -1.0} for score in range(100))
    monkeypatch.setattr("cse.training.scoring.Scorer._scores", lambda self: next(scores))


def test_resuming_restores_the_folder_best_from_the_checkpoint(run_config, rising, scored_pairs):
    """When the run crashes, best/ holds the model of a step after the last checkpoint."""
    config = run_config.replace(dev=scored_pairs, eval_every=2, save_every=3, lr_scheduler="constant")
    two = train(config.replace(name="two", max_steps=2)).folder
    with pytest.raises(MemoryError):
        train(config.replace(name="cut"), Stop(5))
    folder = two.with_name("cut")
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000002", "step-00000003"]
    best = [run / "best" / "model.safetensors" for run in (two, folder)]
    assert len({path.read_bytes() for path in best}) == 2
    with pytest.raises(MemoryError):
        train(resumed_config(folder, {"eval_every": 100}), Stop(4), resume=folder)
    assert len({path.read_bytes() for path in best}) == 1


class Progress(Callback):
    """At each step, tries to resume the run that is being trained, which is refused."""

    def __init__(self, folder):
        self.folder, self.refused = folder, []

    def on_step_end(self, step, steps):
        with pytest.raises(InputError, match="another process is writing to this run"):
            train(resumed_config(self.folder), resume=self.folder)
        self.refused.append(step)


def test_a_run_is_locked_before_its_checkpoint_is_read(finished_run, monkeypatch):
    """If the checkpoint were read first, another process could train in between, and its steps would be repeated."""
    import cse.training.folder.outputs as outputs

    shutil.rmtree(list_checkpoints(finished_run)[-1])
    progress, read, read_by = Progress(finished_run), outputs.read_checkpoint, []
    monkeypatch.setattr(outputs, "read_checkpoint", lambda path: read_by.append(path) or read(path))
    train(resumed_config(finished_run), progress, resume=finished_run)
    assert progress.refused == [5, 6, 7, 8]
    assert len(read_by) == 1


def leave(folder, name="best"):
    """Makes the temporary folder that a process leaves behind if it is killed while writing the folder ``name``."""
    part = folder / f".cse-new-abcd_123-{name}"
    part.mkdir(parents=True)
    (part / "model.safetensors").write_bytes(b"x")
    return part


def hidden(folder):
    return sorted(path.name for path in folder.rglob(".*"))


def test_leftovers_of_killed_processes_are_removed(run_config, finished_run):
    folder = finished_run
    shutil.rmtree(list_checkpoints(folder)[-1])
    leave(folder), leave(folder.parent, "other"), leave(folder / "checkpoints", "step-00000008")
    (folder / ".cse-core-x.tmp").write_bytes(b"x")
    train(resumed_config(folder), resume=folder)
    assert hidden(folder) == []
    # The output folder may also hold other files, so only unlocked folders with temporary names are removed from it.
    (folder.parent / ".cse-mine").mkdir()
    with fresh_folder(folder.parent / "being written"):
        train(run_config.replace(max_steps=1))
        assert len(hidden(folder.parent)) == 2
    assert hidden(folder.parent) == [".cse-mine"]


def test_a_folder_is_restored_if_the_process_was_killed_between_two_renames(tmp_path):
    old = leave(tmp_path, "best").rename(tmp_path / ".cse-new-abcd_123-best.old")
    remove_leftovers(tmp_path)
    assert not old.exists()
    assert (tmp_path / "best" / "model.safetensors").exists()


def test_a_run_that_saved_nothing_may_be_replaced(run_config, cse):
    config = run_config.replace(name="run")
    with pytest.raises(MemoryError):
        train(config, Stop(1))
    folder = Path(config.output) / "run"
    assert not list_checkpoints(folder)
    leave(folder)
    done = cse("train", "--resume", folder)
    assert done.returncode == 2
    assert f"cse train --config {folder / 'config.toml'} --name run" in done.stderr.replace("\n", " ")
    with locked(folder), pytest.raises(InputError, match="another process is writing"):
        train(config)
    (folder / "notes.txt").write_text("mine", encoding="utf8")
    with pytest.raises(InputError, match="run exists; choose another name or remove it"):
        train(config)
    (folder / "notes.txt").unlink()
    assert train(config).folder == folder
    assert hidden(folder) == []
    assert [record["step"] for record in records_of(folder)[0]] == list(range(1, 9))
    with pytest.raises(InputError, match="run exists"):
        train(config)


def test_a_run_that_was_evaluated_in_training_can_be_resumed_and_is_not_replaced(run_config):
    """best/ may hold the result of training after the first evaluation, so a checkpoint is saved as well."""
    with pytest.raises(MemoryError):
        train(run_config.replace(name="run"), Stop(5))
    with pytest.raises(InputError, match=r"run exists; resume it with .*run, choose another name"):
        train(run_config.replace(name="run"))
    folder = Path(run_config.output) / "run"
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000003"]
    resumed = train(resumed_config(folder), resume=folder)
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000008"]
    same_run(train(run_config.replace(name="whole")).folder, resumed.folder)


def main_on_a_small_disk():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["LIMIT"]),) * 2)
    main()


def test_a_full_disk_keeps_the_previous_checkpoint(run_config, tmp_path):
    """A limit on file sizes simulates a full disk: the weights can be written, but not the state of the optimizer."""
    folder = train(run_config.replace(save_every=4, max_steps=4, eval_every=0)).folder
    (checkpoint,) = list_checkpoints(folder)
    sizes = {path.name: path.stat().st_size for path in checkpoint.iterdir()}
    limit = (sizes["weights.safetensors"] + sizes["optimizer.safetensors"]) // 2
    config = (folder / "config.toml").read_text(encoding="utf8").replace("max_steps = 4", "max_steps = 8")
    (folder / "config.toml").write_text(config, encoding="utf8")
    process = Forked("train", "--resume", folder, env={"LIMIT": str(limit)}, entry="test_resume:main_on_a_small_disk")
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the files of earlier steps were kept" in " ".join(printed.decode().split())
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [checkpoint.name]
    assert read_checkpoint(find_checkpoint(folder)).step == 4


def test_a_copy_of_a_run_is_resumed_in_its_own_folder(one_finished_run, finished_run):
    for changes in ({"name": "second"}, {"output": str(finished_run)}):
        with pytest.raises(InputError, match=r"--(name|output) .* cannot change in a run that has begun"):
            resumed_config(finished_run, changes)
    with pytest.raises(InputError, match="--max-steps: 3 is less than the 8 steps"):
        train(resumed_config(finished_run, {"max_steps": 3}), resume=finished_run)
    before = {path: path.read_bytes() for path in one_finished_run.rglob("*") if path.is_file()}
    result = train(resumed_config(finished_run, {"max_steps": 9}), resume=finished_run)
    assert (result.folder, result.steps) == (finished_run, 9)
    assert {path: path.read_bytes() for path in one_finished_run.rglob("*") if path.is_file()} == before


def test_a_finished_run_can_be_extended_into_a_later_epoch(run_config, tmp_path, sample_rows, cse):
    corpus = tmp_path / "small.txt"
    corpus.write_text("".join(row + "\n" for row in sample_rows[:30]), encoding="utf8")
    config = run_config.replace(corpus=corpus, eval_every=0, lr_scheduler="constant", save_every=5, name="short")
    first = train(config.replace(max_steps=5)).folder
    whole = train(config.replace(max_steps=10, name="whole"))
    assert whole.steps == 10
    done = cse("train", "--resume", first, "--max-steps", "10")
    assert f"train longer with: cse train --resume {first} --max-steps N" in done.stdout.replace("\n", " "), done.stderr
    assert all(torch.equal(one, weights(whole.folder)[name]) for name, one in weights(first).items())


def test_train_resumes_with_the_values_that_began_the_run(run_config):
    config = run_config.replace(preset="encoder", max_steps=2, eval_every=0)
    folder = train(config).folder
    changes = {"lr": 0.5, "temperature": 0.9}
    with pytest.raises(InputError, match=r"--temperature 0.9 .*; --lr 0.5 .* cannot change in a run that has begun"):
        train(config.replace(max_steps=3, **changes), resume=folder)
    result = train(config.replace(max_steps=3), resume=folder)
    assert (result.folder, result.steps) == (folder, 3)
    resumed = resumed_config(folder)
    assert (resumed.max_steps, resumed.given["preset"], resumed.given["max_steps"]) == (3, "encoder", 3)
    for wrong in (resumed.replace(lr=0.5), TrainConfig.from_toml(folder / "config.toml").replace(lr=0.5)):
        with pytest.raises(InputError, match=r"--lr 0.5 .* cannot change in a run that has begun"):
            train(wrong, resume=folder)
    nearby = os.path.join(os.path.dirname(config.corpus[0]), ".", os.path.basename(config.corpus[0]))
    assert train(config.replace(corpus=nearby, max_steps=4), resume=folder).steps == 4


def test_settings_that_affect_the_result_cannot_be_changed_on_resume(finished_run, cse_here):
    done = cse_here("train", "--resume", finished_run, "--lr", "0.5", "--seed", "3", "--max-steps", "9")
    assert done.returncode == 2
    assert "--lr 0.5 (the run has 0.001); --seed 3 (the run has 0) cannot change" in done.stderr.replace("\n", " ")
    with pytest.raises(InputError, match="has no checkpoint"):
        resumed_config(finished_run / "best")
    # Edits to the config.toml of a run are checked like flags.
    file = finished_run / "config.toml"
    text = file.read_text(encoding="utf8")
    file.write_text(text.replace("lr = 0.001", "lr = 0.5"), encoding="utf8")
    with pytest.raises(InputError, match=r"config.toml: --lr 0.5 \(the run has 0.001\) cannot change"):
        resumed_config(finished_run)
    file.write_text(text.replace("max_steps = 8", "max_steps = 9"), encoding="utf8")
    assert train(resumed_config(finished_run), resume=finished_run).steps == 9
    file.unlink()
    assert resumed_config(finished_run).max_steps == 9


@pytest.fixture
def full(monkeypatch):
    """A function that simulates a full disk: after it is called, every attempt to write a checkpoint fails."""

    def fail(tensors, path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    return lambda: monkeypatch.setattr("cse.training.folder.outputs.save_file", fail)


class Fill(Callback):
    """Fills the disk after a step."""

    def __init__(self, full, step):
        self.full, self.step = full, step

    def on_step_end(self, step, steps):
        if step == self.step:
            self.full()


def test_last_is_saved_as_a_folder_even_if_a_checkpoint_cannot_be_written(run_config, full):
    with pytest.raises(RunError, match=r"no space left.*checkpoint of step 4 could not be written, .*last holds the"):
        train(run_config.replace(save_every=2, name="run"), Fill(full, 3))
    folder = Path(run_config.output) / "run"
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000002"]
    assert weights(folder)
    assert hidden(folder) == []


def test_without_save_every_a_failed_checkpoint_causes_only_a_warning(run_config, full):
    full()
    callback = Warnings()
    result = train(run_config.replace(max_steps=2), callback)
    assert (result.folder / "result.json").exists()
    assert any("the checkpoint of step 2 could not be written" in text for text in callback.texts)


@pytest.mark.parametrize(
    "values",
    [
        {**STEPS["focal una"], "precision": "bf16", "max_steps": 4, "eval_every": 0},
        pytest.param({"accumulate": 2}, marks=pytest.mark.slow),
    ],
    ids=["bf16", "accumulated"],
)
def test_a_crashed_and_resumed_run_equals_an_uninterrupted_one(run_config, values):
    """An exception simulates the crash; tests/helpers/crash_points.py kills real processes."""
    config = run_config.replace(**values, save_every=2, log_every=100)
    whole = train(config.replace(name="whole"))
    last = whole.steps - 1
    with pytest.raises(MemoryError, match="a crash"):
        train(config.replace(name="cut"), Stop(last))
    cut = whole.folder.with_name("cut")
    assert read_checkpoint(find_checkpoint(cut)).step == last - 1
    same_run(whole.folder, train(resumed_config(cut, {"precision": "auto"}), resume=cut).folder)


def test_resuming_from_an_earlier_checkpoint_removes_later_ones(run_config):
    folder = train(run_config.replace(save_every=2)).folder
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000006", "step-00000008"]
    changes = {"save_every": 1, "max_steps": 9, "keep_checkpoints": 1, "eval_every": 100}
    with pytest.raises(MemoryError):
        train(resumed_config(folder, changes), Stop(8), resume=list_checkpoints(folder)[0])
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000007"]


def test_options_of_the_run_may_be_repeated_on_resume(run_config):
    config = run_config.replace(**STEPS["focal una"], save_every=4, max_steps=4)
    folder = train(config).folder
    radius = TfidfIndex.open(config.tfidf).default_radius
    for options in ({"una": {"beta": 0.5}}, {"una": {"radius": radius}}):  # beta was given; radius is a default
        assert train(resumed_config(folder, {"options": options}), resume=folder).steps == 4
    with pytest.raises(InputError, match=r"--beta 0.4 \(the run has 0.5\) cannot change"):
        resumed_config(folder, {"options": {"una": {"beta": 0.4}}})


def test_a_disk_that_is_full_at_the_first_checkpoint_leaves_a_run_that_the_same_command_begins_again(run_config, full):
    config = run_config.replace(save_every=2, name="run", max_steps=4)
    with pytest.raises(RunError, match=r"checkpoint of step 2 could not be written, .*last holds the encoder"):
        train(config, Fill(full, 1))
    folder = Path(run_config.output) / "run"
    with pytest.raises(InputError, match="ended before its first checkpoint; begin it again: cse train --config"):
        resumed_config(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cse.training.folder.outputs.save_file", safetensors.torch.save_file)
        assert train(config).steps == 4
    assert list_checkpoints(folder)[-1].name == "step-00000004"


@pytest.mark.parametrize(
    "change", [{"step": "4"}, {"viewed": [1]}, {"selection": {"records": [[]]}}, {"data": {"files": 1}}]
)
def test_a_checkpoint_whose_state_has_another_shape_is_refused_although_its_hash_is_right(finished_run, change):
    folder = list_checkpoints(finished_run)[-1]
    state = json.loads((folder / "state.json").read_text())
    for name, value in change.items():
        state[name] = {**state[name], **value} if isinstance(value, dict) else value
    (folder / "state.json").write_text(json.dumps(state))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["state.json"] = _core.hash_file(str(folder / "state.json"))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=rf"the checkpoint is damaged \(.*{next(iter(change))}: .*must be "):
        train(resumed_config(finished_run, {"max_steps": 9}), resume=finished_run)


def test_a_run_whose_base_model_has_changed_is_not_resumed(run_config, tiny_bert, tmp_path):
    model = shutil.copytree(tiny_bert, tmp_path / "model")
    config = run_config.replace(model=str(model), max_steps=2, loss_terms=("keep-similarities",), name="run")
    folder = train(config).folder
    longer, file = resumed_config(folder, {"max_steps": 3}), model / "model.safetensors"
    values = safetensors.torch.load_file(file)
    name = next(each for each in values if "layer.0" in each and each.endswith("weight"))
    safetensors.torch.save_file({**values, name: values[name] + 0.01}, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match="the base model has changed since the run began; restore it"):
        train(longer, resume=folder)
    safetensors.torch.save_file(values, file, metadata={"format": "pt"})
    assert train(longer, resume=folder).steps == 3
    # Runs of earlier versions did not store a hash of it.
    before = {"corpus": [], "index": None}
    check_same(before, {**before, "model": "a hash"}, "--resume run")
