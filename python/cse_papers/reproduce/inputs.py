"""Inputs of the runs of a table: evaluation data, corpus, labelled pairs, further files, and settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cse.errors import InputError
from cse.evaluation.base import read_pairs
from cse.evaluation.sts import DEV, SEVEN
from cse.io import write_text
from cse.rng import Draws

from .masked import first_sentences, make, weights_key
from .scores import Records, clean_sets, find, hash_file
from .tables import Table

SYNONYMS = "synonyms"
"""The NAME in ``--file NAME=PATH`` for the synonym file of the EDA rows; without this file, WordNet is used."""

TRAIN = ("stsb.train", "sickr.train")
SENTENCES = {"stsb-train-10k": (TRAIN[:1], 10_000), "sts-texts": ((*SEVEN, *DEV, *TRAIN), None)}
"""Corpora made of the sentences of STS files: the stems of the files, and how many of the sentences are drawn.

They are the corpora of Mirror-BERT and ConSERT, for placeholders that ``--file NAME=PATH`` does not fill.
"""
BASE, TRAINED, DOCUMENTS = "base", "trained ", "documents "
"""Placeholders that are filled with the base model, the encoder of another row, and the documents of a collection."""


def is_made(name: str) -> bool:
    """Whether a placeholder is filled by the command, not by ``--file``."""
    return name == BASE or name.startswith((TRAINED, DOCUMENTS))


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
    """A model to use in place of every model that the recipes name: the base of the laboratory, or for trials."""
    batch_size: int | None = None
    """Rows per batch, instead of the recipes' values; for trials."""
    dev: tuple[str, ...] = ()
    """Development sets that select checkpoints instead of those of the papers."""
    stored: Mapping[str, Records] = field(default_factory=dict)
    """Sets of stored runs by name, which are not repeated if their settings are the same."""
    partial: bool = False
    """Whether to accept incomplete evaluation data, and to evaluate transfer tasks with two folds; for trials."""


def open_inputs(
    table: Table,
    data: str | None,
    corpus: str | None = None,
    pairs: str | None = None,
    files: Sequence[str] = (),
    made: Path | None = None,
    dev: str | None = None,
    **settings: object,
) -> Inputs:
    """Builds the inputs of the runs of a table from the values of command-line options."""
    if data is None:
        raise InputError("--data: name the folder of the evaluation data, with files like stsb.dev.tsv")
    named = {}
    for item in files:
        name, equals, path = item.partition("=")
        if not equals or not path:
            raise InputError(f"--file {item} must have the form NAME=PATH")
        named[name] = path
    needed = {name for name in table.needs() if not is_made(name)} | {SYNONYMS}
    if named.keys() - needed:
        raise InputError(
            f"--file {min(named.keys() - needed)}: no row of {table.name} uses it; cse reproduce "
            f"{table.name} --list names the files that are used"
        )
    paths = {"--data": data, "--corpus": corpus, "--pairs": pairs}
    for flag, value in {**paths, **{f"--file {name}": path for name, path in named.items()}}.items():
        if value is not None and not Path(value).exists():
            raise InputError(f"{flag} {value}: no such file; check the path")
    if made is not None:
        named = {**sts_sentences(Path(data), made, needed - named.keys()), **named}
        named |= documents(Path(data), made, [name for name in table.needs() if name.startswith(DOCUMENTS)])
    corpus_path, pairs_path = (None if file is None else Path(file) for file in (corpus, pairs))
    if dev is not None and not any(recipe.preset for row in table.rows for recipe in row.recipes.values()):
        raise InputError(
            f"--dev {dev} has no effect on the table {table.name}, which selects no checkpoints; omit --dev"
        )
    chosen = () if dev is None or made is None else clean_files(Path(data), made)
    return Inputs(Path(data), corpus_path, pairs_path, named, dev=chosen, **settings)  # type: ignore[arg-type]


SAME_SHAPE = "minilm"
"""A model of the same shape as the base, where no weights are needed."""
SHORT_CORPUS = 60_000
"""Number of sentences that the rows of the laboratory are trained on."""


