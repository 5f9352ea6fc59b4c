"""The suite retrieval with options of search, and BM25 alone, against brute force in float64 and ``SearchIndex``."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy.sparse import csr_matrix
from sentence_transformers import SentenceTransformer

from cse import Encoder, InputError, SearchIndex, compare, evaluate
from cse.cli import cli
from cse.evaluation.base import Adapted
from cse.evaluation.ranking import ByWords, FromRun, System, read_run, write_run
from cse.evaluation.retrieval import (
    METRICS,
    PUBLISHED,
    Retrieval,
    RetrievalOptions,
    ndcg,
    rank_documents,
    read_judgements,
)
from cse.search.bm25 import terms_for
from cse.search.fusion import Fusion
from test_search import refused

DOCUMENTS, QUERIES = 60, 9


def command(*arguments):
    """Runs a command in this process."""
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture
def collection(tmp_path, sample_rows):
    """A folder in BEIR's layout with titles and graded judgements, its documents as BEIR joins them, and the rest."""
    titles = {f"d{n * 7 % 97:02}": " ".join(sample_rows[n].split()[:3]) for n in range(DOCUMENTS)}
    texts = {name: f"{sample_rows[n]} {sample_rows[n + 200]}" for n, name in enumerate(titles)}
    queries = {f"q{n}": " ".join(sample_rows[6 * n + 200].split()[1:7]) for n in range(QUERIES)}
    names = list(titles)
    judged = {f"q{n}": {names[6 * n]: 2, names[6 * n + 1]: 1, names[6 * n + 2]: 0} for n in range(QUERIES)}
    folder = write(tmp_path / "data", [(name, titles[name], texts[name]) for name in names], queries, judged)
    return folder, {name: f"{titles[name]} {texts[name]}" for name in names}, queries, judged


def write(folder, documents, queries, judged):
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": name, "title": title, "text": text}) for name, title, text in documents]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf8")
    lines = [json.dumps({"_id": name, "text": text, "metadata": {}}) for name, text in queries.items()]
    (folder / "queries.jsonl").write_text("\n".join(lines), encoding="utf8")
    lines = [f"{query}\t{name}\t{value}" for query, found in judged.items() for name, value in found.items()]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]), encoding="utf8")
    return folder


def bm25_scores(documents, query):
    """Lucene's BM25 with k1 = 1.5 and b = 0.75, stemmed and without stop words, in float64."""
    documents = list(documents)
    terms = terms_for(documents)
    assert terms.language == terms.stop_words == "english"
    bags = terms(documents)
    mean = sum(map(len, bags)) / len(bags)
    found = np.zeros(len(bags))
    for term in terms([query])[0]:
        holding = sum(term in bag for bag in bags)
        weight = math.log(1 + (len(bags) - holding + 0.5) / (holding + 0.5))
        for row, bag in enumerate(bags):
            found[row] += weight * bag.count(term) / (bag.count(term) + 1.5 * (0.25 + 0.75 * len(bag) / mean))
    return found


def standardised(scores):
    return (scores - scores.mean()) / scores.std()


