"""Cross-encoders of sentence-transformers, loaded with the checks of ``cse.Encoder``."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from typing import Any

import numpy as np
import numpy.typing as npt
from sentence_transformers import CrossEncoder

from ..errors import InputError, check_texts
from .base import repaired
from .device import autocast, pick_device, pick_precision
from .modules import Transformer
from .resolve import find_folder, naming_model
from .running.inference import Encoder, quiet


class Reranker(CrossEncoder):
    """A ``CrossEncoder`` with one score for a pair of texts; no code of its folder is run, and no pickle is opened.

    Args:
        model: Folder or hub name of the model.
        device: See ``cse.Encoder``.
        precision: See ``cse.Encoder``.
        flag: The option that names the model, for error messages.

    Raises:
        InputError: If the model cannot be found or loaded, is of another kind, or has several scores for a pair.
    """

    _module_classes = Encoder._module_classes

    def __init__(
        self, model: str | PathLike[str], *, device: str = "auto", precision: str = "fp32", flag: str = "--rerank"
    ) -> None:
        name, place = fspath(model), pick_device(device)
        self.name = name
        self.precision, _ = pick_precision(place, precision)
        try:
            folder = find_folder(name, "CrossEncoder")
            with naming_model(name, folder), quiet():
                super().__init__(str(folder), device=place, local_files_only=True, trust_remote_code=False)
                if self.num_labels != 1:
                    raise InputError(f"has {self.num_labels} scores for a pair of texts; name a model that has one")
        except InputError as error:
            message = str(error).replace("--model", flag)
            raise InputError(message if message.startswith(flag) else f"{flag} {message}") from None
        self.float()
        self.eval()

    def _load_default_modules(self, model_name_or_path: str, *_: Any, **__: Any) -> tuple[list[Any], Any]:
        """Returns the module for a folder without modules.json: a transformer that classifies sequences."""
        names = ("model_kwargs", "processor_kwargs", "config_kwargs")
        local: dict[str, Any] = {name: {"local_files_only": True, "trust_remote_code": False} for name in names}
        return [Transformer(model_name_or_path, transformer_task="sequence-classification", **local)], {}

    def score(self, query: str, texts: Sequence[str], batch_size: int = 64) -> npt.NDArray[np.float64]:
        """Returns the scores of n texts for a query, as ``CrossEncoder.rank`` computes them: ``(n,)`` float64."""
        with autocast(str(self.device), self.precision):
            pairs = [[repaired(query), repaired(text)] for text in check_texts(texts)]
            scores = self.predict(pairs, batch_size=batch_size, show_progress_bar=False)
        return np.asarray(scores, dtype=np.float64)
