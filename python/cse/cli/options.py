"""What several commands share: options, and opening a corpus, an encoder and a search index."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from ..data import readers
from ..encoder.pooling import POOLERS
from ..errors import InputError
from ..options import (
    Cache,
    Column,
    Device,
    EncodingErrors,
    Imports,
    MaxLineBytes,
    Opt,
    Pooler,
    Precision,
    Prompt,
    Threads,
    options_of,
)
from ..progress import ProgressDisplay, counting
from ..search.fusion import Fusion
from . import printing

if TYPE_CHECKING:
    from ..data.corpus import Corpus
    from ..encoder.encoder import Encoder
    from ..search.index import SearchIndex


AsJson = Annotated[bool, Opt("Print one JSON object.", flag="--json")]
PoolerName = Annotated[Pooler | None, Opt(f"Pooling: {', '.join(POOLERS)}.", default="the model's, else avg")]
FirstDims = Annotated[int | None, Opt("Keep only the first N dimensions.", "N", "all")]
AsParts = Annotated[bool, Opt("Write one part per input file, to the folder -o.", flag="--parts")]
Engine = Annotated[Literal["local", "ray"], Opt("Run on this machine, or on a Ray cluster.")]
IdColumn = Annotated[str | None, Opt("Column with the row ids, if CORPUS is a table.", "NAME", flag="--id")]
Passages = Annotated[
    str | None, Opt("Rank rows by their best passage of at most N tokens; max: the model's maximum length.", "N|max")
]
IndexFolder = Annotated[
    str | None,
    Opt("Folder of a cse search index to use or create.", "DIR", "embeddings are not stored", flag="--index"),
]


@dataclass(frozen=True)
class Reading:
    """How the files of a corpus are read."""

    column: Column = None
    encoding_errors: EncodingErrors = "strict"
    max_line_bytes: MaxLineBytes = 1 << 20
    threads: Threads = 0

    @property
    def options(self) -> readers.ReadOptions:
        return readers.reading_options(self.encoding_errors, self.max_line_bytes, self.threads)


@dataclass(frozen=True)
class Encoding:
    """How a corpus is read and encoded."""

    batch_size: Annotated[int, Ge(1), Opt("Texts per forward pass.", "N")] = 64
    cache: Cache = None
    pooler: PoolerName = None
    prompt: Prompt = None
    dims: FirstDims = None
    device: Device = "auto"
    precision: Precision = "fp32"
    column: Column = None
    encoding_errors: EncodingErrors = "strict"
    max_line_bytes: MaxLineBytes = 1 << 20
    threads: Threads = 0
    imports: Imports = ()

    @property
    def reading(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("column", "encoding_errors", "max_line_bytes", "cache")}

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("pooler", "prompt", "dims", "device", "precision")}

    def encoder(self, model: str) -> Encoder:
        """Sets the number of threads, loads the encoder, and prints the device on which it runs."""
        model = model_folder(model)
        import cse._core as _core

        from ..encoder.light import LightEncoder, is_light
        from ..encoder.opening import open_encoder

        if self.threads:
            _core.set_default_threads(self.threads)
            if not is_light(model):  # a light encoder does not import torch
                from ..encoder.device import set_threads

                set_threads(self.threads)
            from threadpoolctl import threadpool_limits  # installed with scikit-learn

            threadpool_limits(self.threads)  # for NumPy's matrix products
        if not is_light(model):
            printing.loading()
        encoder: Any = open_encoder(model, **self.arguments)
        if not isinstance(encoder, LightEncoder):
            from ..encoder.device import describe_device

            if encoder.plain:
                printing.say(f"{model}: the folder does not declare a pooling; using --pooler {encoder.pooler}")
            printing.say(f"on {describe_device(str(encoder.device), encoder.precision, encoder.precision_reason)}")
        return encoder  # type: ignore[no-any-return]

    def index(
        self, encoder: Encoder, files: Sequence[str], folder: str | None, id_column: str | None = None, **settings: Any
    ) -> SearchIndex:
        from ..search.index import SearchIndex

        readers.resolve(files, self.reading["column"])  # refuses a wrong column before ids are read
        ids = None
        if id_column is not None:
            from ..data.pairs import values_of

            ids = list(values_of(readers.expand(files), f"--id {id_column}", id_column))
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
    def __post_init__(self) -> None:
        """Does nothing: ``fusion`` checks the values."""

    @property
    def fusion(self) -> Fusion | None:
        from ..search.bm25 import library

        if not self.hybrid:
            return None
        library()
        return Fusion(**{option.name: getattr(self, option.name) for option in options_of(Fusion)})


def open_corpus(files: Sequence[str], column: str | None, **reading: Any) -> Corpus:
    from ..data.corpus import Corpus

    inputs = readers.resolve(files, column)
    with closing(ProgressDisplay()) as phases:
        corpus = Corpus.open(inputs, progress=phases, **reading)
    if twice := readers.repeated(corpus.files):
        printing.say(twice)
    return corpus


def model_folder(name: str) -> str:
    """Returns a model name unchanged; for the folder of a run, prints and returns the path of its encoder, ``best``."""
    from ..encoder.layout import best_of_run
    from ..encoder.resolve import check_local

    if ":" not in name:  # KIND:WHAT, of cse.encoder.other
        check_local(name)
    folder = best_of_run(name)
    if folder != name:
        printing.echo(f"{name}: the folder of a run; using {folder}", err=True)
    return folder


def passage_size(text: str | None) -> int | str | None:
    if text is None or text == "max":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--passages must be a number of tokens or max, got {text!r}") from None


def wants_parts(as_parts: bool, engine: str, output: str | None, sentences: Sequence[str]) -> bool:
    if not as_parts and engine == "local":
        return False
    flag = "--parts" if as_parts else f"--engine {engine}"
    if output is None:
        raise InputError(f"{flag} writes a folder; name it with -o")
    if not sentences or "-" in sentences:
        raise InputError(f"{flag} makes one part per file, and standard input is not a file; name the files")
    return True
