"""Tests of the verdict: its words, what judges (labels, queries, halves of --dev, pairs), and where it is shown."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from cse import Callback, InputError, TrainConfig, train
from cse.data import readers
from cse.data.classes import likely_labels, read_classes
from cse.data.corpus import Corpus
from cse.encoder.base import check_finite
from cse.encoder.taught import read_taught
from cse.errors import EqualVectors
from cse.evaluation import EVALUATIONS, choice, verdict
from cse.evaluation.apart import without
from cse.evaluation.base import Evaluation, Pairs, Report, Sample
from cse.evaluation.geometry import HalvesScore, PairSearch, unit
from cse.evaluation.labels import (
    CrossFitted,
    Fold,
    LabelledTexts,
    Labels,
    TooFewLabels,
    capped,
    choose_folds,
    choose_labelled,
    classified,
    logistic,
    neighbours,
    visible,
)
from cse.evaluation.labels import words as words_of
from cse.evaluation.options import LabelsOptions, STSOptions
from cse.evaluation.significance import scores_of
from cse.evaluation.sts import STS
from cse.identity import row_keys
from cse.training import folds, loop
from cse.training.judging import Judge, concluded
from cse.training.loop import resumed_config
from cse.training.remarks import check
from cse.training.scoring import Scorer
from cse.training.selection import Selector, halve
from cse.training.setup import prepare
from runs import labelled_corpus, weights, write_table
from test_evaluation import Table
from test_retrieval import collection as collection
from test_retrieval import command


def rows_of(rate, count=400, name="measure", seed=0):
    """Returns a sample of rows of which the given fraction is right."""
    return Sample(name, 100.0 * (np.random.default_rng(seed).random(count) < rate), unit="rows")


def test_the_word_is_that_of_the_first_measure_unless_a_further_one_is_worse():
    low, high = rows_of(0.5), rows_of(0.8, seed=1)
    better, worse, same = (low, high), (high, low), (high, high)
    for pairs, word in (
        ([better], "better"),
        ([worse], "worse"),
        ([same], "cannot tell"),
        ([better, same], "better"),
        ([better, worse], "mixed"),
        ([same, worse], "mixed"),
        ([worse, worse], "worse"),
        ([worse, better], "worse"),
        ([same, better], "cannot tell"),
    ):
        before, after = zip(*pairs, strict=True)
        assert verdict.judge(before, after).word == word


def test_the_smallest_visible_difference_is_the_wider_half_of_the_interval():
    found = verdict.judge([rows_of(0.5)], [rows_of(0.5, seed=2)])
    (record,) = found.measures
    assert record["visible"] == max(record["high"] - record["mean"], record["mean"] - record["low"]) > 3
    assert f"a difference of {record['visible']:.2f} would have shown" in "\n".join(verdict.lines(found.to_dict()))


def test_neighbours_vote_without_the_row_itself():
    generator = np.random.default_rng(0)
    vectors, labels = unit(generator.normal(size=(60, 8))), generator.integers(0, 3, 60)
    for row, found in enumerate(neighbours(vectors, labels)):
        cosines = vectors @ vectors[row]
        cosines[row] = -2
        near = np.argsort(-cosines)[:10]
        votes = [sum(1 + cosines[other] / 1000 for other in near if labels[other] == kind) for kind in range(3)]
        votes = [vote / np.mean(labels == kind) for kind, vote in enumerate(votes)]
        assert found == (int(np.argmax(votes)) == labels[row])


def test_the_linear_classifier_is_judged_on_rows_that_it_was_not_trained_on():
    generator = np.random.default_rng(0)
    vectors, labels = unit(generator.normal(size=(200, 300))), generator.integers(0, 2, 200)
    right = classified(logistic, vectors, labels)
    assert right.mean() < 0.65  # 300 dimensions separate the 200 rows that are trained on
    assert set(np.round(5 * right)) == {0, 1, 2, 3, 4, 5}  # the mean over five divisions into folds
    assert classified(logistic, vectors[:80], labels[:80], (vectors[80:], labels[80:])).mean() < 0.7
    vectors[:, 0] = 2 * labels - 1
    assert classified(logistic, unit(vectors), labels).mean() > 0.95


def test_held_out_rows_are_predicted_from_the_others_only():
    """The held-out rows have two clusters each, with one label in common with the others."""
    generator = np.random.default_rng(0)
    place = generator.integers(0, 2, 90)
    vectors = unit(np.eye(4)[place] + generator.normal(0, 0.05, (90, 4)))
    judged, others = (vectors[:30], place[:30]), (vectors[30:], 1 - place[30:])  # the others have the opposite labels
    assert neighbours(*judged).mean() == classified(logistic, *judged).mean() == 1
    assert neighbours(*judged, others).mean() == classified(logistic, *judged, others).mean() == 0


def test_scores_beside_those_of_the_encoder_need_no_encoder(sample_rows):
    texts = [
        f"{word} {row.split()[0]}" for row, word in zip(sample_rows[:90], ["red", "blue", "green"] * 30, strict=True)
    ]
    labels = np.array([0, 1, 1] * 30)
    judged = Labels(None, LabelledTexts("kind", texts[:30], labels[:30], texts[30:], labels[30:]))
    found = scores_of(judged.beside)
    assert found["kind by most frequent label"] == 50  # it finds all rows of one label, none of the other
    assert found["kind by TF-IDF and logistic regression"] > 80  # the first word tells the label


@pytest.mark.parametrize("count", [40, 400, 1500])
def test_the_visible_difference_is_the_smallest_that_the_verdict_shows(count):
    labels = np.arange(count) % 2
    smallest = visible(labels)
    changed = np.random.default_rng(0).permutation(count)[: count // 10]
    shown = []
    for up in range(len(changed) // 2, len(changed) + 1):
        before, after = np.full(count, 100.0), np.full(count, 100.0)
        before[changed[:up]], after[changed[up:]] = 0, 0
        found = verdict.judge([Sample("m", before, classes=labels)], [Sample("m", after, classes=labels)])
        shown += [found.measures[0]["mean"]] if found.word == "better" else []
    assert smallest == min(shown, default=None)
    assert (smallest is None) == (count == 40)


def test_rows_are_chosen_by_the_hash_of_their_text(tmp_path, sample_rows):
    rows = [(text, "ab"[number % 2]) for number, text in enumerate(sample_rows[:200])]
    rows += [(sample_rows[0], "b"), (sample_rows[2].upper(), "a"), (f" {sample_rows[4]}", "")]
    rows += [(sample_rows[300], ""), ("", "a"), (sample_rows[301], "rare")]
    chosen = {}
    for name, order in (("one", rows), ("other", rows[::-1])):
        corpus, classes = labelled_corpus(tmp_path / f"{name}.csv", order)
        found, held = choose_labelled(corpus, classes, [1.0])
        chosen[name] = dict(zip(found.texts, found.labels.tolist(), strict=True))
        keys = row_keys(corpus.take(held)).tolist()
        assert {*keys} == {*row_keys(found.texts).tolist()}
        # Every repetition is held out, in any spelling and without a label.
        assert [keys.count(key) for key in row_keys([sample_rows[number] for number in (1, 2, 4)])] == [1, 2, 2]
    assert chosen["one"] == chosen["other"]
    assert len(chosen["one"]) == 199  # without the text that has both labels, the blank ones and the rare class
    assert sample_rows[0] not in chosen["one"]
    some, _ = choose_labelled(corpus, classes)
    assert len(some.texts) == int(0.2 * 200)
    assert set(some.texts) <= chosen["one"].keys()
    assert {*some.texts, *some.others} == {*chosen["one"]}  # the rare class does not predict, either
    with pytest.raises(TooFewLabels, match="fewer than two classes have 10 of the 10 rows"):
        choose_labelled(corpus, classes, [0.05])


def test_more_rows_are_held_out_if_most_labels_need_them_and_caps_are_said(tmp_path, sample_rows, monkeypatch):
    rows = [(text, number % 15) for number, text in enumerate(sample_rows[:400])]  # 26 of each label
    corpus, classes = labelled_corpus(tmp_path / "many.csv", rows)
    found, _ = choose_labelled(corpus, classes)
    assert 100 < len(found.texts) <= 200
    counts = np.bincount(found.labels)
    assert (counts[counts > 0] >= 10).all()
    assert (counts >= 10).sum() > 7
    assert f"{len(found.texts)} rows of {(counts >= 10).sum()} of the 15 labels judge" in found.notes[1]
    assert {*found.labels_of_others.tolist()} == {*found.labels.tolist()}
    assert len(found.texts) + len(found.others) in range(26 * len({*found.labels}), 27 * len({*found.labels}) + 1)
    rare = [(text, f"rare {number}") for number, text in enumerate(sample_rows[400:500])]
    two = [(text, number % 2) for number, text in enumerate(sample_rows[:300])]
    assert len(choose_labelled(*labelled_corpus(tmp_path / "rare.csv", [*two, *rare]))[0].texts) <= 0.2 * 400
    monkeypatch.setattr("cse.evaluation.labels.MOST_OTHERS", 50)
    capped, _ = choose_labelled(corpus, classes, most=100)
    assert len(capped.others) == 50
    assert [note for note in capped.notes if f"at most 100 of {len(found.texts)} rows judge" in note]
    assert [note for note in capped.notes if "predicted from 50 of the" in note]


def test_few_labels_judge_each_other_if_most_rows_have_none(tmp_path, sample_rows):
    rows = [(text, str(number % 4) if number < 48 else "") for number, text in enumerate(sample_rows[:96])]
    corpus, classes = labelled_corpus(tmp_path / "few.csv", rows)
    found, held = choose_labelled(corpus, classes)
    assert (len(found.texts), len(held), found.others) == (48, 48, [])
    with pytest.raises(TooFewLabels):  # these labels also teach
        choose_labelled(corpus, classes, rare=True)
    more = labelled_corpus(tmp_path / "half.csv", rows[:95])
    with pytest.raises(TooFewLabels, match="fewer than two classes have 10 of the 24 rows that would be held out"):
        choose_labelled(*more)


@pytest.mark.parametrize(
    ("counts", "most"), [((5000, 300, 40), 500), ((70, 60, 50, 40), 100), ((9, 8, 7), 20), ((30,) * 20, 95)]
)
def test_a_cap_keeps_ten_rows_of_each_label_that_has_them_and_the_first_ones_of_each(counts, most):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    kept = capped(labels, most)
    left = np.bincount(labels[kept], minlength=len(counts))
    many = sum(min(10, count) for count in counts) > most
    assert most - 10 * len(counts) < kept.sum() <= most
    for label, count in enumerate(left):
        rows = np.flatnonzero(labels == label)
        assert kept[rows[:count]].all()
        assert not kept[rows[count:]].any()
        assert count in (0, min(10, counts[label])) if many else count >= min(10, counts[label])
    assert capped(labels, len(labels)).all()


def test_a_rare_label_of_a_large_table_judges(tmp_path):
    rows = [(f"text number {n}", "fraud" if n % 250 == 0 else "ok") for n in range(20_000)]
    corpus, classes = labelled_corpus(tmp_path / "rare.csv", rows)
    found, held = choose_labelled(corpus, classes)
    assert np.bincount(found.labels).tolist() == [10, 1990]
    assert len(held) == 2000
    assert np.bincount(found.labels_of_others)[0] >= 10  # 70 other rows have this label
    folds = choose_folds(corpus, classes, 5)
    assert np.bincount(np.concatenate([fold.texts.labels for fold in folds])).tolist() == [10, 1990]
    assert all(np.bincount(fold.texts.labels_of_others)[0] >= 10 for fold in folds)


def test_labels_of_which_fewer_than_ten_rows_are_left_do_not_judge():
    labels = np.repeat([0, 1, 2], 40)
    texts = [f"t {number}" for number in range(120)]
    judged = LabelledTexts("y", texts, labels, [f"o {number}" for number in range(60)], np.arange(60) % 3)
    rest, gone, total = without(Labels(LabelsOptions(), judged), lambda known: np.isin(known, texts[1:40]))
    assert (gone, total) == (39, 120)
    assert np.bincount(rest.texts.labels).tolist() == [0, 40, 40]
    assert {*rest.texts.labels_of_others.tolist()} == {1, 2}
    assert len(rest.texts.others) == 40
    assert "labels of fewer than 10 of the other rows do not judge: 1" in rest.texts.notes
    assert without(Labels(LabelsOptions(), judged), lambda known: np.isin(known, texts[5:110]))[0] is None
    crossed = CrossFitted(LabelsOptions(), [Fold(judged, np.arange(120)), Fold(judged, np.arange(120))])
    part = crossed.only(~crossed.known(lambda known: np.isin(known, texts[4:40])))
    assert [np.bincount(fold.texts.labels).tolist() for fold in part.folds] == [[0, 40, 40]] * 2
    assert crossed.only(np.zeros(240, dtype=bool)) is None


@pytest.mark.parametrize(
    ("alphabet", "signs", "space"),
    [
        ("\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u5341", ("\u597d\u8bc4", "\u5dee\u52b2"), ""),
        (
            "\u0e01\u0e02\u0e04\u0e07\u0e08\u0e09\u0e0a\u0e0b",
            ("\u0e14\u0e35\u0e21\u0e32\u0e01", "\u0e41\u0e22\u0e48"),
            "",
        ),
        (
            "\u0915\u0916\u0917\u0918\u091a\u091b\u091c\u091d",
            ("\u0905\u091a\u094d\u091b\u093e", "\u092c\u0941\u0930\u093e"),
            " ",
        ),
        ("\U0001f400\U0001f401\U0001f402\U0001f403\U0001f404\U0001f405", ("\U0001f600", "\U0001f622"), ""),
        ("abcdefgh", ("good", "bad"), " "),
    ],
    ids=["Chinese", "Thai", "Hindi", "emoji", "English"],
)
def test_words_of_every_script_predict_without_an_encoder(alphabet, signs, space):
    draw, labels = np.random.default_rng(0), np.arange(240) % 2
    texts = []
    for label in labels:
        words = [str(word) for word in draw.choice([*alphabet], 12)]
        words[draw.integers(12)] = signs[label]
        texts.append(space.join(words))
    right = classified(words_of, np.array(texts, dtype=object), labels, None, 1).mean()
    assert right > 0.9


def test_columns_that_look_like_labels_are_named(base, labelled, tmp_path, sample_rows):
    table = [(text, "ab"[n % 2], n, f"{text} again", n % 150) for n, text in enumerate(sample_rows[:300])]
    path = write_table(tmp_path / "table.csv", table, ("text", "kind", "id", "other", "many"))
    assert likely_labels(Corpus.read(readers.resolve(path, "text"))) == {"kind": 2}
    run = prepare(base.replace(corpus=path, column="text"))
    assert "kind (2 values) may be a column of labels: --labels COLUMN" in run.facts["labels"]
    assert "--labels kind" in run.judge.advice
    columns = {"text": list(sample_rows[:40]), "kind": ["a", "b"] * 20, "image": [b"a", b"b"] * 20}
    columns["day"] = pa.array([10**6, 10**7] * 20, pa.date32())  # beyond the year 9999
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert likely_labels(Corpus.read(readers.resolve(str(tmp_path / "t.parquet"), "text"))) == {"kind": 2}
    judged = prepare(base.replace(corpus=path, column="text", labels="kind", name="other"))
    assert "60 rows judge: if one in ten of them changes" in judged.facts["labels"]
    lines = prepare(base.replace(corpus=path, column="text", labels="id", name="ids")).judge
    assert "--labels" not in lines.advice  # which was given


def test_judged_texts_that_differ_from_trained_ones_only_in_accents_are_counted(base, tmp_path, sample_rows, tiny_bert):
    plain = [text for text in sample_rows[:300] if text.isascii()][:200]
    rows = [(text, "ab"[n % 2]) for n, text in enumerate(plain)]
    config = base.replace(column="text", labels="label")
    assert "accents" not in prepare(config.replace(corpus=write_table(tmp_path / "one.csv", rows))).facts.get(
        "warning", ""
    )
    twins = [(text.replace("e", "\u00e9", 1), "") for text in plain]  # with a label, they would be held out too
    few = write_table(tmp_path / "few.csv", [*rows[:60]])
    learned = prepare(config.replace(corpus=few, learn=True, folds=2, batch_size=4, name="learned"))
    assert "accents" not in learned.facts.get("warning", "")
    run = prepare(config.replace(corpus=write_table(tmp_path / "two.csv", [*rows, *twins]), name="two"))
    judged, trained = run.judge.evaluations[0].texts.texts, {*run.batches.corpus.take(run.batches.order.rows)}
    other = {text.replace("\u00e9", "e"): text for text in judged}
    count = sum(text in trained or (text.replace("e", "\u00e9", 1) in trained and text.isascii()) for text in [*other])
    assert f"{count} examples judge that differ from a text to train on only in accents" in run.facts["warning"]


def test_no_sentence_is_in_both_halves_of_a_development_set(sample_rows):
    left = [sample_rows[number // 2].upper() if number % 2 else sample_rows[number // 2] for number in range(120)]
    right = [sample_rows[200 + number] for number in range(120)]
    sets = {
        "one": Pairs(np.arange(120.0) % 6, left, right),
        "other": Pairs(np.arange(60.0) % 5, right[:60], sample_rows[400:460]),
    }
    selecting, judging = halve(sets)
    halves = [pairs for half in (selecting, judging) for pairs in half.values()]
    texts = [{*row_keys([*pairs.left, *pairs.right]).tolist()} for pairs in halves]
    assert not (texts[0] | texts[1]) & (texts[2] | texts[3])
    for name, pairs in sets.items():
        both = [
            (score, *row)
            for half in (selecting, judging)
            for score, *row in zip(half[name].gold, half[name].left, half[name].right, strict=True)
        ]
        assert sorted(both) == sorted(zip(pairs.gold, pairs.left, pairs.right, strict=True))
    assert abs(sum(len(p.left) for p in selecting.values()) - sum(len(p.left) for p in judging.values())) <= 3
    chain = Pairs(np.arange(100.0) % 6, sample_rows[:100], sample_rows[1:101])  # all pairs are linked
    assert halve({"chain": chain}) == ({"chain": chain}, {})


def test_pairs_find_each_other_if_no_other_text_is_as_close():
    near, far = [1.0, 0.1], [0.1, 1.0]
    encoder = Table({"a": near, "b": far, "x": near, "y": far, "z": [1.0, 0.0]})
    for left, right, values in (("ab", "xy", [100, 100]), ("ab", "yx", [0, 0]), ("ax", "zy", [50, 0])):
        (sample,) = PairSearch(None, ([*left], [*right]))(encoder).samples  # a and x have equal vectors
        assert sample.values.tolist() == values


@pytest.fixture
def base(run_config):
    return run_config.replace(corpus=(), tfidf=None, max_steps=4, pooler="avg")


@pytest.fixture
def labelled(tmp_path, sample_rows):
    """A table of 400 sentences, with a label that says whether the sentence is long."""
    rows = [(text, "long" if len(text) > 110 else "short") for text in sample_rows[:400]]
    return write_table(tmp_path / "labelled.csv", rows)


def test_rows_that_judge_by_their_labels_are_not_trained_on_and_a_resumed_run_has_the_same_verdict(base, labelled):
    config = base.replace(corpus=labelled, column="text", labels="label", lr_scheduler="constant")
    data = prepare(config.replace(name="other")).batches
    result = train(config.replace(name="whole"))
    stored = json.loads((result.folder / "result.json").read_text(encoding="utf8"))["verdict"]
    assert stored == json.loads(json.dumps(result.verdict))
    near, by_line = stored["measures"]
    assert near["task"] == "label of 10 nearest neighbours"
    assert near["examples"] == by_line["examples"] == 80
    assert near["p"] > 0
    corpus = Corpus.read(readers.resolve(labelled, "text"))
    judged, _ = choose_labelled(corpus, read_classes(corpus, "label", "--labels label"))
    assert not set(judged.texts) & set(corpus.take(data.order.rows))
    assert len(data.order.rows) == 400 - 80 - 16
    card = (result.folder / "best" / "README.md").read_text(encoding="utf8")
    assert f"**{stored['word']}**, {stored['why']}." in card
    assert f"| {near['a']:.2f} | {near['b']:.2f} |" in card
    assert not any("labels" in name for name in json.loads((result.folder / "data.json").read_text(encoding="utf8")))
    part = train(config.replace(name="part", max_steps=2))
    assert train(config.replace(name="part"), resume=part.folder).verdict == result.verdict


def test_judging_does_not_change_the_training_and_without_labels_the_score_is_a_check(base, short_corpus, collection):
    config = base.replace(corpus=short_corpus)
    plain, judged = train(config), train(config.replace(judged_queries=collection[0]))
    one, other = (weights(result.folder) for result in (plain, judged))
    assert all(torch.equal(one[name], other[name]) for name in one)
    (record,) = judged.verdict["measures"]
    assert (record["task"], record["examples"], record["unit"]) == ("nDCG@10 of the judged queries", 9, "queries")
    assert str(collection[0]) not in (judged.folder / "best" / "README.md").read_text(encoding="utf8")
    assert plain.verdict["word"] == "not judged"
    assert "there are no labels" in plain.verdict["why"]
    (check,) = [note for note in plain.verdict["notes"] if note.startswith("check for collapse")]
    chance = sum(1 / rank for rank in range(1, 31)) / 30
    assert f"30 held-out sentences find each other with MRR {plain.before['mrr']:.4f}" in check
    assert f"(chance {chance:.4f}, ceiling 1)" in check
    text = " ".join([*plain.notes, *verdict.lines(plain.verdict)])
    assert "interval" not in text
    assert "rose" not in text


class Length(Evaluation):
    """An evaluation of another package: the length of each embedding of the rows of a file, times 100."""

    def work(self):
        return 1

    def __call__(self, encoder, progress=None):
        texts = Path(self.data).read_text(encoding="utf8").splitlines()
        values = 100 * np.linalg.norm(encoder.encode(texts), axis=1).astype(np.float64)
        return Report([], samples=[Sample("length", values, unit="rows")])


def test_any_suite_judges_also_a_table_that_is_not_trained_on(base, short_corpus, sample_rows, monkeypatch, tmp_path):
    rows = [(text, "long" if len(text) > 110 else "short") for text in sample_rows[2000:2300]]
    labelled = write_table(tmp_path / "apart.csv", rows)
    monkeypatch.setattr(EVALUATIONS, "_loaded", {**EVALUATIONS._loaded, "length": Length})
    judges = (f"length={short_corpus}", f"labels={labelled}")
    config = base.replace(corpus=short_corpus, judges=judges, options={"labels": {"column": "text", "labels": "label"}})
    first = train(config.replace(name="first", max_steps=2))
    tasks = [record["task"] for record in first.verdict["measures"]]
    assert tasks == ["length", "label of 10 nearest neighbours", "label by logistic regression"]
    part = train(config.replace(name="part", max_steps=1))
    assert train(TrainConfig(max_steps=2), resume=part.folder).verdict == first.verdict
    found = command("compare", first.folder, first.folder, "--json")
    assert [record["task"] for record in json.loads(found.stdout)["verdict"]["measures"]] == tasks
    assert "apart" not in (first.folder / "best" / "README.md").read_text(encoding="utf8")
    (tmp_path / "dev.tsv").write_text("".join(f"{n}\ta {n}\tb {n}\n" for n in (5, 1, 3)), encoding="utf8")
    with pytest.raises(InputError, match="has no values of single examples"):
        train(config.replace(judges=(f"geometry={tmp_path / 'dev.tsv'}",), options={}, name="no"))
    with pytest.raises(InputError, match="the suite length judges once"):
        prepare(config.replace(judges=(*judges, judges[0]), name="twice"))


def test_a_table_that_judges_has_the_columns_of_the_run_and_rows_that_taught_do_not_judge(
    base, sample_rows, tmp_path, unguarded
):
    rows = [(text, "ab"[n % 2]) for n, text in enumerate(sample_rows[:160])]
    taught = write_table(tmp_path / "taught.csv", rows[:100])
    config = learning(
        base, taught, folds=0, batch_size=8, max_steps=2, judges=(f"labels={write_table(tmp_path / 'all.csv', rows)}",)
    )
    result = train(config)
    stored = TrainConfig.from_toml(result.folder / "config.toml")
    assert stored.labels == "label"
    assert stored.options["labels"]["labels"] == "label"
    measures = result.verdict["measures"]
    labelled = read_taught(result.folder).labelled
    assert len(labelled) >= 50
    assert measures[0]["examples"] == 160 - len(labelled)
    assert any(note.startswith("this run learned the labels of") for note in result.verdict["notes"])


def test_runs_are_compared_without_their_files_in_another_place_and_in_memory(
    base, labelled, sample_rows, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    settings = base.replace(output="runs", max_steps=2)
    texts, labels = sample_rows[:400], ["long" if len(text) > 110 else "short" for text in sample_rows[:400]]
    for name, seed in (("one", 0), ("other", 1)):
        train(settings.replace(corpus="labelled.csv", column="text", labels="label", name=name, seed=seed))
        train(settings.replace(name=f"{name} in memory", seed=seed), texts=texts, labels=labels)
    found = json.loads(command("compare", "runs/one", "runs/other", "--json").stdout)["verdict"]
    stored = (tmp_path / "runs" / "one" / "judges.json").read_text(encoding="utf8")
    assert not any(text in stored for text in texts)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = json.loads(command("compare", "../runs/one", "../runs/other", "--json").stdout)["verdict"]
    assert again["measures"] == found["measures"]
    (tmp_path / "labelled.csv").rename(tmp_path / "moved.csv")
    moved = command("compare", "../runs/one", "../runs/other", "--data", "../moved.csv", "--json")
    assert json.loads(moved.stdout)["verdict"]["measures"] == found["measures"]
    fault = str(command("compare", "../runs/one", "../runs/other").exception)
    assert "labelled.csv: no such file; check the path); put the file back, or name the table with --data" in fault
    monkeypatch.chdir(tmp_path)
    in_memory = json.loads(command("compare", "runs/one in memory", "runs/other in memory", "--json").stdout)["verdict"]
    numbers = [[(each["a"], each["b"]) for each in side["measures"]] for side in (found, in_memory)]
    assert numbers[0] == numbers[1]
    # Rows that are gone are counted; the others judge.
    rows = [(text, label) for text, label in zip(texts[:300], labels, strict=False)]
    short = write_table(tmp_path / "short.csv", rows)
    fewer = json.loads(command("compare", "runs/one", "runs/other", "--data", short, "--json").stdout)["verdict"]
    assert fewer["measures"][0]["examples"] < found["measures"][0]["examples"]
    assert any("are no longer in" in note for note in fewer["notes"])


def test_held_out_pairs_and_halves_of_development_sets_are_found_again(base, sample_rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = [(sample_rows[n], sample_rows[n + 1000]) for n in range(300)]
    write_table(tmp_path / "pairs.csv", pairs, ("anchor", "positive"))
    lines = [f"{n % 6}\t{sample_rows[2 * n]}\t{sample_rows[2 * n + 1]}\n" for n in range(500, 560)]
    (tmp_path / "dev.tsv").write_text("".join(lines), encoding="utf8")
    settings = base.replace(output="runs", max_steps=2)
    for name, values in (("pairs", {"pairs": "pairs.csv"}), ("dev", {"dev": "dev.tsv", "eval_every": 1})):
        if name == "dev":
            (tmp_path / "rows.txt").write_text("\n".join(sample_rows[:200]), encoding="utf8")
            values["corpus"] = "rows.txt"
        one, other = (train(settings.replace(name=f"{name} {rate}", lr=rate, **values)) for rate in (1e-4, 1e-3))
        shown = command("compare", one.folder, other.folder, "--json")
        assert shown.exception is None, str(shown.exception)
        found = json.loads(shown.stdout)["verdict"]
        for run, side in ((one, "a"), (other, "b")):
            if stored := run.verdict["measures"]:  # none if best/ is the encoder before training
                assert [record[side] for record in found["measures"]] == [record["b"] for record in stored]


def test_a_table_judges_a_run_that_is_also_judged_by_folds(base, few, sample_rows, tmp_path, unguarded):
    rows = [(text, "ab"[len(text) % 2]) for text in sample_rows[1000:1100]]
    judges = (f"labels={write_table(tmp_path / 'other.csv', rows, ('words', 'kind'))}",)
    options = {"labels": {"column": "words", "labels": "kind"}, "same-label": {"others": 0.0}}
    config = learning(base, few, folds=2, batch_size=4, max_steps=2, judges=judges, options=options)
    tasks = [record["task"] for record in train(config).verdict["measures"]]
    by = ("of 10 nearest neighbours", "by logistic regression")
    assert tasks == [f"{name} {how}" for name in ("kind", "label") for how in by]


def test_a_run_is_not_resumed_if_the_table_that_judges_it_has_changed(base, short_corpus, sample_rows, tmp_path):
    rows = [(text, "ab"[n % 2]) for n, text in enumerate(sample_rows[1000:1100])]
    path = write_table(tmp_path / "judge.csv", rows)
    options = {"labels": {"column": "text", "labels": "label"}}
    config = base.replace(corpus=short_corpus, judges=(f"labels={path}",), options=options, max_steps=1)
    folder = train(config).folder
    write_table(tmp_path / "judge.csv", [(text, "ab"[n % 3 % 2]) for n, (text, _) in enumerate(rows)])
    with pytest.raises(InputError, match=r"judge\.csv has changed since the run began"):
        train(resumed_config(folder, {"max_steps": 2}), resume=folder)


@pytest.mark.parametrize("by", ["dev", "queries"])
def test_a_run_is_not_resumed_if_what_scores_its_examples_has_changed(
    base, short_corpus, sample_rows, collection, tmp_path, by
):
    def write(scores):
        lines = [f"{scores(n)}\t{sample_rows[2 * n]}\t{sample_rows[2 * n + 1]}\n" for n in range(500, 560)]
        (tmp_path / "dev.tsv").write_text("".join(lines), encoding="utf8")

    write(lambda n: n % 6)
    queries = collection[0] / "queries.jsonl"
    judged = {"judged_queries": str(collection[0])} if by == "queries" else {"dev": (str(tmp_path / "dev.tsv"),)}
    folder = train(base.replace(corpus=short_corpus, max_steps=1, **judged)).folder
    assert train(resumed_config(folder, {"max_steps": 2}), resume=folder).steps == 2
    write(lambda n: n % 5)
    queries.write_text(queries.read_text(encoding="utf8").replace("bluegrass", "grey"), encoding="utf8")
    with pytest.raises(InputError, match="has changed since the run began"):
        train(resumed_config(folder, {"max_steps": 3}), resume=folder)


def test_a_run_with_folds_and_judges_is_resumed_in_its_folds(base, few, sample_rows, tmp_path, unguarded, monkeypatch):
    rows = [(text, "ab"[len(text) % 2]) for text in sample_rows[1000:1100]]
    judges = (f"labels={write_table(tmp_path / 'other.csv', rows)}",)
    config = learning(base, few, folds=2, batch_size=4, max_steps=2, judges=judges, name="run")
    whole = train(config.replace(name="whole"))
    judged_by_fold = folds.judged_by_fold

    def stops(*given):
        raise MemoryError("a crash")

    monkeypatch.setattr(folds, "judged_by_fold", stops)
    with pytest.raises(MemoryError):
        train(config)
    monkeypatch.setattr(folds, "judged_by_fold", judged_by_fold)
    folder = whole.folder.with_name("run")
    again = train(resumed_config(folder), resume=folder)
    assert again.verdict == whole.verdict
    # Two measures of the same name are told apart, with their baselines.
    tasks = [record["task"] for record in again.verdict["measures"]]
    assert tasks[2:] == [f"{task} (held-out rows)" for task in tasks[:2]]
    assert len(again.verdict["beside"]) == 8


def test_pairs_that_selected_the_encoder_do_not_judge_it(base, short_corpus, sample_rows, tmp_path):
    lines = [f"{n % 6}\t{sample_rows[2 * n]}\t{sample_rows[2 * n + 1]}\n" for n in range(500, 560)]
    (tmp_path / "dev.tsv").write_text("".join(lines), encoding="utf8")
    path = str(tmp_path / "dev.tsv")
    run = prepare(
        base.replace(
            corpus=short_corpus, dev=(path,), judges=(f"sts={path}",), options={"sts": {"allow_partial": True}}
        )
    )
    first, half = run.judge.evaluations
    assert len(first.tasks[0][1].left) == len(half.tasks[0][1].left) == 30
    assert any("30 of the 60 examples do not judge" in note for note in run.judge.notes)


def test_pairs_are_left_out_of_each_of_several_sets(sample_rows):
    def pairs(first):
        rows = sample_rows[first : first + 40]
        return Pairs(np.arange(20.0) % 5, rows[:20], rows[20:])

    suite = STS(STSOptions(), {"one": pairs(0), "two": pairs(100), "three": pairs(200)})
    seen = row_keys([*sample_rows[:10], *sample_rows[120:125], *sample_rows[200:220]])
    rest, count, total = without(suite, lambda texts: np.isin(row_keys(texts), seen))
    assert (count, total) == (35, 60)
    assert [(task.title, pairs.left) for task, pairs in rest.tasks] == [
        ("one", sample_rows[10:20]),
        ("two", sample_rows[105:120]),  # of which the right texts of five were seen
    ]
    assert len(suite.tasks) == 3


def test_a_table_of_judge_that_lost_rows_or_has_moved_judges_other_runs(
    base, labelled, sample_rows, tmp_path, monkeypatch, unguarded
):
    monkeypatch.chdir(tmp_path)
    rows = [(text, "long" if len(text) > 110 else "short") for text in sample_rows[300:600]]  # a third is trained on
    write_table(tmp_path / "mixed.csv", rows)
    config = learning(
        base, "labelled.csv", folds=0, batch_size=8, max_steps=2, output="runs", judges=("labels=mixed.csv",)
    )
    train(config.replace(name="one"))
    train(config.replace(name="other", seed=1))
    found = json.loads(command("compare", "runs/one", "runs/other", "--json").stdout)["verdict"]
    assert not any("no longer in" in note for note in found["notes"])
    assert found["measures"][0]["examples"] > 150
    (tmp_path / "mixed.csv").rename(tmp_path / "moved.csv")
    assert "mixed.csv, which judged it, is not there; put it back, or name it with --data" in str(
        command("compare", "runs/one", "runs/other").exception
    )
    moved = command("compare", "runs/one", "runs/other", "--data", "moved.csv", "--json")
    assert json.loads(moved.stdout)["verdict"]["measures"] == found["measures"]
    assert "--seeds has no effect on runs" in str(command("compare", "runs/one", "runs/other", "--seeds").exception)
    kept = tmp_path / "runs" / "one" / "judges.json"
    whole = json.loads(kept.read_text(encoding="utf8"))
    for name, value in (
        ("numbers", {}),
        ("keys", {"texts": ["x"]}),
        ("numbers", {"labels": [1], "labels_of_others": []}),
    ):
        judges = [each if "data" in each else {**each, name: value} for each in whole["judges"]]
        kept.write_text(json.dumps({**whole, "judges": judges}), encoding="utf8")
        fault = command("compare", "runs/one", "runs/other", "--data", "moved.csv").exception
        assert isinstance(fault, InputError)
        assert "judges.json: is damaged" in str(fault)


def test_one_half_of_a_development_set_selects_and_the_other_judges(base, short_corpus, sample_rows, tmp_path):
    lines = [f"{n % 6}\t{sample_rows[2 * n]}\t{sample_rows[2 * n + 1]}\n" for n in range(500, 560)]
    (tmp_path / "dev.tsv").write_text("".join(lines), encoding="utf8")
    config = base.replace(corpus=short_corpus, dev=tmp_path / "dev.tsv", max_steps=2, eval_every=2)
    run = prepare(config)
    (selecting,) = run.evaluation.pairs.values()
    (judging,) = run.evaluation.judging.values()
    assert len(selecting.left) == len(judging.left) == 30
    result = train(config)
    assert any("chosen by Spearman on the development set (one half of each file, 30 pairs)" in n for n in result.notes)
    if result.best_step:
        assert [record["examples"] for record in result.verdict["measures"]] == [30]
    else:
        assert result.verdict["why"] == "best/ is the encoder before training"
    # The preset of a paper selects on all pairs.
    result = train(config.replace(preset="simcse-bert-base", pooler=None, max_steps=1))
    assert any("on the development set (all pairs)" in note for note in result.notes)
    assert result.verdict["word"] == "not judged"
    assert "was used to select best/" in result.verdict["why"]


def test_held_out_pairs_judge_a_run_on_pairs(base, sample_rows, tmp_path):
    rows = [(sample_rows[number], sample_rows[number + 1000]) for number in range(400)]
    rows += [(row, "the answer to everything") for row in sample_rows[400:800]]
    apart = train(base.replace(pairs=write_table(tmp_path / "apart.csv", rows[:400], ("anchor", "positive"))))
    (record,) = apart.verdict["measures"]
    assert (record["task"], record["examples"]) == ("held-out pairs that find each other", 20)
    shared = train(base.replace(pairs=write_table(tmp_path / "shared.csv", rows[400:], ("anchor", "positive"))))
    assert shared.verdict["word"] == "not judged"  # the positive of the held-out rows is trained on


def test_held_out_pairs_do_not_judge_if_pairs_of_their_letters_teach(base, sample_rows, tmp_path):
    rows = [(sample_rows[number], sample_rows[number + 1000]) for number in range(400)]
    bare = [tuple(re.sub(r"[^\w ]", "", text).lower() for text in pair) for pair in rows]
    both = write_table(tmp_path / "both.csv", [*rows, *bare], ("anchor", "positive"))
    run = prepare(base.replace(pairs=both))
    judging = [text for each in run.judge.evaluations for text in each.columns[0]]
    trained = {re.sub(r"[^\w]", "", text).lower() for text in run.batches.corpus.take(run.batches.order.rows)}
    assert not {re.sub(r"[^\w]", "", text).lower() for text in judging} & trained
    assert any("this run learned pairs of" in note for note in [*run.judge.notes, run.judge.unjudged])


def test_held_out_pairs_that_taught_the_base_do_not_judge(base, sample_rows, tmp_path):
    rows = [(sample_rows[number], sample_rows[number + 1000]) for number in range(400)]
    path = write_table(tmp_path / "pairs.csv", rows, ("anchor", "positive"))
    first = train(base.replace(pairs=path, seed=1, name="first"))
    assert first.verdict["word"] != "not judged"
    later = train(base.replace(pairs=path, seed=0, name="later", model=str(first.folder / "best")))
    assert later.verdict["word"] == "not judged"
    assert re.search(r"best learned pairs of \d+ of the 20 pairs that judge", later.verdict["why"])
    assert not [note for note in later.verdict["notes"] if "label more rows" in note]


def test_a_column_that_cannot_judge_is_refused_or_said(base, labelled, short_corpus, tmp_path, sample_rows):
    with pytest.raises(InputError, match=r"--labels label: .*short\.txt is not a table with such a column"):
        train(base.replace(corpus=short_corpus, labels="label"))
    with pytest.raises(InputError, match=r"--labels other: .* has no column 'other'; its columns are: text, label"):
        train(base.replace(corpus=labelled, column="text", labels="other"))
    with pytest.raises(InputError, match="--judge retrieval=nowhere: must be SUITE=PATH"):
        train(base.replace(corpus=short_corpus, judged_queries="nowhere"))
    ids = write_table(tmp_path / "ids.csv", [(text, number) for number, text in enumerate(sample_rows[:100])])
    config = base.replace(corpus=ids, column="text", labels="label", max_steps=1)
    run = prepare(config)
    assert "--labels label: fewer than two classes have 10 of the 50 rows" in run.facts["warning"]
    assert len(run.batches.order.rows) == 95
    result = train(config)
    assert result.verdict["word"] == "not judged"
    assert "fewer than two classes" in result.verdict["why"]


def test_the_commands_print_the_verdict(base, labelled, tiny_bert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--column", "text", "--labels", "label"]
    run = command("train", labelled, *flags, "--model", tiny_bert, "--pooler", "avg", "--batch-size", 8,
                  "--max-steps", 2, "--threads", 1, "--name", "run")  # fmt: skip
    stored = json.loads((tmp_path / "runs" / "run" / "result.json").read_text(encoding="utf8"))["verdict"]
    assert "\n".join(verdict.lines(stored)) in run.stdout
    compared = ["compare", tiny_bert, "runs/run", "--pooler", "avg", "--data", labelled]
    held_out = command(*compared, *flags, "--set", "labels.share=0.2", "--json")
    (again,) = json.loads(held_out.stdout)["comparisons"]
    assert again["verdict"]["word"] == stored["word"]
    for one, other in zip(again["verdict"]["measures"], stored["measures"], strict=True):
        assert (one["a"], one["b"], one["examples"]) == (other["a"], other["b"], other["examples"])
    shown = command(*compared, *flags).stdout
    assert "label of 10 nearest neighbours" in shown
    assert "400 rows" in shown
    assert "seconds for 1,000 rows" in shown
    assert shown.splitlines()[-1].startswith("recommended:")
    assert [each["model"] for each in json.loads(held_out.stdout)["costs"]] == [str(tiny_bert), "runs/run"]
    for arguments, message in (
        ([*compared, *flags[2:]], "--labels needs --column"),
        ([*compared, *flags[:2]], "--column has no effect without --labels or --queries"),
        (["train", labelled, *flags, "--judged-queries", "nowhere", "--model", tiny_bert], "must be SUITE=PATH"),
    ):
        assert message in str(command(*arguments).exception)


@pytest.mark.parametrize(("mrr", "words"), [(0.99, "near the ceiling, so it cannot tell more"), (0.1, "near chance")])
def test_the_check_says_when_it_cannot_tell(mrr, words):
    each = np.full(100, mrr)
    selector = Selector(Scorer(None, {}, ["sentence"] * 100))
    half = HalvesScore(mrr, 0.01, 1.4, -3.6, 100, each, each).to_dict()
    selector.records = [{**half, "step": step} for step in (0, 4)]
    assert check(selector).count(words) == 1


def test_few_rows_and_few_changes_do_not_decide():
    same = Sample("measure", np.full(150, 100.0), unit="rows")
    (record,) = verdict.judge([same], [same]).measures
    assert record["low"] < -0.5 < 0.5 < record["high"]  # no row changes, and yet the interval is no point
    assert record["word"] == "cannot tell"
    changed = np.full(150, 100.0)
    changed[:5] = 0
    found = verdict.judge([Sample("measure", changed, unit="rows")], [same])
    assert found.measures[0]["p"] == 2**-4
    assert found.word == "cannot tell"
    two = [Sample("measure", np.array(values), unit="queries") for values in ([10.0, 11.0], [20.0, 21.5])]
    found = verdict.judge([two[0]], [two[1]])
    assert found.word == "cannot tell"
    assert "visible" not in found.measures[0]
    assert found.notes == ["measure: 2 queries: few, so that p is at least 0.5"]


@pytest.mark.parametrize(
    ("value", "word", "why"), [(np.nan, "not judged", "NaN or infinity"), (1.0, "worse", "the vectors are all equal")]
)
def test_a_run_ends_even_if_its_encoder_cannot_be_judged(base, labelled, monkeypatch, value, word, why):
    judged = Judge.verdict

    def encode(texts, **settings):
        vectors = np.full((len(texts), 8), value, dtype=np.float32)
        check_finite(vectors, texts, "best")
        return vectors

    def spoilt(judge, selector, best, *others):
        monkeypatch.setattr(best, "encode", encode)
        return judged(judge, selector, best, *others)

    monkeypatch.setattr(Judge, "verdict", spoilt)
    result = train(base.replace(corpus=labelled, column="text", labels="label", max_steps=2))
    assert result.verdict["word"] == word
    assert why in result.verdict["why"]
    assert (result.folder / "result.json").exists()
    assert (result.folder / "best").is_dir()


def test_embeddings_that_have_become_nearly_equal_are_worse_if_labels_cannot_tell(base, labelled, monkeypatch):
    judged = Judge.verdict

    def flat(judge, selector, best, *others):
        first, *later = selector.records
        selector.records = [{**first, "uniformity": -2.0}, *({**each, "uniformity": -1e-3} for each in later)]
        return judged(judge, selector, best, *others)

    monkeypatch.setattr(Judge, "verdict", flat)
    result = train(base.replace(corpus=labelled, column="text", labels="label", max_steps=2))
    assert result.verdict["measures"][0]["word"] == "cannot tell"
    assert result.verdict["word"] == "worse"
    assert "but the embeddings are nearly all equal" in result.verdict["why"]


@pytest.fixture
def unguarded(monkeypatch):
    """Encoders are selected whatever they lose elsewhere."""
    monkeypatch.setattr(Selector, "lost", lambda selector, record: 0.0)


def learning(base, table, **changes):
    """The configuration of a run that learns from labels."""
    return base.replace(corpus=table, column="text", labels="label", learn=True, lr_scheduler="constant", **changes)


@pytest.fixture
def few(tmp_path, sample_rows):
    """A table of 60 sentences with labels."""
    return write_table(tmp_path / "few.csv", [(text, "ab"[len(text) % 2]) for text in sample_rows[:60]])


def test_folds_have_each_labelled_text_once_and_equally_many_of_each_label(tmp_path, sample_rows, monkeypatch):
    rows = [(text, "abc"[n % 3]) for n, text in enumerate(sample_rows[:60])]
    rows += [(sample_rows[0], "a"), (sample_rows[90], "rare"), (sample_rows[91], "")]
    corpus, classes = labelled_corpus(tmp_path / "rows.csv", rows)
    folds = choose_folds(corpus, classes, None)
    assert len(folds) == 5
    assert sorted(text for fold in folds for text in fold.texts.texts) == sorted(sample_rows[:60])
    assert sorted(row for fold in folds for row in fold.rows) == list(range(62))  # with the text that is repeated
    for fold in folds:
        assert np.bincount(fold.texts.labels).tolist() == [4, 4, 4]
        assert {*fold.texts.texts, *fold.texts.others} == {*sample_rows[:60]}  # the rare one does not predict
        assert not {*fold.texts.texts} & {*fold.texts.others}
        assert {*corpus.take(fold.rows)} - {sample_rows[90]} == {*fold.texts.texts}  # it is divided too
    monkeypatch.setattr("cse.evaluation.labels.MOST_ROWS", 30)
    monkeypatch.setattr("cse.evaluation.labels.MOST_OTHERS", 20)
    few = choose_folds(corpus, classes, 3)
    assert sum(len(fold.texts.texts) for fold in few) == 30
    assert [len(fold.texts.others) for fold in few] == [20, 20, 20]
    assert "at most 30 of these texts judge: of each label, those with the smallest hashes" in few[0].texts.notes
    assert choose_folds(corpus, classes, 0) == []
    with pytest.raises(InputError, match="--folds 25: fewer than two labels have 25 of the 61 texts; give at most 20"):
        choose_folds(corpus, classes, 25)


def test_texts_of_the_same_letters_are_held_out_together(tmp_path, sample_rows):
    def bare(text):
        return re.sub(r"[^\w ]", "", text).lower()

    rows = [(text, "ab"[n % 2]) for n, text in enumerate(sample_rows[:60])]
    rows += [(bare(text), label) for text, label in rows[:40]]
    rows += [(f"@someone {text} https://t.co/x", label) for text, label in rows[:20]]
    corpus, classes = labelled_corpus(tmp_path / "rows.csv", rows)
    folds = choose_folds(corpus, classes, 3)
    assert sum(len(fold.texts.texts) for fold in folds) == 60  # one of each
    of_rows = {row: number for number, fold in enumerate(folds) for row in fold.rows.tolist()}
    assert sorted(of_rows) == list(range(120))
    assert all(of_rows[row] == of_rows[60 + row] for row in range(40))
    assert all(of_rows[row] == of_rows[100 + row] for row in range(20))
    judged, held_out = choose_labelled(corpus, classes, (0.8,))
    letters = {bare(text.removeprefix("@someone ").removesuffix(" https://t.co/x")) for text in judged.texts}
    assert {row for row, (text, _) in enumerate(rows[:60]) if bare(text) in letters} == {
        row for row in held_out.tolist() if row < 60
    }
    assert all((60 + row in held_out) == (row in held_out) for row in range(40))
    many = [(f"{'!' * number} the same words in many rows", "ab"[number % 2]) for number in range(12)]
    corpus, classes = labelled_corpus(tmp_path / "many.csv", [*rows, *many])
    assert not {*corpus.take(np.concatenate([each.rows for each in choose_folds(corpus, classes, 3)]))} & {
        text for text, _ in many
    }


def test_a_run_that_learns_from_few_labels_is_judged_by_encoders_that_did_not_see_the_fold(
    base, few, sample_rows, monkeypatch, unguarded
):
    trained = []

    def prepared(*arguments):
        run = prepare(*arguments)
        trained.append((run.folder.name, run.batches.corpus.take(run.batches.order.rows)))
        return run

    monkeypatch.setattr(loop, "prepare", prepared)
    result = train(learning(base, few, max_steps=2, batch_size=4, folds=3, name="run"))
    names, texts = zip(*trained, strict=True)
    assert names == ("run", "1", "2", "3")
    assert {*texts[0]} == {*sample_rows[:60]}
    left_out = [{*sample_rows[:60]} - {*each} for each in texts[1:]]
    assert sorted(map(len, left_out)) == [20, 20, 20]
    assert set.union(*left_out) == {*sample_rows[:60]}
    near, by_line = result.verdict["measures"]
    assert near["examples"] == by_line["examples"] == 60
    assert "judged: 3 encoders trained on 2/3 of the labels; saved: one trained on all" in result.verdict["notes"]
    assert not (result.folder / folds.FOLDS).exists()


@pytest.mark.parametrize(("save_every", "resumed"), [(1, [2, 3]), (100, [1, 2, 3])])
def test_a_run_that_is_stopped_within_a_fold_resumes_there_with_the_same_verdict(
    base, few, unguarded, save_every, resumed
):
    config = learning(base, few, max_steps=3, batch_size=4, folds=2, save_every=save_every)
    whole = train(config.replace(name="whole"))
    steps = []

    class Stop(Callback):
        def on_progress(self, text, step, total, unit):
            steps.extend([step] if "to judge" in text else [])
            if len(steps) == 5:  # the second one of the second fold
                raise MemoryError("a crash")

    with pytest.raises(MemoryError):
        train(config.replace(name="cut"), Stop())
    folder = whole.folder.with_name("cut")
    assert [path.name for path in (folder / folds.FOLDS).glob("*.json")] == ["1.json"]
    assert train(config.replace(name="cut"), Stop(), resume=folder).verdict == whole.verdict
    assert steps == [1, 2, 3, 4, 5, *(3 + step for step in resumed)]  # of both folds together
    with pytest.raises(InputError, match="--folds: 1 leaves no labels to learn from"):
        prepare(learning(base, few, folds=1))


def test_two_runs_are_compared_by_what_judged_them_without_rows_that_either_was_trained_on(
    base, labelled, few, sample_rows, short_corpus, tmp_path, monkeypatch, unguarded
):
    monkeypatch.chdir(tmp_path)
    config = base.replace(corpus=labelled, column="text", labels="label", output="runs", max_steps=2)
    one, other = train(config.replace(name="one")), train(config.replace(name="other", seed=1, lr=1e-2))
    found = json.loads(command("compare", "runs/one", "runs/other", "--json").stdout)["verdict"]
    for run, side in ((one, "a"), (other, "b")):
        stored = run.verdict["measures"]
        assert [record[side] for record in found["measures"]] == [record["b"] for record in stored]
    held = prepare(config.replace(name="third")).judge.evaluations[0].texts.texts
    both = write_table(tmp_path / "both.csv", [(text, "x") for text in [*held[:30], *sample_rows[500:560]]])
    train(base.replace(corpus=both, column="text", output="runs", name="seen", max_steps=2))
    seen = json.loads(command("compare", "runs/one", "runs/seen", "--json").stdout)["verdict"]
    kept = seen["measures"][0]["examples"]
    assert len(held) - 30 <= kept < len(held)
    assert f"{len(held) - kept} examples do not judge, because runs/seen was trained on them" in " ".join(seen["notes"])
    train(base.replace(corpus=short_corpus, output="runs", name="plain", max_steps=1))
    fault = command("compare", "runs/plain", "runs/plain").exception
    assert "nothing judged these runs" in str(fault)
    train(learning(base, few, max_steps=2, batch_size=4, folds=3, output="runs", name="taught"))
    data = ["--data", few, "--column", "text", "--labels", "label"]
    assert "learned the labels of 60 of the 60 rows" in str(
        command("compare", "runs/one", "runs/taught", *data).exception
    )


def test_learn_adds_its_positives_itself_and_a_fault_of_a_fold_is_an_error(base, few, monkeypatch, unguarded):
    with pytest.raises(InputError, match="--positive same-label: --learn adds it"):
        prepare(learning(base, few, positive="same-label"))

    def fails(*_):
        raise InputError("--batch-size: 8 is more than the 5 training sentences; lower it")

    monkeypatch.setattr(folds, "judged_by_fold", fails)
    with pytest.raises(InputError, match="--batch-size: 8 is more"):
        train(learning(base, few, max_steps=2, batch_size=4, folds=2, name="fails"))


def test_labels_in_memory_judge_as_a_column_does(base, tmp_path, sample_rows):
    rows = sample_rows[:400]
    labels = [None if n == 3 else math.nan if n == 4 else len(text) > 110 for n, text in enumerate(rows)]
    table = write_table(
        tmp_path / "same.csv",
        list(zip(rows, ["" if n in (3, 4) else each for n, each in enumerate(labels)], strict=True)),
    )
    config = base.replace(max_steps=2)
    one = train(config.replace(name="one"), texts=rows, labels=labels)
    other = train(config.replace(name="other", corpus=table, column="text", labels="label"))
    assert [each["b"] for each in one.verdict["measures"]] == [each["b"] for each in other.verdict["measures"]]
    assert one.verdict["measures"][0]["task"] == "labels of 10 nearest neighbours"
    for arguments, message in (
        ({"labels": labels}, "labels: must be given with texts"),
        ({"texts": rows, "labels": labels[1:]}, "there must be one for each of the 400 texts, got 399"),
    ):
        with pytest.raises(InputError, match=message):
            train(config, **arguments)
    with pytest.raises(InputError, match=r"pass labels=\[\.\.\.\] with texts="):
        train(config.replace(labels="label"), texts=rows)


def test_a_column_of_scores_is_that_of_one_judge(base, labelled, short_corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = base.replace(output="runs", max_steps=1)
    first = train(config.replace(corpus=labelled, column="text", labels="label", name="first"))
    train(config.replace(corpus=labelled, column="text", labels="label", name="second", seed=1))
    train(config.replace(corpus=short_corpus, name="third"))
    lines = command("runs", "runs").stdout.splitlines()
    row = {name: next(line for line in lines if name in line) for name in ("first", "second", "third")}
    assert sum("label of 10" in line for line in lines) == 1
    assert f"{first.verdict['measures'][0]['b']:.2f}" in row["first"]
    for name, places in (("first", [False, True]), ("second", [False, True]), ("third", [True, False])):
        scores = [cell.strip() for cell in row[name].split("│")[3:-2]]
        assert [cell == "-" for cell in scores] == places


def test_the_fastest_encoder_that_loses_little_is_recommended_and_few_rows_are_no_reason_to_take_it():
    def report(right, rows=200):
        return Report([], samples=[Sample("labels", 100.0 * (np.arange(rows) % 100 < right), unit="rows")])

    def advice(rights, seconds, rows=200):
        costs = [choice.Cost(each, 80.0) for each in seconds]
        reports = [report(right, rows) for right in rights]
        return choice.recommend([f"m{number}" for number in range(len(rights))], reports, costs)

    assert advice((70, 71, 69), (3.0, 1.0, 2.0)) == "recommended: m1, which has the highest score"
    few = advice((70, 72, 69), (1.0, 3.0, 2.0))
    assert few.startswith(
        "recommended: m1, which has the highest score; by these rows, a faster one may lose more than 3"
    )
    assert advice((70, 71, 69), (1.0, 3.0, 2.0), 2000) == (
        "recommended: m0, the fastest that loses at most 3 points against m1, which has the highest score"
    )
    assert advice((40, 90), (1.0, 9.0)) == "recommended: m1, which has the highest score; the faster ones are worse"
    draw, words = np.random.default_rng(0), []
    for _ in range(20):  # true recalls of 85 and 65, by 30 rows
        values = [100.0 * (draw.random(30) < right) for right in (0.85, 0.65)]
        found = choice.recommend(
            ["good", "fast"],
            [Report([], samples=[Sample("labels", each, unit="rows")]) for each in values],
            [choice.Cost(20, 400), choice.Cost(0.1, 1)],
        )
        words.append(found.split(",")[0])
    assert words.count("recommended: good") >= 19


def test_equal_vectors_on_a_development_set_are_a_collapse_and_the_run_ends(base, tmp_path, monkeypatch, sample_rows):
    pairs = [f"{number % 6}\t{sample_rows[number]}\t{sample_rows[number + 1]}" for number in range(0, 60, 2)]
    (tmp_path / "dev.tsv").write_text("\n".join(pairs), encoding="utf8")
    scored = []

    def scores(selector):
        scored.append(None)
        if len(scored) > 1:
            raise EqualVectors("the vectors of all texts are equal")
        return {"spearman": 50.0, "alignment": 0.1, "uniformity": -2.0}

    monkeypatch.setattr(Scorer, "_scores", scores)
    result = train(base.replace(dev=(str(tmp_path / "dev.tsv"),), max_steps=2), texts=sample_rows[:100])
    assert result.best_step == 0
    assert math.isnan(result.after["spearman"])
    assert (result.folder / "last").is_dir()


@pytest.mark.slow
def test_encoders_of_folds_are_trained_again_if_the_run_is_longer(base, few, unguarded):
    config = learning(base, few, max_steps=2, batch_size=4, folds=2, name="run")
    result = train(config)
    (result.folder / "folds").mkdir()
    (result.folder / "folds" / "1.json").write_text("{}", encoding="utf8")
    longer = resumed_config(result.folder, {"max_steps": 4})
    assert train(longer, resume=result.folder).steps == 4  # {} holds no samples


def test_names_of_anybody_are_shown_as_text_in_cards(base, sample_rows, tmp_path):
    odd = "<script>alert(1)</script>\x1b[31m|\u202e"
    rows = [(text, f"{odd}{n % 2}") for n, text in enumerate(sample_rows[:200])]
    path = write_table(tmp_path / "odd.csv", rows, ("text", odd))
    result = train(base.replace(corpus=path, column="text", labels=odd, max_steps=2))
    card = (result.folder / "best" / "README.md").read_text(encoding="utf8")
    assert "&lt;script&gt;" in card
    assert "\x1b" not in card
    assert "\u202e" not in card
    assert "<script" not in card[: card.index("```toml")]  # the block of the configuration is shown as it is
    shown = verdict.markdown(result.verdict)
    columns = {line.count(" | ") for line in shown.splitlines() if line.startswith("|")}
    assert len(columns) == 1


def test_a_verdict_says_if_words_alone_predict_better_than_the_encoder():
    labels = np.arange(200) % 2

    def sample(name, right):
        values = 100.0 * (np.random.default_rng(right).random(200) < right / 100)
        return Sample(name, values, classes=labels, unit="rows")

    for words, said in ((90, True), (40, False)):
        report = Report([], samples=[sample("near", 70), sample("linear", 75)], beside=[sample("y by TF-IDF", words)])
        # The measures on another table, which the encoder predicts better, say nothing about this one.
        other = Report([], samples=[sample("other", 99)], beside=[sample("z by TF-IDF", 80)])
        found = concluded([sample("near", 60), sample("linear", 70), sample("other", 98)], [report, other])
        told = [note for note in found.notes if "without an encoder, scores higher than this encoder" in note]
        assert [note.partition(",")[0] for note in told] == ["y by TF-IDF"] * said
