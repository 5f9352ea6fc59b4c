"""Halves of sentences, cut at white space; and synonyms of words, from WordNet or from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from ..errors import InputError


def cut_in_two(sentence: str) -> tuple[str, str]:
    """Returns the two halves of a sentence; if the number of words is odd, the first half has one more word."""
    words = sentence.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


Synonyms = Callable[[str], tuple[str, ...]]
"""Maps a word to its synonyms, or to an empty tuple if it has none."""

_STOP_WORDS = (
    "a about above after again against all am an and any are as at be because been before being below between both "
    "but by can did do does doing don down during each few for from further had has have having he her here hers "
    "herself him himself his how i if in into is it its itself just me more most my myself no nor not now of off on "
    "once only or other our ours ourselves out over own s same she should so some such t than that the their theirs "
    "them themselves then there these they this those through to too under until up very was we were what when "
    "where which while who whom why will with you your yours yourself yourselves"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""English stop words in lower case; the same 127 words as in EDA's released code."""

REMEDY = "install nltk and run python -m nltk.downloader wordnet, or name a file of synonyms"


def open_synonyms(source: str) -> Synonyms:
    """Opens a source of synonyms.

    Args:
        source: ``wordnet`` for the lemmas of all synsets of a word, from nltk, except the word itself and lemmas with
            characters other than letters and spaces. Otherwise, the path of a UTF-8 file. Each line has a word, a tab,
            and the synonyms of the word, separated by commas; the case of the word is ignored.

    Raises:
        InputError: If the file cannot be read, has a line in another format, or has no synonyms, or if nltk or its
            WordNet data are missing.
    """
    return _wordnet() if source == "wordnet" else _from_file(Path(source))


def _from_file(path: Path) -> Synonyms:
    try:
        lines = path.read_text(encoding="utf8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the synonyms cannot be read ({error}); give a UTF-8 text file") from None
    table: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(lines, 1):
        word, tab, others = line.partition("\t")
        found = tuple(other.strip() for other in others.split(",") if other.strip())
        if line.strip() and (not tab or not found):
            raise InputError(f"{path}: line {number}: must be a word, a tab, and synonyms separated by commas")
        if found:
            table[word.strip().lower()] = found
    if not table:
        raise InputError(f"{path}: holds no synonyms; a line must be a word, a tab, and synonyms separated by commas")
    return _looked_up(table)


def _looked_up(table: Mapping[str, tuple[str, ...]]) -> Synonyms:
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
