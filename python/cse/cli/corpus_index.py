"""Builds the search index of a corpus, and declares the options of the commands that use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..data import readers
from ..errors import InputError
from . import options, printing
from .progress import PhaseDisplay, counting

if TYPE_CHECKING:
    from ..data.corpus import Corpus
    from ..models.running.inference import Encoder
    from ..search.index import SearchIndex

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Encoding:
    """The values of the options for encoding and reading a corpus."""

    pooler: str | None
    prompt: str | None
    dims: int | None
    device: str
    precision: str
    threads: int
    batch_size: int
    reading: dict[str, Any]
    """Values of ``column``, ``encoding_errors``, ``max_line_bytes`` and ``cache``, by name."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The values of the options that are arguments of ``cse.Encoder``, by name."""
        return {name: getattr(self, name) for name in ("pooler", "prompt", "dims", "device", "precision")}

    def encoder(self, model: str) -> Encoder:
        """Loads the encoder, and prints the device on which it runs."""
        return load_encoder(model, threads=self.threads, **self.arguments)

    def corpus(self, found: Sequence[str | readers.Column]) -> Corpus:
        """Opens the corpus of the inputs that ``cse.data.readers.resolve`` returned, and shows the progress."""
        from ..data.corpus import Corpus

        reading = {name: value for name, value in self.reading.items() if name != "column"}
        with closing(PhaseDisplay()) as phases:
            return Corpus.open(found, progress=phases, **reading)

    def index(
        self, encoder: Encoder, files: Sequence[str], folder: str | None, id_column: str | None = None, **settings: Any
    ) -> SearchIndex:
        """Builds or updates the search index of ``files``, and shows the progress; see ``SearchIndex.build``."""
        from ..search.index import SearchIndex

        found = readers.resolve(list(files), self.reading["column"])
        ids = None if id_column is None else read_ids(files, id_column)
        corpus = self.corpus(found)
        with counting("encoding", len(corpus), "rows") as more:
            index = SearchIndex.build(
                encoder, corpus, folder, ids=ids, batch_size=self.batch_size, progress=more, **settings
            )
        if (made := index.changes) and (made.encoded or made.dropped):
            printing.say(f"{folder}: {made.kept:,} rows kept, {made.encoded:,} encoded, {made.dropped:,} dropped")
        return index


