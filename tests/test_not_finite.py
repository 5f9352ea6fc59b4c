"""Tests of encoders whose embeddings hold NaN or infinity, or are all equal, and of runs that end with such weights."""

import shutil
from itertools import count

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from commands import refuses, run_here
from cse import Encoder, TrainConfig, compare, evaluate, train
from cse.encoder.opening import open_encoder
from cse.errors import RunError
from cse.evaluation import sts
from cse.losses.contrastive import Contrastive
from cse.training.folder.find import list_checkpoints
from cse.training.folder.outputs import read_checkpoint
from runs import records_of, same_run
from runs import weights as last

WORD = "committee"
ROWS = ["the first row of this text has many words and ends here", "", f"a {WORD} of this kind", "one more row of it"]
FAULT = rf"the embedding of 'a {WORD} of this kind' holds NaN or infinity"


@pytest.fixture(scope="module")
def faulty(tmp_path_factory, tiny_bert):
    """A model whose weights are finite, but not the embeddings of texts with ``WORD``."""
    folder = tmp_path_factory.mktemp("faulty") / "model"
    model, tokenizer = AutoModel.from_pretrained(tiny_bert), AutoTokenizer.from_pretrained(tiny_bert)
    token = tokenizer.convert_tokens_to_ids(WORD)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[token] = 3e38 * torch.tensor([1.0, -1.0]).repeat(16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def corpus_of(folder, rows):
    path = folder / "corpus.txt"
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf8")
    return path


@pytest.fixture
def corpus(tmp_path):
    return corpus_of(tmp_path, ROWS)


def same_weights(first, second):
    assert all(torch.equal(values, last(second)[name]) for name, values in last(first).items())


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"5\t{ROWS[0]}\t{ROWS[3]}\n3\t{ROWS[2]}\t{ROWS[0]}\n1\ta house\tthe sea\n", encoding="utf8")
    return path


def test_an_encoder_names_the_text_whose_embedding_is_not_finite(faulty):
    encoder = Encoder(faulty, device="cpu")
    assert np.isfinite(encoder.encode([ROWS[0], *ROWS[3:]])).all()
    for settings in ({}, {"device": "cpu"}):  # of cse, and of sentence-transformers
        refuses(rf"{faulty}: {FAULT}; use another model", encoder.encode, ROWS, **settings)
    refuses(FAULT, encoder.encode, ROWS, normalize_embeddings=True, precision="int8")


def test_a_static_encoder_of_nan_is_refused_where_it_is_loaded(tmp_path, tiny_bert):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = AutoTokenizer.from_pretrained(tiny_bert).backend_tokenizer
    values = np.ones((2000, 4), dtype=np.float32)
    values[:, 1] = np.nan
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=values)]).save(str(tmp_path / "nan"))
    refuses("holds NaN or infinity", open_encoder, str(tmp_path / "nan"))


