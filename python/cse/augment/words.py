"""Words removed, repeated, masked, or substituted by a masked language model.

- Cropping keeps a contiguous part of the sentence, and deletion removes random words (SimCSE, table 1, "crop" and "word
  deletion").
- Repetition repeats words (ESimCSE; Wu et al. 2022, arXiv:2109.04380, section 3.1).
- A masked span replaces a span of characters (Mirror-BERT; Liu et al. 2021, arXiv:2104.08027, section 3.1).
- Substitution replaces words by those that a masked language model predicts (SimCSE, table 1, "MLM 15 %").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Lt, MinLen

from .. import rng
from ..context import Context
from ..errors import InputError, first_line
from ..options import Opt
from .base import Draws, Edit


@dataclass(frozen=True)
class CropOptions:
    """Options of cropping."""

    share: Annotated[float, Gt(0), Lt(1), Opt("fraction of the words to cut off")] = 0.1


class Crop(Edit):
    """Cuts a fraction of the words (at least one word) off the ends of the sentence.

    All positions of the remaining part are equally likely. A sentence of one word is not cropped.
    """

    Options = CropOptions
    summary = "cuts words off the ends of the sentence (SimCSE's ablation)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the cropped sentences."""
        cropped = []
        for text, place in zip(texts, rng.uniform(draws.seed, draws.epoch, rows, rng.CROP).tolist(), strict=True):
            words = text.split()
            cut = min(max(1, round(self.options.share * len(words))), len(words) - 1)
            start = int(place * (cut + 1))
            cropped.append(" ".join(words[start : start + len(words) - cut]) if cut > 0 else text)
        return cropped


@dataclass(frozen=True)
class DeleteOptions:
    """Options of deletion."""

    share: Annotated[float, Gt(0), Lt(1), Opt("fraction of the words to delete")] = 0.1


class Delete(Edit):
    """Deletes a fraction of the words (at least one word), chosen at random.

    All subsets of that size are equally likely. A sentence of one word is not changed.
    """

    Options = DeleteOptions
    summary = "deletes random words (SimCSE's ablation)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the shortened sentences."""
        split = [text.split() for text in texts]
        longest = max((len(words) for words in split), default=0)
        # One key per word; the words with the smallest keys are deleted.
        streams = [rng.DELETE + place for place in range(max(longest, 1))]
        keys = np.stack([rng.bits(draws.seed, draws.epoch, rows, stream) for stream in streams], axis=1)
        shortened = []
        for words, text, key in zip(split, texts, keys, strict=True):
            count = min(max(1, round(self.options.share * len(words))), len(words) - 1)
            deleted = set(np.argsort(key[: len(words)], kind="stable")[: max(count, 0)].tolist())
            kept = [word for place, word in enumerate(words) if place not in deleted]
            shortened.append(" ".join(kept) if deleted else text)
        return shortened


@dataclass(frozen=True)
class RepetitionOptions:
    """Options of the repetition; the default rate is the published value for BERT-base."""

    rate: Annotated[float, Gt(0), Lt(1), Opt("fraction of the tokens that are repeated at most")] = 0.32
    variant: Annotated[
        Literal["paper", "release"],
        Opt("largest number of repeated tokens, as in the paper or as in the released code"),
    ] = "paper"


class Repetition(Edit):
    """Repeats random tokens once each, so that the positive differs in length from the anchor.

    Tokens (word pieces) are repeated after truncation, as in the released code, so that the repeated sentence keeps its
    end and may be longer than the maximum length. Special tokens are not repeated. The number of repeated tokens is
    drawn uniformly from 0 to a maximum. In a sentence of n tokens, this is max(2, floor(rate * n)) but at most n, as in
    the paper; with ``variant="release"``, it is min(10, floor(rate * (n + 2))) - 1, where n + 2 counts the special
    tokens of BERT, and at least 0. As an edit of texts, for example in ``one-of``, the method repeats words.
    """

    Options = RepetitionOptions
    summary = "repeats tokens (ESimCSE)"
    edits_tokens = True

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the sentences with repeated words."""
        split = [text.split() for text in texts]
        edited = self.edit_tokens(split, rows, draws)
        return [
            text if len(new) == len(words) else " ".join(new)
            for text, words, new in zip(texts, split, edited, strict=True)
        ]

    def most(self, count: int) -> int:
        """Returns the largest number of repeated tokens in a sentence of ``count`` tokens."""
        if self.options.variant == "release":
            return max(0, min(10, int(self.options.rate * (count + 2))) - 1)
        return min(max(2, int(self.options.rate * count)), count)

    def most_tokens(self, count: int) -> int:
        """Returns the largest number of tokens after the repetition of some of ``count`` tokens."""
        return count + self.most(count)

    def edit_tokens(self, ids: Sequence[list[Any]], rows: npt.NDArray[np.int64], draws: Draws) -> list[list[Any]]:
        """Returns the sentences with repeated tokens; see ``Edit.edit_tokens``."""
        counts = draws.uniform(rows, "repetition count")[:, 0]
        places = draws.uniform(rows, "repetition", max(map(len, ids), default=0))
        edited = []
        for tokens, u, keys in zip(ids, counts, places, strict=True):
            count = int(u * (self.most(len(tokens)) + 1))
            repeated = set(np.argsort(keys[: len(tokens)], kind="stable")[:count].tolist())
            edited.append([token for place, token in enumerate(tokens) for _ in range(1 + (place in repeated))])
        return edited


@dataclass(frozen=True)
class MaskedSpanOptions:
    """Options of the masked span; the defaults are the published values for sentences."""

    length: Annotated[int, Ge(1), Opt("number of characters to replace")] = 5
    shortest: Annotated[int, Ge(1), Opt("texts with fewer characters are not changed")] = 30
    mask: Annotated[str, MinLen(1), Opt("replacement text (RoBERTa's mask token is <mask>)")] = "[MASK]"


class MaskedSpan(Edit):
    """Replaces a random span of characters with a mask token; all positions are equally likely.

    The released code, in contrast, replaces the first occurrence of the span's text, even if the span was drawn
    elsewhere, and writes [MASK] for RoBERTa as well.
    """

    Options = MaskedSpanOptions
    summary = "replaces a span of characters with a mask token (Mirror-BERT)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the sentences with a masked span."""
        options: MaskedSpanOptions = self.options
        edited = []
        for text, u in zip(texts, draws.uniform(rows, "masked span")[:, 0], strict=True):
            if len(text) < max(options.shortest, options.length):
                edited.append(text)
                continue
            start = int(u * (len(text) - options.length + 1))
            edited.append(text[:start] + options.mask + text[start + options.length :])
        return edited


