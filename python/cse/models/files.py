"""The files that the embeddings of a model depend on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .resolve import Source

__all__ = ["model_files"]

SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model")
MODULE = re.compile(r"\d+_\w+")
"""Names of the module folders of sentence-transformers, such as 1_Pooling."""


def model_files(source: Source) -> list[tuple[str, Path]]:
    """Returns the names and paths of the files of a model and its modules and, for an adapter, of the base model.

    The names do not depend on the location of the model's folder.
    """
    folder = Path(source.path)
    folders = [folder, *(path for path in folder.iterdir() if path.is_dir() and MODULE.fullmatch(path.name))]
    found = [path for each in folders for path in each.iterdir() if path.suffix in SUFFIXES and path.is_file()]
    files = [(str(path.relative_to(folder)), path) for path in found]
    # In older directories, module folders are next to the transformer's folder. An adapter's base can be anywhere.
    others = [stage.folder for stage in source.modules.stages if stage.folder.parent != folder]
    others += [Path(source.base)] if source.base else []
    files += [(f"{each.name}/{path.name}", path) for each in others for path in each.iterdir() if path.is_file()]
    return sorted(files)
