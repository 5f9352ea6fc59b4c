"""A plain masked language model made from all-MiniLM-L6-v2, the base of the laboratory.

all-MiniLM-L6-v2 was trained contrastively, so it cannot show what contrastive training does. Masked language modelling
on Wikipedia, for the first 1,000 steps of a schedule of 1,500 with 96 sentences each, makes a model whose mean pooling
is about as good as that of BERT-base. It takes 20 to 30 minutes of one core.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import zlib
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from cse.errors import InputError
from cse.io import write_text

SETTINGS = {"steps": 1000, "schedule": 1500, "batch": 96, "lr": 3e-4, "max_length": 48, "masked": 0.2, "seed": 0}
SENTENCES = int(SETTINGS["batch"] * SETTINGS["schedule"] * 1.05)
SAVE_EVERY = 100
PARTS = 6
"""Parts of a batch, each padded to its longest sentence: the same loss in two thirds of the time."""


@cache
def weights_key(folder: str) -> str:
    """Returns the first 16 digits of the SHA-256 of the weights in a folder; without such a file, the folder's name."""
    from safetensors.numpy import load_file

    path = Path(folder) / "model.safetensors"
    if not path.exists():
        return Path(folder).name
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(path).items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()[:16]


def first_sentences(corpus: Path, count: int) -> list[str]:
    """Returns the first lines of a corpus, which may be compressed with gzip, at most ``count``."""
    try:
        with gzip.open(corpus) if corpus.suffix == ".gz" else corpus.open("rb") as lines:
            found = [line.decode("utf8").rstrip("\r\n") for line in islice(lines, count)]
    except (UnicodeDecodeError, EOFError, zlib.error) as error:
        raise InputError(f"--corpus {corpus}: is not UTF-8 text, or is damaged ({error}); write it again") from None
    if not any(found):
        raise InputError(f"--corpus {corpus}: has no sentence; give a file with one sentence per line")
    return found


def make(corpus: Path, place: Path, device: str, steps: int | None, say: Callable[[str], None]) -> Path:
    """Returns the folder of the masked model in ``place``, which is made unless it exists."""
    from cse.encoder.resolve import find_model

    base = find_model("minilm").path
    sentences = first_sentences(corpus, SENTENCES)
    random.Random(SETTINGS["seed"]).shuffle(sentences)
    settings = {**SETTINGS, "steps": min(steps or SETTINGS["steps"], SETTINGS["steps"])}
    made = {
        "settings": settings,
        "base": weights_key(str(base)),
        "sentences": hashlib.sha256("\n".join(sentences).encode()).hexdigest()[:16],
    }
    key = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]
    folder = place / f"masked-{key}"
    if not (folder / "made.json").exists():
        say(
            f"making the masked model {folder} from all-MiniLM-L6-v2, {settings['steps']:,} steps; --base names another"
        )
        folder.mkdir(parents=True, exist_ok=True)
        _train(str(base), sentences, folder, device, settings, say)
        write_text(folder / "made.json", json.dumps(made, indent=1) + "\n")
        say(f"its weights have the hash {weights_key(str(folder))}, by which stored runs name their base")
    return folder


def _train(
    base: str, sentences: list[str], folder: Path, device: str, settings: dict[str, Any], say: Callable[[str], None]
) -> None:
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoTokenizer, BertForMaskedLM

    from cse.encoder.resolve import quiet

    schedule, batch = settings["schedule"], settings["batch"]
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    torch.manual_seed(settings["seed"])
    with quiet():  # the head for masked words, which the model lacks, is new
        model: Any = BertForMaskedLM.from_pretrained(base)
    model.to(device)
    model.train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings["lr"], weight_decay=0.01, betas=(0.9, 0.98), fused=True
    )
    warmup = schedule // 20
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warmup, (schedule - step) / (schedule - warmup))
    )
    saved, begin = folder / "state.pt", 0
    parts = {"model": model, "optimiser": optimiser, "scheduler": scheduler}
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        begin = state["step"]
        for name, part in parts.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["random"])
    special = torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id])
    for step in range(begin, settings["steps"]):
        rows = [sentences[row % len(sentences)] for row in range(step * batch, (step + 1) * batch)]
        tokens = tokenizer(rows, padding=True, truncation=True, max_length=settings["max_length"], return_tensors="pt")
        ids, mask = tokens["input_ids"].clone(), tokens["attention_mask"]
        selected = (torch.rand(ids.shape) < settings["masked"]) & ~torch.isin(ids, special)
        draw = torch.rand(ids.shape)  # of the selected tokens, 80 % become [MASK], 10 % a random token, 10 % stay
        ids[selected & (draw < 0.8)] = tokenizer.mask_token_id
        replaced = selected & (draw >= 0.8) & (draw < 0.9)
        ids[replaced] = torch.randint(1000, len(tokenizer), (int(replaced.sum()),))
        hidden, labels = [], []
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            for part in mask.sum(1).argsort(stable=True).chunk(PARTS):
                length = int(mask[part].sum(1).max())
                given = {"input_ids": ids[part, :length], "attention_mask": mask[part, :length]}
                states = model.bert(**{name: each.to(device) for name, each in given.items()}).last_hidden_state
                hidden.append(states[selected[part, :length].to(device)])
                labels.append(tokens["input_ids"][part, :length][selected[part, :length]])
            logits = model.cls(torch.cat(hidden))
        loss = cross_entropy(logits.float(), torch.cat(labels).to(device))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        scheduler.step()
        if (step + 1) % SAVE_EVERY == 0:
            say(f"  step {step + 1:,}, loss {loss.item():.2f}")
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save({**state, "step": step + 1, "random": torch.get_rng_state()}, folder / "state.part")
            (folder / "state.part").replace(saved)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    saved.unlink(missing_ok=True)
