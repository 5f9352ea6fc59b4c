"""Tests of SearchIndex and `cse search`: exact results, interrupted builds, added rows, passages, int8, BM25."""

import json
import math
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cse import Encoder, InputError, SearchIndex
from cse.models.running.passages import Cutter
from cse.search import build, store
from cse.search.bm25 import Bm25
from cse.search.fusion import fuse
from cse.search.vectors import unit
from random_texts import some_texts
from test_cli import refused


@pytest.fixture(scope="module")
def encoder(glove):
    return Encoder(glove)


def test_search_results_equal_brute_force(tmp_path, encoder):
    texts = some_texts(500)
    texts[17], texts[30] = "", "  "
    ids = [f"id-{row}" for row in range(500)]
    queries = [texts[3], "word1 word2", "word5", ""]
    index = SearchIndex.build(encoder, texts, tmp_path / "index", ids=ids)
    vectors, given = (unit(encoder.encode(each)).astype(np.float64) for each in (texts, queries))
    filled = [row for row in range(500) if texts[row].strip()]
    opened = SearchIndex.open(tmp_path / "index")  # loads the encoder by its name, which the index stores
    for each in (index, opened):
        found = each.search(queries, 7)
        for scores, hits in zip(given[:3] @ vectors.T, found[:3], strict=True):
            best = sorted(filled, key=lambda row: -scores[row])[:7]
            assert [hit.row for hit in hits] == best
            assert [hit.id for hit in hits] == [ids[row] for row in best]
            assert [hit.text for hit in hits] == [texts[row] for row in best]
            assert np.allclose([hit.score for hit in hits], scores[best], atol=1e-6)
        assert found[3] == []
        assert each.search_vectors(given[:3], 7) == found[:3]
        assert len(each) == 500
        assert len(each.rows) == 498
    assert np.load(tmp_path / "index" / "vectors.npy").shape == (498, 16)
    assert (tmp_path / "index" / "texts.txt").read_text(encoding="utf8").split("\n")[:-1] == texts


def test_the_temporary_folder_of_an_index_is_deleted_with_the_index(encoder):
    index = SearchIndex.build(encoder, ["word1 word2", "word3"])
    folder = index.folder
    assert folder.is_dir()
    assert index.search(["word3"], 1)[0][0].row == 1
    del index
    assert not folder.exists()


class Counted:
    """An encoder that counts the texts it encodes; once they are at least ``least``, calls raise KeyboardInterrupt."""

    def __init__(self, encoder, least=math.inf):
        self._encoder, self.left, self.texts = encoder, least, 0

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode(self, texts, **arguments):
        if self.texts >= self.left:
            raise KeyboardInterrupt
        self.texts += len(texts)
        return self._encoder.encode(texts, **arguments)

    encode_query = encode_document = encode


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_an_interrupted_build_can_be_completed(tmp_path, monkeypatch, encoder):
    monkeypatch.setattr(build, "BLOCK", 64)
    texts = some_texts(300)
    SearchIndex.build(encoder, texts, tmp_path / "whole", passages=8)
    with pytest.raises(KeyboardInterrupt):
        SearchIndex.build(Counted(encoder, 300), texts, tmp_path / "index", passages=8)
    done = json.loads((tmp_path / "index" / "manifest.json").read_text())["rows"]
    assert 0 < done < 300
    with pytest.raises(InputError, match=f"interrupted after {done} of 300 rows; run the same command again"):
        SearchIndex.open(tmp_path / "index", encoder)
    for name in ("vectors.npy", "texts.txt", "texts.u64", "places.bin"):  # a killed process can leave incomplete rows
        with open(tmp_path / "index" / name, "ab") as file:
            file.write(b"torn")
    counted = Counted(encoder)
    index = SearchIndex.build(counted, texts, tmp_path / "index")
    assert counted.texts == (index.rows >= done).sum()
    assert files(tmp_path / "index") == files(tmp_path / "whole")


