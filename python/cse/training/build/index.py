"""The TF-IDF index of a run: a given one, ./tfidf if it was built from the files of the run, or one built for it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...context import Context
from ...data.corpus import Corpus
from ...errors import InputError
from ...tfidf.index import TfidfIndex
from .data import check_indexed

FOLDER = "tfidf"
"""The index that is used if no other is given, and the index in the folder of a run that was built for the run."""
MOST_ROWS = 5_000_000
"""Rows of which an index is built for a run; a million rows take about a second. More rows need cse build-tfidf."""


@dataclass
class RunIndex:
    """Opens or builds the index of a run, when a method first uses it.

    The index is, in this order: the given one; in a resumed run, the one in its folder; ./tfidf, if no corpus was
    given, or if it was built from exactly the files and columns of the run, with the tokenizer that the method needs;
    else one built from all rows of the run, which is saved in the folder of the run. An index of other files is used
    only if it is given.
    """

    given: str | None
    """Folder of the index, if the user named one."""
    run: Path | None
    """Folder of a resumed run."""
    named: bool
    """Whether the run has files, pairs or texts of its own; otherwise, it is trained on the files of the index."""
    filters: dict[str, Any]
    """The arguments ``min_df`` and ``max_terms`` of ``TfidfIndex.open``."""
    context: Context
    built: TfidfIndex | None = field(default=None, init=False)
    """The index that was built for the run, without filters."""
    facts: dict[str, str] = field(default_factory=dict, init=False)
    """A description of the index for the header of the run; empty if nothing needs to be said."""
    sha256: str | None = field(default=None, init=False)
    """Hash of the file of the index that is used; None if none is."""

    def open(self, tokenizer: str | None) -> TfidfIndex:
        """Returns the index; raises ``InputError`` if it cannot be opened, or if the corpus is too large to index."""
        corpus, stored = self.context.corpus, self.run / FOLDER if self.run else None
        if self.given is not None or not self.named:
            return self._opened(Path(self.given or FOLDER))
        if stored is not None and _exists(stored):
            return self._opened(stored)
        assert corpus is not None
        if _exists(Path(FOLDER)) and _is_of(Path(FOLDER), corpus, tokenizer):
            return self._opened(Path(FOLDER))
        return self._build(corpus, tokenizer)

    def _opened(self, folder: Path) -> TfidfIndex:
        index = TfidfIndex.open(folder, **self.filters)
        with open(folder / "index.safetensors", "rb") as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return index

    def check(self) -> None:
        """Raises ``InputError`` if the index has an older state of a corpus file; notes if it is of other files."""
        corpus = self.context.corpus
        if corpus is None or not self.context.index_is_used or self.built is not None:
            return
        index = self.context.index
        check_indexed(corpus, index)
        if index.files and not {file.xxh3 for file in corpus.files} <= {file.xxh3 for file in index.files}:
            names = ", ".join(file.path for file in index.files[:3])
            self.facts["index"] = f"{self.given} was built from other files than the run trains on ({names})"

    def _build(self, corpus: Corpus, tokenizer: str | None) -> TfidfIndex:
        if len(corpus) > MOST_ROWS:
            raise InputError(
                f"--tfidf: {len(corpus):,} rows are more than the {MOST_ROWS:,} of which an index is built for a run; "
                "build it with cse build-tfidf CORPUS"
            )
        words: Any = {} if tokenizer in (None, "wordpieces") else {"tokenizer": tokenizer}
        built = self.built = TfidfIndex.from_texts(corpus.take(range(len(corpus))), **words)
        data = built.to_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.facts["index"] = f"built for the run from {built.info.documents:,} rows, {built.info.terms:,} terms"
        return TfidfIndex.from_bytes(data, **self.filters) if any(self.filters.values()) else built

    def save(self, folder: Path) -> None:
        """Writes an index that was built for the run to the folder of the run."""
        if self.built is not None:
            self.built.save(folder / FOLDER)


def _exists(folder: Path) -> bool:
    return (folder / "index.safetensors").exists()


def _is_of(folder: Path, corpus: Corpus, tokenizer: str | None) -> bool:
    """Returns whether an index was built from exactly the files and columns of the corpus, with this tokenizer."""
    try:
        index = TfidfIndex.open(folder)
    except InputError:  # damaged, or of another version
        return False
    same = [(file.xxh3, file.column) for file in index.files] == [(file.xxh3, file.column) for file in corpus.files]
    return same and tokenizer in (None, index.tokenizer)
