"""The inputs of loss terms and feature methods: embeddings by view, the roles of views, and facts about the step.

A *view* is one encoding of the rows of a batch. Its role determines how losses use it; its name appears in the log:

======================  ========  ==================================================================================
name                    role      contents
======================  ========  ==================================================================================
``anchor``              anchor    the sentence, or an augmented form of it
``positive``            positive  the positive example of the anchor
``hard_negative``       negative  a labelled hard negative (the third column of triples); with several columns of
                                  negatives, ``hard_negative_2``, ... follow
``synthetic``           negative  a synthetic hard negative; role ``anchor`` if ``synthetic_positive`` exists
``synthetic_positive``  positive  ``synthetic`` encoded with another dropout mask: the positive of ``synthetic``
``edited``              other     an edited sentence that is neither a positive nor a negative (AugCSE); with several
                                  edits, ``edited_2``, ... follow
======================  ========  ==================================================================================

The first view of role ``anchor`` is paired with the first view of role ``positive``, the second with the second, and
so on. This module also finds the embedding layer and the blocks of a transformer, for the methods that change them. It
imports only torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

Role = Literal["anchor", "positive", "negative", "other"]
TEXTS = re.compile(r"anchor|positive|(edited|hard_negative)(_\d+)?|synthetic(_\d+)?(_positive)?")
"""Names of views that are encodings of texts."""


def roles_by_name(names: Iterable[str]) -> dict[str, Role]:
    """Returns the roles of views whose names are in the table above; raises ``KeyError`` for any other name."""
    names = list(names)
    paired: Role = "anchor" if "synthetic_positive" in names else "negative"
    known: dict[str, Role] = {
        "anchor": "anchor",
        "positive": "positive",
        "hard_negative": "negative",
        "synthetic": paired,
        "synthetic_positive": "positive",
        "edited": "other",
    }
    return {name: known[name] for name in names}


def entry_keys(
    keys: Mapping[str, Tensor], roles: Mapping[str, Role], of_rows: Iterable[Tensor] = ()
) -> dict[str, Tensor]:
    """Returns ``Views.keys``: an anchor and its positive have the keys of both, each its own first; a negative has one.

    ``keys`` are the token keys ``(n,)`` of the views. The first pair also has the keys ``of_rows``, ``(n,)`` each: of
    the sentences, if the pair is cut from them (``cse.identity``), and of the classes.
    """
    result = {name: key[:, None] for name, key in keys.items() if roles[name] == "negative"}
    for pair in zip(*([name for name in keys if roles[name] == role] for role in ("anchor", "positive")), strict=True):
        rest = of_rows if pair[0] == "anchor" else ()
        for name, other in (pair, pair[::-1]):
            both = list({id(key): key for key in (keys[name], keys[other])}.values())  # one if a block has both views
            result[name] = torch.stack([*both, *rest], dim=1)
    return result


def equal_texts(keys: Mapping[str, Tensor], anchors: Iterable[str], one: str, other: str) -> Tensor:
    """Returns ``(R, S)`` bool, True where the text of a row of the view ``other`` is no negative of a row of ``one``.

    It is none if it is the anchor or the positive of a row that shares an anchor or a positive with the row of ``one``,
    or of that row itself. The relation has one step: texts of a third row, which shares a text with the second row
    only, are negatives, as are texts that are connected only by a negative.

    Args:
        keys: See ``Views.keys``.
        anchors: Names of the anchor views of the batch.
        one: A view with R rows, an anchor or a positive.
        other: A view with S rows.
    """
    own = keys[other][:, :1]
    result = _share(keys[one], own)
    for name in anchors:
        through = _share(keys[one], keys[name]).float() @ _share(keys[name], own).float()  # number of such rows
        result |= through > 0
    return result


def _share(one: Tensor, other: Tensor) -> Tensor:
    """Returns ``(R, S)`` bool, True where a row of ``one``, ``(R, k)``, and a row of ``other`` share a key."""
    result = one[:, :1] == other[:, 0]
    for mine in one.unbind(1):
        for theirs in other.unbind(1):
            result |= mine[:, None] == theirs
    return result


@dataclass
class Views:
    """Embeddings of a batch by view name, their roles, masks of valid rows, and weights of pairs."""

    embeddings: dict[str, Tensor]
    """``(B, D)`` float32 by view name; a view of role ``negative`` may have any number of rows, ``(R, D)``."""
    roles: dict[str, Role] = field(default_factory=dict)
    """Roles by view name. Default: the result of ``roles_by_name``."""
    masks: dict[str, Tensor] = field(default_factory=dict)
    """``(B,)`` bool by view name, True for valid rows; without a mask all rows of a view are valid."""
    log_weights: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    """Terms added to the logits, by (anchor view, other view). Their shape is ``(B, R)``, or broadcasts to it: one row
    per anchor, one column per row of the other view. ``-inf`` removes a logit from the denominator. If a pair of
    views has no entry, nothing is added to its logits."""
    own_negatives: dict[str, Tensor] = field(default_factory=dict)
    """``(B, k, D)`` by name of the anchor view: k negatives for each anchor, compared only with this anchor."""
    compared: dict[str, Tensor] = field(default_factory=dict)
    """``(B, D)`` by view name: embeddings that replace the view's in all cosines except the one of an
    anchor with its own positive. A view without an entry is compared by its own embeddings."""
    keys: dict[str, Tensor] = field(default_factory=dict)
    """``(R, k)`` int64 by view name, the keys of each row, the key of its own text first; see ``entry_keys`` and
    ``equal_texts``. Empty if the run keeps duplicates."""
    taught: Tensor | None = None
    """``(B,)`` bool, True for the rows that a label teaches; None: no row has one."""
    repeats: bool = True
    """Whether texts may share a key. If it is known that none do, the contrastive loss does not compare keys."""

    def __post_init__(self) -> None:
        if not self.roles:
            self.roles = roles_by_name(self.embeddings)

    def __getitem__(self, name: str) -> Tensor:
        return self.embeddings[name]

    def __contains__(self, name: str) -> bool:
        return name in self.embeddings

    def named(self, role: Role) -> list[str]:
        """Returns the names of the views with this role, in the order in which they were encoded."""
        return [name for name in self.embeddings if self.roles[name] == role]

    def texts(self) -> list[str]:
        """Returns the names of the views that are encodings of texts, and were not added by a feature method."""
        return [name for name in self.embeddings if TEXTS.fullmatch(name)]

    def valid(self, *names: str) -> Tensor:
        """Returns ``(B,)`` bool, True for the rows that are valid in all of these views."""
        first = self.embeddings[names[0]]
        result = torch.ones(len(first), dtype=torch.bool, device=first.device)
        for name in names:
            result = result & self.masks.get(name, result)
        return result

    def equal(self, one: str, other: str) -> Tensor:
        """Returns ``(R, S)`` bool, True where a row of ``other`` is no negative of a row of ``one``."""
        if one not in self.keys or other not in self.keys:
            first = self.embeddings[one]
            return torch.zeros(len(first), len(self.embeddings[other]), dtype=torch.bool, device=first.device)
        result = equal_texts(self.keys, [name for name in self.named("anchor") if name in self.keys], one, other)
        if self.taught is not None and TEXTS.fullmatch(one) and TEXTS.fullmatch(other):
            result |= self.taught[:, None] != self.taught  # a row without a label may be of any class
        return result

    def replace(self, **values: Any) -> Views:
        """Returns a copy in which the given fields are replaced; roles of views that no longer exist are left out."""
        fields = {**vars(self), **values}
        fields["roles"] = {name: role for name, role in fields["roles"].items() if name in fields["embeddings"]}
        return Views(**fields)

    def with_negatives(self, name: str, z: Tensor, mask: Tensor | None = None, keys: Tensor | None = None) -> Views:
        """Returns a copy with a further view ``(R, D)`` of role ``negative``, with which every anchor is compared."""
        return self.replace(
            embeddings={**self.embeddings, name: z},
            roles={**self.roles, name: "negative"},
            masks=self.masks if mask is None else {**self.masks, name: mask},
            keys=self.keys if keys is None else {**self.keys, name: keys},
            repeats=self.repeats or keys is not None,
        )

    def rows(self, part: slice) -> Views:
        """Returns a copy with only the rows ``part`` of each view.

        The copy has no log-weights, no own negatives, no keys, and no views whose number of rows differs from the
        number of rows of the batch.
        """
        batch = len(self.embeddings["anchor"])
        kept = {name: z[part] for name, z in self.embeddings.items() if len(z) == batch}
        roles = {name: self.roles[name] for name in kept}
        return Views(kept, roles, {name: mask[part] for name, mask in self.masks.items() if name in kept})


@dataclass(frozen=True)
class _Facts:
    number: int
    """Number of steps done before this one."""
    steps: int
    """Number of steps of the run."""
    epoch: int
    seed: int
    rows: Tensor
    """int64 row numbers in the corpus, in the order of the rows of the views."""
    uniform: Callable[[str, int], Tensor]
    """``uniform(purpose, n)`` returns ``(len(rows), n)`` float32 numbers in [0, 1), a function of (seed, epoch, row,
    purpose)."""

    @property
    def progress(self) -> float:
        """Number of steps done before this one, divided by the number of steps of the run: in [0, 1)."""
        return self.number / max(self.steps, 1)

    def normal(self, purpose: str, count: int) -> Tensor:
        """Returns ``(len(rows), count)`` standard normal float32 numbers, a function of (seed, epoch, row, purpose)."""
        u = self.uniform(purpose, 2 * count).clamp(min=2**-25)  # Box-Muller transform
        return (-2 * u[:, :count].log()).sqrt() * (2 * torch.pi * u[:, count:]).cos()


@dataclass(frozen=True)
class RowStep(_Facts):
    """What a row term is given in addition to the embeddings; all values refer to the rows of those embeddings."""

    tokens: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """Token ids, attention masks and so on, ``(n, T)`` each, by block name (``cse.augment.base.Block``)."""
    draws: str = ""
    """For a hook, a prefix that ``uniform`` adds to purposes: empty, or, in the second of two views with the same hook,
    the name of the view."""


def _no_encoder(*arguments: Any, **values: Any) -> Tensor:
    raise ValueError("encode: this step has no encoder")


@dataclass(frozen=True)
class BatchStep(_Facts):
    """What a batch term or feature method is given in addition to the embeddings; all values refer to the whole batch.

    The values are the same in all processes of the run.
    """

    partners: Tensor | None = None
    """``(M,)`` int64: for each of M anchors, the position of the candidate with which its positive is mixed (MixCSE).
    None if the run has no mixed negatives. See ``cse.rng.partners``."""
    encode: Callable[..., Tensor] = _no_encoder
    """``encode(name, encoder=None, rows=None)`` runs a further forward pass in the run's precision, and returns the
    embeddings ``(B, D)`` of the texts of a view or block, such as ``anchor``. The encoder is the run's by default; any
    other has a method ``embed(tokens)``, which accepts the same token ids and returns ``(n, D)``, and a ``backbone``,
    which has the dropout of the view. A ``Frozen`` encoder and one ``WithoutDropout`` have none, and their embeddings
    are computed only once per batch; of these, only those of ``rows``, ``(B,)`` bool, may be needed: the others are
    then undefined."""
    contrastive: Callable[..., Tensor] | None = None
    """``contrastive(views, **changes)`` returns the run's contrastive loss of the given views; ``changes`` override the
    options of this loss. None if the run has no contrastive loss."""
    temperature: float | None = None
    """Temperature of the run's contrastive loss; None if the run has none."""


