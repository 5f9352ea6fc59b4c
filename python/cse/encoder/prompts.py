"""Prompts: texts that are put before sentences, or around them (templates).

A model declares those that are put before sentences in ``config_sentence_transformers.json``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InputError, unknown
from ..io import SURROGATES
from .templates import PLACE, template_of

AUTO = "auto"
# Names of prompts for queries and for documents, in order of preference, as in sentence-transformers.
QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")
# The name under which a run saves a prompt that was given as text.
OWN = "default"


def find_prompt(prompt: str, prompts: Mapping[str, str], model: str) -> str:
    """Returns the text of a prompt.

    Args:
        prompt: The name of one of the prompts, or a text; a single word is taken as a name.
        prompts: The texts by name.
        model: Name of the model, for error messages.

    Raises:
        InputError: If ``prompt`` is a single word, and there is no prompt with this name.
    """
    if prompt in prompts:
        return prompts[prompt]
    if SURROGATES.search(prompt):
        raise InputError("--prompt: the text is not UTF-8; type the text in a UTF-8 terminal")
    if re.fullmatch(r"[\w.-]+", prompt):
        if not prompts:
            raise InputError(
                f"--prompt {prompt}: {model} has no named prompts; give the text, including the colon or space "
                f"at its end, like '{prompt}: '"
            )
        raise unknown("--prompt", prompt, prompts)
    return prompt


def role_prompt(prompts: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Returns the text of the first prompt in ``names`` that a model has, or None if it has none of them."""
    return next((prompts[name] for name in names if name in prompts), None)


@dataclass(frozen=True)
class TrainingPrompts:
    """The prompts of a run."""

    anchor: str = ""
    """Text before the sentences of a corpus and the texts made from them, and before the anchors of labelled pairs."""
    document: str = ""
    """Text before the labelled positives and negatives."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Number of tokens of each prompt, by its text, including special tokens at the beginning; see ``counted``."""
    pooled: bool = True
    """Whether the tokens of the prompts are pooled; those of a template always are."""
    template: int = 0
    """Number of tokens that a template adds to each text; the tokenizer of the encoder contains the template."""
    longest: int = 0
    """Largest number of tokens that the model accepts."""

    def counted(self, encoder: Any) -> TrainingPrompts:
        """Returns a copy whose ``tokens``, ``pooled`` and ``longest`` are set for an encoder that is trained."""
        from .tokens import prompt_length

        tokens = {text: prompt_length(encoder.tokenizer, text) for text in (self.anchor, self.document)}
        return replace(self, tokens=tokens, pooled=encoder.pools_prompt, longest=encoder.max_length)

    def describe(self) -> str:
        """Returns a description of the prompts."""
        if self.template:
            return f"a template of {self.template} tokens around each sentence"
        if self.anchor == self.document:
            return f"{self.anchor!r} before each sentence"
        return f"{self.anchor!r} before anchors, {self.document!r} before positives and negatives"

    def of_column(self, column: int | None) -> str:
        """Returns the prompt for a column of labelled pairs (0: anchors); None stands for texts made from anchors."""
        return self.document if column else self.anchor

    def limit(self, prompt: str, max_length: int) -> int:
        """Returns the maximum number of tokens of a text, including its prompt.

        This is ``max_length`` plus the tokens of the prompt; with a prompt, it is at most ``longest``.
        """
        extra = self.tokens.get(prompt, 0) + self.template
        return min(max_length + extra, self.longest) if extra else max_length

    def left_out(self, prompt: str) -> int:
        """Returns the number of tokens at the beginning of a text with this prompt that are not pooled."""
        return 0 if self.pooled else self.tokens.get(prompt, 0)


def training_prompts(encoder: Any, prompt: str | None, pairs: bool) -> TrainingPrompts:
    """Returns the prompts to use in a run, and sets the prompts that the encoder is saved with.

    Args:
        encoder: The ``SentenceTransformer`` that is trained.
        prompt: Value of ``--prompt``. A name or a text becomes the default prompt of the saved model. ``auto`` selects
            the model's prompt for queries before anchors and its prompt for documents before positives and negatives.
            None: the default prompt of the model, if it has one.
        pairs: Whether the run has labelled pairs, which ``auto`` requires.

    Raises:
        InputError: If the name is unknown, or if ``prompt`` is ``auto`` and the run has no labelled pairs or the model
            has neither a prompt for queries nor one for documents.
    """
    prompts, model = dict(encoder.prompts), encoder.given[0]
    if prompt is None:
        own = prompts.get(encoder.default_prompt_name or "", "")
        return TrainingPrompts(own, own)
    if prompt == AUTO and AUTO not in prompts:
        query, document = role_prompt(prompts, QUERY), role_prompt(prompts, DOCUMENT)
        if not pairs:
            raise InputError(
                "--prompt auto belongs to --pairs, whose columns hold queries and documents; name a prompt instead"
            )
        if not query and not document:
            raise InputError(
                f"--prompt auto: {model} has no prompts for queries and documents; omit --prompt, or give a text"
            )
        return TrainingPrompts(query or "", document or "")
    text = find_prompt(prompt, prompts, model)
    if PLACE in text:
        template = template_of(text, encoder.tokenizer)
        template.apply(encoder.tokenizer)
        encoder.keeps_tokenizer, encoder.default_prompt_name, encoder.prompt = True, None, ""
        return TrainingPrompts(template=template.added)
    name = next((key for key, own in prompts.items() if key == prompt or own == text), OWN if text else None)
    encoder.prompts = {**prompts, **({name: text} if name and text else {})}
    encoder.default_prompt_name = name if text else None
    encoder.prompt = text
    return TrainingPrompts(text, text)
