"""What taught an encoder: the texts that it was trained on, and those of them whose labels it learned, or which were
in pairs, since pairs may have been made from labels.

A run keeps the row keys (``cse.identity``) of its texts in ``seen.npy``, and the keys of the letters of those with a
label or in a pair, together with those of its base model and of the models that taught it. Row keys are hashes without
a secret: whoever has them can test whether a guessed sentence was in the table. They are therefore never copied,
exported or shown. The configuration of a saved model only says (``LABELS``) that labels or pairs taught it: which
columns, and how many texts. It stays in all copies, also those that transformers or sentence-transformers saves. Of a
model without its run, the texts are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import io
from ..errors import InputError
from ..identity import Keys, letter_keys, row_keys
from .layout import best_of_run, read_settings, transformer_folder

SEEN = "seen.npy"
LABELS = "cse_labels"
"""The key of the configuration of a transformer, ``config.json``, that lists the columns that taught it."""
PAIRS = "--pairs"
"""What the list names instead of a column, if pairs taught the encoder."""
CONFIG = "config.toml"
OLD_FORM = np.dtype([("key", "<u8"), ("own", "?"), ("labels", "?")])
FORM = np.dtype([*((name, OLD_FORM[name]) for name in OLD_FORM.names or ()), ("pairs", "?"), ("letters", "?")])
"""A record of ``seen.npy``: the row key of a text, whether the run itself has seen it, whether its label taught, and
whether it was in a pair; or, with ``letters``, the key of the letters of a text whose label taught or, with ``pairs``
too, that was in a pair."""
NOT_KNOWN = (
    "labels or pairs of texts that are not known taught it, so that a judge by labels cannot call it better (of a run, "
    "copy the whole folder)"
)


def _none() -> Keys:
    return np.zeros(0, dtype=np.uint64)


@dataclass(frozen=True)
class Taught:
    """What taught an encoder, itself or through the models that it was made from."""

    texts: Keys = field(default_factory=_none)
    """Row keys of the texts that it was trained on or selected by, ascending."""
    own: Keys = field(default_factory=_none)
    """Those of the texts of the last run alone."""
    labelled: Keys = field(default_factory=_none)
    """Row keys of those of them whose labels taught it, ascending."""
    letters: Keys = field(default_factory=_none)
    """The keys of the letters of these, ascending."""
    paired: Keys = field(default_factory=_none)
    """Row keys of those of them that were in pairs, ascending."""
    paired_letters: Keys = field(default_factory=_none)
    """The keys of the letters of these, ascending."""
    columns: tuple[tuple[str, int], ...] = ()
    """The columns of labels that taught it, or ``PAIRS``, and the numbers of texts in them."""
    unknown: tuple[str, ...] = ()
    """The models that labels or pairs of texts that are not known taught."""

    @classmethod
    def by(cls, texts: Keys, labelled: Sequence[str] = (), column: str = "", paired: Sequence[str] = ()) -> Taught:
        """Returns what taught an encoder that learned texts, given their keys, some of them with a label in a column
        or in pairs."""
        known, (taught, letters), (pairs, others) = np.unique(texts), _keys(labelled), _keys(paired)
        columns = ((column, len(taught)),) if column else ()
        return cls(known, known, taught, letters, pairs, others, columns + (((PAIRS, len(pairs)),) if paired else ()))

    def after(self, earlier: Iterable[Taught]) -> Taught:
        """Returns what taught an encoder that this and, before it, its base and its teachers taught."""
        return replace(together([self, *earlier]), own=self.own)

    def described(self) -> list[str]:
        """Returns sentences about ``columns``."""
        return [
            f"Pairs of {count:,} texts taught it."
            if name == PAIRS
            else f"Labels of {count:,} texts taught it (column {name})."
            for name, count in self.columns
        ]

    def has_seen(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Returns for each text whether the encoder was trained on it, with its label or without."""
        return np.isin(row_keys(texts), self.texts)

    def has_labels(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Returns for each text whether its label taught the encoder, also as that of the same letters."""
        return _among(texts, self.labelled, self.letters)

    def has_pairs(self, texts: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Returns for each text whether it was in a pair that taught the encoder, also as one of the same letters."""
        return _among(texts, self.paired, self.paired_letters)


def _keys(texts: Sequence[str]) -> tuple[Keys, Keys]:
    """Returns the row keys of texts and the keys of their letters, ascending."""
    keys, first = np.unique(row_keys(texts), return_index=True)
    letters = np.unique(letter_keys([texts[row] for row in first.tolist()]))
    return keys, letters[letters > 0]


def _among(texts: Sequence[str], keys: Keys, letters: Keys) -> npt.NDArray[np.bool_]:
    """Returns for each text whether its row key or one of those of its letters is among these."""
    if not len(keys):
        return np.zeros(len(texts), dtype=bool)
    return np.isin(row_keys(texts), keys) | np.isin(letter_keys(texts), letters).any(1)


def together(many: Iterable[Taught]) -> Taught:
    """Returns what taught any of several encoders."""
    each = list(many)

    def joined(name: str) -> Keys:
        return np.unique(np.concatenate([_none(), *(getattr(taught, name) for taught in each)]))

    columns = tuple(dict.fromkeys(column for taught in each for column in taught.columns))
    unknown = tuple(dict.fromkeys(name for taught in each for name in taught.unknown))
    keys = {name: joined(name) for name in ("texts", "own", "labelled", "letters", "paired", "paired_letters")}
    return Taught(**keys, columns=columns, unknown=unknown)


def write_taught(run: Path, taught: Taught) -> None:
    """Writes ``seen.npy`` to the folder of a run. A record with the key 0 and labels says that there were unknown ones;
    no text has this key."""
    parts = [taught.texts, taught.letters, taught.paired_letters]
    count, last, total = np.cumsum([*map(len, parts)]).tolist()
    records = np.zeros(total + bool(taught.unknown), dtype=FORM)
    records["key"][:total] = np.concatenate(parts)
    for name, keys in (("own", taught.own), ("labels", taught.labelled), ("pairs", taught.paired)):
        records[name][:count] = np.isin(taught.texts, keys)
    records["letters"][count:total] = True
    records["pairs"][last:total] = True
    records["labels"][total:] = True
    io.write_atomically(run / SEEN, lambda file: np.save(file, records, allow_pickle=False))


def read_taught(run: Path) -> Taught | None:
    """Returns what ``seen.npy`` of a run says; None if there is none."""
    path = run / SEEN
    if not path.is_file():
        return None
    try:
        records = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError):
        records = None
    if getattr(records, "dtype", None) == OLD_FORM:
        known, records = records, np.zeros(np.shape(records), dtype=FORM)
        for name in OLD_FORM.names or ():
            records[name] = known[name]
    if records is None or getattr(records, "dtype", None) != FORM or records.ndim != 1:
        raise InputError(f"{path}: is damaged; restore it, or remove it, and labels of unknown texts taught this run")
    unknown = (str(run),) if bool((records["labels"] & (records["key"] == 0)).any()) else ()
    records = records[records["key"] != 0]
    keys, letters, pairs = records["key"], records["letters"], records["pairs"]
    masks = {"texts": ~letters, "own": records["own"], "labelled": records["labels"], "letters": letters & ~pairs}
    masks |= {"paired": pairs & ~letters, "paired_letters": pairs & letters}
    return Taught(**{name: np.unique(keys[mask]) for name, mask in masks.items()}, columns=(), unknown=unknown)