class Frozen(nn.Module):
    """A model whose weights are not trained: it stays in evaluation mode, and is left out of checkpoints.

    Args:
        model: The model; gradients of its parameters are switched off.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        # A model in a tuple is not registered as a submodule: parameters(), train() and state_dict() leave it out.
        self._model = (model.eval(),)

    @property
    def model(self) -> Any:
        """The model."""
        return self._model[0]

    @property
    def packs(self) -> bool:
        """Whether the model encodes rows without padding."""
        return getattr(self.model, "packs", False)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.model._apply(fn)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Returns the model's output, computed without gradients."""
        return self.model(*arguments, **named)

    @torch.no_grad()
    def embed(self, tokens: dict[str, Tensor]) -> Tensor:
        """Returns the embeddings ``(n, D)`` of a sentence encoder, computed without gradients."""
        z: Tensor = self.model.embed(tokens)
        return z


class WithoutDropout:
    """An encoder whose passes are without dropout and have gradients."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder

    @property
    def packs(self) -> bool:
        """Whether the encoder encodes rows without padding."""
        return getattr(self.encoder, "packs", False)

    def embed(self, tokens: dict[str, Tensor]) -> Tensor:
        """Returns embeddings ``(n, D)``."""
        training = self.encoder.backbone.training
        self.encoder.backbone.eval()
        try:
            z: Tensor = self.encoder.embed(tokens)
        finally:
            self.encoder.backbone.train(training)
        return z


def parts_of(backbone: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    """Returns the embedding layer and the blocks of a transformer; raises ``ValueError`` if they are not found."""
    config: Any = backbone.config
    embedding = getattr(backbone, "embeddings", None) or getattr(backbone, "embed_tokens", None)
    count = getattr(config, "num_hidden_layers", None)
    blocks = [module for module in backbone.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    if not isinstance(embedding, nn.Module) or not blocks:
        raise ValueError(f"{type(backbone).__name__}: its embedding layer or its blocks cannot be found")
    return embedding, blocks[0]


def first_position(backbone: nn.Module) -> int:
    """Returns the position id of a transformer's first token: 0 or, in models like RoBERTa, the padding index + 1."""
    padding = getattr(getattr(parts_of(backbone)[0], "position_embeddings", None), "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


@contextmanager
def embedding_output(backbone: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Context manager that replaces the output ``z`` of the embedding layer, ``(n, T, D)``, with ``change(z)``."""
    handle = parts_of(backbone)[0].register_forward_hook(lambda module, inputs, output: change(output))
    try:
        yield
    finally:
        handle.remove()