def laboratory_inputs(inputs: Inputs, place: Path, say: Callable[[str], None]) -> Inputs:
    """Returns the inputs of the laboratory, with the first sentences of its corpus and with its base."""
    if inputs.corpus is None:
        raise InputError("--corpus: name the file of sentences to train on")
    short = written(place / "sentences.txt", first_sentences(inputs.corpus, SHORT_CORPUS))
    check_stored(inputs, short, say)
    return with_base(replace(inputs, corpus=short), inputs.corpus, place, inputs.max_steps, say)


def with_base(inputs: Inputs, corpus: Path, place: Path, steps: int | None, say: Callable[[str], None]) -> Inputs:
    """Returns inputs with the base: the model that they name, else the masked model that is made of ``corpus``."""
    from cse.encoder.device import pick_device

    base = inputs.model
    if base is None:
        base = str(make(corpus, place, pick_device(inputs.device), steps, say))
    return replace(inputs, model=base, files={**inputs.files, BASE: base})


def check_stored(inputs: Inputs, sentences: Path, say: Callable[[str], None]) -> None:
    """Raises ``InputError`` if no stored run began with the given base, or if none was trained on the sentences; stored
    runs name both by their hashes."""
    known = [record["identity"] for records in inputs.stored.values() for record in records.values()]
    if not known:
        return
    bases, corpora = ({str(each[name]) for each in known if each.get(name)} for name in ("model", "corpus"))
    if (found := hash_file(str(sentences))) not in corpora:
        raise InputError(
            f"--corpus {inputs.corpus}: its first {SHORT_CORPUS:,} sentences have the hash {found}, but the runs of "
            f"--stored were trained on {' or '.join(sorted(corpora))}; name that file, or omit --stored"
        )
    if inputs.model is None:
        say(
            f"the runs of --stored began with a base of the hash {' or '.join(sorted(bases))}; --base names it; a base "
            "that is made here may have another hash, with which no stored run is used"
        )
    elif (found := weights_key(inputs.model)) not in bases:
        raise InputError(
            f"--base {inputs.model}: its weights have the hash {found}, but the runs of --stored began with "
            f"{' or '.join(sorted(bases))}; name that model, or omit --stored"
        )


def clean_files(data: Path, folder: Path) -> tuple[str, ...]:
    """Writes the development sets of ``clean_sets`` to a folder; returns their paths."""
    paths = []
    for title, pairs in clean_sets(data).items():
        path = folder / f"{title.replace(',', '').replace(' ', '-').lower()}.tsv"
        rows = zip(pairs.gold.tolist(), pairs.left, pairs.right, strict=True)
        paths.append(str(written(path, ["score\tsentence1\tsentence2", *(f"{g}\t{a}\t{b}" for g, a, b in rows)])))
    return tuple(paths)


def sts_sentences(data: Path, folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Writes corpora made of the sentences of the STS files in ``data``, one sentence per line; returns their paths."""
    corpora = {}
    for name in sorted(SENTENCES.keys() & set(names)):
        stems, count = SENTENCES[name]
        try:
            paths = [find(data, f"{stem}.tsv") for stem in stems]
        except InputError:
            continue  # Cell.lacks says that the file is needed
        read = [read_pairs(path) for path in paths]
        sentences = [text for pairs in read for pair in zip(pairs.left, pairs.right, strict=True) for text in pair]
        if count is not None and count < len(sentences):
            order = Draws(0, 0).uniform(np.arange(len(sentences)), "sentences of an STS file")[:, 0]
            sentences = [sentences[row] for row in np.sort(np.argsort(order, kind="stable")[:count])]
        corpora[name] = str(written(folder / f"{name}.txt", sentences))
    return corpora


def documents(data: Path, folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Writes the documents of collections in ``data``, one per line; returns the paths by placeholder."""
    from cse.evaluation.options import RetrievalOptions
    from cse.evaluation.retrieval import Retrieval

    paths = {}
    for name in names:
        collection = Retrieval(RetrievalOptions(), str(find(data, name.removeprefix(DOCUMENTS))))
        texts = [" ".join(collection.documents[key].split()) for key in sorted(collection.documents, reverse=True)]
        paths[name] = str(written(folder / f"{name.replace(' ', '-')}.txt", [text for text in texts if text]))
    return paths


def written(path: Path, lines: Iterable[str]) -> Path:
    """Writes lines to a file, and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))
    return path
