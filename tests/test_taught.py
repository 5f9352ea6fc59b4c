"""What judges an encoder must not have taught it: labels that came in through a base, a teacher, a copy or a table."""

import csv
import itertools
import json
import re
import shutil
import tomllib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from cse import Encoder, InputError, compare, evaluate, train
from cse.encoder.taught import LABELS, PAIRS, SEEN, Taught, read_taught, taught_of, together, write_taught
from cse.evaluation.apart import untaught
from cse.evaluation.base import Report, Sample
from cse.evaluation.labels import LabelledTexts, Labels
from cse.evaluation.options import LabelsOptions
from cse.evaluation.run import EvaluationResult, compare_results
from cse.identity import row_keys
from cse.training.inputs import taught_by_model
from runs import write_table
from test_retrieval import command

COLUMNS = ["--column", "text", "--labels", "label"]


@pytest.fixture
def base(run_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return run_config.replace(
        corpus=(), tfidf=None, max_steps=6, pooler="avg", output="runs", batch_size=16, lr=1e-3, eval_every=0
    )


@pytest.fixture
def rows(sample_rows):
    """Texts with random labels, which nothing but these labels can teach."""
    draw = np.random.default_rng(0)
    return [(text, "ab"[draw.integers(2)]) for text in sample_rows[:160]]


def learning(base, table, name, **values):
    config = base.replace(corpus=table, column="text", labels="label", learn=True, folds=2, name=name)
    return train(config.replace(**values)).folder


def judged(*arguments):
    """Returns the verdict of ``cse compare``, or the message with which it refuses."""
    found = command("compare", *arguments, "--json")
    if found.exception is not None:
        return str(found.exception)
    record = json.loads(found.stdout)
    return (record["comparisons"][0] if "comparisons" in record else record)["verdict"]


@pytest.fixture
def table(rows, tmp_path):
    return write_table(tmp_path / "table.csv", rows)


@pytest.fixture
def taught(base, table):
    return learning(base, table, "taught")


def test_a_run_keeps_the_keys_of_its_texts_and_says_no_more_than_a_card_may(taught, table, rows):
    known = read_taught(taught)
    assert known.has_labels([text for text, _ in rows]).sum() == 160
    assert set(known.labelled.tolist()) <= set(known.texts.tolist()) == set(known.own.tolist())
    assert set(known.texts.tolist()) <= set(row_keys([text for text, _ in rows]).tolist())
    for place in ("best", "last"):
        settings = json.loads((taught / place / "config.json").read_text(encoding="utf8"))
        assert settings[LABELS] == [{"column": "label", "texts": len(known.labelled)}]
        assert not [path for path in (taught / place).rglob("*") if path.name == SEEN]
    card = (taught / "best" / "README.md").read_text(encoding="utf8")
    assert f"Labels of {len(known.labelled)} texts taught it (column label)" in card


@pytest.mark.parametrize("way", ["itself", "best", "last", "base", "teacher", "chain", "teacher of a base"])
def test_rows_whose_labels_taught_an_encoder_do_not_judge_it(base, table, taught, rows, way):
    plain = base.replace(corpus=table, column="text", max_steps=1)
    name = {"itself": "runs/taught", "best": "runs/taught/best", "last": "runs/taught/last"}.get(way, "runs/later")
    if way in ("base", "chain"):
        folder = train(plain.replace(model="runs/taught/best", name="later")).folder
        if way == "chain":
            name = str(train(plain.replace(model=str(folder / "best"), name="third")).folder)
    if "teacher" in way:
        learned = {"loss_terms": ("teacher",), "options": {"teacher": {"model": "runs/taught/best"}}}
        folder = train(plain.replace(name="later", **learned)).folder
        if way != "teacher":
            name = str(train(plain.replace(model=str(folder / "best"), name="third")).folder)
    found = judged(str(base.model), name, "--pooler", "avg", "--data", table, *COLUMNS)
    assert "learned the labels of 1" in found
    assert "the others cannot judge alone" in found
    with pytest.raises(InputError, match="learned the labels of"):
        compare(
            base.model, name, "labels", table, options={"labels": {"labels": "label", "column": "text"}}, pooler="avg"
        )
    options = {"labels": {"labels": "label", "column": "text"}}
    encoder = Encoder(name if way in ("best", "last") else f"{name}/best")
    with pytest.raises(InputError, match="learned the labels of"):
        evaluate(encoder, "labels", table, options=options)


def test_a_table_that_was_copied_converted_moved_or_grown_is_the_same_rows(
    base, table, taught, rows, tmp_path, sample_rows
):
    compared = ["runs/taught", str(base.model), "--pooler", "avg", "--data"]
    shutil.copy(table, tmp_path / "copy.csv")
    pq.write_table(pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]}), "t.parquet")
    spelled = [(f" {text.upper()}\u200b", label) for text, label in rows]
    tweeted = [(f"@someone: {text.replace(' ', '... ')} &quot;!&quot; https://t.co/x1", label) for text, label in rows]
    named = [(f"{text} @someone http://t.co/x1", label) for text, label in rows]
    other = learning(base, write_table(tmp_path / "named.csv", named), "named")
    bare = [(re.sub(r"[^\w ]", "", text), label) for text, label in named]  # which keeps the name and the link
    for kept in (rows, bare):
        assert taught_of(other).has_labels([text for text, _ in kept]).all()
    write_table(tmp_path / "spelled.csv", spelled)
    write_table(tmp_path / "tweeted.csv", tweeted)
    for path in ("copy.csv", "t.parquet", "spelled.csv", "tweeted.csv"):
        assert "the others cannot judge alone" in judged(*compared, path, *COLUMNS)
    more = [(text, "ab"[n % 2]) for n, text in enumerate(sample_rows[400:460])]
    grown = judged(*compared, write_table(tmp_path / "grown.csv", [*rows, *more]), *COLUMNS)
    assert grown["measures"][0]["examples"] == 60
    assert [note for note in grown["notes"] if "learned the labels of" in note and "these do not judge" in note]


