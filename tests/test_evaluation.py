"""Transfer and retrieval suites compared with other implementations; eval, compare and encode on the command line."""

import errno
import json
import os
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedKFold

from cse import Encoder, InputError, TrainConfig, evaluate, train
from cse.encoder.passages import Cutter
from cse.evaluation.base import read_pairs
from cse.evaluation.options import RetrievalOptions
from cse.evaluation.retrieval import METRICS, Retrieval, reciprocal_rank
from cse.evaluation.sts import SEVEN, clean_development, pair_cosines, pair_key
from cse.io import Journal
from cse.ties import comparable
from cse_papers import transfer
from cse_papers.transfer import AdamClassifier, converged, senteval
from test_cli import refused
from test_retrieval import command, write


class Table:
    """An encoder that returns given vectors."""

    def __init__(self, vectors):
        self.vectors = vectors

    def encode(self, texts, **_):
        return np.array([self.vectors[text] for text in texts], dtype=np.float32)


def labelled(n, classes, seed=0, dim=6):
    generator = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return generator.normal(size=(n, dim)) + 0.8 * np.eye(classes, dim)[y], y.astype(np.int64)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_classifier_minimises_the_objective_of_senteval(classes):
    x, y = labelled(80, classes)
    penalty = 1e-2
    fitted = converged(x, y, penalty)

    def objective(flat):
        w = flat.reshape(classes, x.shape[1] + 1)
        loss = -log_softmax(x @ w[:, 1:].T + w[:, 0], axis=1)[np.arange(len(y)), y].mean()
        return loss + penalty / 2 * (w[:, 1:] ** 2).sum()

    mine = np.hstack([fitted.intercept_[:, None], fitted.coef_])
    if classes == 2:  # the fitted weight vector is the difference between the vectors of the two classes
        mine = np.vstack([-mine / 2, mine / 2])
    best = minimize(objective, np.zeros(mine.size), method="BFGS", options={"gtol": 1e-9})
    assert objective(mine.ravel()) == pytest.approx(best.fun, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 6])
def test_the_converged_classifier_does_not_depend_on_rounding(classes):
    x, y = labelled(400, classes, dim=100)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    noise = 1e-7 * np.random.default_rng(1).normal(size=x.shape)
    first, second = converged(x, y, 1e-5), converged(x + noise, y, 1e-5)
    np.testing.assert_allclose(first.predict_proba(x), second.predict_proba(x), atol=2e-3)


