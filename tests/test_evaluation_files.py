"""Tests of the files of scored pairs, corpora, queries and judgements: headers, ids, missing texts, compression."""

import gzip
import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from cse import Encoder, InputError
from cse.encoder.base import unit
from cse.evaluation.base import read_pairs
from cse.evaluation.options import RetrievalOptions
from cse.evaluation.retrieval import Retrieval, read_judgements, read_texts
from cse.evaluation.sts import find_tasks, load_tasks
from test_retrieval import write


def corpus(folder, *lines, name="corpus.jsonl"):
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf8")
    return folder


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"_id": "a", "text": ["one", "two"]}', "line 1: text: must be text or null, got a list"),
        ('{"_id": "a", "text": {"x": 1}}', "line 1: text: must be text or null, got an object"),
        ('{"_id": "a", "text": 3}', "line 1: text: must be text or null, got 3"),
        ('{"_id": "a", "title": [], "text": ""}', "line 1: title: must be text or null, got a list"),
        ('{"_id": null, "text": "a"}', "line 1: _id: must be text or an integer, got null"),
        ('{"_id": "a"}', "line 1: text: is missing"),
        ("[1]", "line 1: must be an object, got a list"),
        ('{"_id": "a", "text": ' + "[" * 5000 + "}", r"line 1: is not valid JSON \(.*\)"),
    ],
)
def test_a_text_that_is_no_text_is_refused(tmp_path, record, message):
    with pytest.raises(InputError, match=message):
        read_texts(corpus(tmp_path, record), "corpus")


@pytest.mark.parametrize("header", ["id\ttext", "_id\ttitle\ttext", "qid\tquery", "docid\tContents"])
def test_a_first_line_of_names_is_not_a_document(tmp_path, header):
    folder = corpus(tmp_path, header, "1\tone", "2\ttwo", name="corpus.tsv")
    assert read_texts(folder, "corpus") == {"1": "one", "2": "two"}
    assert len(read_texts(corpus(tmp_path, "1\ttext", "2\ttwo", name="corpus.tsv"), "corpus")) == 2


@pytest.mark.parametrize(
    "header",
    [
        "query-id\tcorpus-id\tscore",
        "query_id\tdoc_id\trelevance",
        "qid\t0\tpid\tlabel",
        "topic iter docid rel",
        "1 0 x 0",
    ],
)
def test_judgements_may_have_any_header_and_relevance_such_as_one_point_zero(tmp_path, header):
    iteration = "0\t" if len(header.split()) == 4 else ""
    lines = [f"q1\t{iteration}d1\t1.0", f"q1\t{iteration}d2\t0", f"q2\t{iteration}d1\t2"]
    (tmp_path / "qrels.tsv").write_text("\n".join([header, *lines]) + "\n")
    first = {"1": {"x": 0}} if header.startswith("1") else {}
    assert read_judgements(tmp_path / "qrels.tsv") == {**first, "q1": {"d1": 1, "d2": 0}, "q2": {"d1": 2}}


@pytest.mark.parametrize("value", ["0.5", "nan", "1e999", "high", None])
def test_errors_about_judgements_name_the_field_that_is_wrong(tmp_path, value):
    (tmp_path / "qrels.tsv").write_text(f"q0 d0 1\nq1 d1 {value or ''}\n")
    wrong = f"line 2: the relevance must be an integer, got '{value}'" if value else "line 2 must have three .* got 2"
    with pytest.raises(InputError, match=wrong):
        read_judgements(tmp_path / "qrels.tsv")


@pytest.mark.parametrize(
    "line",
    ["{n}\tA sentence.\tAnother.", "{m}\tA sentence.\tAnother.\t{s}", "{m}\t{s}\tA sentence.\tAnother.", "{m},a,b,{s}"],
)
def test_a_file_without_header_is_not_scored_on_a_column_of_ids(tmp_path, line):
    path = tmp_path / ("pairs.csv" if "," in line else "pairs.tsv")
    lines = [line.format(n=n, m=(7 * n) % 20 + 100, s=n % 5 + 0.5) for n in range(20)]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="the first column seems to hold ids, not scores; add a first line"):
        read_pairs(path)


@pytest.mark.parametrize(("name", "mark"), [("p.tsv", "\t"), ("p.csv", ",")])
def test_a_separator_inside_a_sentence_is_refused(tmp_path, name, mark):
    lines = [mark.join(["1.5", "one", "two"]), mark.join(["2", "a", "b", "three"])]
    for ordered, counts in ((lines, (4, 3)), (lines[::-1], (3, 4))):
        (tmp_path / name).write_text("\n".join(ordered) + "\n")
        with pytest.raises(
            InputError, match=f"line 2 has {counts[0]} fields separated by .*, but line 1 has {counts[1]}"
        ):
            read_pairs(tmp_path / name)