def test_texts_that_taught_in_pairs_do_not_judge_by_labels(base, table, rows, sample_rows, tmp_path):
    same = [(one, other) for (one, a), (other, b) in itertools.pairwise(rows) if a == b][:40]
    pairs = tmp_path / "pairs.csv"
    with open(pairs, "w", encoding="utf8", newline="") as file:
        csv.writer(file).writerows([("anchor", "positive"), *same])
    folder = train(base.replace(pairs=(str(pairs),), max_steps=1, name="pairs")).folder
    later = train(
        base.replace(corpus=table, column="text", model=str(folder / "best"), max_steps=1, name="later")
    ).folder
    texts = {text for pair in same for text in pair}
    for run in (folder, later):
        assert taught_of(run).has_pairs([text for text, _ in rows]).sum() > 0.8 * len(texts)  # a few were held out
        found = judged(str(base.model), str(run), "--pooler", "avg", "--data", table, *COLUMNS)
        (note,) = [note for note in found["notes"] if "learned pairs of" in note]
        assert note.endswith("of the 160 rows, itself or through its base or teacher; these do not judge")
        left = 160 - taught_of(run).has_pairs([text for text, _ in rows]).sum()
        assert found["measures"][0]["examples"] == left
    (note,) = [note for note in found["notes"] if "without their labels" in note]
    assert f" of the {left} texts" in note  # of the run on the table, whose rows were in no pair
    # The rows are known in another spelling, through a link, and in a checkpoint.
    bare = write_table(tmp_path / "bare.csv", [(re.sub(r"[^\w ]", "", text).lower(), label) for text, label in rows])
    (tmp_path / "link").symlink_to(folder / "best")
    for name in ("link", next((folder / "checkpoints").iterdir()) / "best", folder / "best" / "."):
        assert taught_of(name).paired.tolist() == taught_of(folder).paired.tolist()
        found = judged(str(base.model), str(name), "--pooler", "avg", "--data", bare, *COLUMNS)
        assert [note for note in found["notes"] if "learned pairs of" in note]
    # A copy says that pairs taught it, of texts that are not known.
    shutil.copytree(folder / "best", "copied")
    assert taught_of("copied").columns == ((PAIRS, len(taught_of(folder).paired)),)
    assert "Pairs of " in (folder / "best" / "README.md").read_text(encoding="utf8")
    found = judged(str(base.model), "copied", "--pooler", "avg", "--data", table, *COLUMNS)
    assert taught_of("copied").unknown == ("copied",)
    assert found["word"] == "cannot tell"
    assert [note for note in found["notes"] if "labels or pairs of texts that are not known taught it" in note]


def test_a_suite_that_is_not_divided_says_that_pairs_taught_and_is_judged_as_a_whole(rows):
    class Suite(Labels):
        by_rows = False

        def only(self, kept):
            return None

    texts, labels = zip(*rows, strict=True)
    suite = Suite(LabelsOptions(), LabelledTexts("label", list(texts), np.unique(labels, return_inverse=True)[1]))
    keys = row_keys(texts[:20])
    found = untaught(suite, {"model": Taught.by(keys, paired=texts[:20])})
    assert found.evaluation is suite
    assert found.notes == [
        "model learned pairs of 20 of the texts, itself or through its base or teacher, and perhaps their labels"
    ]
    assert untaught(suite, {"model": Taught.by(keys, texts[:20], "label")}).evaluation is None


