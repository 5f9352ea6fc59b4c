"""Texts given as lists, files, patterns or tables, JSON and TOML: what is read, row numbers, and what is refused."""

import bz2
import gzip
import io
import json
import lzma
import re
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from commands import refuses
from cse import Encoder, InputError, SearchIndex, TfidfIndex, TrainConfig, _core, train
from cse.cli.commands.evaluate import systems_of
from cse.cli.options import Ranking
from cse.data import readers, tables
from cse.data.corpus import Corpus
from cse.data.readers import joined_lines, resolve
from cse.data.tables import column_values
from cse.evaluation.base import read_pairs
from cse.io import parse_json, read_json, read_toml
from cse.training.data import check_device, check_indexed, open_corpus
from cse.training.setup import prepare
from test_cli import ran
from test_pairs import table as table_of

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
    """Writes a table with the texts in the second of three columns (for .tsv, without tabs or line breaks)."""
    last = [1, {"a": 2}] if ".jsonl" in suffix else "x"
    rows = [(number, text, last) for number, text in enumerate(texts)]
    return table_of(folder, suffix[1:], rows, ("id", "text", "z"))


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


def test_training_uses_the_indexed_column(tmp_path):
    path = tmp_path / "two.csv"
    path.write_text(",b\n10,one\n20,two\n")
    index = TfidfIndex.build(path, column="")
    corpus = open_corpus((), None, index)
    assert corpus.take([0, 1]) == ["10", "20"]
    refuses("--column", check_indexed, open_corpus((str(path),), "b", index), index)


def parquet(table):
    content = io.BytesIO()
    pq.write_table(table, content)
    return content.getvalue()


def records(*found):
    return "".join(json.dumps(record) + "\n" for record in found).encode()


