"""Templates: prompts with a place for the text, whose tokens a fast tokenizer puts around every text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import InputError

PLACE = "{text}"
"""The place of the text in a prompt that is a template, such as ``This sentence: {text} means in one word:``."""


def plain(prompt: str, what: str) -> str:
    """Returns a prompt; raises ``InputError`` if it is a template, which ``what`` cannot use."""
    if PLACE in prompt:
        raise InputError(f"--prompt {prompt!r}: {what} cannot use a template with {PLACE}; give a text to put first")
    return prompt


class Template:
    """The token ids that a template puts before and after a text, including the special tokens of the tokenizer.

    Args:
        before: Part before the text. If it ends in a space and the tokenizer distinguishes words by the space before
            them, the text is tokenized with this space.
        after: Part after the text.
        tokenizer: A fast tokenizer.

    Raises:
        InputError: If the tokenizer is not a fast one.
    """

    def __init__(self, before: str, after: str, tokenizer: Any) -> None:
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise InputError("--prompt: a template with {text} needs a fast tokenizer; give a text without {text}")

        def ids(text: str) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

        whole, inner = tokenizer("a")["input_ids"], ids("a")
        at = next(start for start in range(len(whole)) if whole[start : start + len(inner)] == inner)
        self.spaced = before != before.rstrip() and ids(" a") != inner
        self.prefix: list[int] = [*whole[:at], *ids(before.rstrip())]
        self.suffix: list[int] = [*ids(after), *whole[at + len(inner) :]]
        self.added = len(self.prefix) + len(self.suffix) - (len(whole) - len(inner))
        """Number of tokens that the template adds to a text with special tokens."""

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
    """Context manager in which a tokenizer adds a template to texts; yields the prompt to put before them, if any.

    If the prompt has no place for the text, the tokenizer is not changed, and the prompt is yielded.
    """
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
