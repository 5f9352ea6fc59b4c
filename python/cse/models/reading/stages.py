"""The modules of a sentence-transformers directory that follow its pooling: Dense, LayerNorm, Dropout and Normalize."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ...errors import InputError, first_line
from .layout import Stage, write_json


class Dense(nn.Module):
    """A linear layer with an activation, and optionally a residual connection.

    Args:
        settings: Contents of ``config.json`` as sentence-transformers writes it; only activations of ``torch.nn`` are
            supported.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        size, self.out_features = int(settings["in_features"]), int(settings["out_features"])
        self.activation_name = str(settings.get("activation_function") or "torch.nn.modules.activation.Tanh")
        self.activation = _activation(self.activation_name)
        self.linear = nn.Linear(size, self.out_features, bias=bool(settings.get("bias", True)))
        self.residual = bool(settings.get("use_residual", False))
        self.projection: nn.Linear | None = None
        if self.residual and size != self.out_features:
            self.projection = nn.Linear(size, self.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(B, in_features)`` to ``(B, out_features)``."""
        found: Tensor = self.activation(self.linear(x))
        if self.residual:
            found = found + (x if self.projection is None else self.projection(x))
        return found

    def stored(self) -> dict[str, Tensor]:
        """Returns the weights by their names in sentence-transformers."""
        return {_renamed(name, "projection.", "residual."): each for name, each in self.state_dict().items()}

    def load_stored(self, weights: dict[str, Tensor]) -> None:
        """Sets the weights from a dictionary in the form that ``stored`` returns."""
        self.load_state_dict({_renamed(name, "residual.", "projection."): each for name, each in weights.items()})

    def config(self) -> dict[str, Any]:
        """Returns the settings to store in ``config.json``."""
        found = {
            "in_features": self.linear.in_features,
            "out_features": self.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": self.activation_name,
        }
        return {**found, "use_residual": True} if self.residual else found


class LayerNorm(nn.Module):
    """Layer normalisation of the embedding."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(int(settings["dimension"]))

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(B, D)`` to ``(B, D)``."""
        found: Tensor = self.norm(x)
        return found

    def stored(self) -> dict[str, Tensor]:
        """Returns the weights by their names in sentence-transformers."""
        return self.state_dict()

    def load_stored(self, weights: dict[str, Tensor]) -> None:
        """Sets the weights from a dictionary in the form that ``stored`` returns."""
        self.load_state_dict(weights)

    def config(self) -> dict[str, Any]:
        """Returns the settings to store in ``config.json``."""
        return {"dimension": self.norm.normalized_shape[0]}


class Dropout(nn.Module):
    """Dropout on the embedding, during training."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.dropout = nn.Dropout(float(settings.get("dropout", 0.2)))

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(B, D)`` to ``(B, D)``."""
        found: Tensor = self.dropout(x)
        return found

    def stored(self) -> dict[str, Tensor]:
        """Returns an empty dictionary, since there are no weights."""
        return {}

    def config(self) -> dict[str, Any]:
        """Returns the settings to store in ``config.json``."""
        return {"dropout": self.dropout.p}


class Normalize(nn.Module):
    """Scales embeddings to unit length."""

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(B, D)`` to ``(B, D)``."""
        return nn.functional.normalize(x, dim=-1)

    def stored(self) -> dict[str, Tensor]:
        """Returns an empty dictionary, since there are no weights."""
        return {}

    def config(self) -> dict[str, Any]:
        """Returns the settings to store in ``config.json``."""
        return {}


KINDS: dict[str, Any] = {"Dense": Dense, "LayerNorm": LayerNorm, "Dropout": Dropout, "Normalize": Normalize}


def build_stage(stage: Stage) -> nn.Module:
    """Returns the module of a stage with its stored weights; raises ``InputError`` if they cannot be loaded."""
    try:
        module: nn.Module = KINDS[stage.kind](stage.settings)
        if stage.kind in ("Dense", "LayerNorm"):
            module.load_stored(read_weights(stage.folder))  # type: ignore[operator]
    except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
        if isinstance(error, InputError):
            raise
        why = first_line(error)
        raise InputError(f"{stage.folder}: the module {stage.kind} cannot be loaded ({why})") from None
    return module


def save_stage(module: Any, folder: Path) -> None:
    """Writes a stage in the format of sentence-transformers."""
    folder.mkdir()
    if settings := module.config():
        write_json(folder / "config.json", settings)
    if weights := module.stored():
        save_file({k: v.detach().cpu().contiguous() for k, v in weights.items()}, folder / "model.safetensors")


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Returns the weights in ``model.safetensors`` or, if there is no such file, ``pytorch_model.bin``, as float32.

    Integer tensors keep their type. No pickled code is run.
    """
    path = folder / "model.safetensors"
    stored = load_file(path) if path.exists() else torch.load(folder / "pytorch_model.bin", "cpu", weights_only=True)
    return {name: values.float() if values.is_floating_point() else values for name, values in stored.items()}


def _renamed(name: str, old: str, new: str) -> str:
    return new + name.removeprefix(old) if name.startswith(old) else name


def _activation(name: str) -> nn.Module:
    """Returns the activation with this dotted name; raises ``InputError`` if it is not a module of ``torch.nn``."""
    where, _, last = name.rpartition(".")
    found = None
    if where.split(".")[:2] == ["torch", "nn"]:
        try:
            found = getattr(importlib.import_module(where), last, None)
        except ImportError:
            found = None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise InputError(f"the activation {name} of a Dense module is not a module of torch.nn; use one that is")
    module: nn.Module = found()
    return module
