"""Cuts sentences in two between words, which are separated by white space."""

from __future__ import annotations

__all__ = ["cut_in_two"]


def cut_in_two(sentence: str) -> tuple[str, str]:
    """Returns the first and the second half of the words; the first is longer if the number of words is odd."""
    words = sentence.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])
