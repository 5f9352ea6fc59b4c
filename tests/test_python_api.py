"""Tests of cse.evaluate and cse.compare."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import cse
from conftest import refuses
from cse import Encoder
from cse.cli import cli


def call(*arguments):
    done = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def other(tmp_path_factory, tiny_bert):
    """The folder of a copy of tiny_bert with noise added to its weights."""
    folder = Path(shutil.copytree(tiny_bert, tmp_path_factory.mktemp("other") / "model"))
    generator = torch.Generator().manual_seed(1)
    weights = load_file(folder / "model.safetensors")
    weights = {k: v + 0.02 * torch.randn(v.shape, generator=generator) for k, v in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_evaluate_returns_what_cse_eval_prints(tiny_bert, scored_pairs, tmp_path):
    steps = []
    found = cse.evaluate(tiny_bert, ["sts", "geometry"], scored_pairs, progress=lambda *step: steps.append(step))
    printed = call("eval", tiny_bert, "--suite", "sts", "--suite", "geometry", "--data", scored_pairs, "--json")
    assert json.loads(json.dumps(found.to_dict())) == printed
    assert found.reports["sts"].rows[0]["pairs"] == 40
    assert -100 <= found.reports["sts"].rows[0]["spearman"] <= 100
    assert steps[0] == (0, steps[-1][1])
    assert steps[-1][0] == steps[-1][1] > 60
    run = tmp_path / "run"
    shutil.copytree(tiny_bert, run / "best")
    assert cse.evaluate(str(run), data=str(scored_pairs)).model == str(run / "best")


def test_evaluate_accepts_suite_options_and_encoder_objects(tiny_bert, scored_pairs, sample_rows, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(sample_rows[:200]) + "\n", encoding="utf8")
    found = cse.evaluate(tiny_bert, "halves", corpus, options={"halves": {"limit": 20}})
    assert found.reports["halves"].rows[0]["sentences"] == 20
    encoder = Encoder(tiny_bert, pooler="avg", device="cpu")
    again = cse.evaluate(encoder, "halves", corpus, options={"halves": {"limit": 20}})
    assert again.reports["halves"].rows == found.reports["halves"].rows
    assert again.precision == "fp32"

    class Other:
        def encode(self, texts, *, batch_size=64, progress=None):
            return encoder.encode(texts, batch_size=batch_size, progress=progress)

    plain = cse.evaluate(Other(), data=scored_pairs)
    assert (plain.model, plain.pooling, plain.notes) == ("Other", "", [])
    assert plain.reports["sts"].rows == cse.evaluate(encoder, data=scored_pairs).reports["sts"].rows


def test_compare_returns_what_cse_compare_prints(tiny_bert, other, scored_pairs):
    found = cse.compare(tiny_bert, other, data=scored_pairs)
    printed = call("compare", tiny_bert, other, "--data", scored_pairs, "--json")
    assert json.loads(json.dumps(found.tasks)) == printed["comparisons"][0]["tasks"]
    (task,) = found.tasks
    assert (found.a, found.b, found.seeds) == (str(tiny_bert), str(other), False)
    assert task["mean"] == pytest.approx(task["b"] - task["a"])
    assert task["low"] <= task["mean"] <= task["high"]
    assert task["verdict"] in ("better", "worse", "cannot tell")
    scores = [cse.evaluate(model, data=scored_pairs).reports["sts"].rows[0]["spearman"] for model in (tiny_bert, other)]
    assert [task["a"], task["b"]] == pytest.approx(scores)
    same = cse.compare(tiny_bert, str(tiny_bert), "geometry", scored_pairs)  # the same model on both sides
    assert {record["mean"] for record in same.tasks} == {0.0}
    assert "p" not in same.tasks[0]


def test_compare_takes_one_checkpoint_per_seed_on_each_side(tiny_bert, other, scored_pairs):
    a, b = Encoder(tiny_bert, device="cpu"), Encoder(other, device="cpu")
    found = cse.compare([a, b], [b, a], data=scored_pairs)
    sides = (f"{tiny_bert},{other}", f"{other},{tiny_bert}")
    printed = call("compare", *sides, "--seeds", "--data", scored_pairs, "--json")
    assert found.seeds
    expected = printed["comparisons"][0]["tasks"]
    assert found.tasks[0]["mean"] == pytest.approx(expected[0]["mean"], abs=1e-9)
    assert found.tasks[0]["p_holm"] == pytest.approx(expected[0]["p_holm"], abs=1e-6)
    for sides in (([a, b], [b]), ([a], [b]), ([a, b], b)):
        refuses("same number of checkpoints", cse.compare, *sides, data=scored_pairs)


def test_evaluate_refuses_invalid_arguments(tiny_bert, scored_pairs, tmp_path):
    for arguments, more, message in (
        ((tiny_bert, "stss"), {}, "--suite: 'stss' is unknown"),
        ((tiny_bert, "halves"), {"options": {"halves": {"limits": 3}}}, "no such option"),
        ((tiny_bert, "sts"), {"options": {"halves": {"limit": 3}}}, "not among the suites"),
        ((3,), {}, "must be a folder, a name, or an encoder"),
        ((Encoder(tiny_bert, device="cpu"),), {"pooler": "cls"}, "has been loaded with its own values"),
        ((tmp_path / "none",), {}, "no such folder"),
    ):
        refuses(message, cse.evaluate, *arguments, data=scored_pairs, **more)


def test_importing_cse_does_not_import_torch():
    code = "import sys, cse; cse.evaluate; cse.compare; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
