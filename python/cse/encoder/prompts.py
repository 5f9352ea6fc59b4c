"""Prompts: texts that are put before sentences, or around them (templates)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InputError, unknown

AUTO = "auto"
# Names of prompts for queries and for documents, in order of preference, as in sentence-transformers.
QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")
# The name under which a run saves a prompt that was given as text, and the place of the text in a template.
OWN, PLACE = "default", "{text}"


def find_prompt(prompt: str, prompts: Mapping[str, str], model: str) -> str:
    """Returns the text of a prompt, by its name or as given; a single word is taken as a name."""
    if prompt in prompts:
        return prompts[prompt]
    if not re.fullmatch(r"[\w.-]+", prompt):
        return prompt
    if prompts:
        raise unknown("--prompt", prompt, prompts)
    raise InputError(
        f"--prompt {prompt}: {model} has no named prompts; give the text, including the colon or space at its end, "
        f"like '{prompt}: '"
    )


def role_prompt(prompts: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Returns the text of the first prompt in ``names`` that a model has, or None if it has none of them."""
    return next((prompts[name] for name in names if name in prompts), None)


@dataclass(frozen=True)
class TrainingPrompts:
    """The prompts of a run: before anchors and sentences of a corpus, and before labelled positives and negatives."""

    anchor: str = ""
    document: str = ""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Number of tokens of each prompt, by its text, including special tokens at the beginning; see ``counted``."""
    pooled: bool = True
    """Whether the tokens of the prompts are pooled; the tokens of a template always are."""
    template: int = 0
    """Number of tokens that a template adds to each text; the tokenizer of the encoder contains the template."""
    longest: int = 0
    """Largest number of tokens that the model accepts."""

    def counted(self, encoder: Any) -> TrainingPrompts:
        """Returns a copy whose ``tokens``, ``pooled`` and ``longest`` are set for an encoder that is trained."""
        from .tokens import prompt_length

        tokens = {text: prompt_length(encoder.tokenizer, text) for text in (self.anchor, self.document)}
        return replace(self, tokens=tokens, pooled=encoder.pools_prompt, longest=encoder.max_seq_length)

    def describe(self) -> str:
        if self.template:
            return f"a template of {self.template} tokens around each sentence"
        if self.anchor == self.document:
            return f"{self.anchor!r} before each sentence"
        return f"{self.anchor!r} before anchors, {self.document!r} before positives and negatives"

    def of_column(self, column: int | None) -> str:
        """Returns the prompt for a column of labelled pairs (0: anchors); None stands for texts made from anchors."""
        return self.document if column else self.anchor

    def limit(self, prompt: str, max_length: int) -> int:
        """Returns the maximum number of tokens of a text: ``max_length`` and the tokens of its prompt."""
        extra = self.tokens.get(prompt, 0) + self.template
        return min(max_length + extra, self.longest) if extra else max_length

    def left_out(self, prompt: str) -> int:
        """Returns the number of tokens at the beginning of a text with this prompt that are not pooled."""
        return 0 if self.pooled else self.tokens.get(prompt, 0)


def training_prompts(encoder: Any, prompt: str | None, pairs: bool) -> TrainingPrompts:
    """Returns the prompts to use in a run, and sets the prompts that the encoder is saved with.

    ``auto`` selects the model's prompt for queries before anchors, and that for documents before the other texts.
    """
    prompts, model = dict(encoder.prompts), encoder.given[0]
    if prompt is None:
        own = prompts.get(encoder.default_prompt_name or "", "")
        return TrainingPrompts(own, own)
    if prompt == AUTO and AUTO not in prompts:
        query, document = role_prompt(prompts, QUERY), role_prompt(prompts, DOCUMENT)
        if not pairs or not (query or document):
            raise InputError(
                f"--prompt auto needs --pairs, whose columns hold queries and documents, and prompts for both, which "
                f"{model} must have; name a prompt, or give a text"
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


def plain(prompt: str, what: str) -> str:
    """Returns a prompt; raises ``InputError`` if it is a template, which ``what`` cannot use."""
    if PLACE in prompt:
        raise InputError(f"--prompt {prompt!r}: {what} cannot use a template with {PLACE}; give a text to put first")
    return prompt


class Template:
    """The token ids that a template puts before and after a text, including the special tokens of a fast tokenizer.

    A space before the text is kept if the tokenizer distinguishes words by it.
    """

    def __init__(self, before: str, after: str, tokenizer: Any) -> None:
        def ids(text: str) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

        whole, inner = tokenizer("a")["input_ids"], ids("a")
        at = next(start for start in range(len(whole)) if whole[start : start + len(inner)] == inner)
        self.spaced = before != before.rstrip() and ids(" a") != inner
        self.prefix: list[int] = [*whole[:at], *ids(before.rstrip())]
        self.suffix: list[int] = [*ids(after), *whole[at + len(inner) :]]
        self.added = len(self.prefix) + len(self.suffix) - (len(whole) - len(inner))

    def apply(self, tokenizer: Any) -> None:
        """Installs the template in a fast tokenizer, which then adds it to every text and truncates only the text."""
        from tokenizers import normalizers
        from tokenizers.processors import TemplateProcessing

        backend = tokenizer.backend_tokenizer
        parts = {name: ids for name, ids in (("before", self.prefix), ("after", self.suffix)) if ids}
        named = tokenizer.convert_ids_to_tokens
        pieces = [{"id": name, "ids": ids, "tokens": named(ids)} for name, ids in parts.items()]
        order = [name for name in ("before", "$A", "after") if name == "$A" or name in parts]
        backend.post_processor = TemplateProcessing(single=" ".join(order), special_tokens=pieces)
        if self.spaced:
            own = [] if backend.normalizer is None else [backend.normalizer]
            backend.normalizer = normalizers.Sequence([normalizers.Prepend(" "), *own])


def template_of(prompt: str, tokenizer: Any) -> Template:
    """Returns the template of a prompt; raises ``InputError`` if it does not have exactly one place for the text."""
    before, _, after = prompt.partition(PLACE)
    if PLACE in after:
        raise InputError(f"--prompt {prompt!r} has {PLACE} twice; leave one of them")
    return Template(before, after, tokenizer)


@contextmanager
def templated(tokenizer: Any, prompt: str | None) -> Iterator[str]:
    """Context manager in which a tokenizer adds a template to texts; yields the prompt to put before them, if any."""
    if PLACE not in (prompt or ""):
        yield prompt or ""
        return
    from .tokens import TOKENIZING

    template = template_of(str(prompt), tokenizer)
    with TOKENIZING:
        backend = tokenizer.backend_tokenizer
        own = backend.post_processor, backend.normalizer
        template.apply(tokenizer)
        try:
            yield ""
        finally:
            backend.post_processor, backend.normalizer = own
