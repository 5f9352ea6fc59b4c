"""When two texts count as the same text: identities that all parts of the package use.

- The *row key* needs no model: a hash of the text without characters that nobody sees (such as the zero-width space),
  in NFC, case folded, with each run of white space replaced by a space (``rust/src/text/row.rs``). It decides which
  rows are held out together and left out of training (``cse.data.corpus.hold_out``), which texts are judged as one
  example (``cse.evaluation``), and which are mined (``cse.search.mining``). Accents are part of it, although some
  models drop them.
- The *token key* is a hash of token ids: two texts with equal ones are the same text for a model. It decides which
  texts of a batch are negatives (``cse.views.equal_texts``): a view has the key of its ids as they are encoded, after
  truncation, and a row that is cut into views (``spans``) also the key of all its ids.

- The *keys of the letters* are hashes of the letters and digits of a text, without accents: of all, and without links,
  @names and HTML entities. They only decide whether a text is a cleaned form of one whose label taught an encoder
  (``encoder.taught``), or of one that is judged by its label (``evaluation.labels``).

Vectors are used again (stored ones, and those of one command) only for a text with the same bytes.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import cse._core as _core

Keys = npt.NDArray[np.uint64]

COMMON_SHARE, COMMON_ROWS = 0.01, 10
"""A text in more than this share of the rows, and in more than this number of rows, joins none of its rows."""
MULTIPLIER = 0x9E3779B97F4A7C15
LINKS_AND_NAMES = r"(?i)https?://[^\s\p{Z}]+|www\.[^\s\p{Z}]+|@[\p{L}\p{N}_]+"
NO_LETTERS = r"[^\p{L}\p{N}]+"
NO_ASCII_LETTERS = bytes(code for code in range(128) if not chr(code).isalnum())
FEWEST_LETTERS, LONG = 12, r"[\p{Han}\p{Hiragana}\p{Katakana}]"
"""Texts with fewer letters and digits have no keys of the letters: they are often equal by chance. Each letter of a
script of words or syllables counts as three."""


def row_keys(texts: Sequence[str]) -> Keys:
    """Returns the row key of each text, ``(n,)`` uint64; ``Corpus.row_keys`` has the keys of a corpus."""
    return np.frombuffer(_core.row_keys(list(texts)), dtype="<u8")


def letters_of(texts: pa.Array) -> list[str]:
    """Returns the letters and digits of each text, without accents."""
    # The regular expression takes 5 us for a text, and is only needed for those that are not ASCII.
    ascii = pc.string_is_ascii(texts)
    found = [
        text.encode().translate(None, NO_ASCII_LETTERS).decode() if plain else text
        for text, plain in zip(texts.to_pylist(), ascii.to_pylist(), strict=True)
    ]
    others = pc.utf8_normalize(texts.filter(pc.invert(ascii)), form="NFKD")
    places = np.flatnonzero(~ascii.to_numpy(zero_copy_only=False)).tolist()
    for place, text in zip(places, pc.replace_substring_regex(others, NO_LETTERS, "").to_pylist(), strict=True):
        found[place] = text
    return found


def letter_keys(texts: Sequence[str]) -> Keys:
    """Returns two keys of the letters of each text, ``(n, 2)`` uint64: with its links, @names and HTML entities, and
    without; 0, which is the key of no text, where these are few."""
    whole = pa.array(texts, pa.large_string())
    bare = pa.array([html.unescape(text) if "&" in text else text for text in texts], pa.large_string())
    bare = pc.replace_substring_regex(bare, LINKS_AND_NAMES, " ")
    changed = pc.not_equal(whole, bare)
    keys = np.repeat(_letter_keys(whole)[:, None], 2, axis=1)
    keys[changed.to_numpy(zero_copy_only=False), 1] = _letter_keys(bare.filter(changed))
    return keys


def _letter_keys(texts: pa.Array) -> Keys:
    letters = letters_of(texts)
    array = pa.array(letters, pa.large_string())
    size = pc.utf8_length(array).to_numpy() + 2 * pc.count_substring_regex(array, LONG).to_numpy()
    return np.where(size >= FEWEST_LETTERS, row_keys(letters), np.uint64(0))


def text_groups(keys: Keys, letters: Keys) -> npt.NDArray[np.int64]:
    """Returns the number of the group of each text, ``(n,)``, given row keys ``(n,)`` and keys of letters ``(n, 2)``:
    two texts that have one of these in common, directly or through others, are of one group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    every = np.column_stack([keys, letters])
    texts, columns = np.nonzero(every)
    _, places = np.unique(every[texts, columns], return_inverse=True)
    count = len(keys) + places.max(initial=-1) + 1
    joined = coo_array((np.ones(len(texts), dtype=bool), (texts, len(keys) + places)), shape=(count, count))
    return connected_components(joined, directed=False)[1][: len(keys)].astype(np.int64)


def first_rows(keys: Keys) -> npt.NDArray[np.int64]:
    """Returns the position of the first row of each key, ascending."""
    return np.sort(np.unique(keys, return_index=True)[1])


def distinct(texts: Sequence[str]) -> list[str]:
    """Returns the first text of each row key, in the given order."""
    return [texts[place] for place in first_rows(row_keys(texts)).tolist()]


def most_common(rows: int) -> int:
    """Returns the largest number of rows with the same text, of all rows, by which rows are joined."""
    return max(COMMON_ROWS, int(COMMON_SHARE * rows))


def common_keys(keys: Keys, rows: int) -> Keys:
    """Returns the keys, ascending, that more than 1 % of the rows and more than ``COMMON_ROWS`` rows have.

    Args:
        keys: ``(n,)`` the keys of the texts of all rows, with a key once for each of its rows.
        rows: Number of rows.
    """
    most = most_common(rows)
    ordered = np.sort(keys)
    return np.unique(ordered[most:][ordered[most:] == ordered[: max(0, len(ordered) - most)]])


def token_keys(tokenizer: Any, ids: Any, mask: Any, prompt_tokens: int = 0) -> Any:
    """Returns a 64-bit hash of the ids of each text, a tensor ``(B,)`` int64, independent of padding and prompt.

    Args:
        tokenizer: The tokenizer, whose first special token is not part of the text.
        ids: ``(B, T)`` tensor of token ids.
        mask: ``(B, T)`` attention mask, a tensor.
        prompt_tokens: Number of tokens before the text, including special tokens.
    """
    counted = (mask > 0) & (mask.cumsum(1) > prompt_tokens)
    for name in ("cls_token_id", "bos_token_id"):
        if (first := getattr(tokenizer, name, None)) is not None:
            counted &= ids != first
    # A polynomial modulo 2**64, evaluated at a fixed odd number; its coefficients are the token ids plus 1.
    powers = np.cumprod(np.full(ids.shape[1], MULTIPLIER, dtype=np.uint64)).view(np.int64)
    place = (counted.cumsum(1) - 1).clamp(min=0)
    return ((ids + 1) * ids.new_tensor(powers)[place] * counted).sum(1)
