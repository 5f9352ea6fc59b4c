"""Substitution of words by a masked language model (SimCSE, table 1, "MLM 15 %")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ..context import Context
from ..errors import InputError, first_line
from .base import Draws, Edit

# Sentences per forward pass.
BATCH = 64


@dataclass(frozen=True)
class SubstitutionOptions:
    """Options of substitution."""

    model: Annotated[str, Field(description="masked language model that predicts the new words")] = "bert-base-uncased"
    share: Annotated[float, Field(gt=0, lt=1, description="fraction of the words to replace")] = 0.15
    length: Annotated[
        int, Field(ge=8, description="maximum number of tokens read from a sentence; later words are kept")
    ] = 64


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
