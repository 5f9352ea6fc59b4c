"""Classes for the results of ``TfidfIndex`` methods: counts, reports and explanations."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AugmentReport", "ExplainedWord", "IndexInfo", "Replacement"]


@dataclass(frozen=True)
class IndexInfo:
    """Counts of the corpus that an index was built from."""

    documents: int
    """N, the number of rows that are not blank."""
    rows: int
    blank: int
    wordless: int
    """Documents without a term; they are counted in N."""
    tokens: int
    repaired: int
    """Rows with invalid UTF-8 (with ``encoding_errors="replace"``)."""
    terms: int


@dataclass(frozen=True)
class AugmentReport:
    """Counts of rows and words of a call to ``augment``."""

    rows: int
    """Rows written; ``cse augment`` writes ``--copies`` rows for each row that it reads."""
    blank: int
    unchanged: int
    """Rows in which no word was replaced, including blank rows."""
    words: int
    unseen: int
    """Words without a rank: not in the index, or removed by ``min_df`` or ``max_terms``."""
    replaced: int
    repaired: int


@dataclass(frozen=True)
class Replacement:
    """A replaced word. Spans are (start, end) character offsets with ``end`` exclusive; ranks start at 1."""

    old: str
    new: str
    span: tuple[int, int]
    new_span: tuple[int, int]
    p: float
    """Replacement probability of the word."""
    rank: int
    new_rank: int


@dataclass(frozen=True)
class ExplainedWord:
    """Statistics of one word of a sentence."""

    word: str
    seen: bool
    """False for a word without a rank: not in the index, or removed by ``min_df`` or ``max_terms``."""
    df: int
    """Document frequency; 0 if ``seen`` is False."""
    score: float
    """tf * idf in this sentence."""
    p: float
    """Replacement probability."""
    rank: int
    """Rank, from 1; if ``seen`` is False, the rank that a term with this score would have."""
    samples: list[str]
    replaceable: bool = True
    """With ``surface="keep"``, False for a word directly next to a letter, a digit or ``_``; its probability is 0."""
