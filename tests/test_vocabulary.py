"""Words that a tokenizer divides, which cse doctor --model counts."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models

from conftest import refuses
from cse.encoder.resolve import find_model
from cse.encoder.trained import load_tokenizer
from cse.encoder.vocabulary import MIN_COUNT, count_words
from test_cli import ran, refused

TRICKY = [
    "The Boundary-Layer: na\u00efve caf\u00e9, CAF\u00c9! (don't) e_mail",
    "  two  spaces\tand a tab; \u4e2d\u6587 words, 3.14 x2 abc123 ",
    "",
    "Zw\u00f6lf Boxk\u00e4mpfer \u201cquoted\u201d \u2014 dash\u00a0nbsp e\u0301 combining",
]


@pytest.fixture(scope="module")
def rows(short_rows):
    """Sentences with invented words, which the tokenizer of the tiny model divides; several are equally frequent."""
    words = [a + b + c for a in ("blon", "kra", "zwei") for b in ("avi", "ortu") for c in ("rog", "smet", "x2", "nd")]
    return [f"The {words[number % 24 % (number % 5 + 20)]}, then: {row}" for number, row in enumerate(short_rows)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(rows) + "\n", encoding="utf8")
    return path


@pytest.fixture(scope="module")
def tokenizer(tiny_bert):
    return load_tokenizer(find_model(str(tiny_bert)))


def test_words_and_pieces_equal_those_of_the_tokenizer_on_whole_texts(tokenizer, rows):
    """The tokenizer gives a word number to each token of a whole text."""
    counts, pieces = Counter(), {}
    for text in [*rows, *TRICKY]:
        found = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        words = {}
        for number, (start, end), piece in zip(found.word_ids, found.offsets, found.tokens, strict=True):
            words.setdefault(number, []).append((text[start:end], piece))
        for parts in words.values():
            word = tokenizer.backend_tokenizer.normalizer.normalize_str("".join(part for part, _ in parts))
            counts[word] += 1
            pieces[word] = tuple(piece for _, piece in parts)
    found = count_words(tokenizer, [rows, TRICKY], "test")
    assert found.words == counts.total()
    assert found.tokens == sum(count * len(pieces[word]) for word, count in counts.items())
    assert found.unknown == sum(count for word, count in counts.items() if "[UNK]" in pieces[word]) > 0
    for number in range(1, 6):
        tokens = sum(count * number for word, count in counts.items() if len(pieces[word]) == number)
        assert found.by_pieces.get(number, 0) == tokens
    known = {word for word in counts if counts[word] >= MIN_COUNT and "[UNK]" not in pieces[word]}
    divided = {word for word in known if word.isalnum() and any(map(str.isalpha, word)) and len(pieces[word]) > 1}
    expected = {word: (counts[word], pieces[word], counts[word] * (len(pieces[word]) - 1)) for word in divided}
    assert len(expected) > 20
    assert {each.word: (each.count, each.pieces, each.saved) for each in found.divided} == expected


def test_a_tokenizer_without_words_is_refused():
    other = SimpleNamespace(backend_tokenizer=Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")))
    message = "--model m: the tokenizer does not divide a text into words first"
    refuses(message, count_words, other, [["a text"]], "--model m")


def test_doctor_lists_the_divided_words_of_the_model(cse, corpus, rows, tiny_bert, tokenizer):
    done = ran(cse("doctor", "--model", tiny_bert, corpus, "--top", 7, "--json"))
    found, expected = json.loads(done)["model"], count_words(tokenizer, [rows], "test")
    assert found["tokens"] == sum(len(ids) - 2 for ids in tokenizer(rows)["input_ids"])
    assert (found["words"], found["divided_words"]) == (expected.words, len(expected.divided))
    assert [each["word"] for each in found["listed_words"]] == [each.word for each in expected.divided[:7]]
    assert found["listed_words"][0]["saved_share"] == expected.divided[0].saved / expected.tokens
    assert found["token_share_divided"] == pytest.approx(1 - expected.by_pieces[1] / expected.tokens)
    shown = ran(cse("doctor", "--model", tiny_bert, corpus, "--top", 7))
    assert all(each.word in shown for each in expected.divided[:7])
    assert f"{expected.tokens:,} tokens" in shown


def test_doctor_counts_texts_that_the_model_reads_as_the_same_tokens(cse, tmp_path, tiny_bert):
    long = "word " * 40
    rows = ["one row", "One  row", "ONE ROW ", "\u00f3ne row", "another", f"{long} a", f"{long} b", ""]
    (tmp_path / "c.txt").write_text("\n".join(rows) + "\n", encoding="utf8")
    done = ran(cse("doctor", tmp_path / "c.txt", "--model", tiny_bert, "--json"))
    assert json.loads(done)["model"]["equal_texts"] == 2
    shown = cse("doctor", tmp_path / "c.txt", "--model", tiny_bert).stdout.replace("\n", " ")
    assert "2 texts have the first 32 tokens of another text" in shown


def test_doctor_refuses_options_that_cannot_work(cse, corpus):
    refused(cse("doctor", corpus, "--top", 3), "--top has no effect without --model")
    refused(cse("doctor", corpus, "--model", "./none"), "./none: no such folder")
    refused(cse("doctor", corpus, "--model", "minilm", "-"), "--model reads CORPUS twice")
