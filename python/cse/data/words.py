"""Halves of sentences, cut at white space; and English stop words."""

from __future__ import annotations


def cut_in_two(sentence: str) -> tuple[str, str]:
    """Returns the two halves of a sentence; if the number of words is odd, the first half has one more word."""
    words = sentence.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


_STOP_WORDS = (
    "a about above after again against all am an and any are as at be because been before being below between both "
    "but by can did do does doing don down during each few for from further had has have having he her here hers "
    "herself him himself his how i if in into is it its itself just me more most my myself no nor not now of off on "
    "once only or other our ours ourselves out over own s same she should so some such t than that the their theirs "
    "them themselves then there these they this those through to too under until up very was we were what when "
    "where which while who whom why will with you your yours yourself yourselves"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""English stop words in lower case; the same 127 words as in EDA's released code."""
