"""Saving an encoder as a sentence-transformers directory, its model card (README.md), and averages of weights.

sentence-transformers writes the files of the model; which files a copy or an upload of a folder has is in ``layout``.
Weights of a trained model and of its base model are averaged as in WiSE-FT (Wortsman et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError, first_line, for_markdown, visible
from ..io import contents, copy_files, file_mode, fresh_folder, write_text
from .layout import CLASSIFIER, best_of_run
from .pooling import POOLERS

if TYPE_CHECKING:
    from .encoder import Encoder
    from .trained import SentenceEncoder


def save_encoder(
    model: SentenceEncoder, folder: Path, card: str, also: Callable[[Path], object] = lambda folder: None
) -> None:
    """Saves an encoder atomically, as a directory that AutoModel, AutoTokenizer and SentenceTransformer can load.

    A kept head is a Dense module and, if the transformer has a pooler, also its weights. Adapters are merged.
    """
    own = getattr(model.backbone, "pooler", None)
    if model.head is not None and model.keep_head:
        linear: Any = model.head.linear
        if own is not None and hasattr(own, "dense"):
            own.dense.load_state_dict(linear.state_dict())
    with fresh_folder(folder) as fresh:
        with merged_adapters(model.backbone, model.adapters) if model.adapters else nullcontext():
            model.save(str(fresh), create_model_card=False)
        (fresh / "README.md").write_text(card, encoding="utf8")
        also(fresh)
        for path in fresh.rglob("*.safetensors"):
            path.chmod(file_mode())


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


def is_local(model: str) -> bool:
    """Returns whether the name of a model is a path in the file system rather than a name on the hub."""
    return model.startswith((".", "/", "~")) or Path(model).exists()


def public_name(model: str) -> str:
    """Returns the name of a model without local paths: of a path, the last name, or two if it is best or last."""
    if not is_local(model):
        return model
    path = Path(model).expanduser().resolve()
    return "/".join(path.parts[-2:]) if path.name in ("best", "last") else path.name


def model_card(
    encoder: SentenceEncoder,
    *,
    model: str,
    config: str,
    columns: Sequence[str],
    scores: Sequence[dict[str, Any]],
    **values: Any,
) -> str:
    """Returns the card of a trained encoder as Markdown with the metadata block of the Hugging Face hub."""
    from huggingface_hub import ModelCard, ModelCardData

    from .modules import Head, in_evaluation, split
    from .pooling_modules import pooler_of

    kept, dims = encoder.keep_head and encoder.training_pooler == "cls", encoder.trained_dims
    pooling, after = split(in_evaluation(encoder))
    pooler = "cls" if kept else str(pooler_of(pooling))
    stages = [type(module).__name__ for module in after if not isinstance(module, Head)]
    base = "sentence-transformers/all-MiniLM-L6-v2" if model == "minilm" else public_name(model)
    data = ModelCardData(
        library_name="transformers" if pooler == "mask" else "sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=None if is_local(model) else base,
        tags=["sentence-transformers", "feature-extraction", "contrastive-learning", "cse"],
    )
    lines = []
    if columns:
        lines = [f"| step | {' | '.join(columns)} |", f"| ---: |{' ---: |' * len(columns)}"]
        for score in scores:
            cells = ["" if (value := score.get(column)) is None else f"{value:.4f}" for column in columns]
            lines.append(f"| {score['step']} | {' | '.join(cells)} |")
    card = ModelCard.from_template(
        data,
        template_str=(files("cse") / "resources" / "model_card.md").read_text(encoding="utf8"),
        base=for_markdown(base),
        usage=LOADED_BY_CSE if pooler == "mask" else LOADED,
        embedding_dim=encoder.embedding_dim,
        pooling=", then ".join([POOLERS[pooler], *(stages[:-1] if encoder.unit_length else stages)]),
        head=KEPT if kept else DROPPED,
        normalised=", normalised" if encoder.unit_length else "",
        max_length=encoder.max_seq_length,
        config=visible(config.strip()),
        scores="\n".join(lines),
        dims=", ".join(map(str, dims[1:])),
        least=dims[-1] if dims else None,
        **values,
    )
    return str(card)


def copy_encoder(encoder: Encoder, output: str) -> None:
    """Saves an encoder to a new folder, with the model card and the classifier of its own folder, if it has them."""
    if Path(output).exists():
        raise InputError(f"-o {output}: exists; name a new folder")
    own = Path(best_of_run(encoder.given[0]))
    with fresh_folder(Path(output)) as fresh:
        encoder.save(str(fresh))
        if (own / CLASSIFIER).is_dir():
            copy_files(own, fresh, [name for name in contents(own) if name.split("/")[0] == CLASSIFIER])
        for path in fresh.rglob("*.safetensors"):
            path.chmod(file_mode())


def write_card(folder: str, values: Mapping[str, Any]) -> None:
    """Adds values to the metadata of the model card of a folder, ``README.md``; empty values are left out."""
    from huggingface_hub import ModelCard
    from yaml import YAMLError

    if not (added := {name: value for name, value in values.items() if value}):
        return
    path = Path(folder) / "README.md"
    text = path.read_text(encoding="utf8") if path.exists() else f"---\n---\n\n# {path.parent.name}\n"
    try:
        card = ModelCard(text)
    except (YAMLError, ValueError) as error:
        raise InputError(f"{path}: its metadata cannot be read ({first_line(error)}); correct it") from None
    vars(card.data).update(added)
    write_text(path, str(card))


@contextmanager
@torch.no_grad()
def merged_adapters(backbone: torch.nn.Module, adapters: str) -> Iterator[None]:
    """Context manager in which plain layers, with LoRA adapters added to their weights, replace the adapter layers."""
    from peft.tuners.lora import LoraLayer

    replaced: list[Any] = []
    for parent in list(backbone.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, LoraLayer):
                base: Any = layer.get_base_layer()
                replaced.append((parent, name, layer, base, base.weight.data))
    try:
        for parent, name, layer, base, weight in replaced:
            base.weight.data = weight + layer.get_delta_weight(adapters).to(weight)
            setattr(parent, name, base)
        yield
    finally:
        for parent, name, layer, base, weight in replaced:
            base.weight.data = weight
            setattr(parent, name, layer)


class BaseWeights:
    """A copy of an encoder's weights before training, to be averaged with its trained weights (WiSE-FT); without
    ``wanted``, nothing is copied, and the share is 0."""

    def __init__(self, encoder: SentenceEncoder, wanted: bool) -> None:
        self._base = [weights.detach().clone() for weights in _weights(encoder)] if wanted else []

    @contextmanager
    @torch.no_grad()
    def merged(self, encoder: SentenceEncoder, share: float) -> Iterator[None]:
        """Sets the weights to (1 - share) * trained + share * base within the context, and restores them on exit."""
        if not share:
            yield
            return
        trained = [weights.detach().clone() for weights in _weights(encoder)]
        for weights, base in zip(_weights(encoder), self._base, strict=True):
            weights.lerp_(base, share)
        try:
            yield
        finally:
            for weights, own in zip(_weights(encoder), trained, strict=True):
                weights.copy_(own)


def _weights(encoder: SentenceEncoder) -> list[torch.nn.Parameter]:
    """Returns the trainable weights, without the factors A of LoRA updates B A, since averaging B scales the update."""
    from .modules import Head, in_evaluation

    parts = [module for module in in_evaluation(encoder) if not isinstance(module, Head)]
    named = [pair for module in parts for pair in module.named_parameters()]
    return [weights for name, weights in named if weights.requires_grad and ".lora_A." not in name]