# Sentences per forward pass.
BATCH = 64


@dataclass(frozen=True)
class SubstitutionOptions:
    """Options of substitution."""

    model: Annotated[str, Opt("masked language model that predicts the new words")] = "bert-base-uncased"
    share: Annotated[float, Gt(0), Lt(1), Opt("fraction of the words to replace")] = 0.15
    length: Annotated[int, Ge(8), Opt("maximum number of tokens read from a sentence; later words are kept")] = 64


class Substitution(Edit):
    """Replaces a random fraction of the words (at least one) with predictions of a masked language model.

    A sentence that contains the mask token is left unchanged. In any other sentence, all words to be replaced are
    masked at once, with one mask token each. The replacement of a word is the most likely token that is a whole word
    and differs from the original word, ignoring case; the paper does not specify how its model fills in the masks. If
    the scores of two tokens differ by less than a float32 rounding error, the choice may depend on the batch size.

    Raises ``InputError`` if ``model`` does not have the weights of a masked language model, or has no mask token.
    """

    Options = SubstitutionOptions
    summary = "replaces words with predictions of a masked language model (SimCSE's ablation)"
    expensive = True

    def __init__(self, options: SubstitutionOptions, context: Context) -> None:
        super().__init__(options, context)
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        from ..models.reading.resolve import find_model

        path, flag = find_model(options.model).path, "substitution.model"
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
            model, report = AutoModelForMaskedLM.from_pretrained(path, local_files_only=True, output_loading_info=True)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{flag}: {options.model} cannot be loaded as a masked language model ({first_line(error)})"
            ) from None
        if tokenizer.mask_token_id is None or report["missing_keys"]:
            missing = "mask token" if tokenizer.mask_token_id is None else "weights of a masked language model"
            raise InputError(f"{flag}: {options.model} has no {missing}; name a checkpoint of a masked language model")
        self.tokenizer, self.device = tokenizer, context.device
        self.model = model.float().eval().requires_grad_(False).to(context.device)
        self.words = whole_words(tokenizer)

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the sentences with some words replaced."""
        split = [text.split() for text in texts]
        longest = max((len(words) for words in split), default=0)
        keys = draws.uniform(rows, "substitution", max(longest, 1))
        places = []
        for text, words, key in zip(texts, split, keys, strict=True):
            # If a text contains the mask token, predictions cannot be matched to words.
            editable = words and self.tokenizer.mask_token not in text
            count = max(1, round(self.options.share * len(words))) if editable else 0
            places.append(np.sort(np.argsort(key[: len(words)], kind="stable")[:count]).tolist())
        edited = list(texts)
        order = sorted((n for n in range(len(texts)) if places[n]), key=lambda n: len(split[n]))
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            for number, words in zip(
                some, self._filled([split[n] for n in some], [places[n] for n in some]), strict=True
            ):
                if words != split[number]:
                    edited[number] = " ".join(words)
        return edited

    def _filled(self, split: list[list[str]], places: list[list[int]]) -> list[list[str]]:
        """Returns the words of each sentence, with those at ``places`` replaced."""
        import torch

        mask = self.tokenizer.mask_token
        masked = [
            " ".join(mask if place in set(chosen) else word for place, word in enumerate(words))
            for words, chosen in zip(split, places, strict=True)
        ]
        tokens = self.tokenizer(
            masked, padding=True, truncation=True, max_length=self.options.length, return_tensors="pt"
        ).to(self.device)
        rows, columns = torch.nonzero(tokens["input_ids"] == self.tokenizer.mask_token_id, as_tuple=True)
        with torch.no_grad():
            scores = self.model(**tokens).logits[rows, columns].masked_fill(~self.words.to(self.device), -torch.inf)
        best = scores.topk(2, dim=1).indices.tolist()  # the second is used if the first is the word itself
        found, used = [list(words) for words in split], [0] * len(split)
        for row, tokens_of in zip(rows.tolist(), best, strict=True):
            place = places[row][used[row]]
            used[row] += 1
            guesses = [str(self.tokenizer.decode([token])).strip() for token in tokens_of]
            found[row][place] = next(
                (guess for guess in guesses if guess.lower() != split[row][place].lower()), split[row][place]
            )
        return found


def whole_words(tokenizer: Any) -> Any:
    """Returns ``(V,)`` bool: True for whole words; False for special tokens, continuations and punctuation."""
    import torch

    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    spaced = any(str(piece).startswith(("Ġ", "▁")) for piece in pieces)  # word starts in RoBERTa and SentencePiece
    special = set(tokenizer.all_special_ids)
    whole = []
    for number, piece in enumerate(map(str, pieces)):
        starts = piece.startswith(("Ġ", "▁")) if spaced else not piece.startswith("##")
        whole.append(number not in special and starts and any(c.isalnum() for c in piece.lstrip("Ġ▁")))
    return torch.tensor(whole)
