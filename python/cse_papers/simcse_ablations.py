"""Positives of SimCSE's ablations (Gao, Yao and Chen 2021): crop, deletion, substitution, next sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le, Lt

from cse import rng
from cse.augment.base import Draws, Edit, Paired, Pairing
from cse.context import TextContext
from cse.options import Opt

# Streams of random numbers (see ``cse.rng``), as in earlier versions, so that results do not change.
CROP, DELETE = 2**35, 2**36


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
        cropped = []
        for text, place in zip(texts, rng.uniform(draws.seed, draws.epoch, rows, CROP).tolist(), strict=True):
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
        split = [text.split() for text in texts]
        longest = max((len(words) for words in split), default=0)
        # One key per word; the words with the smallest keys are deleted.
        streams = [DELETE + place for place in range(max(longest, 1))]
        keys = np.stack([rng.bits(draws.seed, draws.epoch, rows, stream) for stream in streams], axis=1)
        shortened = []
        for words, text, key in zip(split, texts, keys, strict=True):
            count = min(max(1, round(self.options.share * len(words))), len(words) - 1)
            deleted = set(np.argsort(key[: len(words)], kind="stable")[: max(count, 0)].tolist())
            kept = [word for place, word in enumerate(words) if place not in deleted]
            shortened.append(" ".join(kept) if deleted else text)
        return shortened


@dataclass(frozen=True)
class NextSentenceOptions:
    """Options of next-sentence positives; SimCSE's "next 3 sentences" is ``within=3``."""

    within: Annotated[int, Ge(1), Le(1000), Opt("the positive is drawn from this many following rows")] = 1


class NextSentence(Pairing):
    """Takes the positive from the next rows of the corpus, which must be running text in order (SimCSE, table 2).

    Blank rows, held-out rows (see ``cse.data.corpus``) and their duplicates, and rows past the end of the corpus are
    not used as positives: if one of these is drawn for a sentence, the sentence has no positive.
    """

    Options = NextSentenceOptions
    summary = "the next sentence of the corpus, or one of the next few (SimCSE's ablation)"

    def __init__(self, options: NextSentenceOptions, context: TextContext) -> None:
        super().__init__(options, context)
        self.corpus: Any = context.corpus
        self.context = context

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        further = 1 + (draws.uniform(rows, "next sentence")[:, 0] * self.options.within).astype(np.int64)
        wanted = rows + further
        train: npt.NDArray[np.int64] = self.context.rows
        at = np.minimum(np.searchsorted(train, wanted), len(train) - 1)
        valid = train[at] == wanted
        return Paired(list(texts), self.corpus.take(np.where(valid, wanted, rows)), valid)


# Sentences per forward pass.
BATCH = 64


@dataclass(frozen=True)
class SubstitutionOptions:
    """Options of substitution."""

    model: Annotated[str, Opt("masked language model that predicts the new words")] = "bert-base-uncased"
    share: Annotated[float, Gt(0), Lt(1), Opt("fraction of the words to replace")] = 0.15
    crop: Annotated[float, Ge(0), Lt(1), Opt("fraction of the words to cut off before, as with the positive crop")] = (
        0.0
    )
    length: Annotated[int, Ge(8), Opt("maximum number of tokens read from a sentence; later words are kept")] = 64


class Substitution(Edit):
    """Replaces a random fraction of the words (at least one) with predictions of a masked language model.

    A sentence that contains the mask token is left unchanged. In any other sentence, all words to be replaced are
    masked at once, with one mask token each. The replacement of a word is the most likely token that is a whole word
    and differs from the original word, ignoring case; the paper does not specify how its model fills in the masks. If
    the scores of two tokens differ by less than a float32 rounding error, the choice may depend on the batch size.
    """

    Options = SubstitutionOptions
    summary = "replaces words with predictions of a masked language model (SimCSE's ablation)"
    expensive = True

    def __init__(self, options: SubstitutionOptions, context: TextContext) -> None:
        super().__init__(options, context)
        self.crop = Crop(CropOptions(options.crop), context) if options.crop else None
        self.device = context.device
        self.model, self.tokenizer = context.load_masked_language_model(options.model, "substitution.model")
        self.words = whole_words(self.tokenizer)

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        if self.crop is not None:
            texts = self.crop(texts, rows, draws)
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
        filled, used = [list(words) for words in split], [0] * len(split)
        for row, tokens_of in zip(rows.tolist(), best, strict=True):
            place = places[row][used[row]]
            used[row] += 1
            guesses = [str(self.tokenizer.decode([token])).strip() for token in tokens_of]
            filled[row][place] = next(
                (guess for guess in guesses if guess.lower() != split[row][place].lower()), split[row][place]
            )
        return filled


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
