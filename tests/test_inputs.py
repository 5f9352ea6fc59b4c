"""Texts given as lists, files, patterns or tables: the rows that are read, row numbers, and error messages."""

import csv
import gzip
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from conftest import refuses
from cse import Encoder, InputError, SearchIndex, TfidfIndex, TrainConfig, train
from cse.data.corpus import Corpus
from cse.data.readers import joined_lines, resolve
from cse.training.data import check_indexed, open_corpus
from cse.training.setup import prepare
from test_cli import ran, refused

TEXTS = [
    'Plain words, with "quotes" and commas.',
    "one\nfield over\r\nthree lines",
    "every\rbreak",
    "",
    None,
    "Caf\u00e9 na\u00efve \u5317\u4eac \U0001f600",
    "trailing\ttab 'and' more",
    "last one",
]
ROWS = [re.sub("\r\n|\r|\n", " ", text or "") for text in TEXTS]


def table(folder, suffix, texts=TEXTS):
    """Writes a table with the texts in the second of three columns and returns its path.

    For ``.tsv``, the texts must not contain tabs or line breaks.
    """
    path = folder / f"corpus{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({"id": range(len(texts)), "text": texts, "z": ["x"] * len(texts)}), path)
    elif suffix == ".tsv":
        lines = ["id\ttext\tz", *(f"{i}\t{text}\tx" for i, text in enumerate(texts))]
        path.write_text("\n".join(lines) + "\n", encoding="utf8")
    elif ".jsonl" in suffix:
        lines = [json.dumps({"id": i, "text": text, "z": [1, {"a": 2}]}) for i, text in enumerate(texts)]
        data = ("\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    else:
        with open(path, "w", encoding="utf8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "text", "z"])
            writer.writerows([i, text, "x"] for i, text in enumerate(texts))
    return path


def rows_of(files):
    corpus = Corpus.read(files)
    return corpus.take(range(len(corpus)))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".jsonl.gz", ".parquet"])
def test_each_cell_of_a_column_is_one_row_and_its_line_breaks_become_spaces(tmp_path, suffix):
    files = resolve(table(tmp_path, suffix), "text")
    assert rows_of(files) == ROWS
    assert joined_lines(files) == 2
    texts = ['He said "no', "it's", "", "100 %", '"']  # quotes in a TSV are ordinary characters
    assert rows_of(resolve(table(tmp_path, ".tsv", texts), "text")) == texts


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_tables_and_text_files_give_the_same_index_and_row_numbers(tmp_path, suffix, sample_rows, sample_index, cse):
    """The index, the trainer and `cse augment` number the rows of a table like those of a text file."""
    path = table(tmp_path, suffix, sample_rows)
    summary = json.loads(ran(cse("build-tfidf", path, "--column", "text", "-o", "tfidf", "--json", cwd=tmp_path)))
    assert summary["rows"] == 10_000
    assert (summary["files"][0]["column"], summary["files"][0]["bytes"]) == ("text", path.stat().st_size)
    index = TfidfIndex.open(tmp_path / "tfidf")
    assert index.terms == sample_index.terms
    assert (index.max_score == sample_index.max_score).all()
    assert rows_of(resolve(path, "text")) == sample_rows
    done = ran(cse("augment", path, "--column", "text", cwd=tmp_path))
    assert done.split("\n")[:-1] == sample_index.augment(sample_rows)


def test_the_trainer_finds_a_table_through_its_index(tmp_path, sample_rows, tiny_bert):
    path = table(tmp_path, ".parquet", sample_rows[:200])
    TfidfIndex.build(path, column="text").save(tmp_path / "tfidf")
    config = TrainConfig(tfidf=tmp_path / "tfidf", model=tiny_bert, batch_size=8, max_steps=2, una=True)
    found = [prepare(each).batches for each in (config, config.replace(corpus=path, column="text"))]
    assert found[0][0].rows.tolist() == found[1][0].rows.tolist()
    assert found[0][0].blocks["anchor"].texts == found[1][0].blocks["anchor"].texts


def test_patterns_match_files_in_order_of_their_names(tmp_path, cse):
    (tmp_path / "deep").mkdir()
    for name, text in [("b.txt", "two\n"), ("a.txt", "one\n"), ("deep/c.txt", "three\n"), ("odd[1].txt", "four\n")]:
        (tmp_path / name).write_text(text)
    assert rows_of(resolve(str(tmp_path / "[ab].txt"))) == ["one", "two"]
    assert rows_of(resolve(str(tmp_path / "**" / "?.txt"))) == ["one", "two", "three"]
    assert rows_of(resolve([tmp_path / "b.txt", str(tmp_path / "a*.txt")])) == ["two", "one"]
    assert rows_of(resolve(tmp_path / "odd[1].txt")) == ["four"]  # an existing file is not treated as a pattern
    refuses("no file matches", resolve, str(tmp_path / "*.csv"))
    done = cse("build-tfidf", "[ab].txt", "-o", "out", "--json", cwd=tmp_path)
    assert [file["path"] for file in json.loads(done.stdout)["files"]] == ["a.txt", "b.txt"]


