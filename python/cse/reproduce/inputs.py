"""Inputs of the runs of a table: evaluation data, corpus, labelled pairs, further files, and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InputError
from .suites import find
from .tables import Table

__all__ = ["Inputs", "open_inputs"]

SYNONYMS = "synonyms"
"""The NAME in ``--file NAME=PATH`` for the synonym file of the EDA rows; without this file, WordNet is used."""


@dataclass(frozen=True)
class Inputs:
    """The files that the runs of a table read, and settings that apply to all runs."""

    data: Path
    """Folder of the evaluation data."""
    corpus: Path | None = None
    """Sentences to train on; not needed for labelled pairs, recipes that name a corpus, or recipes without training."""
    pairs: Path | None = None
    """Labelled pairs for the supervised rows."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further files and models by name."""
    device: str = "auto"
    precision: str = "auto"
    threads: int = 0
    max_steps: int | None = None
    """Maximum number of steps of each run; None: as in the recipes. Shortened runs do not reproduce the table."""
    model: str | None = None
    """A model to use in place of every model that the recipes name; for trials."""
    batch_size: int | None = None
    """Rows per batch, instead of the recipes' values; for trials."""
    partial: bool = False
    """Whether to accept incomplete evaluation data, and to evaluate transfer tasks with two folds; for trials."""

    def dev(self, names: Sequence[str]) -> list[str]:
        """Returns the paths of the development sets with the given file names."""
        return [str(find(self.data, name)) for name in names]


def open_inputs(
    table: Table,
    data: str | None,
    corpus: str | None = None,
    pairs: str | None = None,
    files: Sequence[str] = (),
    **settings: object,
) -> Inputs:
    """Builds the inputs of the runs of a table from the values of command-line options.

    Args:
        table: The table.
        data: Folder of the evaluation data.
        corpus: File of sentences.
        pairs: File of labelled pairs.
        files: Further files, each as ``NAME=PATH``.
        **settings: Values of the other fields of ``Inputs``.

    Raises:
        InputError: If ``data`` is None, if a file does not exist or is not given as ``NAME=PATH``, or if ``files``
            names a file that no row uses.
    """
    if data is None:
        raise InputError("--data: name the folder of the evaluation data, with files like stsb.dev.tsv")
    named = {}
    for each in files:
        name, equals, path = each.partition("=")
        if not equals or not path:
            raise InputError(f"--file {each}: must have the form NAME=PATH")
        named[name] = path
    needed = {name for row in table.rows for recipe in row.recipes.values() for name in recipe.needs()} | {SYNONYMS}
    if named.keys() - needed:
        raise InputError(
            f"--file {min(named.keys() - needed)}: no row of {table.name} uses it; cse reproduce "
            f"{table.name} --list names the files that are used"
        )
    paths = {"--data": data, "--corpus": corpus, "--pairs": pairs}
    for flag, given in {**paths, **{f"--file {name}": path for name, path in named.items()}}.items():
        if given is not None and not Path(given).exists():
            raise InputError(f"{flag} {given}: no such file; check the path")
    corpus_path, pairs_path = (None if each is None else Path(each) for each in (corpus, pairs))
    return Inputs(Path(data), corpus_path, pairs_path, named, **settings)  # type: ignore[arg-type]
