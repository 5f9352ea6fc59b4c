"""Static embeddings (StaticEmbedding of sentence-transformers, model2vec): the mean of a text's token vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..errors import InputError, first_line
from .encoders import OtherEncoder
from .layout import read_modules
from .stages import build_stage, read_weights

__all__ = ["StaticEncoder"]


class StaticEncoder(OtherEncoder):
    """A sentence-transformers directory whose first module is a StaticEmbedding.

    Raises ``InputError`` for files that cannot be read.
    """

    summary = "mean of the vectors of the tokens (StaticEmbedding)"

    def __init__(self, what: str, device: str) -> None:
        super().__init__(what, device)
        from tokenizers import Tokenizer

        folder = Path(what)
        try:
            self.modules = read_modules(folder)
            first = folder / self.modules.transformer
            self.tokenizer = Tokenizer.from_file(str(first / "tokenizer.json"))
            weights = _folded(read_weights(first))
        except InputError:
            raise
        except Exception as error:  # tokenizers raises plain Exception
            why = first_line(error)
            raise InputError(f"{what}: the StaticEmbedding cannot be loaded ({why})") from None
        self.tokenizer.no_padding()
        self.embedding = nn.EmbeddingBag.from_pretrained(weights).to(device)
        self.stages = nn.Sequential(*(build_stage(stage) for stage in self.modules.stages)).to(device).eval()

    @property
    def embedding_dim(self) -> int:
        """D, the number of dimensions of an embedding."""
        width = self.embedding.embedding_dim
        for stage in self.stages:
            width = getattr(stage, "out_features", width)
        return int(width)

    @torch.no_grad()
    def encode(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
        precision: str = "fp32",
    ) -> npt.NDArray[np.float32]:
        """Returns the embeddings ``(n, D)``; ``precision`` has no effect."""
        out = np.empty((len(texts), self.embedding_dim), dtype=np.float32)
        for start in range(0, len(texts), batch_size):
            encoded = self.tokenizer.encode_batch(list(texts[start : start + batch_size]), add_special_tokens=False)
            lists = [each.ids for each in encoded]
            ends = np.cumsum([0, *map(len, lists)])
            ids = torch.tensor([token for ids in lists for token in ids], dtype=torch.long, device=self.device)
            vectors = self.stages(self.embedding(ids, torch.from_numpy(ends[:-1]).to(self.device)))
            if self.modules.normalize:
                vectors = nn.functional.normalize(vectors, dim=-1)
            out[start : start + len(lists)] = vectors.cpu().numpy()
            if progress:
                progress(len(lists))
        return out

    def files(self) -> list[Path]:
        """Returns the JSON and weight files of the folder and its subfolders."""
        return sorted(path for path in Path(self.what).rglob("*") if path.suffix in (".json", ".safetensors", ".bin"))


def _folded(weights: dict[str, Any]) -> Tensor:
    """Returns one vector per token, after applying model2vec's ``mapping`` (shared vectors) and ``weights``, if any."""
    if "embedding.weight" in weights:
        found: Tensor = weights["embedding.weight"]
        return found
    rows: Tensor = weights["embeddings"]
    if "mapping" in weights:
        rows = rows[weights["mapping"].long()]
    return rows * weights["weights"][:, None] if "weights" in weights else rows
