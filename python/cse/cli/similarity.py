"""The command ``cse similarity``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..data import readers
from ..errors import InputError
from . import encoder_options, options, printing
from .corpus_index import load_encoder
from .progress import counting


@click.command("similarity")
@click.argument("model")
@click.argument("texts", nargs=-1, required=True)
@options.option(
    "--columns", metavar="A,B", help="The two columns of text in the table.", default_text="recognised by name"
)
@options.option("--batch-size", default=64, type=click.IntRange(min=1))
@options.pooler
@encoder_options.prompt
@encoder_options.first_dims
@options.device
@options.precision("fp32")
@options.threads
@options.imports
@options.as_json
def command(
    model: str,
    texts: tuple[str, ...],
    columns: str | None,
    batch_size: int,
    as_json: bool,
    **encoding: Any,
) -> None:
    """Print the cosine similarity of two TEXTS, or of the two texts in each row of a table.

    For a table (a .csv, .tsv, .jsonl or .parquet file), one line is printed per row: the cosine and the two texts,
    separated by tabs.
    """
    printing.check_output()
    table = len(texts) == 1
    if table:
        if not readers.is_table(texts[0]):
            raise InputError(
                "TEXTS: give two texts, or one table (.csv, .tsv, .jsonl, .parquet) with two columns of text"
            )
        left, right = read_columns(texts[0], columns)
    elif len(texts) == 2 and columns is None:
        left, right = [texts[0]], [texts[1]]
    elif columns is not None:
        raise InputError(f"--columns {columns}: names columns of a table; give one table, or leave out --columns")
    else:
        raise InputError(f"TEXTS: {len(texts)} were given; give two texts, or one table with two columns of text")
    encoder = load_encoder(model, **encoding)
    from ..search.pairs import cosines

    distinct = list(dict.fromkeys([*left, *right]))
    with counting("encoding", len(distinct), "texts") as more:
        vectors = encoder.encode(distinct, batch_size=batch_size, progress=more)
    number = {text: row for row, text in enumerate(distinct)}
    found = cosines(vectors, [number[text] for text in left], [number[text] for text in right])
    if as_json:
        pairs = [{"cosine": value, "a": a, "b": b} for value, a, b in zip(found.tolist(), left, right, strict=True)]
        printing.result({"model": model, "pairs": pairs}, True, [])
    elif table:
        for value, a, b in zip(found, left, right, strict=True):
            click.echo("\t".join([f"{value:.4f}", *(" ".join(text.split()) for text in (a, b))]))
    else:
        click.echo(f"{found[0]:.4f}")
        if not all(text.strip() for text in texts):
            printing.say("the embedding of a blank text is zero, so the cosine is 0")


def read_columns(path: str, columns: str | None) -> tuple[list[str], list[str]]:
    """Returns the texts of two columns of a table.

    The columns are those in ``columns``. By default, they are an anchor and a positive column recognised by name (see
    ``cse.data.pair_columns``), or else the only two columns of the table.
    """
    from ..data.pair_columns import ROLE_OF

    if not Path(path).exists():
        raise InputError(f"{path}: no such file; check the path")
    names = readers.column_names(path)
    if columns is not None:
        chosen = columns.split(",")
    else:
        roles = [[name for name in names if ROLE_OF.get(name.lower()) == role] for role in ("anchor", "positive")]
        chosen = [role[0] for role in roles if len(role) == 1]
        chosen = chosen if len(chosen) == 2 else names
    if len(chosen) != 2 or any(names.count(name) != 1 for name in chosen):
        given = f"--columns {columns}: " if columns is not None else ""
        has = ", ".join(names[:20])
        raise InputError(f"{given}{path}: name the two columns of text with --columns A,B; its columns are {has}")
    left, right = (list(readers.column_values(path, name)) for name in chosen)
    if not left:
        raise InputError(f"{path}: has no rows; give at least one pair")
    return left, right