def test_no_command_that_encodes_accepts_embeddings_that_are_not_finite(tmp_path, faulty, corpus, cse_here):
    message = f"row 3: {faulty}: the embedding of 'a {WORD} of this kind' holds NaN or infinity"
    for flags in ("-o o.npy", "-o o.safetensors", "-o o.parquet", "", "-o o --parts"):
        done = cse_here("encode", faulty, corpus, *flags.split(), cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
        assert not any((tmp_path / f"o.{suffix}").exists() for suffix in ("npy", "safetensors", "parquet"))


def test_neither_export_nor_evaluation_accepts_embeddings_that_are_not_finite(
    tmp_path, faulty, corpus, pairs, tiny_bert, cse_here
):
    pytest.importorskip("model2vec")
    done = cse_here("export", faulty, "--static", "--corpus", corpus, "-o", "static", cwd=tmp_path)
    assert done.returncode == 2
    assert f"the embedding of '{WORD}' holds NaN or infinity" in done.stderr
    assert not (tmp_path / "static").exists()
    for function, models in ((evaluate, (faulty,)), (compare, (tiny_bert, faulty))):
        refuses(rf"{faulty}: {FAULT}", function, *models, data=pairs, device="cpu")

    class Other:
        def encode(self, texts):
            return np.where(np.arange(len(texts))[:, None] == 2, np.inf, np.ones((len(texts), 3)))

    refuses(r"encoder: the embedding of '.*' holds NaN or infinity", evaluate, Other(), data=pairs)


def test_a_score_that_cannot_be_computed_has_a_note(pairs):
    class Orthogonal:
        def encode(self, texts):
            return np.eye(len(texts))

    result = evaluate(Orthogonal(), data=pairs).to_dict()["suites"]["sts"]
    assert np.isnan(result["tasks"][0]["spearman"])
    assert any("could not be computed, because all cosines are equal" in note for note in result["notes"])


def config(tmp_path, corpus, model, **values):
    values = {"batch_size": 8, "max_steps": 8, "eval_every": 0, "device": "cpu", "pooler": "avg", "seed": 3, **values}
    values |= {"lr_scheduler": "constant", "threads": 1, "name": "run", "precision": "fp32"}
    return TrainConfig(corpus=corpus, output=tmp_path / "runs", model=str(model), **values)


@pytest.mark.parametrize("data", ["held-out", "dev", "none"])
def test_training_names_a_model_whose_embeddings_are_not_finite_before_the_first_step(
    tmp_path, faulty, short_rows, pairs, data
):
    rows = short_rows if data != "none" else [" ".join(row.split()[:6]) for row in short_rows]
    path = corpus_of(tmp_path, [f"a {WORD} of this kind", *rows])
    values = config(tmp_path, path, faulty, dev=[str(pairs)] if data == "dev" else [])
    refuses(rf"{faulty}: {FAULT}; use another model", train, values)
    assert not (tmp_path / "runs" / "run").exists()


def test_a_row_whose_embedding_is_not_finite_is_named_and_not_the_learning_rate(tmp_path, faulty, short_rows, pairs):
    """The row is not among the first rows, which are encoded before training."""
    pairs.write_text("5\tone row\tanother row\n1\ta house\tthe sea\n", encoding="utf8")
    rows = [row for row in short_rows if WORD not in row.lower()][:87]
    path = corpus_of(tmp_path, [*rows, f"a {WORD} of this kind"])
    values = config(tmp_path, path, faulty, dev=[str(pairs)], epochs=1, max_steps=None)
    assert "--lr" not in refuses(rf"not finite at step \d+ .*{FAULT}", train, values, error=RunError)


def test_an_encoder_whose_embeddings_are_all_equal_is_not_trained(tmp_path, tiny_bert, short_corpus):
    model = AutoModel.from_pretrained(tiny_bert)
    with torch.no_grad():
        last = model.encoder.layer[-1].output.LayerNorm
        last.weight.zero_()
        last.bias.normal_()
    model.save_pretrained(tmp_path / "constant")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "constant")
    values = config(tmp_path, short_corpus, tmp_path / "constant")
    refuses(r"--model .*constant: gives 64 different sentences the same vector", train, values)


@pytest.fixture
def explode(monkeypatch):
    """A function after which the loss of one step, counted from 1, is infinite."""
    whole = Contrastive.forward

    def at(number):
        def forward(term, views, step):
            loss = whole(term, views, step)
            return loss * float("inf") if step.number == number - 1 else loss

        monkeypatch.setattr(Contrastive, "forward", forward)

    return at


def test_the_last_finite_step_is_saved_and_can_be_resumed(tmp_path, tiny_bert, short_corpus, explode):
    """The loss of step 6 is infinite, later ones are not; the log is written after step 8."""
    whole = train(config(tmp_path / "whole", short_corpus, tiny_bert, max_steps=5))
    explode(6)
    match = (
        r"at step 6 .*run/last holds the encoder of step 5; to train it further at a lower rate: --model \S+/last --lr "
    )
    refuses(match, train, config(tmp_path, short_corpus, tiny_bert), error=RunError)
    run = tmp_path / "runs" / "run"
    same_weights(whole.folder, run)
    saved, expected = (read_checkpoint(*list_checkpoints(folder)) for folder in (run, whole.folder))
    for part in ("weights", "optimizer"):
        for name, values in expected.tensors[part].items():
            assert torch.equal(values, saved.tensors[part][name]), name
    for name in ("step", "sentences", "viewed"):
        assert saved.state[name] == expected.state[name]
    assert [record["step"] for record in records_of(run)[0]] == [1, 2, 3, 4, 5, 6]
    assert train(config(tmp_path, short_corpus, tiny_bert, max_steps=5), resume=run).steps == 5
    assert (run / "result.json").exists()
    same_weights(whole.folder, run)


