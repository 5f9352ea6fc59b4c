"""Copies in the cache of files of other file systems (``s3://...``, ``hf://datasets/...``).

Files are copied whole before they are read, because tables are read several times: their column names, the values that
select rows, and each column.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import InputError, first_line
from .entries import cache_folder, open_entry

# What file systems tell of a file besides its size, its ETag or hash, and times; a redirection may differ each time.
NO_VERSION = ("name", "type", "url", "mimetype", "partial")
STARTED = f"{os.getpid()} {time.time_ns()}"


def local_copies(address: str) -> list[str]:
    """Returns the paths of local copies of the files at an address, sorted by name if it is a pattern."""
    for part in map(urlsplit, address.split("::")):
        names_user = "@" in part.netloc and part.scheme not in ("abfs", "abfss")  # which name a container so
        if names_user or (part.query and part.scheme in ("http", "https")):
            raise InputError(
                f"{part.scheme}://{part.netloc.rpartition('@')[2]}: the address holds a user name, a password or a "
                "query, which would be stored with the results; set them in the configuration of fsspec, or download "
                "the file"
            )
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise InputError(f"{address}: needs fsspec; pip install fsspec, or name a local file") from None
    try:
        files, root = url_to_fs(address)
        files.invalidate_cache()  # lists of files that were made earlier in this process
        pattern = glob.has_magic(root) and not files.exists(root)
        names = sorted(files.glob(root)) if pattern else [root]
        if not names:
            raise FileNotFoundError("no file matches")
        if names == [root] and files.isdir(root):
            raise is_folder(address)
        return [_copied(files, address, str(name)) for name in names]
    except InputError:
        raise
    except Exception as error:  # each file system has errors of its own
        why = re.sub(r"\?[^\s'\")]+", "", first_line(error)) or type(error).__name__  # signatures in a redirection
        raise InputError(f"{address}: cannot be read ({why}); check the address, and log in where needed") from None


def is_folder(path: str) -> InputError:
    """Returns the error for a folder in place of files, which proposes a pattern."""
    begin, separator, rest = path.rstrip("/").rpartition("://")
    return InputError(f"{path}: is a folder; name the files in it, like '{begin}{separator}{glob.escape(rest)}/*.txt'")


def _copied(files: Any, address: str, name: str) -> str:
    about = {key: value for key, value in files.info(name).items() if key not in NO_VERSION and value is not None}
    told = str(about) if about else STARTED
    file = re.sub(r"[^\w.-]", "_", name.rstrip("/").rpartition("/")[2])

    def copy(folder: Path) -> dict[str, Any]:
        files.get_file(name, str(folder / file))
        return {}

    key = {"address": address, "name": name, "version": hashlib.sha256(told.encode()).hexdigest()}
    # The entry is not held: one open file for each of thousands of shards would exceed the limit of the process.
    return str(open_entry(cache_folder(), "files", key, copy).folder / file)
