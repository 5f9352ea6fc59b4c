"""A trial of every row of a table: ``cse reproduce TABLE --smoke``, a tiny model for two steps on tiny data.

It says only whether a row runs: scores would mean nothing.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from cse.cli import printing
from cse.errors import RunError

from ..transfer import TASKS as TRANSFER
from .cells import Cell
from .inputs import BASE, TRAIN, TRAINED, Inputs, sts_sentences, written
from .runner import run_cell
from .scores import TASKS
from .tables import Table
from .work import Work

# Steps per run, maximum number of sentences in the corpus, pairs per STS file, and word pieces.
STEPS, ROWS, PAIRS_EACH, VOCABULARY = 2, 300, 24, 1500
CLASSES = {"trec": 6}
"""Number of labels of each transfer task with more than two labels."""


def smoke_inputs(table: Table, place: Path, device: str, threads: int) -> Inputs:
    """Writes a tiny model and tiny data for a table to ``place``, and returns the inputs of its runs."""
    sample = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8").split("\n")
    rows = [row for row in sample if len(row.split()) > 5][:ROWS]
    data, generator = place / "data", random.Random(0)

    def drawn(count: int) -> list[str]:
        return [generator.choice(rows) for _ in range(count)]

    def number() -> str:
        return f"{generator.random():.3f}"

    corpus = written(place / "corpus.txt", rows)
    for stem in (*TASKS, *TRAIN):
        lines = [f"{generator.random() * 5:.2f}\t{a}\t{b}" for a, b in (drawn(2) for _ in range(PAIRS_EACH))]
        written(data / f"{stem}.tsv", lines)
    for stem, task in TRANSFER.items():
        for split in task.rows:
            labels = [str(row % CLASSES.get(stem, 2)) for row in range(60)]
            lines = ["\t".join([label, *drawn(2 if task.pairs else 1)]) for label in labels]
            written(data / (f"{stem}.tsv" if split == "all" else f"{stem}.{split}.tsv"), lines)
    for column in table.columns:
        if table.suite in ("columns", "domain") and column not in {title for title, _ in TASKS.values()}:
            written(data / column / "corpus.tsv", [f"d{n}\t{row}" for n, row in enumerate(rows[:60])])
            written(data / column / "queries.tsv", [f"q{n}\t{' '.join(rows[n].split()[:5])}" for n in range(12)])
            judged = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in range(12))]
            written(data / column / "qrels" / "test.tsv", judged)
    pairs = ([text.replace('"', "") for text in drawn(2)] for _ in range(48))
    labelled = written(place / "pairs.csv", ["sent0,sent1,hard_neg", *(f'"{a}","{b}","{a[::-1]}"' for a, b in pairs)])
    words = sorted({word for row in rows for word in row.split()})
    needed = table.needs()
    reversed_rows = written(place / "parallel.txt", [" ".join(reversed(row.split())) for row in rows])
    named = {name: str(reversed_rows) for name in needed}
    named |= {
        "glove": str(written(place / "glove.txt", [f"{word} {number()} {number()} {number()}" for word in words])),
        "synonyms": str(written(place / "synonyms.txt", [f"{word}\tother{word}" for word in words])),
        "nli-sentences": str(corpus),
        "running-text": str(corpus),
    }
    named |= {name: str(labelled) for name in table.needs("pairs")}
    named |= sts_sentences(data, place, needed)
    model = str(_model(place / "tiny", rows))
    named |= {name: model for name in needed if name == BASE or name.startswith(TRAINED)}
    settings: dict[str, Any] = {
        "device": device,
        "precision": "fp32",
        "threads": threads,
        "max_steps": STEPS,
        "batch_size": 8,
    }
    return Inputs(data, corpus, labelled, named, model=model, partial=True, **settings)


def _model(folder: Path, rows: Sequence[str]) -> Path:
    """Saves a tokenizer and a small BERT masked language model with random weights, unless the folder has them."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    if (folder / "config.json").exists():
        return folder
    # Not made by the trainer of tokenizers, which breaks ties differently each time.
    words = Counter(word for row in rows for word in re.findall(r"\w+|\S", row.lower()))
    letters = sorted(set("".join(words)))
    common = sorted(words, key=lambda word: (-words[word], word))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *common]
    tokenizer = BertTokenizer(vocab=str(written(folder / "vocab.txt", [*dict.fromkeys(pieces)][:VOCABULARY])))
    tokenizer.save_pretrained(folder)
    # The width is more than any number of dimensions in the Matryoshka rows, and InfoCSE freezes six layers.
    sizes: dict[str, Any] = {
        "hidden_size": 288,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes))
    model.save_pretrained(folder)
    return folder


def run_smoke(work: Work, cells: Sequence[Cell] | None, as_json: bool) -> None:
    """Runs the cells that are not stored, all of the rows or some, and prints whether each row runs; raises
    ``RunError`` if one does not."""
    from cse.encoder.device import set_threads

    set_threads(work.inputs.threads)
    chosen = work.plan(cells)
    failed: set[str] = set()
    for number, cell in enumerate(chosen.wanted, 1):
        printing.say(f"cell {number:,} of {len(chosen.wanted):,}: {cell.name}")
        try:
            chosen.add(cell, run_cell(cell, work.inputs, work.scorer, work.place, keep_models=work.keep_models))
        except Exception as error:  # whatever a method raises
            failed.add(cell.row.name)
            printing.say(f"  fails: {error}")
        else:
            printing.say("  runs")
    known = {**chosen.notes, **dict.fromkeys(chosen.stored, "runs"), **dict.fromkeys(failed, "fails")}
    rows = [{"method": row.method, "model": row.model, "status": known[row.name]} for row in work.rows]
    lines = [f"| {row.name} | {each['status']} |" for row, each in zip(work.rows, rows, strict=True)]
    found = {"table": work.table.name, "source": work.table.source, "rows": rows}
    printing.result(found, as_json, ["| row | |", "| --- | --- |", *lines])
    if failed:
        raise RunError(f"{work.table.name}: {len(failed)} of {len(work.rows)} rows fail")
