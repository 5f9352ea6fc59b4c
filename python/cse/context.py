"""Contexts, which give the methods of a run access to its corpus, TF-IDF index, encoder and other resources.

A method is constructed as ``Method(options, context)``; see ``docs/extending.md``. Augmentations, which make texts, get
a ``TextContext``; loss terms, feature methods, hooks and encoder methods get a ``ModelContext``, which also has the
encoder. Both are complete when they are made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from .background import ProgressCallback
from .data.classes import Classes
from .data.corpus import Corpus
from .data.pairs import LabelledPairs
from .errors import InputError, first_line
from .tfidf.index import TfidfIndex

if TYPE_CHECKING:
    from .encoder.encoder import Encoder
    from .encoder.trained import SentenceEncoder
    from .views import Frozen

MOST_VECTORS = 1 << 30
"""Bytes that the vectors of ``ModelContext.vectors_by`` may take."""


def _no_index(tokenizer: str | None) -> TfidfIndex:
    raise ValueError("open_index: this context has no TF-IDF index")


@dataclass
class TextContext:
    """The data of a run, for the methods that make texts."""

    open_index: Callable[[str | None], TfidfIndex] = _no_index
    """Returns the TF-IDF index of the run, which is opened, or built with this tokenizer (None: the default), at the
    first call."""
    corpus: Corpus = field(default_factory=lambda: Corpus.from_texts([""]))
    """The sentences; for labelled pairs, the anchors. Default: one blank row."""
    pairs: LabelledPairs | None = None
    """Labelled pairs; None if the run has no labelled pairs."""
    classes: Classes | None = None
    """The classes of the rows that teach; None if the run does not learn from labels."""
    rows: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """``(n,)`` numbers of the corpus rows to train on."""
    model: str = ""
    """Name or folder of the model that is trained."""
    device: str = "cpu"
    part: Callable[[int], slice] = field(default=lambda rows: slice(0, rows))
    """Returns the slice of rows that this process encodes, given the number of rows of the batch."""
    progress: ProgressCallback = lambda *_: None
    """Called during long work before training."""
    cache: str | None = None
    """The folder of the cache, if the user gave one."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Values by name, set by methods and read by methods that are constructed later."""
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files given to ``depends_on``, by path, and digests of the encoders of ``open_encoder``."""
    models: list[str] = field(default_factory=list)
    """Names of the models that methods have loaded, by which the encoder may learn what these were taught."""

    @property
    def index(self) -> TfidfIndex:
        """The TF-IDF index; see ``open_index``."""
        return self.open_index(None)

    def depends_on(self, path: str | Path) -> Path:
        """Declares a file that the results of the run depend on, and returns its path.

        The SHA-256 of the file is stored with the run. If the file changes, the run cannot be resumed. Raises
        ``InputError`` if the file cannot be read.
        """
        path = Path(path)
        try:
            with open(path, "rb") as file:
                self.files[str(path)] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from None
        return path

    def load_masked_language_model(self, name: str, flag: str) -> tuple[Frozen, Any]:
        """Loads a masked language model with frozen weights, on the device of the run; returns it and its tokenizer.

        ``name`` names a model, as for ``--model``, and ``flag`` names the option in messages. Raises ``InputError`` if
        the model cannot be loaded, or has no weights for masked language modelling or no mask token.
        """
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        from .encoder.resolve import find_model
        from .views import Frozen

        path = find_model(name).path
        try:
            model, report = AutoModelForMaskedLM.from_pretrained(path, local_files_only=True, output_loading_info=True)
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{flag}: {name} cannot be loaded as a masked language model ({first_line(error)})"
            ) from None
        if tokenizer.mask_token_id is None or report["missing_keys"]:
            missing = "mask token" if tokenizer.mask_token_id is None else "weights for masked language modelling"
            raise InputError(f"{flag}: {name} has no {missing}; name a checkpoint of a masked language model")
        return Frozen(model.float().to(self.device)), tokenizer


@dataclass(kw_only=True)
class ModelContext(TextContext):
    """The data and the encoder of a run, for the methods that change or compare embeddings. Any models other than the
    encoder are loaded on first use."""

    encoder: SentenceEncoder
    """The encoder that is trained."""
    used_rows: Callable[[], npt.NDArray[np.int64]] = lambda: np.zeros(0, dtype=np.int64)
    """Returns those of ``rows`` that the steps of the run use, ascending."""
    first_rows: Callable[[int], npt.NDArray[np.int64]] = lambda count: np.zeros(0, dtype=np.int64)
    """Returns the first ones of the first epoch, as many as are given."""

    @classmethod
    def of(cls, context: TextContext, **values: Any) -> Self:
        """Returns the context of the same run, with these ``values``."""
        return cls(**{each.name: getattr(context, each.name) for each in fields(TextContext)}, **values)

    @cached_property
    def base(self) -> Frozen:
        """A frozen copy of the encoder before training, on the same device; it is made on first use.

        All methods that use it share this copy.
        """
        import copy

        from .views import Frozen

        return Frozen(copy.deepcopy(self.encoder))

    def load_model(self, name: str, flag: str, *, same_tokens: bool = False) -> Frozen:
        """Loads a sentence encoder with frozen weights, on the device of the run.

        ``name`` names a model, as for ``--model``, and ``flag`` names the option in messages. With
        ``same_tokens``, the model must have the vocabulary of the run's encoder, so that it accepts the same token ids.
        Raises ``InputError`` if the model cannot be loaded, or lacks this vocabulary.
        """
        from .encoder.resolve import find_model
        from .encoder.trained import load_encoder
        from .views import Frozen

        self.models.append(name)
        source = find_model(name)
        model = load_encoder(source, source.pooler or "cls", for_inference=True)
        if same_tokens:
            self.check_tokens(model.tokenizer, name, flag)
        return Frozen(model.to(self.device))

    def open_encoder(self, name: str, flag: str, **settings: str | None) -> Encoder:
        """Opens any encoder, whatever its tokenizer, to compute vectors of rows with ``vectors_by``.

        ``name`` and ``flag`` are as for ``load_model``, and ``settings`` are
        ``prompt`` and ``pooler`` of ``Encoder``. The run can only be resumed with the same encoder. Raises
        ``InputError`` if it cannot be opened.
        """
        from .encoder.encoder import Encoder
        from .encoder.resolve import model_digest

        try:
            encoder = Encoder(name, device=self.device, **settings)  # type: ignore[arg-type]
        except InputError as error:
            text = str(error)
            raise InputError(text.replace("--model", flag) if "--model" in text else f"{flag}: {text}") from None
        self.models.append(name)
        self.files[f"{flag} {name}"] = model_digest(encoder)
        return encoder

    def vectors_by(self, encoder: Encoder, flag: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Returns the rows of the corpus that the run uses, ``(n,)``, and their vectors ``(n, D)``, as documents.

        The vectors are stored in the cache, where later runs find them. If the run uses most rows of the corpus, all
        are encoded, so that the runs of other folds and seeds find them too. Raises ``InputError`` if the vectors, or
        as many of the trained encoder, would take more than ``MOST_VECTORS`` bytes.
        """
        from .data.entries import cache_folder
        from .encoder.stored_vectors import stored_vectors

        used, rows = self.used_rows(), self.corpus.filled()
        if 2 * len(used) < len(rows):
            rows = used
        size = len(rows) * max(encoder.embedding_dim, self.encoder.width) * 4
        if size > MOST_VECTORS:
            raise InputError(
                f"{flag}: the vectors of {len(rows):,} rows would take {size / 2**30:.1f} GiB of memory, and "
                f"{MOST_VECTORS / 2**30:g} are allowed; use fewer rows, with --max-steps"
            )

        def report(done: int) -> None:
            self.progress(f"vectors of {flag}", done, len(rows), "sentences")

        vectors = stored_vectors(encoder, self.corpus, rows, cache_folder(self.cache), report)
        return used, vectors if rows is used else vectors[np.searchsorted(rows, used)]

    def load_same_masked_language_model(self, name: str, flag: str) -> Frozen:
        """As ``load_masked_language_model``, for a model with the vocabulary of the run's encoder."""
        model, tokenizer = self.load_masked_language_model(name, flag)
        self.check_tokens(tokenizer, name, flag)
        return model

    def check_tokens(self, tokenizer: Any, name: str, flag: str) -> None:
        """Raises ``InputError`` if the token ids of a tokenizer differ from the run's encoder."""
        own, added = self.encoder.tokenizer, tokenizer.num_special_tokens_to_add()
        if tokenizer.get_vocab() != own.get_vocab() or added != own.num_special_tokens_to_add():
            raise InputError(
                f"{flag}: {name} has another vocabulary or other special tokens than {self.encoder.source.name}; name "
                "a model with the same tokenizer"
            )
