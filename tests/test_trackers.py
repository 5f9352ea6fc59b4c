"""Tests of the loggers of experiment trackers, with modules that record the calls (no network, no packages)."""

import re
import sys
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from cse import InputError, train
from cse.training.loop import resumed_config

PAGE = Path(__file__).parents[1] / "docs" / "training.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def values_of(function):
    """Returns the values given to the calls of a mocked function, by step."""
    found = {}
    for each in function.call_args_list:
        found.setdefault(each.kwargs["step"], {}).update(each.args[0])
    return found


def test_a_tracker_gets_settings_metrics_and_scores_and_is_continued_on_resume(run_config, monkeypatch):
    module = Mock()
    monkeypatch.setitem(sys.modules, "wandb", module)
    result = train(run_config.replace(max_steps=2, loggers=("wandb",), una=True, save_every=2))
    run = module.init.return_value
    values = values_of(run.log)
    assert sorted(values) == [0, 1, 2]
    assert "eval/mrr" in values[0]
    assert "train/loss" in values[1]
    settings = module.init.call_args.kwargs["config"]
    assert settings["loss"] == "standard"
    assert settings["una.every"] == 5
    assert run.method_calls[-1] == call.finish()
    train(resumed_config(result.folder, {"max_steps": 3}), resume=result.folder)
    assert module.init.call_count == 2
    assert module.init.call_args.kwargs["resume"] == "allow"


@pytest.mark.skipif(not PAGE.exists(), reason="there is no docs/ folder")
def test_the_logger_in_the_documentation_writes_metrics_and_scores(run_config, registered, monkeypatch, tmp_path):
    module = Mock()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    code = next(text for text in BLOCK.findall(PAGE.read_text(encoding="utf8")) if "import mlflow" in text)
    (tmp_path / "mlflow_logger.py").write_text(code, encoding="utf8")
    train(run_config.replace(max_steps=2, imports=(tmp_path / "mlflow_logger.py",), loggers=("mlflow",)))
    names = [name for name, _, _ in module.method_calls]
    assert (names[0], names[-1]) == ("start_run", "end_run")
    values = values_of(module.log_metrics)
    assert sorted(values) == [0, 1, 2]
    assert all(isinstance(value, (int, float)) for each in values.values() for value in each.values())
    assert "mrr" in values[0]
    assert "loss" in values[1]


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_is_named(run_config, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with pytest.raises(InputError, match=f"--logger {name}: {name} is not installed; run pip install {name}"):
        train(run_config.replace(loggers=(name,)))
