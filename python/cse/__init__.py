"""cse: train contrastive sentence embeddings on unlabelled sentences or on labelled pairs.

>>> from cse import TfidfIndex, TrainConfig, ProgressCallback, train, Encoder

Public names are imported on first use, so that ``cse --help`` and ``cse build-tfidf`` import neither torch nor
transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._core import __version__

if TYPE_CHECKING:
    from .classifier.classifier import Classifier
    from .encoder.encoder import Encoder
    from .errors import InputError
    from .evaluation.run import Comparison, EvaluationResult, compare, evaluate
    from .search.index import SearchIndex
    from .tfidf.index import TfidfIndex
    from .training.callbacks import Callback, ProgressCallback
    from .training.loop import train
    from .training.run import RunResult
    from .training.settings.given import TrainConfig

__all__ = [
    "Callback",
    "Classifier",
    "Comparison",
    "Encoder",
    "EvaluationResult",
    "InputError",
    "ProgressCallback",
    "RunResult",
    "SearchIndex",
    "TfidfIndex",
    "TrainConfig",
    "__version__",
    "compare",
    "evaluate",
    "train",
]

_MODULES = {
    "Callback": ".training.callbacks",
    "ProgressCallback": ".training.callbacks",
    "Classifier": ".classifier.classifier",
    "Comparison": ".evaluation.run",
    "Encoder": ".encoder.encoder",
    "EvaluationResult": ".evaluation.run",
    "InputError": ".errors",
    "RunResult": ".training.run",
    "SearchIndex": ".search.index",
    "TfidfIndex": ".tfidf.index",
    "TrainConfig": ".training.settings.given",
    "compare": ".evaluation.run",
    "evaluate": ".evaluation.run",
    "train": ".training.loop",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'cse' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
