"""The contrastive losses of cse as a loss of sentence-transformers; the papers behind them, for model cards."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import CachedLossMixin, has_static_embedding_input
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.util import all_gather, all_gather_with_grad
from torch import Tensor, nn

from ..augment.options import UNAOptions
from ..errors import InputError
from ..losses.contrastive import contrastive_loss
from ..losses.options import ContrastiveOptions
from ..options import options_of
from ..rng import partners, valid_candidates
from ..views import Role, entry_keys
from .negatives import EPOCH, ROW, Facts, facts_of


class InfoNCELoss(CachedLossMixin, nn.Module):
    """Computes InfoNCE, NT-Xent, Focal-InfoNCE or MixCSE; a replacement for ``MultipleNegativesRankingLoss``.

    The inputs are the same as for ``MultipleNegativesRankingLoss``: the columns anchor, positive and any number of
    negatives, without labels. With the defaults, and without equal texts in a batch, both losses have the same values.
    The formulas are in ``cse.losses.contrastive.contrastive_loss``, computed in float32 whatever the trainer's precision.

    With ``mixed="paper"``, the positive of each anchor is mixed with a random partner from the batch. If
    ``NegativesCollator`` makes the batches, the random number that selects the partner is a function of ``seed``, row
    number and epoch, as in ``cse train``; otherwise, it is a function of ``seed`` and the anchor's token ids. This
    number does not depend on the number of processes, and a resumed run draws the same partners.

    Args:
        model: A ``SentenceTransformer``.
        objective: ``infonce``: each anchor is compared with the positives and negatives. ``nt-xent``: each text of a
            pair is compared with all other texts (UNA).
        logits: ``cosine``, or ``focal`` (Focal-InfoNCE).
        mixed: ``paper`` or ``release``: use mixed negatives (MixCSE), as in the paper or as in its released code.
        temperature: tau; 0.05 corresponds to ``scale=20`` of ``MultipleNegativesRankingLoss``.
        margin: m of the focal logits.
        mix_lambda: Weight of the positive in a mixed negative, from 0 to 1.
        hard_negative_weight: alpha; ln(alpha) is added to the logits between an anchor and the negatives of its row.
        negatives_as: ``hard-negatives``: negatives are in the denominator of every anchor. ``pairs``: each negative is
            encoded twice and forms a further pair of anchor and positive, as in the UNA paper; needs ``nt-xent``.
        keep_duplicates: If False, a text of a batch is no negative of an anchor if it has the token ids, without
            prompts, of the anchor or positive of a row that shares an anchor or a positive with the row of the anchor;
            a negative equal to the anchor or positive of its row is not used. If True, nothing is left out, as in
            ``MultipleNegativesRankingLoss``.
        seed: Seed for the random partners with which mixed negatives are made.
        gather_across_devices: With several processes, compute the loss over the rows of all of them. The gradients
            are the same as in one process with the whole batch. All processes need the same number of rows in each batch
            (``dataloader_drop_last=True``).
        cached: Encode mini-batches of ``mini_batch_size`` texts, first without and then with gradients (GradCache), as
            in ``CachedMultipleNegativesRankingLoss``. The gradients stay the same, and only the memory for embeddings
            and for the similarity matrix grows with the batch size.
        mini_batch_size: Texts per forward pass, with ``cached``.
        mini_batch_num_tokens: Tokens per forward pass, with ``cached``, instead of ``mini_batch_size``.
        show_progress_bar: Show the progress within a batch, with ``cached``.

    Raises:
        InputError: For an unknown name, a number out of range, or arguments that cannot be combined.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        objective: str = "infonce",
        logits: str = "cosine",
        mixed: str | None = None,
        *,
        temperature: float = 0.05,
        margin: float = 0.3,
        mix_lambda: float = 0.2,
        hard_negative_weight: float = 1.0,
        negatives_as: str = "hard-negatives",
        keep_duplicates: bool = False,
        seed: int = 0,
        gather_across_devices: bool = False,
        cached: bool = False,
        mini_batch_size: int = 32,
        mini_batch_num_tokens: int | None = None,
        show_progress_bar: bool = False,
    ) -> None:
        super().__init__()
        self.parts: dict[str, Any] = {
            "objective": objective,
            "logits": logits,
            "mixed": mixed,
            "temperature": temperature,
            "margin": margin,
            "mix_lambda": mix_lambda,
            "hard_negative_weight": hard_negative_weight,
        }
        """Arguments of ``contrastive_loss``."""
        declared = {option.name: option for option in (*options_of(ContrastiveOptions), *options_of(UNAOptions))}
        for name, value in {**self.parts, "negatives_as": negatives_as}.items():
            if name != "mixed" or mixed is not None:
                declared[{"mixed": "mix_variant", "negatives_as": "use_as"}.get(name, name)].check(value, name)
        if negatives_as == "pairs" and objective != "nt-xent":
            raise InputError('negatives_as="pairs": needs objective="nt-xent", in which every text is an anchor')
        if cached and has_static_embedding_input(model):
            raise InputError("cached: saves no memory with a StaticEmbedding, which has no activations; omit cached")
        self.model, self.tokenizer = model, getattr(model, "tokenizer", None)
        self.negatives_as, self.keep_duplicates, self.seed = negatives_as, keep_duplicates, seed
        self.gather_across_devices = gather_across_devices
        self.uses_gradient_cache = cached
        self.mini_batch_size, self.mini_batch_num_tokens = mini_batch_size, mini_batch_num_tokens
        self.show_progress_bar = show_progress_bar

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """Returns the loss of a batch, a scalar tensor, from the inputs by column; ``labels`` are ignored."""
        columns = list(sentence_features)
        # Computed before the model runs, because the model may change attention masks in place to exclude prompts.
        facts: Any = facts_of(columns, self.tokenizer)
        features = [{key: value for key, value in column.items() if key not in (ROW, EPOCH)} for column in columns]
        if self.negatives_as == "pairs":
            features = [*features, *(dict(item) for item in features[2:])]  # encoded again, with another dropout mask
        if self.uses_gradient_cache:
            # The facts are passed as labels, because losses that wrap this one pass labels on to calculate_loss.
            cached: Any = self.forward_cached
            whole: Tensor = cached(features, facts)
            return whole
        return self._loss(embed_columns(self.model, features), facts)

    def calculate_loss(self, reps: list[list[Tensor]], labels: Any = None, *, with_backward: bool = False) -> Tensor:
        """Returns the loss of the mini-batches of each column; ``labels`` are the ``Facts`` of the batch, or None."""
        loss = self._loss([torch.cat(column) for column in reps], labels or Facts())
        if with_backward:
            loss.backward()  # type: ignore[no-untyped-call]
            loss = loss.detach()
        return loss

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor | None = None) -> Tensor:
        """Returns the loss of embeddings, ``(B, D)`` for each column. Equal texts are not detected."""
        if self.negatives_as == "pairs" and len(embeddings) > 2:
            raise InputError(
                'negatives_as="pairs": needs texts, which it encodes twice; call the loss with inputs of the model'
            )
        return self._loss(embeddings, Facts())

    def get_config_dict(self) -> dict[str, Any]:
        """Returns the parameters, for the model card."""
        names = ["negatives_as", "keep_duplicates", "seed", "gather_across_devices"]
        names += ["mini_batch_size", "mini_batch_num_tokens"] if self.uses_gradient_cache else []
        shown = {name: getattr(self, name) for name in names}
        return {**self.parts, **shown, "cached": self.uses_gradient_cache}

    @property
    def temperature(self) -> float:
        """The temperature of the contrastive loss."""
        return float(self.parts["temperature"])

    @property
    def citation(self) -> str:
        """BibTeX entries of the papers behind the parts in use, with SimCSE first."""
        used = {
            "gao2021simcse": True,
            "chen2020simclr": self.parts["objective"] == "nt-xent",
            "shu2024una": self.negatives_as == "pairs",
            "hou2023focal": self.parts["logits"] == "focal",
            "zhang2022mixcse": self.parts["mixed"] is not None,
            "gao2021scaling": self.uses_gradient_cache,
        }
        entries = (files("cse") / "resources" / "citations.bib").read_text(encoding="utf8").split("\n\n")
        by_key = {entry.partition("{")[2].partition(",")[0]: entry.strip() for entry in entries}
        return "".join(f"\n{by_key[key]}\n" for key, holds in used.items() if holds)

    def _loss(self, embeddings: list[Tensor], facts: Facts) -> Tensor:
        if len(embeddings) < 2:
            raise InputError(
                "dataset: the loss needs two columns, anchor and positive, got 1; without labels, add a second column "
                "with the same sentences (SimCSE)"
            )
        rows, epoch, known = facts
        if self.gather_across_devices and torch.distributed.is_available() and torch.distributed.is_initialized():
            check_equal_rows(embeddings[0])
            embeddings = [all_gather_with_grad(z) for z in embeddings]
            rows = None if rows is None else all_gather(rows)
            known = None if known is None else tuple(all_gather(key) for key in known)
        views, roles, columns = self._views([z if z.dtype == torch.float64 else z.float() for z in embeddings])
        masks: dict[str, Tensor] = {}
        keys: dict[str, Tensor] = {}
        if not self.keep_duplicates and known is not None:
            keys = entry_keys({name: known[column] for name, column in columns.items()}, roles)
            masks = {
                name: (known[column] != known[0]) & (known[column] != known[1])
                for name, column in columns.items()
                if column > 1
            }
        chosen: dict[str, Any] = {}
        if self.parts["mixed"] == "paper":
            rows = torch.arange(len(embeddings[0])) if rows is None else rows.cpu()
            number = 0 if epoch is None else int(epoch[0])
            chosen["partners"] = self._partners(roles, masks, rows, number).to(embeddings[0].device)
        with torch.autocast(embeddings[0].device.type, enabled=False):
            return contrastive_loss(views, **self.parts, roles=roles, masks=masks, keys=keys, **chosen)

    def _views(self, embeddings: list[Tensor]) -> tuple[dict[str, Tensor], dict[str, Role], dict[str, int]]:
        """Returns the embeddings, the roles and the column numbers of the views, by name."""
        found: list[tuple[str, Role, int, Tensor]] = [
            ("anchor", "anchor", 0, embeddings[0]),
            ("positive", "positive", 1, embeddings[1]),
        ]
        pairs = self.negatives_as == "pairs"
        count = (len(embeddings) - 2) // (2 if pairs else 1)
        for column in range(2, 2 + count):
            end = f"_{column - 1}" if column > 2 else ""
            if pairs:
                found.append((f"synthetic{end}", "anchor", column, embeddings[column]))
                found.append((f"synthetic{end}_positive", "positive", column, embeddings[column + count]))
            else:
                found.append((f"hard_negative{end}", "negative", column, embeddings[column]))
        return (
            {name: z for name, _, _, z in found},
            {name: role for name, role, _, _ in found},
            {name: column for name, _, column, _ in found},
        )

    def _partners(self, roles: dict[str, Role], masks: dict[str, Tensor], rows: Tensor, epoch: int) -> Tensor:
        """Returns the partners of mixed negatives, drawn as in ``cse train``; see ``cse.rng.partners``."""
        used = ("anchor", "positive") if self.parts["objective"] == "nt-xent" else ("positive",)
        names = [name for name, role in roles.items() if role in used]
        valid = valid_candidates(names, {name: mask.cpu().numpy() for name, mask in masks.items()}, len(rows))
        return torch.from_numpy(partners(rows.numpy(), self.seed, epoch, len(names), len(names), valid))


def check_equal_rows(local: Tensor) -> None:
    """Raises ``InputError`` if the processes have different numbers of rows."""
    counts = all_gather(torch.tensor([len(local)], device=local.device)).tolist()
    if len(set(counts)) > 1:
        raise InputError(
            f"gather_across_devices: the processes have {', '.join(map(str, counts))} rows in a batch, but need "
            "equal numbers; set dataloader_drop_last=True"
        )