TEXT_EXPECTED, NESTED = "column 'a' must be text, got ", b"[" * 200_000 + b"]" * 200_000
# Name and content of a table, the column that is read, and the message.
FAULTS = [
    ("t.csv", b"id,text,z\n1,a b,x\n", "nope", "no column 'nope'; its columns are: id, text, z"),
    ("t.tsv", b"id\ttext\tz\n1\ta b\tx\n", "nope", "no column 'nope'; its columns are: id, text, z"),
    (
        "t.jsonl",
        records({"id": 1, "text": "a b", "z": "x"}),
        "nope",
        "no column 'nope'; its columns are: id, text, z",
    ),
    ("t.csv", b"text,b\nx,y\nx,y,z\n", "text", "has 3 fields, but the first line names 2 columns"),
    ("t.csv", b"", "text", "its columns are: none, it has no record"),
    ("t.csv", b"text\nfine\nbad \xff byte\n", "text", "row 2 of column text"),
    ("t.csv", b"caf\xe9,b\nhello,x\n", "b", "the names of its columns are not UTF-8; convert it"),
    ("t.csv", b"a,a\nhello,x\n", "a", "2 columns named 'a'"),
    ("t.csv", b"a,b\nok row,1\n\ncaf\xe9 is bad,2\n", "a", "row 2 of column a is not valid UTF-8"),
    ("t.csv", b"a,b\n", "a", "contains no rows"),
    ("t.csv.gz", gzip.compress(b"a\n" + b"some text\n" * 100_000)[:200], "a", "Compressed file ended before"),
    ("t.csv.gz", b"a\nhello\n", "a", "Not a gzipped file"),
    ("t.parquet", b"PAR1 not really", "text", "cannot be read as a table (Parquet"),
    ("t.parquet", parquet(pa.table({"text": [1, 2]})), "text", "row 1: column 'text' must be text, got a number (1); "),
    ("t.parquet", parquet(pa.Table.from_arrays([pa.array(["x"])] * 2, ["a", "a"])), "a", "2 columns named 'a'"),
    ("t.jsonl", b"\n\n", "a", "it has no record"),
    ("t.jsonl", b"not json\n", "text", "not a JSON object"),
    ("t.jsonl", b'{"text":"caf\xe9"}\n{"text":"a good row"}\n', "text", "row 1 of column text is not valid UTF-8"),
    ("t.jsonl", b'{"text":"a good row"}\n{"text":"caf\xe9"}\n', "text", "row 2 of column text is not valid UTF-8"),
    ("t.jsonl", records({"a": {"text": "x", "id": 1}}), "a", f"line 1: {TEXT_EXPECTED}an object with the fields te"),
    ("t.jsonl", records({"a": "x"}, {"a": None}, {"b": 1}, {"a": 7}), "a", f"line 4: {TEXT_EXPECTED}a number (7); "),
    ("t.jsonl", records({"a": ["x", "y"]}), "a", f"line 1: {TEXT_EXPECTED}a list; "),
    ("t.jsonl", records({"a": True}), "a", f"line 1: {TEXT_EXPECTED}a boolean (true); "),
    ("t.jsonl", records(*[{"a": None}] * 3), "a", "column a is empty or null in all 3 rows"),
    # After 60,000 records, which are several blocks.
    ("t.jsonl", records({"a": "word " * 20}) * 60_000 + b'{"a": 3}\n', "a", f"line 60001: {TEXT_EXPECTED}a number (3)"),
    ("t.jsonl", records({"a": "word " * 20}) * 60_000 + b'{"a": "x"\n', "a", "line 60001 is not a JSON object"),
    ("plain.txt", b"a\n", "text", "none of the files is a table"),
    ("t.jsonl", '{"text": "a"}\n'.encode("utf-16"), "text", "is UTF-16LE, not UTF-8; convert it"),
    ("t.csv", b"text;b\na;b\n", "text", "its columns are separated by ';', not by a comma; save it with commas"),
    ("t.csv", b"PK\x03\x04rest", "text", "is a spreadsheet or a zip archive"),
    ("t.xlsx", b"PK\x03\x04rest", "text", "is a spreadsheet; save it as CSV"),
    ("t.csv.xz", b"\xfd7zXZ\x00", "text", "is compressed with xz, which is not supported; decompress it"),
    ("t.csv", b"\x1f\x8brest", "text", "is gzip data; end its name in .gz"),
    ("t.json", b'["a sentence"]', "text", ".json is not supported; "),
    ("t.jsonl", b'{"more": ' + NESTED + b', "text": "b"}\n', "text", "line 1 is not a JSON object"),
    ("t.jsonl", NESTED + b"\n", "text", "line 1 is not a JSON object"),
    ("t.jsonl", b"9" * 5000 + b"\n", "text", "line 1 is not a JSON object"),
    ("t.csv", b'a,text\n1,"b\n2,c\n', "text", "a quote in the record at line 2 is never closed; check that line"),
    ("t.csv", b"a,text\n1,x\n2,y,\n", "text", "record at line 3 has 3 fields, but the first line names 2 columns"),
]


@pytest.mark.parametrize(("name", "content", "column", "message"), FAULTS, ids=range(len(FAULTS)))
def test_a_table_that_cannot_be_read_is_refused_in_one_sentence(tmp_path, name, content, column, message):
    (tmp_path / name).write_bytes(content)
    text = refuses(re.escape(message), TfidfIndex.build, tmp_path / name, column=column)
    assert message.startswith("none") or name in text
    assert len(text) < 400
    assert "\n" not in text
    if "record at line" in message:
        refuses(re.escape(message), list, column_values(str(tmp_path / name), "a"))


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
    for value in (None, 1.0, True, b"a"):
        refuses("^ids: element 1 must be a string or an integer", takers["ids"][0], ["a", value])
    refuses("no file was given", TfidfIndex.build, [])
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


def test_invalid_options_are_named(sample, sample_index):
    build, augment = partial(TfidfIndex.build, sample), partial(sample_index.augment, ["a text"])
    for message, call, options in (
        ("^--radius ", augment, {"radius": [3]}),
        ("^--beta must be <= 1, got 1.5", augment, {"beta": 1.5}),
        ("^--beta must be a number, got 'half'", augment, {"beta": "half"}),
        ("^--seed must be >= 0, got -1", augment, {"seed": -1}),
        ("^--mode: 'x' is unknown; choose one of negative, positive", augment, {"mode": "x"}),
        ("^unknown option 'odd'", augment, {"odd": 1}),
        ("^--tokenizer: ", build, {"tokenizer": "x"}),
        ('^--encoding-errors: "x" is unknown; choose strict or replace', build, {"encoding_errors": "x"}),
    ):
        refuses(message, call, **options)
    refuses("Words.lowercase", build, lowercase="yes", error=TypeError)


