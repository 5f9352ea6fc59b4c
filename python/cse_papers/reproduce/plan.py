"""Which cells of a table are run, and what they cost.

The plan says which cells (see ``cells``) are stored, which are to be run, and why the rest are left out. Before
training, the number of runs, and their time and memory, are estimated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .cells import Cell, cells_of, config_of, read_cell
from .inputs import Inputs
from .suites import Row, Scorer, Table


@dataclass
class Plan:
    """The cells of some rows of a table."""

    stored: dict[str, list[dict[str, Any]]]
    """Stored cells by the name of the row."""
    wanted: list[Cell]
    """Cells to be run, in order."""
    notes: dict[str, str]
    """Why cells of a row are neither stored nor run, by the name of the row."""

    def add(self, cell: Cell, record: dict[str, Any]) -> None:
        """Adds the record of a cell that has been run and stored."""
        self.stored.setdefault(cell.row.name, []).append(record)


def plan(
    table: Table,
    rows: Sequence[Row],
    seeds: Sequence[int],
    inputs: Inputs,
    scorer: Scorer,
    place: Path,
    cells: Sequence[Cell] | None = None,
) -> Plan:
    """Returns the plan for some rows, or for ``cells`` of them."""
    result = Plan({}, [], {row.name: row.status for row in rows if not row.recipes})
    for cell in cells_of(table, rows, seeds) if cells is None else cells:
        lacks = cell.lacks(inputs)
        if lacks is not None:
            result.notes[cell.row.name] = f"needs {lacks}"
            continue
        record = read_cell(cell, inputs, scorer, place)
        if record is None:
            result.wanted.append(cell)
        else:
            result.add(cell, record)
    return result


# Time of a step divided by the time of its matrix products at the rate that ``matrix_rate`` measures. Attention,
# normalisation and the optimizer take the rest of the time.
OVERHEAD = 2.0
# Bytes of float32 activations kept for the backward pass: ACTIVATIONS per token, layer and hidden unit, and ATTENTION
# per pair of tokens, layer and attention head. Korthikanti et al. (2022, section 4) give half of these values for half
# precision.
ACTIVATIONS, ATTENTION = 68, 10


def estimate(cells: Sequence[Cell], inputs: Inputs, place: Path) -> tuple[float, int]:
    """Estimates the cost of training runs, to within a factor of about two; all texts are assumed to be of full length.

    Returns the seconds of all runs, without evaluations; and the bytes of weights, gradients, AdamW's moments and
    activations of the largest run.
    """
    rate = matrix_rate(inputs.device)
    known: dict[tuple[str, str | None], tuple[float, int]] = {}
    costs = []
    for cell in cells:
        key = cell.row.name, cell.column
        if key not in known:
            known[key] = _cost(config_of(cell, inputs, place), rate)
        costs.append(known[key])
    return sum(seconds for seconds, _ in costs), max(memory for _, memory in costs)


def _cost(config: Any, rate: float) -> tuple[float, int]:
    """Returns the seconds and bytes that a run needs on a device with ``rate`` floating-point operations per second."""
    from transformers import AutoConfig

    from cse.encoder.resolve import find_model
    from cse.training.settings.precedence import DEFAULT_MODEL, resolve, with_preset

    completed = with_preset(config)
    source = find_model(completed.model or DEFAULT_MODEL)
    resolved = resolve(completed, source.family, source.pooler)
    shape = AutoConfig.from_pretrained(source.path, local_files_only=True)
    width, layers = shape.hidden_size, shape.num_hidden_layers
    parameters = layers * 12 * width**2  # in the weight matrices of a Transformer
    rows = sum(map(count_rows, config.pairs or config.corpus))
    steps = resolved.max_steps or math.ceil((resolved.epochs or 1) * rows / resolved.batch_size)
    views = 2 + 2 * len(resolved.negatives) + len(resolved.loss_terms)
    tokens = resolved.batch_size * views * resolved.max_length
    # Each parameter takes 6 operations per token: 2 in the forward pass and 4 in the backward pass.
    seconds = steps * 6 * parameters * tokens / rate * OVERHEAD
    heads = getattr(shape, "num_attention_heads", 1)
    live = min(resolved.chunk_size or resolved.batch_size, resolved.batch_size) * views * resolved.max_length
    activations = live * layers * (ACTIVATIONS * width + ATTENTION * heads * resolved.max_length)
    embeddings = getattr(shape, "vocab_size", 0) * width
    # 16 bytes: weight, gradient and two moments in float32.
    return seconds, 16 * (parameters + embeddings) + activations


@cache
def count_rows(path: str) -> int:
    """Returns the number of rows of a .txt file, or the number of lines of any other file."""
    from cse.data.corpus import Corpus

    if Path(path).suffix == ".txt":
        return len(Corpus.open([path]))
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def matrix_rate(device: str) -> float:
    """Measures the operations per second of a large matrix product, in the precision that ``auto`` selects."""
    import torch

    from cse.encoder.device import pick_device, pick_precision

    name = pick_device(device)
    dtype = torch.bfloat16 if pick_precision(name, "auto")[0] == "bf16" else torch.float32
    size = 1024 if name == "cpu" else 8192
    a = torch.randn(size, size, device=name, dtype=dtype)
    best = math.inf
    for _ in range(4):
        started = time.perf_counter()
        float((a @ a)[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best
