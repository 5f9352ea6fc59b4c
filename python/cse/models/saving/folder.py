"""Saving an encoder as a sentence-transformers directory, its model card (README.md), and its weights as a whole.

The files are described in ``cse.models.reading.layout``. Weights of a trained model and of its base model are averaged
as in WiSE-FT (Wortsman et al. 2022); a hash covers everything that embeddings depend on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from ... import _core
from ..._core import __version__
from ...io import file_mode, fresh_folder
from ..encoders import OtherEncoder
from ..pooling import MODES, POOLERS, pooled_layers
from ..reading.layout import LAYER_POOLING, LEGACY_MODES, MASK_POOLING, Modules, write_json
from ..reading.resolve import model_files
from ..reading.stages import Dense, Normalize, save_stage
from ..running.encoder import SentenceEncoder
from ..running.inference import Encoder


def save_encoder(
    model: SentenceEncoder, folder: Path, card: str, also: Callable[[Path], object] = lambda folder: None
) -> None:
    """Saves an encoder atomically, as a directory that AutoModel, AutoTokenizer and SentenceTransformer can load.

    With the pooler ``mask``, SentenceTransformer cannot load the directory, since it does not support this pooling.

    A head that is kept after training is saved as a Dense module. If the transformer has a pooler, the weights of the
    head are saved in the pooler as well, so that ``AutoModel`` returns the embedding as ``pooler_output``. An existing
    folder is replaced.

    Args:
        model: The encoder.
        folder: The directory; its parents are created.
        card: Contents of ``README.md``; see ``cse.models.reading.layout`` for the other files.
        also: Called with the new folder before it replaces an existing one; may write further files to the new folder.

    Raises:
        OSError: If a file cannot be written.
    """
    with fresh_folder(folder) as fresh:
        _write(model, fresh, card)
        also(fresh)
        for path in fresh.glob("*.safetensors"):
            path.chmod(file_mode())


def _write(model: SentenceEncoder, folder: Path, card: str) -> None:
    backbone, source = model.backbone, model.source
    layers = int(backbone.config.num_hidden_layers)
    head: Dense | None = None
    if model.head is not None and model.keep_head:
        head = as_dense(model.head[0])
    own = getattr(backbone, "pooler", None)
    if head is not None and own is not None and hasattr(own, "dense"):
        own.dense.load_state_dict(head.linear.state_dict())
    # SentenceTransformer returns all hidden states only if output_hidden_states is set in the configuration.
    asked = backbone.config.output_hidden_states
    backbone.config.output_hidden_states = pooled_layers(model.saved_pooler, layers) is not None
    if model.adapters is None:
        backbone.save_pretrained(folder)
    elif model.adapters.keep:
        model.adapters.save(backbone, folder)
    else:
        with model.adapters.merged(backbone):
            backbone.save_pretrained(folder)
    backbone.config.output_hidden_states = asked
    # A fast tokenizer stores the truncation and padding settings of its last call; they should not be saved.
    model.tokenizer.backend_tokenizer.no_truncation()
    model.tokenizer.backend_tokenizer.no_padding()
    model.tokenizer.save_pretrained(folder)
    write_limit(folder, source.max_length)
    if model.template is not None or source.modules.lower_case:
        _load_as_stored(folder / "tokenizer_config.json", model.tokenizer)
    write_modules(
        folder,
        modules=replace(source.modules, pooler=model.saved_pooler, normalize=source.normalize, family=source.family),
        max_length=source.max_length,
        width=int(backbone.config.hidden_size),
        layers=layers,
        head=head,
        stages=list(model.stages),
    )
    (folder / "README.md").write_text(card, encoding="utf8")


def write_limit(folder: Path, max_length: int) -> None:
    """Changes ``tokenizer_config.json``, if there is one, so that it has one maximum length, ``max_length`` tokens.

    If ``tokenizer.json`` stores the settings of a call, transformers adds them to ``tokenizer_config.json``. fastembed
    truncates to the lower of ``max_length`` and ``model_max_length``.
    """
    path = folder / "tokenizer_config.json"
    if path.exists():
        settings = json.loads(path.read_text(encoding="utf8"))
        of_a_call = ("max_length", "stride", "truncation_strategy")
        settings = {name: value for name, value in settings.items() if name not in of_a_call}
        write_json(path, settings | {"model_max_length": max_length})


def _load_as_stored(path: Path, tokenizer: Any) -> None:
    """Changes ``tokenizer_config.json`` so that every loader uses all of ``tokenizer.json``.

    The classes of single models, such as BertTokenizer, take only the vocabulary from ``tokenizer.json`` and rebuild
    the normalizer and the post-processor, which would lose a template or the conversion to lower case.
    """
    settings = json.loads(path.read_text(encoding="utf8"))
    # With either of these two settings, the generic class rebuilds the post-processor as well.
    settings = {name: value for name, value in settings.items() if name not in ("add_bos_token", "add_eos_token")}
    inputs = {"model_input_names": list(tokenizer.model_input_names)}
    write_json(path, {**settings, **inputs, "tokenizer_class": "PreTrainedTokenizerFast"})


def as_dense(linear: Any) -> Dense:
    """Returns an MLP head (linear, tanh) as a Dense module that contains the given ``nn.Linear``."""
    dense = Dense({"in_features": linear.in_features, "out_features": linear.out_features})
    dense.linear = linear
    return dense


def write_modules(
    folder: Path,
    *,
    modules: Modules,
    max_length: int,
    width: int,
    layers: int,
    head: nn.Module | None = None,
    stages: Sequence[nn.Module] = (),
) -> None:
    """Writes ``modules.json``, the module folders and the other settings of a sentence-transformers directory.

    The transformer and the tokenizer are not written.

    Args:
        folder: The folder of the model.
        modules: Pooler, normalisation, family, prompts, similarity and numbers of dimensions.
        max_length: Maximum input length in tokens.
        width: Dimension of the token vectors.
        layers: Number of transformer blocks.
        head: A kept MLP head, as a Dense module of ``cse.models.reading.stages``; it follows the pooling.
        stages: Further modules, from ``cse.models.reading.stages``.
    """
    assert modules.pooler is not None
    parts = [("", "Transformer"), *_write_pooling(folder, modules, width, layers)]
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    last = [Normalize()] if modules.normalize else []
    for stage in (*([] if head is None else [head]), *stages, *last):
        kind = type(stage).__name__
        name = f"{len(parts)}_{kind}"
        save_stage(stage, folder / name)
        parts.append((name, kind))
    listing = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    write_json(folder / "modules.json", listing)
    versions = {"cse": __version__, "transformers": transformers.__version__, "pytorch": torch.__version__}
    settings: dict[str, Any] = {"__version__": versions, "cse_family": modules.family}
    if modules.prompts:
        settings |= {"prompts": dict(modules.prompts), "default_prompt_name": modules.default_prompt}
    if modules.similarity != "cosine":
        settings["similarity_fn_name"] = modules.similarity
    if modules.truncate_dim is not None:
        settings["truncate_dim"] = modules.truncate_dim
    if modules.dims:
        settings["cse_dims"] = list(modules.dims)
    write_json(folder / "config_sentence_transformers.json", settings)


def _write_pooling(folder: Path, modules: Modules, width: int, layers: int) -> list[tuple[str, str]]:
    """Writes the folders of the average of layers, if the pooler has one, and of the pooling; returns their kinds."""
    parts = []
    averaged = pooled_layers(str(modules.pooler), layers)
    if averaged:
        _write_layers(folder / f"1_{LAYER_POOLING}", width, layers, averaged)
        parts.append((f"1_{LAYER_POOLING}", LAYER_POOLING))
    pooling = folder / f"{len(parts) + 1}_Pooling"
    pooling.mkdir()
    write_json(pooling / "config.json", _pooling_settings(modules, width))
    return [*parts, (pooling.name, "Pooling")]


def _pooling_settings(modules: Modules, width: int) -> dict[str, Any]:
    """Returns the settings of the Pooling module, readable by older sentence-transformers releases where possible."""
    pooler = str(modules.pooler)
    size = {"word_embedding_dimension": width}
    if pooler == "mask":
        return {**size, "pooling_mode": MASK_POOLING}
    averaged = pooler.startswith("avg_")
    names = ["mean"] if averaged else [MODES["cls_before_pooler" if n == "cls" else n] for n in pooler.split("+")]
    found: dict[str, Any] = {**size, "pooling_mode": names}
    if names == [mode for mode in LEGACY_MODES.values() if mode in names]:
        # Older releases of sentence-transformers have only the first four keys; other keys are written only if needed.
        keys = [key for key, mode in LEGACY_MODES.items() if mode in names or key in list(LEGACY_MODES)[:4]]
        found = {**size, **{key: LEGACY_MODES[key] in names for key in keys}}
    return found if modules.include_prompt else {**found, "include_prompt": False}


def _write_layers(folder: Path, embedding_dim: int, layers: int, used: list[int]) -> None:
    folder.mkdir()
    start = used[0]
    weights = torch.zeros(layers + 1 - start)
    weights[[layer - start for layer in used]] = 1.0
    save_file({"layer_weights": weights}, folder / "model.safetensors")
    settings = {"word_embedding_dimension": embedding_dim, "layer_start": start, "num_hidden_layers": layers}
    write_json(folder / "config.json", settings)


DROPPED = """\
With transformers alone, load the model with `AutoModel` and `AutoTokenizer` and pool as described above.
If an MLP head was used in training, it is not included. If the weights contain a BERT pooler,
do not use it: it comes from the base model, or is untrained."""
KEPT = """\
With transformers alone, load the model with `AutoModel` and `AutoTokenizer` and pool as described above.
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
{{ head }}

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