def test_dictionary_large_string_and_binary_columns_are_read(tmp_path):
    for kind in (pa.dictionary(pa.int32(), pa.string()), pa.large_string(), pa.binary()):
        column = pa.array([b"a b", None, b"a b"], pa.binary()).cast(pa.string()).cast(kind)
        pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
        assert rows_of(resolve(tmp_path / "a.parquet", "text")) == ["a b", "", "a b"]


def test_json_records_may_omit_fields_and_may_be_large(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"b": "x"}\n\n{"a": "hello there"}\n{"b": "y", "a": "again"}\n', encoding="utf8")
    assert rows_of(resolve(path, "a")) == ["", "hello there", "again"]
    path.write_text(json.dumps({"big": "x" * 5_000_000, "a": "one"}) + "\n" + json.dumps({"a": "two"}) + "\n")
    assert rows_of(resolve(path, "a")) == ["one", "two"]


def test_training_uses_the_indexed_column(tmp_path):
    path = tmp_path / "two.csv"
    path.write_text(",b\n10,one\n20,two\n")
    index = TfidfIndex.build(path, column="")
    corpus = open_corpus((), None, index)
    assert corpus.take([0, 1]) == ["10", "20"]
    refuses("--column", check_indexed, open_corpus((str(path),), "b", index), index)


def records(*found):
    return "".join(json.dumps(record) + "\n" for record in found).encode()


TEXT_EXPECTED = "column 'a' must be text, got "
# Name and content of a table, the column that is read, and the message.
FAULTS = [
    ("t.csv", b"id,text,z\n1,a b,x\n", "nope", "id, text, z"),
    ("t.tsv", b"id\ttext\tz\n1\ta b\tx\n", "nope", "id, text, z"),
    ("t.jsonl", records({"id": 1, "text": "a b", "z": "x"}), "nope", "id, text, z"),
    ("t.csv", b"text,b\nx,y\nx,y,z\n", "text", "t.csv"),
    ("t.csv", b"", "text", "t.csv"),
    ("t.csv", b"text\nfine\nbad \xff byte\n", "text", "row 2 of column text"),
    ("t.csv", b"caf\xe9,b\nhello,x\n", "b", "check its form"),
    ("t.csv", b"a,a\nhello,x\n", "a", "2 columns named 'a'"),
    ("t.csv", b"a,b\nok row,1\n\ncaf\xe9 is bad,2\n", "a", "row 2 of column a is not valid UTF-8"),
    ("t.csv", b"a,b\n", "a", "contains no rows"),
    ("t.csv.gz", gzip.compress(b"a\n" + b"some text\n" * 100_000)[:200], "a", "t.csv.gz"),
    ("t.csv.gz", b"a\nhello\n", "a", "t.csv.gz"),
    ("t.parquet", b"PAR1 not really", "text", "t.parquet"),
    ("t.jsonl", b"\n\n", "a", "it has no record"),
    ("t.jsonl", b"not json\n", "text", "not a JSON object"),
    ("t.jsonl", b'{"text":"caf\xe9"}\n{"text":"a good row"}\n', "text", "row 1"),
    ("t.jsonl", b'{"text":"a good row"}\n{"text":"caf\xe9"}\n', "text", "row 2"),
    ("t.jsonl", records({"a": {"text": "x", "id": 1}}), "a", f"line 1: {TEXT_EXPECTED}an object with the fields te"),
    ("t.jsonl", records({"a": "x"}, {"a": None}, {"b": 1}, {"a": 7}), "a", f"line 4: {TEXT_EXPECTED}a number (7); "),
    ("t.jsonl", records({"a": ["x", "y"]}), "a", f"line 1: {TEXT_EXPECTED}a list; "),
    ("t.jsonl", records({"a": True}), "a", f"line 1: {TEXT_EXPECTED}a boolean (true); "),
    ("t.jsonl", records(*[{"a": None}] * 3), "a", "column a is empty or null in all 3 rows"),
    # After 60,000 records, which are several blocks.
    ("t.jsonl", records({"a": "word " * 20}) * 60_000 + b'{"a": 3}\n', "a", f"line 60001: {TEXT_EXPECTED}a number (3)"),
    ("t.jsonl", records({"a": "word " * 20}) * 60_000 + b'{"a": "x"\n', "a", "line 60001 is not a JSON object"),
    ("plain.txt", b"a\n", "text", "none of the files is a table"),
]


