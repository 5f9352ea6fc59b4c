"""Builds the search index of a corpus, and declares the options of the commands that use it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from ..data import readers, tables
from ..errors import InputError
from ..options import (
    Cache,
    Column,
    Device,
    EncodingErrors,
    Imports,
    MaxLineBytes,
    Opt,
    Precision,
    Prompt,
    Threads,
    options_of,
)
from ..progress import ProgressDisplay, counting
from ..search.fusion import Fusion
from . import options, printing

if TYPE_CHECKING:
    from ..data.corpus import Corpus
    from ..encoder.encoder import Encoder
    from ..search.index import SearchIndex


@dataclass(frozen=True)
class Encoding:
    """How a corpus is read and encoded."""

    batch_size: Annotated[int, Ge(1), Opt("Texts per forward pass.", "N")] = 64
    cache: Cache = None
    pooler: options.PoolerName = None
    prompt: Prompt = None
    dims: options.FirstDims = None
    device: Device = "auto"
    precision: Precision = "fp32"
    column: Column = None
    encoding_errors: EncodingErrors = "strict"
    max_line_bytes: MaxLineBytes = 1 << 20
    threads: Threads = 0
    imports: Imports = ()

    @property
    def reading(self) -> dict[str, Any]:
        """The values of the options for reading a corpus, by name."""
        return {name: getattr(self, name) for name in ("column", "encoding_errors", "max_line_bytes", "cache")}

    @property
    def arguments(self) -> dict[str, Any]:
        """The values of the options that are arguments of ``cse.Encoder``, by name."""
        return {name: getattr(self, name) for name in ("pooler", "prompt", "dims", "device", "precision")}

    def encoder(self, model: str) -> Encoder:
        """Loads the encoder, and prints the device on which it runs."""
        return load_encoder(model, threads=self.threads, **self.arguments)

    def index(
        self, encoder: Encoder, files: Sequence[str], folder: str | None, id_column: str | None = None, **settings: Any
    ) -> SearchIndex:
        """Builds or updates the search index of ``files``, and shows the progress; see ``SearchIndex.build``."""
        from ..search.index import SearchIndex

        readers.resolve(files, self.reading["column"])  # refuses a wrong column before ids are read
        ids = None if id_column is None else read_ids(files, id_column)
        corpus = open_corpus(files, **self.reading)
        with counting("encoding", len(corpus), "rows") as more:
            index = SearchIndex.build(
                encoder, corpus, folder, ids=ids, batch_size=self.batch_size, progress=more, **settings
            )
        if (made := index.changes) and (made.encoded or made.dropped):
            printing.say(f"{folder}: {made.kept:,} rows kept, {made.encoded:,} encoded, {made.dropped:,} dropped")
        return index


@dataclass(frozen=True)
class _Hybrid:
    hybrid: Annotated[bool, Opt("Rank by embeddings and by words (BM25).")] = False


@dataclass(frozen=True)
class Ranking(Fusion, _Hybrid):
    """How rows are ranked."""

    def __post_init__(self) -> None:
        """Does nothing: ``fusion`` checks the values."""

    @property
    def fusion(self) -> Fusion | None:
        """The argument ``hybrid`` of ``SearchIndex.search``; raises ``InputError`` if bm25s is not installed."""
        from ..search.bm25 import library

        if not self.hybrid:
            return None
        library()
        return Fusion(**{option.name: getattr(self, option.name) for option in options_of(Fusion)})


def open_corpus(files: Sequence[str], column: str | None, **reading: Any) -> Corpus:
    """Opens the corpus in the files, and shows the progress; ``reading`` is passed to ``Corpus.open``."""
    from ..data.corpus import Corpus

    inputs = readers.resolve(files, column)
    with closing(ProgressDisplay()) as phases:
        corpus = Corpus.open(inputs, progress=phases, **reading)
    if twice := readers.repeated(corpus.files):
        printing.say(twice)
    return corpus


def load_encoder(model: str, pooler: str | None, device: str, precision: str, threads: int, **further: Any) -> Encoder:
    """Sets the number of threads, loads the encoder, and prints the device on which it runs."""
    model = options.model_folder(model)
    from .. import _core
    from ..encoder.light import LightEncoder, is_light
    from ..encoder.opening import open_encoder

    if threads:
        _core.set_default_threads(threads)
        if not is_light(model):  # a light encoder does not import torch
            from ..encoder.device import set_threads

            set_threads(threads)
        from threadpoolctl import threadpool_limits  # installed with scikit-learn

        threadpool_limits(threads)  # for NumPy's matrix products
    encoder: Any = open_encoder(model, pooler=pooler, device=device, precision=precision, **further)
    if isinstance(encoder, LightEncoder):
        return encoder  # type: ignore[return-value]
    from ..encoder.device import describe_device

    if encoder.plain:
        printing.say(f"{model}: the folder does not declare a pooling; using --pooler {encoder.pooler}")
    printing.say(f"on {describe_device(str(encoder.device), encoder.precision, encoder.precision_reason)}")
    loaded: Encoder = encoder
    return loaded


def read_ids(files: Sequence[str], column: str) -> list[str]:
    """Returns the values of one column of all tables as text, in the order of the files and their rows."""
    from ..data.pairs import values_of

    paths = readers.expand(files)
    for path in paths:
        if not tables.is_table(path):
            raise InputError(f"--id {column}: {path} is not a table, and has no columns; omit --id")
    return list(values_of(paths, f"--id {column}", column))
