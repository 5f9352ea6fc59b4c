"""Method options that have their own command-line flags, like ``--beta`` for ``una.beta``.

This module imports neither pydantic nor NumPy, so that the command line starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_type_hints

from ..augment import AUGMENTATIONS
from ..features import ENCODER_METHODS
from ..losses import LOSS_TERMS
from ..registry import Note, Registry
from .settings import Augmentation, Loss, Model, marker

__all__ = ["MethodFlag", "method_flags", "switches"]

# Registries whose methods may have flags. Each stands with the class of settings under whose heading the help lists
# these flags, and with the setting that names the methods.
PLACES: tuple[tuple[Registry[Any], type[Any], str], ...] = (
    (AUGMENTATIONS, Augmentation, "negatives"),
    (ENCODER_METHODS, Model, "encoder_methods"),
    (LOSS_TERMS, Loss, "loss_terms"),
)


@dataclass(frozen=True)
class MethodFlag:
    """An option of a method, with its own command-line flag."""

    method: str
    option: str
    hint: Any
    """The annotated type of the option."""
    default: Any
    note: Note
    group: type[Any]
    """The class of settings under whose heading the option is shown."""
    named_by: str
    """The setting that names the method."""

    @property
    def keyword(self) -> str:
        """The option's name as a keyword argument of the configuration, and in configuration files."""
        return self.note.flag.removeprefix("--").replace("-", "_")


@cache
def method_flags() -> tuple[MethodFlag, ...]:
    """Returns a ``MethodFlag`` for each flag of a built-in method, in the order of registries, methods and options."""
    found = []
    for table, group, named_by in PLACES:
        for method, kind in table.flagged().items():
            annotations = get_type_hints(kind, include_extras=True)
            for each in fields(kind):
                note = marker(annotations[each.name], Note)
                if note is not None and note.flag:
                    found.append(
                        MethodFlag(method, each.name, annotations[each.name], each.default, note, group, named_by)
                    )
    return tuple(found)


def switches() -> dict[str, str]:
    """Returns, by name, the help texts of the augmentations that have flags ``--NAME`` and ``--no-NAME``."""
    return {name: (kind.__doc__ or "").split("\n\n")[0] for name, kind in AUGMENTATIONS.flagged().items()}
