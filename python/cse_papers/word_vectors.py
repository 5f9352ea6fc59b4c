"""Word vectors: an encoder that averages one stored vector per word, in the format of GloVe or word2vec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cse.encoder.other import OtherEncoder
from cse.errors import InputError

# Words (including any inner apostrophes and hyphens), numbers, and single punctuation marks, as in GloVe's vocabulary.
TOKENS = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


class WordVectors(OtherEncoder):
    """Represents a text by the mean of the vectors of its words (``glove:FILE``).

    Each line of the file holds a word, which may contain spaces, and the components of its vector, separated by spaces.
    A first line with the numbers of words and dimensions, as written by word2vec, is skipped. A word that is not in the
    file is looked up in lower case, and ignored if the lower-case form is missing, too. The vector of a text without
    known words is 0.
    """

    summary = "mean of the word vectors of a text file, like GloVe's: glove:FILE"

    def __init__(self, what: str, device: str) -> None:
        super().__init__(what, device)
        lines = Path(what).read_text(encoding="utf8", errors="replace").split("\n")
        first = lines[0].split(" ")
        start = 1 if len(first) == 2 and all(part.isdigit() for part in first) else 0
        self.rows: dict[str, int] = {}
        vectors: list[npt.NDArray[np.float32]] = []
        for number, line in enumerate(lines[start:], start + 1):
            if not line.strip():
                continue
            parts = line.rstrip(" \r").split(" ")
            # Words may contain spaces, as in the vectors of 840 billion tokens, but do not end in a number.
            size = len(vectors[0]) if vectors else len(list(takewhile(_is_number, reversed(parts[1:]))))
            try:
                vector = np.array(parts[-size:] if 0 < size < len(parts) else [], dtype=np.float32)
            except ValueError:
                vector = np.empty(0, dtype=np.float32)
            if not len(vector) or (size + 1 < len(parts) and _is_number(parts[-size - 1])):
                wanted = f"{size} numbers" if vectors else "at least one number"
                raise InputError(f"glove:{what}: line {number} does not consist of a word and {wanted}")
            self.rows.setdefault(" ".join(parts[:-size]), len(vectors))
            vectors.append(vector)
        self.vectors = np.stack(vectors)

    @property
    def embedding_dim(self) -> int:
        return int(self.vectors.shape[1])

    def encode(self, texts: Sequence[str], **settings: Any) -> npt.NDArray[np.float32]:
        """Returns the mean vectors ``(n, D)``; the settings have no effect."""
        out = np.zeros((len(texts), self.embedding_dim), dtype=np.float32)
        for number, text in enumerate(texts):
            words = TOKENS.findall(text)
            rows = [self.rows.get(word, self.rows.get(word.lower(), -1)) for word in words]
            known = [row for row in rows if row >= 0]
            if known:
                out[number] = self.vectors[known].mean(0)
        return out

    def files(self) -> list[Path]:
        return [Path(self.what)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
