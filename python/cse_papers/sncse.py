"""SNCSE: negated sentences as soft negatives (Wang et al. 2022, arXiv:2201.05979)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cosine_similarity, relu

from cse import InputError
from cse.augment.base import Draws, Edit
from cse.context import TextContext
from cse.losses.base import BatchTerm
from cse.options import Opt
from cse.views import BatchStep, Views

FORMS_OF_BE = "am is was are were"
MODALS = "can could will would shall should may must might"
AUXILIARIES = frozenset(f"{FORMS_OF_BE} {MODALS} do does did has have had".split())
"""Words after which ``not`` is inserted without a parser: forms of be, modal verbs, and forms of do and have."""
CONTRACTED = re.compile(r"n't\b|n’t\b", re.IGNORECASE)
IRREGULAR = {"ca": "can", "wo": "will", "sha": "shall"}


@dataclass(frozen=True)
class NegationOptions:
    """Options of the negation."""

    parser: Annotated[
        str, Opt("pipeline of spaCy with a parser, such as en_core_web_sm, as in the release; empty: a list of words")
    ] = ""


def negate_words(text: str) -> str:
    """Negates a sentence by a list of words: removes the first negation, else inserts ``not`` after an auxiliary.
    Without either, ``Not`` is put in front, as in the released code for sentences whose verb it does not find."""
    words = text.split(" ")
    for place, word in enumerate(words):
        if word.lower() == "not":
            return " ".join(words[:place] + words[place + 1 :])
        if match := CONTRACTED.search(word):
            stem = word[: match.start()]
            words[place] = IRREGULAR.get(stem.lower(), stem) + word[match.end() :]
            return " ".join(words)
    for place, word in enumerate(words):
        if word.lower() in AUXILIARIES:
            return " ".join([*words[: place + 1], "not", *words[place + 1 :]])
    return f"Not {text}"


def negate_parsed(tokens: Sequence[Any]) -> str:
    """Negates a sentence of spaCy's tokens as the released code does; tokens are joined by spaces."""
    words = [str(token) for token in tokens]
    if "not" in words:
        words.remove("not")
        return " ".join(words)
    place = next((n for n, token in enumerate(tokens) if token.dep_ in ("aux", "auxpass", "ROOT")), None)
    if place is None:
        return " ".join(["Not", *words])
    token = tokens[place]
    does = {"VBP": "do", "VBZ": "does", "VBD": "did"}.get(token.tag_)
    if token.dep_ != "ROOT" or words[place].lower() in f"{FORMS_OF_BE} {MODALS}".split():
        words[place] += " not"
    elif does:
        words[place] = f"{does} not {token.lemma_}"
    else:
        words.insert(0, "Not")
    return " ".join(words)


class Negation(Edit):
    """Negates sentences. With ``--positive negation``, the positive is the original under another dropout mask.

    The negated sentence is then a further view, ``edited``, for ``--loss-term soft-negative``; contrastive losses do
    not read it. It has the hook of the positives, so that with ``--encoder-method prompt`` it has the second template.
    """

    Options = NegationOptions
    summary = "the negation of an English sentence, as a soft negative (SNCSE)"

    def __init__(self, options: NegationOptions, context: TextContext) -> None:
        super().__init__(options, context)
        self.parser: Any = None
        if options.parser:
            try:
                import spacy  # type: ignore[import-not-found]

                self.parser = spacy.load(options.parser)
            except (ImportError, OSError) as error:
                raise InputError(f"negation.parser: {options.parser} cannot be loaded ({error}); install it") from None

    @classmethod
    def is_positive(cls, options: NegationOptions) -> bool:
        return False

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        if self.parser is None:
            return [negate_words(text) for text in texts]
        return [negate_parsed(list(parsed)) for parsed in self.parser.pipe(texts)]


@dataclass(frozen=True)
class SoftNegativeOptions:
    """Options of the margin loss; the defaults are the published values for BERT-base."""

    weight: Annotated[float, Ge(0), Opt("lambda, the weight of the term")] = 1e-3
    alpha: Annotated[float, Opt("the soft negative is to be less similar than the positive by at least alpha")] = 0.1
    beta: Annotated[float, Opt("and by at most beta")] = 0.3


def bidirectional_margin(difference: Tensor, alpha: float, beta: float) -> Tensor:
    """Returns relu(d + alpha) + relu(-d - beta), 0 for -beta <= d <= -alpha (equation 4)."""
    return relu(difference + alpha) + relu(-difference - beta)


class SoftNegative(BatchTerm):
    """``weight`` times the mean over rows of the bidirectional margin loss of the negated sentence.

    The difference d is the cosine of the anchor with the negated sentence minus that with the positive.
    """

    Options = SoftNegativeOptions
    summary = "a margin between negated sentences and positives (SNCSE)"
    recordable = True
    reads = frozenset({"anchor", "positive", "other"})

    @classmethod
    def implies(cls, options: SoftNegativeOptions) -> dict[str, Any]:
        return {"positive": "negation"}

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        """Returns the weighted loss; rows whose negation has the tokens of the sentence are left out."""
        if "edited" not in views:
            raise InputError("--loss-term soft-negative needs negated sentences; use --positive negation")
        options: SoftNegativeOptions = self.options
        anchor, positive, edited = (views[name] for name in ("anchor", "positive", "edited"))
        difference = cosine_similarity(anchor, edited) - cosine_similarity(anchor, positive)
        losses = bidirectional_margin(difference, options.alpha, options.beta)
        valid = views.valid("anchor", "positive", "edited")
        self.metrics = {"soft_negative": (difference.detach() * valid).sum() / valid.sum().clamp(min=1)}
        return options.weight * torch.where(valid, losses, 0.0).sum() / valid.sum().clamp(min=1)
