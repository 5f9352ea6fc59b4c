from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Final, Protocol, final

from typing_extensions import Buffer

__all__ = [
    "TOKENIZERS",
    "Index",
    "InputError",
    "Numbers",
    "Progress",
    "Rows",
    "__version__",
    "build_to",
    "count",
    "count_rows",
    "diagnose",
    "hash_file",
    "merge",
    "random_bits",
    "save",
    "set_default_threads",
    "tokenize",
    "write_rows",
]

__version__: Final[str]
TOKENIZERS: Final[list[str]]

_Path = str | PathLike[str]
_Options = Mapping[str, object]

class _Column(Protocol):
    """A column of a table; see ``cse.data.readers.Column``."""

    path: str
    column: str
    def next_block(self) -> tuple[bytes, int] | None: ...

_Inputs = Sequence[str | _Column]
_Counts = tuple[int, int, int, int, int, int, int]
_File = tuple[str, int, int, str, str | None]
_Report = tuple[int, int, int, int, int, int, int]
_Span = tuple[int, int]

class InputError(ValueError): ...

@final
class Progress:
    def __new__(cls) -> Progress: ...
    @property
    def total(self) -> int: ...
    @property
    def done(self) -> int: ...
    def cancel(self) -> None: ...

@final
class Numbers:
    @property
    def __array_interface__(self) -> dict[str, Any]: ...

@final
class Index:
    @staticmethod
    def open(dir: _Path, min_df: int, max_terms: int | None) -> Index: ...
    @staticmethod
    def build(paths: _Inputs, words: _Options, reading: _Options, progress: Progress | None = None) -> Index: ...
    @staticmethod
    def from_texts(texts: Sequence[str], words: _Options, min_df: int, max_terms: int | None) -> Index: ...
    @staticmethod
    def merge_to(dir: _Path, shards: list[str]) -> Index: ...
    @staticmethod
    def from_bytes(bytes: bytes, min_df: int, max_terms: int | None) -> Index: ...
    def to_bytes(self) -> bytes: ...
    def save(self, dir: _Path) -> None: ...
    def transform(self, texts: Sequence[str]) -> list[bytearray]: ...
    def __len__(self) -> int: ...
    @property
    def tokenizer(self) -> tuple[str, bool, bool]: ...
    @property
    def counts(self) -> _Counts: ...
    @property
    def files(self) -> list[_File]: ...
    @property
    def default_radius(self) -> int: ...
    def terms(self) -> list[str]: ...
    def numbers(self, name: str) -> Numbers: ...
    def augment(self, texts: Sequence[str], rows: Sequence[int], drawing: _Options) -> tuple[list[str], _Report]: ...
    def replacements(
        self, text: str, row: int, drawing: _Options
    ) -> tuple[str, list[tuple[str, str, _Span, _Span, float, int, int]]]: ...
    def explain(
        self, text: str, samples: int, drawing: _Options
    ) -> list[tuple[str, bool, int, float, float, int, list[str], bool]]: ...
    def augment_files(
        self,
        paths: _Inputs,
        output: _Path | None,
        copies: int,
        as_records: bool,
        drawing: _Options,
        reading: _Options,
        progress: Progress | None = None,
    ) -> _Report: ...
    def augment_part(
        self,
        paths: _Inputs,
        output: _Path,
        compression: str,
        first_row: int,
        copies: int,
        as_records: bool,
        drawing: _Options,
        reading: _Options,
        progress: Progress | None = None,
    ) -> tuple[_Report, list[_File]]: ...

@final
class Rows:
    @staticmethod
    def read(paths: _Inputs, reading: _Options, progress: Progress | None = None) -> Rows: ...
    def __len__(self) -> int: ...
    @property
    def files(self) -> list[_File]: ...
    @property
    def repaired(self) -> int: ...
    def take(self, rows: list[int]) -> list[str]: ...
    def word_counts(self) -> bytes: ...
    def hashes(self) -> bytes: ...

def build_to(
    paths: _Inputs,
    dir: _Path,
    words: _Options,
    matrix: bool,
    reading: _Options,
    progress: Progress | None = None,
) -> tuple[_Counts, list[_File]]: ...
def count(paths: _Inputs, words: _Options, reading: _Options) -> bytes: ...
def count_rows(paths: _Inputs, reading: _Options, progress: Progress | None = None) -> list[_File]: ...
def merge(shards: list[bytes]) -> bytes: ...
def save(dir: _Path, bytes: bytes) -> tuple[_Counts, list[_File]]: ...
def tokenize(text: str, words: _Options) -> list[tuple[int, int, str]]: ...
def diagnose(paths: _Inputs, words: _Options, reading: _Options, progress: Progress | None = None) -> str: ...
def set_default_threads(threads: int) -> None: ...
def write_rows(
    paths: _Inputs, dir: _Path, reading: _Options, progress: Progress | None = None
) -> tuple[int, list[_File], int]: ...
def random_bits(seed: int, epoch: int, rows: Buffer, stream: int) -> bytes: ...
def hash_file(path: _Path) -> str: ...