def test_the_classifier_of_senteval_stops_early_and_leaves_the_random_state_unchanged(monkeypatch):
    x, y = labelled(1000, 3, dim=12)
    x += 2 * np.eye(3, 12)[y]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second = (senteval(x, y, 1e-5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert (first.predict(x) == second.predict(x)).all()
    assert first.score(x, y) == pytest.approx(converged(x, y, 1e-5).score(x, y), abs=0.02)
    evaluations = []
    monkeypatch.setattr(AdamClassifier, "score", lambda *_: evaluations.append(1) or 0.5)
    senteval(x, y, 1e-5)
    assert len(evaluations) == 7  # the first score is the best; training ends after six more scores without improvement


def test_the_classifier_of_senteval_ends_after_204_epochs_if_it_keeps_improving(monkeypatch):
    """SentEval trains 4 epochs and scores, while the number of epochs is at most 200."""
    scores = iter(range(1, 1000))
    monkeypatch.setattr(AdamClassifier, "score", lambda *_: next(scores))
    senteval(*labelled(40, 2), 1e-5)
    assert next(scores) == 204 / 4 + 1


def test_nested_cross_validation_equals_a_double_loop_over_folds():
    x, y = labelled(60, 2)
    fits = []
    accuracy, predicted = transfer.nested(converged, x, y, 3, lambda: fits.append(1))
    assert len(fits) == transfer.TransferTask("T", {"all": 60}).fits(3) == 3 * (3 * 4 + 1)
    folds = StratifiedKFold(3, shuffle=True, random_state=1111)

    def score(rows, test, penalty):
        return converged(x[rows], y[rows], penalty).score(x[test], y[test])

    expected = []
    for rows, test in folds.split(x, y):
        inner = [(rows[a], rows[b]) for a, b in folds.split(x[rows], y[rows])]
        means = [np.mean([score(a, b, penalty) for a, b in inner]) for penalty in transfer.PENALTIES]
        penalty = transfer.PENALTIES[int(np.argmax(np.round(means, 4)))]
        assert (converged(x[rows], y[rows], penalty).predict(x[test]) == predicted[test]).all()
        expected.append(100 * score(rows, test, penalty))
    assert accuracy == pytest.approx(np.mean(expected))
    features = transfer.pair_features(np.array([[1.0, 2.0]]), np.array([[3.0, -1.0]]))
    assert features.tolist() == [[2, 3, 3, -2]]


@pytest.fixture
def tasks(tmp_path, sample_rows):
    """A folder with small files of the tasks TREC, MRPC and CR."""
    rows = iter(sample_rows)
    folder = tmp_path / "transfer"
    folder.mkdir()
    files = (("trec.train", 40, 1), ("trec.test", 12, 1), ("mrpc.train", 40, 2), ("mrpc.test", 12, 2), ("cr", 40, 1))
    for name, count, columns in files:
        lines = ["\t".join([str(i % 2), *(next(rows) for _ in range(columns))]) for i in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf8")
    return folder


def test_the_transfer_suite_scores_its_tasks_and_names_incomplete_files(tiny_bert, tasks):
    encoder = Encoder(tiny_bert, pooler="avg", device="cpu")

    def scored(partial=True):
        return evaluate(encoder, "transfer", tasks, options={"transfer": {"folds": 2}}, allow_partial=partial)

    with pytest.raises(InputError, match="40 rows, but CR has 3,775; get the whole file, or pass --allow-partial"):
        scored(partial=False)
    report = scored().reports["transfer"]
    assert [(row["task"], "f1" in row) for row in report.rows] == [("CR", False), ("TREC", False), ("MRPC", True)]
    assert [len(sample.values) for sample in report.samples] == [40, 12, 12]
    assert report.summary == {"average": None}
    assert all(0 <= row["accuracy"] <= 100 for row in report.rows)
    (tasks / "trec.test.tsv").unlink()
    with pytest.raises(OSError, match=r"trec\.test\.tsv: no such file"):
        scored()
    (tasks / "cr.tsv").write_text("0\ta b\n" * 38 + "1\tc d\n" * 2, encoding="utf8")
    for path in tasks.glob("[mt]*.tsv"):
        path.unlink()
    with pytest.raises(InputError, match=r"cr: a label has too few rows for 2 folds; lower --set transfer\.folds"):
        scored()


def test_retrieval_metrics_equal_those_of_trec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    generator = np.random.default_rng(0)
    judgements, runs = {}, {}
    for query in (f"q{number}" for number in range(60)):
        documents = [f"d{i:03}" for i in generator.permutation(300)]
        judged = documents[:: int(generator.integers(2, 40))]
        judgements[query] = {d: int(generator.integers(-1, 4)) for d in judged} | {documents[0]: 2}
        runs[query] = documents[:150]
    run = {query: {d: float(len(ranking) - i) for i, d in enumerate(ranking)} for query, ranking in runs.items()}
    kinds = {"ndcg": "ndcg_cut", "map": "map_cut", "recall": "recall"}
    names = {name: (kinds[name.split("@")[0]], name.split("@")[1]) for name in METRICS if name != "mrr@10"}
    measures = {".".join(name) for name in names.values()} | {"recip_rank"}
    measured = pytrec_eval.RelevanceEvaluator(judgements, measures).evaluate(run)
    for query, ranking in runs.items():
        theirs = measured[query]
        for ours, name in names.items():
            assert METRICS[ours](ranking, judgements[query]) == pytest.approx(theirs["_".join(name)])
        first = theirs["recip_rank"] if theirs["recip_rank"] >= 0.1 else 0.0  # recip_rank has no cutoff
        assert reciprocal_rank(ranking, judgements[query]) == pytest.approx(first)


def write_collection(folder):
    documents = {"d1": "one", "d2": "two", "d3": "three", "d4": "four"}
    queries = {"q1": "first", "q2": "second", "q3": "unjudged"}
    judged = {"q1": {"d1": 2, "d2": 1}, "q2": {"d3": 1, "gone": 1}, "q3": {"d1": 0}}
    folder.mkdir()
    (folder / "corpus.tsv").write_text("".join(f"{i}\t{t}\n" for i, t in documents.items()), encoding="utf8")
    (folder / "queries.tsv").write_text("".join(f"{i}\t{t}\n" for i, t in queries.items()), encoding="utf8")
    lines = (f"{query} 0 {name} {value}\n" for query, found in judged.items() for name, value in found.items())
    (folder / "qrels.txt").write_text("".join(lines), encoding="utf8")
    return folder


def test_scores_of_a_small_collection_equal_those_computed_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr("cse.evaluation.retrieval.BLOCK", 3)
    folder = write_collection(tmp_path / "c")
    angle = {"one": 10, "two": 40, "three": 80, "four": 120, "first": 0, "second": 100, "unjudged": 0}
    vectors = {text: [np.cos(np.radians(a)), np.sin(np.radians(a))] for text, a in angle.items()}
    report = Retrieval(RetrievalOptions(), str(folder))(Table(vectors))
    (row,) = report.rows
    assert (row["queries"], row["documents"]) == (2, 4)
    # q1: d1, d2; q2: d4, d3 (equally similar; "gone" counts as not retrieved); q3 has no relevant document.
    second = (1 / np.log2(3)) / (1 + 1 / np.log2(3))
    assert row["ndcg@10"] == pytest.approx(100 * (1 + second) / 2, abs=1e-4)
    assert row["mrr@10"] == pytest.approx(75)
    assert row["recall@100"] == pytest.approx(75)
    assert report.notes == ["relevant documents that are not in the corpus: 1"]


def test_the_score_of_a_document_is_the_score_of_its_best_passage(tmp_path, tiny_bert, sample_rows, monkeypatch):
    monkeypatch.setattr("cse.evaluation.retrieval.PASSAGES_BLOCK", 7)
    documents = {f"d{n:02}": " ".join(sample_rows[5 * n : 5 * n + 5]) for n in range(12)} | {"d20": ""}
    queries = {f"q{n}": sample_rows[5 * n + 3] for n in range(12)}
    judged = {f"q{n}": {f"d{n:02}": 1} for n in range(12)}
    folder = write(tmp_path / "long", [(name, "", text) for name, text in documents.items()], queries, judged)
    encoder = Encoder(tiny_bert, pooler="cls", device="cpu")
    found = Retrieval(RetrievalOptions(passages=24), str(folder))(encoder).rows[0]
    # The expected value is computed by a loop over queries, documents and passages.
    cut = Cutter(encoder, 24)
    expected = []
    for key, query in queries.items():
        scores = {}
        for name, text in documents.items():
            parts = [text[start:end] for start, end in cut([text])[0]] or [text]
            vectors = encoder.encode([query, *parts]).astype(np.float64)
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            scores[name] = max(vectors[1:] @ vectors[0])
        scores = dict(zip(scores, comparable(np.array([*scores.values()])), strict=True))
        ranking = sorted(scores, key=lambda name: (scores[name], name), reverse=True)
        expected.append(100 * METRICS["ndcg@10"](ranking, judged[key]))
    assert found["ndcg@10"] == pytest.approx(np.mean(expected), abs=1e-6)
    whole = Retrieval(RetrievalOptions(), str(folder))(encoder).rows[0]
    assert whole["ndcg@10"] < found["ndcg@10"]
    flags = ["eval", tiny_bert, "--data", folder, "--pooler", "cls", "--passages", "24", "--json"]
    shown = json.loads(command(*flags, "--suite", "retrieval").stdout)["suites"]["retrieval"]["tasks"][0]
    assert shown["ndcg@10"] == pytest.approx(found["ndcg@10"])
    assert "--passages has no effect without --suite retrieval" in str(command(*flags).exception)
    with pytest.raises(InputError, match=r"retrieval\.passages: needs a cse\.Encoder"):
        Retrieval(RetrievalOptions(passages=8), str(folder))(Table({}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.tsv", "no tab", "line 1 is not an id and a text separated by a tab"),
        ("corpus.tsv", "d1\ta\nd1\tb", "line 2 repeats the id 'd1'"),
        ("queries.tsv", "q9\tother\n", "which is not among the queries"),
        ("qrels.txt", "q1 d1\n", "line 1 must have three fields"),
        ("qrels.txt", "q1 0 d1 0\n", "no query has a relevant document in the corpus"),
        ("qrels.txt", "q1 0 other 1\n", "no query has a relevant document in the corpus"),
        ("corpus.tsv", None, "has none of corpus.jsonl, corpus.tsv"),
    ],
)
def test_errors_name_the_fault_of_a_collection(tmp_path, name, content, message):
    folder = write_collection(tmp_path / "c")
    (folder / name).unlink() if content is None else (folder / name).write_text(content, encoding="utf8")
    with pytest.raises(InputError, match=message):
        Retrieval(RetrievalOptions(), str(folder))


def test_scores_of_any_file_of_pairs_can_be_printed_as_markdown(tiny_bert, scored_pairs):
    done = command("eval", tiny_bert, "--data", scored_pairs, "--markdown", "--compare-published")
    assert "| task | pairs | spearman |" in done.stdout
    assert "| pairs.tsv | 40 |" in done.stdout
    assert "| SimCSE-BERT-base | 76.25 |" in done.stdout
    assert "measured on SentEval's text, which is tokenised and, except for SICK-R, lower-cased" in done.stdout
    assert "average of seven" not in done.stdout


def test_the_development_score_is_the_mean_over_all_dev_files(
    short_corpus, tiny_bert, scored_pairs, tmp_path, sample_rows
):
    lines = [f"{i % 4}\t{sample_rows[90 + i]}\t{sample_rows[120 + i]}\n" for i in range(30)]
    (tmp_path / "other.tsv").write_text("".join(lines), encoding="utf8")
    files = (str(scored_pairs), str(tmp_path / "other.tsv"))
    config = TrainConfig(model=tiny_bert, tfidf=short_corpus.with_name("tfidf"), dev=files, output=tmp_path)
    result = train(config.replace(max_steps=2, batch_size=8))
    assert result.before["spearman"] == pytest.approx(np.mean([result.before[f"spearman/{name}"] for name in files]))


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".parquet"])
def test_vectors_are_the_same_in_every_output_format(cse, tiny_bert, sample_rows, tmp_path, suffix):
    rows = [*sample_rows[:30], "", *sample_rows[30:50]]
    (tmp_path / "in.txt").write_text("\n".join(rows) + "\n", encoding="utf8")
    output = tmp_path / f"out{suffix}"
    done = cse("encode", tiny_bert, tmp_path / "in.txt", "-o", output, "--pooler", "avg")
    assert done.returncode == 0, done.stderr
    if suffix == ".npy":
        found = np.load(output)
        piped = cse("encode", tiny_bert, "--pooler", "avg", stdin=(tmp_path / "in.txt").read_bytes(), text=False)
        assert piped.stdout == output.read_bytes()
        refused(
            cse("encode", tiny_bert, "-o", "x.csv", stdin="a b\n"),
            "must end in .npy, .safetensors or .parquet",
        )
    elif suffix == ".safetensors":
        found = load_file(output)["embeddings"]
    else:
        table = pq.read_table(output)
        assert table["row"].to_pylist() == list(range(51))
        found = np.array(table["embedding"].to_pylist(), dtype=np.float32)
    assert np.allclose(found, Encoder(tiny_bert, pooler="avg").encode(rows), atol=1e-6)
    assert not found[30].any()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", output.name]


@pytest.fixture
def encode_here(monkeypatch, tiny_bert, tmp_path):
    """A function that encodes 60 rows to v.npy in this process, and is interrupted after ``stop`` blocks of 20 rows."""
    add_record, lines = Journal.add, ["left,right", *(f"a cat {i},the dog {i}" for i in range(60))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf8")
    monkeypatch.setattr("cse.encoder.vector_files.BLOCK", 20)

    def encoded(*flags, column="right", stop=None):
        blocks = []

        def add(journal, record):
            if len(blocks) == stop:
                raise KeyboardInterrupt
            if isinstance(record, str):  # not the key
                blocks.append(1)
            add_record(journal, record)

        monkeypatch.setattr(Journal, "add", add)
        flags = ["--column", column, "--pooler", "avg", "--json", *flags]
        return command("encode", tiny_bert, tmp_path / "t.csv", "-o", tmp_path / "v.npy", *flags)

    return encoded


def test_the_precision_option_is_applied_and_reported(tiny_bert, processor, scored_pairs):
    processor(("AVX512-BF16",), 2.0)
    scores = {}
    for given, expected in (((), "fp32"), (("--precision", "auto"), "bf16"), (("--precision", "bf16"), "bf16")):
        done = command("eval", tiny_bert, "--suite", "geometry", "--data", scored_pairs, "--json", *given)
        found = json.loads(done.stdout)
        assert found["precision"] == expected
        assert found["notes"][-1].startswith(f"encoded in {expected} (")
        scores[given] = found["suites"]["geometry"]["tasks"]
    assert scores["--precision", "auto"] == scores["--precision", "bf16"] != scores[()]
    compared = ("compare", tiny_bert, tiny_bert, "--suite", "geometry", "--data", scored_pairs)
    assert "encoded in bf16 (with AVX512-BF16, " in command(*compared, "--precision", "auto").stdout
    drawn = (*compared, "--picture", "plot.pdf")
    assert "the name must end in .png or .svg" in str(command(*drawn).exception)
    assert "--picture has no effect without --suite geometry" in str(command(*drawn[:3], *drawn[5:]).exception)
    assert "--precision: 'fp16' is unknown" in str(command(*compared, "--precision", "fp16").exception)


def test_encoding_resumes_only_with_the_same_column_precision_and_part_file(
    tmp_path, encode_here, processor, monkeypatch
):
    output = tmp_path / "v.npy"

    def made(precision):
        done = encode_here("--precision", precision)
        return json.loads(done.stdout), done.stderr, np.load(output)

    vectors = {}
    for precision in ("fp32", "bf16"):
        summary, said, vectors[precision] = made(precision)
        assert summary["precision"] == precision
        assert f"on cpu ({precision}: the value of --precision" in said
    assert not np.array_equal(vectors["fp32"], vectors["bf16"])
    np.testing.assert_allclose(vectors["bf16"], vectors["fp32"], atol=0.05)
    for begun, speedup in (("fp32", 2.0), ("bf16", 0.5)):
        processor(("AVX512-BF16",), speedup)
        encode_here("--precision", begun, stop=1)
        other = "bf16" if begun == "fp32" else "fp32"
        message = str(encode_here("--precision", other).exception)
        assert f"were encoded in {begun}; continue with --precision {begun}, or remove" in message
        summary, _, found = made("auto")
        assert (summary["resumed"], summary["precision"]) == (20, begun)
        assert np.array_equal(found, vectors[begun])
        encode_here("--precision", begun, stop=1)
        output.with_name("v.npy.part").unlink()
        assert made(other)[0]["resumed"] == 0
    encode_here(column="left", stop=2)
    assert made("fp32")[0]["resumed"] == 0
    monkeypatch.setattr(
        os, "posix_fallocate", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left")), raising=False
    )
    assert "No space left" in str(encode_here().exception)
    assert not output.with_name("v.npy.part").exists()


def test_commands_use_the_best_model_of_a_run_folder(tiny_bert, scored_pairs, one_finished_run):
    run = one_finished_run
    done = command("compare", run, tiny_bert, "--data", scored_pairs, "--suite", "geometry")
    assert done.stderr.count(f"{run}: the folder of a run; using {run / 'best'}") == 1
    with pytest.raises(InputError, match=r"it is the folder of a run: use .*best"):
        Encoder(run, device="cpu")


def test_clean_development_pairs_are_found_by_a_small_example(tmp_path):
    lines = "2\ttwo  dogs run!\ta man plays\n3\tnew one\tnew two\n1\tkept\tpair\n3\tNew two\tnew one\n"
    files = dict.fromkeys(SEVEN, "1\tA man, plays.\tTwo dogs run\n2\tother\tone more\n")
    for name, content in (files | dict.fromkeys(("stsb.dev", "sickr.train", "sickr.dev"), lines)).items():
        (tmp_path / f"{name}.tsv").write_text(content)
    clean = clean_development(tmp_path)
    assert list(clean) == ["STS-B dev, clean", "SICK-R train and dev, clean"]
    for each in clean.values():  # each pair once
        found = list(zip(each.gold, each.left, each.right, strict=True))
        assert found == [(1.0, "kept", "pair"), (3.0, "new one", "new two")]
    (tmp_path / "sickr.train.tsv").unlink()
    with pytest.raises(InputError, match=r"has none of sickr\.train\.tsv"):
        clean_development(tmp_path)


def test_hard_pairs_have_low_scores_and_high_cosines(tiny_bert, scored_pairs):
    pairs = read_pairs(scored_pairs)
    flags = ["eval", tiny_bert, "--data", scored_pairs, "--hard"]
    found = json.loads(command(*flags, "5", "--json").stdout)["hard_pairs"]
    encoder = Encoder(tiny_bert, device="cpu")
    cosines = pair_cosines(encoder.encode(list(pairs.left)), encoder.encode(list(pairs.right)))
    above = dict(zip(zip(pairs.left, pairs.right, strict=True), rankdata(cosines) - rankdata(pairs.gold), strict=True))
    chosen = [above[pair["sentence1"], pair["sentence2"]] for pair in found]
    assert chosen == sorted(above.values(), reverse=True)[:5]
    assert all(pair["score"] < np.median(pairs.gold) and pair["cosine"] > np.median(cosines) for pair in found)
    printed = command(*flags, "2", "--markdown").stdout
    assert found[0]["sentence1"] in printed
    assert found[2]["sentence1"] not in printed.split("Hard pairs")[1]
    assert "--hard has no effect without --suite sts" in str(command(*flags, "2", "--suite", "geometry").exception)


def test_the_clean_development_set_has_no_pair_of_a_test_set(shared):
    folder = shared("sts/stsb.dev.tsv").parent

    def keys(pairs):
        return {pair_key(*pair) for pair in zip(pairs.left, pairs.right, strict=True)}

    tests = set().union(*(keys(read_pairs(folder / f"{name}.tsv")) for name in SEVEN))
    found = {name: keys(read_pairs(folder / f"{name}.tsv")) for name in ("stsb.dev", "stsb.train", "sickr.dev")}
    counts = {name: (len(each & tests), len(each)) for name, each in found.items()}
    assert counts == {"stsb.dev": (1135, 1496), "stsb.train": (4735, 5686), "sickr.dev": (14, 500)}
    clean = clean_development(folder)
    assert len(clean["STS-B dev, clean"].left) == 361
    for pairs in clean.values():
        assert len(keys(pairs)) == len(pairs.left)
        assert not keys(pairs) & tests
