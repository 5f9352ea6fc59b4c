"""What every encoder of texts does in the same way: prompts of queries and documents, checks, and truncation.

This module imports neither torch nor transformers.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, check_integer, check_texts, shortened, unknown
from ..io import repaired
from .prompts import DOCUMENT, QUERY, find_prompt, role_prompt

Vectors = npt.NDArray[np.float32]
Calls = Sequence[Callable[[int], None]]
"""Functions that are called with the number of texts encoded since their last call."""


def unwrapped(encoder: Any) -> Any:
    """Returns the encoder inside the wrappers of an evaluation, which have it as their attribute ``wrapped``."""
    while not isinstance(encoder, TextEncoder) and hasattr(encoder, "wrapped"):
        encoder = encoder.wrapped
    return encoder


def compared_by(encoder: Any) -> tuple[str, str]:
    """Returns by which product embeddings are ranked, ``dot`` or ``cosine``; and a note if the model declares another
    similarity, else ""."""
    named = ("similarity_name", "similarity_fn_name")  # of cse.Encoder and of SentenceTransformer
    declared = next(filter(None, (getattr(encoder, name, None) for name in named)), "cosine")
    used = "dot" if declared == "dot" else "cosine"
    return used, "" if declared in ("dot", "cosine") else f"declares {declared}; ranked by {used}"


class TextEncoder(ABC):
    """Base class of ``cse.Encoder`` and of ``cse.encoder.light.LightEncoder``."""

    given: tuple[str, str | None]
    """The arguments ``model`` and ``pooler``."""
    prompts: Mapping[str, str]
    """The prompts that the model declares, by name."""
    default_prompt_name: str | None
    given_prompt: str | None
    """The text of the prompt given to the constructor; None if there was none."""
    prompt: str
    """The text that ``encode`` puts before each sentence, unless the call specifies another prompt."""
    truncate_dim: int | None
    _rescaled = False

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of dimensions before truncation."""

    @property
    @abstractmethod
    def unit_length(self) -> bool:
        """Whether the model scales embeddings to unit length."""

    @abstractmethod
    def _vectors(self, texts: Sequence[str], size: int, prompt: str, task: str | None, calls: Calls) -> Vectors:
        """Returns the embeddings ``(n, width)``, 0 for blank texts."""

    @property
    def changed(self) -> bool:
        """Whether what it computes was changed after it was opened."""
        return False

    @property
    def dims(self) -> int | None:
        """The number of leading dimensions that are kept; None: all."""
        return None if self.truncate_dim is None else int(self.truncate_dim)

    def keep_dims(self, dims: int | None) -> None:
        """Sets the number of leading dimensions to keep; None keeps all.

        Raises ``InputError`` if ``dims`` is not an integer from 1 to the number of dimensions of the model.
        """
        self.truncate_dim, self._rescaled = self._checked_dims(dims), self.unit_length

    def encode(
        self,
        texts: Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 64,
        *,
        progress: Callable[[int], None] | None = None,
        task: str | None = None,
    ) -> Any:
        """Encodes texts into embeddings ``(n, D)`` float32, ``(D,)`` for a single string; see ``cse.Encoder``."""
        whole, prompt = self._checked(texts, prompt_name, prompt, batch_size)
        vectors = self._vectors(whole, int(batch_size), prompt, task, [progress] if progress else [])
        vectors = self._truncated(vectors, whole)
        return vectors[0] if isinstance(texts, str) else vectors

    def _try(self) -> None:
        """Encodes two sentences, which raises an error if the files of the model do not fit together."""
        # CANINE has no embedding of fewer characters than it merges into one state.
        self.encode(["This is a sentence.", "Another sentence is longer."], prompt="", task="query")

    @property
    def embedding_dim(self) -> int:
        """D, the number of dimensions of an embedding."""
        return min(self.dims or self.width, self.width)

    def encode_query(
        self,
        texts: Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *arguments: Any,
        **settings: Any,
    ) -> Any:
        """Encodes texts like ``encode``, but with the model's prompt for queries, named ``query``.

        If the model has no such prompt, the ``prompt`` given to the constructor is used, if any. As in
        sentence-transformers, the default prompt of the model is ignored. A model with modules for queries (a Router)
        uses them.
        """
        prompt = self.query_prompt if prompt is None and prompt_name is None else prompt
        return self.encode(texts, prompt_name, prompt, *arguments, **{"task": "query", **settings})

    def encode_document(
        self,
        texts: Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *arguments: Any,
        **settings: Any,
    ) -> Any:
        """Encodes texts like ``encode_query``, but with the prompt (and modules) for documents.

        The prompt for documents is the model's prompt named ``document``, else ``passage``, else ``corpus``.
        """
        prompt = self.document_prompt if prompt is None and prompt_name is None else prompt
        return self.encode(texts, prompt_name, prompt, *arguments, **{"task": "document", **settings})

    @property
    def document_prompt(self) -> str:
        """The text that ``encode_document`` puts before each text."""
        return self._role_prompt(DOCUMENT)

    @property
    def query_prompt(self) -> str:
        """The text that ``encode_query`` puts before each text."""
        return self._role_prompt(QUERY)

    def _role_prompt(self, names: tuple[str, ...]) -> str:
        own = role_prompt(self.prompts, names)
        return (self.given_prompt or "") if own is None else own

    def shortened(self, vectors: Vectors, dims: int) -> Vectors:
        """Returns the first ``dims`` dimensions, scaled to unit length if the model's embeddings have unit length."""
        return unit(vectors[:, :dims]) if self.unit_length else vectors[:, :dims]

    def _choose_prompt(self, prompt: str | None) -> None:
        """Sets the prompt that ``encode`` uses: a name or a text; None: the model's default prompt, if it has one."""
        self.given_prompt = None if prompt is None else find_prompt(prompt, self.prompts, self.given[0])
        default = self.prompts.get(self.default_prompt_name or "", "")
        self.prompt = default if self.given_prompt is None else self.given_prompt

    def _checked_dims(self, dims: Any, name: str = "--dims") -> int | None:
        if dims is None:
            return None
        width = self.width
        if isinstance(dims, bool) or not isinstance(dims, Integral) or not 1 <= int(dims) <= width:
            raise InputError(f"{name} {dims}: the embeddings of this model have {width} dimensions; give 1 to {width}")
        return int(dims)

    def _checked(self, texts: Any, prompt_name: str | None, prompt: str | None, size: Any) -> tuple[list[str], str]:
        """Returns the texts, without lone surrogates, and the prompt of a call of ``encode``."""
        check_integer(size, "batch_size")
        strings = check_texts([texts] if isinstance(texts, str) else texts)
        whole = [repaired(text) for text in strings]
        faulty = sum(new != old for new, old in zip(whole, strings, strict=True))
        if faulty:
            warnings.warn(f"lone surrogates were replaced with U+FFFD in {faulty} of the texts", stacklevel=3)
        if prompt is None and prompt_name is not None:
            if prompt_name not in self.prompts:
                raise unknown("prompt_name", prompt_name, self.prompts)
            prompt = self.prompts[prompt_name]
        return whole, self.prompt if prompt is None else prompt

    def _truncated(self, vectors: Vectors, texts: Sequence[str], dims: int | None = None) -> Vectors:
        """Returns the dimensions that are kept, scaled to unit length again if they were chosen by ``keep_dims``."""
        check_finite(vectors, texts, self.given[0] or "encoder")
        size = self.dims if dims is None else dims
        if size is None:
            return vectors
        return unit(vectors[:, :size]) if self._rescaled else vectors[:, :size]


