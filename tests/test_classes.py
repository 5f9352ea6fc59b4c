"""Tests of labels: which cells are one class, and how columns with a frequent class are judged and shown."""

import json
import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

import cse
from cse.cli import group
from cse.data import readers
from cse.data.classes import label_of, read_classes
from cse.data.corpus import Corpus
from cse.data.pairs import values_of
from cse.data.tables import as_text
from cse.errors import EqualVectors, check_labels
from cse.evaluation import significance, verdict
from cse.evaluation.labels import choose_labelled, samples_of
from cse.training.setup import prepare
from runs import write_table
from test_retrieval import command


@pytest.mark.parametrize(
    ("label", "cells"),
    [
        ("", ["", " ", "NaN", "nan", " NAN\t"]),
        ("1", ["1", "1.0", " 1.00", "True", "true", "TRUE"]),
        ("0", ["0", "0.0", "False", "false"]),
        ("-3", ["-3", "-3.0"]),
        ("0", ["-0", "-0.0"]),
        ("1.1", ["1.1", "1.10"]),
        ("not spam", ["not spam", "not  spam", "not\u00a0spam", "\ufeffnot\tspam\u200b"]),
        ("['a', 'b']", ["['a', 'b']", "['b', 'a']", "['b','a']"]),
        ("caf\u00e9", ["caf\u00e9", "cafe\u0301 "]),
        *((each, [each]) for each in ("NA", "none", "-", "null", "01", "1.5", "a|b", "1.2.3", "A", "yes")),
    ],
)
def test_cells_of_equal_meaning_are_one_label(label, cells):
    assert {label_of(cell) for cell in cells} == {label}


TEXTS = [f"text {chr(97 + number % 26)} {number}" for number in range(120)]


