"""Exceptions for invalid input and for failed runs, and formatting of error messages."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from numbers import Integral
from typing import Any, TypeVar

from ._core import InputError as InputError

SPEAKS_OF_FLAGS = False
"""Whether messages name options by their flags. The command line sets it; in Python, messages name keywords."""
KEYWORDS: dict[str, str] = {}
"""Keywords of options whose flag has another name, such as ``--negative``; filled where the options are declared."""
FLAG = re.compile(r"(cse [a-z-]+ [^;,)]*)|(?<![\w-])--([a-z][a-z0-9-]*)")


def in_keywords(text: str) -> str:
    """Returns a message in which options are named by their keywords: ``batch_size`` instead of ``--batch-size``."""

    def keyword(match: re.Match[str]) -> str:
        return match[1] or KEYWORDS.get(f"--{match[2]}", match[2].replace("-", "_"))

    return FLAG.sub(keyword, text)


@contextmanager
def refusing_names() -> Iterator[None]:
    """Context manager in which the name of a file that is not UTF-8, if a library refuses it, is an ``InputError``."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InputError(f"{shortened(str(error.object), 60)!r} is not UTF-8; use another name") from None


Call = TypeVar("Call", bound=Callable[..., Any])


def for_python(function: Call) -> Call:
    """Decorator of public functions: outside the command line, their messages name keywords instead of flags."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            with refusing_names():
                return function(*arguments, **keywords)
        except InputError as error:
            if SPEAKS_OF_FLAGS:
                raise
            raise type(error)(in_keywords(str(error))) from None

    return call  # type: ignore[return-value]


class ModelWarning(UserWarning):
    """What a model declares does not agree with what it does."""


class RunError(RuntimeError):
    """A training run or an export failed after it began; the message gives the reason."""


class EqualVectors(InputError):
    """An encoder gives all texts the same vector, so that it cannot be scored."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal after its state was saved; ``code`` is the exit status, such as 130 for SIGINT."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


def check_list(values: Iterable[Any], name: str, holds: str) -> list[Any]:
    table = hasattr(values, "columns") or hasattr(values, "column_names")
    one = isinstance(values, (str, bytes, bytearray, Mapping)) or getattr(values, "shape", None) == ()
    if table or one or not isinstance(values, Iterable):
        kind = f"a {type(values).__name__}; pass one column of it" if table else f"one {type(values).__name__}"
        raise InputError(f"{name}: a list of {holds} was expected, not {kind}")
    return list(values)


def check_texts(texts: Iterable[str], name: str = "texts") -> list[str]:
    listed = check_list(texts, name, "texts")
    for number, text in enumerate(listed):
        if not isinstance(text, str):
            raise InputError(f"{name}: element {number} must be a string, got {shortened(repr(text))}")
    return [str(text) for text in listed]  # NumPy's str_ becomes str


def check_labels(labels: Iterable[Any], count: int) -> list[Any]:
    """Returns the labels of ``count`` texts; "" for None, NaN and missing values of pandas. Scalars of NumPy and torch
    are their values, bytes are UTF-8, and other objects than numbers and truth values are their text."""
    listed = check_list(labels, "labels", "labels")
    if len(listed) != count:
        raise InputError(f"labels: there must be one for each of the {count:,} texts, got {len(listed):,}")
    found = []
    for number, label in enumerate(listed):
        if getattr(label, "shape", ()) != ():
            raise InputError(
                f"labels: element {number} has the shape {tuple(label.shape)}, but a label is one value; of one-hot "
                "rows, pass the number of the class (labels.argmax(1))"
            )
        value = label.item() if hasattr(label, "item") else label
        if isinstance(value, (bytes, bytearray)):
            value = value.decode("utf8", "replace")
        none = value is None or type(value).__name__ in ("NAType", "NaTType") or value != value
        found.append("" if none else value if isinstance(value, (bool, int, float)) else str(value))
    return found


LARGEST = 2**31 - 1
"""The largest integer that an option or an argument accepts, unless its declaration states another limit. The libraries
that compute with it fail, or wrap around, at larger ones."""