def read(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf8"))
    corpus = Corpus.read(resolve(path, "text"), **options)
    return corpus.take(range(len(corpus)))


LONG, SURROGATE = "x" * 9_000_000, '{"text": "a"}\n' * 12_000 + '{"text": "b \\ud800 c"}\n{"text": "d"}\n'
# Name and content of a table, and its rows if they may have any length and faults in them are replaced.
READ = [
    ("t.jsonl", '\ufeff{"b": "x"}\n\n{"text": "hello"}\n{"b": "y", "text": "again"}\n', ["", "hello", "again"]),
    ("t.jsonl", b'{"text": "caf\xe9 here"}\n', ["caf\ufffd here"]),
    ("t.jsonl", records({"big": "x" * 5_000_000, "text": "one"}, {"text": "two"}), ["one", "two"]),
    ("t.jsonl", '{"other": "a"}\n' * 10_500 + '{"text": "b"}\n', [*[""] * 10_500, "b"]),
    ("t.jsonl", records(*({"text": text} for text in ("a", "b", LONG, "c"))), ["a", "b", LONG, "c"]),
    ("t.csv", f"text,more\na,1\nb,2\n{LONG},3\nc,4\n", ["a", "b", LONG, "c"]),
    ("t.tsv", f"text\tmore\na\t1\nb\t2\n{LONG}\t3\nc\t4\n", ["a", "b", LONG, "c"]),
    ("t.jsonl", SURROGATE, [*["a"] * 12_000, "b \ufffd\ufffd\ufffd c", "d"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "rows"), READ, ids=range(len(READ)))
def test_unusual_records_are_read_and_rows_that_are_too_long_or_not_unicode_are_refused(tmp_path, name, content, rows):
    assert read(tmp_path / name, content, max_line_bytes=2**30, encoding_errors="replace") == rows
    if LONG in rows:
        refuses(r"row 3 of column text is longer than .* --max-line-bytes", read, tmp_path / name, content)
    elif any("\ufffd" in row for row in rows):
        message = "row (1|12001) of column text is not valid UTF-8; .* --encoding-errors replace"
        refuses(message, read, tmp_path / name, content)
    else:
        assert read(tmp_path / name, content) == rows


def test_rows_of_a_small_file_are_decoded_in_bounded_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 1 << 16)
    texts = ["a" * 3000, None, "b", "c\nd", ""]
    values = [texts[row % 5] for row in range(4000)]
    path = tmp_path / "repeated.parquet"
    pq.write_table(pa.table({"text": values, "n": range(4000)}), path)
    column, rows = tables.Column(str(path), "text"), []
    while block := column.next_block():
        assert len(block[0]) <= (1 << 16) + 4000
        rows += block[0].decode().splitlines()
    assert rows == [(value or "").replace("\n", " ") for value in values]
    assert column.line_breaks == 800
    assert list(tables.column_values(str(path), "text")) == [value or "" for value in values]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_record_much_longer_than_a_row_may_be_is_refused(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(tables, "MOST", 1 << 14)
    record = {"csv": "text,n\n{},1\n", "jsonl": '{{"text": "{}"}}\n'}[suffix]
    path = tmp_path / f"long.{suffix}.gz"
    path.write_bytes(gzip.compress(record.format("a" * 3_000_000).encode()))
    refuses("a record is longer than 1,048,576 bytes; check its quotes, or raise", Corpus.read, resolve(path, "text"))
    assert len(Corpus.read(resolve(path, "text"), max_line_bytes=1 << 22)) == 1


NOT_READ = {
    "empty.json": b"",
    "not UTF-8.json": b'{"a": "\xff"}',
    "cut.json": b'{"a": [1, 2',
    "two values.json": b'{"a": 1} {"a": 2}',
    "deep.json": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects.json": b'{"a": ' * 100_000 + b"1" + b"}" * 100_000,
    "integer of 5,000 digits.json": b'{"a": ' + b"9" * 5000 + b"}",
    "not UTF-8.toml": b"\xff",
    "cut.toml": b"a = ",
    "integer of 5,000 digits.toml": b"a = " + b"9" * 5000,
    "deep.toml": b"a = " + b"[" * 50_000,
    "hexadecimal.toml": b"a = 0x" + b"f" * 5000,
    "deep tables.toml": b"[a" + b".a" * 50_000 + b"]",
}


@pytest.mark.parametrize("name", NOT_READ)
def test_json_and_toml_that_cannot_be_read_are_refused_in_one_sentence(tmp_path, name):
    (tmp_path / name).write_bytes(NOT_READ[name])
    read, message = (read_toml, ".{5,200}$") if "toml" in name else (read_json, r"is not valid JSON \(.{5,200}\)$")
    assert "\n" not in refuses(rf"{name}: {message}", read, tmp_path / name, dict[str, str])


class Shape(TypedDict):
    a: int
    b: list[str]
    c: NotRequired[dict[str, float] | None]


def test_a_value_of_another_shape_is_refused_with_its_place():
    for content, message in (
        ("[]", "w: must be an object, got a list$"),
        ("null", "w: must be an object, got null$"),
        ('{"b": []}', "w: a: is missing$"),
        ('{"a": "1", "b": []}', "w: a: must be an integer, got '1'$"),
        ('{"a": true, "b": []}', "w: a: must be an integer, got true$"),
        ('{"a": 1.5, "b": []}', "w: a: must be an integer, got 1.5$"),
        ('{"a": 1, "b": {"c": 1}}', "w: b: must be a list, got an object$"),
        ('{"a": 1, "b": ["x", 2]}', "w: b: 2: must be text, got 2$"),
        ('{"a": 1, "b": [], "c": {"d": [1]}}', "w: c: d: must be a number, got a list$"),
        ('{"a": 1, "b": [], "c": 3}', "w: c: must be an object or null, got 3$"),
        (f'{{"a": "{"9" * 5000}", "b": []}}', "w: a: must be an integer, got '9{58}\u2026$"),
    ):
        refuses(message, parse_json, content, Shape, "w")


def test_a_parquet_file_with_a_wrong_byte_in_a_page_is_refused(tmp_path):
    """Each of 20 wrong bytes in the texts, whose pages have checksums."""
    path, texts = tmp_path / "texts.parquet", [f"sentence {number} of the table" for number in range(200)]
    pq.write_table(pa.table({"text": texts}), path, compression="none", use_dictionary=False, write_page_checksum=True)
    content = path.read_bytes()
    begin, end, refused = content.index(b"sentence 0"), content.index(b"sentence 199"), []
    assert [*column_values(str(path), "text")] == texts
    for place in range(begin, end, (end - begin) // 20):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert [*column_values(str(path), "text")] == texts  # the byte is in the statistics of the page
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 15
    assert all("cannot be read as a table" in why for why in refused)


@pytest.mark.parametrize("padding", [b"", b"\0" * 700, b"\0" * 70_000])
def test_zeros_at_the_end_of_a_gzip_file_and_between_its_members_are_left_out(tmp_path, padding):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"text\none\n") + padding + gzip.compress(b"two\n") + padding)
    assert [*column_values(str(tmp_path / "t.csv.gz"), "text")] == ["one", "two"]
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress(b"one\n") + padding + gzip.compress(b"two\n") + padding)
    assert Corpus.read([str(tmp_path / "t.txt.gz")]).take([0, 1]) == ["one", "two"]
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress(b"one\n") + padding + b"rest")
    refuses(r"t\.txt\.gz", Corpus.read, [str(tmp_path / "t.txt.gz")], error=(InputError, OSError))


