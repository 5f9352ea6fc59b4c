"""Numbers in prose that name a row of a stored table, in a comment that Markdown does not show.

    UNA gains +1.14 [+.79, +1.51]<!-- row: Systems (H200) | UNA, 0.05 | change --> points.

A marker has the title of a table, the first cells of a row, and the name of a column, which may be shortened to a
beginning that only one row or column has. The marker stands after a number, or after a number with its interval; not at
the beginning of a line, where a comment would end the paragraph.

A marker may also name a value in a file of stored results, by the keys that lead to it; a list stands for its median:

    the time grows with the power of 0.95<!-- row: growth.json | exponents | build: time against sentences -->
    of 100 draws, 66<!-- row: verdict.json > tweets > seed0 | words | cannot tell -->
"""

import json
import re
from collections import namedtuple
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).resolve().parents[2] / "benches" / "results"
NUMBER = r"[+-]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e-?\d+)?"
MARKED = re.compile(
    rf"(?P<value>{NUMBER})(?: \[(?P<low>{NUMBER}), (?P<high>{NUMBER})\])?\** ?<!-- row: (?P<table>[^|]+?) \| "
    r"(?P<row>[^|]+?) \| (?P<column>[^|]+?) -->"
)
# What has to have a marker: changes, which have a sign, and scores of two digits with decimals.
CLAIM = re.compile(r"(?<![\w.-])[+-]\d*\.\d+|(?<![\w.+-])\d\d\.\d+")


# A number in prose, with its interval if it has one, and the cell that it is read from.
Marked = namedtuple("Marked", "numbers table row column")


def tables_in(text):
    """The tables of a page or of a printed text, each as a list of its rows, each as a list of its cells."""
    found = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in each.splitlines()] for each in found]


def selected(shown, whole):
    """Whether a table has some of the columns and some of the rows of another one, in their order."""
    places, rows = [], iter(whole)
    for name in shown[0]:
        place = next((n for n, other in enumerate(whole[0]) if other == name and n > max(places, default=-1)), None)
        if place is None:
            return False
        places.append(place)
    return places[0] == 0 and all(any(row == [other[n] for n in places] for other in rows) for row in shown)


def flat(text):
    """Text with each run of white space replaced by a space."""
    return " ".join(text.split())


def marked(text):
    """All marked numbers of a text; raises ``ValueError`` for a marker that does not follow a number."""
    text = flat(text)
    found = [
        Marked(
            [match[name] for name in ("value", "low", "high") if match[name]], *match.group("table", "row", "column")
        )
        for match in MARKED.finditer(text)
    ]
    if len(found) != text.count("<!-- row:"):
        raise ValueError(f"{text.count('<!-- row:')} markers, of which {len(found)} follow a number")
    return found


def unmarked(text):
    """The changes and scores in a text that have no marker."""
    return CLAIM.findall(re.sub("<!--.*?-->", "", MARKED.sub("", flat(text))))


def one(what, key, names, end):
    """The position of the only name that is ``key`` or, if there is none, that begins with it, followed by ``end``."""
    for fits in (lambda name: name == key, lambda name: name.startswith(key + end)):
        places = [place for place, name in enumerate(names) if fits(name)]
        if len(places) == 1:
            return places[0]
    raise ValueError(f"{what} {key!r} is not one of {names}")


def cell_of(marker, tables):
    """The text of the cell that a marker names; ``tables`` are pairs of column names and rows, by title."""
    file, *keys = marker.table.split(" > ")
    if file.endswith(".json"):
        value = json.loads((RESULTS / file).read_text(encoding="utf8"))
        for key in (*keys, marker.row, marker.column):
            value = value[key]
        return repr(median(value) if isinstance(value, list) else value)
    head, rows = tables[marker.table]
    row = rows[one("row", marker.row, [", ".join(row) for row in rows], ", ")]
    return row[1 + one("column", marker.column, head[1:], " ")]  # the first column has the names of the rows


def agrees(number, cell):
    """Whether a number in prose is a number of a table, rounded to the digits that the prose has."""
    digits, _, power = number.partition(".")[2].partition("e")
    step = 10.0 ** (int(power or 0) - len(digits))
    return abs(float(number.replace(",", "")) - float(cell)) <= 0.5 * step * (1 + 1e-6) + 1e-12


def faults(text, tables):
    """What is wrong with the marked numbers of a text, as messages."""
    wrong = []
    for marker in marked(text):
        cell = cell_of(marker, tables)
        known = re.findall(NUMBER, cell)
        if len(known) < len(marker.numbers) or not all(map(agrees, marker.numbers, known)):
            wrong.append(f"{marker}: the table has {cell}")
    return wrong
