"""Checks that a resumed run reads the files it began with: the corpus, the index, and others that it depends on."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

from ..data.corpus import Corpus
from ..data.pairs import LabelledPairs
from ..errors import InputError

__all__ = ["check_same", "fingerprints"]


def fingerprints(rows: Corpus | LabelledPairs, tfidf: str | None, others: dict[str, str]) -> dict[str, Any]:
    """Returns the hash, row count and column of each corpus file, and the hashes of the index and of other files.

    Args:
        rows: The corpus or the labelled pairs.
        tfidf: Folder of the index; None if the run does not use one.
        others: Hashes of the other files that the run depends on, by path; see ``Context.depends_on``.
    """
    corpora = [rows] if isinstance(rows, Corpus) else rows.corpora
    files = [[file.xxh3, file.rows, file.column] for corpus in corpora for file in corpus.files]
    found: dict[str, Any] = {"corpus": files, "index": None, **({"files": others} if others else {})}
    with contextlib.suppress(OSError):
        if tfidf is not None:
            with open(Path(tfidf) / "index.safetensors", "rb") as file:
                found["index"] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def check_same(before: dict[str, Any], now: dict[str, Any], where: str) -> None:
    """Raises ``InputError`` if the fingerprints of a resumed run differ from those stored when it began."""
    old, new = before.get("files", {}), now.get("files", {})
    changed = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    if changed:
        raise InputError(f"{where}: {changed[0]} has changed since the run began; restore it, or start a new run")
    if before != now:
        raise InputError(
            f"{where}: the corpus or the index differs from the one the run began with; restore the files, or start a "
            "new run"
        )
