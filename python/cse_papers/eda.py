"""EDA: four edits of the words of a sentence (Wei and Zou 2019, arXiv:1901.11196).

The option ``alpha`` sets the strength. Deletion removes each word with probability ``alpha``; the other edits make
n = max(1, floor(alpha * number of words)) changes.

Differences from the released code of EDA:

- Sentences are not lower-cased and keep their digits and punctuation, except with ``clean``.
- Only the drawn occurrence of a word is replaced, not every occurrence.
- An inserted synonym may be any synonym of its word, and may be placed at the end of the sentence.
- A swap always involves two different positions.
- Random choices depend on (seed, epoch, row), not on the iteration order of a set.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Lt

from cse import InputError
from cse.augment.base import Draws, Edit
from cse.context import TextContext
from cse.data.words import STOP_WORDS
from cse.evaluation.base import read_lines
from cse.options import Opt

Keys = npt.NDArray[np.float64]

Synonyms = Callable[[str], tuple[str, ...]]
"""Maps a word to its synonyms, or to an empty tuple if it has none."""

REMEDY = "install nltk and run python -m nltk.downloader wordnet, or name a file of synonyms"


def open_synonyms(source: str) -> Synonyms:
    """Opens a source of synonyms: ``wordnet``, from nltk, or the path of a UTF-8 file.

    In WordNet, the synonyms of a word are the lemmas of all its synsets, except the word itself and lemmas with
    characters other than letters and spaces. Each line of a file has a word, whose case is ignored, a tab, and its
    synonyms, separated by commas. Raises ``InputError`` for a file in another format, or if nltk or WordNet is
    missing.
    """
    if source == "wordnet":
        return _wordnet()
    path = Path(source)
    table: dict[str, tuple[str, ...]] = {}
    for number, line in read_lines(path):
        word, _, others = line.partition("\t")
        table[word.strip().lower()] = synonyms = tuple(other.strip() for other in others.split(",") if other.strip())
        if not synonyms:
            raise InputError(f"{path}: line {number}: must be a word, a tab, and synonyms separated by commas")
    return lambda word: table.get(word.lower(), ())


def _wordnet() -> Synonyms:
    try:
        from nltk.corpus import wordnet

        wordnet.ensure_loaded()
    except (ImportError, LookupError):
        raise InputError(f"synonyms: WordNet is not installed; {REMEDY}") from None

    @lru_cache(maxsize=2**16)
    def synonyms(word: str) -> tuple[str, ...]:
        lemmas = {
            lemma.name().replace("_", " ").replace("-", " ").lower()
            for synset in wordnet.synsets(word.lower())
            for lemma in synset.lemmas()
        }
        return tuple(sorted(lemma for lemma in lemmas if lemma.replace(" ", "").isalpha() and lemma != word.lower()))

    return synonyms


@dataclass(frozen=True)
class EDAOptions:
    """Options of the edits. UNA's paper compares with EDA but does not state ``alpha``; 0.1 is EDA's default."""

    alpha: Annotated[float, Gt(0), Lt(1), Opt("fraction of the words to change")] = 0.1
    clean: Annotated[bool, Opt("lower-case the text and remove everything but letters, as the released code does")] = (
        False
    )


@dataclass(frozen=True)
class SynonymOptions(EDAOptions):
    """Options of the edits that need synonyms."""

    synonyms: Annotated[
        str, Opt("wordnet (from nltk), or a file with lines of the form: word, tab, comma-separated synonyms")
    ] = "wordnet"
    spare_stop_words: Annotated[bool, Opt("leave English stop words, such as 'is' and 'in', without synonyms")] = True


class WordEdit(Edit):
    """Base class of edits of whitespace-separated words.

    A sentence that cannot be edited is returned as it is or, with ``clean``, only cleaned.
    """

    Options = EDAOptions
    purpose = ""

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        texts = [cleaned(text) or text for text in texts] if self.options.clean else list(texts)
        split = [text.split() for text in texts]
        longest = max(map(len, split), default=0)
        # Each row gets as many random numbers as the longest sentence may need; a shorter sentence uses fewer.
        keys = draws.uniform(rows, self.purpose, 3 * longest + 1)
        edited = []
        for text, words, own in zip(texts, split, keys, strict=True):
            new = self.edit(words, own) if words else words
            edited.append(text if new == words else " ".join(new))
        return edited

    def changes(self, words: Sequence[str]) -> int:
        """Returns n, the number of changes."""
        return max(1, int(self.options.alpha * len(words)))

    @abstractmethod
    def edit(self, words: list[str], keys: Keys) -> list[str]:
        """Returns the edited words; ``keys`` holds at least 3 * len(words) + 1 uniform numbers."""


class SwapWords(WordEdit):
    """Swaps two random words, n times."""

    summary = "swaps words (EDA)"
    purpose = "eda swap"

    def edit(self, words: list[str], keys: Keys) -> list[str]:
        words, count = list(words), len(words)
        if count < 2:
            return words
        for number in range(self.changes(words)):
            first = int(keys[2 * number] * count)
            second = int(keys[2 * number + 1] * (count - 1))
            second += second >= first
            words[first], words[second] = words[second], words[first]
        return words


class DeleteWords(WordEdit):
    """Deletes each word with probability ``alpha``; one random word is kept if all would be deleted."""

    summary = "deletes each word with some probability (EDA)"
    purpose = "eda delete"

    def edit(self, words: list[str], keys: Keys) -> list[str]:
        kept = [word for word, key in zip(words, keys, strict=False) if key >= self.options.alpha]
        return kept or [words[int(keys[len(words)] * len(words))]]


class SynonymEdit(WordEdit):
    """Base class of edits that need synonyms."""

    Options = SynonymOptions

    def __init__(self, options: SynonymOptions, context: TextContext) -> None:
        super().__init__(options, context)
        if options.synonyms != "wordnet":
            context.depends_on(options.synonyms)
        self.synonyms: Synonyms = open_synonyms(options.synonyms)
        self.spared = STOP_WORDS if options.spare_stop_words else frozenset()

    def known(self, words: Sequence[str]) -> list[int]:
        """Returns the positions of the words that have synonyms and are not spared."""
        return [place for place, word in enumerate(words) if word.lower() not in self.spared and self.synonyms(word)]


class ReplaceBySynonyms(SynonymEdit):
    """Replaces n random words that have synonyms (all such words if there are fewer), each with one of its synonyms."""

    summary = "replaces words with synonyms (EDA)"
    purpose = "eda synonym"

    def edit(self, words: list[str], keys: Keys) -> list[str]:
        words, count = list(words), len(words)
        places = sorted(self.known(words), key=lambda place: keys[place])
        for place in places[: self.changes(words)]:
            words[place] = chosen(self.synonyms(words[place]), keys[count + place])
        return words


class InsertSynonyms(SynonymEdit):
    """Inserts a synonym of a random word at a random place, n times."""

    summary = "inserts synonyms of words (EDA)"
    purpose = "eda insert"

    def edit(self, words: list[str], keys: Keys) -> list[str]:
        new = list(words)
        places = self.known(words)
        for number in range(self.changes(words) if places else 0):
            word = words[places[int(keys[3 * number] * len(places))]]
            at = int(keys[3 * number + 2] * (len(new) + 1))
            new.insert(at, chosen(self.synonyms(word), keys[3 * number + 1]))
        return new


def chosen(choices: Sequence[str], key: float) -> str:
    """Returns the choice that a uniform number in [0, 1) selects."""
    return choices[int(key * len(choices))]


def cleaned(text: str) -> str:
    """Returns a text as EDA's released code prepares it: lower case, letters a to z, single spaces."""
    text = text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "").replace("'", "").replace("-", " ").lower()
    return " ".join(re.sub("[^a-z]+", " ", text).split())