def run_of(model: str | Path) -> Path | None:
    """Returns the folder of the run that saved a model: this folder, or that of its best/, last/ or checkpoint."""
    above: list[Path] = []
    for folder in (Path(model), Path(model).resolve()):  # a link, or the current folder
        above += [folder, folder.parent, *list(folder.parents)[2:3]] if folder.name in ("best", "last") else [folder]
    runs = [each for each in above if (each / CONFIG).is_file() and (each / "best").is_dir()]
    return next((each for each in runs if (each / SEEN).is_file()), next(iter(runs), None))  # not a checkpoint


def columns_of(settings: Any) -> tuple[tuple[str, int], ...]:
    """Returns the columns of labels that a configuration of a model names."""
    listed = settings.get(LABELS) if isinstance(settings, dict) else getattr(settings, LABELS, None)
    if not isinstance(listed, list):
        return ()
    known = [each for each in listed if isinstance(each, dict) and isinstance(each.get("texts"), int)]
    return tuple((str(each.get("column")), each["texts"]) for each in known)


def declare(config: Any, columns: Iterable[tuple[str, int]]) -> None:
    """Adds columns to the configuration of a transformer, so that it says what taught a model that has been saved."""
    every = dict.fromkeys([*columns_of(config), *columns])
    if every:
        setattr(config, LABELS, [{"column": column, "texts": texts} for column, texts in every])


