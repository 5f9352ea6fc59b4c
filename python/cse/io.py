"""The store: how every command writes files that must survive a kill, a full disk, and a second process.

A file or folder is written next to its place under a temporary name, and then renamed; what killed processes left is
removed at the next write to the same folder. Below: JSON output, and the reader of JSON and TOML.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from ._core import hash_bytes, hash_file
from .errors import InputError, first_line, shown

T = TypeVar("T")


def lock(descriptor: int, taken: str = "", *, wait: bool = False) -> bool:
    """Locks an open file until it is closed; returns False if the file system does not support locks.

    If another process holds the lock, waits (``wait``), or raises ``InputError`` with the message ``taken``, or
    ``BlockingIOError``.
    """
    from filelock import lock_descriptor

    try:
        held = lock_descriptor(descriptor, blocking=wait)
    except OSError:
        return False
    if not held:
        raise InputError(taken) if taken else BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return True


@contextmanager
def locked(path: Path, taken: str = "", *, wait: bool = False) -> Iterator[bool]:
    """As ``lock``, for a file or folder, which may be renamed or removed within the context.

    If the path does not exist, a file next to it is locked, and removed at the end.
    """
    while True:
        beside = not path.exists()
        file = path.with_name(f".cse-{path.name}.lock") if beside else path
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT if beside else os.O_RDONLY)
        try:
            held = lock(descriptor, taken, wait=wait)
            if not os.fstat(descriptor).st_nlink:
                continue  # removed or replaced by the process that held the lock
            try:
                yield held
            finally:
                if beside:
                    with suppress(OSError):  # another process has opened it
                        file.unlink()
            return
        finally:
            os.close(descriptor)


# Patterns of the names of temporary files, locks and folders, which are locked while they are in use; the Rust core
# uses the same. While a folder is replaced, its previous version has a name that ends in ``.old``.
TEMPORARY = re.compile(r"\.cse-(core-.+\.tmp|.+\.lock)")
FRESH = re.compile(r"\.cse-new-[a-z0-9_]{8}-(?P<name>.+?)(?P<old>\.old)?")


def is_temporary(path: Path) -> bool:
    return bool(TEMPORARY.fullmatch(path.name) or FRESH.fullmatch(path.name))


def holds_files(folder: Path) -> bool:
    """Returns whether a folder holds files other than those that a killed process left."""
    return folder.is_dir() and not all(map(is_temporary, folder.iterdir()))


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Context manager that adds ``path`` to write errors without one; also converts errors of Rust libraries."""
    try:
        yield
    except OSError as error:
        where = Path() if error.filename is None else Path(os.fsdecode(error.filename))
        temporary = any(map(is_temporary, (where, *where.parents)))
        if error.filename is not None and not temporary:
            raise
        if error.errno is None:  # as raised by NumPy, with the numbers of bytes
            raise OSError(f"{path}: cannot be written ({first_line(error)})") from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    except Exception as error:
        if "os error" not in str(error) and "Error while serializing" not in str(error):
            raise
        raise OSError(f"{path}: cannot be written ({error})") from None


def file_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def copy_mode(source: Path, target: Path) -> None:
    """Gives a file the permission bits of another; if ``source`` does not exist, the bits of a new file."""
    target.chmod(source.stat().st_mode & 0o7777 if source.exists() else file_mode())


