"""A folder of parts: one part for each file of a corpus, and a manifest.

==========================  ==========================================================================================
file                        content
==========================  ==========================================================================================
``manifest.json``           settings, files with their row counts and hashes, hashes and counts of the parts, and
                            whether all parts are ``complete``
``part-00000.npy`` ...      output for the first file, and so on; an incomplete part has another name
``part-00000.npy.json``     hash and counts of the part; moved into the manifest when the call ends
==========================  ==========================================================================================

The folder is locked by the process that makes parts. The manifest is written before the first part and after the last
one. A later call with the same settings and files, and perhaps more files at the end, makes the parts that are missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypedDict

from .. import __version__
from .._core import hash_file
from ..data.readers import ReadOptions, SourceFile
from ..errors import InputError
from ..io import dumps, holds_files, locked, naming, read_json, remove_leftovers, write_text

MANIFEST = "manifest.json"
VERSION = 1


@dataclass(frozen=True)
class Shard:
    """A file of the corpus, together with the part that is made from it."""

    source: SourceFile
    part: str
    first_row: int
    """Row number, in the whole corpus, of the first row of the file."""


Progress = Callable[[int], None]
Work = Callable[[Shard, Path, Progress], dict[str, Any]]
"""A function that makes the part of a shard at a path, and returns counts and, as ``file``, the hash of the input file
as it was read. Its third argument is called with the number of rows done since the last call."""


@dataclass(frozen=True)
class Job:
    """What makes the parts of a corpus."""

    kind: str
    suffix: str
    settings: dict[str, Any]
    """All settings that the content of the parts depends on or that a search needs, serialisable to JSON."""
    reading: ReadOptions
    load: Callable[[ReadOptions], Work]
    """Loads the index or model, and returns the function that makes a part."""


class Listed(TypedDict):
    part: str
    path: str


class Manifest(TypedDict):
    version: int
    kind: str
    settings: dict[str, Any]
    parts: list[Listed]


def read_manifest(folder: str | os.PathLike[str]) -> Manifest | None:
    path = Path(folder) / MANIFEST
    try:
        manifest = read_json(path, Manifest)
    except (OSError, ValueError):
        return None
    if manifest["version"] != VERSION:
        raise InputError(f"{path}: was written by another version of cse; make the parts again in a new folder")
    return manifest


class Parts:
    def __init__(self, folder: str, job: Job, sources: Sequence[SourceFile]) -> None:
        self.folder = Path(folder)
        settings = json.loads(dumps(job.settings))
        self._head = {"version": VERSION, "cse": __version__, "kind": job.kind, "settings": settings}
        digits = max(5, len(str(len(sources) - 1)))
        self.shards: list[Shard] = []
        first = 0
        for number, source in enumerate(sources):
            self.shards.append(Shard(source, f"part-{number:0{digits}}{job.suffix}", first))
            first += source.rows
        self.rows = first
        self.made: dict[str, dict[str, Any]] = {}
        """The size, hash and counts of each part that is made, by the name of the part."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager in which parts are made; it creates and checks the folder, and writes the manifest.

        Raises ``InputError`` if the folder is in use, or holds other files, or parts of other settings or files.
        """
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise InputError(f"-o {folder} is a file; name a folder for the parts")
        if read_manifest(folder) is None and holds_files(folder):
            raise InputError(f"-o {folder} holds files that are not parts; name a new folder")
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, f"-o {folder}: another process is making parts there; wait for it"):
            remove_leftovers(folder)
            known = read_manifest(folder)
            if known is not None:
                self._compare(known)
            entries = {entry["part"]: dict(entry) for entry in known["parts"]} if known else {}
            records = {shard.part: self._record(shard, entries.get(shard.part, {})) for shard in self.shards}
            self.made = {part: record for part, record in records.items() if record is not None}
            if self.missing():
                self._write()
            try:
                yield
            finally:
                self._write()
                for part in self.made:
                    (folder / f"{part}.json").unlink(missing_ok=True)
                if {path.name for path in folder.iterdir()} == {MANIFEST}:  # remove what this call wrote
                    (folder / MANIFEST).unlink()
                    folder.rmdir()

    def _compare(self, known: Manifest) -> None:
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
        sources = [shard.source for shard in self.shards]
        for entry, source in zip_longest(known["parts"], sources[: len(known["parts"])]):
            if source is None:
                what = "which is not among the given files"
            elif any(entry.get(name) != value for name, value in asdict(source).items()):
                what = "which has changed" if entry["path"] == source.path else f"not from {source.path}"
            else:
                continue
            raise InputError(f"-o {self.folder}: {entry['part']} was made from {entry['path']}, {what}; {remedy}")

    def missing(self) -> list[Shard]:
        return [shard for shard in self.shards if shard.part not in self.made]

    def _record(self, shard: Shard, entry: dict[str, Any]) -> dict[str, Any] | None:
        path = self.folder / shard.part
        try:
            record = entry if "part_xxh3" in entry else read_json(f"{path}.json", dict[str, Any])
            same = (record["xxh3"], record["first_row"]) == (shard.source.xxh3, shard.first_row)
            if same and record["part_bytes"] == path.stat().st_size and record["part_xxh3"] == hash_file(path):
                return {name: record[name] for name in ("part_bytes", "part_xxh3", "counted")}
        except (OSError, ValueError, KeyError):
            pass
        return None

    def _write(self) -> None:
        parts = [
            {"part": shard.part, **asdict(shard.source), "first_row": shard.first_row, **self.made.get(shard.part, {})}
            for shard in self.shards
        ]
        manifest = {**self._head, "complete": not self.missing(), "rows": self.rows, "parts": parts}
        write_text(self.folder / MANIFEST, dumps(manifest, indent=1) + "\n")
