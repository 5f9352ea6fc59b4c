"""What a saved model says of itself: its card, and the environment of the run."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from .._core import __version__
from ..training.config import TrainConfig
from ..training.selection import Selector
from .resolve import Source

__all__ = ["environment", "model_card"]

POOLING = {
    "cls": "the first token's last vector",
    "cls_before_pooler": "the first token's last vector",
    "avg": "mean over tokens of the last layer",
    "avg_top2": "mean over tokens of the last two layers",
    "avg_first_last": "mean over tokens of the first and the last layer",
    "avg_embed_last": "mean over tokens of the embeddings and the last layer",
}


def environment(device: str) -> dict[str, Any]:
    """Versions and machine: what must be equal for a run to repeat bit by bit."""
    packages = ["transformers", "tokenizers", "numpy", "scipy", "safetensors"]
    found = {"cse": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": found,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
    }


def model_card(config: TrainConfig, source: Source, selector: Selector, step: int) -> str:
    """README.md of a saved model: how to load it, how it was trained, what it scored."""
    scores = [
        f"| {record['step']} | " + " | ".join(_number(record.get(key)) for key in _columns(selector)) + " |"
        for record in selector.records
    ]
    columns = _columns(selector)
    table = [f"| step | {' | '.join(columns)} |", f"| ---: |{' ---: |' * len(columns)}", *scores]
    pooling = POOLING[config.pooler or "cls"]
    base = "sentence-transformers/all-MiniLM-L6-v2" if config.model == "minilm" else config.model
    front = ["---", "library_name: sentence-transformers", "pipeline_tag: sentence-similarity"]
    if not os.path.isabs(base) and not base.startswith("."):
        front.append(f"base_model: {base}")
    front += [
        "tags:",
        "- sentence-transformers",
        "- feature-extraction",
        "- contrastive-learning",
        "- cse",
        "---",
    ]
    una = (
        f"UNA negatives every {config.una_every} steps as {config.una_as}, beta {config.beta:g}, "
        f"radius {config.radius}."
        if config.una and config.una_every
        else "No synthetic negatives."
    )
    return "\n".join(
        [
            *front,
            "",
            "# A sentence encoder trained with cse",
            "",
            f"Base model: `{base}`. Vectors: {selector.model.width} numbers, {pooling}"
            f"{', normalised' if source.normalize else ''}; compare them by cosine. "
            f"Up to {source.max_length} tokens.",
            "",
            "```python",
            "from sentence_transformers import SentenceTransformer",
            'vectors = SentenceTransformer("this/folder").encode(["A sentence.", "Another one."])',
            "```",
            "",
            "With transformers alone, `AutoModel` and `AutoTokenizer` load it; pool as said above. The head that "
            "training used is not part of it. A BERT pooler in the weights is the base model's, or untrained, "
            "and unused.",
            "",
            "## Training",
            "",
            f"Step {step}. {una} Seed {config.seed}.",
            "",
            "```toml",
            replace(config, corpus=(), tfidf="tfidf", output="runs", dev=None, data=None).to_toml().strip(),
            "```",
            "",
            *(["## Scores while training", "", *table, ""] if columns else []),
        ]
    )


def _columns(selector: Selector) -> list[str]:
    if not selector.metric:
        return []
    shown = ["spearman"] if selector.metric == "spearman" else ["mrr", "mrr_se"]
    return [*shown, "alignment", "uniformity"]


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4f}"
