"""Methods registered outside the package can be used by name in training and evaluation."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cse import InputError
from cse.augment import AUGMENTATIONS
from cse.augment.base import Paired, Pairing
from cse.cli import cli
from cse.evaluation import EVALUATIONS
from cse.evaluation.base import Evaluation, Report
from cse.hooks import FEATURE_AUGMENTATIONS
from cse.hooks.base import FeatureMethod
from cse.registry import Registry, import_methods
from runs import records_of


class Shouted(Pairing):
    """The positive is the sentence with its last word repeated; rows with odd row numbers have no positive."""

    @dataclass(frozen=True)
    class Options:
        times: int = 1

    summary = "repeats the last word"

    def __call__(self, texts, rows, draws):
        positives = [text + " " + " ".join(text.split()[-1:] * self.options.times) for text in texts]
        return Paired(list(texts), positives, rows % 2 == 0)


class Length(Evaluation):
    """Reports the mean norm of the embeddings of two texts."""

    @dataclass(frozen=True)
    class Options:
        words: int = 3

    def work(self):
        return 2

    def __call__(self, encoder, progress=None):
        norms = np.linalg.norm(encoder.encode(["word " * self.options.words, "other"], progress=progress), axis=1)
        return Report([{"task": "length", "norm": float(norms.mean()), "words": self.options.words}])


class Noise(FeatureMethod):
    """Adds random numbers from ``step.uniform`` to the embeddings of each view that has as many rows as the batch."""

    def forward(self, views, step):
        sizes = {name: z.shape[1] for name, z in views.embeddings.items() if len(z) == len(step.rows)}
        noisy = {name: views[name] + step.uniform("noise", size) for name, size in sizes.items()}
        return views.replace(embeddings={**views.embeddings, **noisy})


@pytest.fixture(autouse=True)
def examples(registered):
    AUGMENTATIONS.register("shouted", Shouted)
    FEATURE_AUGMENTATIONS.register("noise", Noise)
    EVALUATIONS.register("length", Length)


@pytest.fixture
def run(short_corpus, monkeypatch):
    """A function that runs a command in this process, where the methods are registered, and returns its JSON output."""
    monkeypatch.chdir(short_corpus.parent)

    def call(*arguments):
        done = CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout.splitlines()[-1])

    return call


def log_of(result):
    return records_of(Path(result["folder"]))[0]


TRAIN = ("train", "--max-steps", 3, "--batch-size", 8, "--eval-every", 0, "--device", "cpu", "--json")


def test_registered_methods_take_part_in_training(run, tiny_bert, tmp_path):
    file = Path(__file__).parent / "helpers" / "user_methods.py"
    methods = ("--import", file, "--positive", "shouted", "--set", "shouted.times=3", "--negative", "repetition")
    methods += ("--loss", "focal", "--loss-term", "ball", "--model", tiny_bert, "-o", tmp_path)
    plain = log_of(run(*TRAIN, *methods))
    result = run(*TRAIN, *methods, "--feature-augmentation", "noise")
    assert "times = 3" in Path(result["folder"], "config.toml").read_text()
    log = log_of(result)
    assert len(log) == 3
    assert 0 < log[0]["masked/positive"] < 8
    assert log[0]["loss/contrastive"] != plain[0]["loss/contrastive"]  # the noise
    for record in log:
        assert "cos_syn" in record
        assert record["loss"] == pytest.approx(record["loss/contrastive"] + record["loss/ball"])
        assert record["loss/ball"] > 0


def test_a_registered_evaluation_runs_by_name(run, tiny_bert):
    value = run("eval", tiny_bert, "--suite", "length", "--set", "length.words=5", "--json")
    (row,) = value["suites"]["length"]["tasks"]
    assert row["words"] == 5
    assert row["norm"] > 0


def test_an_entry_point_is_found_by_name(monkeypatch):
    class Point:
        name = "shouted"

        def load(self):
            return Shouted

    monkeypatch.setattr("cse.registry.declared", lambda group: [Point()] if group == "cse.augmentations" else [])
    table = Registry("augmentation", "cse.augmentations", {"una": "cse.augment.una:UNA"})
    assert table.names() == ["shouted", "una"]
    assert table.get("shouted") is Shouted
    with pytest.raises(InputError, match="augmentation: 'odd' is unknown; choose one of shouted, una"):
        table.get("odd")


@pytest.mark.parametrize(
    ("code", "message"),
    [("x = 1\nprint(", "line 2: SyntaxError: '\\(' was never closed$"), ("x = 1\ny", "line 2: NameError: name 'y'")],
)
def test_an_error_in_an_imported_file_is_named_with_its_line(tmp_path, code, message):
    (tmp_path / "methods.py").write_text(code)
    with pytest.raises(InputError, match=message):
        import_methods(str(tmp_path / "methods.py"))
