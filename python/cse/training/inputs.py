"""Opens the corpus or the labelled pairs of a run, and checks that the TF-IDF index matches the corpus files."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..background import ProgressCallback
from ..data import readers
from ..data.corpus import IN_MEMORY, Corpus
from ..data.pairs import LabelledPairs, open_pairs
from ..data.reading import SourceFile
from ..errors import InputError, check_texts, shortened
from ..tfidf.index import TfidfIndex
from .train_config import TrainConfig

__all__ = ["check_indexed", "check_source", "open_corpus", "open_labelled", "with_texts"]


def open_labelled(config: TrainConfig, progress: ProgressCallback | None = None) -> LabelledPairs | None:
    """Opens and returns the labelled pairs of the configuration; None if it has none."""
    if not config.pairs:
        return None
    labelled = open_pairs(
        config.pairs, config.columns, config.where, config.min_score, progress=progress, **_reading(config)
    )
    if config.contrastive.hard_negative_weight != 1 and labelled.hard_negatives is None:
        raise InputError(
            "--hard-negative-weight: needs a third column of hard negatives in --pairs; add it, or leave out the weight"
        )
    return labelled


def _reading(config: TrainConfig) -> dict[str, Any]:
    return {
        "encoding_errors": config.encoding_errors,
        "max_line_bytes": config.max_line_bytes,
        "threads": config.threads,
        "cache": config.cache,
    }


def with_texts(config: TrainConfig, texts: Iterable[str] | None) -> tuple[TrainConfig, list[str] | None]:
    """Returns the configuration of a run on ``texts``, and the texts as a list; without texts, ``(config, None)``.

    Raises ``InputError`` for invalid texts, or if the configuration also names a corpus, a column or pairs.
    """
    if texts is None:
        return config, None
    if config.pairs or config.column is not None or config.corpus not in ((), (IN_MEMORY,)):
        raise InputError("texts: cannot be combined with corpus, column or pairs; leave out texts, or the others")
    return config.replace(corpus=(IN_MEMORY,)), check_texts(texts)


def check_source(config: TrainConfig) -> None:
    """Raises ``InputError`` if no corpus and no pairs were given, and there is no index whose files can be used."""
    if not config.corpus and not config.pairs and not (Path(config.tfidf) / "index.safetensors").exists():
        raise InputError(
            "CORPUS: no file was given, and there is no TF-IDF index that names files to train on; name a text file "
            "with one sentence per line (cse train corpus.txt), or build its index first (cse build-tfidf corpus.txt)"
        )


def open_corpus(
    config: TrainConfig,
    index: TfidfIndex | None,
    progress: ProgressCallback | None = None,
    texts: Sequence[str] | None = None,
) -> Corpus:
    """Opens the corpus files of the configuration or, if it names none, the files that the index was built from.

    If ``texts`` are given, they are the rows, and no file is read. Raises ``InputError`` if there is nothing to read,
    or if a file is invalid.
    """
    if texts is not None:
        return Corpus.from_texts(texts)
    if config.corpus == (IN_MEMORY,):
        raise InputError(
            "CORPUS: the run was trained on texts in memory; in Python, give them again: train(config, texts=[...])"
        )
    missing = [name for name in config.corpus if not glob.has_magic(name) and not os.path.exists(name)]
    if missing and " " in missing[0]:
        raise InputError(
            f"CORPUS: no such file {shortened(missing[0], 60)!r}; name files with one sentence per line, or in Python "
            "pass the sentences themselves: train(config, texts=[...])"
        )
    if config.corpus:
        files = readers.resolve(config.corpus, config.column)
    elif config.column is not None:
        raise InputError("--column: belongs to CORPUS, which was not given; name CORPUS, or leave out --column")
    elif index is None:
        raise InputError("CORPUS: no text file was given; name one, or build an index with cse build-tfidf")
    elif not index.files or any(file.path == "-" for file in index.files):
        raise InputError(
            "CORPUS: the index was built from standard input or from memory; name the text file to train on"
        )
    else:
        paths = [readers.find_again(file.path) for file in index.files]
        files = [
            path if file.column is None else readers.Column(path, file.column)
            for path, file in zip(paths, index.files, strict=True)
        ]
    return Corpus.open(files, progress=progress, **_reading(config))


def check_indexed(corpus: Corpus, index: TfidfIndex | None) -> None:
    """Raises ``InputError`` if a corpus file has changed since it was indexed, or if the index holds another column.

    Files that are not in the index are not checked.
    """
    known: dict[str, list[SourceFile]] = {}
    for file in index.files if index else []:
        known.setdefault(os.path.realpath(file.path), []).append(file)
    for file in corpus.files:
        indexed = known.get(os.path.realpath(file.path))
        if indexed and file.xxh3 not in [other.xxh3 for other in indexed]:
            raise InputError(
                f"{file.path}: the file has changed since it was indexed; build the index again with cse build-tfidf"
            )
        if indexed and file.column not in [other.column for other in indexed]:
            raise InputError(
                f"--column: the index holds column {indexed[0].column} of {file.path}, not {file.column}; "
                "build an index of the column you train on"
            )