def check_integer(value: Any, name: str, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= LARGEST:
        raise InputError(f"{name}: must be an integer of at least {least} and at most {LARGEST}, got {shown(value)}")
    return int(value)


def check_switch(value: Any, name: str) -> bool | None:
    if value is not None and not isinstance(value, bool) and getattr(getattr(value, "dtype", None), "kind", "") != "b":
        raise InputError(f"{name}: must be True or False, got {shown(value)}")
    return None if value is None else bool(value)


def check_ids(ids: Iterable[str | int]) -> list[str]:
    listed = check_list(ids, "ids", "ids")
    for number, value in enumerate(listed):
        if isinstance(value, bool) or not isinstance(value, (str, Integral)):
            raise InputError(f"ids: element {number} must be a string or an integer, got {shortened(repr(value))}")
    return [str(value) for value in listed]


def sentence(error: Exception) -> str:
    """Formats an ``InputError`` or ``OSError`` as one line, with the path if the error has one."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        missing = isinstance(error, FileNotFoundError)
        return f"{os.fspath(error.filename)}: {'no such file; check the path' if missing else error.strerror.lower()}"
    return str(error)


# Characters that a terminal obeys instead of showing them: control characters apart from tab and line feed, and those
# that change the direction of the rest of a line. Also halves of surrogate pairs, which no stream can encode.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Returns a text, for a terminal, in which characters that it would obey are escaped, such as ``\x1b``."""
    return OBEYED.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


def for_markdown(text: str) -> str:
    """Returns a text of anybody for a Markdown page: as ``visible``, and without HTML."""
    return html.escape(visible(text), quote=False)


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shortened(text: str, length: int = 120) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "\u2026"


def shown(value: object) -> str:
    """Formats a value of any type, depth and size for an error message, in at most 60 characters."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (Mapping, list, tuple, set)):
        return "an object" if isinstance(value, Mapping) else "a list"
    try:
        return shortened(repr(value), 60)
    except ValueError:  # an integer of more than 4300 digits
        return "an integer of thousands of digits"


# Maps names that other programs or papers use to the corresponding option values and options of cse.
_NAMES = {
    "avg": "average mean mean_pooling",
    "cls": "cls_token",
    "standard": "infonce simcse",
    "mixed": "mixcse",
    "focal": "focal-infonce",
    "--hard-negative-weight": "--alpha",
    "--batch-size": "--bs --per-device-train-batch-size",
    "--precision": "--bf16 --fp16",
    "--data": "--dataset",
    "--eval-every": "--eval-steps",
    "--device": "--gpu",
    "--accumulate": "--gradient-accumulation-steps",
    "--max-grad-norm": "--gradient-clip",
    "--lr": "--learning-rate",
    "--log-every": "--logging-steps",
    "--lr-scheduler": "--lr-scheduler-type --scheduler",
    "--max-length": "--max-seq-length",
    "--model": "--model-name --model-name-or-path",
    "--epochs": "--num-epochs --num-train-epochs",
    "--threads": "--num-workers",
    "--output": "--output-dir",
    "--pooler": "--pooling",
    "--save-every": "--save-steps",
    "--keep-checkpoints": "--save-total-limit",
    "--max-steps": "--steps",
    "--temperature": "--tau --temp",
    "--warmup": "--warmup-ratio",
}
OTHER_NAMES = {name: ours for ours, names in _NAMES.items() for name in names.split()}


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Returns " (did you mean X?)" with the choice X that is most similar to ``name``; "" if no choice is similar."""
    from difflib import get_close_matches

    known = list(choices)
    other = OTHER_NAMES.get(name.lower())
    matches = [other] if other in known else get_close_matches(name.lower(), known, n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""


def unknown(flag: str, name: str, choices: Iterable[str]) -> InputError:
    known = list(choices)
    return InputError(f"{flag}: {name!r} is unknown{did_you_mean(name, known)}; choose one of {', '.join(known)}")
