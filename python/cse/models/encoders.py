"""The base class of encoders that are not transformers, under its public import path."""

from ..encoder.encoders import ENCODERS, OtherEncoder

__all__ = ["ENCODERS", "OtherEncoder"]
