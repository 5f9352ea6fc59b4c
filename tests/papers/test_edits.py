"""Tests of edits of sentences, and of positives from other rows or files (EDA, AEDA, ESimCSE, Mirror-BERT, SimCSE)."""

from collections import Counter

import numpy as np
import pytest

from cse import InputError
from cse.augment import AUGMENTATIONS
from cse.context import TextContext
from cse.data.corpus import Corpus
from cse.options import parse_options
from cse.rng import Draws
from cse_papers.eda import cleaned, open_synonyms

WORDS = "a b c d e f g h i j"
ROWS = np.arange(4000)


def make(name, context=None, **options):
    method = AUGMENTATIONS.get(name)
    return method(parse_options(name, method.Options, options), context or TextContext())


def edited(name, text=WORDS, rows=ROWS, epoch=0, **options):
    return make(name, **options)([text] * len(rows), rows, Draws(0, epoch))


@pytest.fixture
def synonyms(tmp_path):
    path = tmp_path / "synonyms.txt"
    path.write_text("a\tA1, A2\nb\tB1\n\nC\tC1\n", encoding="utf8")
    return str(path)


@pytest.mark.parametrize("name", ["eda-swap", "eda-delete", "aeda", "repetition", "masked-span", "switch-case"])
def test_an_edit_depends_only_on_seed_epoch_and_row(name):
    text = WORDS + " k l m n o p q r s t u v w x y z"
    whole = edited(name, text)
    assert edited(name, text, ROWS[1000:1010]) == whole[1000:1010]
    assert edited(name, text, epoch=1) != whole
    assert make(name)(["", " ", "x"], np.arange(3), Draws(0, 0))[:2] == ["", " "]


def test_swaps_exchange_two_random_words():
    found = Counter()
    for text in edited("eda-swap"):
        words = text.split()
        moved = [place for place, (new, old) in enumerate(zip(words, WORDS.split(), strict=True)) if new != old]
        assert len(moved) == 2
        assert sorted(words) == WORDS.split()
        found[tuple(moved)] += 1
    assert len(found) == 45
    assert max(found.values()) < 4000 / 45 + 5 * (4000 / 45) ** 0.5
    # With alpha = 0.7, two swaps are made; the second may undo the first.
    assert set(edited("eda-swap", "a b c", alpha=0.7)) == {"c a b", "b c a"} | {"a b c"}


def test_words_are_deleted_with_the_given_probability_but_at_least_one_is_kept():
    kept = Counter(word for text in edited("eda-delete", alpha=0.3) for word in text.split())
    assert all(abs(count - 2800) < 5 * (4000 * 0.3 * 0.7) ** 0.5 for count in kept.values())
    single = Counter(edited("eda-delete", "a b", alpha=0.99))
    assert abs(single["a"] - single["b"]) < 5 * 4000**0.5
    assert edited("eda-delete", "a", alpha=0.99) == ["a"] * 4000


def test_synonyms_replace_words_or_are_inserted(synonyms):
    # The word "a" is a stop word; see the next test.
    replaced = Counter(edited("eda-synonym", "a x B", synonyms=synonyms, spare_stop_words=False))
    assert set(replaced) == {"A1 x B", "A2 x B", "a x B1"}
    assert abs(replaced["a x B1"] - 2000) < 5 * 1000**0.5
    assert set(edited("eda-synonym", "x y", synonyms=synonyms)) == {"x y"}
    inserted = Counter(edited("eda-insert", "b x", synonyms=synonyms))
    assert set(inserted) == {"B1 b x", "b B1 x", "b x B1"}
    assert all(abs(count - 4000 / 3) < 5 * (4000 * 2 / 9) ** 0.5 for count in inserted.values())


def test_stop_words_are_neither_replaced_nor_given_synonyms_that_are_inserted(tmp_path):
    words = ["the", "cat", "is", "in", "The", "Hat"]
    path = tmp_path / "synonyms.txt"
    path.write_text("".join(f"{word}\tnew{word}\n" for word in {word.lower() for word in words}), encoding="utf8")
    text, options = " ".join(words), {"synonyms": str(path), "alpha": 0.9}
    # n is 5, but only two words are not stop words.
    assert set(edited("eda-synonym", text, ROWS[:50], **options)) == {"the newcat is in The newhat"}
    everything = edited("eda-synonym", text, ROWS[:50], spare_stop_words=False, **options)
    assert {word for each in everything for word in each.split() if "new" in word} >= {"newthe", "newis", "newin"}
    inserted = Counter(word for text in edited("eda-insert", text, ROWS[:50], **options) for word in text.split())
    assert {word for word in inserted if word.startswith("new")} == {"newcat", "newhat"}
    assert "newin" in " ".join(edited("eda-insert", text, ROWS[:50], spare_stop_words=False, **options))


