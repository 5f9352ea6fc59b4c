"""A folder of parts: one part for each file of a corpus, and a manifest.

==========================  ==========================================================================================
file                        content
==========================  ==========================================================================================
``manifest.json``           settings, files with their row counts and hashes, and whether all parts are ``complete``
``part-00000.npy`` ...      output for the first file, and so on; an incomplete part has another name
``part-00000.npy.json``     hash and counts of the part; moved into the manifest when all parts are complete
==========================  ==========================================================================================

The folder is locked by the process that makes parts. The manifest is written before the first part and after the last
one. A part counts as made only if it has the hash that was stored. A later call with the same settings and files
makes the parts that are missing. Files may be added at the end of the list. The parts are the same with
``--engine local`` and ``--engine ray``: negatives are identical on all machines, and embeddings on processors of the
same kind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from .. import __version__
from .._core import hash_file
from ..data.readers import SourceFile
from ..errors import InputError
from ..io import checked, dumps, holds_files, identity, locked, naming, read_json, remove_leftovers, write_text

MANIFEST = "manifest.json"
VERSION = 1


@dataclass(frozen=True)
class Shard:
    """A file of the corpus, together with the part that is made from it."""

    source: SourceFile
    part: str
    """Name of the part in the folder."""
    first_row: int
    """Row number, in the whole corpus, of the first row of the file."""


class Made(TypedDict):
    """What is stored of a part."""

    part_bytes: int
    part_xxh3: str
    counted: dict[str, Any]


class Listed(TypedDict):
    """A part in the manifest; a part that is made also has what ``Made`` declares."""

    part: str
    path: str
    column: str | None
    bytes: int
    rows: int
    xxh3: str


class Manifest(TypedDict):
    """The content of the manifest, apart from the numbers of rows."""

    version: int
    kind: str
    complete: bool
    settings: dict[str, Any]
    parts: list[Listed]


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Returns the manifest of a folder of parts; None if there is none, or if the file is not a manifest of parts.

    Raises ``InputError`` for a manifest of another version.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest: dict[str, Any] = {**read_json(path, Manifest)}
    except (OSError, ValueError):
        return None
    if manifest.get("version") != VERSION:
        raise InputError(f"{path}: was written by another version of cse; make the parts again in a new folder")
    return manifest


class Parts:
    """The output folder of a call that makes parts.

    Args:
        folder: The folder.
        kind: ``augment`` or ``encode``.
        settings: All settings that the content of the parts depends on, serialisable to JSON.
        sources: The files of the corpus, in order.
        suffix: Suffix of the parts.
    """

    def __init__(
        self, folder: str, kind: str, settings: dict[str, Any], sources: Sequence[SourceFile], suffix: str
    ) -> None:
        self.folder = Path(folder)
        self._head = {"version": VERSION, "cse": __version__, "kind": kind, "settings": json.loads(dumps(settings))}
        digits = max(5, len(str(len(sources) - 1)))
        self.shards: list[Shard] = []
        first = 0
        for number, source in enumerate(sources):
            self.shards.append(Shard(source, f"part-{number:0{digits}}{suffix}", first))
            first += source.rows
        self.rows = first
        """Number of rows of the whole corpus."""
        self._known: dict[str, dict[str, Any]] = {}
        self._unchanged: dict[str, tuple[int, ...]] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager in which parts are made; it creates and checks the folder, and writes the first manifest.

        Raises ``InputError`` if another process is making parts there, or if the folder holds files that are not parts,
        or parts made with different settings or from different corpus files.
        """
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise InputError(f"-o {folder} is a file; name a folder for the parts")
        known = read_manifest(folder)
        if known is None and holds_files(folder):
            raise InputError(f"-o {folder} holds files that are not parts; name a new folder")
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, f"-o {folder}: another process is making parts there; wait for it"):
            remove_leftovers(folder)
            if known is not None:
                self._compare(known)
                self._known = {part["part"]: part for part in known["parts"] if known["complete"]}
            if missing := self.missing():
                for shard in missing:  # what the manifest says of them is wrong; they are made again
                    self._known.pop(shard.part, None)
                self._write({shard.part: self._made(shard) or {} for shard in self.shards}, complete=False)
            try:
                yield
            finally:
                if {path.name for path in folder.iterdir()} == {MANIFEST}:  # remove what this call wrote
                    (folder / MANIFEST).unlink()
                    folder.rmdir()

    def _compare(self, known: dict[str, Any]) -> None:
        remedy = "name a new folder, or remove this one"
        if known["kind"] != self._head["kind"]:
            raise InputError(f"-o {self.folder} holds parts written by cse {known['kind']}; {remedy}")
        before, now = known["settings"], self._head["settings"]
        for name in sorted({*before, *now} - {"model"}):  # a model may be moved: its hash is compared instead
            if before.get(name) != now.get(name):
                raise InputError(
                    f"-o {self.folder}: its parts were made with {name} {before.get(name)}, not {now.get(name)}; use "
                    f"the same settings, {remedy}"
                )
        old = [SourceFile(**{name: item[name] for name in SourceFile.__dataclass_fields__}) for item in known["parts"]]
        new = [shard.source for shard in self.shards]
        for number, source in enumerate(old):
            if number >= len(new) or source != new[number]:
                if number >= len(new):
                    what = "which is not among the given files"
                else:
                    same = new[number].path == source.path
                    what = "which has changed" if same else f"not from {new[number].path}"
                part = known["parts"][number]["part"]
                raise InputError(f"-o {self.folder}: {part} was made from {source.path}, {what}; {remedy}")

    def missing(self) -> list[Shard]:
        """Returns the shards whose part is missing or incomplete."""
        return [shard for shard in self.shards if self._made(shard) is None]

    def _made(self, shard: Shard) -> dict[str, Any] | None:
        """Returns the size, hash and counts of a part; None if the part is missing or incomplete."""
        path = self.folder / shard.part
        try:
            record: Any = checked(self._known.get(shard.part) or read_json(f"{path}.json", Made), Made, path)
        except (OSError, ValueError):
            return None
        known = shard.part in self._known or (
            record.get("xxh3") == shard.source.xxh3 and record.get("first_row") == shard.first_row
        )
        if not known:
            return None
        if not path.is_file() or path.stat().st_size != record["part_bytes"]:
            return None
        if self._unchanged.get(shard.part) != identity(path):  # hashed once by this call
            if hash_file(path) != record["part_xxh3"]:
                return None
            self._unchanged[shard.part] = identity(path)
        return {name: record[name] for name in ("part_bytes", "part_xxh3", "counted")}

    def finish(self) -> dict[str, Any]:
        """Writes the manifest, which states whether all parts are complete, and returns it."""
        made = {shard.part: self._made(shard) for shard in self.shards}
        complete = all(record is not None for record in made.values())
        self._write({part: record or {} for part, record in made.items()}, complete)
        manifest = read_manifest(self.folder)
        assert manifest is not None
        if complete:
            self._known = {part["part"]: part for part in manifest["parts"]}
            for shard in self.shards:
                Path(f"{self.folder / shard.part}.json").unlink(missing_ok=True)
        return manifest

    def _write(self, made: dict[str, dict[str, Any]], complete: bool) -> None:
        parts = [
            {"part": shard.part, **asdict(shard.source), "first_row": shard.first_row, **made[shard.part]}
            for shard in self.shards
        ]
        manifest = {**self._head, "complete": complete, "rows": self.rows, "parts": parts}
        write_text(self.folder / MANIFEST, dumps(manifest, indent=1) + "\n")
