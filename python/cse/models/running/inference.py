"""Inference with a trained encoder: embeddings and similarities, also whitened ones.

Whitening is that of BERT-whitening (Su et al. 2021, arXiv:2103.15316).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InputError, check_texts, unknown
from ..device import pick_device, pick_precision
from ..encoders import OtherEncoder, find_encoder
from ..pooling import POOLERS, pooler_in_use
from ..reading.layout import Modules, is_static
from ..reading.prompts import DOCUMENT, QUERY, find_prompt, role_prompt
from ..reading.resolve import find_folder, find_model, model_files
from .encoder import SentenceEncoder, load_encoder
from .onnx import Onnx
from .static import StaticEncoder

Vectors = npt.NDArray[np.float32]


class Encoder:
    """A sentence encoder for inference.

    Args:
        model: Folder of a trained encoder (``runs/NAME/best``), folder or hub name of a Hugging Face model, or
            ``minilm``. Other kinds of encoders are given as ``glove:FILE``, ``whitening:MODEL@FILE`` and so on (see
            ``cse.models.encoders``). StaticEmbedding models of sentence-transformers are supported as well.
        pooler: See ``cse.models.pooling.pool``. Default: the pooling that a sentence-transformers directory declares.
            For a plain Hugging Face directory, which declares none, the default is ``avg``, as in
            sentence-transformers; this is wrong for a model trained with [CLS] pooling.
        device: A PyTorch device; ``auto`` is the GPU if there is one (CUDA, Apple or Intel), else the CPU.
        precision: Precision in which texts are encoded: ``fp32``, ``bf16`` or ``auto``, which is bf16 on CUDA and on
            processors that are faster with it (see ``cse.models.device.pick_precision``), else fp32. Embeddings are
            always float32.
        prompt: Prompt that ``encode`` puts before each sentence: the name of one of the model's prompts, or a text.
            Default: the default prompt of the model, if it declares one.
        dims: Number of leading dimensions to keep; embeddings of unit length are then scaled to unit length again.
            Default: all, or the ``truncate_dim`` that the model declares (truncated without scaling, as in
            sentence-transformers).

    Raises:
        InputError: If the pooler, the precision or the prompt is unknown, ``dims`` is not an integer from 1 to the
            number of dimensions of the model, the model cannot be found or loaded, or the device is not usable.
    """

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        pooler: str | None = None,
        device: str = "auto",
        precision: str = "fp32",
        prompt: str | None = None,
        dims: int | None = None,
    ) -> None:
        if pooler is not None and pooler not in POOLERS:
            raise unknown("--pooler", pooler, POOLERS)
        self.given = fspath(model), pooler
        """The arguments ``model`` and ``pooler``."""
        self.device = pick_device(device)
        self.precision, self.precision_reason = pick_precision(self.device, precision)
        """The precision that is used, ``fp32`` or ``bf16``, and the reason for it as text."""
        self.plain = False
        """True if neither the directory nor the caller specified the pooling; ``avg`` is then used."""
        name = fspath(model)
        self.model: SentenceEncoder | OtherEncoder
        modules = Modules()
        other = find_encoder(name, self.device)
        if other is None and is_static(folder := find_folder(name)):
            other = StaticEncoder(str(folder), self.device)
            modules = other.modules
        if other is not None:
            if pooler is not None:
                raise InputError(f"--pooler: {name} has no pooling to choose; leave it out")
            if isinstance(other, Onnx):
                modules = other.model.source.modules
            if other.queries_only:
                if prompt is not None or dims is not None:
                    raise InputError(f"--prompt, --dims: {name} was written with its own; leave them out")
                modules = Modules(similarity="dot")
            self.model, self.pooling = other, other.summary
        else:
            self.model, modules = self._load(name, pooler)
        self.prompts: Mapping[str, str] = modules.prompts
        """The prompts that the model declares, by name."""
        self.given_prompt = None if prompt is None else find_prompt(prompt, self.prompts, name)
        """The text of the prompt given to the constructor; None if there was none."""
        default = self.prompts.get(modules.default_prompt or "", "")
        self.prompt = default if self.given_prompt is None else self.given_prompt
        """The text that ``encode`` puts before each sentence, unless the call specifies another prompt."""
        self.similarity_name = modules.similarity
        """The similarity of embeddings that the model declares: ``cosine``, ``dot``, ``euclidean`` or ``manhattan``."""
        self._unit_length = modules.normalize
        self.dims, self._rescaled = modules.truncate_dim, False
        if dims is not None:
            self.keep_dims(dims)

    def _load(self, name: str, pooler: str | None) -> tuple[SentenceEncoder, Modules]:
        source = find_model(name)
        self.plain = source.pooler is None and pooler is None
        used = pooler_in_use(pooler, source.pooler)
        encoder = load_encoder(source, used, for_inference=True).to(self.device).eval()
        self.pooling = f"{used}: {POOLERS[used]}"
        """Name and description of the pooling."""
        if used == "cls":
            trained = encoder.use_trained_pooler or encoder.keep_head
            self.pooling = f"cls: {'the trained pooler' if trained else 'the first token, without a trained pooler'}"
        return encoder, source.modules

    def keep_dims(self, dims: int | None) -> None:
        """Sets the number of leading dimensions to keep; None keeps all.

        Raises ``InputError`` if ``dims`` is not an integer from 1 to the number of dimensions of the model.
        """
        width = self.model.embedding_dim
        if dims is not None and (isinstance(dims, bool) or not isinstance(dims, Integral) or not 1 <= dims <= width):
            raise InputError(f"--dims {dims}: the embeddings of this model have {width} dimensions; give 1 to {width}")
        self.dims, self._rescaled = dims, self._unit_length

    @property
    def embedding_dim(self) -> int:
        """D, the number of dimensions of an embedding."""
        return min(self.dims or self.model.embedding_dim, self.model.embedding_dim)

    def encode_query(self, texts: Iterable[str], **settings: Any) -> Vectors:
        """Encodes texts like ``encode``, but with the model's prompt for queries, named ``query``.

        If the model has no such prompt, the ``prompt`` given to the constructor is used, if any. As in
        sentence-transformers, the default prompt of the model is ignored.
        """
        return self._encode_role(texts, QUERY, settings)

    def encode_document(self, texts: Iterable[str], **settings: Any) -> Vectors:
        """Encodes texts like ``encode_query``, but with the prompt for documents.

        The prompt for documents is the model's prompt named ``document``, else ``passage``, else ``corpus``.

        Raises ``InputError`` if the model encodes only queries.
        """
        if isinstance(self.model, OtherEncoder) and self.model.queries_only:
            raise InputError(f"{self.given[0]}: encodes only queries; cse encode --hybrid encodes documents")
        return self._encode_role(texts, DOCUMENT, settings)

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

    def _encode_role(self, texts: Iterable[str], names: tuple[str, ...], settings: dict[str, Any]) -> Vectors:
        if settings.get("prompt") is None and settings.get("prompt_name") is None:
            settings = {**settings, "prompt": self._role_prompt(names)}
        return self.encode(texts, **settings)

    def encode(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> Vectors:
        """Encodes texts into embeddings.

        Args:
            texts: Any iterable of strings, including NumPy arrays. The embedding of a blank text is 0 in all
                dimensions, as in ``cse encode``. Lone surrogates are replaced by U+FFFD, with a warning.
            prompt_name: Name of the prompt that is put before each text. Default: the prompt given to the constructor,
                else the default prompt of the model.
            prompt: Text that is put before each text; ``prompt_name`` is then ignored.
            batch_size: Texts per forward pass, at least 1.
            progress: Called with the number of texts encoded since its last call; blank texts are not counted.

        Returns:
            ``(n, D)`` float32, one row per text.

        Raises:
            InputError: If ``texts`` is a single string or has an element that is not a string, if ``batch_size`` is
                not an integer of at least 1, or if the model has no prompt named ``prompt_name``.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
            raise InputError(f"batch_size: must be an integer of at least 1, got {batch_size!r}")
        given = check_texts(texts)
        whole = [repaired(text) for text in given]
        faulty = sum(new != old for new, old in zip(whole, given, strict=True))
        if faulty:
            warnings.warn(f"lone surrogates were replaced with U+FFFD in {faulty} of the texts", stacklevel=2)
        if prompt is None and prompt_name is not None:
            if prompt_name not in self.prompts:
                raise unknown("prompt_name", prompt_name, self.prompts)
            prompt = self.prompts[prompt_name]
        prompt = self.prompt if prompt is None else prompt
        filled = [row for row, text in enumerate(whole) if text.strip()]
        if len(filled) == len(whole):
            return self._vectors(whole, int(batch_size), progress, prompt)
        vectors = np.zeros((len(whole), self.embedding_dim), dtype=np.float32)
        if filled:
            vectors[filled] = self._vectors([whole[row] for row in filled], int(batch_size), progress, prompt)
        return vectors

    def _vectors(
        self, texts: list[str], batch_size: int, progress: Callable[[int], None] | None, prompt: str
    ) -> Vectors:
        if isinstance(self.model, OtherEncoder) and not isinstance(self.model, Onnx):
            texts = [prompt + text for text in texts] if prompt else texts
            found = self.model.encode(texts, batch_size=batch_size, progress=progress, precision=self.precision)
        else:
            found = self.model.encode(
                texts, batch_size=batch_size, progress=progress, precision=self.precision, prompt=prompt
            )
        return found if self.dims is None else self._cut(found, self.dims, self._rescaled)

    def shortened(self, vectors: Vectors, dims: int) -> Vectors:
        """Returns the first ``dims`` dimensions, scaled to unit length if the model's embeddings have unit length."""
        return self._cut(vectors, dims, self._unit_length)

    @staticmethod
    def _cut(vectors: Vectors, dims: int, scaled: bool) -> Vectors:
        return _unit(vectors[:, :dims]) if scaled else vectors[:, :dims]

    def similarity(self, left: Iterable[str], right: Iterable[str]) -> Vectors:
        """Returns the cosine similarity of each text in ``left`` with each in ``right``, ``(len(left), len(right))``.

        If the model declares ``dot`` as its similarity (``similarity_name``), dot products are returned instead.
        """
        first, second = self.encode(left), self.encode(right)
        return first @ second.T if self.similarity_name == "dot" else _unit(first) @ _unit(second).T


