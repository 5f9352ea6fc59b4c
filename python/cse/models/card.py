"""The model card (README.md) of a saved encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .pooling import POOLERS

__all__ = ["CardRecord", "is_local", "model_card", "public_name"]

DROPPED = """\
If an MLP head was used in training, it is not included. If the weights contain a BERT pooler,
do not use it: it comes from the base model, or is untrained."""
KEPT = """\
The MLP head (linear, tanh) used in training is part of the model, as its Dense module. If the transformer has a pooler,
`pooler_output` is the embedding."""

LOADED = """\
from sentence_transformers import SentenceTransformer
vectors = SentenceTransformer("this/folder").encode(["A sentence.", "Another one."])"""
LOADED_BY_CSE = """\
from cse import Encoder  # sentence-transformers cannot pool at the mask token, and rejects this folder
vectors = Encoder("this/folder").encode(["A sentence.", "Another one."])"""

TEMPLATE = """\
---
{{ card_data }}
---

# A sentence encoder trained with cse

Base model: `{{ base }}`. Embeddings: {{ embedding_dim }} dimensions, {{ pooling }}{{ normalised }}; compare them by
cosine similarity. Inputs of up to {{ max_length }} tokens.

```python
{{ usage }}
```
{% if dims %}
The embeddings were also trained to be truncated to their first {{ dims }} dimensions (Matryoshka):
`SentenceTransformer("this/folder", truncate_dim={{ least }})`, or, with cse,
`Encoder("this/folder", dims={{ least }})`.
{% endif %}
With transformers alone, load the model with `AutoModel` and `AutoTokenizer` and pool as described above. {{ head }}

## Training

Step {{ step }}, seed {{ seed }}. {{ methods }}

```toml
{{ config }}
```
{% if scores %}
## Scores during training

{{ scores }}
{% endif %}"""


@dataclass(frozen=True)
class CardRecord:
    """The contents of a model card."""

    model: str
    """The base model, as given by the user; for a local folder, the card shows only its ``public_name``."""
    embedding_dim: int
    pooler: str
    keeps_head: bool
    normalize: bool
    max_length: int
    step: int
    seed: int
    methods: str
    """Description of the loss and augmentations."""
    config: str
    """The configuration as TOML."""
    columns: Sequence[str] = ()
    """Names of the scores to list."""
    scores: Sequence[dict[str, Any]] = field(default_factory=list)
    """One dictionary per evaluation, with the key ``step`` and one key per score."""
    stages: Sequence[str] = ()
    """Names of the modules after pooling, except for a kept head and a final Normalize."""
    dims: Sequence[int] = ()
    """Numbers of leading dimensions for which the encoder was trained (Matryoshka), the largest first."""


def is_local(model: str) -> bool:
    """Returns whether the name of a model is a path in the file system rather than a name on the hub."""
    return model.startswith((".", "/", "~")) or Path(model).exists()


def public_name(model: str) -> str:
    """Returns the name of a model without local paths: a path is reduced to the name of the folder.

    For the folders ``best`` and ``last`` of a run, the result is ``NAME/best`` or ``NAME/last``.
    """
    if not is_local(model):
        return model
    path = Path(model).expanduser().resolve()
    return "/".join(path.parts[-2:]) if path.name in ("best", "last") else path.name


def model_card(record: CardRecord) -> str:
    """Returns the card as Markdown with the metadata block of the Hugging Face hub."""
    from huggingface_hub import ModelCard, ModelCardData

    base = "sentence-transformers/all-MiniLM-L6-v2" if record.model == "minilm" else public_name(record.model)
    data = ModelCardData(
        library_name="transformers" if record.pooler == "mask" else "sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=None if is_local(record.model) else base,
        tags=["sentence-transformers", "feature-extraction", "contrastive-learning", "cse"],
    )
    lines = []
    if record.columns:
        lines = [f"| step | {' | '.join(record.columns)} |", f"| ---: |{' ---: |' * len(record.columns)}"]
        for score in record.scores:
            cells = " | ".join(_number(score.get(column)) for column in record.columns)
            lines.append(f"| {score['step']} | {cells} |")
    card = ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        base=base,
        usage=LOADED_BY_CSE if record.pooler == "mask" else LOADED,
        embedding_dim=record.embedding_dim,
        pooling=", then ".join([POOLERS[record.pooler], *record.stages]),
        head=KEPT if record.keeps_head else DROPPED,
        normalised=", normalised" if record.normalize else "",
        max_length=record.max_length,
        step=record.step,
        seed=record.seed,
        methods=record.methods,
        config=record.config.strip(),
        scores="\n".join(lines),
        dims=", ".join(map(str, record.dims[1:])),
        least=record.dims[-1] if record.dims else None,
    )
    return str(card)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4f}"
