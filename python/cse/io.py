"""Locks between processes, atomic writes of files and folders, JSON output, and write errors that include the path.

The operating system releases a lock when the process that holds it ends.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from .errors import InputError, first_line, shown

T = TypeVar("T")


def lock(descriptor: int, taken: str = "", *, wait: bool = False) -> bool:
    """Locks an open file until it is closed, with the kind of lock that the Rust core uses.

    Args:
        descriptor: File descriptor, open for writing.
        taken: Message of an ``InputError`` to raise if another process holds the lock.
        wait: Wait until the lock is free instead of raising an error.

    Returns:
        True if the file was locked; False if its file system does not support locks, as is the case for some network
        file systems.

    Raises:
        BlockingIOError: If another process holds the lock and ``taken`` is empty.
    """
    from filelock import lock_descriptor

    try:
        held = lock_descriptor(descriptor, blocking=wait)
    except OSError:
        return False
    if not held and taken:
        raise InputError(taken)
    if not held:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return True


@contextmanager
def locked(path: Path, taken: str = "") -> Iterator[bool]:
    """Context manager that locks a file or folder, which may be renamed or removed within the context.

    On Windows, where an open file cannot be renamed and a folder cannot be opened, a file next to ``path`` is locked
    instead, and removed at the end.

    Args:
        path: An existing file or folder.
        taken: See ``lock``, as well as for the errors.

    Yields:
        True if the file was locked; False if its file system does not support locks.
    """
    if sys.platform == "win32":
        path = path.with_name(f".{path.name}.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    else:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        yield lock(descriptor, taken)
    finally:
        os.close(descriptor)
        if sys.platform == "win32":
            with suppress(OSError):  # another process has opened it
                path.unlink()


# Pattern of the names of temporary folders, which are locked while they are in use. A name contains the name of the
# final folder. While a folder is replaced, its previous version has a name of this form that ends in ``.old``.
FRESH = re.compile(r"\.cse-new-[a-z0-9_]{8}-(?P<name>.+?)(?P<old>\.old)?")


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Context manager that adds ``path`` to write errors that do not contain a path.

    Libraries written in Rust (safetensors, tokenizers) report a full disk with their own exception types; these are
    converted to ``OSError``.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    except Exception as error:
        if "os error" not in str(error) and "Error while serializing" not in str(error):
            raise
        raise OSError(f"{path}: cannot be written ({error})") from None


def file_mode() -> int:
    """Returns the permission bits of a new file: 0666 with the bits of the process's umask cleared."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def write_atomically(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls ``write`` with a temporary file, then renames the file to ``path``; on an error, ``path`` is unchanged.

    A symbolic link is followed, unless its target does not exist. If ``path`` exists and is not a regular file (a
    device or a pipe), it is written to directly.
    """
    if os.path.exists(path):  # a dangling symbolic link is replaced, as in the Rust core
        path = os.path.realpath(path)
    path = Path(path)
    with naming(path):
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                write(file)
            return
        temporary = None
        try:
            # The Rust core uses the same name pattern and lock for its temporary files. When it next writes to this
            # folder, it removes unlocked temporary files, which were left by killed processes.
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".cse-core-", suffix=".tmp", delete=False) as file:
                temporary = file.name
                with suppress(BlockingIOError):  # raised while the Rust core checks whether the file is locked
                    lock(file.fileno())
                write(file)  # type: ignore[arg-type]
            os.chmod(temporary, file_mode())
            os.replace(temporary, path)
        finally:
            if temporary is not None and os.path.exists(temporary):
                os.unlink(temporary)


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Context manager that makes a temporary folder, which replaces ``folder`` at the end or is removed on an error.

    The parent of ``folder`` is created. Errors include the path of ``folder``.
    """
    with naming(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".cse-new-", suffix=f"-{folder.name}", dir=folder.parent))
    try:
        with naming(folder), _held(fresh):
            yield fresh
            fresh.chmod(file_mode() | (file_mode() & 0o444) >> 2)  # for a directory, add the x bit wherever r is set
            replace_folder(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def replace_folder(fresh: Path, folder: Path) -> None:
    """Renames ``fresh``, made by ``fresh_folder``, to ``folder``; an existing folder is moved aside, then removed.

    A process that is killed between the two renames leaves the old folder; ``remove_leftovers`` restores it.
    """
    old = fresh.with_name(f"{fresh.name}.old")
    try:
        if folder.is_dir():
            with _held(folder):
                os.replace(folder, old)
                os.replace(fresh, folder)
        else:
            os.replace(fresh, folder)
    except OSError:
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Removes temporary folders that killed processes left in ``parent``; locked folders are in use and are kept.

    A previous version that was moved aside and not replaced is renamed back.
    """
    if not parent.is_dir():
        return
    for path in sorted(parent.iterdir()):
        found = FRESH.fullmatch(path.name)
        if found is None or not path.is_dir():
            continue
        with _held(path) as free:
            if not free:
                continue
            if found["old"] and not (parent / found["name"]).exists():
                os.replace(path, parent / found["name"])
            else:
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Context manager that locks a folder; yields False if it is already locked, or if locks are not supported."""
    with ExitStack() as stack:
        try:
            held = stack.enter_context(locked(folder))
        except BlockingIOError:
            held = False
        yield held


def write_text(path: str | Path, text: str) -> None:
    """Writes a UTF-8 text file atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def dumps(value: object, indent: int | None = None) -> str:
    """Serialises ``value`` to standard JSON; NaN and infinities, which JSON lacks, become null."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# Reading of JSON and TOML that anybody may have written


def read_json(path: str | Path, shape: type[T], remedy: str = "") -> T:
    """Reads a JSON file as a value of the declared shape; see ``checked``."""
    return parse_json(Path(path).read_bytes(), shape, path, remedy)


def parse_json(content: str | bytes, shape: type[T], where: object, remedy: str = "") -> T:
    """Parses JSON text as a value of the declared shape; see ``checked``."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:  # invalid, not UTF-8, nested too deeply, an integer of 5,000 digits
        raise InputError(f"{where}: is not valid JSON ({first_line(error)}){remedy}") from None
    return checked(value, shape, where, remedy)


def read_toml(path: str | Path, shape: type[T], remedy: str = "") -> T:
    """Reads a TOML file as a value of the declared shape; see ``checked``."""
    import tomllib

    try:
        value = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid TOML ({first_line(error)}){remedy}") from None
    return checked(value, shape, path, remedy)


def checked(value: object, shape: type[T], where: object, remedy: str = "") -> T:
    """Returns a value unchanged if it has the declared shape.

    Args:
        value: What ``json`` or ``tomllib`` returned.
        shape: ``int``, ``float`` (an integer is a valid one), ``str``, ``bool``, ``None``, ``Any``, ``list[...]``,
            ``dict[str, ...]``, a union of these, or a ``TypedDict``, whose other keys are not checked.
        where: The file, and the line if there are several values, for the message.
        remedy: What to do, for the message, like "; build the index again".

    Raises:
        InputError: If the value has another shape; the message names the place, and what was expected and found there.
    """
    if fault := _fault(value, shape):
        raise InputError(f"{where}: {fault}{remedy}")
    return value  # type: ignore[return-value]


# What JSON and TOML hold, by the Python type, for messages; a boolean is not an integer.
_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
    str: ((str,), "text"),
    bool: ((bool,), "true or false"),
    list: ((list,), "a list"),
    dict: ((dict,), "an object"),
    type(None): ((type(None),), "null"),
}


def _fault(value: Any, shape: Any, place: str = "") -> str:
    """Returns where and how a value differs from a shape; "" if it does not."""
    if get_origin(shape) is NotRequired:
        shape = get_args(shape)[0]
    kind, inner = get_origin(shape) or shape, get_args(shape)
    if kind is Any:
        return ""
    if kind in (Union, UnionType):
        faults = [_fault(value, each, place) for each in inner]
        others = [fault for fault in faults if not fault.startswith(f"{place}must be ")]  # a fault inside the value
        allowed = " or ".join(_KINDS[get_origin(each) or each][1] for each in inner)
        return "" if "" in faults else others[0] if others else f"{place}must be {allowed}, got {shown(value)}"
    fields = _fields(kind) if is_typeddict(kind) else {}
    types, name = _KINDS[dict if fields else kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
        return f"{place}must be {name}, got {shown(value)}"
    parts: Any = value.items() if isinstance(value, dict) else enumerate(value, 1) if isinstance(value, list) else ()
    if fields:
        optional = {key for key, each in fields.items() if get_origin(each) is NotRequired or not kind.__total__}
        if missing := sorted(fields.keys() - optional - dict(parts).keys()):
            return f"{place}{missing[0]}: is missing"
        parts = [(key, each) for key, each in parts if key in fields]
    elif not inner:
        return ""
    shapes = ((key, each, fields[key] if fields else inner[-1]) for key, each in parts)
    return next((fault for key, each, of in shapes if (fault := _fault(each, of, f"{place}{key}: "))), "")


@cache
def _fields(shape: Any) -> dict[str, Any]:
    return get_type_hints(shape, include_extras=True)