def write_atomically(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls ``write`` with a temporary file, then renames the file to ``path``; on an error, ``path`` is unchanged.

    A file that is replaced passes on its permissions. A device or a pipe is written to directly.
    """
    if os.path.exists(path):  # a dangling symbolic link is replaced, as in the Rust core
        path = os.path.realpath(path)
    path = Path(path)
    with naming(path):
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                write(file)
            return
        remove_leftovers(path.parent)
        temporary = None
        try:
            with _temporary_file(path.parent) as file, ExitStack() as held:
                temporary = file.name
                write(file)
                # The file is closed, which reports errors of network file systems, but stays locked until it is
                # renamed, because remove_leftovers removes files that are not locked.
                held.callback(os.close, os.dup(file.fileno()))
                file.close()
                copy_mode(path, Path(temporary))
                os.replace(temporary, path)
        finally:
            if temporary is not None and os.path.exists(temporary):
                os.unlink(temporary)


def _temporary_file(folder: Path) -> Any:
    while True:  # remove_leftovers elsewhere may remove the file before it is locked
        file = tempfile.NamedTemporaryFile(dir=folder, prefix=".cse-core-", suffix=".tmp", delete=False)  # noqa: SIM115
        with suppress(BlockingIOError):  # locked by the process that removes it
            lock(file.fileno())
            if os.path.exists(file.name):
                return file
        file.close()


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Context manager that makes a temporary folder next to ``folder``, locked, and removes it at the end."""
    with naming(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent)
        with ExitStack() as stack:
            while True:  # as in _temporary_file
                made = Path(tempfile.mkdtemp(prefix=".cse-new-", suffix=f"-{folder.name}", dir=folder.parent))
                with suppress(BlockingIOError, FileNotFoundError):
                    stack.enter_context(locked(made))
                    if made.is_dir():
                        break
            try:
                yield made
            finally:
                shutil.rmtree(made, ignore_errors=True)


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Context manager that makes a temporary folder, which replaces ``folder`` at the end or is removed on an error."""
    with temporary_folder(folder) as fresh:
        old = fresh.with_name(f"{fresh.name}.old")
        try:
            yield fresh
            # For a new folder, add the x bit wherever r is set.
            fresh.chmod(folder.stat().st_mode & 0o7777 if folder.is_dir() else file_mode() | (file_mode() & 0o444) >> 2)
            if folder.is_dir():
                with _held(folder):
                    os.replace(folder, old)
                    os.replace(fresh, folder)
            else:
                os.replace(fresh, folder)
        finally:
            if old.exists() and not folder.exists():
                os.replace(old, folder)
            shutil.rmtree(old, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Removes a folder. A process that is killed meanwhile leaves it under a temporary name, never incomplete."""
    aside = folder.with_name(f".cse-new-{secrets.token_hex(4)}-{folder.name}")
    os.replace(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Removes temporary files and folders that killed processes left in ``parent``; locked ones are in use and kept.

    A previous version of a folder that was moved aside and not replaced is renamed back.
    """
    with suppress(OSError):
        for name in sorted(os.listdir(parent)):
            path, folder = parent / name, FRESH.fullmatch(name)
            if not TEMPORARY.fullmatch(name) and not (folder and path.is_dir()):
                continue
            with suppress(FileNotFoundError), _held(path) as free:
                if not free:
                    continue
                if folder is None:
                    path.unlink()
                elif folder["old"] and not (parent / folder["name"]).exists():
                    os.replace(path, parent / folder["name"])
                else:
                    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Context manager that locks a path; yields False if it is already locked, or if locks are not supported."""
    with ExitStack() as stack:
        try:
            held = stack.enter_context(locked(path))
        except BlockingIOError:
            held = False
        yield held


def hash_files(folder: Path) -> dict[str, str]:
    """Flushes all files in a folder to the disk, and returns the hash of each by its path relative to the folder."""

    def flushed(name: str) -> str:
        with naming(folder / name), open(folder / name, "rb") as file:
            os.fsync(file.fileno())
        return hash_file(folder / name)

    names = sorted(contents(folder))
    with ThreadPoolExecutor(2) as threads:
        return dict(zip(names, threads.map(flushed, names), strict=True))


def check_files(folder: Path, hashes: Mapping[str, str], names: Iterable[str]) -> None:
    """Raises ``ValueError`` if one of the files ``names`` of a folder differs from its hash."""

    def check(name: str) -> None:
        try:
            same = hash_file(folder / name) == hashes.get(name)
        except OSError as error:
            raise OSError(f"{name}: {error}") from None
        if not same:
            raise ValueError(f"{name} differs from what was written")

    with ThreadPoolExecutor(2) as threads:
        for _ in threads.map(check, names):
            pass


def contents(folder: Path, names: Collection[str] = ()) -> set[str]:
    """Returns the paths, relative to a folder of a run or model, of its files, which may be read and copied.

    Hidden files are left out, and with ``names`` all that are not in files or folders of these names. Links to folders
    are not followed. Raises ``InputError`` for a link out of the folder, which would lead to files that the user did
    not name. In the cache of the hub (``models--NAME/snapshots/REVISION``), the files of a snapshot are links to the
    blobs of the same model.
    """
    root = os.path.realpath(folder)
    model, snapshots = os.path.split(os.path.dirname(root))
    cached = snapshots == "snapshots" and os.path.basename(model).startswith("models--")
    bounds = [root, os.path.join(model, "blobs")] if cached else [root]
    found = set()
    for place, folders, files in os.walk(folder):
        top = Path(place) == Path(folder)
        kept = [name for name in (*folders, *files) if name[0] != "." and not (top and names and name not in names)]
        for path in (Path(place, name) for name in kept):
            if path.is_symlink() and not any(Path(os.path.realpath(path)).is_relative_to(each) for each in bounds):
                raise InputError(f"{path}: is a link out of the folder; put a copy in its place, or remove it")
            if path.is_file():
                found.add(path.relative_to(folder).as_posix())
        folders[:] = [name for name in folders if name in kept]
    return found


def copy_files(source: Path, target: Path, names: Iterable[str], *, link_weights: bool = False) -> None:
    """Copies files from a folder to the same paths in another one, with their permissions.

    With ``link_weights``, weights, which a run never modifies in place, become hard links if the file system has these.
    """
    for name in sorted(names):
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if link_weights and name.endswith(".safetensors"):
            with suppress(OSError):
                os.link(source / name, copy)
                continue
        with open(source / name, "rb") as content, naming(copy), open(copy, "wb") as file:
            shutil.copyfileobj(content, file)
            file.close()
            copy_mode(source / name, copy)


class LineFile:
    """A file of lines that is only appended to, locked while it is open; an incomplete last line is removed."""

    def __init__(self, path: Path, taken: str = "") -> None:
        self.path = path
        while True:
            with naming(path):
                self._file = open(path, "a+b", buffering=0)  # noqa: SIM115  # closed by close()
            try:
                if taken:
                    lock(self._file.fileno(), taken)
                if os.fstat(self._file.fileno()).st_nlink:
                    break
            except BaseException:
                self.close()
                raise
            self.close()  # removed by the process that held the lock
        self._file.seek(0)
        content = self._file.readall()
        self.lines = content.split(b"\n")[:-1]
        if len(content) > (whole := content.rfind(b"\n") + 1):
            self._file.truncate(whole)

    def append(self, *lines: bytes, flush: bool = True) -> None:
        """Appends all lines, or none on an error, and, with ``flush``, waits until they are on the disk."""
        size = os.fstat(self._file.fileno()).st_size
        data = memoryview(b"".join(line + b"\n" for line in lines))
        with naming(self.path):
            try:
                while data:
                    data = data[self._file.write(data) :]
                if flush:
                    os.fsync(self._file.fileno())
            except BaseException:
                self._file.truncate(size)
                raise
        self.lines.extend(lines)

    def keep(self, count: int) -> None:
        self.lines = self.lines[:count]
        self._file.truncate(sum(len(line) + 1 for line in self.lines))

    def close(self) -> None:
        self._file.close()


class Journal(LineFile):
    """Records of the finished pieces of a job, each a line of its hash and JSON; the first is the key of the job.

    Records of a job with another key, and all that follow a changed line, are dropped.
    """

    def __init__(self, path: Path, key: object, taken: str) -> None:
        super().__init__(path, taken)
        key = json.loads(dumps(key))
        records = [*takewhile(lambda record: record is not None, map(_record, self.lines))]
        self.records: list[Any] = records[1:] if records and records[0] == key else []
        if self.records:
            self.keep(1 + len(self.records))
        else:
            self.keep(0)
            self.add(key)

    @staticmethod
    def key(path: Path) -> Any:
        """Returns the key of a journal; None if there is none, or if its first line was changed."""
        try:
            with open(path, "rb") as file:
                return _record(file.readline().removesuffix(b"\n"))
        except OSError:
            return None

    def add(self, record: object) -> None:
        text = dumps(record).encode()
        self.append(hash_bytes(text).encode() + b" " + text)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.close()


def _record(line: bytes) -> Any:
    check, _, text = line.partition(b" ")
    return json.loads(text) if check.decode("ascii", "replace") == hash_bytes(text) else None


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record, to be written as JSON, with a hash of its values; see ``is_sealed``."""
    values = json.loads(dumps(record))
    return {**values, "check": hash_bytes(dumps(values).encode())}


def is_sealed(record: Any) -> bool:
    """Returns whether a record that was read from JSON has the values with which ``sealed`` made it."""
    values = dict(record)
    return bool(values.pop("check", None) == hash_bytes(dumps(values).encode()))


def write_text(path: str | Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))


def dumps(value: object, indent: int | None = None) -> str:
    """Serialises to JSON; NaN and infinities become null, and the bytes of names that are not UTF-8 are escaped."""
    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False)
    return text if repaired(text) == text else json.dumps(_finite(value), indent=indent)


def repaired(text: str) -> str:
    """Returns a text with U+FFFD for each lone surrogate: a byte of a name of a file that is not UTF-8, or half a
    character, which neither files nor tokenizers can hold. ``cse.data.readers.find_again`` finds a file by such a name.
    """
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


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
    return parse_json(Path(path).read_bytes(), shape, path, remedy)


def parse_json(content: str | bytes, shape: type[T], where: object, remedy: str = "") -> T:
    return _parsed("JSON", lambda: json.loads(content), shape, where, remedy)


def read_toml(path: str | Path, shape: type[T], remedy: str = "") -> T:
    import tomllib

    content = Path(path).read_bytes()
    return _parsed("TOML", lambda: tomllib.loads(content.decode("utf-8-sig")), shape, path, remedy)


def _parsed(form: str, parse: Callable[[], object], shape: type[T], where: object, remedy: str) -> T:
    try:
        value = parse()
    except (ValueError, RecursionError) as error:  # invalid, not UTF-8, nested too deeply, an integer of 5,000 digits
        raise InputError(f"{where}: is not valid {form} ({first_line(error)}){remedy}") from None
    return checked(value, shape, where, remedy)


def checked(value: object, shape: type[T], where: object, remedy: str = "") -> T:
    """Returns a value unchanged if it has the declared shape, else raises ``InputError`` that names the place in it.

    A shape is a type of ``_KINDS``, ``Any``, a union, a tuple, or a ``TypedDict``, whose other keys are not checked,
    unless it has ``__other__``, the shape of their values.
    """
    if fault := _fault(value, shape):
        raise InputError(f"{where}: {fault}{remedy}")
    return value  # type: ignore[return-value]


class Finite(float):
    """The shape of a number that can be shown and drawn; other numbers may be NaN, infinite or of any size."""


# What JSON and TOML hold, by the Python type, for messages; a boolean is not an integer.
_KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "an integer"),  # of 64 bits
    Finite: ((int, float), "a finite number"),  # below 1e30
    tuple: ((list,), "a list"),
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
        faults = [_fault(value, member, place) for member in inner]
        others = [fault for fault in faults if not fault.startswith(f"{place}must be ")]  # a fault inside the value
        kinds = [dict if is_typeddict(member) else get_origin(member) or member for member in inner]
        allowed = " or ".join(_KINDS[member][1] for member in kinds)
        return "" if "" in faults else others[0] if others else f"{place}must be {allowed}, got {shown(value)}"
    fields = _fields(kind) if is_typeddict(kind) else {}
    types, name = _KINDS[dict if fields else kind]
    limit = {int: 2**63, Finite: 1e30}.get(kind)
    fits = isinstance(value, types) and (kind is bool or not isinstance(value, bool))
    if not fits or (limit is not None and not abs(value) < limit):
        return f"{place}must be {name}, got {shown(value)}"
    if kind is tuple and len(value) != len(inner):
        return f"{place}must be a list of {len(inner)}, got {len(value)}"
    parts: Any = value.items() if isinstance(value, dict) else enumerate(value, 1) if isinstance(value, list) else ()
    if fields:
        other = fields.get("__other__")
        fields = {key: field for key, field in fields.items() if key != "__other__"}
        optional = {key for key, field in fields.items() if get_origin(field) is NotRequired or not kind.__total__}
        if missing := sorted(fields.keys() - optional - dict(parts).keys()):
            return f"{place}{missing[0]}: is missing"
        parts = [(key, item) for key, item in parts if key in fields or other]
        fields = {key: fields.get(key, other) for key, _ in parts}
    elif not inner:
        return ""
    elif kind is tuple:
        fields = {key: inner[key - 1] for key, _ in parts}
        parts = enumerate(value, 1)
    shapes = ((key, item, fields.get(key, inner[-1] if inner else None)) for key, item in parts)
    return next((fault for key, item, of in shapes if (fault := _fault(item, of, f"{place}{key}: "))), "")


@cache
def _fields(shape: Any) -> dict[str, Any]:
    return get_type_hints(shape, include_extras=True)
