"""The sentence encoder: a SentenceTransformer with what training and evaluation with cse need."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as library
from sentence_transformers.util import quantize_embeddings
from torch import nn

from .._core import is_blank
from ..errors import InputError, ModelWarning, check_list, for_python, unknown
from ..io import copy_files
from ..progress import counting
from .base import Calls, TextEncoder, Vectors, check_finite, unit
from .device import autocast, copied_to, pick_device, pick_precision
from .fast.lengths import batches_by_length
from .layout import files_to_copy, model_files, read_settings, transformer_folder
from .light import STATIC
from .modules import (
    Head,
    OnlyIn,
    Transformer,
    check_width,
    in_evaluation,
    normalizes,
    split,
)
from .older_names import load_as_stored, write_facts, write_older_names
from .other import ENCODERS, OtherEncoder
from .pooling import POOLERS
from .pooling_modules import MaskPooling, pooler_of, pooling_modules
from .resolve import base_of, family_in, find_folder, naming_model, naming_panics, quiet
from .tokens import TOKENIZING, missing_end, pad

# Number of texts that are sorted by length at a time.
BLOCK = 16384
# Arguments with which the Transformer of sentence-transformers returns lists of tokens without padding.
UNPADDED = {"text": {"padding": False}, "common": {"return_tensors": None}}
LOCAL = {"local_files_only": True, "trust_remote_code": False}


class Encoder(TextEncoder, SentenceTransformer):
    """A sentence encoder: a ``SentenceTransformer`` that is loaded with checks and encodes in groups of similar length.

    Everything that sentence-transformers does with a model works: ``similarity`` of embeddings, ``save_pretrained``,
    ``push_to_hub``, and programs that take a ``SentenceTransformer``. No code of a model's folder is run, and no file
    is opened as a pickle.

    Args:
        model: Folder of a trained encoder (``runs/NAME/best``), folder or hub name of a model of transformers or
            sentence-transformers, or ``minilm``. Other kinds of encoders are given as ``onnx:FOLDER`` and so on (see
            ``cse.encoder.other``).
        pooler: See ``cse.encoder.pooling.POOLERS``. Default: the pooling that the folder declares. For a plain
            Hugging Face folder, which declares none, the default is as in sentence-transformers, ``avg``, or
            ``lasttoken`` for a decoder; ``avg`` is wrong for a model trained with [CLS] pooling.
        device: A PyTorch device; ``auto`` is the GPU if there is one (CUDA, Apple or Intel), else the CPU.
        precision: Precision in which texts are encoded: ``fp32``, ``bf16`` or ``auto``, which is bf16 on CUDA and on
            processors that are faster with it (see ``cse.encoder.device.pick_precision``), else fp32. Embeddings are
            always float32.
        prompt: Prompt that ``encode`` puts before each sentence: the name of one of the model's prompts, or a text.
            Default: the default prompt of the model, if it declares one.
        dims: Number of leading dimensions to keep; embeddings of unit length are then scaled to unit length again.
            Default: all, or the ``truncate_dim`` that the model declares (truncated without scaling, as in
            sentence-transformers).
        modules: Modules of sentence-transformers, instead of ``model``.
        backend: ``torch``, ``onnx`` or ``openvino``; see sentence-transformers.

    Raises:
        InputError: If the pooler, the precision or the prompt is unknown, ``dims`` is not an integer from 1 to the
            number of dimensions of the model, the model cannot be found or loaded, or the device is not usable.
    """

    _default_prompts: ClassVar[dict[str, str | None]] = {}  # only the prompts that the model declares
    _module_classes: ClassVar[Mapping[str, type[nn.Module]]] = {
        f"sentence_transformers.{path}.{kind.__name__.removeprefix('Mask')}": kind
        for kind, paths in {
            Transformer: ("models", "base.modules.transformer", "sentence_transformer.modules"),
            MaskPooling: ("models", "sentence_transformer.modules.pooling", "sentence_transformer.modules"),
        }.items()
        for path in paths
    }

    @for_python
    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        *,
        pooler: str | None = None,
        device: str = "auto",
        precision: str = "fp32",
        prompt: str | None = None,
        dims: int | None = None,
        modules: Iterable[nn.Module] | None = None,
        backend: str = "torch",
        **settings: Any,
    ) -> None:
        if pooler is not None and pooler not in POOLERS:
            raise unknown("--pooler", pooler, POOLERS)
        name = "" if model is None else fspath(model)
        if bool(name) == (modules is not None):
            raise InputError("Encoder: give the name or folder of a model, or modules, and not both")
        self.given = name, pooler
        place = pick_device(device)
        self.precision, self.precision_reason = pick_precision(place, precision)
        """The precision that is used, ``fp32`` or ``bf16``, and the reason for it as text."""
        self.folder: Path | None = None
        """The local folder of the model."""
        self.base: str | None = None
        """Folder of the base model, if ``folder`` holds only an adapter."""
        self.family: str | None = None
        """The model family (such as ``bert-base``) that a cse run stored; see ``cse.training.settings.defaults``."""
        self.trained_dims: tuple[int, ...] = ()
        """Numbers of leading dimensions for which a cse run trained the encoder (Matryoshka)."""
        self.keeps_tokenizer = False
        """Whether every loader has to use all of tokenizer.json, since a template was added to it."""
        kind, colon, what = name.partition(":")
        if colon and kind in ENCODERS:
            other = ENCODERS.get(kind)(what, place)
            modules, settings = [other], {**settings, **other.declared}
        if modules is not None:
            super().__init__(modules=list(modules), device=place, **settings)
            if pooler is not None:
                self._choose_pooler(pooler)
        else:
            self.folder = find_folder(name).absolute()  # whatever the working folder becomes
            with naming_model(name, self.folder):
                self.base = base_of(transformer_folder(self.folder))
                with quiet():
                    super().__init__(str(self.folder), device=place, backend=backend, **LOCAL, **settings)
                self.float()
                if pooler is not None:
                    self._choose_pooler(pooler)
                settings = read_settings(self.folder / "config_sentence_transformers.json")
                self.family = family_in(settings)
                self.trained_dims = tuple(settings.get("cse_dims") or ())
                if self.pooler == "mask" and self.tokenizer.mask_token_id not in self.tokenizer("a")["input_ids"]:
                    raise InputError("--pooler mask: its tokenizer adds no mask token; use --encoder-method prompt")
                with quiet():
                    self._try()
                declared = read_settings(transformer_folder(self.folder) / "tokenizer_config.json")
                if self.pooler == "lasttoken" and (fault := missing_end(self.tokenizer, declared)):
                    warnings.warn(f"{name}: {fault}", ModelWarning, stacklevel=2)
        self.eval()
        self._choose_prompt(prompt)
        if dims is not None:
            self.keep_dims(dims)
        self._opened = self._counted()

    @property
    def changed(self) -> bool:
        """Whether the weights or ``max_seq_length`` were changed since the encoder was opened."""
        return self._counted() != self._opened

    def _counted(self) -> tuple[int, int | None]:
        """Returns how often weights were written to in place, as optimizers do, and the limit of tokens."""
        versions = (value._version for value in self.state_dict(keep_vars=True).values())
        return sum(versions), getattr(self, "max_seq_length", None)

    def _load_default_modules(self, model_name_or_path: str, *_: Any, **settings: Any) -> tuple[list[nn.Module], Any]:
        """Returns the modules for a plain Hugging Face folder: a transformer, and mean pooling or the last token."""
        names = ("model_kwargs", "processor_kwargs", "config_kwargs")
        options: dict[str, Any] = {name: {**LOCAL, **(settings.get(name) or {})} for name in names}
        transformer = Transformer(model_name_or_path, **options, backend=self.backend)
        if transformer.module_output_name != "token_embeddings":
            return [transformer], {}
        kinds = getattr(transformer.config, "architectures", None) or [""]
        causal = kinds[0].endswith("ForCausalLM") and getattr(transformer.config, "is_causal", True)
        pooling = library.Pooling(transformer.get_embedding_dimension(), "lasttoken" if causal else "mean")
        return [transformer, pooling], {}

    def _choose_pooler(self, pooler: str) -> None:
        transformer = self[0]
        if not isinstance(transformer, Transformer) or transformer.tokenizer is None:
            raise InputError(f"--pooler: {self.given[0]} has no pooling to choose; omit --pooler")
        pooling, after = split(self)
        declared = pooler_of(pooling)
        if pooler == "cls" and not self._declares and transformer.has_pooler:
            self.pool_by_checkpoint()
            return
        if pooler == declared or (pooler == "cls" and declared == "cls_before_pooler"):
            return
        included = all(getattr(module, "include_prompt", True) for module in pooling)
        chosen = pooling_modules(pooler, transformer, included)
        check_width(chosen, after, declared)
        self.replace_modules([transformer, *chosen, *after])

    def pool_by_checkpoint(self) -> None:
        """Replaces the pooling, and an MLP head, with the pooler of the checkpoint (linear, tanh)."""
        transformer: Any = self[0]
        transformer.modality_config = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
        transformer.module_output_name = "sentence_embedding"
        after = (module for module in split(self)[1] if not isinstance(module, Head))
        kept = (module for module in after if not isinstance(module, OnlyIn) or module.mode == "evaluation")
        self.replace_modules([transformer, *kept])

    def replace_modules(self, modules: Iterable[nn.Module]) -> None:
        """Sets the modules of the encoder."""
        listed, device = list(modules), self.device
        self._modules.clear()
        for number, module in enumerate(listed):
            self.add_module(str(number), module)
        self.to(device)

    @property
    def _declares(self) -> bool:
        return self.folder is None or (self.folder / "modules.json").exists()

    @property
    def plain(self) -> bool:
        """Whether neither the folder nor the caller specified the pooling."""
        return self.given[1] is None and not self._declares

    @property
    def other(self) -> OtherEncoder | None:
        """The module of an encoder that is not a transformer, such as ``onnx:FOLDER``, if it is one."""
        return self[0] if isinstance(self[0], OtherEncoder) else None

    @property
    def pooler(self) -> str:
        """The name of the pooling, one of ``POOLERS``; ``none`` if it has another one."""
        if isinstance(self[0], Transformer) and self[0].pools:
            return "cls"
        pooling, after = split(in_evaluation(self))
        name = pooler_of(pooling) or "none"
        kept = self.family is not None and any(isinstance(module, library.Dense) for module in after)
        return "cls" if name == "cls_before_pooler" and (kept or self.given[1] == "cls") else name

    @property
    def pooling(self) -> str:
        """The name and description of the pooling."""
        if self.other is not None:
            return self.other.summary
        if isinstance(self[0], library.StaticEmbedding):
            return STATIC
        name = self.pooler
        if name == "cls":
            trained = self[0].pools or any(isinstance(module, library.Dense) for module in in_evaluation(self))
            return f"cls: {'the trained pooler' if trained else 'the first token, without a trained pooler'}"
        if name == "none":
            return "declared: " + ", ".join(type(module).__name__ for module in in_evaluation(self))
        return f"{name}: {POOLERS[name]}"

    @property
    def similarity_name(self) -> str:
        """The similarity of embeddings that the model declares: ``cosine``, ``dot``, ``euclidean``, ``manhattan``."""
        return str(self.similarity_fn_name)

    @property
    def width(self) -> int:
        declared = (
            getattr(module, "get_embedding_dimension", lambda: None)() for module in reversed(in_evaluation(self))
        )
        return int(next((size for size in declared if size is not None), 0))

    @property
    def unit_length(self) -> bool:
        return self.other.unit_length if self.other is not None else normalizes(in_evaluation(self))

    def encode(
        self,
        texts: Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 64,
        show_progress_bar: bool | None = None,
        *,
        inputs: Iterable[str] | None = None,
        sentences: Iterable[str] | None = None,
        progress: Callable[[int], None] | None = None,
        task: str | None = None,
        convert_to_tensor: bool = False,
        convert_to_numpy: bool = True,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        precision: str = "float32",
        output_value: str | None = "sentence_embedding",
        device: Any = None,
        pool: Any = None,
        chunk_size: int | None = None,
        processing_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Encodes texts into embeddings; several threads may do so at the same time.

        Args:
            texts: Any iterable of strings, including NumPy arrays. The embedding of a blank text is 0 in
                all dimensions, as in ``cse encode``. Lone surrogates are replaced by U+FFFD, with a warning.
            prompt_name: Name of the prompt that is put before each text. Default: the prompt given to the constructor,
                else the default prompt of the model.
            prompt: Text that is put before each text; ``prompt_name`` is then ignored.
            batch_size: Texts per forward pass, at least 1.
            inputs, sentences: The names of ``texts`` in sentence-transformers, and before its release 5.
            show_progress_bar: Whether to show a progress bar.
            progress: Called with the number of texts encoded since its last call; blank texts are not counted.
            task: ``query`` or ``document``, for models with modules for each.
            convert_to_tensor: Whether to return a tensor on the device of the model.
            convert_to_numpy: False: a list of tensors is returned.
            normalize_embeddings: Whether to scale embeddings to unit length.
            truncate_dim: Number of leading dimensions, for this call.
            precision: ``float32``, ``int8``, ``uint8``, ``binary`` or ``ubinary``; see sentence-transformers.
            output_value, device, pool, chunk_size, processing_kwargs: See ``SentenceTransformer.encode``. With one that
                is not the default, that method encodes the texts: blank texts get the embedding of their special
                tokens, and ``progress`` is not called.

        Returns:
            ``(n, D)`` float32, one row per text; ``(D,)`` for a single string. With
            ``output_value="token_embeddings"``, a list of tensors ``(T, H)``, one row per token; with
            ``output_value=None``, a list of dicts of all outputs of the model.

        Raises:
            InputError: If an element of ``texts`` is not a string, ``batch_size``, ``truncate_dim`` or ``prompt_name``
                is not possible, or an embedding holds NaN or infinity.
        """
        texts = next((value for value in (texts, inputs, sentences) if value is not None), None)
        whole, prompt = self._checked(texts, prompt_name, prompt, batch_size)
        truncate_dim = self._checked_dims(truncate_dim, "truncate_dim")
        # Only the loop of sentence-transformers implements these arguments.
        settings: dict[str, Any] = {"device": device, "pool": pool, "chunk_size": chunk_size}
        settings |= {"processing_kwargs": processing_kwargs, "task": task}
        settings = {name: value for name, value in settings.items() if value is not None}
        made: Any
        if settings.keys() - {"task"} or output_value != "sentence_embedding":
            settings |= {"output_value": output_value, "precision": precision, "truncate_dim": truncate_dim}
            settings |= {"convert_to_tensor": convert_to_tensor, "convert_to_numpy": convert_to_numpy}
            settings |= {"normalize_embeddings": normalize_embeddings, "show_progress_bar": bool(show_progress_bar)}
            made = SentenceTransformer.encode(self, whole, prompt=prompt, batch_size=batch_size, **settings)
            if isinstance(made, np.ndarray) and len(made):
                check_finite(made, whole, self.given[0] or "encoder")
        else:
            with counting("encoding", len(whole), "texts") if show_progress_bar else nullcontext() as shown:
                calls = [call for call in (shown, progress) if call]
                made = self._vectors(whole, int(batch_size), prompt, task, calls)
            made = self._truncated(made, whole, truncate_dim)
            if normalize_embeddings:
                made = unit(made)
            if precision != "float32":
                made = quantize_embeddings(made, precision=precision)
            if convert_to_tensor:
                made = torch.from_numpy(made).to(self.device)
            elif not convert_to_numpy:
                made = list(torch.from_numpy(made))
        return made[0] if isinstance(texts, str) else made

    @torch.no_grad()
    def _vectors(self, texts: Sequence[str], size: int, prompt: str, task: str | None, calls: Calls) -> Vectors:
        out = np.zeros((len(texts), self.width), dtype=np.float32)
        filled = np.array([row for row, text in enumerate(texts) if not is_blank(text)], dtype=np.int64)
        routed = {} if task is None else {"task": task}
        device = self.device
        if self.training:
            self.eval()
        if self.other is not None:
            self.other.precision = self.precision
        # One context for all batches: autocast keeps the converted weights until its context ends.
        with autocast(str(device), self.precision), naming_panics():
            for start in range(0, len(filled), BLOCK):
                block = filled[start : start + BLOCK]
                for rows, features in self._batches([texts[row] for row in block.tolist()], size, prompt, routed):
                    for name, value in features.items():
                        features[name] = copied_to(value, device) if isinstance(value, torch.Tensor) else value
                    vectors = self(features, **routed)["sentence_embedding"]
                    out[block[rows]] = vectors.float().cpu().numpy()
                    for call in calls:
                        call(len(rows))
        return out

    def _batches(
        self, texts: list[str], batch_size: int, prompt: str, routed: dict[str, Any]
    ) -> Iterator[tuple[npt.NDArray[np.intp], dict[str, Any]]]:
        """Yields row numbers and features in batches of texts of similar length: in tokens, or else in characters."""
        first = self[0]
        if isinstance(first, Transformer) and "message" not in first.modality_config:
            tokens = first.preprocess(texts, prompt=prompt or None, processing_kwargs=UNPADDED, **routed)
            lists = {name: tokens.pop(name) for name in list(tokens) if isinstance(tokens[name], list)}
            if "attention_mask" in lists and all(
                isinstance(value, int) for column in lists.values() for row in column for value in row[:1]
            ):
                for rows in batches_by_length(lists["input_ids"], batch_size):
                    yield rows, {**tokens, **pad(first.tokenizer, lists, rows.tolist())}
                return
        for rows in batches_by_length(texts, batch_size):
            yield rows, self.preprocess([texts[row] for row in rows.tolist()], prompt=prompt or None, **routed)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Returns the similarity of each text or embedding on the left with each on the right.

        Args:
            embeddings1: n texts, or embeddings ``(n, D)``.
            embeddings2: m texts or embeddings.

        Returns:
            ``(n, m)``: for texts, an array of cosines, or of dot products if the model declares ``dot`` as its
            similarity; for embeddings, a tensor of the similarity that the model declares (``similarity_fn_name``).
        """
        left, right = (
            side if isinstance(side, (np.ndarray, torch.Tensor)) else check_list(side, "similarity", "texts")
            for side in (embeddings1, embeddings2)
        )
        for side in (left, right):
            if not isinstance(side, list) and side.ndim not in (1, 2):
                raise InputError(f"similarity: embeddings must be of shape (n, D) or (D,), got {tuple(side.shape)}")
        if not any(isinstance(side, list) and side and isinstance(side[0], str) for side in (left, right)):
            return super().similarity(left, right)
        first, second = self.encode(left), self.encode(right)
        return first @ second.T if self.similarity_name == "dot" else unit(first) @ unit(second).T

    def files(self) -> list[tuple[str, Path]]:
        """Returns the names and paths of the files that the embeddings depend on."""
        if self.other is not None:
            return [(path.name, path) for path in self.other.files()]
        return [] if self.folder is None else model_files(self.folder, self.base)

    def save(self, path: str, *arguments: Any, **settings: Any) -> None:
        """Saves the encoder as a folder that sentence-transformers loads, also older releases of it where possible.

        See ``SentenceTransformer.save``. The folder holds no path of this machine.
        """
        transformer = self[0]
        if isinstance(transformer, Transformer):
            backend = getattr(transformer.tokenizer, "backend_tokenizer", None)
            if backend is not None:  # a fast tokenizer stores the truncation and padding settings of its last call
                with TOKENIZING:
                    backend.no_truncation()
                    backend.no_padding()
        with self._as_in_evaluation():
            super().save(path, *arguments, **settings)
        write_facts(Path(path), cse_family=self.family, cse_dims=list(self.trained_dims))
        if isinstance(transformer, Transformer) and (self.keeps_tokenizer or transformer.do_lower_case):
            load_as_stored(Path(path), transformer.tokenizer)
        write_older_names(Path(path), self.max_seq_length if isinstance(transformer, Transformer) else None)

    def push_to_hub(self, *arguments: Any, **settings: Any) -> str:
        """Uploads the encoder; see ``SentenceTransformer.push_to_hub``.

        Of a folder ``local_model_path``, only the files of a model are uploaded. Raises ``InputError`` for a link out
        of the folder.
        """
        given = signature(super().push_to_hub).bind(*arguments, **settings).arguments
        if not given.get("local_model_path"):
            return str(super().push_to_hub(**given))
        folder = Path(given["local_model_path"])
        with TemporaryDirectory() as copy:
            copy_files(folder, Path(copy), files_to_copy(folder))
            return str(super().push_to_hub(**{**given, "local_model_path": copy}))

    @contextmanager
    def _as_in_evaluation(self) -> Iterator[None]:
        """Context manager in which the encoder and its configuration are set to evaluation."""
        every, transformer = list(self), self[0]
        self.replace_modules(in_evaluation(every))
        if isinstance(transformer, Transformer):
            states = transformer.config.output_hidden_states
            transformer.config.output_hidden_states = any(isinstance(m, library.WeightedLayerPooling) for m in self)
        try:
            yield
        finally:
            self.replace_modules(every)
            if isinstance(transformer, Transformer):
                transformer.config.output_hidden_states = states

    def _update_default_model_id(self, model_card: str) -> str:
        """Returns the card of a model with its name on the hub in the code that loads it."""
        return model_card.replace("this/folder", self.model_card_data.model_id or "this/folder")
