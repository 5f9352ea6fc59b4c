"""Checks which parts of a loss can be combined. This module imports nothing, so that the checks do not need torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

__all__ = ["incompatibility", "without_effect"]


def without_effect(
    loss: str, reads: Collection[str], given: Iterable[tuple[str, Collection[str]]], options: Mapping[str, str | None]
) -> str | None:
    """Returns an error message for the first given setting that cannot affect the loss, else None.

    Args:
        loss: Value of ``--loss``.
        reads: Roles of the views that the loss terms of the run read; see ``cse.losses.base.LossTerm.reads``.
        given: The flags that were given, each with the roles of the views that it changes or adds.
        options: Flags that were given but apply only to the contrastive losses, each with the option of the loss that
            has the same meaning, if there is one.
    """
    for flag, changed in given:
        if not set(changed) & set(reads):
            others = f"no {' and no '.join(f'{role}s' for role in sorted(changed))}"
            return f"--loss {loss}: uses {others}, so {flag} has no effect; leave one of them out"
    for flag, option in options.items():
        remedy = f"use --set {option}" if option else "leave one of them out"
        return f"--loss {loss}: does not use {flag}, which belongs to --loss standard, focal and mixed; {remedy}"
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
