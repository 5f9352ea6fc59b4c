"""Applies one of several edits to each sentence, for diverse positives (AugCSE; Tang, Kocyigit and Wijaya 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ..errors import InputError, unknown
from .base import Draws, Edit

if TYPE_CHECKING:
    from ..context import Context

PURPOSE = "one of several edits"


@dataclass(frozen=True)
class OneOfOptions:
    """Options of ``one-of``. AugCSE uses twelve transformations of NL-Augmenter, which are not part of cse."""

    edits: Annotated[tuple[str, ...], Field(min_length=2, description="names of edits, run with default options")] = (
        "crop",
        "delete",
        "eda-swap",
        "eda-delete",
        "aeda",
        "repetition",
    )
    as_positive: Annotated[
        bool,
        Field(
            description="use the edited sentence as the positive; if false, the positive is the sentence itself under "
            "another dropout mask, and only loss terms such as augcse use the edited sentence"
        ),
    ] = True


def choices(uniform: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """Returns the indices of the chosen edits, ``(n,)`` in [0, count), from uniform numbers in [0, 1)."""
    found: npt.NDArray[np.int64] = np.minimum((uniform.astype(np.float32) * count).astype(np.int64), count - 1)
    return found


class OneOf(Edit):
    """Applies one of several edits, all equally likely, to each sentence.

    The edits change texts; ``repetition``, for example, repeats words.

    Raises ``InputError`` if a name in ``edits`` is not that of a fast edit, or is ``one-of`` itself.
    """

    Options = OneOfOptions
    summary = "one of several edits per sentence (AugCSE)"

    def __init__(self, options: OneOfOptions, context: Context) -> None:
        super().__init__(options, context)
        from . import AUGMENTATIONS

        self.edits: list[Edit] = []
        for name in options.edits:
            if name not in AUGMENTATIONS:
                raise unknown("one-of.edits", name, AUGMENTATIONS.names())
            kind: Any = AUGMENTATIONS.get(name)
            if not issubclass(kind, Edit) or kind.expensive or kind is OneOf:
                raise InputError(f"one-of.edits: {name} is not a fast edit of single sentences; leave it out")
            self.edits.append(kind(kind.Options(), context))
        # With these values, the loss term of AugCSE repeats the draw to find out which edit was applied to each row.
        context.told["edits"] = (len(self.edits), PURPOSE)

    @classmethod
    def is_positive(cls, options: OneOfOptions) -> bool:
        """Returns the option ``as_positive``."""
        return options.as_positive

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the edited sentences."""
        chosen = choices(draws.uniform(rows, PURPOSE)[:, 0], len(self.edits))
        edited = list(texts)
        for number, edit in enumerate(self.edits):
            places = np.flatnonzero(chosen == number).tolist()
            found = edit([texts[place] for place in places], rows[places], draws) if places else []
            for place, text in zip(places, found, strict=True):
                edited[place] = text
        return edited
