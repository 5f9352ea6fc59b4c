"""Tests that a saved model has the same scores in mteb and in cse, with small tasks held in memory."""

import numpy as np
import pytest
from click.testing import CliRunner
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer

from cse import Encoder, InputError, train
from cse.cli import cli
from cse.evaluation.base import Pairs
from cse.evaluation.run import open_suites
from cse.evaluation.sts import score_pairs
from sentence_models import normalize, pooling, sentence_model
from test_prompts import retrieval_folder
from tiny import config_of_eight_steps

mteb = pytest.importorskip("mteb", reason="mteb is not installed: pip install mteb")

LEFT = ["the cat sat on the mat", "dogs run in the park", "snow in winter", "a river in spring", "the old town hall"]
RIGHT = ["a cat on a mat", "the park was closed", "ice and snow", "the mat of the cat", "the hall of the old town"]
SCORES = [4.0, 2.0, 3.5, 0.5, 5.0]
ABOUT = {
    "description": "Pairs of a test.",
    "dataset": {"path": "none", "revision": "none"},
    "eval_langs": ["eng-Latn"],
    "date": ("2024-01-01", "2024-01-01"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tiny_bert, short_corpus):
    """The folder of a model that has prompts for queries and documents and was trained for two steps."""
    folder = tmp_path_factory.mktemp("mteb")
    prompts = {"query": "find : ", "document": "text : "}
    sentence_model(folder / "model", tiny_bert, modules=[pooling("mean"), normalize], prompts=prompts)
    config = config_of_eight_steps(short_corpus, folder / "model", folder / "runs", batch_size=4, max_steps=2)
    return train(config).folder / "best"


def local(kind, metric, data):
    """A task of mteb with the given data."""

    class Local(getattr(mteb.abstasks, f"AbsTask{kind}")):
        metadata = mteb.TaskMetadata(type=kind, name=f"Local{kind}", main_score=metric, **ABOUT)
        min_score, max_score = 0, 5

        def load_data(self, **_):
            self.dataset, self.data_loaded = data, True

    return Local()


def local_sts():
    rows = {"sentence1": LEFT, "sentence2": RIGHT, "score": SCORES}
    return local("STS", "cosine_spearman", DatasetDict({"test": Dataset.from_dict(rows)}))


def local_retrieval(texts, queries, relevant):
    corpus = Dataset.from_list([{"id": key, "text": text, "title": ""} for key, text in texts.items()])
    asked = Dataset.from_list([{"id": key, "text": text} for key, text in queries.items()])
    data = {"corpus": corpus, "queries": asked, "relevant_docs": relevant, "top_ranked": None}
    return local("Retrieval", "mrr_at_10", {"default": {"test": data}})


def scores_under_mteb(model, task):
    result = mteb.evaluate(model, tasks=[task], cache=None, co2_tracker=False, show_progress_bar=False)
    return result.task_results[0].scores["test"][0]


def loaded(saved):
    return SentenceTransformer(str(saved), device="cpu")


def test_retrieval_scores_in_cse_equal_those_in_mteb(saved, tmp_path):
    texts, queries = retrieval_folder(tmp_path / "set")
    found = scores_under_mteb(loaded(saved), local_retrieval(texts, queries, {"q1": {"d1": 1}, "q2": {"d4": 1}}))
    row = open_suites(["retrieval"], str(tmp_path / "set"))["retrieval"](Encoder(saved, device="cpu")).rows[0]
    for theirs, ours in (("ndcg_at_10", "ndcg@10"), ("mrr_at_10", "mrr@10")):
        assert row[ours] == pytest.approx(100 * found[theirs], abs=1e-2)


def test_sts_scores_in_cse_equal_those_in_mteb(saved):
    encoder = Encoder(saved, device="cpu")
    found = scores_under_mteb(loaded(saved), local_sts())["cosine_spearman"]
    assert score_pairs(encoder, Pairs(np.array(SCORES), LEFT, RIGHT)).spearman == pytest.approx(100 * found, abs=1e-3)
    assert scores_under_mteb(encoder, local_sts())["cosine_spearman"] == pytest.approx(found, abs=1e-6)


def test_the_removed_suite_is_named(saved):
    done = CliRunner().invoke(cli, ["eval", str(saved), "--suite", "mteb", "--device", "cpu"])
    assert isinstance(done.exception, InputError)
    assert "mteb was removed: mteb.evaluate takes a cse.Encoder; see docs/with.md" in str(done.exception)


def test_a_saved_encoder_is_loaded_by_sentence_transformers_and_holds_no_path(saved, tmp_path):
    encoder = Encoder(saved, device="cpu")
    encoder.save_pretrained(str(tmp_path / "copy"))
    np.testing.assert_allclose(loaded(tmp_path / "copy").encode(LEFT), encoder.encode(LEFT), atol=1e-6)
    for path in (tmp_path / "copy").rglob("*"):
        assert path.is_dir() or str(saved).encode() not in path.read_bytes()
    similar = encoder.similarity(encoder.encode(LEFT), encoder.encode(RIGHT))
    np.testing.assert_allclose(similar, encoder.similarity(LEFT, RIGHT), atol=1e-6)
    assert encoder.encode(LEFT, convert_to_tensor=True).shape == (5, 32)
    assert encoder.encode(LEFT, precision="ubinary").shape == (5, 4)
    assert callable(encoder.push_to_hub)
