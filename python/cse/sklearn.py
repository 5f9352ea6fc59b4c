"""Alias of :mod:`cse.tfidf.sklearn`: the index as a step of a scikit-learn pipeline (extra ``cse[sklearn]``)."""

from .tfidf.sklearn import TfidfVectorizer

__all__ = ["TfidfVectorizer"]
