"""Cuts sentences into two halves, at white space."""

from __future__ import annotations

__all__ = ["cut_in_two"]


def cut_in_two(sentence: str) -> tuple[str, str]:
    """Returns the two halves of a sentence; if the number of words is odd, the first half has one more word."""
    words = sentence.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])