@pytest.mark.parametrize(("name", "content", "column", "message"), FAULTS)
def test_errors_of_tables_name_the_file_or_the_place_of_the_fault(tmp_path, name, content, column, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        TfidfIndex.build(tmp_path / name, column=column)
    assert message in str(caught.value)
    assert message.startswith(("none", "check", "2 col")) or name in str(caught.value)


def test_errors_of_other_tables_and_on_the_command_line(tmp_path, cse):
    pq.write_table(pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["a", "a"]), tmp_path / "a.parquet")
    refuses("2 columns named 'a'", resolve, tmp_path / "a.parquet", "a")
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "b.parquet")
    message = r"row 1: column 'text' must be text, got a number \(1\); write it as text"
    refuses(message, Corpus.read, resolve(tmp_path / "b.parquet", "text"))
    refuses("no file was given", TfidfIndex.build, [])
    (tmp_path / "long.csv").write_bytes(b"a\nok\n" + b"x" * 5000 + b"\n")
    done = cse("build-tfidf", "long.csv", "--column", "a", "--max-line-bytes", 99, cwd=tmp_path)
    refused(done, "long.csv", "row 2 of column a is longer")
    (tmp_path / "bad.jsonl").write_bytes(b'{"text":"caf\xe9 here"}\n')
    assert TfidfIndex.build(tmp_path / "bad.jsonl", column="text", encoding_errors="replace").info.rows == 1


def test_sample_is_the_installed_corpus_unless_a_file_has_this_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (path,) = resolve("sample")
    assert path.endswith("sample.txt")
    assert len(Path(path).read_text(encoding="utf8").splitlines()) == 10_000
    (tmp_path / "sample").write_text("one row\n")
    assert resolve("sample") == ["sample"]


def test_rows_of_a_large_table_keep_their_order(tmp_path):
    texts = [f"row {i} " + "word " * (i % 50) for i in range(60_000)]
    path = table(tmp_path, ".csv", texts)
    assert rows_of(resolve(path, "text")) == texts
    one, two = (TfidfIndex.build(path, column="text", threads=threads) for threads in (1, 2))
    assert one.to_bytes() == two.to_bytes()


COLUMNS = {"text": ["a b"], "other": ["c d"]}
NOT_LISTS = ["ab", b"ab", {"text": "a"}, pd.DataFrame(COLUMNS), pa.table(COLUMNS), Dataset.from_dict(COLUMNS), 5]


@pytest.fixture(scope="module")
def encoder(glove):
    return Encoder(glove)


@pytest.fixture
def index(encoder):
    return SearchIndex.build(encoder, ["word1", "word2", "word3", "word4"], ids=list("1234"))


@pytest.mark.parametrize("texts", NOT_LISTS, ids=lambda value: type(value).__name__)
def test_what_is_not_a_list_of_texts_is_refused(texts, encoder, index, tmp_path):
    tfidf = TfidfIndex.from_texts(["word1 word2", "word3 word4"])
    takers = {
        "texts": [TfidfIndex.from_texts, tfidf.augment, tfidf.transform, partial(SearchIndex.build, encoder)],
        "queries": [index.search],
        "ids": [lambda given: SearchIndex.build(encoder, ["word1", "word2"], ids=given)],
    }
    takers["texts"] += [lambda given: train(TrainConfig(model="glove:x", output=str(tmp_path)), texts=given)]
    takers["texts"] += [] if isinstance(texts, str) else [encoder.encode]  # one text has one vector
    for name, functions in takers.items():
        for take in functions:
            refuses(f"^{name}: a list of .* was expected, not ", take, texts)
    assert len(index) == 4


def test_lists_of_any_kind_are_accepted(encoder):
    texts = ["word1 word2", "word3"]
    vectors = encoder.encode(texts)
    dataset = Dataset.from_dict({"text": texts})
    for given in (tuple(texts), np.array(texts), pd.Series(texts), iter(texts), dict.fromkeys(texts).keys(),
                  dataset["text"]):  # fmt: skip
        assert np.array_equal(encoder.encode(given), vectors)
    index = SearchIndex.build(encoder, np.array(texts), ids=np.array([3, 4]))
    assert index.ids([0, 1]) == ["3", "4"]


def test_an_id_is_a_text_or_an_integer(encoder):
    for value in (None, 1.0, True, b"a"):
        build = partial(SearchIndex.build, encoder, ["word1", "word2"], ids=["a", value])
        refuses(r"^ids: element 1 must be a string or an integer", build)


def test_invalid_options_are_named(sample, sample_index):
    build, augment = partial(TfidfIndex.build, sample), partial(sample_index.augment, ["a text"])
    for message, call, options in (
        ("^--radius ", augment, {"radius": [3]}),
        ("^--beta: 1.5 is not a number from 0 to 1", augment, {"beta": 1.5}),
        ('^--mode: "x" is unknown; choose negative or positive', augment, {"mode": "x"}),
        ("^--tokenizer: ", build, {"tokenizer": "x"}),
        ('^--encoding-errors: "x" is unknown; choose strict or replace', build, {"encoding_errors": "x"}),
    ):
        refuses(message, call, **options)
    wrong = {"seed": -1, "beta": "half", "mode": 1, "odd": 1}
    for message, call, options in (
        *((name, augment, {name: value}) for name, value in wrong.items()),
        ("Words.lowercase", build, {"lowercase": "yes"}),
    ):
        refuses(message, call, **options, error=TypeError)
