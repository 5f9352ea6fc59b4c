"""The classifier of a run: its confidence and what it promises, and cse predict and cse draw."""

import csv
import json
import shutil
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from cse import Classifier, Encoder, InputError, train
from cse.classifier import predicting, stored
from cse.classifier.calibration import calibrate, cross_calibrated
from cse.classifier.drawn import compare, told_apart
from cse.classifier.fitted import Linear, fit, texts_taught
from cse.classifier.labelled import Labelled, labelled_texts
from cse.classifier.promise import Promise, wilson
from cse.classifier.stored import load, save
from cse.data import readers
from cse.data.classes import classes_of, read_classes
from cse.data.corpus import Corpus
from cse.encoder.taught import Taught
from cse.encoder.vector_files import BLOCK
from cse.evaluation.labels import predict
from cse.identity import row_keys
from cse.io import read_json
from cse.training import folds
from cse.training.folder.stored import resumed_config
from runs import write_table
from test_retrieval import command

WORDS = ("train", "cook")
STEMS = {"train": ["engine", "rail", "station"], "cook": ["pot", "salt", "oven"]}


class Words:
    """An encoder whose vectors count letters, so that it needs no model."""

    embedding_dim = 26

    def encode(self, texts, *, batch_size=64, progress=None):
        counts = [[text.lower().count(chr(97 + letter)) for letter in range(26)] for text in texts]
        return np.array(counts, dtype=np.float32) + 0.01


def texts_of(count, seed=0):
    """Returns texts, and their labels, which follow from their words."""
    draw = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        label = WORDS[draw.integers(2)]
        words = [*draw.choice(STEMS[label], 2), *draw.choice(["the", "old", "and", "new", "big"], 3)]
        rows.append((f"{' '.join(words)} {number}", label))
    return rows


