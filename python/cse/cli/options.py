"""Options that several commands share, and a command class that groups options in its help text.

This module does not import the code that encodes texts or makes parts, so that ``--help`` is fast.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import click
from annotated_types import Ge

from .. import options as declared
from ..errors import InputError, unknown
from ..models.pooling import POOLERS
from ..options import Opt
from . import printing

F = TypeVar("F", bound=Callable[..., Any])
POOLER_NAMES = f"Pooling: {', '.join(POOLERS)}."


class GroupedCommand(click.Command):
    """A command whose help lists its options under headings; see ``group``."""

    headings: Sequence[str] = ()
    """Headings to list first, in this order."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one section per heading: first those in ``headings``, then the others in the order of declaration."""
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in self.headings}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "heading", None) or "Help", []).append(record)
        for heading, records in sections.items():
            if not records:
                continue
            with formatter.section(heading):
                formatter.write_dl(records)


def group(heading: str) -> Callable[[F], F]:
    """Decorator that places the options declared below it, up to the next ``group``, under a heading."""

    def decorate(function: F) -> F:
        # Decorators are applied from the bottom up, so the parameters without a heading are those declared below.
        for parameter in getattr(function, "__click_params__", []):
            if getattr(parameter, "heading", None) is None:
                parameter.heading = heading
        return function

    return decorate


def option(*names: str, default_text: str | None = None, **settings: Any) -> Callable[[F], F]:
    """Returns a ``click.option`` that shows its default in the help; ``default_text`` is shown instead of the value."""
    if default_text:
        settings["help"] += f"  [default: {default_text}]"
    settings.setdefault("show_default", not default_text)
    return click.option(*names, **settings)


