"""Opens an encoder for texts, by the small reader where it is enough."""

from __future__ import annotations

from contextlib import suppress
from os import PathLike, fspath
from typing import Any

from ..errors import InputError
from .light import LightEncoder, is_light


def open_encoder(model: str | PathLike[str], *, pooler: str | None = None, **settings: Any) -> Any:
    """Returns a ``LightEncoder`` if the model is a static embedding or an ONNX file, else a ``cse.Encoder``.

    The arguments are as for ``cse.Encoder``.
    """
    if pooler is None and is_light(fspath(model)):
        with suppress(InputError):  # cse.Encoder loads other modules, or says what is wrong
            return LightEncoder(model, prompt=settings.get("prompt"), dims=settings.get("dims"))
    from .encoder import Encoder

    return Encoder(model, pooler=pooler, **settings)
