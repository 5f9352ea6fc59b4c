"""BM25 search with the library bm25s (extra ``cse[search]``), and the terms into which it splits texts.

Terms are the words of a language, stemmed and without its stop words; parts of identifiers; or word pieces. Stemming
follows Snowball (the library PyStemmer), and the lists of stop words are from bm25s; for English, the list of
``cse.data.words`` is used. Chinese and Japanese characters, which have no spaces between words, become pairs of
adjacent characters (Nie, Gao, Zhang and Zhou 2000). Texts and queries are normalised to Unicode NFKC.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import cse._core as _core

from ..data import words
from ..errors import InputError
from ..io import dumps, fresh_folder
from ..tfidf.options import word_options
from ..tfidf.pieces import Pieces
from ..ties import best

Numbers = npt.NDArray[np.int64]

HASHES = "hashes.json"
PROGRESS_ROWS = 4096
_LANGUAGES = "danish dutch english french german italian norwegian portuguese russian spanish swedish turkish"
LANGUAGES = _LANGUAGES.split()
"""Languages with a stemmer of Snowball and a list of stop words in bm25s."""
# Number of texts by which the language is guessed, and the least share of stop words. In collections of texts, .19 to
# .44 of the words were in the list of the language, and at most .12 in any other list.
SAMPLE, LEAST = 1000, 0.15
IDEOGRAPH = re.compile(r"[぀-ヿ㐀-䶿一-鿿豈-﫿]")
# Places at which an identifier is cut: readFile, HTTPServer, read_file, utf8Text.
CUT = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def language_names() -> list[str]:
    """Returns the values of ``--language``."""
    return ["auto", "none", *LANGUAGES]


@dataclass(frozen=True)
class Terms:
    """How texts are split into terms: the language of stemming and of stop words, and a tokenizer of ``Fusion``."""

    language: str = "none"
    stop_words: str = "none"
    tokenizer: str = "unicode"
    pieces: Pieces | None = None
    """The tokenizer whose pieces are the terms; needed with ``wordpieces``."""

    @property
    def name(self) -> str:
        """A name for files, which is different for terms that may differ."""
        return "-".join([self.tokenizer, self.language, self.stop_words])

    def __call__(self, texts: Sequence[str]) -> list[list[str]]:
        left_out = stop_words(self.stop_words)
        if self.tokenizer == "wordpieces":
            assert self.pieces is not None
            return [[term for term in terms if term not in left_out] for terms in self.pieces.terms(texts)]
        split = word_options(nfkc=True, lowercase=self.tokenizer != "code")
        stemmer = None  # not shared by calls, because a stemmer cannot be used by several threads
        if self.language != "none":
            import Stemmer

            stemmer = Stemmer.Stemmer(self.language)
        results = []
        for text in texts:
            spans = _core.tokenize(text, split)
            parts = (part.lower() for _, _, term in spans for part in CUT.split(term) if part)
            terms = parts if self.tokenizer == "code" else _pairs(spans)
            kept = [term for term in terms if term not in left_out]
            results.append(kept if stemmer is None else stemmer.stemWords(kept))
        return results


def _pairs(spans: Iterable[tuple[int, int, str]]) -> list[str]:
    """Returns terms in which adjacent single ideographs have become pairs; one that stands alone is kept."""
    terms: list[str] = []
    run: list[str] = []
    last = -1
    for start, end, term in [*spans, (-1, -1, "")]:
        ideograph = len(term) == 1 and IDEOGRAPH.match(term) is not None
        if run and not (ideograph and start == last):
            terms += ["".join(pair) for pair in pairwise(run)] or run
            run = []
        if ideograph:
            run.append(term)
        elif term:
            terms.append(term)
        last = end
    return terms


@cache
def stop_words(language: str) -> frozenset[str]:
    """Returns the stop words of a language in lower case; none for ``none``."""
    if language in ("none", "english"):
        return words.STOP_WORDS if language == "english" else frozenset()
    return frozenset(getattr(library().stopwords, f"STOPWORDS_{language.upper()}"))


def guess_language(texts: Iterable[str]) -> str:
    """Returns the language to whose stop words most words of the texts belong; ``none`` if fewer than ``LEAST`` do."""
    counts = Counter(term for text in texts for _, _, term in _core.tokenize(text, word_options()))
    total = sum(counts.values())
    shares = {
        language: sum(counts[word] for word in stop_words(language) if word.isalpha()) / max(total, 1)
        for language in LANGUAGES
    }
    best = max(shares, key=shares.__getitem__)
    return best if shares[best] >= LEAST else "none"


def looks_like_code(texts: Iterable[str]) -> bool:
    """Returns whether at least a twentieth of the words are identifiers of several parts."""
    parts = [
        sum(1 for part in CUT.split(term) if part) > 1 and not term.isupper()
        for text in texts
        for _, _, term in _core.tokenize(text, word_options(lowercase=False))
    ]
    return sum(parts) >= 0.05 * max(len(parts), 1)


def terms_for(
    texts: Sequence[str], language: str = "auto", stop_words: str = "language", tokenizer: str = "auto"
) -> Terms:
    """Returns the terms for some texts: ``auto`` is found from them, and ``language`` means the texts'."""
    sample = texts[:: max(1, -(-len(texts) // SAMPLE))]
    if language == "auto":
        language = guess_language(sample)
    if tokenizer == "auto":
        tokenizer = "code" if looks_like_code(sample) else "unicode"
    return Terms(language, language if stop_words == "language" else stop_words, tokenizer)


def library() -> Any:
    """Imports bm25s without JAX, which would reserve most of a GPU; raises ``InputError`` if it is not installed."""
    hidden = "jax" not in sys.modules
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]  # import statements raise ImportError
    try:
        import bm25s
        import Stemmer  # noqa: F401
    except ImportError:
        raise InputError(
            "BM25 needs bm25s and PyStemmer, which are not installed; run pip install 'cse[search]'"
        ) from None
    finally:
        if hidden:
            sys.modules.pop("jax", None)
    return bm25s


class Bm25:
    """BM25 with Lucene's formula, k1 = 1.5 and b = 0.75."""

    def __init__(self, index: Any, terms: Terms) -> None:
        self._index, self._split = index, terms

    @classmethod
    def build(
        cls, texts: Iterable[str], progress: Callable[[int], None] | None = None, terms: Terms | None = None
    ) -> Bm25:
        """Builds an index of texts, split by ``terms``, by default into all words; at least one must have a term."""
        split = terms or Terms()
        index = cls(library().BM25(method="lucene", k1=1.5, b=0.75), split)
        vocabulary: dict[str, int] = {}
        rows: list[list[int]] = []
        source = iter(texts)
        while block := list(islice(source, PROGRESS_ROWS)):
            rows += [[vocabulary.setdefault(term, len(vocabulary)) for term in row] for row in split(block)]
            if progress:
                progress(len(block))
        if not vocabulary:
            raise InputError("BM25: no row of the corpus contains a word; leave out the option that uses BM25")
        index._index.index((rows, vocabulary), show_progress=False)
        return index

    @classmethod
    def open(cls, folder: Path, terms: Terms, verify: bool = True) -> Bm25:
        """Opens an index that ``save`` wrote, mapped into memory; ``terms`` as in ``build``."""
        load = library().BM25.load
        try:
            if verify and json.loads((folder / HASHES).read_bytes()) != _hashes(folder):
                raise ValueError("a file is damaged")
            return cls(load(folder, mmap=True, show_progress=False), terms)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{folder}: cannot be read ({error}); remove the folder to build it again") from None

    def save(self, folder: Path) -> None:
        """Writes the index to a folder, atomically."""
        with fresh_folder(folder) as fresh:
            self._index.save(fresh, show_progress=False)
            (fresh / HASHES).write_text(dumps(_hashes(fresh)), encoding="utf8")

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Returns the scores of all rows, ``(n,)`` float32; 0 for rows without any term of the query."""
        vocabulary = self._index.vocab_dict
        known = [vocabulary[term] for term in self._split([query])[0] if term in vocabulary]
        scores: npt.NDArray[np.float32] = self._index.get_scores_from_ids(known)
        return scores

    def search(self, query: str, k: int) -> Numbers:
        """Returns up to k rows with the largest positive scores, best first; ties are in row order."""
        scores = self.scores(query)
        rows = best(scores, k, scores)
        return rows[scores[rows] > 0]


def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: _core.hash_file(path) for path in sorted(folder.iterdir()) if path.name != HASHES}
