"""Corpora given as files, patterns or tables: the rows that are read, row numbers, and error messages."""

import csv
import gzip
import json
import re
from pathlib import Path

import pytest

from cse import InputError, TfidfIndex, TrainConfig
from cse.data.corpus import Corpus
from cse.data.readers import joined_lines, resolve
from cse.training.data import check_indexed, open_corpus
from cse.training.setup import prepare

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'cse[tables]'")
import pyarrow.parquet as pq  # noqa: E402

TEXTS = [
    'Plain words, with "quotes" and commas.',
    "one\nfield over\r\nthree lines",
    "",
    None,
    "Caf\u00e9 na\u00efve \u5317\u4eac \U0001f600",
    "trailing\ttab 'and' more",
    "last one",
]
ROWS = [(text or "").replace("\r\n", " ").replace("\n", " ") for text in TEXTS]


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
    assert joined_lines(files) == 1


def test_quotes_in_a_tsv_are_ordinary_characters(tmp_path):
    texts = ['He said "no', "it's", "", "100 %", '"']
    assert rows_of(resolve(table(tmp_path, ".tsv", texts), "text")) == texts


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_tables_and_text_files_give_the_same_index_and_row_numbers(tmp_path, suffix, sample_rows, sample_index, cse):
    """The index, the trainer and `cse augment` number the rows of a table like those of a text file."""
    path = table(tmp_path, suffix, sample_rows)
    done = cse("build-tfidf", path, "--column", "text", "-o", "tfidf", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["rows"] == 10_000
    assert summary["files"][0]["column"] == "text"
    assert summary["files"][0]["bytes"] == path.stat().st_size
    index = TfidfIndex.open(tmp_path / "tfidf")
    assert index.terms == sample_index.terms
    assert (index.max_score == sample_index.max_score).all()
    assert rows_of(resolve(path, "text")) == sample_rows
    done = cse("augment", path, "--column", "text", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == sample_index.augment(sample_rows)


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
    with pytest.raises(InputError, match="no file matches"):
        resolve(str(tmp_path / "*.csv"))
    done = cse("build-tfidf", "[ab].txt", "-o", "out", "--json", cwd=tmp_path)
    assert [file["path"] for file in json.loads(done.stdout)["files"]] == ["a.txt", "b.txt"]


def test_error_for_a_missing_column_lists_the_columns_of_the_table(tmp_path, cse):
    for suffix in (".csv", ".tsv", ".jsonl", ".parquet"):
        path = table(tmp_path, suffix, ["a b", "c"])
        for arguments in (["build-tfidf", path], ["build-tfidf", path, "--column", "nope"]):
            done = cse(*arguments, cwd=tmp_path)
            assert done.returncode == 2
            assert "Traceback" not in done.stderr
            assert "id, text, z" in done.stderr
    (tmp_path / "plain.txt").write_text("a\n")
    with pytest.raises(InputError, match="none of the files is a table"):
        resolve(tmp_path / "plain.txt", "text")


@pytest.mark.parametrize(
    ("name", "content", "phrase"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": 3}\n', "a.jsonl"),
        ("a.jsonl", b"not json\n", "not a JSON object"),
        ("a.csv", b"text,b\nx,y\nx,y,z\n", "a.csv"),
        ("a.parquet", b"PAR1 not really", "a.parquet"),
        ("a.csv", b"", "a.csv"),
        ("a.csv", b"text\nfine\nbad \xff byte\n", "row 2 of column text"),
    ],
)
def test_error_for_a_broken_table_names_the_file_or_the_fault(tmp_path, cse, name, content, phrase):
    (tmp_path / name).write_bytes(content)
    done = cse("build-tfidf", name, "--column", "text", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert phrase in done.stderr.strip().splitlines()[-1]


def test_dictionary_large_string_and_binary_columns_are_read(tmp_path):
    for kind in (pa.dictionary(pa.int32(), pa.string()), pa.large_string(), pa.binary()):
        column = pa.array([b"a b", None, b"a b"], pa.binary()).cast(pa.string()).cast(kind)
        pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
        assert rows_of(resolve(tmp_path / "a.parquet", "text")) == ["a b", "", "a b"]


def refused(cse, folder, name, content, *arguments):
    (folder / name).write_bytes(content)
    done = cse("build-tfidf", name, *arguments, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    message = done.stderr.strip().splitlines()[-1]
    assert name in message
    return message


def test_invalid_and_repeated_column_names_are_refused(tmp_path, cse):
    assert "check its form" in refused(cse, tmp_path, "latin.csv", b"caf\xe9,b\nhello,x\n", "--column", "b")
    assert "2 columns named 'a'" in refused(cse, tmp_path, "twice.csv", b"a,a\nhello,x\n", "--column", "a")
    pq.write_table(
        pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["a", "a"]), tmp_path / "twice.parquet"
    )
    with pytest.raises(InputError, match="2 columns named 'a'"):
        resolve(tmp_path / "twice.parquet", "a")


def test_json_records_may_omit_fields_and_may_be_large(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"b": "x"}\n\n{"a": "hello there"}\n{"b": "y", "a": "again"}\n')
    assert rows_of(resolve(path, "a")) == ["", "hello there", "again"]
    path.write_text(json.dumps({"big": "x" * 5_000_000, "a": "one"}) + "\n" + json.dumps({"a": "two"}) + "\n")
    assert rows_of(resolve(path, "a")) == ["one", "two"]


def test_errors_of_tables_name_the_file_and_the_place_of_a_bad_cell(tmp_path, cse):
    message = refused(cse, tmp_path, "bad.csv", b"a,b\nok row,1\n\ncaf\xe9 is bad,2\n", "--column", "a")
    assert "row 2 of column a is not valid UTF-8" in message
    message = refused(
        cse, tmp_path, "long.csv", b"a\nok\n" + b"x" * 5000 + b"\n", "--column", "a", "--max-line-bytes", 99
    )
    assert "row 2 of column a is longer" in message
    packed = gzip.compress(b"a\n" + b"some text\n" * 100_000)
    refused(cse, tmp_path, "cut.csv.gz", packed[:200], "--column", "a")
    refused(cse, tmp_path, "plain.csv.gz", b"a\nhello\n", "--column", "a")
    assert "has no column 'a'" in refused(cse, tmp_path, "empty.jsonl", b"\n\n", "--column", "a")
    assert "contains no rows" in refused(cse, tmp_path, "header.csv", b"a,b\n", "--column", "a")
    with pytest.raises(InputError, match="no file was given"):
        TfidfIndex.build([])


def test_training_uses_the_indexed_column(tmp_path):
    path = tmp_path / "two.csv"
    path.write_text(",b\n10,one\n20,two\n")
    index = TfidfIndex.build(path, column="")
    corpus = open_corpus((), None, index)
    assert corpus.take([0, 1]) == ["10", "20"]
    with pytest.raises(InputError, match="--column"):
        check_indexed(open_corpus((str(path),), "b", index), index)


@pytest.mark.parametrize("rows", [(b"a good row", b"caf\xe9 here"), (b"caf\xe9 here", b"a good row")])
def test_invalid_utf8_in_jsonl_is_reported_by_row_or_replaced(tmp_path, cse, rows):
    (tmp_path / "t.jsonl").write_bytes(b"".join(b'{"text":"' + row + b'"}\n' for row in rows))
    number = 1 + rows.index(b"caf\xe9 here")
    done = cse("build-tfidf", "t.jsonl", "--column", "text", cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert f"row {number}" in done.stderr
    done = cse("build-tfidf", "t.jsonl", "--column", "text", "--encoding-errors", "replace", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_augment_refuses_a_compressed_output_file(indexed, sample, cse):
    done = cse("augment", sample, "-o", "negatives.txt.gz", cwd=indexed)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is plain lines" in done.stderr


@pytest.mark.parametrize(
    ("records", "phrase"),
    [
        ([{"a": {"text": "x", "id": 1}}], "line 1: column 'a' must be text, got an object with the fields text, id; "),
        ([{"a": "x"}, {"a": None}, {"b": 1}, {"a": 7}], "line 4: column 'a' must be text, got a number (7); "),
        ([{"a": ["x", "y"]}], "line 1: column 'a' must be text, got a list; "),
        ([{"a": True}], "line 1: column 'a' must be text, got a boolean (true); "),
        ([{"a": None}] * 3, "column a is empty or null in all 3 rows"),
    ],
)
def test_errors_for_records_without_text_name_the_line_and_type(tmp_path, cse, records, phrase):
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    assert phrase in refused(cse, tmp_path, "a.jsonl", content, "--column", "a")
    with pytest.raises(InputError, match=re.escape(phrase)):
        Corpus.read(resolve(tmp_path / "a.jsonl", "a")).filled()


def test_error_for_a_broken_record_names_its_line_in_the_file(tmp_path, cse):
    good = (json.dumps({"a": "word " * 20}) + "\n") * 60_000  # enough for several blocks
    for broken, phrase in (
        ('{"a": 3}\n', "line 60001: column 'a' must be text, got a number (3)"),
        ('{"a": "x"\n', "line 60001 is not a JSON object"),
    ):
        assert phrase in refused(cse, tmp_path, "a.jsonl", (good + broken).encode(), "--column", "a")


def test_sample_is_the_installed_corpus_unless_a_file_has_this_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (path,) = resolve("sample")
    assert path.endswith("sample.txt")
    assert len(Path(path).read_text(encoding="utf8").splitlines()) == 10_000
    (tmp_path / "sample").write_text("one row\n")
    assert resolve("sample") == ["sample"]


def test_a_column_of_numbers_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [1, 2]}), path)
    with pytest.raises(InputError, match=r"row 1: column 'text' must be text, got a number \(1\); write it as text"):
        Corpus.read(resolve(path, "text"))


def test_rows_of_a_large_table_keep_their_order(tmp_path):
    texts = [f"row {i} " + "word " * (i % 50) for i in range(60_000)]
    path = table(tmp_path, ".csv", texts)
    assert rows_of(resolve(path, "text")) == texts
    one, two = (TfidfIndex.build(path, column="text", threads=threads) for threads in (1, 2))
    assert one.to_bytes() == two.to_bytes()


def test_a_byte_order_mark_is_not_part_of_the_first_record(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": "one"}\n{"a": "two"}\n')
    assert rows_of(resolve(tmp_path / "a.jsonl", "a")) == ["one", "two"]


def test_every_kind_of_line_break_in_a_field_becomes_a_space(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'text,n\n"a\r\nb\nc\rd",1\n')
    assert Corpus.read(resolve([str(path)], "text")).take([0]) == ["a b c d"]
