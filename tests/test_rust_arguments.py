"""Tests that an invalid argument to the Rust core raises an InputError that names the argument."""

import pytest

from cse import InputError, _core

WORDS = {"tokenizer": "unicode", "lowercase": True, "nfkc": False}
READING = {"encoding_errors": "strict", "max_line_bytes": 1 << 20, "threads": 1}


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("seed", "x", "--seed"),
        ("seed", -1, "--seed"),
        ("epoch", 1.5, "--epoch"),
        ("copy", None, "copy"),
        ("beta", "half", "--beta"),
        ("radius", [3], "--radius"),
        ("surface", 3, "--surface"),
        ("replace_which", None, "--replace-which"),
        ("replace_with", b"radius", "--replace-with"),
        ("mode", 1, "--mode"),
    ],
)
def test_errors_name_invalid_options_of_augment(sample_index, key, value, name):
    drawing = {**sample_index.draw_options(), key: value}
    with pytest.raises(InputError, match=f"^{name}: must be .*, got "):
        sample_index._core.augment(["a text"], [0], drawing)


@pytest.mark.parametrize(
    ("words", "reading", "name"),
    [
        ({"tokenizer": 3}, {}, "--tokenizer"),
        ({"lowercase": "yes"}, {}, "--lowercase"),
        ({"nfkc": None}, {}, "--nfkc"),
        ({}, {"encoding_errors": None}, "--encoding-errors"),
        ({}, {"max_line_bytes": "1 MB"}, "--max-line-bytes"),
        ({}, {"threads": -1}, "--threads"),
    ],
)
def test_errors_name_invalid_word_and_reading_options(sample, words, reading, name):
    with pytest.raises(InputError, match=f"^{name}: must be .*, got "):
        _core.count([str(sample)], {**WORDS, **words}, {**READING, **reading})


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda index: index.augment(["a", 3], [0, 1], {}), "texts: must be .*, got 3"),
        (lambda index: index.augment("abc", [0, 1, 2], {}), "texts: must be .*, got 'abc'"),
        (lambda index: index.augment(["a"], ["x"], {}), r"rows: must be .*, got \['x'\]"),
        (lambda index: index.transform([None]), "texts: must be .*, got None"),
        (lambda index: index.explain(3, 1, {}), "text: must be .*, got 3"),
        (lambda index: index.explain("a", "many", {}), "samples: must be .*, got 'many'"),
        (lambda index: index.save(3), "dir: must be .*, got 3"),
        (lambda _: _core.tokenize(b"abc", WORDS), "text: must be .*, got b'abc'"),
        (lambda _: _core.Index.open("tfidf", "few", None), "min_df: must be .*, got 'few'"),
        (lambda _: _core.Index.open("tfidf", 1, -3), "max_terms: must be .*, got -3"),
        (lambda _: _core.count([3], WORDS, READING), "paths: must be .*, got 3"),
        (lambda _: _core.count("corpus.txt", WORDS, READING), "paths: must be .*, got 'corpus.txt'"),
        (lambda _: _core.count(["a"], {}, READING), "--tokenizer: the options have no key"),
    ],
)
def test_errors_name_invalid_texts_rows_paths_and_counts(sample_index, call, name):
    with pytest.raises(InputError, match=f"^{name}"):
        call(sample_index._core)
