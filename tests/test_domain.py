"""The benchmarks of training on documents: collections, scores and tables."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from cse import Encoder
from cse.encoder.base import unit
from cse.evaluation.retrieval import Retrieval, RetrievalOptions
from test_retrieval import write

BENCHES = Path(__file__).resolve().parents[1] / "benches"
DOMAIN = BENCHES / "domain"
if not BENCHES.is_dir():
    pytest.skip("there is no benches/ folder", allow_module_level=True)
sys.path[:0] = [str(BENCHES), str(DOMAIN)]

convert_collections, domain_scores = import_module("convert_collections"), import_module("domain_scores")


def test_converted_collections_can_be_read_by_the_retrieval_evaluation(tmp_path):
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


def test_scores_equal_those_of_the_retrieval_evaluation(tmp_path, sample_rows, tiny_bert):
    pytest.importorskip("bm25s")
    documents = [(f"d{n}", "", row) for n, row in enumerate(sample_rows[:120])]
    queries = {f"q{n}": sample_rows[n] for n in (3, 9)}
    folder = write(tmp_path / "toy", documents, queries, {"q3": {"d3": 1}, "q9": {"d10": 1}})
    collection, encoder = domain_scores.Collection(folder), Encoder(tiny_bert, pooler="avg", device="cpu")
    queries, documents = (unit(encoder.encode(texts)) for texts in (collection.queries, collection.documents))
    figures = domain_scores.judged(collection, queries @ documents.T)
    row = Retrieval(RetrievalOptions(), str(folder))(encoder).rows[0]
    assert np.mean(figures["ndcg"]) == pytest.approx(row["ndcg@10"], abs=1e-3)
    assert np.mean(figures["recall"]) == pytest.approx(row["recall@100"], abs=1e-3)