def unit(vectors):
    vectors = np.asarray(vectors, dtype=np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def ordered(names, scores):
    """Names by descending score; equal scores by descending name."""
    return [name for _, name in sorted(zip(scores, names, strict=True), reverse=True)]


@pytest.mark.parametrize("weight", [None, 0.5, 0.3])
def test_scores_of_search_equal_those_of_brute_force(collection, tiny_bert, weight):
    folder, documents, queries, judged = collection
    encoder = Encoder(tiny_bert, pooler="avg", device="cpu")
    fusion = False if weight is None else Fusion(weight)
    report = evaluate(System(encoder, hybrid=fusion), "retrieval", folder).reports["retrieval"]
    vectors, names, texts = unit(encoder.encode(list(documents.values()))), list(documents), list(documents.values())
    expected = []
    for key, text in queries.items():
        scores = vectors @ unit(encoder.encode([text]))[0]
        if weight is not None:
            opinions = [np.exp(1.5 * standardised(scores)), np.exp(0.5 * standardised(bm25_scores(texts, text)))]
            first, second = (opinion / opinion.sum() for opinion in opinions)
            scores = (1 - weight) * first**0.3 + weight * second**0.3
        expected.append(100 * ndcg(ordered(names, scores), judged[key]))
    assert report.samples[0].values.tolist() == pytest.approx(expected, abs=1e-9)
    assert report.rows[0]["ndcg@10"] == pytest.approx(np.mean(expected))
    assert 10 < report.rows[0]["ndcg@10"] < 99


def test_bm25_alone_equals_brute_force(collection):
    folder, documents, queries, judged = collection
    rankings = ByWords().rank_documents(queries, documents, depth=12)
    expected = []
    for (key, text), ranking in zip(queries.items(), rankings, strict=True):
        scores = bm25_scores(documents.values(), text)
        found = [name for name in ordered(documents, scores) if scores[list(documents).index(name)] > 0]
        assert list(ranking) == found[:12]
        assert list(ranking.values()) == pytest.approx(sorted(scores, reverse=True)[: len(ranking)], abs=1e-4)
        expected.append(100 * ndcg(found, judged[key]))
    assert evaluate("bm25", "retrieval", folder).reports["retrieval"].samples[0].values == pytest.approx(expected)


def test_eval_ranks_as_the_search_index_does(collection, tiny_bert):
    folder, documents, queries, judged = collection
    encoder, names = Encoder(tiny_bert, pooler="avg", device="cpu"), sorted(documents, reverse=True)
    found = set()
    for flags, passages, fusion in ((["--bm25-weight", "0.7"], None, Fusion(0.7)), (["--passages", "16"], 16, True)):
        index = SearchIndex.build(encoder, [documents[name] for name in names], ids=names, passages=passages)
        hits = index.search(list(queries.values()), 100, hybrid=fusion)
        scores = [100 * ndcg([hit.id for hit in each], judged[key]) for key, each in zip(queries, hits, strict=True)]
        given = ["eval", tiny_bert, "--suite", "retrieval", "--data", folder, "--hybrid", *flags, "--pooler", "avg"]
        done = command(*given, "--device", "cpu", "--json")
        (row,) = json.loads(done.stdout)["suites"]["retrieval"]["tasks"]
        assert row["ndcg@10"] == pytest.approx(np.mean(scores), abs=1e-9), flags
        found.add(round(row["ndcg@10"], 6))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["eval", "MODEL", "--hybrid"], "--hybrid applies only to --suite retrieval"),
        (["eval", "bm25"], "bm25: has no embeddings for --suite sts"),
        (["eval", "bm25", "--suite", "retrieval", "--hybrid"], "--hybrid has no effect on bm25"),
        (["eval", "bm25", "--suite", "retrieval", "--pooler", "avg"], "--pooler and --prompt have no effect on bm25"),
        (["compare", "bm25", "MODEL", "--suite", "retrieval", "--dims", "4"], "--dims: bm25 has no dimensions"),
        (["eval", "MODEL", "--suite", "retrieval", "--bm25-weight", "1"], "--bm25-weight has no effect without"),
    ],
)
def test_options_without_effect_are_refused_in_one_sentence(collection, tiny_bert, given, message):
    done = command(*(each.replace("MODEL", str(tiny_bert)) for each in given), "--data", collection[0])
    assert message in f"{done.exception} {done.stderr}"


def test_the_document_that_is_the_query_is_left_out_as_in_beir(tmp_path, tiny_bert, sample_rows):
    """As in ArguAna: a query is the text of a document with its id; the relevant document is another one."""
    names = [f"argument-{n}" for n in range(30)]
    documents = [(name, f"Title {n}", f"{sample_rows[n]}\n{sample_rows[n + 50]}") for n, name in enumerate(names)]
    queries = {name: f" {sample_rows[n]}  {sample_rows[n + 50]}" for n, name in enumerate(names[:8])}
    judged = {name: {names[n + 8]: 1} for n, name in enumerate(queries)}
    folder = write(tmp_path / "arguana", documents, queries, judged)
    encoder = Encoder(tiny_bert, pooler="avg", device="cpu")
    joined = {name: f"{title} {text}" for name, title, text in documents}
    whole = [list(ranking) for ranking in rank_documents(encoder, queries, joined)]
    kept = [ndcg(ranking, judged[name]) for name, ranking in zip(queries, whole, strict=True)]
    without = [[each for each in ranking if each != name] for name, ranking in zip(queries, whole, strict=True)]
    dropped = [ndcg(ranking, judged[name]) for name, ranking in zip(queries, without, strict=True)]
    assert np.mean(dropped) > np.mean(kept)
    for option, expected in (("auto", dropped), ("drop", dropped), ("keep", kept)):
        report = Retrieval(RetrievalOptions(same_id=option), str(folder))(encoder)
        assert report.rows[0]["ndcg@10"] == pytest.approx(100 * np.mean(expected))
        assert any("left out of each ranking" in note for note in report.notes) is (option != "keep")
    words = evaluate("bm25", "retrieval", folder).reports["retrieval"]
    assert any("left out of each ranking" in note for note in words.notes)


