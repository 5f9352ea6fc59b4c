"""Cuts sentences in two between words, which are separated by white space."""

from __future__ import annotations

__all__ = ["cut_in_two"]


def cut_in_two(sentence: str) -> tuple[str, str]:
    """Returns the first and second half of the words as texts; the first has one word more if their number is odd."""
    words = sentence.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])
