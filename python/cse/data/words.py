"""Cuts sentences into two halves, between words that are separated by white space."""

from __future__ import annotations

__all__ = ["cut_in_two"]


def cut_in_two(sentence: str) -> tuple[str, str]:
    """Returns the two halves of a sentence; the first has one word more if the number of words is odd."""
    words = sentence.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])
