"""What the sight of a corpus means: which findings are worth a word, and what to do about each."""

from __future__ import annotations

from typing import Any

__all__ = ["findings"]

# Shares of rows above which a finding is worth a word.
MANY = 0.01
OFTEN = 0.001


def findings(seen: dict[str, Any], max_line_bytes: int) -> list[tuple[str, str, str]]:
    """(``fault`` or ``note``, what was seen, what to do), the gravest first."""
    rows, documents = seen["rows"], max(seen["documents"], 1)
    faults, lines = seen["faults"], len(seen["files"]) == 1 and "column" not in seen["files"][0]
    out: list[tuple[str, str, str]] = []

    def add(level: str, what: str, do: str) -> None:
        out.append((level, what, do))

    def counted(name: str) -> str:
        found = faults[name]
        where = f"line {found['first'] + 1:,}" if lines else f"row {found['first'] + 1:,} of the corpus"
        return f"{_rows(found['rows'])} ({found['rows'] / rows:.2%}), the first at {where}"

    if faults["invalid"]["rows"]:
        add(
            "fault",
            f"bytes that are not UTF-8 in {counted('invalid')}",
            "convert the file (iconv -f WINDOWS-1252 -t UTF-8), or pass --encoding-errors replace",
        )
    elif faults["replacement"]["rows"]:
        add(
            "fault",
            f"the replacement character U+FFFD in {counted('replacement')}",
            "the text was damaged before it came here; go back to its source",
        )
    if faults["over_long"]["rows"]:
        add(
            "fault",
            f"longer than {max_line_bytes:,} bytes: {counted('over_long')}",
            "cut the text into sentences, one a line, or raise --max-line-bytes",
        )
    if faults["mojibake"]["rows"] > OFTEN * rows:
        add("fault", f"doubly encoded text (\u201ccaf\u00c3\u00a9\u201d) in {counted('mojibake')}", "repair it (ftfy)")
    if seen["unchanged_rate"] > MANY:
        touching = seen["unreplaceable_rate"] > MANY
        add(
            "fault",
            f"{seen['unchanged_rate']:.1%} of the sampled sentences have no word that UNA can replace",
            "put spaces between words (a segmenter for Chinese, Japanese, Thai) and use --tokenizer whitespace"
            if touching
            else "drop rows without a word, or use --tokenizer whitespace, to which punctuation is one",
        )
    if seen["duplicates"] > MANY * documents:
        about = "about " if seen["duplicates_estimated"] else ""
        add(
            "fault",
            f"{about}{_rows(seen['duplicates'])} ({seen['duplicates'] / documents:.1%}) said once before",
            "remove them (sort -u): in a batch they are each other's false negatives",
        )
    if seen["words_quantiles"][1] > 64 or faults["long"]["rows"] > MANY * documents:
        add(
            "note",
            f"over 128 words: {counted('long')}" if faults["long"]["rows"] else "half the rows are over 64 words",
            "train reads the first 32 tokens of a row: split rows into sentences, or raise --max-length",
        )
    if faults["short"]["rows"] > MANY * documents:
        add("note", f"under 3 words: {counted('short')}", "drop headings and fragments, they teach little")
    if faults["markup"]["rows"] > OFTEN * rows:
        add("note", f"HTML tags or entities in {counted('markup')}", "strip them: they count as words")
    if faults["control"]["rows"]:
        add("note", f"control characters in {counted('control')}", "remove them: they are the debris of another format")
    if lines and faults["tab"]["rows"] > 0.5 * rows:
        add("note", f"tabs in {counted('tab')}: is this a table?", "rename it .tsv and name the --column")
    if faults["line_break"]["rows"]:
        add(
            "note",
            f"U+2028, U+0085 or a carriage return inside {counted('line_break')}",
            "other tools end a line there and count rows differently; replace them by spaces",
        )
    if seen["blank"]:
        add("note", f"{_rows(seen['blank'])} blank", "nothing: they keep their number and are not trained on")
    if seen["joined_lines"]:
        add("note", f"a line break inside {_rows(seen['joined_lines'])}", "nothing: it is read as a space")
    if 0.8 * seen["terms"] < seen["singletons"] < seen["terms"]:
        add(
            "note",
            f"{seen['singletons'] / seen['terms']:.0%} of the terms stand in one sentence only",
            "cse augment --min-df 2 draws replacements from the others",
        )
    if documents < 10_000:
        add("note", f"only {_rows(documents)} to learn from", "the papers train on a million")
    mixed = [(name, share) for name, share in _writing(seen["scripts"]) if share > 0.05]
    if len(mixed) > 1:
        add(
            "note",
            "several scripts: " + ", ".join(f"{name} {share:.0%}" for name, share in mixed),
            "take a multilingual --model, or train one corpus a language",
        )
    return out


def _writing(scripts: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """The scripts, those of Japanese and of Korean taken as one."""
    shares = {name: share for name, share in scripts if name != "Common"}
    for name, parts in (("Japanese", ("Hiragana", "Katakana", "Han")), ("Korean", ("Hangul", "Han"))):
        if shares.get(parts[0], 0) > 0.05:
            shares[name] = sum(shares.pop(part, 0) for part in parts)
    return sorted(shares.items(), key=lambda pair: -pair[1])


def _rows(number: int) -> str:
    return f"{number:,} row" + ("s" if number != 1 else "")