def test_an_onnx_file_in_a_folder_of_another_name_is_that_of_its_run(taught):
    (taught / "best" / "int8").mkdir()
    file = taught / "best" / "int8" / "model.onnx"
    file.write_bytes(b"")
    assert taught_of(f"onnx:{file}").labelled.tolist() == taught_of(taught).labelled.tolist() != []


@pytest.mark.parametrize("copy", ["best", "export", "saved", "sentence-transformers", "static", "onnx"])
def test_a_copy_without_its_run_is_never_better(base, table, taught, rows, tmp_path, copy, sample_rows):
    target = tmp_path / "elsewhere"
    if copy == "best":
        shutil.copytree(taught / "best", target)
    elif copy == "export":
        assert command("export", taught, "-o", target).exit_code == 0
    elif copy == "saved":
        Encoder(taught / "best").save(str(target))
    elif copy == "sentence-transformers":
        SentenceTransformer(str(taught / "best")).save(str(target))
    elif copy == "static":
        assert command("export", taught, "--static", "--corpus", table, "--column", "text", "-o", target).exit_code == 0
    else:
        assert command("export", taught, "--onnx", "-o", target).exit_code == 0
    assert not [path for path in target.rglob("*") if path.name == SEEN]
    name = f"onnx:{target}" if copy == "onnx" else str(target)
    assert taught_of(name).unknown
    found = judged(str(base.model), name, "--data", table, *COLUMNS)
    assert found["word"] == "cannot tell"
    assert [note for note in found["notes"] if "labels or pairs of texts that are not known taught it" in note]
    if copy not in ("static", "onnx"):  # which cannot be trained further
        later = train(base.replace(model=name, corpus=table, column="text", labels="label", max_steps=1, name="later"))
        assert later.verdict["word"] not in ("better", "worse")
        assert taught_of(later.folder / "best").unknown
        assert [
            note for note in later.verdict["notes"] if "labels or pairs of texts that are not known taught it" in note
        ]


def test_a_run_is_not_judged_by_labels_that_taught_its_base_or_teacher(base, table, taught, sample_rows, tmp_path):
    config = base.replace(corpus=table, column="text", labels="label", max_steps=1, learn=True)
    result = train(config.replace(model="runs/taught/best", name="again"))
    assert result.verdict["word"] == "not judged"
    assert "runs/taught/best learned the labels of" in result.verdict["why"]
    more = [(text, "ab"[n % 2]) for n, text in enumerate(sample_rows[500:700])]
    other = write_table(tmp_path / "other.csv", more)
    result = train(base.replace(corpus=other, column="text", labels="label", model="runs/taught/best", name="other"))
    assert len(result.verdict["measures"]) == 2  # no row of this table taught the base


def test_runs_are_compared_without_rows_whose_labels_taught_their_bases(base, rows, tmp_path, sample_rows):
    rows = [(text, "ab"[n % 2]) for n, text in enumerate(sample_rows[:400])]
    table = write_table(tmp_path / "table.csv", rows)
    config = base.replace(corpus=table, column="text", labels="label", max_steps=1)
    first = train(config.replace(name="first"))
    learned = base.replace(corpus=write_table(tmp_path / "part.csv", rows), column="text", labels="label", learn=True)
    train(learned.replace(folds=2, name="all", max_steps=1))  # with folds, all labels teach
    train(config.replace(model="runs/all/best", name="second"))
    found = judged("runs/first", "runs/second")
    assert isinstance(found, str)
    assert "was trained on all rows that judged" in found
    assert first.verdict["measures"]


def test_a_run_of_an_earlier_version_is_known_by_its_table_as_long_as_that_is_unchanged(
    base, table, taught, rows, tmp_path
):
    expected = taught_of(taught)
    (taught / SEEN).unlink()
    assert taught_by_model(str(taught)).unknown  # a run of this version that has lost the file
    config = taught / "best" / "config.json"
    settings = json.loads(config.read_text(encoding="utf8"))
    del settings[LABELS]
    config.write_text(json.dumps(settings), encoding="utf8")
    assert taught_of(taught).unknown  # without its table, labels of unknown texts taught it
    found = taught_by_model(str(taught))
    assert (found.labelled == expected.labelled).all()
    assert (found.own == expected.own).all()
    with open(table, "a", encoding="utf8", newline="") as file:
        csv.writer(file).writerow(["one more", "a"])
    with pytest.raises(InputError, match="its data have changed since"):
        taught_by_model(str(taught))
    (tmp_path / "table.csv").unlink()
    with pytest.raises(InputError, match="its data cannot be read again"):
        taught_by_model(str(taught))


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"not an array", b"\x80\x04K\x01."])
def test_a_damaged_list_of_what_taught_a_run_is_refused_in_one_sentence(taught, content):
    (taught / SEEN).write_bytes(content)
    with pytest.raises(InputError, match=r"seen\.npy: is damaged"):
        read_taught(taught)
    np.save(taught / SEEN, np.zeros(3))
    with pytest.raises(InputError, match=r"seen\.npy: is damaged"):
        read_taught(taught)


