"""The pieces of a model's WordPiece tokenizer as the terms of an index (``--tokenizer wordpieces``).

The tokenizer runs in Python, with the library tokenizers. The Rust core receives *annotated* rows, which hold the text
and its pieces; ``rust/src/text/wordpieces.rs`` describes their format. Supported are the tokenizers of BERT: WordPiece
after ``BertNormalizer`` and ``BertPreTokenizer``, which separate ideographs and punctuation marks from their
neighbours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..io import parse_json, repaired, write_text

FILE = "tokenizer.json"
MARK = "\x1e"
PREFIX = "##"
KEPT = ("added_tokens", "model", "normalizer", "pre_tokenizer", "version")
"""Parts of a tokenizer.json that determine the pieces. Truncation, padding and special tokens at the ends do not."""


class Pieces:
    """Splits texts into the pieces of a WordPiece tokenizer, without special, unknown ([UNK]) and added tokens."""

    def __init__(self, definition: str, name: str) -> None:
        parsed = parse_json(definition, dict[str, Any], name)
        _check(parsed, name)
        kept = {key: parsed.get(key) for key in KEPT}
        self.definition = json.dumps(kept, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        """The parts of the tokenizer.json that determine the pieces, with sorted keys."""
        self.hash = hashlib.sha256(self.definition.encode()).hexdigest()[:32]
        """The first 32 hexadecimal digits of the SHA-256 of ``definition``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.definition, "the tokenizer")

    @classmethod
    def of(cls, tokenizer: Any, name: str) -> Pieces:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not hasattr(backend, "to_str"):
            raise InputError(f"--tokenizer wordpieces: the tokenizer of {name} has no fast version (tokenizer.json)")
        return cls(backend.to_str(), name)

    @classmethod
    def open(cls, folder: str | PathLike[str], expected: str) -> Pieces:
        path = Path(folder) / FILE
        with suppress(OSError, ValueError, AttributeError):
            pieces = cls(path.read_text(encoding="utf8"), str(path))
            if pieces.hash == expected:
                return pieces
        raise InputError(
            f"{path}: is not the tokenizer with which the index was built; build the index again with cse build-tfidf"
        )

    def save(self, folder: str | PathLike[str]) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_text(Path(folder) / FILE, self.definition)

    def check_same(self, other: Pieces, name: str, model: str) -> None:
        if self.hash != other.hash:
            raise InputError(
                f"{name}: the index has the pieces of another tokenizer than {model}; build an index with "
                f"cse build-tfidf CORPUS --tokenizer wordpieces --model {model}"
            )

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer  # not at the top: indexes with other terms do not need it

        return Tokenizer.from_str(self.definition)

    @cached_property
    def _left_out(self) -> frozenset[int]:
        added = {int(number) for number in self._tokenizer.get_added_tokens_decoder()}
        unknown = self._tokenizer.token_to_id(json.loads(self.definition)["model"].get("unk_token") or "")
        return frozenset(added if unknown is None else {*added, unknown})

    @cached_property
    def _names(self) -> dict[int, str]:
        return {number: piece for piece, number in self._tokenizer.get_vocab().items() if number not in self._left_out}

    def split(self, texts: Sequence[str]) -> list[list[tuple[int, int, str]]]:
        """Returns the pieces of each text as (start, end, piece), with character offsets, ``end`` exclusive."""
        left_out = self._left_out
        return [
            [
                (start, end, piece)
                for (start, end), piece, number in zip(encoding.offsets, encoding.tokens, encoding.ids, strict=True)
                if number not in left_out
            ]
            for encoding in self._tokenizer.encode_batch([*map(repaired, texts)], add_special_tokens=False)
        ]

    def terms(self, texts: Sequence[str]) -> list[list[str]]:
        names = self._names
        return [
            [names[number] for number in encoding.ids if number in names]
            for encoding in self._tokenizer.encode_batch_fast([*map(repaired, texts)], add_special_tokens=False)
        ]

    def rows(self, texts: Sequence[str]) -> list[str]:
        """Returns the texts with their pieces, as the Rust core reads them."""
        return [
            f"{text}{MARK}{' '.join([f'{start},{end},{piece}' for start, end, piece in pieces])}"
            for text, pieces in zip([*map(repaired, texts)], self.split(texts), strict=True)
        ]


def _check(definition: Any, name: str) -> None:
    model, before = definition.get("model") or {}, definition.get("pre_tokenizer") or {}
    normalizer = definition.get("normalizer") or {}
    parts = {part.get("type"): part for part in normalizer.get("normalizers", [normalizer])}
    bert = parts.get("BertNormalizer", {})
    if (
        (model.get("type"), model.get("continuing_subword_prefix")) != ("WordPiece", PREFIX)
        or before.get("type") != "BertPreTokenizer"
        or not (bert.get("clean_text") and bert.get("handle_chinese_chars"))
        or not parts.keys() <= {"BertNormalizer", "Lowercase"}
    ):
        raise InputError(
            f"--tokenizer wordpieces: the tokenizer of {name} ({model.get('type') or 'unknown'}) does not split text "
            "as BERT's does (WordPiece after BertNormalizer with clean_text and handle_chinese_chars, and "
            "BertPreTokenizer); use a model like BERT, or another --tokenizer"
        )