class NotFinite(InputError):
    """An embedding holds NaN or infinity; ``row`` is the position of its text in the list of texts."""

    row = 0


def check_finite(vectors: npt.NDArray[Any], texts: Sequence[str], model: str) -> None:
    """Raises ``NotFinite``, which names the model and the text, if a row of ``vectors``, ``(n, D)``, is not finite."""
    with np.errstate(invalid="ignore"):
        sums = vectors.sum(1, dtype=np.float64)  # finite if all values are, without a mask of the size of the vectors
    faulty = np.flatnonzero(~np.isfinite(sums))
    if len(faulty):
        row = int(faulty[0])
        error = NotFinite(
            f"{model}: the embedding of {shortened(texts[row], 60)!r} holds NaN or infinity; "
            "use another model or, with bf16, the precision fp32"
        )
        error.row = row
        raise error


@contextmanager
def naming_rows(rows: Sequence[int] | npt.NDArray[np.integer]) -> Iterator[None]:
    """Context manager in which ``NotFinite`` names the row of a corpus; ``rows`` are the rows of the texts, from 0."""
    try:
        yield
    except NotFinite as error:
        raise InputError(f"row {rows[error.row] + 1:,}: {error}") from None


def unit(vectors: Vectors) -> Vectors:
    """Returns vectors of unit length; zero vectors stay as they are."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, 1e-12)  # type: ignore[no-any-return]
