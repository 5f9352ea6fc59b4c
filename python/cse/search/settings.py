"""Chooses the settings of a new index, and checks given settings and models against an existing index."""

from __future__ import annotations

from numbers import Integral
from pathlib import Path

from ..errors import InputError
from ..models.running.inference import Encoder
from ..models.running.passages import Cutter
from ..models.saving.merging import model_digest
from .store import Store

__all__ = ["check_model", "check_settings", "new_settings"]


def new_settings(encoder: Encoder, int8: bool, has_ids: bool, passages: int | str | None) -> dict[str, object]:
    """Returns the settings to be stored in the manifest of a new index."""
    name, pooler = encoder.given
    return {
        "model": str(Path(name).resolve()) if Path(name).is_dir() else name,
        "pooler": pooler,
        "prompt": getattr(encoder, "given_prompt", None),
        "dims": getattr(encoder, "dims", None),
        "digest": model_digest(encoder),
        "precision": encoder.precision,
        "width": encoder.embedding_dim,
        "similarity": _similarity(encoder),
        # Upper bound on the norms of the vectors; for dot products, it is raised as rows are added.
        "longest": 1.01 if _similarity(encoder) == "cosine" else 0.0,
        "int8": int8,
        "ids": has_ids,
        "passages": None if passages is None else _tokens(encoder, passages),
    }


def _similarity(encoder: Encoder) -> str:
    return "dot" if getattr(encoder, "similarity_name", None) == "dot" else "cosine"


def _tokens(encoder: Encoder, passages: int | str) -> int:
    if passages != "max" and (isinstance(passages, bool) or not isinstance(passages, Integral) or passages < 1):
        raise InputError(f"--passages: must be a number of tokens, or max, got {passages!r}")
    return Cutter(encoder, None if passages == "max" else int(passages)).tokens


def check_settings(store: Store, encoder: Encoder, int8: bool | None, passages: int | str | None, grows: bool) -> None:
    """Raises ``InputError`` if settings given by the caller differ from the settings of the index.

    If rows are about to be added (``grows``), the precision of the encoder must also equal the precision of the index.
    """
    known = store.manifest
    given: dict[str, object] = {}
    if int8 is not None:
        given["int8"] = int8
    if passages is not None:
        given["passages"] = _tokens(encoder, passages)
    if grows:
        given["precision"] = encoder.precision
    for name, value in given.items():
        if known[name] != value:
            built = f"with --{name} {known[name]}" if known[name] and known[name] is not True else f"with --{name}"
            if not known[name]:
                built = f"without --{name}"
            raise InputError(
                f"{store.folder}: was built {built}; use the same option, build the index again with --rebuild, or "
                "name another folder"
            )


def check_model(store: Store, encoder: Encoder) -> None:
    """Raises ``InputError`` if an index was built with another model, prompt or number of dimensions."""
    known = store.manifest
    for name, value in (("prompt", getattr(encoder, "given_prompt", None)), ("dims", getattr(encoder, "dims", None))):
        if name in known and known[name] != value:  # indexes of older versions lack these settings
            built = f"without --{name}" if known[name] is None else f"with --{name} {known[name]!r}"
            raise InputError(
                f"{store.folder}: was built {built}; use the same option, build the index again with --rebuild, or "
                "name another folder"
            )
    if known["digest"] != model_digest(encoder) or known["similarity"] != _similarity(encoder):
        raise InputError(
            f"{store.folder}: was built with another model ({known['model']}); use that model, build the index again "
            "with --rebuild, or name another folder"
        )
