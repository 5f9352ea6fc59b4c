"""Makes a base for the laboratory that was never trained contrastively, on one GPU.

    python benches/second_base.py CORPUS LIKE FOLDER [--seconds 240] [--sentences 1000000]

A BERT with the tokenizer and the shape of the model LIKE, but with random weights, is trained by masked language
modelling on the first sentences of CORPUS, 1,024 in a batch. The number of steps is chosen from the time of the first
ones, so that the training takes about --seconds; FOLDER/made.json states it. Then, for example,

    cse reproduce effects --base FOLDER --row standard --row UNA --seeds 5 --corpus CORPUS --data DIR
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

SETTINGS: dict[str, Any] = {"batch": 1024, "max_length": 48, "masked": 0.15, "lr": 7e-4, "warmup": 0.06, "seed": 0}
POOL = 32
"""Batches whose sentences are sorted by length together, so that they need little padding."""
TRIED = 60
"""Steps before their time is taken; the first half of them is not counted."""


def read(corpus: Path, count: int) -> list[str]:
    opened: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(corpus.suffix, open)
    with opened(corpus, "rt", encoding="utf8") as lines:
        return [line.rstrip("\n") for line in islice(lines, count)]


def batches(lengths: torch.Tensor, size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yields rows of batches without end."""
    while True:
        order: Any = torch.randperm(len(lengths), generator=generator)
        for pool in order.split(POOL * size):
            parts = pool[lengths[pool].argsort(stable=True)].split(size)
            yield from (parts[place] for place in torch.randperm(len(parts), generator=generator).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("like", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=SETTINGS["batch"])
    options = parser.parse_args()
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    from cse.io import write_text

    began, device, size = time.perf_counter(), torch.device(options.device), options.batch
    tokenizer: Any = AutoTokenizer.from_pretrained(options.like)
    texts = read(options.corpus, options.sentences)
    encoded = tokenizer(texts, truncation=True, max_length=SETTINGS["max_length"], return_attention_mask=False)
    lengths = torch.tensor([len(row) for row in encoded["input_ids"]])
    places = np.repeat(np.arange(len(texts)), lengths), np.concatenate([np.arange(n) for n in lengths.tolist()])
    table = np.full((len(texts), SETTINGS["max_length"]), tokenizer.pad_token_id, dtype=np.int32)
    table[places] = np.concatenate(encoded["input_ids"])
    ids_of = torch.from_numpy(table).to(device)
    print(f"{len(texts):,} sentences, {int(lengths.sum()):,} tokens, {time.perf_counter() - began:.0f} s", flush=True)

    torch.manual_seed(SETTINGS["seed"])
    config = BertConfig.from_pretrained(options.like)
    config.max_position_embeddings = 128
    model: Any = BertForMaskedLM(config)
    model.to(device).train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=SETTINGS["lr"], weight_decay=0.01, betas=(0.9, 0.98), fused=True
    )
    special = torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id], device=device)
    steps, started, losses, loss = None, 0.0, [], torch.zeros(())
    for step, rows in enumerate(batches(lengths, size, torch.Generator().manual_seed(SETTINGS["seed"]))):
        if step in (TRIED // 2, TRIED):
            losses.append(loss.item())  # waits for the device
            if step == TRIED:
                each = (time.perf_counter() - started) / (TRIED - TRIED // 2)
                steps = max(TRIED + 1, int((options.seconds - (time.perf_counter() - began)) / each))
                print(f"{1000 * each:.1f} ms a step: {steps:,} steps", flush=True)
            started = time.perf_counter()
        if step == steps:
            break
        warmup = SETTINGS["warmup"] * (steps or 10_000)
        fall = 1.0 if steps is None else (steps - step) / (steps - warmup)
        for group in optimiser.param_groups:
            group["lr"] = SETTINGS["lr"] * min((step + 1) / warmup, fall)
        length = min(SETTINGS["max_length"], -(-int(lengths[rows].max()) // 8) * 8)
        given = ids_of[rows.to(device), :length].long()
        selected = (torch.rand(given.shape, device=device) < SETTINGS["masked"]) & ~torch.isin(given, special)
        draw = torch.rand(given.shape, device=device)  # of the selected tokens, 80 % become [MASK], 10 % another one
        ids = torch.where(selected & (draw < 0.8), tokenizer.mask_token_id, given)
        random = torch.randint(1000, len(tokenizer), given.shape, device=device)
        ids = torch.where(selected & (draw >= 0.8) & (draw < 0.9), random, ids)
        with torch.autocast(device.type, torch.bfloat16):
            states = model.bert(input_ids=ids, attention_mask=given != tokenizer.pad_token_id).last_hidden_state
            logits = model.cls(states[selected])
        loss = cross_entropy(logits.float(), given[selected])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 500 == 499:
            losses.append(loss.item())
            print(f"step {step + 1:,}, loss {losses[-1]:.2f}, {time.perf_counter() - began:.0f} s", flush=True)
    model.save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)
    made = {"settings": {**SETTINGS, "batch": size}, "sentences": len(texts), "steps": steps, "loss": loss.item()}
    write_text(options.folder / "made.json", json.dumps({**made, "losses": losses}, indent=1) + "\n")
    print(f"{steps:,} steps, loss {loss.item():.2f}, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