def test_a_killed_search_command_can_be_repeated(tmp_path, cse):
    (tmp_path / "kind.py").write_text(
        "import os\n"
        "import numpy as np\n"
        "from cse.models.encoders import ENCODERS, OtherEncoder\n"
        "class Lengths(OtherEncoder):\n"
        "    embedding_dim = 3\n"
        "    calls = 0\n"
        "    def encode(self, texts, **_):\n"
        "        Lengths.calls += 1\n"
        "        if Lengths.calls == 2 and os.path.exists('kill'):\n"
        "            os.kill(os.getpid(), 9)\n"
        "        open('encoded', 'a').write(f'{len(texts)}\\n')\n"
        "        return np.array([[len(text), text.count('1'), 1] for text in texts], dtype=np.float32)\n"
        "    def files(self):\n"
        "        return []\n"
        "ENCODERS.register('lengths', Lengths)\n",
        encoding="utf8",
    )
    (tmp_path / "c.txt").write_text("".join(f"{'1' * (row % 97)} row {row}\n" for row in range(9000)), encoding="utf8")
    command = ("search", "lengths:", "c.txt", "--import", "kind.py", "--json", "--query", "111 row 3")
    (tmp_path / "kill").touch()
    assert cse(*command, cwd=tmp_path).returncode == -9
    (tmp_path / "kill").unlink()
    refused(cse("search", "lengths:", "--import", "kind.py", cwd=tmp_path), "interrupted after 4,096 of 9,000 rows")
    done = cse(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    counts = [int(line) for line in (tmp_path / "encoded").read_text().split()]
    assert counts == [4096, 4096, 808, 1]  # blocks of the corpus, then the query
    again = cse(*command, "-o", "other", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert files(tmp_path / "search") == files(tmp_path / "other")
    both = [json.loads(each.stdout)["queries"] for each in (done, again)]
    assert both[0] == both[1]


def test_only_rows_appended_to_the_corpus_are_encoded(tmp_path, monkeypatch, encoder):
    monkeypatch.setattr(build, "BLOCK", 64)
    texts = some_texts(200)
    SearchIndex.build(encoder, texts[:150], tmp_path / "grown", ids=[str(row) for row in range(150)])
    counted = Counted(encoder)
    grown = SearchIndex.build(counted, texts, tmp_path / "grown", ids=[str(row) for row in range(200)])
    assert counted.texts == 50
    whole = SearchIndex.build(encoder, texts, tmp_path / "whole", ids=[str(row) for row in range(200)])
    assert grown.search(texts[:9], 5) == whole.search(texts[:9], 5)
    same = Counted(encoder)
    SearchIndex.build(same, texts, tmp_path / "grown", ids=[str(row) for row in range(200)])
    assert same.texts == 0


def test_added_rows_are_found_and_an_interrupted_add_changes_nothing(tmp_path, monkeypatch, encoder):
    monkeypatch.setattr(build, "BLOCK", 64)
    texts = some_texts(200)
    index = SearchIndex.build(encoder, texts[:100], tmp_path / "index")
    index.bm25()
    before = json.loads((tmp_path / "index" / "manifest.json").read_text())
    index._encoder = Counted(encoder, 20)
    with pytest.raises(KeyboardInterrupt):
        index.add(texts[100:])
    assert json.loads((tmp_path / "index" / "manifest.json").read_text()) == before
    index._encoder = encoder
    index.add(texts[100:])
    whole = SearchIndex.build(encoder, texts)
    queries = [texts[150], texts[3]]
    for hybrid in (False, True):
        assert index.search(queries, 5, hybrid=hybrid) == whole.search(queries, 5, hybrid=hybrid)
        assert SearchIndex.open(tmp_path / "index").search(queries, 5) == whole.search(queries, 5)
    with pytest.raises(InputError, match=r"ids: the rows of .* have no ids"):
        index.add(["word1"], ids=["a"])


def test_an_index_built_with_another_corpus_model_or_setting_is_refused(tmp_path, glove, encoder):
    texts = some_texts(20)
    folder = tmp_path / "index"
    SearchIndex.build(encoder, texts, folder, int8=True, passages=8)
    lines = Path(glove.removeprefix("glove:")).read_text(encoding="utf8").splitlines(keepends=True)
    (tmp_path / "v.txt").write_text("".join(lines[:-1]), encoding="utf8")
    other = Encoder(f"glove:{tmp_path}/v.txt")
    cases = [
        ((other, texts), {}, "was built with another model"),
        ((encoder, [*texts[:7], "changed", *texts[8:]]), {}, "row 7 of the corpus differs from the index"),
        ((encoder, texts[:10]), {}, "holds 20 rows, but the corpus has 10"),
        ((encoder, texts), {"int8": False}, "was built with --int8"),
        ((encoder, texts), {"passages": 9}, "was built with --passages 8"),
        ((encoder, texts), {"ids": [str(row) for row in range(20)]}, "the index has no ids"),
    ]
    for arguments, settings, message in cases:
        with pytest.raises(InputError, match=f"{message}.* --rebuild"):
            SearchIndex.build(*arguments, folder, **settings)
    with pytest.raises(InputError, match="was built with another model"):
        SearchIndex.open(folder, other)
    assert len(SearchIndex.build(other, texts[:10], folder, rebuild=True)) == 10
    shutil.copy(glove.removeprefix("glove:"), tmp_path / "v.txt")
    index = SearchIndex.build(Encoder(f"glove:{tmp_path}/v.txt"), texts, tmp_path / "moved")
    assert SearchIndex.open(tmp_path / "moved", Encoder(f"glove:{tmp_path}/v.txt")).texts([2]) == index.texts([2])


def test_a_moved_model_folder_is_accepted_but_another_pooler_is_refused(tmp_path, tiny_bert, sample_rows):
    shutil.copytree(tiny_bert, tmp_path / "model")
    index = SearchIndex.build(Encoder(tmp_path / "model", device="cpu"), sample_rows[:20], tmp_path / "index")
    hits = index.search(sample_rows[3:5], 2)
    assert [each[0].row for each in hits] == [3, 4]
    (tmp_path / "model").rename(tmp_path / "moved")
    assert (
        SearchIndex.open(tmp_path / "index", Encoder(tmp_path / "moved", device="cpu")).search(sample_rows[3:5], 2)
        == hits
    )
    with pytest.raises(InputError, match="another model"):
        SearchIndex.open(tmp_path / "index", Encoder(tmp_path / "moved", pooler="cls", device="cpu"))


def test_a_damaged_index_is_refused(tmp_path, encoder):
    folder = tmp_path / "index"
    SearchIndex.build(encoder, some_texts(20), folder)
    whole = files(folder)
    for name in ("vectors.npy", "texts.u64", "hashes.u64"):
        (folder / name).write_bytes(whole[name][:-1])
        with pytest.raises(InputError, match=f"{name}: is missing or shorter .* --rebuild"):
            SearchIndex.open(folder, encoder)
        (folder / name).write_bytes(whole[name])
    (folder / "manifest.json").write_text("{", encoding="utf8")
    with pytest.raises(InputError, match="is not JSON"):
        SearchIndex.open(folder, encoder)
    (folder / "manifest.json").write_text('{"version": 99}', encoding="utf8")
    with pytest.raises(InputError, match="another version of cse"):
        SearchIndex.open(folder, encoder)


def test_a_locked_index_and_a_folder_with_other_files_are_refused(tmp_path, encoder):
    SearchIndex.build(encoder, some_texts(20), tmp_path / "index")
    with store.locked(tmp_path / "index"), pytest.raises(InputError, match="another process is writing to this index"):
        SearchIndex.build(encoder, some_texts(30), tmp_path / "index")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(InputError, match="holds files that are not"):
        SearchIndex.build(encoder, ["word1"], tmp_path / "mine", rebuild=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_int8_finds_nearly_the_same_rows_in_a_quarter_of_the_space(tmp_path, encoder):
    texts = some_texts(400)
    wide = SearchIndex.build(encoder, texts, tmp_path / "wide")
    small = SearchIndex.build(encoder, texts, tmp_path / "small", int8=True)
    assert (tmp_path / "small" / "vectors.npy").stat().st_size - 128 == 400 * 16
    assert (tmp_path / "wide" / "vectors.npy").stat().st_size - 128 == 400 * 16 * 4
    queries = texts[:50]
    pairs = list(zip(wide.search(queries, 10), small.search(queries, 10), strict=True))
    shared = [len({hit.row for hit in one} & {hit.row for hit in other}) for one, other in pairs]
    assert np.mean(shared) > 9
    assert max(abs(one[0].score - other[0].score) for one, other in pairs) < 0.01


def test_hybrid_search_fuses_the_rankings_by_vectors_and_by_bm25(tmp_path, encoder):
    texts = some_texts(300)
    index = SearchIndex.build(encoder, texts, tmp_path / "index")
    query = "word7 word8 word9"
    vectors = [hit.row for hit in index.search([query], 100)[0]]
    words = Bm25.build(texts).search(query, 100).tolist()
    found = index.search([query], 6, hybrid=True)[0]
    assert [(hit.row, hit.score) for hit in found] == fuse([vectors, words], 6)
    assert [hit.text for hit in found] == [texts[hit.row] for hit in found]
    stored = (tmp_path / "index" / "bm25").stat().st_ino
    assert SearchIndex.open(tmp_path / "index").search([query], 6, hybrid=True)[0] == found
    assert (tmp_path / "index" / "bm25").stat().st_ino == stored  # not built again


def test_passages_do_not_exceed_the_token_limit(tiny_bert, sample_rows):
    encoder = Encoder(tiny_bert, device="cpu")
    text = " ".join(sample_rows[:40])
    for given, limit in ((None, 62), (20, 20)):
        (spans,) = Cutter(encoder, given)([text])
        tokens = [
            len(encoder.model.tokenizer(text[start:end], add_special_tokens=False)["input_ids"]) for start, end in spans
        ]
        assert max(tokens) <= limit
        assert np.mean(tokens[:-1]) > 0.7 * limit
    with pytest.raises(InputError, match=r"--passages: must be .* at most 62, .* got 63"):
        Cutter(encoder, 63)


@pytest.mark.parametrize("k", [1, 5, 60])
def test_rows_are_ranked_by_their_best_passage(encoder, k):
    texts = [*some_texts(60, most=80), "", "word1"]
    index = SearchIndex.build(encoder, texts, passages=8)
    assert len(index.rows) > 200
    queries = ["word1 word2", texts[4][-40:].split(" ", 1)[1]]
    spans = Cutter(encoder, 8)(texts)
    for query, hits in zip(queries, index.search(queries, k), strict=True):
        scores = {}
        for row, parts in enumerate(spans):
            for start, end in parts:
                score = encoder.similarity([query], [texts[row][start:end]])[0, 0]
                scores[row] = max(scores.get(row, (-2, "")), (score, texts[row][start:end]))
        best = sorted(scores, key=lambda row: -scores[row][0])[:k]
        assert np.allclose([hit.score for hit in hits], [scores[row][0] for row in best], atol=1e-5)
        assert {hit.row for hit in hits} == set(best)
        assert all(hit.text == scores[hit.row][1] for hit in hits)


def test_search_uses_the_prompts_and_the_similarity_function_of_the_model(encoder):
    class Prompted:
        similarity_name = "dot"

        def __getattr__(self, name):
            return getattr(encoder, name)

        def encode_query(self, texts, **arguments):
            return encoder.encode([f"word1 {text}" for text in texts], **arguments)

        def encode_document(self, texts, **arguments):
            return 3 * encoder.encode([f"{text} word2" for text in texts], **arguments)

    texts, queries = some_texts(100), ["word3", "word4 word5"]
    found = SearchIndex.build(Prompted(), texts).search(queries, 4)
    vectors = 3 * encoder.encode([f"{text} word2" for text in texts])
    given = encoder.encode([f"word1 {text}" for text in queries])
    for scores, hits in zip(given @ vectors.T, found, strict=True):
        best = np.argsort(-scores, kind="stable")[:4]
        assert [hit.row for hit in hits] == best.tolist()
        np.testing.assert_allclose([hit.score for hit in hits], scores[best], rtol=1e-5)


def test_invalid_arguments_of_search_index_are_refused(encoder):
    index = SearchIndex.build(encoder, some_texts(20))
    for k in (0, -1, True, 1.5, None):
        with pytest.raises(InputError, match="k: "):
            index.search(["word1"], k)
    with pytest.raises(InputError, match="texts: a list"):
        index.search("word1")
    for vectors in (np.ones((2, 5)), np.ones(16), np.ones((2, 16), dtype=int)):
        with pytest.raises(InputError, match=r"of shape \(queries, 16\)"):
            index.search_vectors(vectors)
    with pytest.raises(InputError, match="NaN"):
        index.search_vectors(np.full((1, 16), np.nan))
    with pytest.raises(InputError, match="2 were given for 3 rows"):
        SearchIndex.build(encoder, ["word1"] * 3, ids=["a", "b"])
    with pytest.raises(InputError, match="at least one sentence"):
        SearchIndex.build(encoder, ["", " "])
    for passages in (0, -3, "many", True, 1.5):
        with pytest.raises(InputError, match="--passages"):
            SearchIndex.build(encoder, ["word1"], passages=passages)


def test_the_error_for_missing_bm25s_names_the_extra(monkeypatch, encoder):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(InputError, match=r"needs bm25s, which is not installed.*pip install 'cse\[search\]'"):
        SearchIndex.build(encoder, ["word1"]).search(["word1"], hybrid=True)


@pytest.fixture
def corpus(tmp_path, glove):
    """A folder with word vectors (v.txt), a table of texts (c.csv), queries (q.txt) and blank lines (blank.txt)."""
    shutil.copy(glove.removeprefix("glove:"), tmp_path / "v.txt")
    rows = [f"n{row},{text}\n" for row, text in enumerate(some_texts(50))]
    (tmp_path / "c.csv").write_text("name,text\n" + "".join(rows), encoding="utf8")
    (tmp_path / "q.txt").write_text("word1 word2\n\nword3\n", encoding="utf8")
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf8")
    return tmp_path


def test_cse_search_builds_the_index_once_and_answers_queries(corpus, cse):
    given = ("--column", "text", "--id", "name")
    texts = some_texts(50)
    first = cse("search", "glove:v.txt", "c.csv", *given, "--query", texts[7], "--top", "2", cwd=corpus)
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert lines[0] == texts[7]
    assert lines[1].split() == ["1", "1.0000", "n7", *texts[7].split()]
    assert len(lines) == 4
    stamp = (corpus / "search" / "vectors.npy").stat().st_mtime_ns
    done = cse("search", "glove:v.txt", "--queries", "q.txt", "--query", texts[9], "--json", cwd=corpus)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert [each["query"] for each in value["queries"]] == [texts[9], "word1 word2", "word3"]
    assert value["queries"][0]["hits"][0] | {"score": 1} == {"row": 9, "id": "n9", "score": 1, "text": texts[9]}
    assert [len(each["hits"]) for each in value["queries"]] == [10, 10, 10]
    assert value["rows"] == 50
    assert (corpus / "search" / "vectors.npy").stat().st_mtime_ns == stamp
    hybrid = cse("search", "glove:v.txt", "--queries", "-", "--hybrid", "--json", cwd=corpus, stdin="word1\n")
    assert json.loads(hybrid.stdout)["queries"][0]["hits"][0]["score"] > 1 / 61


def test_an_index_keeps_the_prompt_and_the_dimensions_of_its_encoder(corpus, cse, glove, monkeypatch):
    monkeypatch.chdir(corpus)
    flags = ("--column", "text", "--prompt", "word1 word2 ", "--dims", "5")
    built = cse("search", "glove:v.txt", "c.csv", *flags, "--query", "word3 word9", "--json", cwd=corpus)
    assert built.returncode == 0, built.stderr
    hits = json.loads(built.stdout)["queries"][0]["hits"]
    encoder = Encoder(glove, prompt="word1 word2 ", dims=5)
    expected = SearchIndex.build(encoder, some_texts(50)).search(["word3 word9"])[0]
    assert [hit["row"] for hit in hits] == [hit.row for hit in expected]
    assert SearchIndex.open(corpus / "search").search(["word3 word9"])[0][3].score == pytest.approx(hits[3]["score"])
    refused(cse("search", "glove:v.txt", "--query", "x", cwd=corpus), "search: was built with --prompt 'word1 word2 '")
    refused(
        cse("search", "glove:v.txt", "--query", "x", "--prompt", "word1 word2 ", "--dims", "6", cwd=corpus),
        "search: was built with --dims 5",
    )
    done = cse("similarity", "glove:v.txt", "word3", "word4", "--dims", "5", cwd=corpus)
    assert float(done.stdout) == pytest.approx(
        float(np.dot(*unit(Encoder(glove, dims=5).encode(["word3", "word4"])))), abs=1e-4
    )


@pytest.mark.parametrize(
    ("arguments", "phrases"),
    [
        (("glove:v.txt",), ("search: no index there", "cse search MODEL CORPUS -o search")),
        (("glove:v.txt", "c.csv"), ("name the column",)),
        (("glove:v.txt", "c.csv", "--column", "text", "--id", "key"), ("--id key", "name, text")),
        (("glove:v.txt", "q.txt", "--id", "name"), ("--id name: q.txt is not a table",)),
        (("glove:v.txt", "q.txt", "--queries", "blank.txt"), ("--queries blank.txt: holds no query",)),
        (("glove:v.txt", "q.txt", "--queries", "nowhere.txt"), ("nowhere.txt: no such file",)),
        (("glove:v.txt", "q.txt", "--query-column", "a"), ("--query-column",)),
        (("glove:v.txt", "blank.txt"), ("all 2 lines are blank",)),
        (("glove:v.txt", "q.txt", "--passages", "few"), ("--passages: must be", "'few'")),
        (("glove:v.txt", "q.txt", "--passages", "3"), ("--passages: must be at least 8", "got 3")),
        (("glove:v.txt", "--rebuild"), ("CORPUS",)),
        (("glove:v.txt", "q.txt", "-o", "c.csv"), ("c.csv: is a file",)),
        (("glove:v.txt", "q.txt", "-o", "."), ("holds files that are not",)),
    ],
)
def test_search_refuses_invalid_arguments(corpus, cse, arguments, phrases):
    refused(cse("search", *arguments, "--top", "1", cwd=corpus), *phrases)


def test_search_reads_queries_from_a_terminal(corpus, glove):
    pty = pytest.importorskip("pty")
    SearchIndex.build(Encoder(glove), some_texts(50), corpus / "search")
    pid, terminal = pty.fork()
    if pid == 0:  # the child runs the command in the terminal
        os.chdir(corpus)
        code = "import sys; sys.argv = ['cse', 'search', 'glove:v.txt', '--top', '2']; from cse.cli import main; main()"
        os.execv(sys.executable, [sys.executable, "-c", code])
    seen = b""

    def until(mark):
        nonlocal seen
        end = time.monotonic() + 60
        while mark not in seen and time.monotonic() < end:
            seen += os.read(terminal, 4096)
        assert mark in seen
        seen = seen.partition(mark)[2]

    until(b"query: ")
    os.write(terminal, some_texts(50)[7].encode() + b"\n")
    until(b"1.0000")
    until(b"query: ")
    os.write(terminal, b"\n")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