def written(folder, kind):
    """Writes a table in which every third label is missing, and the others are 1 and 2, in the way of a format."""
    labels = [None if number % 3 == 0 else 1 + number % 2 for number in range(120)]
    path = folder / f"table-{kind}.{kind.split('-')[0]}"
    frame = pd.DataFrame({"text": TEXTS, "label": pd.array(labels, dtype="Int64")})
    if kind == "csv-gap":
        frame.astype({"label": "float64"}).to_csv(path, index=False)
    elif kind == "csv-named":
        frame.astype({"label": "float64"}).to_csv(path, index=False, na_rep="NaN")
    elif kind.startswith("jsonl"):
        ways = {None: [float("nan")], 1: [1.0], 2: [2.0]}
        if kind == "jsonl-mixed":
            ways = {None: [None, "", "NaN"], 1: [1, 1.0, "1", True], 2: [2, 2.0, "2", "2.0"]}
        rows = [
            {"text": text, "label": ways[label][number % len(ways[label])]}
            for number, (text, label) in enumerate(zip(TEXTS, labels, strict=True))
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
    else:
        frame.astype({"label": "float64"} if kind == "parquet-nan" else {}).to_parquet(path)
    return path


def test_labels_in_memory_are_values_whatever_holds_them():
    values = [
        1,
        np.int64(1),
        np.float32(1),
        torch.tensor(1),
        np.array(1),
        True,
        "1",
        b"1",
        np.bytes_(b"1"),
        np.str_("1"),
    ]
    assert {label_of(as_text(each)) for each in check_labels(values, len(values))} == {"1"}
    assert check_labels([None, math.nan, np.nan, torch.tensor(math.nan), ""], 5) == [""] * 5
    assert check_labels(torch.tensor([2, 3]), 2) == [2, 3]
    for rows in (np.eye(3), torch.eye(3), [np.ones(1), np.zeros(1), np.ones(1)]):
        with pytest.raises(cse.InputError, match=r"labels: element 0 has the shape \(\d,\), but a label is one value"):
            check_labels(rows, 3)


def test_labels_are_read_with_the_limit_of_the_texts(tmp_path, monkeypatch):
    monkeypatch.setattr("cse.data.tables.MOST", 1000)
    path = tmp_path / "long.jsonl"
    rows = [{"text": f"row {n}", "y": "ab"[n % 2], "more": "x" * (5000 if n == 7 else 10)} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
    files = readers.resolve(str(path), "text")
    corpus = Corpus.read(files, max_line_bytes=6000)
    assert read_classes(corpus, "y", "--labels y").names == ["a", "b"]
    stored = Corpus.open(readers.resolve(str(path), "text"), max_line_bytes=6000)
    assert read_classes(stored, "y", "--labels y").names == ["a", "b"]
    with pytest.raises(cse.InputError, match="is longer than 1,000 bytes"):
        list(values_of([str(path)], "--labels y", "y", 1000))


@pytest.mark.parametrize("kind", ["csv-gap", "csv-named", "jsonl-nan", "jsonl-mixed", "parquet-nan", "parquet-null"])
def test_every_format_has_the_same_labels(tmp_path, kind):
    corpus = Corpus.read(readers.resolve(written(tmp_path, kind), "text"))
    classes = read_classes(corpus, "label", "--labels label")
    assert classes.names == ["1", "2"]
    assert classes.of_rows.tolist() == [-1 if number % 3 == 0 else number % 2 for number in range(120)]
    found, _ = choose_labelled(corpus, classes, [1.0])
    assert len(found.texts) == 80
    assert found.notes == [
        "2 labels: 1 40, 2 40; the most frequent one has 50.0% of the rows",
        "rows without a label, or with two: 40; with a label of fewer than 10: 0",
    ]


@pytest.fixture
def table(tmp_path, sample_rows):
    """Sentences with labels, of which one is frequent, some are rare or missing, and some are several."""
    labels = ["news"] * 200 + ["NA"] * 60 + ["none"] * 40 + ["news|NA"] * 20 + ["rare"] * 3 + [""] * 27
    return write_table(tmp_path / "table.csv", zip(sample_rows[:350], labels, strict=True), ("text", "kind"))


SHOWN = (
    "5 labels: news 200, NA 60, none 40, news|NA 20, rare 3; the most frequent one has 61.9% of the rows",
    "rows without a label, or with two: 27; with a label of fewer than 10: 3",
    "20 cells seem to hold several labels, such as 'news|NA'; each different cell is one label",
)


def test_a_run_and_a_comparison_show_the_labels(table, run_config, tiny_bert, tiny_roberta):
    config = run_config.replace(corpus=table, column="text", labels="kind", tfidf=None)
    assert all(note in prepare(config).facts["labels"] for note in SHOWN)
    done = command(
        "compare", tiny_bert, tiny_roberta, "--pooler", "avg", "--data", table, "--column", "text", "--labels", "kind"
    )
    assert all(note in done.stdout for note in SHOWN)


def encoders(count=700):
    """Labels of which one has 63 %, and the vectors of an encoder that knows a little of them, and of one that nearly
    always has the same vector."""
    draw = np.random.default_rng(0)
    labels = (draw.random(count) < 0.37).astype(np.int64)
    some = draw.normal(size=(count, 16))
    some[:, 0] += 1.5 * labels
    flat = np.ones((count, 16))
    flat[:, 0] += 0.05 * draw.normal(size=count)
    return labels, some, flat


def test_an_encoder_is_not_better_because_it_always_finds_the_frequent_label():
    labels, some, flat = encoders()
    knows, constant = (samples_of("kind", vectors, labels) for vectors in (some, flat))
    found = verdict.judge(knows, constant)
    assert found.word == "worse"
    assert [abs(record["b"] - 50) < 5 for record in found.measures] == [True, True]
    shown = "\n".join(verdict.lines(found.to_dict()))
    for record, sample in zip(found.measures, knows, strict=True):
        recalls = [sample.values[labels == label].mean() for label in (0, 1)]
        assert record["a"] == pytest.approx(np.mean(recalls))
        assert record["by_rows"][0] == pytest.approx(sample.values.mean())
        assert f"{record['task']}, accuracy of all rows" in shown
    assert verdict.judge(constant, knows).word == "better"


def test_rows_are_resampled_within_their_classes():
    draw = np.random.default_rng(1)
    classes = np.repeat([0, 1, 2], [150, 30, 12])
    before, after = 100.0 * draw.integers(0, 2, (2, 192))
    found = significance.paired_difference([before], [after], classes=classes)
    expected = np.mean([(after - before)[classes == each].mean() for each in range(3)])
    assert found.mean == pytest.approx(expected)
    resamples = [
        np.mean([draw.choice((after - before)[classes == each], np.sum(classes == each)).mean() for each in range(3)])
        for _ in range(4000)
    ]
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * np.std(resamples), rel=0.08)


def test_few_changes_are_tested_by_flips_of_their_weighted_signs():
    classes = np.repeat([0, 1], [180, 20])
    before = np.full(200, 100.0)
    after = before.copy()
    after[[3, 7, 9, 185, 190]] = 0
    after[[5]] = 0
    before[5], after[5] = 0, 100.0
    found = significance.paired_difference([before], [after], classes=classes)
    changes = np.array([-1 / 180, -1 / 180, -1 / 180, 1 / 180, -1 / 20, -1 / 20])
    totals = [abs(np.sum(np.array(signs) * np.abs(changes))) for signs in product((1, -1), repeat=6)]
    assert found.p == pytest.approx(np.mean([total >= abs(changes.sum()) - 1e-12 for total in totals]))
    assert found.mean == pytest.approx(100 * changes.sum() / 2)
    assert found.low < found.mean < found.high


def test_equal_vectors_are_refused_by_eval_and_compare(table):
    class Encodes:
        def __init__(self, name):
            self.name = name

        def encode(self, texts, **_):
            draw = np.random.default_rng(0).normal(size=(len(texts), 8))
            return np.ones((len(texts), 8)) if self.name == "flat" else draw

    options = {"labels": {"labels": "kind", "column": "text"}}
    message = r"^flat: the vectors of all \d+ texts are equal, so that nothing can be scored; name another encoder$"
    with pytest.raises(cse.InputError, match=message):
        cse.evaluate(Encodes("flat"), "labels", table, options=options)
    for names in (("other", "flat"), ("flat", "other")):
        with pytest.raises(cse.InputError, match=message):
            cse.compare(*map(Encodes, names), "labels", table, options=options)


@pytest.mark.parametrize(("error", "code"), [(EqualVectors, 1), (cse.InputError, 2)])
def test_equal_vectors_are_no_wrong_input(error, code, monkeypatch, capsys):
    def fail(**_):
        raise error("flat: the vectors are equal")

    monkeypatch.setattr(group.cli, "main", fail)
    assert group._run([2]) == code
    assert "Error: flat: the vectors are equal" in capsys.readouterr().err
