"""The files of a classifier: in the subfolder ``classifier`` of its encoder, which copies and uploads hold too.

Vectors and row keys of the labelled texts, with which other rows are compared, are in the folder of the run; they are
neither copied nor exported.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from .. import io
from ..encoder.layout import CLASSIFIER
from ..encoder.taught import run_of
from ..errors import InputError
from ..identity import Keys, row_keys
from .calibration import LOWEST, Calibration
from .fitted import Fitted, Linear
from .labelled import Labelled
from .promise import DESIGN, Promise

ABOUT, WEIGHTS, VECTORS = "classifier.json", "classifier.safetensors", "labelled.safetensors"
VERSION = 1


class Stored(TypedDict):
    """The contents of ``classifier.json``."""

    version: int
    column: str
    classes: list[str | int | float | bool]
    scale: float | None
    how: str
    design: float
    why: str
    notes: list[str]


def save(fitted: Fitted, encoder_folder: Path) -> None:
    """Writes a classifier to the subfolder of an encoder's folder, as JSON and safetensors, without texts."""
    from safetensors.numpy import save_file

    calibration, promise = fitted.calibration, fitted.promise
    arrays = {"weights": fitted.linear.weights, "intercepts": np.maximum(fitted.linear.intercepts, LOWEST)}
    if calibration is not None:
        arrays["biases"] = calibration.biases
    if promise is not None:
        arrays |= {"truth": promise.truth, "predicted": promise.predicted, "confidence": promise.confidence}
    about: Stored = {
        "version": VERSION,
        "column": fitted.column,
        "classes": fitted.classes,
        "scale": None if calibration is None else calibration.scale,
        "how": "" if promise is None else promise.how,
        "design": DESIGN if promise is None else promise.design,
        "why": fitted.why,
        "notes": fitted.notes,
    }
    with io.fresh_folder(encoder_folder / CLASSIFIER) as fresh:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, fresh / WEIGHTS)
        (fresh / WEIGHTS).chmod(io.file_mode())
        (fresh / ABOUT).write_text(io.dumps(about, indent=1) + "\n", encoding="utf8")


def has_classifier(encoder_folder: Path) -> bool:
    return (encoder_folder / CLASSIFIER / ABOUT).is_file()


def load(encoder_folder: Path, width: int | None = None) -> Fitted:
    """Reads the classifier of an encoder, which has vectors of ``width`` dimensions, if that is known; raises
    ``InputError`` if there is none or it is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    folder = encoder_folder / CLASSIFIER
    if not has_classifier(encoder_folder):
        run = run_of(encoder_folder)
        if run is not None and not (run / "result.json").is_file():
            raise InputError(
                f"{run}: has no classifier, since it was stopped before its end; resume with: "
                f"cse train --resume {quote(str(run))}"
            )
        raise InputError(
            f"{run or encoder_folder}: has no classifier; train a run with labels: cse train TABLE --column TEXT "
            "--labels COLUMN (a run of an earlier version: repeat that command)"
        )
    about = io.read_json(folder / ABOUT, Stored)
    damaged = f"{folder}: is damaged; copy it again, or repeat cse train"
    try:
        arrays = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError):
        raise InputError(damaged) from None
    if width is None:
        width = arrays["weights"].shape[-1] if "weights" in arrays else 0
    shapes = {"weights": (len(about["classes"]), width), "intercepts": (len(about["classes"]),)}
    if about["scale"] is not None:
        shapes["biases"] = shapes["intercepts"]
    if about["how"] and "truth" in arrays:
        shapes |= dict.fromkeys(("truth", "predicted", "confidence"), (len(arrays["truth"]),))
    wrong = [name for name, shape in shapes.items() if name not in arrays or arrays[name].shape != shape]
    kinds = {"truth": "i", "predicted": "i"}
    wrong += [
        name
        for name, array in arrays.items()
        if array.dtype.kind != kinds.get(name, "f") or not np.isfinite(array).all()
    ]
    if wrong or about["version"] != VERSION or len(about["classes"]) < 2:
        raise InputError(damaged)
    intercepts = np.where(arrays["intercepts"] <= LOWEST, -np.inf, arrays["intercepts"])
    promise, calibration = None, None
    if about["scale"] is not None:
        calibration = Calibration(about["scale"], arrays["biases"])
    if about["how"] and "truth" in arrays:
        parts = (arrays["truth"], arrays["predicted"], arrays["confidence"])
        if min(map(len, parts)) < 1 or max(parts[0].max(), parts[1].max()) >= len(about["classes"]):
            raise InputError(damaged)
        promise = Promise(list(about["classes"]), *parts, about["how"], about["design"])
    linear = Linear(arrays["weights"], intercepts)
    return Fitted(about["column"], list(about["classes"]), linear, calibration, promise, about["why"], about["notes"])


def save_labelled(run: Path, labelled: Labelled, vectors: npt.NDArray[np.floating]) -> None:
    """Writes vectors and row keys of the labelled texts to the folder of a run."""
    from safetensors.numpy import save

    arrays: dict[str, npt.NDArray[Any]] = {
        "vectors": np.asarray(vectors, dtype=np.float32),
        "keys": row_keys(labelled.texts),
    }
    io.write_atomically(run / VECTORS, lambda file: file.write(save(arrays)))


def load_labelled(run: Path | None, width: int) -> tuple[npt.NDArray[np.float32], Keys] | None:
    """Returns what ``save_labelled`` wrote; None without a run, or for a run that has none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if run is None or not (run / VECTORS).is_file():
        return None
    try:
        arrays = load_file(run / VECTORS)
        vectors, keys = arrays["vectors"], arrays["keys"]
    except (OSError, KeyError, SafetensorError):
        vectors = keys = np.zeros(0)
    if vectors.shape != (len(keys), width) or keys.dtype != np.uint64 or not np.isfinite(vectors).all():
        raise InputError(f"{run / VECTORS}: is damaged; remove it, and rows are not compared with the labelled ones")
    return vectors, keys
