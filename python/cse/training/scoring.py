"""The scores of the encoder of a run during training: on development sets or, without them, without labels.

The label-free score is the mean reciprocal rank (MRR) with which one half of a held-out sentence retrieves the other;
see ``cse.evaluation.geometry``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..encoder.base import NotFinite
from ..encoder.trained import SentenceEncoder
from ..errors import InputError
from ..evaluation.base import Evaluation, Pairs
from ..evaluation.geometry import SplitHalf, unit
from ..evaluation.options import SplitHalfOptions, STSOptions
from ..evaluation.sts import STS

# Maximum number of held-out sentences for which neighbours and the cosine with synthetic negatives are computed.
NEIGHBOURS = 500
# Vectors of unit length of which no dimension differs by more than this are equal.
EQUAL = 1e-5
SAMPLE = 64
"""Number of rows whose embeddings are checked before training and at each evaluation."""

Vectors = npt.NDArray[np.float64]


class Scorer:
    """Scores the encoder that is trained.

    ``pairs`` are development sets by name, halves of the files if ``halved``; without them, the label-free score of the
    sentences ``held_out`` is used. Held-out sentences are encoded in ``precision``, and development sets in float32,
    since their scores are compared with the scores of other programs. The embeddings of ``sample`` must be finite.
    """

    def __init__(
        self,
        model: SentenceEncoder,
        pairs: Mapping[str, Pairs],
        held_out: list[str],
        negatives: list[str] | None = None,
        precision: str = "fp32",
        sample: Sequence[str] = (),
        halved: bool = False,
    ) -> None:
        self.scoring: dict[str, Evaluation] = {name: STS(STSOptions(), {name: each}) for name, each in pairs.items()}
        if held_out and not pairs:
            self.scoring["halves"] = SplitHalf(SplitHalfOptions(), held_out)
        self.model, self.pairs, self.held_out, self.precision = model, pairs, held_out, precision
        self.sample, self.halved, self.negatives = sample, halved, negatives or []

    @property
    def metric(self) -> str | None:
        """Metric by which encoders are evaluated: ``spearman``, ``mrr``, or None without evaluation data."""
        return "spearman" if self.pairs else "mrr" if self.held_out else None

    def scores(self, first: bool) -> tuple[dict[str, Any], Vectors | None]:
        """Returns the scores by name and, without development sets, the embeddings of the first held-out sentences.
        Raises ``NotFinite`` or ``EqualVectors`` for embeddings that cannot be scored and, at the first call, for a
        model that gives all texts the same vector, ``InputError``."""
        sample = self.encode(self.sample)
        if first and len(sample) > 1 and np.ptp(unit(sample), axis=0).max() < EQUAL:
            raise InputError(
                f"--model {self.model.source.name}: gives {len(sample)} different sentences the same vector, so that "
                "it cannot be trained; use another model or --pooler"
            )
        record = self._scores() if self.scoring else {}
        if self.pairs or not self.held_out:
            return record, None
        vectors = unit(self.encode(self.held_out[:NEIGHBOURS]))
        if self.negatives:
            record["cos_syn"] = float((vectors * unit(self.encode(self.negatives[:NEIGHBOURS]))).sum(1).mean())
        return record, vectors

    def fault(self, texts: Sequence[str]) -> str:
        """Returns the error of the first text whose embedding is not finite; "" if there is none."""
        try:
            self.encode(texts)
        except NotFinite as error:
            return str(error)
        return ""

    def encode(self, texts: Sequence[str], **settings: Any) -> npt.NDArray[np.float32]:
        """Returns the embeddings of texts in the precision of the run, ``(n, D)``."""
        return self.model.encode(texts, precision=self.precision, **settings)

    def _scores(self) -> dict[str, float]:
        """Returns the scores of the halves of held-out sentences, or the mean scores over the development sets and, if
        there are several, the correlation on each."""
        encoder = self.model if self.pairs else self
        rows = {name: evaluation(encoder).rows[0] for name, evaluation in self.scoring.items()}
        scores = {name: {key: x for key, x in row.items() if isinstance(x, float)} for name, row in rows.items()}
        record = {key: float(np.mean([score[key] for score in scores.values()])) for key in next(iter(scores.values()))}
        if len(scores) > 1:
            record.update({f"spearman/{name}": score["spearman"] for name, score in scores.items()})
        return record
