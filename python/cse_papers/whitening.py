"""Whitened embeddings, as in BERT-whitening (Su et al. 2021, arXiv:2103.15316)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cse.encoder.encoder import Encoder
from cse.encoder.other import OtherEncoder
from cse.encoder.resolve import find_folder
from cse.errors import InputError
from cse.evaluation.base import read_lines


def fit_whitening(
    vectors: npt.NDArray[np.floating], dims: int | None = None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns the mean ``(D,)`` and the matrix ``(D, k)`` of the whitening (x - mean) W. The covariance of the n
    vectors (with divisor n - 1) is U diag(s) U'. W consists of the first ``dims`` columns of U diag(s^-1/2). Directions
    in which the vectors do not vary are left out; k is therefore at most n - 1."""
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
    """

    summary = "whitened embeddings of a model, fitted on a text file: whitening:MODEL@FILE[@DIMS]"
    LINES = 100_000

    def __init__(self, what: str, device: str) -> None:
        super().__init__(what, device)
        model, *others = what.split("@")
        if len(others) not in (1, 2) or (len(others) == 2 and not (others[1].isdigit() and int(others[1]))):
            raise InputError(f"whitening:{what}: the form is whitening:MODEL@FILE or whitening:MODEL@FILE@DIMS")
        self.file = Path(others[0])
        lines = [line for _, line in read_lines(self.file)]
        declared = (find_folder(model) / "modules.json").exists()
        self.base = Encoder(model, pooler=None if declared else "avg_first_last", device=device)
        step = -(-len(lines) // self.LINES)
        dims = int(others[1]) if len(others) == 2 else None
        self.mean, self.matrix = fit_whitening(self.base.encode(lines[::step]), dims)
        if dims and self.matrix.shape[1] < dims:
            raise InputError(f"whitening:{what}: {self.file} has only {self.matrix.shape[1]} independent directions")

    @property
    def embedding_dim(self) -> int:
        return int(self.matrix.shape[1])

    def encode(self, texts: Sequence[str], *, precision: str = "fp32", **settings: Any) -> npt.NDArray[np.float32]:
        self.base.precision = precision
        vectors = self.base.encode(texts, **settings)  # with the prompt used in fitting
        whitened: npt.NDArray[np.float32] = ((vectors - self.mean) @ self.matrix).astype(np.float32)
        return whitened

    def files(self) -> list[Path]:
        """Returns the file on which the transformation is fitted, and the files of the model."""
        return [self.file, *(path for _, path in self.base.files())]
