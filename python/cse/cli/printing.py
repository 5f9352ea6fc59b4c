"""Console output: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import OBEYED, InputError, shortened, visible
from ..io import dumps

if TYPE_CHECKING:
    from ..augment.base import Example


# A value or path that was typed, of a length that would hide the sentence which it is part of.
ENDLESS = re.compile(r"\S{300,}")


def echo(text: str = "", err: bool = False) -> None:
    if err:
        text = ENDLESS.sub(lambda match: f"{match[0][:100]}\u2026{match[0][-50:]}", text)
    click.echo(visible(text), err=err)


def say(text: str = "") -> None:
    """Prints a line on standard error; standard output is reserved for results."""
    echo(text, err=True)


def loading() -> None:
    """Says, at a terminal, that PyTorch is being loaded, which takes seconds, unless it is loaded."""
    if "torch" not in sys.modules and sys.stderr is not None and sys.stderr.isatty():
        say("loading PyTorch ...")


def check_output() -> None:
    if sys.stdout is None:
        raise InputError("standard output: is closed; redirect it to a file or a pipe")


def result(value: dict[str, Any], as_json: bool, lines: list[str]) -> None:
    """Prints the result of a command on standard output, as JSON or as lines of text."""
    if as_json:  # characters of JSON text may be escaped as \uXXXX without changing its meaning
        encoding = sys.stdout.encoding or "ascii"
        text = OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", dumps(value))
        click.echo(text if text.encode(encoding, "replace").decode(encoding) == text else json.dumps(json.loads(text)))
    else:
        echo("\n".join(lines))


def plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value))
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def span(radius: int, terms: int) -> str:
    ranks = f"{radius:,} rank{'s' if radius != 1 else ''}"
    return f"up to {ranks} above or below a word ({min(radius / terms, 1):.1%} of {terms:,} terms)"


def marked(text: str, spans: tuple[tuple[int, int], ...], colour: str) -> str:
    """Returns the visible text with the spans marked: in colour if standard error is a terminal, else in brackets."""
    out, at = [], 0
    for start, end in spans:
        word = visible(text[start:end])
        mark = click.style(word, fg=colour, bold=True) if sys.stderr.isatty() else f"[{word}]"
        out += [visible(text[at:start]), mark]
        at = end
    return "".join([*out, visible(text[at:])])


def print_examples(groups: list[list[Example]]) -> None:
    """Prints sentences, one per group, and their augmented forms with replaced words marked, on standard error."""
    if not groups:
        return
    say("augmentations of the first sentences:" if len(groups) > 1 else "augmentation of a sentence:")
    for examples in groups:
        spans = tuple(sorted({span for example in examples for span in example.spans}))
        click.echo(f"       -  {marked(*cut(examples[0].text, spans), 'cyan')}", err=True)
        for example in examples:
            name = f"{example.method}: " if len(examples) > 1 else ""
            text = marked(*cut(example.augmented, example.augmented_spans), "yellow")
            click.echo(f"          {name}{text}", err=True)
            for further in example.further:
                say(f"          {shortened(further)}")


def cut(text: str, spans: tuple[tuple[int, int], ...]) -> tuple[str, tuple[tuple[int, int], ...]]:
    shown = shortened(text)
    whole = len(text) if shown == text else len(shown) - 1
    return shown, tuple((start, end) for start, end in spans if end <= whole)


def neighbours(examples: list[dict[str, str]]) -> list[str]:
    if not examples:
        return []
    lines = ["nearest neighbours among the held-out sentences, before and after training:"]
    for example in examples:
        sentence, before, after = (shortened(example[name]) for name in ("sentence", "before", "after"))
        lines += [f"  {sentence}", f"    before  {before}", f"    after   {after}"]
    return lines


def table(rows: list[dict[str, str]], title: str = "", markdown: bool = False) -> None:
    """Prints records, text by column name, as a drawn or Markdown table; the cell of a missing value is empty."""
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    rows = [{name: row.get(name, "") for name in names} for row in rows]
    left = [all(row[name] and row[name][0] not in "0123456789+-[" for row in rows) for name in names]
    if markdown:
        lines = [f"**{title}**", ""] if title else []
        lines += [f"| {' | '.join(names)} |", f"| {' | '.join('---' if aligned else '---:' for aligned in left)} |"]
        lines += [f"| {' | '.join(row[name].replace('|', '&#124;') for name in names)} |" for row in rows]
        echo("\n".join([*lines, ""]))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(visible(title)) if title else None, title_justify="left")
    for name, to_left in zip(names, left, strict=True):
        drawn.add_column(Text(visible(name)), justify="left" if to_left else "right")
    for row in rows:
        drawn.add_row(*(Text(visible(row[name])) for name in names))
    # For a file or a pipe, rich would assume a width of 80 columns and wrap most tables.
    Console(width=None if sys.stdout.isatty() else 200).print(drawn)


def compared_cells(record: dict[str, Any]) -> dict[str, str]:
    tested = "p" in record
    digits = 2 if abs(record["a"]) > 2 else 4
    return {
        "task": record["task"],
        "examples": "" if record["examples"] is None else f"{record['examples']:,}",
        "A": f"{record['a']:.{digits}f}",
        "B": f"{record['b']:.{digits}f}",
        "difference": f"{record['mean']:+.{digits}f}",
        "95 % interval": f"[{record['low']:+.{digits}f}, {record['high']:+.{digits}f}]" if tested else "",
        "p (Holm)": f"{record['p_holm']:.3f}" if tested else "",
        "B is": record["verdict"],
    }


def check_suffix(output: str, *suffixes: str, flag: str = "-o") -> None:
    """Raises ``InputError`` unless the name of a file ends in one of the suffixes, and its folder exists."""
    if Path(output).suffix not in suffixes:
        *others, last = suffixes
        raise InputError(f"{flag} {output}: the name must end in {', '.join(others)} or {last}")
    if Path(output).is_dir():
        raise InputError(f"{flag} {output}: is a folder; name a file")
    if not Path(output).absolute().parent.is_dir():
        raise InputError(f"{flag} {output}: its folder does not exist; create it first")


def check_new(output: str, flag: str = "-o") -> None:
    """Raises ``InputError`` if a file exists that people fill in or correct: it may hold their work."""
    if Path(output).exists():
        raise InputError(f"{flag} {output}: exists, and may be filled in already; name another file, or remove it")
