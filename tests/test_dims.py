"""Embedding dimensions: the Matryoshka loss, truncated embeddings, and the dimensions that a saved model records."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from conftest import refuses
from cse import Encoder, train
from cse.evaluation.run import open_suites
from cse.losses.contrastive import contrastive_loss
from cse.training.setup import prepare
from cse.training.step.encode import Inputs, gathered_views
from cse.training.step.ranks import World
from cse.training.step.step import batch_step
from runs import first_batches
from sentence_models import sentence_model
from test_cli import refused
from test_modules import TEXTS, normalize, pooling
from test_prompts import retrieval_folder


@pytest.fixture
def config(run_config, tmp_path, sample_rows):
    (tmp_path / "few.txt").write_text("\n".join(sample_rows[:60]) + "\n", encoding="utf8")
    values = {"corpus": str(tmp_path / "few.txt"), "pooler": "avg", "max_steps": 2, "eval_every": 0}
    return run_config.replace(loss_terms=("matryoshka",), dims="16,8,32", **values)


@pytest.fixture(scope="module")
def unit_model(tmp_path_factory, tiny_bert):
    folder = tmp_path_factory.mktemp("unit") / "model"
    sentence_model(folder, tiny_bert, modules=[pooling("mean"), normalize])
    return folder


def test_matryoshka_loss_is_the_sum_of_contrastive_losses_of_truncated_embeddings(config):
    run = prepare(config.replace(loss="focal"))
    state, inputs = run.state, Inputs(first_batches(run)[0], "cpu")
    for module in state.modules().values():
        module.eval()
    with torch.no_grad():
        views = gathered_views(state, inputs, run.forward, World())
        found = state.terms["matryoshka"](views, batch_step(state, inputs, run.forward, World()))
        settings = {"logits": "focal", "temperature": run.settings.loss.temperature, "keys": views.keys}
        expected = sum(
            contrastive_loss({name: z[:, :size] for name, z in views.embeddings.items()}, **settings)
            for size in (16, 8)  # the run's contrastive loss covers all 32 dimensions
        )
    torch.testing.assert_close(found, expected)


def test_a_saved_model_records_its_dimensions(config):
    best = train(config).folder / "best"
    assert json.loads((best / "config_sentence_transformers.json").read_text())["cse_dims"] == [32, 16, 8]
    card = (best / "README.md").read_text()
    assert "trained to be truncated to their first 16, 8 dimensions" in card
    assert "truncate_dim=8" in card
    theirs = SentenceTransformer(str(best), truncate_dim=8, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(Encoder(best, dims=8, device="cpu").encode(TEXTS), theirs, atol=1e-5)
    # A run without the Matryoshka loss does not record dimensions, even if it starts from this model.
    again = train(config.replace(model=str(best), loss_terms=(), options={}, name="again")).folder / "best"
    assert "cse_dims" not in json.loads((again / "config_sentence_transformers.json").read_text())
    assert "Matryoshka" not in (again / "README.md").read_text()


def test_truncated_embeddings_of_unit_length_are_normalised_again(unit_model):
    whole = Encoder(unit_model, device="cpu").encode(TEXTS)
    cut = Encoder(unit_model, device="cpu", dims=5)
    assert cut.embedding_dim == 5
    expected = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(cut.encode(TEXTS), expected, atol=1e-6)
    assert cut.encode([" "]).shape == (1, 5)


def test_a_stored_truncate_dim_is_applied_as_in_sentence_transformers(tmp_path, tiny_bert):
    folder = tmp_path / "model"
    sentence_model(folder, tiny_bert, modules=[pooling("mean"), normalize], truncate_dim=12)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    ours = Encoder(folder, device="cpu").encode(TEXTS)
    assert ours.shape == (4, 12)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert Encoder(folder, device="cpu", dims=32).encode(TEXTS).shape == (4, 32)


def test_scores_with_dims_equal_those_of_truncated_encoders(unit_model, tmp_path, cse):
    retrieval_folder(tmp_path / "set")
    for dims in (4, 2):
        done = cse("eval", unit_model, "--suite", "retrieval", "--data", tmp_path / "set", "--dims", dims, "--json")
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(done.stdout)["suites"]["retrieval"]["tasks"]
        encoder = Encoder(unit_model, device="cpu", dims=dims)
        (expected,) = open_suites(["retrieval"], str(tmp_path / "set"))["retrieval"](encoder).rows
        for name, value in expected.items():
            assert row[name] == (pytest.approx(value, rel=1e-5, abs=1e-6) if isinstance(value, float) else value)


def test_commands_refuse_invalid_dimensions(unit_model, tmp_path, cse):
    rows = "score\tsentence1\tsentence2\n5\tthe cat sat\tthe cat sat .\n1\tdogs run\tsnow in winter\n"
    (tmp_path / "few.tsv").write_text(rows, encoding="utf8")
    scored, encoded = ("--data", "few.tsv"), ("few.tsv", "-o", "x.npy", "--column", "sentence1")
    for name, arguments, dims, message in (
        ("eval", scored, "64", "--dims 64: the embeddings of this model have 32"),
        ("eval", scored, "16,8", "--dims"),
        ("encode", encoded, "33", "--dims 33: the embeddings of this model have"),
        ("encode", encoded, "0", "--dims 0"),
    ):
        refused(cse(name, unit_model, *arguments, "--dims", dims, cwd=tmp_path), message)


def test_training_refuses_invalid_dimensions(config):
    for dims, message in (("64,8", "--dims 64: the embeddings have 32 dimensions"), ("8,-1", "--dims 8,-1 must be")):
        refuses(message, prepare, config.replace(options={"matryoshka": {"dims": dims}}))
    refuses("--dims belongs to a contrastive loss", config.replace, loss="mlm")
