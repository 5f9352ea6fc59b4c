"""Tests of ``explain`` for words that cannot be replaced because they are joined to another word."""

from cse import TfidfIndex


def test_words_joined_to_another_word_are_marked_as_not_replaceable():
    index = TfidfIndex.from_texts(["the cat sat", "\u5317\u4eac a b c", "some other words"])
    drawing = index.draw_options()
    for word, _, _, _, p, _, samples, replaceable in index._core.explain("the cat \u5317\u4eac", 5, drawing):
        touches = word in "\u5317\u4eac"  # the two characters are two words, without a space between them
        assert replaceable == (not touches)
        assert len(samples) == (0 if touches else 5)
        if touches:
            assert p == 0
