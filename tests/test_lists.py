"""Tests that a single text, a mapping or a table is refused where a list of texts or ids is wanted."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset

from cse import Encoder, InputError, SearchIndex, TfidfIndex, TrainConfig, train

NOT_LISTS = [
    "ab",
    b"ab",
    {"text": "a", "other": "b"},
    pd.DataFrame({"text": ["a b"], "other": ["c d"]}),
    pa.table({"text": ["a b"]}),
    Dataset.from_dict({"text": ["a b"]}),
    5,
]


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
        "texts": [
            encoder.encode,
            TfidfIndex.from_texts,
            tfidf.augment,
            tfidf.transform,
            index.add,
            lambda given: index.update(given, ids=["9"]),
            lambda given: SearchIndex.build(encoder, given),
            lambda given: train(TrainConfig(model="glove:x", output=str(tmp_path)), texts=given),
        ],
        "queries": [index.search],
        "ids": [
            index.remove,
            lambda given: index.add(["word5"], ids=given),
            lambda given: SearchIndex.build(encoder, ["word1", "word2"], ids=given),
        ],
    }
    for name, functions in takers.items():
        for take in functions:
            if take == encoder.encode and isinstance(texts, str):
                continue  # one text has one vector
            with pytest.raises(InputError, match=f"^{name}: a list of .* was expected, not "):
                take(texts)
    assert len(index) == 4


def test_lists_of_any_kind_are_accepted(encoder, index):
    texts = ["word1 word2", "word3"]
    vectors = encoder.encode(texts)
    dataset = Dataset.from_dict({"text": texts})
    for given in (tuple(texts), np.array(texts), pd.Series(texts), iter(texts), dict.fromkeys(texts).keys(),
                  dataset["text"]):  # fmt: skip
        assert np.array_equal(encoder.encode(given), vectors)
    index.remove(np.array([1, 2]))
    assert index.ids([0, 1]) == ["3", "4"]


@pytest.mark.parametrize("value", [None, 1.0, True, b"a"])
def test_an_id_is_a_text_or_an_integer(value, encoder):
    with pytest.raises(InputError, match=r"^ids: element 1 must be a string or an integer"):
        SearchIndex.build(encoder, ["word1", "word2"], ids=["a", value])
