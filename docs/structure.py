"""Draws docs/structure.svg, the folders of the package and the imports between them (``make structure``).

Needs only the standard library. The folders of each row import only folders of the rows below it.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "cse"
OUTPUT = ROOT / "docs" / "structure.svg"
WIDTH, MARGIN, GAP, ROW_GAP = 800, 10, 16, 34
WIDEST, LINE, LETTER = 340, 15, 6.5  # pixels; LETTER: average width of a letter of the text in rooms
STYLE = """
  .ground { fill: #ffffff } .room { fill: #f3f5f9; stroke: #8c96a8 } .small { fill: #ffffff; stroke: #b9c0cc }
  text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #2b303b }
  .name { font-weight: 600; font-size: 14px } .count { fill: #5d6677 }
  path { fill: none; stroke: #7a8bb0; stroke-width: 1.3 } #head path { fill: #7a8bb0; stroke: none }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } .room { fill: #1b222d; stroke: #5b6678 } .small { fill: #0d1117; stroke: #434d5d }
    text { fill: #dde3ec } .count { fill: #98a3b5 }
    path { stroke: #7189bd } #head path { fill: #7189bd }
  }
"""


@dataclass
class Room:
    """A folder of the package, or files directly in ``cse/``."""

    name: str
    title: str
    files: int
    summary: str
    folders: list[str] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    row: int = 0
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    text: list[tuple[str, str]] = field(default_factory=list)
    """Lines of text with their classes."""

    @property
    def height(self) -> float:
        """Height in pixels."""
        return 14 + LINE * len(self.text)

    @property
    def middle(self) -> float:
        """The horizontal centre."""
        return self.x + self.width / 2


def imported(path: Path) -> set[str]:
    """Returns the names directly below ``cse`` that a file imports, at any place in the file."""
    module = ("cse", *path.relative_to(PACKAGE).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level] if node.level else ()
            whole = (*base, *(node.module.split(".") if node.module else ()))
            found |= {(*whole, each.name)[1] for each in node.names} if whole[:1] == ("cse",) else set()
        elif isinstance(node, ast.Import):
            found |= {each.name.split(".")[1] for each in node.names if each.name.startswith("cse.")}
    return found


def first_line(path: Path) -> str:
    """Returns the first line of the docstring of a file, without markup and without a full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf8"))) or ""
    return text.partition("\n")[0].replace("``", "").rstrip(".")


def read_rooms() -> dict[str, Room]:
    """Returns the rooms by name. Files directly in ``cse/`` that import no folder share one room."""
    rooms = {}
    place = {}
    for folder in sorted(path.parent for path in PACKAGE.glob("*/__init__.py")):
        inner = sorted(path.parent for path in folder.glob("*/__init__.py"))
        files = len(list(folder.rglob("*.py")))
        room = Room(folder.name, f"{folder.name}/", files, first_line(folder / "__init__.py"))
        room.folders = [f"{each.name}/\u00a0{len(list(each.glob('*.py')))}" for each in inner]
        room.imports = set().union(*(imported(path) for path in folder.rglob("*.py")))
        rooms[folder.name] = room
        place[folder.name] = folder.name
    # __init__.py and __main__.py name the public functions and start the program.
    alone = [path for path in sorted(PACKAGE.glob("*.py")) if not path.stem.startswith("__")]
    base = [path for path in alone if not imported(path) & rooms.keys()]
    for path in alone:
        if path not in base:
            rooms[path.stem] = Room(path.stem, path.name, 1, first_line(path), imports=imported(path))
            place[path.stem] = path.stem
    place |= {path.stem: "cse" for path in base}
    names = ", ".join(path.stem for path in base)
    rooms["cse"] = Room("cse", "files of cse/", len(base), f"Files that import no folder: {names}")
    for room in rooms.values():
        room.imports = {place[name] for name in room.imports if name in place} - {room.name}
    return rooms


def arrange(rooms: dict[str, Room]) -> list[list[Room]]:
    """Sets the rows of the rooms, and removes imports that others imply; returns the rooms by row, the lowest first.

    Raises ``ValueError`` for a circular import.
    """
    below: dict[str, set[str]] = {}

    def descend(name: str, path: tuple[str, ...]) -> set[str]:
        if name in path:
            raise ValueError(f"circular import: {' -> '.join([*path[path.index(name) :], name])}")
        if name not in below:
            found = set(rooms[name].imports)
            for each in sorted(rooms[name].imports):
                found |= descend(each, (*path, name))
            below[name] = found
        return below[name]

    for name in sorted(rooms):
        descend(name, ())
    for name in sorted(rooms, key=lambda name: len(below[name])):
        room = rooms[name]
        room.row = 1 + max((rooms[each].row for each in room.imports), default=-1)
        room.imports = {each for each in room.imports if not any(each in below[other] for other in room.imports)}
    rows: list[list[Room]] = [[] for _ in range(1 + max(room.row for room in rooms.values()))]
    for room in sorted(rooms.values(), key=lambda room: room.name):
        rows[room.row].append(room)
    return rows


def lay_out(rooms: dict[str, Room], rows: list[list[Room]]) -> float:
    """Sets sizes and positions; returns the height of the drawing."""
    for row in rows:
        space(row)
    for _ in range(4):  # rooms are ordered by the mean position of the rooms that they import or are imported by
        for row in [*rows, *reversed(rows)]:
            centre = {
                room.name: [rooms[name].middle for name in room.imports]
                + [other.middle for other in rooms.values() if room.name in other.imports]
                for room in row
            }
            row.sort(key=lambda room: (round(sum(centre[room.name]) / max(len(centre[room.name]), 1), 3), room.name))
            space(row)
    y = float(MARGIN)
    for row in reversed(rows):
        for room in row:
            room.y = y
        y += max(room.height for room in row) + ROW_GAP
    return y - ROW_GAP + MARGIN


def space(row: list[Room]) -> None:
    """Sets the horizontal positions, widths and texts of the rooms of a row."""
    width = min(WIDEST, (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / len(row))
    left = (WIDTH - width * len(row) - GAP * (len(row) - 1)) / 2
    for number, room in enumerate(row):
        room.x, room.width = left + number * (width + GAP), width
        letters = int((width - 16) / LETTER)
        files = f"{room.files} files" if room.files > 1 else "1 file"
        room.text = [(room.title, "name"), (files, "count")]
        for line, style in ((room.summary, ""), (", ".join(room.folders), "count")):
            room.text += [(each, style) for each in textwrap.wrap(line, letters, break_on_hyphens=False)]
    for room in row:
        room.text += [("", "")] * (max(len(other.text) for other in row) - len(room.text))


def route(start: Room, end: Room, rows: list[list[Room]], ports: dict[tuple[str, str, str], float]) -> str:
    """Returns the path of an arrow, which passes through gaps between the rooms of the rows that it crosses."""
    x, goal = ports[start.name, "out", end.name], ports[end.name, "in", start.name]
    path = f"M{x:.1f} {start.y + start.height:.1f}"
    y = start.y + start.height
    for row in reversed(rows[end.row + 1 : start.row]):
        edges = [0.0, *(side for room in row for side in (room.x, room.x + room.width)), float(WIDTH)]
        gaps = [(edges[i], edges[i + 1]) for i in range(0, len(edges), 2)]
        near = x + (goal - x) * 0.5
        choices = [min(max(near, low + 7), high - 7) for low, high in gaps if high - low >= 14]
        lane = min(choices, key=lambda each: (abs(each - near), each))
        top, bottom = row[0].y, row[0].y + row[0].height
        path += curve(x, y, lane, top) + f"V{bottom:.1f}"
        x, y = lane, bottom
    return path + curve(x, y, goal, end.y - 2)


def curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """Returns a curve that begins and ends vertically."""
    middle = (y + to_y) / 2
    return f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"


def draw() -> str:
    """Returns the drawing as SVG."""
    rooms = read_rooms()
    rows = arrange(rooms)
    height = lay_out(rooms, rows)
    ports: dict[tuple[str, str, str], float] = {}
    for room in rooms.values():
        importers = [each.name for each in rooms.values() if room.name in each.imports]
        ends = {"out": list(room.imports), "in": importers}
        for side, others in ends.items():
            others.sort(key=lambda name: (rooms[name].middle, name))
            for number, other in enumerate(others):
                ports[room.name, side, other] = room.x + room.width * (number + 1) / (len(others) + 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="The folders of the package cse and the imports between them">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect class="ground" width="{WIDTH}" height="{height:.0f}"/>',
    ]
    for room in sorted(rooms.values(), key=lambda room: room.name):
        for name in sorted(room.imports):
            lines.append(f'<path d="{route(room, rooms[name], rows, ports)}" marker-end="url(#head)"/>')
    for room in (room for row in reversed(rows) for room in row):
        kind = "room" if room.title.endswith("/") else "small"
        box = f'x="{room.x:.1f}" y="{room.y:.1f}" width="{room.width:.1f}" height="{room.height:.1f}"'
        lines.append(f'<rect class="{kind}" {box} rx="6"/>')
        for number, (text, style) in enumerate(room.text):
            if text:
                style = f' class="{style}"' if style else ""
                at = f'x="{room.middle:.1f}" y="{room.y + 19 + LINE * number:.1f}" text-anchor="middle"'
                lines.append(f"<text{style} {at}>{escape(text)}</text>")
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    drawing = draw()
    if "--check" in sys.argv:
        current = OUTPUT.is_file() and OUTPUT.read_text(encoding="utf8") == drawing
        sys.exit(0 if current else "docs/structure.svg: differs from the package; run make structure")
    OUTPUT.write_text(drawing, encoding="utf8")
