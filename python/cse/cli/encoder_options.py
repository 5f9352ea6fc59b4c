"""Options of the commands that encode with a model."""

from __future__ import annotations

from .options import option

__all__ = ["prompt"]

prompt = option(
    "--prompt", metavar="NAME|TEXT", help="Text before each sentence.", default_text="the model's default prompt"
)
