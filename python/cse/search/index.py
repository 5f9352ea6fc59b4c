"""An index of a corpus, stored in a folder and searched by meaning."""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..data.corpus import Corpus
from ..errors import InputError, check_ids, check_integer, check_list, check_switch, check_texts, shortened
from .bm25 import Bm25
from .build import Changes, Rows, check_settings, new_settings, write
from .fusion import Fusion
from .hybrid import Smoothing
from .joined_parts import PartsStore, read_parts
from .searching import Hit, Searcher, check_smoothing
from .store import ENCODED, MANIFEST, Store, locked, read_checked, read_encoded
from .vectors import Vectors

if TYPE_CHECKING:
    from ..models.cross_encoder import Reranker
    from ..models.running.inference import Encoder

Progress = Callable[[int], None]


class SearchIndex:
    """Vectors, texts and ids of the rows of a corpus, in a folder; made by ``build``, opened by ``open``.

    All files are memory-mapped. Blank rows are never found. While another process updates the index, an open index
    continues to return the rows that it had when it was opened. Several threads may search while one changes the rows:
    each call of ``search`` answers from one state of the index.

    Attributes:
        changes: What ``build`` changed in an existing index; None for an index that was opened or is new.
    """

    def __init__(self, store: Store | PartsStore, encoder: Encoder) -> None:
        self._encoder = encoder
        self._state = Searcher(store, encoder)
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
        int8: bool | None = None,
        passages: int | str | None = None,
        smooth: bool | None = None,
        tokens: int | None = None,
        rebuild: bool = False,
        batch_size: int = 64,
        progress: Progress | None = None,
        verify: bool = True,
    ) -> SearchIndex:
        """Builds the index of a corpus, or updates an existing one.

        If the folder already contains an index, it must have been built with the same model and settings. Only texts
        that it does not contain are encoded; rows that are not in the corpus are dropped. To complete an interrupted
        build or update, call ``build`` again; until then, an existing index remains as it was.

        Args:
            encoder: The encoder.
            texts: The rows, as texts in memory or a ``Corpus``; a line break in a text becomes a space.
            folder: The folder; None: a temporary one, which is deleted together with the object.
            ids: One id per row.
            int8: Store vectors in int8 with a scale per row, which takes a quarter of the space and changes scores by
                about 0.001. Default: as in the existing index; False for a new one.
            passages: Cut rows into passages of at most this number of tokens; a row gets the score of its best passage.
                ``"max"``: the maximum number of tokens that the model reads. Default: as in the existing index; in
                a new one, rows are not cut, and the model reads only the beginning of a long row.
            smooth: Whether ``search`` uses the smoothed vectors unless it is told otherwise. This can be changed in an
                existing index. Default: as in the existing index; for a new one, see ``search``.
            tokens: Store the vectors of the tokens of each row, with this number of dimensions, for the argument
                ``rerank`` of ``search``; see ``cse.search.tokens``. Each row is then encoded twice. 0: they are not
                stored. Default: as in the existing index; 0 for a new one.
            rebuild: Encode all rows again, and replace an existing index.
            batch_size: Texts per forward pass.
            progress: Called with the number of rows done since its last call; the first call counts the rows that the
                index already contains.
            verify: Compare the files of an existing index with their hashes.

        Raises:
            InputError: If the existing index was built with a different model or settings, shares no text with the
                corpus, or is damaged, or if texts, ids or settings are invalid.
            OSError: If a file cannot be written.
        """
        int8, smooth = check_switch(int8, "int8"), check_switch(smooth, "smooth")
        rebuild, verify = bool(check_switch(rebuild, "rebuild")), bool(check_switch(verify, "verify"))
        corpus = texts if isinstance(texts, Corpus) else Corpus.from_texts(texts)
        filled = corpus.filled()
        wanted = _rows(corpus, ids)
        temporary = None if folder is not None else tempfile.TemporaryDirectory(prefix="cse-search-")
        path = Path(folder if folder is not None else temporary.name)  # type: ignore[union-attr]
        with locked(path):
            before, settings, encoded = None, None, [] if rebuild else read_encoded(path)
            if (path / MANIFEST).exists() and not rebuild:
                before = Store.open(path, verify)
                settings = before.manifest
            elif encoded:
                settings = encoded[0][1]["settings"]
            chosen = {"int8": int8, "has_ids": ids is not None, "passages": passages, "tokens": tokens}
            if settings is None:
                settings = new_settings(encoder, **chosen)  # type: ignore[arg-type]
            else:
                check_settings(path, settings, encoder, **chosen)
            if before is not None and not np.isin(wanted.hashes[filled], before.hashes()).any():
                raise InputError(
                    f"{path}: contains other texts, and none of this corpus; build it again with --rebuild, or name "
                    "another folder"
                )
            settings = {**settings, "smooth": settings.get("smooth") if smooth is None else smooth}
            if settings["smooth"]:
                check_smoothing(settings)
            store, changes = write(
                path, settings, encoder, wanted, before, batch_size=batch_size, progress=progress, verify=verify
            )
        index = cls(store, encoder)
        index._temporary, index.changes = temporary, changes if before is not None or encoded else None
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
        """Opens an index folder, or a folder of parts written by ``cse encode --parts``.

        Args:
            folder: The folder.
            encoder: The encoder with which the index was built; None: the model named in the index is loaded.
            device: Device of the encoder if ``encoder`` is None.
            verify: Compare all files with their hashes. This reads every file once.

        Raises:
            InputError: If the folder contains no complete index or a damaged one, or if the index was built with
                another model.
        """
        store = PartsStore.open(Path(folder), verify) or Store.open(Path(folder), verify)
        if encoder is None:
            from ..models.opening import open_encoder

            encoder = open_encoder(device=device, **encoder_settings(store.manifest))
        if isinstance(store, PartsStore):
            store.check_model(encoder)
        else:
            check_settings(store.folder, store.manifest, encoder)
        return cls(store, encoder)

    def __len__(self) -> int:
        """Returns the number of rows, including blank ones."""
        return self._state.store.rows

    @property
    def folder(self) -> Path:
        """The folder of the index."""
        return self._state.store.folder

    @property
    def encoder(self) -> Encoder:
        """The encoder of queries."""
        return self._encoder

    @property
    def vectors(self) -> Vectors:
        """The vectors of all rows that are not blank, or of their passages; see ``rows``."""
        return self._state.vectors

    @property
    def unit_vectors(self) -> Vectors:
        """``vectors`` scaled to unit length, for cosines; int8 vectors and those for dot products have other norms."""
        return self._state.unit_vectors

    @property
    def shape(self) -> tuple[int, int]:
        """Number of vectors and number of dimensions."""
        return len(self.vectors), self.vectors.width

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Row number of each vector, ``(vectors,)`` int64, ascending."""
        return self._state.row_of

    @property
    def has_ids(self) -> bool:
        """Whether ids were given for the rows."""
        return bool(self._state.store.manifest["ids"])

    @property
    def has_passages(self) -> bool:
        """Whether a row may have several vectors."""
        return self._state.store.manifest["passages"] is not None

    def texts(self, rows: Iterable[int]) -> list[str]:
        """Returns the texts of some rows."""
        return self._state.store.texts(_numbers(rows))

    def ids(self, rows: Iterable[int]) -> list[str]:
        """Returns the ids of some rows, or the row numbers if the index has no ids."""
        return self._state.store.ids(_numbers(rows))

    def add(self, texts: Iterable[str], *, ids: Sequence[str] | None = None, batch_size: int = 64) -> Changes:
        """Appends rows to the index; if the call is interrupted, the index is not changed.

        Args:
            texts: The rows.
            ids: Ids of the new rows, if the index has ids.
            batch_size: Texts per forward pass.

        Raises:
            InputError: For invalid texts or ids, or while another process writes to the index.
            OSError: If a file cannot be written.
        """

        added = self._given(texts, ids)

        def wanted(store: Store) -> Rows:
            old, count = _stored(store, None), store.rows

            def texts(rows: list[int]) -> list[str]:
                later = bisect_left(rows, count)
                return old.texts(rows[:later]) + added.texts([row - count for row in rows[later:]])

            ids = None if old.ids is None else _unique([*old.ids.chunks, *added.ids.chunks])
            return Rows(np.concatenate([old.hashes, added.hashes]), texts, ids)

        return self._write(wanted, batch_size)

    def update(
        self,
        texts: Iterable[str],
        ids: Sequence[str] | None = None,
        *,
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> Changes:
        """Replaces all rows; only texts that the index does not contain are encoded.

        Args:
            texts: All rows that the index is to contain, in order.
            ids: Their ids, if the index has ids.
            batch_size: Texts per forward pass.
            progress: See ``build``.

        Raises:
            InputError: For invalid texts or ids, or while another process writes to the index.
            OSError: If a file cannot be written.
        """
        rows = self._given(texts, ids)
        return self._write(lambda store: rows, batch_size, progress)

    def remove(self, ids: Iterable[str]) -> Changes:
        """Removes rows from the index; the following rows get smaller numbers. Nothing is encoded.

        Args:
            ids: Ids of the rows; their row numbers as text if the index has no ids.

        Raises:
            InputError: If an id is not in the index, if no row would remain, or while another process writes to the
                index.
            OSError: If a file cannot be written.
        """
        gone = set(_one_line(ids))

        def wanted(store: Store) -> Rows:
            names = store.column("id").to_pylist() if store.manifest["ids"] else [*map(str, range(store.rows))]
            removed = [row for row, name in enumerate(names) if name in gone]
            for name in sorted(gone.difference(names[row] for row in removed)):
                raise InputError(f"ids: {name!r} is not in {self.folder}; give ids of its rows")
            if len(removed) == store.rows:
                raise InputError(f"ids: name all rows of {self.folder}, and at least one must remain")
            return _stored(store, np.delete(np.arange(store.rows), removed))

        return self._write(wanted, 1)

    def _given(self, texts: Iterable[str], ids: Sequence[str] | None) -> Rows:
        if isinstance(self._state.store, PartsStore):
            raise InputError(
                f"{self.folder}: holds parts written by cse encode; encode further files into it with --parts"
            )
        corpus = Corpus.from_texts(texts)
        if (ids is not None) != bool(self._state.store.manifest["ids"]):
            what = "ids; give ids for these rows as well" if ids is None else "no ids; leave them out"
            raise InputError(f"ids: the rows of {self.folder} have {what}")
        return _rows(corpus, ids)

    def _write(self, wanted: Callable[[Store], Rows], batch_size: int, progress: Progress | None = None) -> Changes:
        """Makes the index contain the rows that ``wanted`` returns for its current state."""
        former = self._state.store
        if isinstance(former, PartsStore):
            raise InputError(f"{self.folder}: holds parts written by cse encode; make them again with --parts")
        with locked(self.folder):
            store = Store.open(self.folder, former.verify, opened=former.files)
            arguments: dict[str, Any] = {"batch_size": batch_size, "progress": progress, "verify": former.verify}
            store, changes = write(self.folder, store.manifest, self._encoder, wanted(store), store, **arguments)
        self._state = Searcher(store, self._encoder)
        return changes

    def search(
        self,
        queries: Iterable[str],
        k: int = 10,
        *,
        hybrid: bool | Fusion = False,
        smooth: bool | None = None,
        rerank: int = 0,
        reranker: Reranker | None = None,
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> list[list[Hit]]:
        """Finds the k best rows for each query; the vector search is exact.

        Args:
            queries: The queries; a blank query has no hits.
            k: Number of rows, at least 1.
            hybrid: Combine the scores of the vectors and of BM25, with the settings of ``Fusion``; True: the default
                settings. The BM25 index of the texts is built when it is first needed, and stored in the folder.
            smooth: Search the smoothed vectors; ``cse.search.hybrid`` has their definition. Default: as the index
                was built; if that was not specified, they are used if scores are combined and the index has at most
                100,000 rows, one vector per row, and a model that uses cosines. The neighbours are computed when first
                needed; see ``smoothing``.
            rerank: Number of first rows, at least ``k``, that are ranked again; 0: none.
            reranker: A cross-encoder (``cse.models.cross_encoder.Reranker``) whose scores rank these rows. None: the
                vectors of their tokens rank them, as ``cse.search.tokens`` defines; unless the index stores these
                vectors, the rows are encoded for each query.
            batch_size: Queries per forward pass.
            progress: Called with the number of queries encoded since its last call.

        Returns:
            For each query, at most k hits, best first; ties are in row order.

        Raises:
            InputError: For invalid queries or ``k``, if bm25s is not installed, or if the vectors cannot be smoothed.
        """
        state, listed = self._state, check_texts(queries, "queries")
        check_integer(k, "k")
        smooth = check_switch(smooth, "smooth")
        if check_integer(rerank, "rerank", 0) and rerank < k:
            raise InputError(f"rerank: must be 0 or at least k = {k}, got {rerank!r}")
        fusion = Fusion.of(hybrid)
        vectors = self._encoder.encode_query(listed, batch_size=batch_size, progress=progress)
        return state.search(listed, vectors, int(k), fusion, smooth, int(rerank), batch_size, reranker)

    def search_vectors(self, vectors: npt.NDArray[np.floating], k: int = 10) -> list[list[Hit]]:
        """Finds the k best rows for each of Q query vectors ``(Q, D)``, like ``search`` for query texts.

        Raises:
            InputError: If the vectors do not have the width of the index or are not finite, or if ``k`` is invalid.
        """
        check_integer(k, "k")
        array = np.asarray(vectors)
        if array.ndim != 2 or array.shape[1] != self.shape[1] or array.dtype.kind != "f":
            raise InputError(
                f"vectors: must be an array of floats of shape (queries, {self.shape[1]}), like those of the index "
                f"{self.folder}, got shape {array.shape} and type {array.dtype}"
            )
        if not np.isfinite(array).all():
            raise InputError("vectors: contain NaN or infinity; all values must be finite")
        return self._state.search(["query"] * len(array), array, int(k))

    def bm25(
        self,
        progress: Progress | None = None,
        *,
        stop_words: str = "none",
        tokenizer: str = "unicode",
        language: str = "none",
    ) -> Bm25:
        """Returns the BM25 index of the texts.

        The index is built and stored in the folder if it is missing or if the rows have changed since it was built.

        Args:
            progress: Called with the number of rows read since its last call.
            stop_words: Language whose stop words are left out, or ``none``.
            tokenizer: ``unicode``, ``code`` or ``wordpieces``; see ``Fusion``.
            language: Language whose words are stemmed, or ``none``.

        Raises:
            InputError: If bm25s or PyStemmer is not installed, if the stored index is damaged, or if the model's
                tokenizer is not a WordPiece.
        """
        return self._state.bm25(self._state.terms_of(language, stop_words, tokenizer), progress)

    def prepare(
        self,
        fusion: bool | Fusion | None,
        smooth: bool | None = None,
        bm25: Progress | None = None,
        neighbours: Progress | None = None,
    ) -> None:
        """Builds what ``search`` needs beside the vectors, if it is missing: BM25, and the neighbours of the rows.

        Args:
            fusion: As ``hybrid`` of ``search``.
            smooth: As in ``search``.
            bm25: Called with the number of rows read for BM25.
            neighbours: Called with the number of rows whose neighbours are known.
        """
        fusion = Fusion.of(fusion)
        smooth = self.smooths(fusion) if smooth is None else smooth
        terms = self._state.terms(fusion or Fusion()) if fusion or smooth else None
        if fusion is not None and terms is not None:
            self._state.bm25(terms, bm25)
        if smooth and terms is not None:
            self._state.smoothing(terms, neighbours)

    @property
    def notes(self) -> list[str]:
        """What ``search(hybrid=True)`` found out about the texts, in sentences: the language, and warnings."""
        terms = self._state.terms(Fusion())
        code = ", and look like code" if terms.tokenizer == "code" else ""
        language = "of no known language" if terms.language == "none" else f"in {terms.language.capitalize()}"
        return [f"the texts are {language}{code}; --language and --bm25-tokenizer change it", *self._state.warnings]

    @property
    def warnings(self) -> list[str]:
        """What the model does not read of the texts, in sentences; see ``Searcher.warnings``.

        None for parts of ``cse encode --parts``, because all files of the corpus would have to be opened.
        """
        return [] if isinstance(self._state.store, PartsStore) else self._state.warnings

    def token_idf(self, progress: Progress | None = None) -> npt.NDArray[np.float64]:
        """Returns the inverse document frequency of each token of the encoder, ``(vocabulary,)`` float64.

        The tokens are counted, and the counts stored in the folder, if they are missing or if the rows have changed.
        Raises ``InputError`` if the encoder has no transformer, or if the stored counts are damaged.
        """
        return self._state.token_idf(progress)

    def smooths(self, hybrid: bool | Fusion | None = None) -> bool:
        """Returns whether ``search`` uses the smoothed vectors by default."""
        return self._state.smooths(Fusion.of(hybrid))

    def smoothing(self, progress: Progress | None = None, fusion: Fusion | None = None) -> Smoothing:
        """Returns the neighbours of the rows, by which their vectors are smoothed.

        They are computed and stored in the folder if they are missing or if the rows have changed since, in time
        quadratic in the number of rows. ``fusion`` says which terms BM25 uses. Raises ``InputError`` if rows are cut
        into passages, the model compares by dot products, or bm25s is not installed, or if the stored neighbours are
        damaged.
        """
        return self._state.smoothing(self._state.terms(Fusion.of(fusion) or Fusion()), progress)


def _numbers(rows: Iterable[int]) -> list[int]:
    return [check_integer(row, "rows", 0) for row in check_list(rows, "rows", "row numbers")]


def _rows(corpus: Corpus, ids: Sequence[str] | None) -> Rows:
    """Returns the rows of a corpus, with their ids if the index has ids."""
    import pyarrow as pa

    column = None
    if ids is not None:
        listed = _one_line(ids)
        if len(listed) != len(corpus):
            raise InputError(f"ids: {len(listed):,} were given for {len(corpus):,} rows; each row needs one")
        column = _unique([pa.array(listed, pa.large_string())])
    return Rows(corpus.hashes(), corpus.take, column)


def _unique(chunks: list[Any]) -> Any:
    """Returns a chunked array of ids; raises ``InputError`` if one occurs twice, as ``remove`` could not tell them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = pa.chunked_array(chunks, pa.large_string())
    if pc.count_distinct(ids).as_py() < len(ids):
        twice = next(each["values"] for each in pc.value_counts(ids).to_pylist() if each["counts"] > 1)
        raise InputError(f"ids: {shortened(repr(twice))} is the id of several rows; make the ids unique")
    return ids


