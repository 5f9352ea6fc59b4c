"""Inputs of the runs of a table: evaluation data, corpus, labelled pairs, further files, and settings.

For trying out every cell of a table in seconds, ``smoke_inputs`` makes a tiny model and tiny data.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from cse.errors import InputError
from cse.evaluation.base import read_pairs
from cse.evaluation.sts import DEV, SEVEN, clean_development
from cse.io import write_text
from cse.rng import Draws

from ..transfer import TASKS as TRANSFER
from .masked import first_sentences, make
from .stored import Records
from .suites import TASKS, Table, find

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
    stored: tuple[Records, ...] = ()
    """Sets of stored runs, which are not repeated if their settings are the same."""
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
    chosen = () if dev is None or made is None else clean_files(Path(data), made)
    return Inputs(Path(data), corpus_path, pairs_path, named, dev=chosen, **settings)  # type: ignore[arg-type]


SHORT_CORPUS = 60_000
"""Number of sentences that the rows of the laboratory are trained on."""


def laboratory_inputs(inputs: Inputs, place: Path, dry_run: bool, say: Callable[[str], None]) -> Inputs:
    """Returns the inputs of the laboratory, with the first sentences of its corpus and with its base."""
    from cse.encoder.device import pick_device

    if inputs.corpus is None:
        raise InputError("--corpus: name the file of sentences to train on")
    place.mkdir(parents=True, exist_ok=True)
    short = place / "sentences.txt"
    write_text(short, "".join(f"{line}\n" for line in first_sentences(inputs.corpus, SHORT_CORPUS)))
    base = inputs.model
    if base is None and dry_run:
        base = "minilm"  # of the same shape
    elif base is None:
        base = str(make(inputs.corpus, place, pick_device(inputs.device), inputs.max_steps, say))
    return replace(inputs, corpus=short, model=base, files={**inputs.files, BASE: base})


def clean_files(data: Path, folder: Path) -> tuple[str, ...]:
    """Writes the development sets of ``cse.evaluation.sts.clean_development`` to a folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for title, pairs in clean_development(data).items():
        path = folder / f"{title.replace(',', '').replace(' ', '-').lower()}.tsv"
        rows = zip(pairs.gold.tolist(), pairs.left, pairs.right, strict=True)
        write_text(path, "score\tsentence1\tsentence2\n" + "".join(f"{g}\t{a}\t{b}\n" for g, a, b in rows))
        paths.append(str(path))
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
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / f"{name}.txt", "\n".join(sentences) + "\n")
        corpora[name] = str(folder / f"{name}.txt")
    return corpora