def test_compressed_files_are_read_and_other_formats_are_named(tmp_path):
    content = b"1\tone\ttwo\n2.5\tthree\tfour\n"
    (tmp_path / "pairs.tsv.gz").write_bytes(gzip.compress(content))
    assert read_pairs(tmp_path / "pairs.tsv.gz").left == ["one", "three"]
    (tmp_path / "stsb.dev.tsv.gz").write_bytes(gzip.compress(content))
    assert [task.key for task in find_tasks(tmp_path)] == ["stsb.dev"]
    assert len(load_tasks(tmp_path, allow_partial=True)[0][1].gold) == 2
    (tmp_path / "qrels.tsv.gz").write_bytes(gzip.compress(b"q d 1\n"))
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(b'{"_id": "d", "text": "t"}\n'))
    corpus(tmp_path, json.dumps({"_id": "q", "text": "t"}), name="queries.jsonl")
    assert Retrieval(RetrievalOptions(), str(tmp_path)).judgements == {"q": {"d": 1}}
    for name, damaged, message in [
        ("u.tsv", content.decode().encode("utf-16"), r"is UTF-16, not UTF-8; convert it"),
        ("g.tsv", gzip.compress(content), r"is gzip data"),
        ("l.tsv", b"1\t\xe9\tx\n", r"line 1 is not valid UTF-8 \(byte offset 2\); convert the file$"),
    ]:
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(InputError, match=message):
            read_pairs(tmp_path / name)


def test_a_text_or_title_of_null_is_missing(tmp_path):
    lines = ['{"_id": 7, "title": null, "text": "a b"}', '{"_id": "8", "title": "t", "text": null}']
    assert read_texts(corpus(tmp_path, *lines), "corpus") == {"7": "a b", "8": "t"}


def test_scores_that_are_integers_or_have_further_columns_are_read(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{n % 6}\tA sentence.\tAnother.\t{n}\n" for n in range(20)))
    assert read_pairs(path).gold.tolist() == [n % 6 for n in range(20)]
    path.write_text("score\tsentence1\tsentence2\n" + "".join(f"{n}\tone\ttwo\n" for n in range(20)))
    assert read_pairs(path).gold.tolist() == list(range(20))


@pytest.fixture
def benches(monkeypatch):
    """Makes the programs in benches/ importable."""
    folder = Path(__file__).resolve().parents[1] / "benches"
    if not folder.is_dir():
        pytest.skip("there is no benches/ folder")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.syspath_prepend(folder / "domain")


def test_converted_collections_can_be_read_by_the_retrieval_evaluation(tmp_path, benches, monkeypatch):
    (tmp_path / "MED.ALL").write_text(".I 1\n.W\na blood\n  cell .\n.I 2\n.W\nlungs\n")
    (tmp_path / "MED.QRY").write_text(".I 1\n.W\n cells\n.I 2\n.W\nnothing\n")
    (tmp_path / "MED.REL").write_text("1 0 2 1\n1 0 1 1\n")
    articles = "".join(f"*TEXT {n + 17:03d} 01/04/63 PAGE 020\n\nARTICLE\n\nNUMBER {n} .\n" for n in range(423))
    (tmp_path / "TIME.ALL").write_text(articles + "*STOP\n")
    (tmp_path / "TIME.QUE").write_text("*FIND    1\n\n FIRST\n\n*FIND    2\n\n SECOND\n*STOP\n")
    (tmp_path / "TIME.REL").write_text("1  3 425\n\n2\n")
    monkeypatch.setattr(sys, "argv", ["convert_collections.py", str(tmp_path), str(tmp_path / "out")])
    import_module("convert_collections").main()
    read = Retrieval(RetrievalOptions(), str(tmp_path / "out" / "medline"))
    assert read.documents == {"1": "a blood cell .", "2": "lungs"}
    assert read.queries == {"1": "cells"}
    assert read.judgements == {"1": {"1": 1, "2": 1}}
    read = Retrieval(RetrievalOptions(), str(tmp_path / "out" / "time"))
    assert len(read.documents) == 423
    assert read.documents["371"] == "ARTICLE NUMBER 370 ."
    assert read.documents["425"] == "ARTICLE NUMBER 422 ."
    assert read.judgements == {"1": {"3": 1, "425": 1}}


def test_scores_equal_those_of_the_retrieval_evaluation(tmp_path, benches, sample_rows, tiny_bert):
    pytest.importorskip("bm25s")
    domain_scores = import_module("domain_scores")
    documents = [(f"d{n}", "", row) for n, row in enumerate(sample_rows[:120])]
    queries = {f"q{n}": sample_rows[n] for n in (3, 9)}
    folder = write(tmp_path / "toy", documents, queries, {"q3": {"d3": 1}, "q9": {"d10": 1}})
    collection, encoder = domain_scores.Collection(folder), Encoder(tiny_bert, pooler="avg", device="cpu")
    queries, documents = (unit(encoder.encode(texts)) for texts in (collection.queries, collection.documents))
    figures = domain_scores.judged(collection, queries @ documents.T)
    row = Retrieval(RetrievalOptions(), str(folder))(encoder).rows[0]
    assert np.mean(figures["ndcg"]) == pytest.approx(row["ndcg@10"], abs=1e-3)
    assert np.mean(figures["recall"]) == pytest.approx(row["recall@100"], abs=1e-3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dev.csv", "score;sentence1;sentence2\n1;a b;c\n2;d;e\n", "its columns are separated by ';', not by commas"),
        ("dev.tsv", "1;a b;c\n2;d;e\n", "its columns are separated by ';', not by tabs; save it with tabs"),
        ("dev.jsonl", '{"score": 1, "sentence1": "a", "sentence2": "b"}\n', "is a file of JSON objects; write score"),
    ],
)
def test_scored_pairs_in_another_form_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf8")
    with pytest.raises(InputError, match=message):
        read_pairs(tmp_path / name)
