"""Tests of input to the Rust core: rows of any length, files in unsupported formats, and files without rows."""

import bz2
import gzip
import io
import json
import lzma
import subprocess
import sys
import zipfile

import pyarrow as pa
import pytest

from conftest import refuses
from cse import InputError, TfidfIndex, _core
from cse.data import readers
from cse.data.corpus import Corpus

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
@pytest.mark.parametrize("kind", ["long_lines", "lines_of_a_megabyte"])
def test_diagnose_needs_little_memory_for_rows_of_any_length(tmp_path, kind):
    path = tmp_path / "long.txt"
    line, lines = {
        "long_lines": (b"some words in a row " * 1_000_000, 5),
        "lines_of_a_megabyte": (b"some words in a row " * 50_000 + b"\n", 200),
    }[kind]
    with open(path, "wb") as file:
        file.write(b"a first row\n")
        for _ in range(lines):
            file.write(line + b"\n")
    done = subprocess.run([sys.executable, "-c", DIAGNOSE, path], capture_output=True, text=True, check=True)
    seen, kilobytes = json.loads(done.stdout)
    assert kilobytes < 300_000
    if kind != "lines_of_a_megabyte":
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


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_an_encoding_without_a_byte_order_mark_is_recognised(tmp_path, name):
    text, table = tmp_path / "corpus.txt", tmp_path / "table.csv"
    for path in (text, table):
        path.write_bytes(f"text\n{TEXT}Caf\u00e9 \u2013 na\u00efve\n".encode(name))
    encoding = name[:6].upper()
    advice = f"is {encoding}, not UTF-8; convert it .iconv -f {encoding}{name[7:].upper()} "
    refuses(advice, TfidfIndex.build, text)
    with pytest.raises(InputError, match=f"is {name.upper().replace('-LE', 'LE').replace('-BE', 'BE')}, not UTF-8"):
        TfidfIndex.build(table, column="text")


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
    twice = tmp_path / "twice.txt.gz"
    twice.write_bytes(gzip.compress(gzip.compress(TEXT.encode())))
    refuses("contains gzip data, not text; decompress it first", TfidfIndex.build, twice)
    plain = tmp_path / "plain.txt.gz"
    plain.write_text(TEXT)
    refuses(r"is not gzip data, although its name ends in \.gz; rename it", TfidfIndex.build, plain)


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
    empty, more, text = (tmp_path / name for name in ("empty.txt", "more.txt", "text.txt"))
    empty.write_text("")
    more.write_text("")
    text.write_text(TEXT)
    out = tmp_path / "out"

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
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text("")
    (tmp_path / "c.txt").write_text(TEXT + "a\ttab\n")
    files = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    seen = diagnose(*files)
    assert seen["faults"]["tab"] == {"rows": 1, "first": 3, "file": str(files[2])}
    assert seen["faults"]["markup"] == {"rows": 0, "first": None, "file": None}
