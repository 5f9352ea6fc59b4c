"""Tests of the loggers of experiment trackers, with modules that record the calls (no network, no packages)."""

import json
import sys
from unittest.mock import Mock, call

import pytest

from cse import InputError, train
from cse.training.loop import resumed_config


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


LOGGER = """
import json
from pathlib import Path
from cse import Callback
from cse.training.loggers import LOGGERS

class Lines(Callback):
    def on_log(self, records):
        self.write(*records)
    def on_evaluate(self, step, record):
        self.write({"step": step, **record})
    def write(self, *records):
        with open(Path(__file__).with_name("lines.jsonl"), "a") as file:
            file.writelines(json.dumps(record) + "\\n" for record in records)

LOGGERS.register("lines", Lines)
"""


def test_a_registered_logger_gets_metrics_and_scores(run_config, registered, tmp_path):
    (tmp_path / "logger.py").write_text(LOGGER, encoding="utf8")
    train(run_config.replace(max_steps=2, imports=(tmp_path / "logger.py",), loggers=("lines",)))
    values = {}
    for line in (tmp_path / "lines.jsonl").read_text().splitlines():
        record = json.loads(line)
        values.setdefault(record["step"], {}).update(record)
    assert sorted(values) == [0, 1, 2]
    assert "mrr" in values[0]
    assert "loss" in values[1]


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_is_named(run_config, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with pytest.raises(InputError, match=f"--logger {name}: {name} is not installed; run pip install {name}"):
        train(run_config.replace(loggers=(name,)))