def documents(data: Path, folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Writes the documents of collections in ``data``, one per line; returns the paths by placeholder."""
    from cse.evaluation.retrieval import Retrieval, RetrievalOptions

    paths = {}
    for name in names:
        collection = Retrieval(RetrievalOptions(), str(find(data, name.removeprefix(DOCUMENTS))))
        texts = (" ".join(collection.documents[key].split()) for key in sorted(collection.documents, reverse=True))
        folder.mkdir(parents=True, exist_ok=True)
        paths[name] = str(folder / f"{name.replace(' ', '-')}.txt")
        write_text(paths[name], "".join(f"{text}\n" for text in texts if text))
    return paths


# Number of steps per run.
STEPS = 2
# Maximum number of sentences in the corpus.
ROWS = 300
# Number of pairs per STS file.
PAIRS_EACH = 24
# Maximum number of word pieces of the tokenizer.
VOCABULARY = 1500
CLASSES = {"trec": 6}
"""Number of labels of each transfer task with more than two labels."""


def smoke_inputs(table: Table, place: Path, device: str, threads: int) -> Inputs:
    """Writes a tiny model and tiny data for a table to ``place``, and returns the inputs of its runs."""
    place.mkdir(parents=True, exist_ok=True)
    sample = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8").split("\n")
    rows = [row for row in sample if len(row.split()) > 5][:ROWS]
    corpus = place / "corpus.txt"
    _write(corpus, rows)
    data = place / "data"
    data.mkdir(exist_ok=True)
    generator = random.Random(0)
    for stem in (*TASKS, *TRAIN):
        _write(data / f"{stem}.tsv", [f"{generator.random() * 5:.2f}\t{a}\t{b}" for a, b in _pairs(rows, generator)])
    _transfer(data, rows, generator)
    for column in table.columns:
        if table.suite in ("columns", "domain") and column not in {title for title, _ in TASKS.values()}:
            _collection(data / column, rows)
    labelled = place / "pairs.csv"
    triples = [",".join(f'"{_plain(text)}"' for text in (a, b, a[::-1])) for a, b in _pairs(rows, generator, 48)]
    _write(labelled, ["sent0,sent1,hard_neg", *triples])
    words = sorted({word for row in rows for word in row.split()})
    synonyms, glove = place / "synonyms.txt", place / "glove.txt"
    _write(synonyms, [f"{word}\tother{word}" for word in words])
    _write(
        glove, [f"{word} {generator.random():.3f} {generator.random():.3f} {generator.random():.3f}" for word in words]
    )
    needed = table.needs()
    parallel = place / "parallel.txt"
    _write(parallel, [" ".join(reversed(row.split())) for row in rows])
    named = {name: str(parallel) for name in needed}
    named |= {"glove": str(glove), "synonyms": str(synonyms), "nli-sentences": str(corpus), "running-text": str(corpus)}
    named |= {name: str(labelled) for name in table.needs("pairs")}
    named |= sts_sentences(data, place, needed)
    model = str(_model(place / "tiny", rows))
    named |= {name: model for name in needed if name == BASE or name.startswith(TRAINED)}
    return Inputs(
        data,
        corpus,
        labelled,
        named,
        device=device,
        precision="fp32",
        threads=threads,
        max_steps=STEPS,
        model=model,
        partial=True,
        batch_size=8,
    )


def _plain(text: str) -> str:
    return text.replace('"', "")


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf8")


def _pairs(rows: Sequence[str], generator: random.Random, count: int = PAIRS_EACH) -> list[tuple[str, str]]:
    return [(generator.choice(rows), generator.choice(rows)) for _ in range(count)]


def _transfer(data: Path, rows: Sequence[str], generator: random.Random) -> None:
    for stem, task in TRANSFER.items():
        for split in task.rows:
            lines = []
            for number in range(60):
                texts = [generator.choice(rows) for _ in range(2 if task.pairs else 1)]
                lines.append("\t".join([str(number % CLASSES.get(stem, 2)), *texts]))
            _write(data / (f"{stem}.tsv" if split == "all" else f"{stem}.{split}.tsv"), lines)


def _collection(folder: Path, rows: Sequence[str]) -> None:
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    _write(folder / "corpus.tsv", [f"d{n}\t{row}" for n, row in enumerate(rows[:60])])
    _write(folder / "queries.tsv", [f"q{n}\t{' '.join(row.split()[:5])}" for n, row in enumerate(rows[:12])])
    _write(folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in range(12))])


def _model(folder: Path, rows: Sequence[str]) -> Path:
    """Saves a tokenizer and a small BERT masked language model with random weights, unless the folder has them."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    # Not made by the trainer of tokenizers, which breaks ties differently each time.
    words = Counter(word for row in rows for word in re.findall(r"\w+|\S", row.lower()))
    letters = sorted(set("".join(words)))
    common = sorted(words, key=lambda word: (-words[word], word))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *common]
    _write(folder / "vocab.txt", [*dict.fromkeys(pieces)][:VOCABULARY])
    tokenizer = BertTokenizer(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=288,  # more than any number of dimensions in the Matryoshka rows
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    BertForMaskedLM(shape).save_pretrained(folder)
    torch.random.set_rng_state(state)
    return folder
