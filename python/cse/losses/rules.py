"""Checks which parts of a loss can be combined. This module imports nothing, so that the checks do not need torch."""

from __future__ import annotations

__all__ = ["incompatibility", "unused_negatives"]

WITHOUT_NEGATIVES = ("scd",)
"""Losses that use no negatives."""


def unused_negatives(loss: str | None, negatives: tuple[str, ...]) -> str | None:
    """Returns an error message if ``--negative`` is given with a loss that uses no negatives, else None."""
    if loss in WITHOUT_NEGATIVES and negatives:
        return f"--loss {loss}: uses no negatives, so --negative {negatives[0]} has no effect; leave one of them out"
    return None


def incompatibility(
    *,
    objective: str | None,
    logits: str,
    mixed: str | None,
    synthetic_pairs: bool,
    hard_negatives: bool,
    weighted: bool,
) -> str | None:
    """Returns an error message if a combination of loss parts is not defined, else None.

    Args:
        objective: ``infonce``, ``nt-xent``, or None if it is not known yet.
        logits: ``cosine`` or ``focal``.
        mixed: ``paper``, ``release`` or None.
        synthetic_pairs: Whether synthetic negatives are added as anchor-positive pairs (``--una-as pairs``).
        hard_negatives: Whether there are labelled hard negatives.
        weighted: Whether ``hard_negative_weight`` is not 1.
    """
    if mixed == "release":
        remedy = "use --mix-variant paper"
        if logits == "focal":
            return f"--mix-variant release: is defined for the standard logits only, not for --loss focal; {remedy}"
        if synthetic_pairs:
            return (
                "--mix-variant release: is not defined with --una-as pairs; "
                "use --una-as hard-negatives, or --mix-variant paper"
            )
        if objective == "nt-xent":
            return f"--mix-variant release: is defined for --objective infonce only; {remedy}"
    if weighted and not hard_negatives:
        return "--hard-negative-weight: needs a column of hard negatives; give --pairs a file with three columns"
    return None
