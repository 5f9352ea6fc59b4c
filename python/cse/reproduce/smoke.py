"""A tiny model and tiny data, for trying out every cell of a table in seconds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from ..evaluation.transfer import TASKS as TRANSFER
from .inputs import TRAIN, Inputs, sts_sentences
from .suites import TASKS
from .tables import Table

__all__ = ["STEPS", "smoke_inputs"]

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
        if table.suite == "columns" and column not in {title for title, _ in TASKS.values()}:
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
    given = {name: str(parallel) for name in needed}
    given |= {"glove": str(glove), "synonyms": str(synonyms), "nli-sentences": str(corpus), "running-text": str(corpus)}
    given |= sts_sentences(data, place, needed)
    return Inputs(
        data,
        corpus,
        labelled,
        given,
        device=device,
        precision="fp32",
        threads=threads,
        max_steps=STEPS,
        model=str(_model(place / "tiny", rows)),
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
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(rows, vocab_size=VOCABULARY, show_progress=False)
    pieces.save_model(str(folder))
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