def _one_line(ids: Iterable[str]) -> list[str]:
    """Returns ids in the form in which they are stored: a line break becomes a space, as in the texts."""
    return [name.replace("\n", " ").encode("utf8", "replace").decode() for name in check_ids(ids)]


def _stored(store: Store, rows: npt.NDArray[np.int64] | None) -> Rows:
    """Returns some rows of an index; None: all."""
    import pyarrow as pa

    ids = store.column("id") if store.manifest["ids"] else None
    if rows is None:
        return Rows(store.hashes(), store.texts, ids)
    return Rows(
        store.hashes()[rows],
        lambda numbers: store.texts(rows[numbers].tolist()),
        None if ids is None else ids.take(pa.array(rows)),
    )


def built_with(folder: str | PathLike[str]) -> dict[str, Any] | None:
    """Returns the arguments of the encoder of an index, or of a folder of parts; None for other folders.

    Raises ``InputError`` if the manifest is damaged, or was written by another version.
    """
    path = Path(folder)
    if (parts := read_parts(path)) is not None:
        return encoder_settings({**parts["settings"], "parts": True})
    if not any(path.glob("*.arrow")) and not any((path / name).exists() for name in (ENCODED, ".lock")):
        return None
    encoded = read_encoded(path)
    known = read_checked(path) or (encoded[0][1]["settings"] if encoded else None)
    return None if known is None else encoder_settings(known)


def encoder_settings(manifest: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the encoder with which an index was built."""
    settings = {name: manifest[name] for name in ("model", "pooler", "prompt", "dims")}
    if manifest.get("parts"):  # of parts, the manifest has the text of the prompt, which may be empty
        settings["prompt"] = settings["prompt"] or None
    return settings