def was_given(ctx: click.Context, name: str) -> bool:
    """Returns whether the user specified this parameter."""
    return ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def all_of(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Returns a decorator that applies several decorators, the last one first."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


threads = option("--threads", default=0, type=click.IntRange(0, 1024), metavar="N", help="CPU threads; 0: all cores.")

reading = all_of(
    option("--column", metavar="NAME", help="Column with the sentences, for .csv, .tsv, .jsonl and .parquet files."),
    option("--encoding-errors", default="strict", metavar="strict|replace", help="How to handle invalid UTF-8."),
    option(
        "--max-line-bytes",
        default=1 << 20,
        type=click.IntRange(1, 2**40),
        metavar="N",
        help="Maximum length of a row in bytes.",
    ),
)

words = all_of(
    option(
        "--tokenizer",
        default="unicode",
        metavar="unicode|whitespace|treebank|wordpieces",
        help="How text is split into terms.",
    ),
    option("--lowercase/--no-lowercase", default=True, help="Lower-case the terms."),
    option("--nfkc/--no-nfkc", default=False, help="Unify compatibility forms (Unicode NFKC)."),
)

drawing = all_of(
    option("--tfidf", default="tfidf", metavar="DIR", help="Folder of the TF-IDF index."),
    option(
        "--min-df",
        default=0,
        type=click.IntRange(0, 2**40),
        metavar="N",
        help="Sample replacements only from terms that occur in at least N sentences.",
    ),
    option(
        "--max-terms",
        type=click.IntRange(1, 2**32),
        metavar="N",
        help="Sample replacements only from the N most frequent terms.",
    ),
    option(
        "--beta",
        default=0.5,
        help="Mean replacement probability over the words of a sentence, 0 to 1, before probabilities are clipped at "
        "1. Even with 0, at least one word is replaced; even with 1, not all words are.",
    ),
    option(
        "--radius",
        metavar="N|P%",
        help="Largest difference in TF-IDF rank between a word and its replacement: N, or P% of the V terms indexed.",
        default_text="min(4000, V/100), at least 1",
    ),
    option(
        "--replace-which",
        default="tfidf",
        metavar="tfidf|random",
        help="How the words to replace are selected: by TF-IDF or at random.",
    ),
    option(
        "--replace-with",
        default="radius",
        metavar="radius|random",
        help="Where replacements are sampled from: nearby ranks or all terms.",
    ),
    option(
        "--surface",
        metavar="keep|plain",
        help="Keep the original text between terms, or join terms with spaces.",
        default_text="keep; plain for a treebank index",
    ),
)

seed = option("--seed", default=0, type=click.IntRange(0, 2**64 - 1), metavar="N", help="Seed of all random choices.")
device = option("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda, cuda:1, mps, xpu, ...")
pooler = option("--pooler", metavar="NAME", help=POOLER_NAMES, default_text="the model's, else avg")


def _import(ctx: click.Context, parameter: click.Parameter, files: tuple[str, ...]) -> None:
    from ..registry import import_methods

    for file in files:
        import_methods(file)


imports = option(
    "--import",
    multiple=True,
    metavar="FILE.py",
    expose_value=False,
    callback=_import,
    is_eager=True,
    help="Python file that registers methods.",
)
as_json = option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def precision(default: str) -> Callable[[F], F]:
    """Returns a decorator that adds ``--precision`` with the given default."""
    return option(
        "--precision",
        default=default,
        type=click.Choice(("fp32", "bf16", "auto")),
        metavar="fp32|bf16|auto",
        help="Precision of the transformer; auto: bf16 on CUDA and on CPUs that are faster in bf16, else fp32.",
    )


def check_pooler(pooler: str | None) -> None:
    """Raises ``InputError`` for an unknown pooler."""
    if pooler is not None and pooler not in POOLERS:
        raise unknown("--pooler", pooler, POOLERS)


def model_folder(name: str) -> str:
    """Returns a model name unchanged; for the folder of a run, prints and returns the path of its encoder, ``best``."""
    from ..models.reading.resolve import best_of_run

    found = best_of_run(name)
    if found != name:
        printing.echo(f"{name}: the folder of a run; using {found}", err=True)
    return found


prompt = option(
    "--prompt",
    metavar="NAME|TEXT",
    help="Text to put before each sentence, or the name of one of the model's prompts.",
    default_text="the model's default prompt",
)

first_dims = option("--dims", type=int, metavar="N", help="Keep only the first N dimensions.", default_text="all")


def passage_size(text: str | None) -> int | str | None:
    """Returns the value of --passages: a number, ``max`` or None; raises ``InputError`` for any other value."""
    if text is None or text == "max":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--passages: must be a number of tokens or max, got {text!r}") from None


def evaluated_passages(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds ``--passages``, which sets the option ``passages`` of the suite ``retrieval``."""

    @functools.wraps(command)
    def call(*, passages: str | None, suites: tuple[str, ...], settings: tuple[str, ...], **values: Any) -> None:
        size = passage_size(passages)
        if size is not None:
            if "retrieval" not in suites:
                raise InputError("--passages: applies only to --suite retrieval; add it, or leave out --passages")
            settings = (*settings, f"retrieval.passages={0 if size == 'max' else size}")
        command(suites=suites, settings=settings, **values)

    return option(
        "--passages",
        metavar="N|max",
        help="Rank documents by their best passage of at most N tokens; max: the model's maximum length.",
    )(call)


parts = option("--parts", "as_parts", is_flag=True, help="Write one part per input file, to the folder -o.")
engine = option("--engine", default="local", metavar="local|ray", help="Run on this machine, or on a Ray cluster.")
gpus_per_worker = option(
    "--gpus-per-worker", type=click.FloatRange(min=0), metavar="G", help="GPUs per Ray worker.", default_text="0"
)


def check_engine(name: str) -> None:
    """Raises ``InputError`` for an unknown engine."""
    if name not in ("local", "ray"):
        raise InputError(f"--engine: {name!r} is unknown; choose local or ray")


def wants_parts(as_parts: bool, engine: str, output: str | None, sentences: Sequence[str]) -> bool:
    """Returns whether a command makes parts; raises ``InputError`` for options that cannot be combined."""
    check_engine(engine)
    if not as_parts and engine == "local":
        return False
    flag = "--parts" if as_parts else f"--engine {engine}"
    if output is None:
        raise InputError(f"{flag}: writes a folder; name it with -o")
    if not sentences or "-" in sentences:
        raise InputError(f"{flag}: makes one part per file, and standard input is not a file; name the files")
    return True


AsJson = Annotated[bool, Opt("Print one JSON object.", flag="--json")]
PoolerName = Annotated[declared.Pooler | None, Opt(f"Pooling: {', '.join(POOLERS)}.", default="the model's, else avg")]
FirstDims = Annotated[int | None, Opt("Keep only the first N dimensions.", "N", "all")]
AsParts = Annotated[bool, Opt("Write one part per input file, to the folder -o.", flag="--parts")]
Engine = Annotated[Literal["local", "ray"], Opt("Run on this machine, or on a Ray cluster.")]
IdColumn = Annotated[str | None, Opt("Column with the row ids, if CORPUS is a table.", "NAME", flag="--id")]
Passages = Annotated[
    str | None,
    Opt("Rank rows by their best passage of at most N tokens; max: the model's maximum length.", "N|max"),
]
IndexFolder = Annotated[
    str | None,
    Opt("Folder of a cse search index to use or create.", "DIR", "embeddings are not stored", flag="--index"),
]
Batch = Annotated[int, Ge(1), Opt(flag="--batch-size")]


@dataclass(frozen=True)
class Reading:
    """How the files of a corpus are read."""

    column: declared.Column = None
    encoding_errors: declared.EncodingErrors = "strict"
    max_line_bytes: declared.MaxLineBytes = 1 << 20