@pytest.mark.slow
def test_run_files_have_the_metrics_that_ir_measures_computes(collection, tmp_path, tiny_bert, cse_here):
    ir_measures = pytest.importorskip("ir_measures")
    folder, _, _, judged = collection
    given = ["--suite", "retrieval", "--data", folder, "--json"]
    row = {}
    for model, *flags in [("bm25",), (str(tiny_bert),), (str(tiny_bert), "--hybrid")]:
        done = cse_here("eval", model, *flags, *given, "--run", "a.run", "--device", "cpu", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(done.stdout)["suites"]["retrieval"]["tasks"]
        kinds = {"ndcg": ir_measures.nDCG, "map": ir_measures.AP, "mrr": ir_measures.RR, "recall": ir_measures.R}
        wanted = {name: kinds[name.split("@")[0]] @ int(name.split("@")[1]) for name in METRICS}
        run = [*ir_measures.read_trec_run(str(tmp_path / "a.run"))]
        qrels = [ir_measures.Qrel(key, name, value) for key, own in judged.items() for name, value in own.items()]
        found = ir_measures.calc_aggregate(wanted.values(), qrels, run)
        for name, measure in wanted.items():
            assert row[name] == pytest.approx(100 * found[measure], abs=1e-9), name
    # The file is ranked as it was written, and compared with other systems; for files alone, judgements are enough.
    done = cse_here("compare", "bm25", "run:a.run", tiny_bert, "--hybrid", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["comparisons"]
    assert [each["b"] for each in results] == ["run:a.run", f"{tiny_bert} --hybrid"]
    assert [each["tasks"][0]["b"] for each in results] == pytest.approx([row["ndcg@10"]] * 2)
    given[3] = folder / "qrels" / "test.tsv"
    done = cse_here("eval", "run:a.run", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    alone = json.loads(done.stdout)["suites"]["retrieval"]["tasks"][0]
    assert {name: alone[name] for name in METRICS} == pytest.approx({name: row[name] for name in METRICS})
    refused(cse_here("eval", tiny_bert, *given, cwd=tmp_path), "judgements alone are enough for run:FILE only")
    refused(cse_here("eval", "run:a.run", "--hybrid", *given, cwd=tmp_path), "--hybrid has no effect on run:a.run")
    refused(cse_here("eval", "run:a.run", "--suite", "geometry", "--data", "a.run", cwd=tmp_path), "has no embeddings")


def test_run_files_keep_the_order_of_scores_that_float32_cannot_tell_apart(tmp_path):
    ranking = {"a": 1 + 1e-12, "c": 1.0, "b": 1.0, "d": -5.0, "e": -5.0}
    path = tmp_path / "r.run"
    write_run(path, {"q": ranking})
    found = read_run(path)["q"]
    assert list(found) == list(ranking)
    assert len({np.float32(score) for score in found.values()}) == 5
    # Scores of another program that float32 cannot tell apart are ties.
    path.write_text("q Q0 a 1 0.123456789012 x\nq Q0 b 2 0.123456789011 x\nq Q0 c 3 0.2 x\n", encoding="utf8")
    assert list(read_run(path)["q"]) == ["c", "b", "a"]
    for text, message in [
        ("q Q0 a 1 0.5\n", "must have six fields .* got 5"),
        *(
            (f"q Q0 a 1 {score} cse\n", f"line 1: the score must be a finite number, got '{score}'")
            for score in ("x", "nan", "1_0")
        ),
        ("q Q0 a 1 2 cse\nq Q0 a 2 1 cse\n", "line 2 repeats the document 'a'"),
    ]:
        path.write_text(text, encoding="utf8")
        with pytest.raises(InputError, match=message):
            read_run(path)
    with pytest.raises(InputError, match="holds white space"):
        write_run(path, {"q 1": ranking})
    for text, message in (("q b c 1 2 x\n", "holds none of the judged queries"), ("", "the file is empty")):
        path.write_text(text, encoding="utf8")
        with pytest.raises(InputError, match=message):
            FromRun(str(path)).rank_documents({"other": ""}, {})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("query-id\tcorpus-id\tscore\nq 1\tBig Cat\t1\n", {"q 1": {"Big Cat": 1}}),
        (
            "Query ID\tDoc ID\tScore\nq1\t0\td 1\t2\nq1\t\td 2\t1\nq2 0 d2 1\nq1\td 3\t1\t\n",
            {"q1": {"d 1": 2, "d 2": 1, "d 3": 1}, "q2": {"d2": 1}},
        ),
        ("\tq1\td 1\t1\n", "line 1 must have three fields"),
        ("q1 b 1\nq2 b 0\nq1 b 0\n", "line 3 judges the document 'b' of query 'q1' as 0, an earlier line as 1"),
    ],
)
def test_ids_may_hold_spaces_if_tabs_separate_the_columns_and_judgements_agree(tmp_path, content, expected):
    path = tmp_path / "qrels.tsv"
    path.write_text(content, encoding="utf8")
    if isinstance(expected, dict):
        assert read_judgements(path) == expected
        return
    with pytest.raises(InputError, match=expected):
        read_judgements(path)


@pytest.mark.parametrize("kind", ["SentenceTransformer", "list", "tensor", "sparse", "copied"])
def test_other_encoders_have_the_scores_of_their_vectors(collection, tiny_bert, kind):
    encoder = Encoder(tiny_bert, device="cpu")

    class Plain:
        def encode(self, texts):
            vectors = encoder.encode(texts)
            made = {"list": vectors.tolist(), "sparse": csr_matrix(vectors)}
            return made.get(kind, torch.from_numpy(vectors).requires_grad_())

    model = SentenceTransformer(str(tiny_bert), device="cpu") if kind == "SentenceTransformer" else Plain()
    model = copy.copy(Adapted(model)) if kind == "copied" else model
    expected, found = (evaluate(each, "retrieval", collection[0]) for each in (encoder, model))
    assert found.reports["retrieval"].rows == expected.reports["retrieval"].rows
    assert compare(tiny_bert, model, "retrieval", collection[0]).tasks[0]["mean"] == 0
    names = np.array([str(tiny_bert)] * 2)  # models to compare may be in any iterable
    assert kind != "list" or compare(names, (name for name in names), "retrieval", collection[0]).seeds


def test_an_encoder_that_returns_something_else_is_refused(collection):
    class Wrong:
        def __init__(self, result):
            self.result = result

        def encode(self, texts):
            return self.result

    for result in ([1.0], [[1.0], [1.0, 2.0]], {"a": 1}, np.zeros((2, 0))):
        with pytest.raises(InputError, match="encode must return one vector for each of"):
            evaluate(Wrong(result), "retrieval", collection[0])
    with pytest.raises(InputError, match=r"--hybrid needs a cse\.Encoder"):
        evaluate(System(Wrong([]), hybrid=True), "retrieval", collection[0])


@pytest.mark.parametrize(
    ("suite", "wrong", "message"),
    [
        ("retrieval", {"dims": "16"}, "dims"),
        ("retrieval", {"threads": "1"}, "threads: must be an integer"),
        ("sts", {}, r"for its corpus\.jsonl, add --suite retrieval"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(collection, tiny_bert, suite, wrong, message):
    with pytest.raises(InputError, match=message):
        evaluate(tiny_bert, suite, collection[0], **wrong)


def test_published_scores_stand_beside_those_of_known_collections(collection, tiny_bert, cse_here, monkeypatch):
    folder, *_ = collection
    monkeypatch.setitem(PUBLISHED, (QUERIES, DOCUMENTS), ("SciFact", 64.51))
    report = evaluate("bm25", "retrieval", folder).reports["retrieval"]
    assert report.rows[0]["published ndcg@10"] == 64.51
    assert any("all-MiniLM-L6-v2 on SciFact" in note for note in report.notes)
    monkeypatch.delitem(PUBLISHED, (QUERIES, DOCUMENTS))
    assert "published ndcg@10" not in evaluate("bm25", "retrieval", folder).reports["retrieval"].rows[0]


def test_equal_ids_of_other_texts_stay_in_the_ranking(tmp_path, sample_rows):
    """As in Cranfield, where queries and documents are both numbered from 1."""
    documents = [(str(n), "", sample_rows[n]) for n in range(20)]
    folder = write(tmp_path / "c", documents, {str(n): sample_rows[n + 100] for n in range(5)}, {"1": {"1": 1}})
    for option, left_out in (("auto", False), ("drop", True)):
        assert Retrieval(RetrievalOptions(same_id=option), str(folder)).without_same_id == left_out
