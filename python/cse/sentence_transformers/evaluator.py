"""The split-half score of ``cse eval --suite halves`` as an evaluator of sentence-transformers."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from ..data.corpus import HELD_OUT_WORDS
from ..errors import InputError, check_texts
from ..evaluation.base import Adapted
from ..evaluation.geometry import score_halves
from ..identity import distinct

FILE = "halves_evaluation{name}_results.csv"


class HalvesEvaluator(SentenceEvaluator):
    """Computes a score without labels: the mean reciprocal rank with which each half of a sentence retrieves the other.

    The score falls to the level of chance when embeddings collapse, so it detects collapse during training. It cannot
    rank good encoders, because the differences between their scores are small compared with the standard error.

    The metrics are ``mrr`` (from 0 to 1; the primary metric), its standard error ``mrr_se``, ``found_first`` (the
    fraction of halves that rank the other half first), ``alignment`` and ``uniformity``. Their names are prefixed with
    ``name``.

    Args:
        sentences: Sentences that are not used for training. Repeated sentences, and sentences of fewer than 8 words,
            are left out.
        name: Prefix of the metrics.
        limit: Maximum number of sentences; the first ones are used.
        batch_size: Texts per forward pass.
        write_csv: Whether to append the scores to a CSV file in the output folder of the trainer.

    Raises:
        InputError: If fewer than two sentences remain.
    """

    def __init__(
        self,
        sentences: Iterable[str],
        name: str = "",
        *,
        limit: int = 2000,
        batch_size: int = 32,
        write_csv: bool = True,
    ) -> None:
        super().__init__()
        texts = distinct(check_texts(sentences, "sentences"))
        self.sentences = [text for text in texts if len(text.split()) >= HELD_OUT_WORDS][:limit]
        if len(self.sentences) < 2:
            raise InputError(
                f"sentences: at least two different sentences of {HELD_OUT_WORDS} words or more are needed"
            )
        self.name, self.batch_size, self.write_csv = name, batch_size, write_csv
        self.primary_metric = "mrr"

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Returns the metrics of a ``SentenceTransformer``; the arguments are as for ``SentenceEvaluator``."""
        encoder = Adapted(model, batch_size=self.batch_size, show_progress_bar=False)
        scores = score_halves(encoder, self.sentences).to_dict()
        if output_path is not None and self.write_csv:
            folder, row = Path(output_path), {"epoch": epoch, "steps": steps, **scores}
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / FILE.format(name=f"_{self.name}" if self.name else "")
            is_new = not path.exists()
            with open(path, "a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(row))
                if is_new:
                    writer.writeheader()
                writer.writerow(row)
        metrics: dict[str, float] = self.prefix_name_to_metrics(scores, self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    @property
    def description(self) -> str:
        """Name of the score in model cards."""
        return "Split-half retrieval"

    def get_config_dict(self) -> dict[str, Any]:
        """Returns the parameters, for the model card."""
        return {"sentences": len(self.sentences)}
