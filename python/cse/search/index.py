"""An index of a corpus, stored in a folder and searched by meaning."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..data.corpus import Corpus
from ..errors import InputError, check_ids, check_integer, check_switch, check_texts, sentence, shortened
from .fusion import Fusion
from .rows import AGAIN, Changes, Progress, Rows, Wanted, check_settings, locked, opened, write_index
from .searching import Hit, Searcher
from .vectors import Vectors

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder


class SearchIndex:
    """Vectors, texts and ids of the rows of a corpus, in a folder; made by ``build``, opened by ``open``.

    The rows are memory-mapped. Blank rows are never found. While another process updates the index, an open index
    continues to return the rows that it had when it was opened. Several threads may search while one changes the rows.
    ``encoder`` is that of queries, and ``changes`` what ``build`` changed in an existing index, else None.
    """

    def __init__(self, rows: Rows, encoder: Encoder, verify: bool = True) -> None:
        self.encoder, self._verify = encoder, verify
        self._state = Searcher(rows, encoder, verify)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.changes: Changes | None = None

    @classmethod
    def build(
        cls,
        encoder: Encoder,
        texts: Iterable[str] | Corpus,
        folder: str | PathLike[str] | None = None,
        *,
        ids: Sequence[str] | None = None,
        passages: int | str | None = None,
        rebuild: bool = False,
        batch_size: int = 64,
        progress: Progress | None = None,
        verify: bool = True,
    ) -> SearchIndex:
        """Builds the index of a corpus, or updates an existing one.

        If the folder contains an index, of the same model and settings, only new texts are encoded, and rows that are
        not in the corpus are dropped. A second call completes an interrupted one, until which an index stays as it was.

        Args:
            encoder: The encoder.
            texts: The rows, as texts in memory or a ``Corpus``; a line break in a text becomes a space.
            folder: The folder; None: a temporary one, which is deleted together with the object.
            ids: One id per row; no two rows may have the same.
            passages: Cut rows into passages of at most this number of tokens (``"max"``: all that the model reads); a
                row gets the score of its best one. Default: as in the existing index; in a new one, rows are not cut.
            rebuild: Encode all rows again, and replace an existing index.
            batch_size: Texts per forward pass.
            progress: Called with the number of rows done since its last call; first, those already in the index.
            verify: Compare the rows of an existing index with their checksums.

        Raises:
            InputError: If the existing index was built with a different model or settings, shares no text with the
                corpus, or is damaged, or if texts, ids or settings are invalid.
        """
        rebuild, verify = bool(check_switch(rebuild, "rebuild")), bool(check_switch(verify, "verify"))
        corpus = texts if isinstance(texts, Corpus) else Corpus.from_texts(texts)
        filled = corpus.filled()
        listed = None if ids is None else _checked_ids(ids, len(corpus))
        temporary = tempfile.TemporaryDirectory(prefix="cse-search-") if folder is None else None
        path = Path(temporary.name if temporary else folder)  # type: ignore[arg-type]

        def wanted(before: Rows | None) -> Wanted:
            if before is not None and not np.isin(corpus.hashes()[filled], before.hashes).any():
                raise InputError(
                    f"{path}: contains other texts, and none of this corpus; {AGAIN}, or name another folder (-o)"
                )
            return corpus, listed

        how: dict[str, Any] = {"passages": passages, "rebuild": rebuild, "verify": verify}
        with locked(path):
            rows, changes = write_index(path, encoder, wanted, **how, batch_size=batch_size, progress=progress)
            index = cls(rows, encoder, verify)
        index._temporary, index.changes = temporary, changes
        return index

    @classmethod
    def open(
        cls,
        folder: str | PathLike[str],
        encoder: Encoder | None = None,
        *,
        device: str = "auto",
        verify: bool = True,
    ) -> SearchIndex:
        """Opens an index folder.

        Args:
            folder: The folder.
            encoder: The encoder with which the index was built; None: the model named in the index is loaded.
            device: Device of the encoder if ``encoder`` is None.
            verify: Compare the rows with their checksums. This reads the file once.

        Raises:
            InputError: If the folder contains no complete index, or one that is damaged or of another model.
        """
        path = Path(folder)
        rows = opened(path, verify)
        if encoder is None:
            from ..encoder.opening import open_encoder

            try:
                encoder = open_encoder(device=device, **rows.arguments)
            except (InputError, OSError) as error:
                raise InputError(f"{path}: {sentence(error)}; the index was built with this model") from None
        check_settings(path, rows.settings, encoder)
        return cls(rows, encoder, verify)

    def __len__(self) -> int:
        """Returns the number of rows, including blank ones."""
        return len(self._state.rows)

    @property
    def folder(self) -> Path:
        """The folder of the index."""
        return self._state.rows.path.parent

    @property
    def vectors(self) -> Vectors:
        """The vectors of all rows that are not blank, or of their passages; see ``rows``."""
        return self._state.rows.vectors

    @property
    def shape(self) -> tuple[int, int]:
        """Number of vectors and number of dimensions."""
        return len(self.vectors), self.vectors.width

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Row number of each vector, ``(vectors,)`` int64, ascending."""
        return self._state.rows.row_of

    @property
    def has_ids(self) -> bool:
        """Whether ids were given for the rows."""
        return bool(self._state.rows.settings["ids"])

    def texts(self, rows: Iterable[int]) -> list[str]:
        """Returns the texts of some rows."""
        return self._state.rows.texts(rows)

    def ids(self, rows: Iterable[int]) -> list[str]:
        """Returns the ids of some rows, or the row numbers if the index has no ids."""
        return self._state.rows.ids(rows)

    def add(self, texts: Iterable[str], *, ids: Sequence[str] | None = None, batch_size: int = 64) -> Changes:
        """Appends rows, with ids if the index has ids; if the call is interrupted, the index is not changed.

        Raises ``InputError`` for invalid texts or ids, or while another process writes to the index.
        """
        added, new = check_texts(texts), None if ids is None else check_ids(ids)
        return self._change(
            lambda rows: ([*rows.texts(), *added], None if new is None else [*rows.ids(), *new]), batch_size
        )

    def update(
        self,
        texts: Iterable[str],
        ids: Sequence[str] | None = None,
        *,
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> Changes:
        """Replaces all rows, with ids if the index has ids; only texts that it does not contain are encoded.

        For ``progress``, see ``build``. Raises ``InputError`` as ``add`` does.
        """
        wanted = check_texts(texts), None if ids is None else check_ids(ids)
        return self._change(lambda rows: wanted, batch_size, progress)

    def remove(self, ids: Iterable[str]) -> Changes:
        """Removes rows by their ids, or row numbers as text; the following rows get smaller numbers.

        Raises ``InputError`` if an id is not in the index, if no row would remain, or while another process writes to
        the index.
        """
        gone = set(_one_line(ids))

        def wanted(rows: Rows) -> tuple[list[str], list[str] | None]:
            names = rows.ids()
            for name in sorted(gone.difference(names)):
                raise InputError(f"ids: {name!r} is not in {self.folder}; give ids of its rows")
            kept = [row for row, name in enumerate(names) if name not in gone]
            return rows.texts(kept), [names[row] for row in kept] if rows.settings["ids"] else None

        return self._change(wanted)

    def _change(
        self,
        wanted: Callable[[Rows], tuple[list[str], list[str] | None]],
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> Changes:
        """Makes the index contain the texts and ids that ``wanted`` returns for its current rows."""

        def checked(before: Rows | None) -> Wanted:
            texts, ids = wanted(before or opened(self.folder))
            return Corpus.from_texts(texts), None if ids is None else _checked_ids(ids, len(texts))

        how: dict[str, Any] = {"verify": self._verify, "batch_size": batch_size, "progress": progress}
        with locked(self.folder):
            rows, changes = write_index(self.folder, self.encoder, checked, **how)
            self._state = Searcher(rows, self.encoder, self._verify)
        return changes  # type: ignore[return-value]

    def search(
        self,
        queries: Iterable[str],
        k: int = 10,
        *,
        hybrid: bool | Fusion = False,
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> list[list[Hit]]:
        """Finds the k best rows for each query; the vector search is exact.

        Args:
            queries: The queries; a blank query has no hits.
            k: Number of rows, at least 1.
            hybrid: Rank by the vectors and by BM25, with the settings of ``Fusion``, or True for the defaults. The BM25
                index of the texts is built when it is first needed, and stored in the folder.
            batch_size: Queries per forward pass.
            progress: Called with the number of queries encoded since its last call.

        Returns:
            For each query, at most k hits, best first; ties are in row order.

        Raises:
            InputError: For invalid queries or ``k``, or if bm25s is not installed.
        """
        state, listed = self._state, check_texts(queries, "queries")
        check_integer(k, "k")
        fusion = Fusion.of(hybrid)
        vectors = self.encoder.encode_query(listed, batch_size=batch_size, progress=progress)
        return state.search(listed, vectors, int(k), fusion)

    def prepare(self, hybrid: bool | Fusion, progress: Progress | None = None) -> None:
        """Builds the BM25 index that ``search`` needs with this argument ``hybrid``, if it is missing.

        ``progress`` is called with the number of rows read since its last call.
        """
        if (fusion := Fusion.of(hybrid)) is not None:
            self._state.bm25(fusion, progress)

    @property
    def notes(self) -> list[str]:
        """What ``search(hybrid=True)`` found out about the texts, in sentences: the language, and warnings."""
        terms = self._state.terms(Fusion())
        code = ", and look like code" if terms.tokenizer == "code" else ""
        language = "of no known language" if terms.language == "none" else f"in {terms.language.capitalize()}"
        return [f"the texts are {language}{code}; --language and --bm25-tokenizer change it", *self.warnings]

    @property
    def warnings(self) -> list[str]:
        """What the model does not read of the texts, in sentences."""
        return self._state.warnings


def _one_line(ids: Iterable[str]) -> list[str]:
    """Returns ids as they are stored: a line break becomes a space, as in the texts."""
    return [name.replace("\n", " ").encode("utf8", "replace").decode() for name in check_ids(ids)]


def _checked_ids(ids: Iterable[str], rows: int) -> list[str]:
    """Returns the ids of rows; raises ``InputError`` unless there is one for each, and no id occurs twice."""
    listed = _one_line(ids)
    if len(listed) != rows:
        raise InputError(f"ids: {len(listed):,} were given for {rows:,} rows; each row needs one")
    if blank := next((number for number, name in enumerate(listed, 1) if not name.strip()), 0):
        raise InputError(f"ids: row {blank:,} has no id; each row needs one")
    if len(set(listed)) < rows:
        ((twice, _),) = Counter(listed).most_common(1)
        raise InputError(f"ids: {shortened(repr(twice))} is the id of several rows; make the ids unique")
    return listed
