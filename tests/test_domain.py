"""The benchmarks of training on documents: collections, scores and tables."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

BENCHES = Path(__file__).resolve().parents[1] / "benches"
DOMAIN = BENCHES / "domain"
if not BENCHES.is_dir():
    pytest.skip("there is no benches/ folder", allow_module_level=True)
sys.path[:0] = [str(BENCHES), str(DOMAIN)]

convert_collections, domain_scores = import_module("convert_collections"), import_module("domain_scores")


def test_converted_collections_can_be_read_by_the_retrieval_evaluation(tmp_path):
    from cse.evaluation.retrieval import Retrieval, RetrievalOptions

    (tmp_path / "MED.ALL").write_text(".I 1\n.W\na blood\n  cell .\n.I 2\n.W\nlungs\n")
    (tmp_path / "MED.QRY").write_text(".I 1\n.W\n cells\n.I 2\n.W\nnothing\n")
    (tmp_path / "MED.REL").write_text("1 0 2 1\n1 0 1 1\n")
    articles = "".join(f"*TEXT {n + 17:03d} 01/04/63 PAGE 020\n\nARTICLE\n\nNUMBER {n} .\n" for n in range(423))
    (tmp_path / "TIME.ALL").write_text(articles + "*STOP\n")
    (tmp_path / "TIME.QUE").write_text("*FIND    1\n\n FIRST\n\n*FIND    2\n\n SECOND\n*STOP\n")
    (tmp_path / "TIME.REL").write_text("1  3 425\n\n2\n")
    sys.argv = ["convert_collections.py", str(tmp_path), str(tmp_path / "out")]
    convert_collections.main()
    read = Retrieval(RetrievalOptions(), str(tmp_path / "out" / "medline"))
    assert read.documents == {"1": "a blood cell .", "2": "lungs"}
    assert read.queries == {"1": "cells"}
    assert read.judgements == {"1": {"1": 1, "2": 1}}
    read = Retrieval(RetrievalOptions(), str(tmp_path / "out" / "time"))
    assert len(read.documents) == 423
    assert read.documents["371"] == "ARTICLE NUMBER 370 ."
    assert read.documents["425"] == "ARTICLE NUMBER 422 ."
    assert read.judgements == {"1": {"3": 1, "425": 1}}


class Hashed:
    """An encoder that sums random word vectors, which depend only on the seed and the word."""

    def __init__(self, seed):
        self.seed = seed

    def encode(self, texts, **_):
        def word(each):
            return np.random.default_rng([self.seed, *each.encode()]).standard_normal(16)

        return np.array([sum(word(each) for each in text.split()) for text in texts])


@pytest.fixture
def collection(tmp_path, sample_rows):
    folder = tmp_path / "toy"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{n}", "text": row} for n, row in enumerate(sample_rows[:120])]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / "queries.jsonl").write_text(
        "\n".join(json.dumps({"_id": f"q{n}", "text": sample_rows[n]}) for n in (3, 9))
    )
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq3\td3\t1\nq9\td10\t1\n")
    return domain_scores.Collection(folder)


def test_scores_equal_those_of_the_retrieval_evaluation(collection):
    from cse.encoder.base import unit
    from cse.evaluation.retrieval import Retrieval, RetrievalOptions

    pytest.importorskip("bm25s")
    encoder = Hashed(0)
    queries, documents = (unit(encoder.encode(texts)) for texts in (collection.queries, collection.documents))
    figures = domain_scores.judged(collection, queries @ documents.T)
    row = Retrieval(RetrievalOptions(), str(collection.folder))(encoder).rows[0]
    assert np.mean(figures["ndcg"]) == pytest.approx(row["ndcg@10"], abs=1e-3)
    assert np.mean(figures["recall"]) == pytest.approx(row["recall@100"], abs=1e-3)


def test_training_data_for_the_methods_compared_with_cse_follow_their_definitions():
    peers = import_module("adapt_peers")
    rows = [f"{n} one two three four five six seven eight nine" for n in range(400)]
    damaged = peers.damaged(rows, 0)
    assert damaged["original"] == rows
    counts = np.array([len(text.split()) for text in damaged["damaged"]])
    assert counts.min() >= 1
    assert abs(counts.mean() / 10 - (1 - peers.DELETED)) < 0.03
    kept = [set(text.split()) <= set(row.split()) for text, row in zip(damaged["damaged"], rows, strict=True)]
    assert all(kept)
    pairs = peers.tension_pairs(rows, 0)
    equal = np.mean([a == b for a, b in zip(pairs["first"], pairs["second"], strict=True)])
    assert abs(equal - 1 / peers.EQUAL_PAIRS) < 0.05
    assert peers.equal_pairs(rows, 0) == {"anchor": rows, "positive": rows}