def test_what_taught_an_encoder_is_written_and_read_as_it_is(tmp_path):
    texts = [f"a sentence, number {number}" for number in range(8)]
    keys = row_keys(texts)
    own = Taught.by(keys[:4], texts[2:4], "label")
    assert own.columns == (("label", 2),)
    later = own.after([Taught.by(keys[4:], texts[6:], "label", texts[5:6]), Taught(unknown=("runs/x",))])
    assert later.own.tolist() == np.sort(keys[:4]).tolist()
    assert later.has_labels(texts).tolist() == [False] * 2 + [True] * 2 + [False] * 2 + [True] * 2
    assert later.has_pairs(texts).tolist() == [number == 5 for number in range(8)]
    write_taught(tmp_path, later)
    found = read_taught(tmp_path)
    for name in ("texts", "own", "labelled", "letters", "paired", "paired_letters"):
        assert (getattr(found, name) == getattr(later, name)).all()
    old = [("key", "<u8"), ("own", "?"), ("labels", "?")]  # as earlier versions wrote it
    records = np.load(tmp_path / SEEN)
    np.save(tmp_path / SEEN, np.array([tuple(each[name] for name, _ in old) for each in records], dtype=old))
    assert (read_taught(tmp_path).labelled == later.labelled).all()
    assert not len(read_taught(tmp_path).paired)
    assert found.unknown == (str(tmp_path),)
    assert together([]).texts.tolist() == []
    assert read_taught(tmp_path / "nowhere") is None


def test_all_models_of_one_command_are_one_family_of_tests():
    draw, false = np.random.default_rng(1), 0
    for _ in range(40):
        first = draw.random(600) < 0.75

        def result(name, first=first):
            values = 100.0 * np.where(draw.random(600) < 0.15, ~first, first)
            sample = Sample("task", values, unit="rows")
            return EvaluationResult(name, "", "", "", {"labels": Report([], samples=[sample])}, [])

        results = [[result(f"m{number}")] for number in range(9)]
        words = [record["verdict"] for each in compare_results(results, False) for record in each.tasks]
        false += any(word != "cannot tell" for word in words)
    assert false <= 5


def test_the_configuration_of_a_run_is_not_changed_by_what_it_keeps(taught):
    settings = tomllib.loads((taught / "config.toml").read_text(encoding="utf8"))
    assert "label" in settings["labels"]
    assert LABELS not in settings


def test_labels_of_unknown_texts_never_make_a_model_better():
    draw = np.random.default_rng(0)
    values = [100.0 * (draw.random(500) < share) for share in (0.5, 0.9)]
    reports = [{"labels": Report([], samples=[Sample("label", each, unit="rows")])} for each in values]
    for unknown, word in ((frozenset(), "better"), (frozenset({"labels"}), "cannot tell")):
        results = [EvaluationResult("m", "", "", "", each, [], unknown) for each in reports]
        for before, after in ((results[0], results[1]), (results[0], replace(results[1], undecided=unknown))):
            (found,) = compare_results([[before], [after]], False)
            assert [record["verdict"] for record in found.tasks] == [word]


def test_a_suite_of_several_tasks_is_refused_if_labels_of_its_texts_taught(base, taught, rows, tmp_path):
    (tmp_path / "tasks").mkdir()
    lines = [f"{'ab'.index(label)}\t{text}\n" for text, label in rows]
    (tmp_path / "tasks" / "mr.tsv").write_text("".join(lines), encoding="utf8")
    options = ["--suite", "transfer", "--data", tmp_path / "tasks", "--allow-partial", "--set", "transfer.folds=2"]
    fault = command("compare", base.model, taught, "--pooler", "avg", *options).exception
    assert "learned the labels of 160 of the 160 rows" in str(fault)
    assert "the others cannot judge alone" in str(fault)


def test_no_model_is_recommended_if_labels_of_unknown_texts_taught_one(base, taught, table, tmp_path):
    shutil.copytree(taught / "best", tmp_path / "copy")
    shown = command("compare", base.model, "copy", "--pooler", "avg", "--data", table, *COLUMNS).stdout
    assert shown.splitlines()[-1] == "none is recommended: labels or pairs of texts that are not known taught copy"
