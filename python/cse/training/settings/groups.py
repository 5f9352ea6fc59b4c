"""All settings of a run, in groups; the docstring of ``cse.training.parts.fields`` says what is read from them."""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints

from ..parts.data import Data, ResolvedData
from ..parts.encoder import Model, ResolvedModel
from ..parts.evaluation import Evaluation, ResolvedEvaluation
from ..parts.fields import Shown, marker
from ..parts.loss import Loss, ResolvedLoss
from ..parts.methods import Augmentation, ResolvedAugmentation
from ..parts.optimisation import Optimisation, ResolvedOptimisation
from ..parts.output import Output

GROUPS: tuple[type[Any], ...] = (Data, Model, Augmentation, Loss, Optimisation, Evaluation, Output)
_RESOLVED = (
    ResolvedData,
    ResolvedModel,
    ResolvedAugmentation,
    ResolvedLoss,
    ResolvedOptimisation,
    ResolvedEvaluation,
)
REQUIRED = [name for group in _RESOLVED for name in group.__annotations__]
"""Names of the settings that have a value in every run, given or by default."""


class Settings(Data, Model, Augmentation, Loss, Optimisation, Evaluation, Output):
    """All settings."""


@cache
def hints() -> dict[str, Any]:
    """Returns the annotated type of each setting by name, in the order of declaration."""
    return {name: hint for group in GROUPS for name, hint in get_type_hints(group, include_extras=True).items()}


def flag(name: object) -> str:
    """Returns the command-line flag of a setting; any other name is converted to the form of a flag."""
    shown = marker(hints()[str(name)], Shown) if str(name) in hints() else None
    return (shown and shown.flag) or "--" + str(name).replace("_", "-")
