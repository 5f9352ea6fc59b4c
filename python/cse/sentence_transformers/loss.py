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

from ..augment import UNAOptions
from ..errors import InputError
from ..losses import ContrastiveOptions, incompatibility
from ..losses.contrastive import Contrastive, contrastive_loss
from ..options import options_of
from ..rng import partners, valid_candidates
from ..views import Role, entry_keys
from .negatives import EPOCH, ROW, Facts, facts_of


class InfoNCELoss(CachedLossMixin, nn.Module):
    """Computes InfoNCE, NT-Xent, Focal-InfoNCE or MixCSE; a replacement for ``MultipleNegativesRankingLoss``.

    The inputs are the same as for ``MultipleNegativesRankingLoss``: the columns anchor, positive and any number of
    negatives, without labels. With the defaults, and without equal texts in a batch, both losses have the same values.
    The formulas are those of ``cse.losses.contrastive.contrastive_loss``, in float32 whatever the trainer's precision.

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
        keep_duplicates: If False, texts of a batch with the same token ids, without prompts, are not negatives of each
            other, whatever their columns, nor are the texts of rows that have an anchor or a positive in common; a
            negative equal to the anchor or positive of its row is not used. If True, nothing is left out, as in
            ``MultipleNegativesRankingLoss``.
        seed: Seed for the random partners with which mixed negatives are made.
        gather_across_devices: With several processes, compute the loss over the rows of all of them. The gradients
            equal those of one process with the whole batch. All processes need the same number of rows in each batch
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
        pairs = negatives_as == "pairs"
        if pairs and objective != "nt-xent":
            raise InputError('negatives_as="pairs": needs objective="nt-xent", in which every text is an anchor')
        if incompatibility(objective, logits, mixed, pairs):
            raise InputError(
                'mixed="release": is defined for objective="infonce", logits="cosine" and '
                'negatives_as="hard-negatives" only; use mixed="paper"'
            )
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
        loss = self._loss([torch.cat(column) for column in reps], labels)
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
        return self._loss(embeddings, None)

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

    def _loss(self, embeddings: list[Tensor], facts: Facts | None) -> Tensor:
        if len(embeddings) < 2:
            raise InputError(
                "dataset: the loss needs two columns, anchor and positive, got 1; without labels, add a second column "
                "with the same sentences (SimCSE)"
            )
        if facts is None:
            rows = torch.arange(len(embeddings[0]), device=embeddings[0].device)
            facts = Facts(rows, torch.zeros_like(rows), None)
        if self.gather_across_devices and torch.distributed.is_available() and torch.distributed.is_initialized():
            check_equal_rows(embeddings[0])
            embeddings = [all_gather_with_grad(z) for z in embeddings]
            facts = facts.gathered(all_gather)
        views, roles, columns = self._views([z if z.dtype == torch.float64 else z.float() for z in embeddings])
        if self.parts["hard_negative_weight"] != 1 and "hard_negative" not in views:
            raise InputError(
                'hard_negative_weight: needs a column of negatives, with negatives_as="hard-negatives"; omit '
                "hard_negative_weight"
            )
        masks: dict[str, Tensor] = {}
        keys: dict[str, Tensor] = {}
        if not self.keep_duplicates and facts.keys is not None:
            place = {"anchor": 0, "positive": 1, **columns}
            keys = entry_keys({name: facts.keys[place[name]] for name in views}, roles)
            masks = {name: facts.changed(column) for name, column in columns.items()}
        drawn = self._partners(roles, masks, facts, embeddings[0].device)
        with torch.autocast(embeddings[0].device.type, enabled=False):
            return contrastive_loss(views, **self.parts, roles=roles, masks=masks, keys=keys, partners=drawn)

    def _views(self, embeddings: list[Tensor]) -> tuple[dict[str, Tensor], dict[str, Role], dict[str, int]]:
        """Returns the embeddings and roles by view name, and the column number of each view of negatives."""
        views = {"anchor": embeddings[0], "positive": embeddings[1]}
        roles: dict[str, Role] = {"anchor": "anchor", "positive": "positive"}
        columns: dict[str, int] = {}
        pairs = self.negatives_as == "pairs"
        count = (len(embeddings) - 2) // (2 if pairs else 1)
        for number in range(count):
            name = ("synthetic" if pairs else "hard_negative") + (f"_{number + 1}" if number else "")
            views[name], roles[name], columns[name] = embeddings[2 + number], "negative", 2 + number
            if pairs:
                twin = f"{name}_positive"
                views[twin], columns[twin] = embeddings[2 + count + number], 2 + number
                roles[name], roles[twin] = "anchor", "positive"
        return views, roles, columns

    def _partners(
        self, roles: dict[str, Role], masks: dict[str, Tensor], facts: Facts, device: torch.device
    ) -> Tensor | None:
        """Returns the partners of mixed negatives, drawn as in ``cse train``; see ``cse.rng.partners``."""
        mixed = self.parts["mixed"]
        options = ContrastiveOptions(self.parts["objective"], mixed_negatives=bool(mixed), mix_variant=mixed or "paper")
        drawn = Contrastive(options, None).partner_views(roles)  # type: ignore[arg-type]
        if drawn is None:
            return None
        anchors, names = drawn
        valid = valid_candidates(names, {name: mask.cpu().numpy() for name, mask in masks.items()}, len(facts.rows))
        chosen = partners(facts.rows.cpu().numpy(), self.seed, int(facts.epoch[0]), anchors, len(names), valid)
        return torch.from_numpy(chosen).to(device)


def check_equal_rows(local: Tensor) -> None:
    """Raises ``InputError`` if the processes have different numbers of rows."""
    counts = all_gather(torch.tensor([len(local)], device=local.device)).tolist()
    if len(set(counts)) > 1:
        raise InputError(
            f"gather_across_devices: the processes have {', '.join(map(str, counts))} rows in a batch, but need "
            "equal numbers; set dataloader_drop_last=True"
        )