def repaired(text: str) -> str:
    """Replaces lone surrogates with U+FFFD: they cannot be encoded as UTF-8, and tokenizers reject them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _unit(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    points: Vectors = vectors / np.maximum(norms, 1e-12)
    return points


def fit_whitening(
    vectors: npt.NDArray[np.floating], dims: int | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns the mean ``(D,)`` and the matrix ``(D, k)`` of the whitening (x - mean) W.

    The covariance of the n vectors (with divisor n - 1) is U diag(s) U'. W consists of the first ``dims`` columns of
    U diag(s^-1/2). Directions in which the vectors do not vary are left out; k is therefore at most n - 1.
    """
    x = np.asarray(vectors, dtype=np.float64)
    mean = x.mean(0)
    u, s, _ = np.linalg.svd(np.cov((x - mean).T))
    rank = int((s > s[0] * max(x.shape) * np.finfo(np.float64).eps).sum())
    kept = min(rank, dims or rank)
    return mean, u[:, :kept] / np.sqrt(s[:kept])


class Whitening(OtherEncoder):
    """Whitened embeddings of a model (``whitening:MODEL@FILE`` or ``whitening:MODEL@FILE@DIMS``).

    The transformation is fitted on at most 100,000 non-blank lines of a text file, taken at regular intervals. The
    pooling is the one that the folder of the model declares. For a plain transformers directory, which declares none,
    it is ``avg_first_last``, as in the paper.

    Raises ``InputError`` if the name has a different form, or if the file cannot be read, has fewer than two different
    lines, or has too few independent directions for DIMS.
    """

    summary = "whitened embeddings of a model, fitted on a text file: whitening:MODEL@FILE[@DIMS]"
    LINES = 100_000

    def __init__(self, what: str, device: str) -> None:
        super().__init__(what, device)
        model, *others = what.split("@")
        if len(others) not in (1, 2) or (len(others) == 2 and not (others[1].isdigit() and int(others[1]))):
            raise InputError(f"whitening:{what}: the form is whitening:MODEL@FILE or whitening:MODEL@FILE@DIMS")
        self.file = Path(others[0])
        try:
            lines = [line for line in self.file.read_text(encoding="utf8").split("\n") if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"whitening:{what}: {self.file} cannot be read ({error})") from None
        if len(set(lines)) < 2:
            raise InputError(f"whitening:{what}: {self.file} needs at least two different lines")
        declared = find_model(model).pooler
        self.base = Encoder(model, pooler=None if declared else "avg_first_last", device=device)
        step = -(-len(lines) // self.LINES)
        dims = int(others[1]) if len(others) == 2 else None
        self.mean, self.matrix = fit_whitening(self.base.encode(lines[::step]), dims)
        if dims and self.matrix.shape[1] < dims:
            raise InputError(f"whitening:{what}: {self.file} has only {self.matrix.shape[1]} independent directions")

    @property
    def embedding_dim(self) -> int:
        """The number of dimensions that are kept."""
        return int(self.matrix.shape[1])

    def encode(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
        precision: str = "fp32",
    ) -> npt.NDArray[np.float32]:
        """Returns the whitened embeddings ``(n, k)``."""
        self.base.precision = precision
        found = self.base.encode(texts, batch_size=batch_size, progress=progress)  # with the prompt used in fitting
        whitened: npt.NDArray[np.float32] = ((found - self.mean) @ self.matrix).astype(np.float32)
        return whitened

    def files(self) -> list[Path]:
        """Returns the file on which the transformation is fitted, and the files of the model."""
        model = self.base.model
        found = model.files() if isinstance(model, OtherEncoder) else [path for _, path in model_files(model.source)]
        return [self.file, *found]
