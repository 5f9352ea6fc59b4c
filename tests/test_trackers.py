"""Tests of the loggers of experiment trackers, with modules that record the calls (no network, no packages)."""

import sys
from types import SimpleNamespace

import pytest

from cse import InputError, train


class Recorder:
    """Stands for the module of a tracker and for its run; remembers the calls."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments, **keywords):
            self.calls.append((name, arguments, keywords))
            if name == "search_runs":
                return [SimpleNamespace(info=SimpleNamespace(run_id="earlier"))]
            return SimpleNamespace(experiment_id="1") if name == "set_experiment" else self

        return call


@pytest.mark.parametrize(
    ("name", "log"),
    [("wandb", "log"), ("trackio", "log"), ("mlflow", "log_metrics")],
    ids=["wandb", "trackio", "mlflow"],
)
def test_a_tracker_gets_settings_metrics_and_scores_and_is_continued_on_resume(run_config, monkeypatch, name, log):
    module = Recorder()
    monkeypatch.setitem(sys.modules, name, module)
    result = train(run_config.replace(max_steps=2, loggers=(name,), una=True, save_every=2))
    values = {}
    for called, arguments, keywords in module.calls:
        if called == log:
            values.setdefault(keywords["step"], {}).update(arguments[0])
    assert sorted(values) == [0, 1, 2]
    assert "eval/mrr" in values[0]
    assert "train/loss" in values[1]
    assert all("/" not in key.split("/", 1)[1] for key in values[1]) or name != "mlflow"
    settings = next(
        arguments[0] if called == "log_params" else keywords["config"]
        for called, arguments, keywords in module.calls
        if called == "log_params" or "config" in keywords
    )
    assert settings["loss"] == "standard"
    assert settings["una.every"] == 5
    assert module.calls[-1][0] in ("finish", "end_run")

    from cse.training.loop import resumed_config

    module.calls.clear()
    train(resumed_config(result.folder, {"max_steps": 3}), resume=result.folder)
    started = dict((called, keywords) for called, _, keywords in module.calls if called in ("init", "start_run"))
    assert started == {"start_run": {"run_id": "earlier"}} if name == "mlflow" else started["init"]["resume"] == "allow"


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_tracker_that_is_not_installed_is_named(run_config, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with pytest.raises(InputError, match=f"--logger {name}: {name} is not installed; run pip install {name}"):
        train(run_config.replace(loggers=(name,)))