def test_a_run_resumed_after_a_loss_that_was_not_finite_equals_one_without_it(
    tmp_path, tiny_bert, short_corpus, explode
):
    """The loss of step 6 is infinite once; by step 8, when the log is written, two more steps have drawn dropout."""
    whole = train(config(tmp_path / "whole", short_corpus, tiny_bert, max_steps=10))
    explode(6)
    refuses("at step 6", train, config(tmp_path, short_corpus, tiny_bert, max_steps=10), error=RunError)
    explode(0)
    result = train(config(tmp_path, short_corpus, tiny_bert, max_steps=10), resume=tmp_path / "runs" / "run")
    same_run(whole.folder, result.folder)


def test_if_the_first_loss_is_not_finite_the_model_is_named_and_nothing_is_left(
    tmp_path, tiny_bert, short_corpus, explode
):
    explode(1)
    message = rf"not finite at step 1 .*the same as in {tiny_bert}; use another"
    assert "--lr" not in refuses(message, train, config(tmp_path, short_corpus, tiny_bert), error=RunError)
    assert not (tmp_path / "runs" / "run").exists()


@pytest.mark.parametrize(("data", "steps"), [("held-out", 1), ("dev", 1), ("none", 1), ("held-out", 3)])
def test_best_can_be_loaded_after_weights_that_are_of_no_use(tmp_path, tiny_bert, short_rows, pairs, data, steps):
    """The update of step 1 is finite and far too large."""
    path = corpus_of(tmp_path, short_rows if data != "none" else [" ".join(row.split()[:6]) for row in short_rows])
    settings = config(tmp_path, path, tiny_bert, dev=[str(pairs)] if data == "dev" else [], max_steps=steps, lr=3e38)
    if steps == 1:
        notes = " ".join(train(settings).notes)
        assert {"held-out": "collapsed", "dev": "could not be computed", "none": "are not finite"}[data] in notes
        assert "lower --lr" in notes
    else:
        message = "step 1 give embeddings that are not finite, and are not saved; lower --lr"
        refuses(message, train, settings, error=RunError)
        assert not (tmp_path / "runs" / "run" / "last").exists()
    best = Encoder(tmp_path / "runs" / "run" / "best", device="cpu")
    assert np.isfinite(best.encode(short_rows[:5])).all()


def test_a_run_with_a_development_set_speaks_of_collapse(tmp_path, tiny_bert, short_corpus, pairs, monkeypatch):
    scored, calls = sts.score_vectors, count()

    def collapse(*arguments):
        score = scored(*arguments)
        return score if next(calls) == 0 else type(score)(**{**vars(score), "uniformity": -0.001})

    monkeypatch.setattr(sts, "score_vectors", collapse)
    notes = train(config(tmp_path, short_corpus, tiny_bert, max_steps=1, dev=[str(pairs)])).notes
    assert any("The embeddings collapsed (at step 1); lower --lr or raise --temperature" in note for note in notes)


def test_a_development_set_whose_cosines_are_all_equal_selects_no_step(tmp_path, tiny_bert, short_corpus):
    path = tmp_path / "same.tsv"
    path.write_text("5\tone text\tone text\n3\tanother\tanother\n1\ta house\ta house\n", encoding="utf8")
    result = train(config(tmp_path, short_corpus, tiny_bert, dev=[str(path)], max_steps=2, eval_every=1))
    assert result.best_step == 0
    assert result.notes == [
        "Spearman's correlation could not be computed, because all cosines are equal, at any step, so none was "
        "selected, and best/ is the model before training."
    ]


@pytest.mark.parametrize(
    ("suite", "part"), [("sts", "pairs.tsv: nan is a score"), ("geometry", "alignment: nan is a score")]
)
def test_compare_explains_a_score_that_is_not_a_number(tmp_path, tiny_bert, suite, part):
    path = tmp_path / "pairs.tsv"
    rows = "3\tone text\tone text\n2\tanother\tanother\n1\ta house\ta house\n"
    path.write_text(rows, encoding="utf8")
    shutil.copytree(tiny_bert, tmp_path / "other")
    done = run_here("compare", tiny_bert, tmp_path / "other", "--data", path, "--suite", suite)
    assert done.returncode == 0, done.stderr
    assert "nan" in done.stdout.partition("nan is a score")[0]
    assert part in " ".join(done.stdout.split())
