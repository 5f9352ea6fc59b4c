from os import PathLike
from typing import Final, final

__version__: Final[str]
TOKENIZERS: Final[list[str]]

_Counts = tuple[int, int, int, int, int, int, int]
_File = tuple[str, int, int, str]
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
class Index:
    @staticmethod
    def open(dir: str | PathLike[str]) -> Index: ...
    @staticmethod
    def build(
        paths: list[str],
        tokenizer: str,
        encoding_errors: str,
        max_line_bytes: int,
        threads: int,
        progress: Progress | None = None,
    ) -> Index: ...
    @staticmethod
    def merge_to(dir: str | PathLike[str], shards: list[str]) -> Index: ...
    def transform(self, texts: list[str]) -> list[bytes]: ...
    def save(self, dir: str | PathLike[str]) -> None: ...
    def __len__(self) -> int: ...
    @property
    def tokenizer(self) -> str: ...
    @property
    def counts(self) -> _Counts: ...
    @property
    def files(self) -> list[_File]: ...
    @property
    def default_radius(self) -> int: ...
    def terms(self) -> list[str]: ...
    def by_rank(self) -> bytes: ...
    def df(self) -> bytes: ...
    def idf(self) -> bytes: ...
    def max_score(self) -> bytes: ...
    def augment(
        self,
        texts: list[str],
        rows: list[int],
        seed: int,
        epoch: int,
        copy: int,
        beta: float,
        radius: int | None,
        surface: str,
    ) -> tuple[list[str], _Report]: ...
    def replacements(
        self,
        text: str,
        row: int,
        seed: int,
        epoch: int,
        copy: int,
        beta: float,
        radius: int | None,
        surface: str,
    ) -> tuple[str, list[tuple[_Span, _Span, float]]]: ...
    def explain(
        self, text: str, seed: int, samples: int, beta: float, radius: int | None
    ) -> list[tuple[str, bool, int, float, float, int, list[str]]]: ...
    def augment_files(
        self,
        paths: list[str],
        output: str | PathLike[str] | None,
        seed: int,
        epoch: int,
        copy: int,
        beta: float,
        radius: int | None,
        surface: str,
        encoding_errors: str,
        max_line_bytes: int,
        threads: int,
        progress: Progress | None = None,
    ) -> _Report: ...

@final
class Rows:
    @staticmethod
    def read(paths: list[str], encoding_errors: str, max_line_bytes: int, progress: Progress | None = None) -> Rows: ...
    def __len__(self) -> int: ...
    @property
    def files(self) -> list[_File]: ...
    @property
    def repaired(self) -> int: ...
    def take(self, rows: list[int]) -> list[str]: ...
    def word_counts(self) -> bytes: ...
    def hashes(self) -> bytes: ...

def build_to(
    paths: list[str],
    dir: str | PathLike[str],
    tokenizer: str,
    matrix: bool,
    encoding_errors: str,
    max_line_bytes: int,
    threads: int,
    progress: Progress | None = None,
) -> tuple[_Counts, list[_File]]: ...
def random_bits(seed: int, epoch: int, rows: list[int], stream: int) -> bytes: ...
