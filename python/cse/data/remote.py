"""The cache folder, and copies in it of files of other file systems (``s3://...``, ``hf://datasets/...``).

Files are copied whole before they are read, because tables are read several times: their column names, the values that
select rows, and each column.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

from ..errors import InputError, first_line
from ..io import dumps, fresh_folder, parse_json

META = "meta.json"


class _Shard(TypedDict):
    filename: str


class _State(TypedDict):
    _data_files: list[_Shard]


class _Splits(TypedDict):
    splits: list[str]


def cache_folder(folder: str | None = None) -> Path:
    """Returns the cache folder: ``folder``, else ``$CSE_CACHE``, else ``cse`` in the cache directory of the user."""
    from platformdirs import user_cache_path

    return Path(folder or os.environ.get("CSE_CACHE") or user_cache_path("cse"))


def local_copies(address: str) -> list[str]:
    """Returns the paths of local copies of the files at an address, sorted by name if it is a pattern.

    Files are copied block by block to the cache folder, and again if they change, as far as their file system tells.
    ``cse cache --clear`` deletes the copies.

    Raises:
        InputError: If fsspec or the package for this file system is not installed, or a file cannot be read.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise InputError(f"{address}: needs fsspec; pip install fsspec, or name a local file") from None
    try:
        files, root = url_to_fs(address)
        names = sorted(files.glob(root)) if glob.has_magic(root) else [root]
        if not names:
            raise FileNotFoundError("no file matches")
        if names == [root] and files.isdir(root):
            names = shards(address.rstrip("/"), files.cat_file)
        return [_copied(files, str(name)) for name in names]
    except InputError:
        raise
    except Exception as error:  # each file system has errors of its own
        why = first_line(error) or type(error).__name__
        raise InputError(f"{address}: cannot be read ({why}); check the address, and log in where needed") from None


def shards(folder: str, read: Callable[[str], bytes]) -> list[str]:
    """Returns the paths of the files that ``datasets.Dataset.save_to_disk`` wrote to a folder, in the order of rows.

    Args:
        folder: The folder.
        read: Returns the content of a file; raises ``FileNotFoundError`` if it does not exist.

    Raises:
        InputError: If the folder has several splits, or was not written by ``save_to_disk``.
    """
    with suppress(FileNotFoundError):
        state = parse_json(read(f"{folder}/state.json"), _State, f"{folder}/state.json")
        return [f"{folder}/{os.path.basename(shard['filename'])}" for shard in state["_data_files"]]
    with suppress(FileNotFoundError):
        splits = parse_json(read(f"{folder}/dataset_dict.json"), _Splits, f"{folder}/dataset_dict.json")["splits"]
        raise InputError(f"{folder}: has the splits {', '.join(splits)}; name one, like {folder}/{splits[0]}")
    raise InputError(f"{folder}: is a folder; name the files in it, like '{folder}/*.txt'")


def _copied(files: Any, name: str) -> str:
    address = files.unstrip_protocol(name)
    key = f"{address} {files.ukey(name)}"
    folder = cache_folder() / f"files-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    copy = folder / name.rpartition("/")[2]
    if not copy.exists():
        with fresh_folder(folder) as fresh:
            files.get_file(name, str(fresh / copy.name))
            (fresh / META).write_text(dumps({"paths": [address]}) + "\n", encoding="utf8")
    return str(copy)
