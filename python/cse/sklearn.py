"""Alias of :mod:`cse.tfidf.sklearn`: the TF-IDF index as a scikit-learn transformer (extra ``cse[sklearn]``)."""

from .tfidf.sklearn import TfidfVectorizer

__all__ = ["TfidfVectorizer"]