WORDS = {"tokenizer": "unicode", "lowercase": True, "nfkc": False}
READING = {"encoding_errors": "strict", "max_line_bytes": 1 << 20, "threads": 2}
TEXT = "One sentence about a cat.\nAnother sentence about a dog.\n"

DIAGNOSE = """
import json, sys
from cse import _core
reading = {"encoding_errors": "strict", "max_line_bytes": 1 << 20, "threads": 2}
seen = _core.diagnose(sys.argv[1:], {"tokenizer": "unicode", "lowercase": True, "nfkc": False}, reading)
# Peak memory is not read from ru_maxrss, because a process inherits that value from its parent.
status = dict(line.split(":") for line in open("/proc/self/status"))
print(json.dumps([json.loads(seen), int(status["VmHWM"].split()[0])]))
"""


def diagnose(*paths, **reading):
    return json.loads(_core.diagnose([str(path) for path in paths], WORDS, {**READING, **reading}))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(("length", "lines"), [(20_000_000, 5), (1_000_000, 200)])
def test_diagnose_needs_little_memory_for_rows_of_any_length(tmp_path, length, lines):
    path = tmp_path / "long.txt"
    path.write_bytes(b"a first row\n" + (b"some words in a row " * (length // 20) + b"\n") * lines)
    done = subprocess.run([sys.executable, "-c", DIAGNOSE, path], capture_output=True, text=True, check=True)
    seen, kilobytes = json.loads(done.stdout)
    assert kilobytes < 300_000
    if length > 1 << 20:
        assert seen["rows"] == 1 + lines
        assert seen["faults"]["over_long"] == {"rows": lines, "first": 2, "file": str(path)}
        assert seen["faults"]["invalid"]["rows"] == 0


def test_rows_after_an_over_long_row_keep_their_numbers(tmp_path):
    path = tmp_path / "a.txt"
    # Some of the limits below cut a multi-byte character; one row is longer than a chunk of input.
    rows = ["short row here", "\u00e9" * 900_000, "bad &amp; row", "\U0001f600" * 200 + " x", "a\ttab"]
    path.write_text("\n".join(rows) + "\n", encoding="utf8")
    for limit in range(100, 110):
        seen = diagnose(path, max_line_bytes=limit)
        assert seen["rows"] == 5
        faults = {name: (found["rows"], found["first"]) for name, found in seen["faults"].items() if found["rows"]}
        assert faults["over_long"] == (2, 2)
        assert faults["markup"] == (1, 3)
        assert faults["tab"] == (1, 5)
        assert not {"invalid", "replacement"} & set(faults)


ARCHIVE = io.BytesIO()
with zipfile.ZipFile(ARCHIVE, "w") as archive:
    archive.writestr("a.txt", TEXT)
FORMATS = {
    "zip": (ARCHIVE.getvalue(), "is zip data, not text; decompress it first (unzip)"),
    "gzip": (gzip.compress(TEXT.encode(), mtime=0), "is gzip data, not text; rename it to end in .gz"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(20), "is zstd data, not text; rename it to end in .zst"),
    "parquet": (b"PAR1" + bytes(20) + b"PAR1", "rename it to end in .parquet and name the column with --column"),
    "xz": (lzma.compress(TEXT.encode()), "is xz data, not text; decompress it first (xz -d)"),
    "bzip2": (bz2.compress(TEXT.encode()), "is bzip2 data, not text; decompress it first (bzip2 -d)"),
    "cr_only": (TEXT.replace("\n", "\r").encode(), "end in a carriage return alone; convert it (tr '\\r' '\\n')"),
}
for bits, end in (("16", "le"), ("16", "be"), ("32", "le"), ("32", "be")):
    advice = f"is UTF-{bits}, not UTF-8; convert it (iconv -f UTF-{bits}{end.upper()} -t UTF-8)"
    FORMATS[f"utf-{bits}-{end}"] = ("\ufeff" + TEXT).encode(f"utf-{bits}-{end}"), advice


def calls(index, out, *paths, errors="strict"):
    """Returns functions that read files in different ways and return the number of rows."""
    names, reading = [str(path) for path in paths], {**READING, "encoding_errors": errors}
    return (
        lambda: TfidfIndex.build(names, encoding_errors=errors).info.rows,
        lambda: len(_core.Rows.read(names, reading)),
        lambda: index._core.augment_files(names, out, 1, False, index.draw_options(), reading)[0]["rows"],
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_errors_about_files_in_unsupported_formats_give_path_and_advice(tmp_path, name, errors, sample_index):
    content, advice = FORMATS[name]
    path = tmp_path / "corpus.txt"
    path.write_bytes(content)
    for call in calls(sample_index, tmp_path / "out", path, errors=errors):
        with pytest.raises(InputError) as raised:
            call()
        assert str(raised.value).startswith(f"{path}: ")
        assert str(raised.value).endswith(advice)
    assert not (tmp_path / "out").exists()
    (found,) = diagnose(path)["formats"]
    assert found == {
        "path": str(path),
        "magic": name if name in ("zip", "gzip", "zstd", "parquet", "xz", "bzip2") else None,
        "bom": name if name.startswith("utf") else None,
        "cr_only": name == "cr_only",
    }


@pytest.mark.parametrize("name", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"])
def test_an_encoding_without_a_byte_order_mark_is_recognised(tmp_path, name):
    text, table = tmp_path / "corpus.txt", tmp_path / "table.csv"
    for path in (text, table):
        path.write_bytes(f"text\n{TEXT}Caf\u00e9 \u2013 na\u00efve\n".encode(name))
    refuses(f"is {name[:6]}, not UTF-8; convert it .iconv -f {name} ", TfidfIndex.build, text)
    refuses(f"is {name}, not UTF-8", TfidfIndex.build, table, column="text")


@pytest.mark.parametrize(("suffix", "codec"), [(".GZ", "gzip"), (".Zst", "zstd")])
def test_a_suffix_in_upper_case_selects_the_decoder(tmp_path, suffix, codec):
    for name, content, column in (
        (f"A.TXT{suffix}", "a text\n", None),
        (f"A.JSONL{suffix}", '{"t": "a text"}\n', "t"),
        (f"A.CSV{suffix}", "t\na text\n", "t"),
    ):
        (tmp_path / name).write_bytes(pa.compress(content.encode(), codec, asbytes=True))
        assert Corpus.open(readers.resolve(tmp_path / name, column)).take([0]) == ["a text"]
        assert readers.first_rows(readers.resolve(tmp_path / name, column), 1) == ["a text"]


def test_the_contents_of_compressed_files_are_checked(tmp_path):
    path = tmp_path / "file.txt.gz"
    path.write_bytes(gzip.compress(gzip.compress(TEXT.encode())))
    refuses("contains gzip data, not text; decompress it first", TfidfIndex.build, path)
    path.write_text(TEXT)
    refuses(r"is not gzip data, although its name ends in \.gz; rename it", TfidfIndex.build, path)


def test_a_bom_crlf_line_ends_and_text_that_starts_like_an_archive_are_accepted(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode() + b"a\rb\n")
    assert TfidfIndex.build(path).info.rows == 3
    seen = diagnose(path)
    assert seen["formats"] == [{"path": str(path), "magic": None, "bom": "utf-8", "cr_only": False}]
    assert seen["faults"]["lone_cr"] == {"rows": 1, "first": 3, "file": str(path)}
    path.write_bytes(b"BZh is no archive, PK neither\r")
    assert TfidfIndex.build(path).info.rows == 1


def test_an_empty_file_is_accepted_but_an_empty_corpus_is_refused(tmp_path, sample_index):
    empty, more, text, out = (tmp_path / name for name in ("empty.txt", "more.txt", "text.txt", "out"))
    for file, content in ((empty, ""), (more, ""), (text, TEXT)):
        file.write_text(content)
    for paths in ((empty, text), (text, empty), (empty, text, more)):
        assert [call() for call in calls(sample_index, out, *paths)] == [diagnose(*paths)["rows"]] * 3 == [2] * 3
    assert [(file.bytes, file.rows) for file in TfidfIndex.build([empty, text]).files] == [(0, 0), (len(TEXT), 2)]
    out.unlink()
    for paths, message in (((empty,), "the file is empty"), ((empty, more), "and 1 more: contains no rows")):
        for call in (*calls(sample_index, out, *paths), lambda paths=paths: diagnose(*paths)):
            refuses(rf"empty\.txt:? {message}", call)
    assert not out.exists()
    # A shard may be empty, but the merged index may not.
    shards = [_core.count([str(path)], WORDS, READING) for path in (empty, text)]
    assert TfidfIndex.from_bytes(_core.merge(shards)).info.rows == 2


def test_faults_are_reported_with_file_and_line(tmp_path):
    files = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    for file, content in zip(files, (TEXT, "", TEXT + "a\ttab\n"), strict=True):
        file.write_text(content)
    seen = diagnose(*files)
    assert seen["faults"]["tab"] == {"rows": 1, "first": 3, "file": str(files[2])}
    assert seen["faults"]["markup"] == {"rows": 0, "first": None, "file": None}


HEADER = "score,sentence1,sentence2\n"
TWO = [(4.5, 'He said "no"', "b, c"), (0, "d", "e")]
# Name and content of a file of scored pairs, and its pairs.
PAIRS = [
    ("p.tsv", '5\tHe said "no".\tA\u2028b, c\tx\r\n\n0\t"open\tclosed"\ty\n1\t two  w \u00a0h\ta\x0bb\tz\n2\t\tx\tz\n',
     [(5, 'He said "no".', "A b, c"), (0, '"open', 'closed"'), (1, "two w h", "a b"), (2, "", "x")]),
    ("p.tsv", 'score\tsentence1\tsentence2\n4.5\tHe said "no"\tb, c\n0\td\te\n', TWO),
    ("p.tsv", "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
     '1\tHe said "no"\tb, c\t4.5\tNEUTRAL\n2\td\te\t0\tNEUTRAL\n', TWO),
    ("p.csv", 'Sentence2,label,Sentence1\n"b,  c",4.5,"He said ""no"""\ne,0,d\n', TWO),
    ("p.csv", '4.5,"He said ""no""","b,\nc"\n0,d,e\n', TWO),
    ("p.csv", f'{HEADER}\n1,"a ""b""\nc","d, e"\n2,"f"g,h\n', [(1, 'a "b" c', "d, e"), (2, "fg", "h")]),
]  # fmt: skip
WRONG_PAIRS = [
    ("p.tsv", "rating\tone\ttwo\n1\ta\tb\n", "line 1 .* by tabs; a header must name the columns score, sent"),
    ("p.csv", "rating,one,two\n1,a,b\n", "line 1 .* by commas; a header must name"),
    ("p.csv", f"{HEADER}1,a,b\n\nx,a,b\n", "line 4: the score must be a finite .* got 'x'"),
    ("p.tsv", "score\tsentence1\tsentence2\n1\ta\tb\n\ta\tb\n", "line 3: .* got nothing; leave out pairs without"),
    ("p.csv", f'{HEADER}\n1,a,b\n\n2,"c,d\n', "a quote in the record at line 5 is never closed"),
    ("p.csv", f"{HEADER}1,a,b\n2,c\rd,e\n", r"p\.csv: the record at line 3 cannot be read \(new-line character"),
    *(("p.tsv", f"1\ta\tb\n{line}\n", r"p\.tsv: line 2") for line in ("5\tone", "five\ta\tb", "nan\ta\tb", "a,b")),
]


def test_scored_pairs_are_read_with_and_without_headers_and_errors_give_the_line(tmp_path):
    for name, content, expected in PAIRS:
        (tmp_path / name).write_text(content, encoding="utf8", newline="")
        pairs = read_pairs(tmp_path / name)
        assert list(zip(pairs.gold.tolist(), pairs.left, pairs.right, strict=True)) == expected
    for name, content, message in WRONG_PAIRS:
        (tmp_path / name).write_text(content, encoding="utf8", newline="")
        refuses(message, read_pairs, tmp_path / name)


def test_what_can_be_refused_from_names_is_refused_before_torch_is_imported(tmp_path, monkeypatch):
    monkeypatch.setattr("cse.training.data.version", lambda name: "2.13.0+cpu")
    with pytest.raises(InputError, match="--device cuda: torch is installed without CUDA"):
        check_device("cuda")
    check_device("cpu")
    monkeypatch.setattr("cse.training.data.version", lambda name: "2.13.0+cu130")
    check_device("cuda:0")
    with pytest.raises(FileNotFoundError):
        systems_of(["minilm", f"run:{tmp_path / 'none.run'}"], Ranking())
