"""Inputs of the runs of a table: evaluation data, corpus, labelled pairs, further files, and settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..evaluation.sts import DEV, SEVEN, read_pairs
from ..io import write_text
from ..rng import Draws
from .suites import find
from .tables import Table

__all__ = ["SENTENCES", "Inputs", "open_inputs", "sts_sentences"]

SYNONYMS = "synonyms"
"""The NAME in ``--file NAME=PATH`` for the synonym file of the EDA rows; without this file, WordNet is used."""

TRAIN = ("stsb.train", "sickr.train")
SENTENCES = {"stsb-train-10k": (TRAIN[:1], 10_000), "sts-texts": ((*SEVEN, *DEV, *TRAIN), None)}
"""Corpora made of the sentences of STS files: the stems of the files, and how many of the sentences are drawn.

They are the corpora of Mirror-BERT and ConSERT, for placeholders that ``--file NAME=PATH`` does not fill.
"""


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
    made: Path | None = None,
    **settings: object,
) -> Inputs:
    """Builds the inputs of the runs of a table from the values of command-line options.

    Args:
        table: The table.
        data: Folder of the evaluation data.
        corpus: File of sentences.
        pairs: File of labelled pairs.
        files: Further files, each as ``NAME=PATH``.
        made: Folder to which ``sts_sentences`` writes the corpora that the table needs; None: they are not made.
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
    needed = table.needs() | {SYNONYMS}
    if named.keys() - needed:
        raise InputError(
            f"--file {min(named.keys() - needed)}: no row of {table.name} uses it; cse reproduce "
            f"{table.name} --list names the files that are used"
        )
    paths = {"--data": data, "--corpus": corpus, "--pairs": pairs}
    for flag, given in {**paths, **{f"--file {name}": path for name, path in named.items()}}.items():
        if given is not None and not Path(given).exists():
            raise InputError(f"{flag} {given}: no such file; check the path")
    if made is not None:
        named = {**sts_sentences(Path(data), made, needed - named.keys()), **named}
    corpus_path, pairs_path = (None if each is None else Path(each) for each in (corpus, pairs))
    return Inputs(Path(data), corpus_path, pairs_path, named, **settings)  # type: ignore[arg-type]


def sts_sentences(data: Path, folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Writes corpora made of the sentences of the STS files in ``data``, one sentence per line.

    Every occurrence of a sentence counts, as in the released corpora. The draw depends only on the number of sentences,
    so all seeds of a row have the same corpus.

    Args:
        data: Folder of the evaluation data.
        folder: Folder to write to; it is created if a corpus is written.
        names: Names of corpora; those that are not in ``SENTENCES``, or whose files are not all in ``data``, are left
            out.

    Returns:
        The paths of the corpora by name.
    """
    found = {}
    for name in sorted(SENTENCES.keys() & set(names)):
        stems, count = SENTENCES[name]
        try:
            paths = [find(data, f"{stem}.tsv") for stem in stems]
        except InputError:
            continue  # Cell.lacks says that the file is needed
        read = [read_pairs(path) for path in paths]
        sentences = [text for each in read for pair in zip(each.left, each.right, strict=True) for text in pair]
        if count is not None and count < len(sentences):
            order = Draws(0, 0).uniform(np.arange(len(sentences)), "sentences of an STS file")[:, 0]
            sentences = [sentences[row] for row in np.sort(np.argsort(order, kind="stable")[:count])]
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / f"{name}.txt", "\n".join(sentences) + "\n")
        found[name] = str(folder / f"{name}.txt")
    return found
