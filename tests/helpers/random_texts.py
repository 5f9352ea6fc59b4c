"""Texts of random words, and files of random vectors for these words, which the encoder ``glove:FILE`` reads."""

import numpy as np

WORDS = [f"word{number}" for number in range(200)]


def some_texts(count, seed=1, most=12):
    """Returns ``count`` random texts of at least three and fewer than ``most`` words."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(3, most))) for _ in range(count)]


def write_vectors(path, width=16):
    vectors = np.random.default_rng(0).standard_normal((len(WORDS), width))
    lines = (f"{word} {' '.join(f'{x:.4f}' for x in vector)}\n" for word, vector in zip(WORDS, vectors, strict=True))
    path.write_text("".join(lines), encoding="utf8")