def vectors_of(rows, count, seed=0, noise=1.0):
    """Returns labels (n,) of ``count`` kinds and vectors that tell them apart, with noise."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(count, size=rows)
    return draw.standard_normal((rows, 12)) * noise + np.eye(12)[labels] * 2, labels


def parts_of(labels, folds=10, how="classifiers"):
    numbers = np.empty(len(labels), dtype=np.int64)
    numbers[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % folds
    kinds = list(range(labels.max() + 1))
    return Labelled("label", kinds, [str(row) for row in range(len(labels))], labels, numbers, how)


def test_a_calibration_is_the_most_probable_one_by_a_minimiser_without_gradients():
    draw = np.random.default_rng(3)
    odds, labels = draw.standard_normal((40, 3)), draw.integers(3, size=40)
    odds[:3, 0], labels[:2] = -np.inf, 0  # a label that the classifier did not know

    def posterior(values):
        rows = np.isfinite(odds[np.arange(40), labels])
        scores = np.exp(values[0]) * np.maximum(odds[rows], -1e4) + values[1:]
        return -log_softmax(scores, axis=1)[np.arange(rows.sum()), labels[rows]].sum() + (values**2).sum() / 2

    expected = minimize(
        posterior, np.zeros(4), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 9000}
    ).x
    found = calibrate(odds, labels)
    assert np.allclose([np.log(found.scale), *found.biases], expected, atol=1e-5)
    assert np.allclose(found(odds).sum(1), 1)
    assert found(odds)[0, 0] == 0


def test_a_calibration_recovers_the_scale_and_the_biases_of_many_rows():
    draw = np.random.default_rng(0)
    odds = draw.standard_normal((20000, 3)) * 2
    scores = 3 * odds + [0.8, 0, -0.8]
    labels = (scores + draw.gumbel(size=scores.shape)).argmax(1)
    found = calibrate(odds, labels)
    assert abs(found.scale - 3) < 0.1
    assert np.allclose(found.biases - found.biases.mean(), [0.8, 0, -0.8], atol=0.1)


def test_the_probability_of_a_row_does_not_depend_on_its_own_label():
    vectors, labels = vectors_of(60, 3)
    odds, numbers = vectors[:, :3] - vectors[:, :3].mean(1, keepdims=True), np.arange(60) % 6
    other = labels.copy()
    other[numbers == 2] = (labels[numbers == 2] + 1) % 3
    one, two = (cross_calibrated(odds, each, numbers) for each in (labels, other))
    assert np.array_equal(one[numbers == 2], two[numbers == 2])
    assert not np.array_equal(one[numbers != 2], two[numbers != 2])


def test_log_odds_are_those_of_the_classifier_of_the_verdict():
    for count in (2, 3):
        vectors, labels = vectors_of(80, count)
        linear = Linear.fit(vectors[:60], labels[:60], count + 1)  # the last label has no row
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        twin = LogisticRegression(max_iter=1000, class_weight="balanced").fit(unit[:60], labels[:60])
        odds = linear(vectors[60:])
        assert np.isneginf(odds[:, -1]).all()
        assert np.allclose(log_softmax(odds[:, :-1], axis=1), twin.predict_log_proba(unit[60:]))
        assert np.array_equal(odds.argmax(1), predict(vectors[:60], labels[:60], vectors[60:]))


def test_the_saved_classifier_is_as_confident_about_new_rows_as_those_of_the_folds():
    vectors, labels = vectors_of(1060, 3)
    known, new = slice(60), slice(60, None)
    parts = parts_of(labels[known], 3)
    fitted = fit(parts, vectors[known])
    odds, weights, folds = np.empty((60, 3)), [], []
    for fold in range(3):
        own = parts.folds == fold
        without = Linear.fit(vectors[known][~own], labels[known][~own], 3)
        odds[own] = without(vectors[known][own])
        weights.append(np.linalg.norm(without.weights))
        folds.append(without)
    plain = calibrate(odds, labels[known])
    ratio = np.mean(weights) / np.linalg.norm(fitted.linear.weights)
    assert ratio < 0.9  # of two thirds of the rows
    assert fitted.calibration.scale == pytest.approx(plain.scale * ratio)
    assert fitted.calibration.biases == pytest.approx(plain.biases * ratio)
    labels = [each(fitted.linear(vectors[new])).argmax(1) for each in (fitted.calibration, plain)]
    np.testing.assert_array_equal(*labels)
    theirs = np.mean([plain(each(vectors[new])).max(1) for each in folds])
    ours, unscaled = (each(fitted.linear(vectors[new])).max(1).mean() for each in (fitted.calibration, plain))
    assert abs(ours - theirs) < abs(unscaled - theirs) / 2


def test_intervals_shares_and_thresholds_are_those_counted_by_hand():
    assert np.allclose(wilson(8, 10, 1.0), [80, 49.02, 94.33], atol=0.01)  # as binom of statsmodels has it
    assert wilson(8, 10).low < 49
    truth = np.array([0, 0, 0, 0, 1, 1, 2, -1, 1, 0])
    predicted = np.array([0, 0, 1, 0, 1, 0, 2, 2, 1, 0])
    confidence = np.array([0.9, 0.8, 0.7, 0.95, 0.6, 0.5, 0.4, 0.99, 0.9, 0.9])
    promise = Promise(["a", "b", "c"], truth, predicted, confidence, "")
    assert promise.accuracy.value == 70
    assert promise.recall.value == pytest.approx(100 * (4 / 5 + 2 / 3 + 1) / 3)
    assert promise.above(0.9)[0] == 5
    assert promise.above(0.9)[1].value == 80
    assert promise.above(0.95) == (2, None)
    assert promise.confusion().tolist() == [[4, 1, 0], [1, 2, 0], [0, 0, 1], [0, 0, 1]]
    labels = {record["label"]: record for record in promise.by_label()}
    assert labels["a"]["recall"]["value"] == 80
    assert labels["c"]["precision"]["value"] == 50
    share, accuracy = promise.curve()
    assert share[-1] == 1
    assert accuracy[-1] == pytest.approx(0.7)
    assert share.tolist() == sorted(share.tolist())
    assert len(share) == 8  # of ten rows, three of which have the same confidence
    assert sum(record["rows"] for record in promise.reliability()) == 10


@pytest.mark.parametrize("how", ["classifiers", "held out", "encoders"])
def test_random_labels_promise_chance_and_claim_little(how):
    accuracies, claimed = [], []
    for seed in range(20):
        vectors, labels = vectors_of(100, 2, seed)
        labels = np.random.default_rng(seed).permutation(labels)
        parts = parts_of(labels, 5, how)
        if how == "held out":
            parts = Labelled("label", [0, 1], parts.texts, labels, np.where(parts.folds == 0, 0, -1), how)
        by_fold = {
            fold: Linear.fit(vectors[parts.folds != fold], labels[parts.folds != fold], 2)(vectors[parts.folds == fold])
            for fold in range(5)
        }
        promise = fit(parts, vectors, by_fold=by_fold).promise
        accuracies.append(promise.accuracy.value)
        claimed.append(promise.confidence.mean())
    assert abs(np.mean(accuracies) - 50) < 6
    assert np.mean(claimed) < 0.66


def test_labels_that_taught_the_encoder_are_learned_but_promise_nothing():
    vectors, labels = vectors_of(100, 2)
    parts = parts_of(labels)
    texts = [str(row) for row in range(100)]
    some = texts_taught([Taught(labelled=np.sort(row_keys(texts[:60])))], texts)
    assert some.tolist() == [True] * 60 + [False] * 40
    pairs = Taught.by(row_keys(texts[:60]), paired=texts[:60])
    assert texts_taught([pairs], texts).tolist() == some.tolist()
    fitted = fit(parts, vectors, some)
    assert len(fitted.promise.truth) == 40
    assert "60 labelled texts do not judge" in fitted.notes[0]
    assert np.array_equal(fitted.linear.weights, fit(parts, vectors).linear.weights)
    every = fit(parts, vectors, texts_taught([Taught(unknown=("model",))], texts))
    assert every.promise is every.calibration is None
    assert every.why == "0 labelled texts were unknown to what predicts them, and 10 are needed"
    assert fit(parts_of(labels, 5, "encoders"), vectors).promise is None  # without the encoders of the folds


def test_the_held_out_rows_do_not_teach_the_classifier():
    vectors, labels = vectors_of(100, 2)
    held = np.where(np.arange(100) < 20, 0, -1)
    parts = Labelled("label", [0, 1], [""] * 100, labels, held, "held out")
    expected = Linear.fit(vectors[20:], labels[20:], 2)
    fitted = fit(parts, vectors)
    assert np.array_equal(fitted.linear.weights, expected.weights)
    assert len(fitted.promise.truth) == 20
    assert fitted.promise.design == 1


def test_labels_of_two_texts_can_be_predicted_and_keep_their_spelling_and_type():
    texts = [f"text {number}" for number in range(30)]
    cells = [*[True, False] * 9, " Rare one ", "Rare  one", 3, 3.0, "alone", "", None, "x", "x", "x", "x", "x"]
    texts[27] = texts[26]  # equal texts with one label
    texts[29], cells[29] = texts[28], "y"  # with two
    corpus = Corpus.from_texts(texts)
    found = labelled_texts(corpus, classes_of(corpus, "kind", cells))
    assert found.classes == [False, True, 3, "Rare one", "x"]
    counts = {str(found.classes[place]): (found.labels == place).sum() for place in range(5)}
    assert counts == {"False": 9, "True": 9, "3": 2, "Rare one": 2, "x": 2}
    assert found.texts.count(texts[26]) == 1
    assert texts[28] not in found.texts
    assert [text for text, label in zip(found.texts, found.labels, strict=True) if label < 0] == ["text 22"]
    assert {*np.bincount(found.folds)} <= {2, 3}
    assert (
        labelled_texts(Corpus.from_texts(["a", "b", "c"]), classes_of(Corpus.from_texts(["a", "b", "c"]), "k", "aab"))
        is None
    )


def test_labelled_rows_drawn_from_all_are_told_from_rows_that_were_chosen():
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((1200, 20))
    none = np.zeros(200, dtype=np.int64)
    random = compare(vectors[:200], vectors[200:], none, np.zeros(1000, dtype=np.int64), ["a", "b"])
    assert random.at_random
    assert "look as if they were drawn at random" in random.describe()
    order = np.argsort(-vectors[:, 0])
    chosen = compare(vectors[order[:200]], vectors[order[200:]], none, np.zeros(1000, dtype=np.int64), ["a", "b"])
    assert not chosen.at_random
    assert "a classifier tells them from the other rows: AUC 0." in chosen.describe()
    shifted = compare(vectors[:200], vectors[200:], none, np.ones(1000, dtype=np.int64), ["a", "b"])
    assert not shifted.at_random
    assert "predicted for 100 points more or fewer of them" in shifted.describe()
    one, other = vectors[:40], vectors[40:90] + 0.4
    from sklearn.metrics import roc_auc_score

    kinds = np.repeat([1, 0], [40, 50])
    rows = np.concatenate([one, other])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    number = np.concatenate([np.arange(40), np.arange(50)]) % 5
    scores = np.zeros(90)
    for fold in range(5):
        own = number == fold
        model = LogisticRegression(max_iter=1000, class_weight="balanced").fit(rows[~own], kinds[~own])
        scores[own] = model.decision_function(rows[own])
    assert told_apart(one, other).value == pytest.approx(100 * roc_auc_score(kinds, scores))


def test_a_classifier_is_one_of_scikit_learn():
    rows = texts_of(120)
    texts, labels = map(list, zip(*rows, strict=True))
    classifier = Classifier(Words()).fit(texts, labels)
    assert classifier.classes_.tolist() == ["cook", "train"]
    proba = classifier.predict_proba(texts[:7])
    assert proba.shape == (7, 2)
    assert np.array_equal(classifier.predict(texts[:7]), classifier.classes_[proba.argmax(1)])
    assert classifier.promise.accuracy.value > 80
    assert cross_val_score(clone(classifier), texts, labels, cv=3).mean() > 0.8
    numbers = Classifier(Words()).fit(texts, [WORDS.index(label) for label in labels])
    assert numbers.predict(texts[:2]).dtype.kind == "i"
    some = Classifier(Words()).fit(texts, [label if number % 2 else None for number, label in enumerate(labels)])
    assert len(some.promise.truth) == 60
    with pytest.raises(InputError, match="call fit"):
        Classifier(Words()).predict(texts)

    class Others(Words):
        def encode(self, texts, *, batch_size=64, progress=None):
            return super().encode(texts)[:, ::2]

    again = clone(classifier).fit(texts, labels).set_params(encoder=Others())
    assert not again.__sklearn_is_fitted__()
    expected = Classifier(Others()).fit(texts, labels).predict_proba(texts)
    assert np.array_equal(again.fit(texts, labels).predict_proba(texts), expected)
    mixed = Classifier(Words()).fit(texts, [1 if label == "cook" else label for label in labels])
    assert mixed.classes_.tolist() == [1, "train"]
    with pytest.raises(InputError, match="fewer than two labels have two different texts"):
        Classifier(Words()).fit(texts[:3], ["a", "a", "b"])


def test_a_damaged_classifier_is_one_sentence(tiny_bert, tmp_path):
    folder = tmp_path / "model"
    Encoder(tiny_bert).save(str(folder))
    rows = texts_of(60)
    classifier = Classifier(folder, device="cpu").fit(*zip(*rows, strict=True))
    classifier.save(folder)
    again = Classifier(folder, device="cpu")
    texts = [text for text, _ in rows[:5]]
    assert np.array_equal(again.predict_proba(texts), classifier.predict_proba(texts))
    assert again.promise.to_dict() == classifier.promise.to_dict()
    about = folder / "classifier" / "classifier.json"
    weights = folder / "classifier" / "classifier.safetensors"
    good, arrays = read_json(about, dict), weights.read_bytes()
    for change in ({"version": 9}, {"classes": ["a"]}, {"classes": ["a", "b", "c"]}, {"scale": "x"}, {"column": 3}):
        about.write_text(json.dumps({**good, **change}), encoding="utf8")
        with pytest.raises(InputError, match=r"classifier"):
            Classifier(folder)
    about.write_text(json.dumps(good), encoding="utf8")
    for content in (b"", arrays[:-8], b"\0" * 40):
        weights.write_bytes(content)
        with pytest.raises(InputError, match="is damaged"):
            Classifier(folder)
    fitted = classifier.fitted
    nan = Linear(fitted.linear.weights * np.nan, fitted.linear.intercepts)
    save(stored.Fitted("label", fitted.classes, nan, fitted.calibration, fitted.promise), folder)
    with pytest.raises(InputError, match="is damaged"):
        load(folder)


@pytest.fixture
def base(run_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return run_config.replace(corpus=(), tfidf=None, max_steps=2, pooler="avg", output="runs", batch_size=8)


@pytest.fixture
def pile(sample_rows, tmp_path):
    """A table of 200 sentences, of which 80 have a label; three of these share a rare one, and one is alone."""
    draw = np.random.default_rng(0)
    rows = [(text, ["no", "yes"][int(len(text) > 110)] if draw.random() < 0.4 else "") for text in sample_rows[:196]]
    rows += [(sample_rows[number], "rare") for number in (300, 301, 302)]
    return write_table(tmp_path / "pile.csv", [*rows, (sample_rows[303], "alone")])


@pytest.fixture
def run(base, pile):
    return train(base.replace(corpus=pile, column="text", labels="label", name="run"))


def read(path):
    with open(path, encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_with_labels_keeps_a_classifier_that_labels_its_table(run, pile):
    assert run.classifier["classes"] == ["no", "rare", "yes"]
    promise = run.classifier["promise"]
    given = [row for row in read(pile) if row["label"]]
    assert promise["rows"] == len(given)  # with the rare labels and the one that cannot be predicted
    assert json.loads((run.folder / "result.json").read_text(encoding="utf8"))["classifier"] == run.classifier
    assert "## Labels" in (run.folder / "best" / "README.md").read_text(encoding="utf8")
    shown = command("predict", "runs/run", "-o", "out.csv", "--json")
    record = json.loads(shown.stdout)
    assert record["rows"] == 200
    assert record["given"] == len(given)
    assert record["predicted"] == 200 - len(given)
    rows = read("out.csv")
    assert [row["text"] for row in rows] == [row["text"] for row in read(pile)]
    for row in rows:
        assert row["label source"] == ("given" if row["label"] else "predicted")
        assert not row["label"] or (row["label predicted"] == row["label"] and not row["label confidence"])
    classifier = Classifier("runs/run", device="cpu")
    others = [row for row in rows if not row["label"]]
    proba = classifier.predict_proba([row["text"] for row in others])
    assert [row["label predicted"] for row in others] == classifier.predict([row["text"] for row in others]).tolist()
    known = (len(given) - 1) / len(given)
    assert np.allclose([float(row["label confidence"]) for row in others], known * proba.max(1), atol=1e-3)
    second = classifier.classes_[np.argsort(-proba, axis=1)[:, 1]].tolist()
    assert [row["label second"] for row in others] == second


def refused(*arguments):
    found = command(*arguments)
    assert isinstance(found.exception, InputError), found.stdout
    return str(found.exception)


def test_predicted_labels_neither_judge_nor_teach(run, base, pile):
    command("predict", "runs/run", "-o", "out.csv")
    for how in ({}, {"learn": True}):
        with pytest.raises(InputError, match=r"labels of .*out\.csv were predicted by cse predict"):
            train(base.replace(corpus="out.csv", column="text", labels="label predicted", **how))
    judged = ("--column", "text", "--labels", "label predicted")
    assert "were predicted by cse predict" in refused("compare", base.model, "runs/run", "--data", "out.csv", *judged)
    found = command(
        "doctor", "out.csv", "--column", "text", "--labels", "label predicted", "--json"
    )  # which only counts
    assert sum(json.loads(found.stdout)["labels"]["labels"].values()) > 0


def test_no_table_is_written_over_what_is_labelled_by_hand(run, pile):
    before = Path(pile).read_bytes()
    assert "is the table to read" in refused("predict", "runs/run", pile, "-o", pile)
    assert command("draw", pile, "--column", "text", "-o", "some.csv").exit_code == 0
    assert "may be filled in already" in refused("draw", pile, "--column", "text", "-o", "some.csv")
    Path("corrected.csv").write_text("text,label,label predicted\n", encoding="utf8")
    assert "may be filled in already" in refused("predict", "runs/run", "-o", "corrected.csv")
    assert Path(pile).read_bytes() == before
    assert "its folder does not exist; create it" in refused("predict", "runs/run", "-o", "nowhere/x.csv")
    assert "-: is read twice" in refused("predict", "runs/run", "-", "-o", "x.csv")


def test_a_run_finds_its_table_from_any_folder(run, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write_table(tmp_path / "elsewhere" / "pile.csv", [("another table", "")] * 3)
    assert json.loads(command("predict", "../runs/run", "-o", "out.csv", "--json").stdout)["rows"] == 200


def test_labels_of_the_table_that_the_classifier_does_not_know_are_counted(run, pile):
    rows = [*((row["text"], row["label"]) for row in read(pile)[:40]), ("this one is new", "maybe")]
    shown = command("predict", "runs/run", write_table("other.csv", rows), "-o", "out.csv").stdout
    assert "1 rows have a label in the table that the classifier does not know, such as 'maybe'; they keep it" in shown
    assert read("out.csv")[-1]["label predicted"] == "maybe"


def test_a_label_of_the_table_is_spelled_as_the_run_spells_it(base, sample_rows):
    rows = [(text, len(text) % 2) for text in sample_rows[:60]]
    train(base.replace(corpus=write_table("whole.csv", rows), column="text", labels="label", name="run"))
    gaps = [(text, f"{label}.0" if number < 40 else "") for number, (text, label) in enumerate(rows)]  # as of pandas
    assert command("predict", "runs/run", write_table("gaps.csv", gaps), "-o", "out.csv").exit_code == 0
    found = read("out.csv")
    assert {row["label predicted"] for row in found} == {"0", "1"}
    assert [row["label predicted"] for row in found[:40]] == [str(label) for _, label in rows[:40]]


def test_columns_of_the_same_name_are_refused_before_anything_is_encoded(run, sample_rows, tmp_path):
    write_table(tmp_path / "two.csv", [(text, "no", "yes") for text in sample_rows[:20]], ("text", "label", "label"))
    assert "two.csv has 2 columns 'label'" in refused("predict", "runs/run", "two.csv", "-o", "out.csv")
    write_table(tmp_path / "notes.csv", [(text, "a", "b") for text in sample_rows[:20]], ("text", "note", "note"))
    assert "has 2 columns named 'note'; rename all but one" in refused(
        "predict", "runs/run", "notes.csv", "-o", "x.jsonl"
    )
    assert command("predict", "runs/run", "notes.csv", "-o", "out.csv").exit_code == 0
    with open("out.csv", encoding="utf8", newline="") as file:
        assert next(csv.reader(file))[:3] == ["text", "note", "note"]
    message = refused("draw", "notes.csv", "--column", "text", "--labels", "text", "-o", "x.csv")
    assert message == "--labels text: is the column of the texts; name the column for their labels"
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder; name a file" in refused("predict", "runs/run", "notes.csv", "-o", "folder.csv")


def test_written_tables_are_read_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = ["one \r lone", "two\nlines", "three\r\nlines", 'a "quote", and a comma', " space ", "#\t;|", "\r", ""]
    path = write_table(
        "t.csv", [(f"text {number} {cell}", cell) for number, cell in enumerate(cells)], ("text", "note")
    )
    for suffix in (".csv", ".jsonl", ".parquet"):
        assert command("draw", path, "--column", "text", "-n", 1, "-o", f"out{suffix}").exit_code == 0
        again = f"again{suffix}.csv"
        assert command("draw", f"out{suffix}", "--column", "text", "-n", 1, "-o", again).exit_code == 0
        assert sorted(row["note"] for row in read(again)) == sorted(cells)
    assert b"\r\n" not in (tmp_path / "out.csv").read_bytes().replace(b"three\r\nlines", b"")
    kinds = {"text": [b"one text", "zw\u00e9i".encode()], "days": pa.array([[date(2026, 1, 2)], None])}
    pq.write_table(pa.table(kinds), "kinds.parquet")
    for suffix in (".csv", ".jsonl"):
        assert command("draw", "kinds.parquet", "--column", "text", "-n", 2, "-o", f"kinds{suffix}").exit_code == 0
    assert sorted(row["text"] for row in read("kinds.csv")) == ["one text", "zw\u00e9i"]
    objects = [json.loads(line) for line in (tmp_path / "kinds.jsonl").read_text(encoding="utf8").splitlines()]
    assert sorted(str(each["days"]) for each in objects) == ["None", "['2026-01-02']"]
    (tmp_path / "half.jsonl").write_text('{"text": "good day", "note": "cut \\ud83d"}\n', encoding="utf8")
    assert command("draw", "half.jsonl", "--column", "text", "-n", 1, "-o", "half.csv").exit_code == 0
    assert read("half.csv")[0]["note"] == "cut \ufffd"
    (tmp_path / "latin.csv").write_bytes("text,gr\u00f6\u00dfe\na,b\n".encode("latin-1"))
    assert "the names of its columns are not UTF-8; convert it" in refused(
        "draw", "latin.csv", "--column", "text", "-n", 1, "-o", "x.csv"
    )


def test_a_run_that_was_stopped_before_its_classifier_says_how_to_go_on(run):
    shutil.rmtree(run.folder / "best" / "classifier")
    (run.folder / "result.json").unlink()
    assert refused("predict", "runs/run", "-o", "x.csv").endswith("resume with: cse train --resume runs/run")


def test_tables_of_every_format_keep_their_columns_and_types(run, sample_rows, tmp_path):
    texts = sample_rows[300:303]
    pq.write_table(
        pa.table({"n": pa.array([1, 2, None], pa.int32()), "text": texts, "tags": [["a"], [], None]}), "t.parquet"
    )
    assert command("predict", "runs/run", "t.parquet", "-o", "out.parquet").exit_code == 0
    found = pq.read_table("out.parquet")
    assert found.column_names[:3] == ["n", "text", "tags"]
    assert found.schema.field("n").type == pa.int32()
    assert found.column("tags").to_pylist() == [["a"], [], None]
    assert found.schema.field("label confidence").type == pa.float64()
    lines = [{"text": texts[0], "more": {"a": 1}}, {"text": texts[1], "other": 2.5}]
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf8")
    assert command("predict", "runs/run", "t.jsonl", "-o", "out.jsonl").exit_code == 0
    objects = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf8").splitlines()]
    assert objects[0]["more"] == {"a": 1}
    assert objects[1]["other"] == 2.5
    assert command("predict", "runs/run", "t.jsonl", "-o", "out.csv").exit_code == 0
    assert json.loads(read("out.csv")[0]["more"]) == {"a": 1}
    assert command("predict", "runs/run", "t.jsonl", "-o", "mixed.parquet").exit_code == 0
    (tmp_path / "t.txt").write_text(f"{texts[0]}\n\n{texts[1]}\n", encoding="utf8")
    assert command("predict", "runs/run/best", "t.txt", "-o", "text.csv").exit_code == 0
    rows = read("text.csv")
    assert [row["text"] for row in rows] == [texts[0], "", texts[1]]
    assert rows[1]["label predicted"] == rows[1]["label source"] == ""
    kinds = {row["label predicted"] for row in (rows[0], rows[2])}
    assert kinds <= {"no", "yes", "rare"}


def test_what_parquet_cannot_hold_is_one_sentence_and_leaves_no_file(run, sample_rows, tmp_path):
    (tmp_path / "large.jsonl").write_text(json.dumps({"text": sample_rows[0], "n": 10**30}) + "\n", encoding="utf8")
    (tmp_path / "bytes.csv").write_bytes(f'text,more\n"{sample_rows[1].replace(chr(34), "")}",'.encode() + b"\xff\n")
    for table in ("large.jsonl", "bytes.csv"):
        shown = command("predict", "runs/run", table, "-o", "out.parquet")
        assert "a column cannot have one type of Parquet" in str(shown.exception)
        assert not [*tmp_path.glob("out.parquet*")]
        assert command("predict", "runs/run", table, "-o", f"{table}.csv").exit_code == 0


def test_equal_texts_get_one_label_and_a_text_with_two_is_predicted(run, sample_rows, tmp_path):
    one, two, three = sample_rows[400:403]
    rows = [(one, "yes"), (f" {one}\u200b", ""), (two, "no"), (two, "yes"), (three, ""), (three.replace(" ", "  "), "")]
    write_table(tmp_path / "t.csv", rows)
    record = json.loads(command("predict", "runs/run", "t.csv", "-o", "out.csv", "--json").stdout)
    assert (record["given"], record["predicted"], record["texts_with_two_labels"]) == (2, 4, 1)
    found = read("out.csv")
    assert [row["label source"] for row in found] == ["given"] * 2 + ["predicted"] * 4
    assert found[1]["label predicted"] == "yes"
    for first in (2, 4):
        same = [{name: row[name] for name in row if name.startswith("label ")} for row in found[first : first + 2]]
        assert same[0] == same[1]


def test_labels_of_other_types_keep_them(base, sample_rows, tmp_path):
    values = [len(text) > 110 if number % 2 else None for number, text in enumerate(sample_rows[:120])]
    pq.write_table(pa.table({"text": sample_rows[:120], "long": values}), "t.parquet")
    train(base.replace(corpus="t.parquet", column="text", labels="long", name="run"))
    assert command("predict", "runs/run", "-o", "out.parquet").exit_code == 0
    found = pq.read_table("out.parquet")
    assert found.schema.field("long predicted").type == pa.bool_()
    assert None not in found.column("long predicted").to_pylist()
    in_memory = train(
        base.replace(name="memory"), texts=sample_rows[:120], labels=[None if v is None else int(v) + 4 for v in values]
    )
    assert Classifier(in_memory.folder).classes_.tolist() == [4, 5]
    shown = command("predict", in_memory.folder, "-o", "x.csv")
    assert "is not one file here; name TABLE" in str(shown.exception)


def test_labels_below_the_least_confidence_are_left_empty(run):
    command("predict", "runs/run", "-o", "all.csv")
    confidence = [float(row["label confidence"]) for row in read("all.csv") if row["label confidence"]]
    least = float(np.median(confidence))
    shown = command("predict", "runs/run", "-o", "some.csv", "--min-confidence", least)
    left_out = sum(row["label source"] == "" for row in read("some.csv"))
    assert f"{left_out} predicted rows are below {least:g}, and get no label" in shown.stdout
    for row, some in zip(read("all.csv"), read("some.csv"), strict=True):
        if row["label source"] == "predicted":
            kept = float(row["label confidence"]) > least - 1e-4
            assert kept or some["label predicted"] == some["label source"] == ""
            assert some["label confidence"] == row["label confidence"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/none", "-o", "x.csv"], "no such folder; name a run that was trained with --labels"),
        (["MODEL", "-o", "x.csv"], "has no classifier"),
        (["runs/run", "-o", "x.txt"], "the name must end in .csv, .jsonl or .parquet"),
        (["runs/run", "none.csv", "-o", "x.csv"], "No such file"),
        (["runs/run", "other.csv", "-o", "x.csv"], "use --column to name the column"),
        (
            ["runs/run", "taken.csv", "-o", "x.csv"],
            "is a column of this table already; name the new columns with --prefix",
        ),
        (["runs/run", "pile.csv", "--column", "no", "-o", "x.csv"], "has no column 'no'"),
        (["export", "-o", "x.csv"], "is not the folder of a run, so TABLE must be named"),
    ],
)
def test_refusals_of_predict(run, tiny_bert, sample_rows, arguments, message):
    write_table("other.csv", [(text, "") for text in sample_rows[:20]], ("sentence", "kind"))
    write_table("taken.csv", [(text, "") for text in sample_rows[:20]], ("text", "label second"))
    shutil.copytree("runs/run/best", "export")
    shown = command("predict", *(str(tiny_bert) if each == "MODEL" else each for each in arguments))
    assert message in str(shown.exception)
    if "taken.csv" in arguments:
        assert command("predict", *arguments, "--prefix", "guess").exit_code == 0
        assert "guess second" in read("x.csv")[0]


def test_an_interrupted_call_resumes(run, sample_rows, monkeypatch):
    monkeypatch.setattr("cse.encoder.vector_files.BLOCK", 20)
    assert BLOCK > 20
    whole = command("predict", "runs/run", "-o", "whole.csv")
    encode, calls = predicting.Scores.encode, []

    def stops(scores, texts, **more):
        calls.append(len(texts))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return encode(scores, texts, **more)

    monkeypatch.setattr(predicting.Scores, "encode", stops)
    assert command("predict", "runs/run", "-o", "out.csv").exit_code != 0
    assert command("predict", "runs/run", "-o", "out.csv").exit_code == 0
    assert len(calls) == 4 + 7  # three of ten blocks were done
    assert read("out.csv") == read("whole.csv")
    assert whole.exit_code == 0
    from pathlib import Path

    assert not [*Path().glob("*.scores*")]

    # Nothing is encoded again if what follows is interrupted.
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(predicting.Labelling, "test", interrupted)
        assert command("predict", "runs/run", "-o", "late.csv").exit_code != 0
    monkeypatch.setattr(predicting.Scores, "encode", lambda *_, **more: pytest.fail("encoded again"))
    assert command("predict", "runs/run", "-o", "late.csv").exit_code == 0
    assert read("late.csv") == read("whole.csv")
    assert not [*Path().glob("*.scores*")]


def test_labels_that_were_not_drawn_at_random_promise_no_accuracy(base, sample_rows, tmp_path):
    rows = sorted(sample_rows[:400], key=len)
    table = [(text, "ab"[number % 2] if number < 100 else "") for number, text in enumerate(rows)]
    write_table(tmp_path / "t.csv", table)
    train(base.replace(corpus="t.csv", column="text", labels="label", name="run"))
    shown = command("predict", "runs/run", "-o", "out.csv")
    assert "these labels were not drawn at random from these rows" in shown.stdout
    assert "no accuracy is known" in shown.stdout
    assert "accuracy " not in shown.stdout.replace("no accuracy", "")
    record = json.loads(command("predict", "runs/run", "-o", "again.csv", "--json").stdout)
    assert record["accuracy"] is record["thresholds"][0]["accuracy"] is None
    assert record["drawn"]["at_random"] is False


def test_an_encoder_that_learns_from_labels_has_the_confidence_of_its_folds(base, sample_rows, tmp_path, monkeypatch):
    draw = np.random.default_rng(1)
    rows = [(text, "ab"[draw.integers(2)]) for text in sample_rows[:60]]  # labels that nothing predicts
    rows += [(sample_rows[80], "rare"), (sample_rows[81], "rare")]
    rows += [(text, "") for text in sample_rows[100:160]]
    write_table(tmp_path / "t.csv", rows)
    monkeypatch.setattr("cse.training.selection.Selector.lost", lambda selector, record: 0.0)
    config = base.replace(corpus="t.csv", column="text", labels="label", learn=True, folds=2, lr=5e-3)
    config = config.replace(max_steps=60, batch_size=32)
    kept = {}
    read_log_odds = folds.read_log_odds

    def keeps(folder):
        kept.update({path.name: path.read_text(encoding="utf8") for path in (folder / "folds").glob("*.json")})
        return read_log_odds(folder)

    monkeypatch.setattr(folds, "read_log_odds", keeps)
    result = train(config.replace(name="run"))
    assert result.best_step > 0
    promise = result.classifier["promise"]
    assert promise["rows"] == 62
    assert "an encoder and a classifier that learned the labels of the others" in promise["how"]
    assert promise["accuracy"]["value"] < 70  # of labels at random
    found = [json.loads(content) for _, content in sorted(kept.items())]
    assert sorted(len(each["log_odds"]) for each in found) == [31, 31]
    # What predicts a row learned neither its label nor that of a rare one in its fold.
    classifier = Classifier(result.folder, device="cpu")
    assert classifier.classes_.tolist() == ["a", "b", "rare"]
    corpus = Corpus.read(readers.resolve("t.csv", "text"))
    whole = labelled_texts(corpus, read_classes(corpus, "label", "--labels label"))
    learned = fit(whole, classifier.opened().encode(whole.texts)).promise
    assert learned.accuracy.value > promise["accuracy"]["value"] + 15  # the leak of cross-fitting the classifier alone
    # An earlier version stored no log-odds: such a fold is trained again.
    folder = result.folder
    (folder / "folds").mkdir()
    (folder / "folds" / "1.json").write_text(json.dumps(found[0]["samples"]), encoding="utf8")
    (folder / "folds" / "2.json").write_text(json.dumps(found[1]), encoding="utf8")
    trained = []
    judged_by_fold = folds.judged_by_fold

    def counts(judge, labelled, place, train_fold, callback):
        def counted(*given):
            trained.append(given[0].name)
            return train_fold(*given)

        return judged_by_fold(judge, labelled, place, counted, callback)

    monkeypatch.setattr(folds, "judged_by_fold", counts)
    again = train(resumed_config(folder), resume=folder)
    assert trained == ["1"]
    assert again.classifier == result.classifier


def test_a_copy_has_the_classifier_and_a_static_encoder_does_not(run, pile, tmp_path):
    assert command("export", "runs/run", "-o", "copy").exit_code == 0
    assert Classifier(tmp_path / "copy").promise.to_dict() == Classifier("runs/run").promise.to_dict()
    arguments = ["--static", "--corpus", pile, "--column", "text", "-o", "static"]
    assert command("export", "runs/run", *arguments).exit_code == 0
    shown = command("predict", "static", pile, "--column", "text", "-o", "x.csv")
    assert "has no classifier" in str(shown.exception)
    before = Encoder("runs/run/best").files()
    assert not [name for name, _ in before if "classifier" in name]  # so that its embeddings are known by the same hash


def test_drawn_rows_stand_first_and_have_no_label_yet(pile, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = command("draw", pile, "--column", "text", "-n", 10, "--labels", "label", "-o", "out.csv", "--json")
    assert json.loads(shown.stdout) == {"output": "out.csv", "rows": 200, "drawn": 10, "labels": "label"}
    rows, before = read("out.csv"), read(pile)
    assert sorted(row["text"] for row in rows) == sorted(row["text"] for row in before)
    assert not any(row["label"] for row in rows[:10])
    order = [before.index(row) for row in rows[10:]]
    assert order == sorted(order)
    command("draw", pile, "--column", "text", "-n", 10, "--seed", 1, "-o", "other.csv")
    assert [row["text"] for row in read("other.csv")[:10]] != [row["text"] for row in rows[:10]]
    command("draw", pile, "--column", "text", "-n", 5, "--labels", "topic", "-o", "new.csv")
    assert {row["topic"] for row in read("new.csv")} == {""}
    (tmp_path / "t.txt").write_text("one\ntwo\none\n\n", encoding="utf8")
    assert command("draw", "t.txt", "-n", 2, "-o", "text.csv").exit_code == 0
    assert {row["text"] for row in read("text.csv")[:2]} == {"one", "two"}
    write_table(tmp_path / "both.csv", [("one", "a"), ("one", "b"), ("two", ""), ("three", "a")])
    assert command("draw", "both.csv", "--column", "text", "-n", 1, "-o", "free.csv").exit_code == 0
    assert read("free.csv")[0]["text"] == "two"
    assert "only 1 rows with different texts have no label" in refused(
        "draw", "both.csv", "--column", "text", "-n", 2, "-o", "x.csv"
    )
    assert "only 2 rows with different texts have no label" in str(
        command("draw", "t.txt", "-n", 3, "-o", "x.csv").exception
    )
