"""Tests of cse.sklearn.TfidfVectorizer: its values, its use in a pipeline, and its parameters."""

import pickle

import numpy as np
import pytest
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from cse import InputError, TfidfIndex
from cse.sklearn import TfidfVectorizer


def test_tfidf_equals_the_formula_applied_to_counts_from_scikit_learn(sample_rows):
    rows = sample_rows[:2000]
    counter = CountVectorizer(tokenizer=str.split, token_pattern=None)
    counts = counter.fit_transform(rows).toarray()
    length, df = counts.sum(1, keepdims=True), (counts > 0).sum(0)
    expected = np.log1p(counts / length) * np.log(len(rows) / df)
    ours = TfidfVectorizer(tokenizer="whitespace")
    matrix = ours.fit_transform(rows)
    assert issparse(matrix)
    assert ours.get_feature_names_out().tolist() == counter.get_feature_names_out().tolist()
    assert ours.vocabulary_ == counter.vocabulary_
    np.testing.assert_allclose(matrix.toarray(), expected, rtol=1e-12)
    np.testing.assert_allclose(ours.idf_, np.log(len(rows) / df), rtol=1e-12)


def test_tfidf_vectorizer_works_in_a_grid_search(sample_rows):
    texts = [*sample_rows[:150], *(" ".join(reversed(row.split())).upper() for row in sample_rows[:150])]
    labels = [0] * 150 + [1] * 150
    pipeline = make_pipeline(TfidfVectorizer(lowercase=False), LogisticRegression(C=100))
    grid = {"tfidfvectorizer__min_df": [1, 2], "tfidfvectorizer__norm": [None, "l2"]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(texts, labels)
    assert search.best_score_ > 0.9
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert (again.predict(texts) == search.predict(texts)).all()


def test_parameters_of_the_vectorizer_are_applied_and_checked(sample_rows):
    rows = sample_rows[:500]
    vectorizer = TfidfVectorizer(min_df=0.01, max_features=50, norm="l2")
    assert clone(vectorizer).get_params() == vectorizer.get_params()
    matrix = vectorizer.fit_transform(rows)
    assert matrix.shape == (500, 50)
    np.testing.assert_allclose(np.sqrt(matrix.multiply(matrix).sum(1)).max(), 1)
    assert vectorizer.index_.df.min() >= 5
    whole = TfidfIndex.from_texts(rows)
    assert set(vectorizer.vocabulary_) < set(whole.terms)
    with pytest.raises(NotFittedError):
        TfidfVectorizer().transform(rows)
    with pytest.raises(InputError, match="tokenizer"):
        TfidfVectorizer(tokenizer="odd").fit(rows)
    for bad in (-1, 1.5, float("nan"), "2", None):
        with pytest.raises(InputError, match="min_df"):
            TfidfVectorizer(min_df=bad).fit(rows)
    for bad in (0, -3, 2.5):
        with pytest.raises(InputError, match="max_features"):
            TfidfVectorizer(max_features=bad).fit(rows)
    assert TfidfVectorizer(min_df=np.float32(0.1)).fit(rows).index_.df.min() >= 50
    with pytest.raises(NotFittedError):
        _ = TfidfVectorizer().vocabulary_
    with pytest.raises(InputError, match="norm"):
        TfidfVectorizer(norm="l3").fit(rows)
    assert vectorizer.index_.augment(["some words of a sentence"]) != ["some words of a sentence"]
