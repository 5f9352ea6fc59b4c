"""Which combinations of loss parts are defined. Imports nothing, so that a configuration is checked without torch."""

from __future__ import annotations

__all__ = ["incompatibility"]


def incompatibility(
    *,
    objective: str | None,
    logits: str,
    mixed: str | None,
    synthetic_pairs: bool,
    hard_negatives: bool,
    weighted: bool,
) -> str | None:
    """Why a combination of loss parts is not defined, in one sentence; None if it is.

    Args:
        objective: ``infonce``, ``nt-xent``, or None if it is not known yet.
        logits: ``cosine`` or ``focal``.
        mixed: ``paper``, ``release`` or None.
        synthetic_pairs: Whether synthetic negatives have dropout twins (UNA as published).
        hard_negatives: Whether there are labelled hard negatives.
        weighted: Whether the own hard negative has a weight other than 1.
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