class BaseWeights:
    """A copy of an encoder's weights before training, to be averaged with its trained weights.

    Args:
        encoder: The encoder before training. The trainable weights of its transformer and of the modules after the
            pooling are copied; its MLP head is not, since the base model has none.
        share: Weight of the base model in the average, 0 to 1; if it is 0, nothing is copied or averaged.
    """

    def __init__(self, encoder: SentenceEncoder, share: float) -> None:
        self.share = share
        self._base = [weights.detach().clone() for weights in _weights(encoder)] if share else []

    @contextmanager
    @torch.no_grad()
    def merged(self, encoder: SentenceEncoder) -> Iterator[None]:
        """Sets the weights to (1 - share) * trained + share * base within the context, and restores them on exit."""
        if not self.share:
            yield
            return
        trained = [weights.detach().clone() for weights in _weights(encoder)]
        for weights, base in zip(_weights(encoder), self._base, strict=True):
            weights.lerp_(base, self.share)
        try:
            yield
        finally:
            for weights, own in zip(_weights(encoder), trained, strict=True):
                weights.copy_(own)


def _weights(encoder: SentenceEncoder) -> list[torch.nn.Parameter]:
    """Returns the trainable weights, without the factors A of LoRA updates B A.

    The factors B start at 0, so averaging B alone scales the update.
    """
    named = [*encoder.backbone.named_parameters(), *encoder.stages.named_parameters()]
    return [weights for name, weights in named if weights.requires_grad and ".lora_A." not in name]


def model_digest(encoder: Encoder, prompt: str | None = None) -> str:
    """Returns a hexadecimal hash of a model's files (such as weights and tokenizer), pooling, dimensions and prompt.

    The path of the folder does not affect the hash, so a model can be moved. The prompt is ``prompt`` if it is given,
    else the prompt of the encoder.
    """
    model = encoder.model
    name = type(model).__name__
    if isinstance(model, OtherEncoder):
        # ``what`` can hold paths and options (MODEL@FILE@DIMS for whitening); of a path, only the last part is used.
        name += " " + re.sub(r"[^@]*/", "", model.what)
        files = [(path.name, path) for path in model.files()]
    else:
        files = model_files(model.source)
    content = [
        name,
        encoder.pooling,
        str(encoder.embedding_dim),
        str(getattr(encoder, "prompt", "")) if prompt is None else prompt,
    ]
    content += sorted(f"{name} {_core.hash_file(str(path))}" for name, path in files)
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]