def declared(folder: Path) -> tuple[tuple[str, int], ...]:
    """Returns the columns of labels that the configuration of a saved model names."""
    settings = [read_settings(each / "config.json") for each in dict.fromkeys([folder, transformer_folder(folder)])]
    return tuple(dict.fromkeys(sum(map(columns_of, settings), ())))


def learned(run: Path) -> bool:
    """Returns whether a run of an earlier version, which kept nothing, or a run that it began with, learned labels."""
    settings = io.read_toml(run / CONFIG, dict[str, Any])
    named = [settings.get("model"), settings.get("positive_encoder")]
    named += [table.get("model") for table in settings.values() if isinstance(table, dict)]
    earlier = [run_of(name) for name in named if isinstance(name, str)]
    known = [taught_by(each / "best") for each in earlier if each is not None and each.resolve() != run.resolve()]
    return bool(settings.get("learn")) or any(each.unknown or len(each.labelled) for each in known)


def taught_by(folder: Path) -> Taught:
    """Returns what taught the model in a folder, from its run or, without it, from its configuration; also what taught
    the base model of an adapter."""
    from .resolve import base_of

    run, place = run_of(folder), transformer_folder(folder)
    columns = declared(folder)
    found = None if run is None else read_taught(run)
    if found is not None:
        return replace(found, columns=columns)
    if run is not None and not columns and learned(run):
        return Taught(unknown=(str(run),))
    taught, base = Taught(columns=columns, unknown=(str(folder),) if columns else ()), base_of(place)
    return taught if base is None else together([taught, taught_by(Path(base))])


def taught_of(model: Any) -> Taught:
    """Returns what taught a model, given its name, its folder, or an encoder in memory; see ``cse.evaluate``."""
    from .other import ENCODERS
    from .resolve import find_folder

    if not isinstance(model, (str, Path)):
        return _in_memory(model)
    kind, colon, what = str(model).partition(":")
    if not (colon and kind in ENCODERS):
        return taught_by(find_folder(best_of_run(str(model))))
    # Such as onnx:FOLDER, onnx:FOLDER/onnx/model.onnx, whose folder may have another name, or whitening:MODEL@FILE.
    paths = [Path(best_of_run(part)) for part in (what, *what.split("@")) if Path(part).exists()]
    folders = [path if path.is_dir() else path.parent for path in paths]
    above = [path.parent.parent for path in paths if kind == "onnx" and path.is_file()]
    above += [each.parent for each in folders if each.name == "onnx"]
    return together(map(taught_by, dict.fromkeys([*folders, *above])))


def _in_memory(encoder: Any) -> Taught:
    """Returns what taught an encoder in memory: of a ``cse.Encoder`` from its folder, of others from the configuration
    of their transformer."""
    given = getattr(encoder, "given", None)
    if isinstance(given, tuple) and given[0]:
        return taught_of(getattr(encoder, "folder", None) or given[0])
    encoder = getattr(encoder, "wrapped", encoder)
    try:
        config = encoder[0].auto_model.config
    except (TypeError, KeyError, IndexError, AttributeError):
        config = getattr(encoder, "config", None)  # as of model2vec
    columns = columns_of(config)
    return Taught(columns=columns, unknown=(getattr(encoder, "name", type(encoder).__name__),) if columns else ())