def test_the_clean_option_cleans_texts_like_the_released_code_of_eda():
    assert cleaned("It's a Well-known\tfact: 42!") == "its a well known fact"
    assert edited("eda-delete", "One, TWO", np.arange(1), clean=True, alpha=0.01) == ["one two"]


@pytest.mark.parametrize(
    ("content", "message"),
    [("a b\n", "line 1: must be a word, a tab"), (None, "no such file")],
)
def test_invalid_files_of_synonyms_are_refused(tmp_path, content, message):
    path = tmp_path / "odd.txt"
    if content is not None:
        path.write_text(content, encoding="utf8")
    with pytest.raises((InputError, OSError), match=message):
        open_synonyms(str(path))


def test_error_for_missing_wordnet_data_names_the_download_command(monkeypatch):
    pytest.importorskip("nltk")
    from nltk.corpus import wordnet

    def missing(self):
        raise LookupError("no data")

    monkeypatch.setattr(type(wordnet), "ensure_loaded", missing, raising=False)
    with pytest.raises(InputError, match=r"nltk\.downloader wordnet"):
        make("eda-synonym")


def test_punctuation_marks_are_inserted_before_distinct_words():
    counts = Counter()
    for text in edited("aeda"):
        pieces = text.split()
        assert [piece for piece in pieces if piece.isalpha()] == WORDS.split()
        marks = [place for place, piece in enumerate(pieces) if not piece.isalpha()]
        assert all(pieces[place + 1].isalpha() for place in marks)
        counts[len(marks)] += 1
    assert set(counts) == {1, 2, 3, 4}  # 1 to floor(0.3 * words + 1)
    assert all(abs(count - 1000) < 5 * 750**0.5 for count in counts.values())


def test_number_of_repeated_words_is_uniform_between_zero_and_its_maximum():
    counts = Counter(len(text.split()) - 10 for text in edited("repetition"))
    assert set(counts) == {0, 1, 2, 3}
    assert all(abs(count - 1000) < 5 * 750**0.5 for count in counts.values())
    assert set(edited("repetition", "a")) == {"a", "a a"}


def test_the_masked_span_of_characters_can_start_at_any_position():
    text = "abcdefghijklmnopqrstuvwxyzabcd"
    found = Counter(new.index("[MASK]") for new in edited("masked-span", text))
    assert set(found) == set(range(26))
    for new in edited("masked-span", text, ROWS[:50]):
        at = new.index("[MASK]")
        assert new == text[:at] + "[MASK]" + text[at + 5 :]
    assert edited("masked-span", text[:29], ROWS[:3]) == [text[:29]] * 3


def test_the_next_row_is_the_positive_if_it_is_a_training_row(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"row {number}\n" for number in range(10)), encoding="utf8")
    context = TextContext()
    context.corpus, context.rows = Corpus.read([str(path)]), np.array([0, 1, 2, 4, 5, 6, 7, 8, 9])
    rows = np.array([0, 2, 5, 9])
    paired = make("next-sentence", context)(context.corpus.take(rows), rows, Draws(0, 0))
    assert paired.mask.tolist() == [True, False, True, False]
    assert paired.positives == ["row 1", "row 2", "row 6", "row 9"]
    rows = np.full(300, 4)
    drawn = Counter(
        text
        for epoch in range(10)
        for text in make("next-sentence", context, within=3)(context.corpus.take(rows), rows, Draws(0, epoch)).positives
    )
    assert set(drawn) <= {"row 5", "row 6", "row 7"}


def test_a_parallel_file_provides_the_positive_of_each_row(tmp_path):
    for name, lines in (("corpus.txt", "a\nb\nc\n"), ("other.txt", "x\n\nc\n"), ("short.txt", "x\n")):
        (tmp_path / name).write_text(lines, encoding="utf8")
    context = TextContext()
    context.corpus = Corpus.read([str(tmp_path / "corpus.txt")])
    paired = make("parallel", context, file=str(tmp_path / "other.txt"))(["a", "b", "c"], np.arange(3), Draws(0, 0))
    assert paired.mask.tolist() == [True, False, False]  # line 2 is blank, and line 3 equals the sentence
    with pytest.raises(InputError, match="has 1 rows, but the corpus has 3"):
        make("parallel", context, file=str(tmp_path / "short.txt"))
    with pytest.raises(InputError, match="no file is named"):
        make("parallel", context)
