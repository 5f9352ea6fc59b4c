"""The cache folder, and copies in it of files of other file systems (``s3://...``, ``hf://datasets/...``)."""

from __future__ import annotations

import glob
import hashlib
import os
from pathlib import Path

from ..errors import InputError, first_line
from ..io import fresh_folder


def cache_folder(given: str | None = None) -> Path:
    """Returns the cache folder: ``given``, else ``$CSE_CACHE``, else ``cse`` in the cache directory of the user."""
    from platformdirs import user_cache_path

    return Path(given or os.environ.get("CSE_CACHE") or user_cache_path("cse"))


def local_copies(address: str) -> list[str]:
    """Returns the paths of local copies of the files at an address, sorted by name if it is a pattern.

    Files are copied block by block to the cache folder, and again if they change, as far as their file system tells.

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
        return [_copied(files, str(name)) for name in names]
    except Exception as error:  # each file system has errors of its own
        why = first_line(error) or type(error).__name__
        raise InputError(f"{address}: cannot be read ({why}); check the address, and log in where needed") from None


def _copied(files: object, name: str) -> str:
    key = f"{files.unstrip_protocol(name)} {files.ukey(name)}"  # type: ignore[attr-defined]
    folder = cache_folder() / f"files-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    copy = folder / name.rpartition("/")[2]
    if not copy.exists():
        with fresh_folder(folder) as fresh:
            files.get_file(name, str(fresh / copy.name))  # type: ignore[attr-defined]
    return str(copy)
