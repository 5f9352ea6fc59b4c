"""Tests of ranking by cross-encoders, against CrossEncoder.rank of sentence-transformers."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder

from cse import Encoder, SearchIndex
from cse.errors import InputError
from cse.evaluation.retrieval import ndcg
from cse.models.cross_encoder import Reranker
from sentence_models import cross_encoder
from test_search import refused


@pytest.fixture(scope="module")
def cross(tmp_path_factory, tiny_bert):
    """The folder of a cross-encoder with random weights."""
    return cross_encoder(tmp_path_factory.mktemp("cross") / "model", tiny_bert)


@pytest.fixture(scope="module")
def index(tiny_bert, sample_rows):
    return SearchIndex.build(Encoder(tiny_bert, device="cpu"), sample_rows[:60])


def test_rows_are_ranked_as_by_rank_of_sentence_transformers(index, cross):
    queries, library = [text[:40] for text in index.texts([3, 7])], CrossEncoder(str(cross), device="cpu")
    found = index.search([*queries, ""], 20, rerank=30, reranker=Reranker(cross, device="cpu"))
    assert found[2] == []
    for query, hits, first in zip(queries, found, index.search(queries, 30), strict=False):
        expected = library.rank(query, [hit.text for hit in first], top_k=20)
        assert [hit.row for hit in hits] == [first[each["corpus_id"]].row for each in expected]
        np.testing.assert_allclose([hit.score for hit in hits], [each["score"] for each in expected], atol=1e-5)
        assert hits[0].score - hits[-1].score > 1e-3
        assert [hit.row for hit in hits] != [hit.row for hit in first[:20]]


def test_search_and_eval_rank_by_a_cross_encoder(tmp_path, index, cross, tiny_bert, cse):
    texts = index.texts(range(60))
    (tmp_path / "c.txt").write_text("\n".join(texts) + "\n", encoding="utf8")
    given = ["c.txt", "--query", texts[3], "--top", "5", "--rerank", cross, "--rerank-rows", "9", "--device", "cpu"]
    done = cse("search", tiny_bert, *given, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    reranker = Reranker(cross, device="cpu")
    (expected,) = index.search([texts[3]], 5, rerank=9, reranker=reranker)
    hits = json.loads(done.stdout)["queries"][0]["hits"]
    assert [hit["row"] for hit in hits] == [hit.row for hit in expected]
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)

    documents = {f"d{row:02}": text for row, text in enumerate(texts)}
    lines = {"corpus": documents, "queries": {f"q{row}": texts[row][:30] for row in (3, 7, 9)}}
    for name, rows in lines.items():
        (tmp_path / f"{name}.tsv").write_text("".join(f"{key}\t{text}\n" for key, text in rows.items()), "utf8")
    (tmp_path / "qrels.txt").write_text("".join(f"q{row} 0 d{row:02} 1\n" for row in (3, 7, 9)), "utf8")
    names = sorted(documents, reverse=True)
    ranked = SearchIndex.build(index.encoder, [documents[name] for name in names], ids=names)
    found = ranked.search(list(lines["queries"].values()), 60, rerank=60, reranker=reranker)
    scores = [ndcg([hit.id for hit in hits], {f"d{row:02}": 1}) for row, hits in zip((3, 7, 9), found, strict=True)]
    done = cse("eval", tiny_bert, "--suite", "retrieval", "--data", tmp_path, "--rerank", cross, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == f"{tiny_bert} --rerank {cross}"
    (row,) = json.loads(done.stdout)["suites"]["retrieval"]["tasks"]
    assert row["ndcg@10"] == pytest.approx(100 * np.mean(scores), abs=1e-6)
    refused(cse("search", tiny_bert, "c.txt", "--query", "a", "--rerank", tiny_bert, cwd=tmp_path), "--rerank")


def test_a_folder_that_is_unsafe_or_of_another_kind_is_refused(tmp_path, cross, tiny_bert, monkeypatch):
    with pytest.raises(InputError, match=r"^--rerank .*is not a CrossEncoder"):
        Reranker(tiny_bert)
    with pytest.raises(InputError, match=r"^--rescore .*no such folder"):
        Reranker("./none", flag="--rescore")
    monkeypatch.setattr("cse.models.resolve._within", lambda *_: TimeoutError())
    with pytest.raises(InputError, match=r"^--rerank toknes: .* on the hub; give the path of a folder"):
        Reranker("toknes")
    cross_encoder(tmp_path / "three", tiny_bert, labels=3)
    with pytest.raises(InputError, match="has 3 scores for a pair"):
        Reranker(tmp_path / "three", device="cpu")
    folder = tmp_path / "model"
    settings = json.loads((cross / "config_sentence_transformers.json").read_text())
    for name, change, message in [
        ("config_sentence_transformers.json", {**settings, "activation_fn": "torch.hub.load"}, "its activation"),
        ("modules.json", [{"idx": 0, "name": "0", "path": "", "type": "own_code.Scores"}], "the module own_code"),
    ]:
        folder.mkdir(exist_ok=True)
        for path in cross.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / name).write_text(json.dumps(change))
        with pytest.raises(InputError, match=message):
            Reranker(folder, device="cpu")
    for path in cross.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "model.safetensors").unlink()

    class Runs:
        def __reduce__(self):
            return print, ("run",)

    torch.save({"classifier.weight": Runs()}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="could run any command"):
        Reranker(folder, device="cpu")


def test_a_cross_encoder_without_the_weights_of_its_head_is_refused(tmp_path, tiny_bert):
    for path in tiny_bert.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"lack .* of the model's weights"):
        Reranker(tmp_path, device="cpu")
