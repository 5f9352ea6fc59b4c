"""Tables, JSON and TOML that are not plain: long records, late columns, surrogates, other formats, depths."""

import gzip
import json
from typing import NotRequired, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import refuses
from cse import InputError
from cse.data import tables
from cse.data.corpus import Corpus
from cse.data.readers import resolve
from cse.data.tables import column_values
from cse.evaluation.base import read_pairs
from cse.io import parse_json, read_json, read_toml

LONG = "x" * 9_000_000


def read(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf8"))
    corpus = Corpus.read(resolve(path, "text"), **options)
    return corpus.take(range(len(corpus)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in ("a", "b", LONG, "c"))),
        ("t.csv", f"text,more\na,1\nb,2\n{LONG},3\nc,4\n"),
        ("t.tsv", f"text\tmore\na\t1\nb\t2\n{LONG}\t3\nc\t4\n"),
    ],
)
def test_a_record_of_more_than_eight_megabytes_is_read_or_refused_by_its_row(tmp_path, name, content):
    assert read(tmp_path / name, content, max_line_bytes=2**30) == ["a", "b", LONG, "c"]
    refuses(r"row 3 of column text is longer than .* --max-line-bytes", read, tmp_path / name, content)


def test_a_lone_surrogate_is_reported_in_its_row_and_replaced_on_request(tmp_path):
    content = '{"text": "a"}\n' * 12_000 + '{"text": "b \\ud800 c"}\n{"text": "d"}\n'
    with pytest.raises(InputError, match=r"row 12001 of column text is not valid UTF-8; .* --encoding-errors replace"):
        read(tmp_path / "t.jsonl", content)
    found = read(tmp_path / "t.jsonl", content, encoding_errors="replace")
    assert found[11_999:] == ["a", "b \ufffd\ufffd\ufffd c", "d"]


def test_a_column_that_first_occurs_after_many_records_exists(tmp_path):
    content = '{"other": "a"}\n' * 10_500 + '{"text": "b"}\n'
    assert read(tmp_path / "t.jsonl", content)[-2:] == ["", "b"]


NESTED = "[" * 200_000 + "]" * 200_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", '{"text": "a"}\n'.encode("utf-16"), "is UTF-16LE, not UTF-8; convert it"),
        ("t.csv", b"text;b\na;b\n", "its columns are separated by ';', not by a comma; save it with commas"),
        ("t.csv", b"PK\x03\x04rest", "is a spreadsheet or a zip archive"),
        ("t.xlsx", b"PK\x03\x04rest", "is a spreadsheet; save it as CSV"),
        ("t.csv.xz", b"\xfd7zXZ\x00", "is compressed with xz, which is not supported; decompress it"),
        ("t.csv", b"\x1f\x8brest", "is gzip data; end its name in .gz"),
        ("t.json", b'["a sentence"]', r"\.json is not supported; .*\.jsonl"),
        ("t.jsonl", f'{{"more": {NESTED}, "text": "b"}}\n', "line 1 is not a JSON object"),
        ("t.jsonl", f"{NESTED}\n", "line 1 is not a JSON object"),
        ("t.jsonl", "9" * 5000 + "\n", "line 1 is not a JSON object"),
        ("t.csv", 'a,text\n1,"first\n2,second\n', "a quote in the record at line 2 is never closed; check that line"),
        ("t.csv", "a,text\n1,x\n2,y,\n", "the record at line 3 has 3 fields, but the first line names 2 columns"),
    ],
    ids=range(12),
)
def test_a_table_that_cannot_be_read_is_refused_in_one_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    with pytest.raises(InputError, match=message) as caught:
        read(path, content)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    if "at line" in message:
        refuses(message, list, tables.column_values(str(path), "a"))


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


def test_scored_pairs_of_a_csv_file_are_read_as_other_csv_files_are(tmp_path):
    path = tmp_path / "dev.csv"
    path.write_text('score,sentence1,sentence2\n\n1,"a ""b""\nc","d, e"\n2,"f"g,h\n')
    pairs = read_pairs(path)
    assert (pairs.gold.tolist(), pairs.left, pairs.right) == ([1, 2], ['a "b" c', "fg"], ["d, e", "h"])
    for content, message in (
        (b"1,a,b\n2,c\rd,e\n", r"the record at line 3 cannot be read \(new-line character"),
        (b'\n1,a,b\n2,"c,d\n', "a quote in the record at line 4 is never closed"),
    ):
        path.write_bytes(b"score,sentence1,sentence2\n" + content)
        refuses(rf"dev\.csv: {message}", read_pairs, path)


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
    read, message = read_json, r"is not valid JSON \(.{5,200}\)$"
    if name.endswith("toml"):
        read, message = read_toml, ".{5,200}$"
    with pytest.raises(InputError, match=rf"{name}: {message}") as caught:
        read(tmp_path / name, dict[str, str])
    assert "\n" not in str(caught.value)


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