def encoding(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds ``--json`` and the options for encoding and reading a corpus.

    The command receives ``as_json``, and the values of the other added options as ``encoding``, an ``Encoding``.
    """

    @wraps(command)
    def call(**values: Any) -> None:
        reading = {name: values.pop(name) for name in ("column", "encoding_errors", "max_line_bytes", "cache")}
        names = [each.name for each in fields(Encoding) if each.name != "reading"]
        command(encoding=Encoding(**{name: values.pop(name) for name in names}, reading=reading), **values)

    return options.all_of(
        options.option("--batch-size", default=64, type=click.IntRange(min=1)),
        options.option(
            "--cache",
            metavar="DIR",
            help="Cache folder for large inputs.",
            default_text="the user's cache; see cse cache",
        ),
        options.pooler,
        options.prompt,
        options.first_dims,
        options.device,
        options.precision("fp32"),
        options.reading,
        options.threads,
        options.imports,
        options.as_json,
    )(call)


RANKING = ("hybrid", "bm25_weight", "feedback", "kind", "stop_words", "bm25_tokenizer", "smooth")
RERANKING = ("rerank", "rerank_rows", "tokens")


def ranking(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options of ranking; the command receives their values, by name, as ``ranked``."""

    @wraps(command)
    def call(**values: Any) -> None:
        command(ranked={name: values.pop(name) for name in RANKING + RERANKING}, **values)

    return options.all_of(
        options.option("--hybrid", is_flag=True, help="Rank by embeddings and by words (BM25)."),
        options.option("--bm25-weight", type=float, metavar="W", help="Weight of BM25, 0 to 1.", default_text="0.2"),
        options.option(
            "--feedback",
            type=click.IntRange(min=0),
            metavar="N",
            help="Number of best rows towards which the query is moved.",
            default_text="5 with smoothed vectors, else 0",
        ),
        options.option(
            "--fusion",
            "kind",
            type=click.Choice(["scores", "rrf"]),
            help="Combine scores, or reciprocal ranks (without weight and feedback).",
            default_text="scores",
        ),
        options.option(
            "--stop-words",
            type=click.Choice(["english", "none"]),
            help="Words that BM25 leaves out.",
            default_text="english",
        ),
        options.option(
            "--bm25-tokenizer",
            type=click.Choice(["unicode", "wordpieces"]),
            help="Terms of BM25: words, or pieces of the model's WordPiece tokenizer, for text without spaces.",
            default_text="unicode",
        ),
        options.option(
            "--smooth/--no-smooth",
            default=None,
            help="Move each row's vector towards those of its neighbours; needs no new encoding.",
            default_text="as in an existing index, else with --hybrid up to 100,000 rows",
        ),
        options.option(
            "--rerank", type=click.Choice(["tokens"]), help="Rank the first rows again by the vectors of their tokens."
        ),
        options.option(
            "--rerank-rows", type=click.IntRange(min=1), metavar="N", help="Number of these rows.", default_text="100"
        ),
        options.option(
            "--tokens",
            type=click.IntRange(min=0),
            metavar="D",
            help="Store D-dimensional vectors of the tokens, for --rerank tokens.",
            default_text="as in an existing index, else 0",
        ),
    )(call)


def given_of(ranked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that were given for the options of ``ranking``, by name."""
    return {name: value for name, value in ranked.items() if value is not None and (name != "hybrid" or value)}


def search_arguments(ranked: Mapping[str, Any], top: int = 0) -> dict[str, Any]:
    """Returns the arguments ``hybrid``, ``smooth`` and ``rerank`` of ``SearchIndex.search``.

    Raises ``InputError`` if bm25s is not installed, or if an option is given that would have no effect.
    """
    from ..search.bm25 import library
    from ..search.hybrid import Fusion
    from ..search.tokens import RERANKED

    given = given_of({name: ranked.get(name) for name in RANKING})
    hybrid, smooth = given.pop("hybrid", False), given.pop("smooth", None)
    rerank, rows = ranked.get("rerank"), ranked.get("rerank_rows")
    if rerank is None and rows is not None:
        raise InputError("--rerank-rows: belongs to --rerank tokens; add it, or leave out the option")
    flags = {name: "--fusion" if name == "kind" else f"--{name.replace('_', '-')}" for name in given}
    if not hybrid and given:
        raise InputError(f"{next(iter(flags.values()))}: belongs to --hybrid; add it, or leave out the option")
    unused = [flags[name] for name in ("bm25_weight", "feedback") if name in given]
    if given.get("kind") == "rrf" and unused:
        raise InputError(f"{unused[0]}: has no effect with --fusion rrf; leave out one of them")
    if hybrid:
        library()
    again = 0 if rerank is None else max(rows or RERANKED, top)
    return {"hybrid": Fusion(**given) if hybrid else False, "smooth": smooth, "rerank": again}


def stored(command: F) -> F:
    """Decorator that adds ``--index``, which names a folder in which embeddings are stored for later commands."""
    text = "Folder of a cse search index to use or create."
    return options.option("--index", "folder", metavar="DIR", help=text, default_text="embeddings are not stored")(
        command
    )


def load_encoder(model: str, pooler: str | None, device: str, precision: str, threads: int, **further: Any) -> Encoder:
    """Sets the number of threads, loads the encoder, and prints the device on which it runs."""
    options.check_pooler(pooler)
    model = options.model_folder(model)
    from ..models.device import describe_device, set_threads
    from ..models.pooling import UNDECLARED
    from ..models.running.inference import Encoder

    set_threads(threads)
    if threads:
        with suppress(ImportError):  # threadpoolctl is installed with scikit-learn
            from threadpoolctl import threadpool_limits

            threadpool_limits(threads)  # for NumPy's matrix products
    encoder = Encoder(model, pooler=pooler, device=device, precision=precision, **further)
    if encoder.plain:
        printing.say(f"{model}: the folder does not declare a pooling; using --pooler {UNDECLARED}")
    printing.say(f"on {describe_device(encoder.device, encoder.precision, encoder.precision_reason)}")
    return encoder


def read_ids(files: Sequence[str], column: str) -> list[str]:
    """Returns the values of one column of all tables as text, in the order of the files and their rows.

    Raises ``InputError`` if a file is not a table, or does not have exactly one column of this name.
    """
    ids: list[str] = []
    for path in readers.expand(files):
        if not readers.is_table(path):
            raise InputError(f"--id {column}: {path} is not a table, and has no columns; leave out --id")
        names = readers.column_names(path)
        if names.count(column) != 1:
            listed = ", ".join(names[:20])
            raise InputError(
                f"--id {column}: {path} has {names.count(column)} columns of this name; its columns are: {listed}"
            )
        ids += readers.column_values(path, column)
    return ids


def by_row(index: SearchIndex) -> SearchIndex:
    """Returns the index unchanged; raises ``InputError`` if a row may have several vectors."""
    if index.has_passages:
        raise InputError(
            f"--index {index.folder}: was built with --passages; name another folder, or leave out --index"
        )
    return index
