"""Parts of cse for the trainer of sentence-transformers (extra ``cse[sentence-transformers]``).

``InfoNCELoss`` replaces ``MultipleNegativesRankingLoss`` with the losses of cse. ``add_negatives`` adds synthetic hard
negatives (UNA) to a ``datasets.Dataset``, and ``NegativesCollator`` redraws these negatives in every epoch.
``HalvesEvaluator`` scores an encoder without labels.
"""

from __future__ import annotations

from ..errors import InputError

try:
    import datasets  # noqa: F401
    from sentence_transformers.base.losses.gradcache import CachedLossMixin  # noqa: F401
except ImportError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in ("sentence_transformers", "datasets"):
        raise
    raise InputError(
        "cse.sentence_transformers: needs sentence-transformers 6.2 or later and datasets; "
        "run pip install 'cse[sentence-transformers]'"
    ) from None

from .evaluator import HalvesEvaluator
from .loss import InfoNCELoss
from .negatives import NegativesCollator, add_negatives, number_rows

__all__ = ["HalvesEvaluator", "InfoNCELoss", "NegativesCollator", "add_negatives", "number_rows"]
