"""Published averages over the seven STS test sets, to be printed next to measured ones."""

from __future__ import annotations

__all__ = ["PUBLISHED", "SEED_NOTE", "TEXT_NOTE"]

PUBLISHED = [
    ("SimCSE-BERT-base", "76.25", "74.83, 75.32, 75.68"),
    ("SimCSE-BERT-base + Focal-InfoNCE", "77.33 ± 0.08", ""),
    ("MixCSE-BERT-base", "77.66", ""),
    ("UNA-BERT-base", "76.14", ""),
    ("UNA-BERT-base + paraphrases", "77.67", ""),
    ("SimCSE-RoBERTa-base", "76.57", "76.07, 76.49"),
    ("SimCSE-RoBERTa-base + Focal-InfoNCE", "77.60 ± 0.26", ""),
    ("UNA-RoBERTa-base", "76.74", ""),
    ("UNA-RoBERTa-base + paraphrases", "78.20", ""),
]
"""Model, published average, and averages of independent reproductions."""

SEED_NOTE = (
    "Over seeds, the average has a standard deviation of about 0.8 (UNA, table D8: SimCSE 75.16 ± 0.79, ten seeds)."
)

TEXT_NOTE = (
    "The published averages were measured on SentEval's text, which is tokenised and, except for SICK-R, lower-cased. "
    "Scores on the original text of the same pairs are not comparable."
)
