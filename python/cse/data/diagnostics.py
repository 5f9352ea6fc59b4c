"""Determines the findings of ``cse doctor``: problems of a corpus, each with a recommendation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

# Fractions of the rows above which a finding is reported. ``OFTEN``, the lower one, is for mojibake and markup.
MANY = 0.01
OFTEN = 0.001

FORMATS = {
    "gzip": "rename it to end in .gz",
    "zstd": "rename it to end in .zst",
    "parquet": "rename it to end in .parquet and name the column with --column",
    "zip": "decompress it first (unzip)",
    "xz": "decompress it first (xz -d)",
    "bzip2": "decompress it first (bzip2 -d)",
}


def findings(seen: dict[str, Any], max_line_bytes: int) -> list[tuple[str, str, str]]:
    """Returns the findings as (level, finding, recommendation), faults first.

    Args:
        seen: The parsed output of ``cse._core.diagnose``, plus ``joined_lines`` from ``cse.data.readers``.
        max_line_bytes: The value of ``--max-line-bytes``.

    Returns:
        A list of tuples; level is ``fault`` or ``note``. If a file is binary or is encoded as UTF-16 or UTF-32,
        only the findings on file formats are returned.
    """
    out = [("fault", what, do) for what, do in _format_faults(seen["formats"])]
    if not any(file["magic"] or file["bom"] not in (None, "utf-8") for file in seen["formats"]):
        # The counts are meaningless for a file that is not UTF-8 text.
        out += [("fault", what, do) for what, do in _text_faults(seen, max_line_bytes)]
        out += [("note", what, do) for what, do in _text_notes(seen)]
    return out


def _format_faults(files: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yields a finding and its recommendation for each file that is not UTF-8 text with line ends."""
    for file in files:
        path = file["path"]
        if file["magic"]:
            yield f"{path} is a {file['magic']} file", FORMATS[file["magic"]]
        elif file["bom"] and file["bom"] != "utf-8":
            encoding = file["bom"].upper()
            yield f"{path} is encoded as {encoding}", f"convert it (iconv -f {encoding[:6]} -t UTF-8)"
        elif file["cr_only"]:
            yield (
                f"{path} ends its lines with carriage returns only, so it is read as one row",
                "convert it (tr '\\r' '\\n')",
            )


def _text_faults(seen: dict[str, Any], max_line_bytes: int) -> Iterator[tuple[str, str]]:
    """Yields the faults of the text, each with its recommendation."""
    rows, documents, faults = seen["rows"], max(seen["documents"], 1), seen["faults"]
    if faults["invalid"]["rows"]:
        yield (
            f"bytes that are not UTF-8 in {_counted(seen, 'invalid')}",
            "convert the file (iconv -f WINDOWS-1252 -t UTF-8), or pass --encoding-errors replace",
        )
    elif faults["replacement"]["rows"]:
        yield (
            f"the replacement character U+FFFD in {_counted(seen, 'replacement')}",
            "the text was damaged by an earlier conversion; convert it again from its source",
        )
    if faults["over_long"]["rows"]:
        yield (
            f"longer than {max_line_bytes:,} bytes: {_counted(seen, 'over_long')}",
            "split the text into sentences, one per line, or raise --max-line-bytes",
        )
    if faults["mojibake"]["rows"] > OFTEN * rows:
        yield f"doubly encoded text (\u201ccaf\u00c3\u00a9\u201d) in {_counted(seen, 'mojibake')}", "repair it (ftfy)"
    if seen["unchanged_rate"] > MANY:
        yield (
            f"{seen['unchanged_rate']:.1%} of the sampled sentences have no word that UNA can replace",
            "build the index with --tokenizer wordpieces --model MODEL, or put spaces between words (with a segmenter "
            "for Chinese, Japanese or Thai) and use --tokenizer whitespace"
            if seen["unreplaceable_rate"] > MANY
            else "remove rows without a word, or use --tokenizer whitespace, which counts punctuation as words",
        )
    if seen["duplicates"] > MANY * documents:
        about = "about " if seen["duplicates_estimated"] else ""
        remedy = (
            "remove the repeated rows with a tool that reads tables"
            if _tables(seen)
            else "remove them (awk '!seen[$0]++')"
        )
        yield (
            f"{about}{_rows(seen['duplicates'])} ({seen['duplicates'] / documents:.1%}) repeat an earlier row",
            f"{remedy}; in a batch, they are false negatives of each other",
        )


def _text_notes(seen: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the notes on the text, each with its recommendation."""
    rows, documents, faults = seen["rows"], max(seen["documents"], 1), seen["faults"]
    if seen["words_quantiles"][1] > 64 or faults["long"]["rows"] > MANY * documents:
        yield (
            f"over 128 words: {_counted(seen, 'long')}"
            if faults["long"]["rows"]
            else "half of the rows have over 64 words",
            "train on short passages with --positive spans and --set spans.most_words=24 (the defaults for sentence "
            "encoders); with other positives, only the first 32 tokens of a row are used by default, so split the rows "
            "or raise --max-length",
        )
    if faults["short"]["rows"] > MANY * documents:
        yield f"under 3 words: {_counted(seen, 'short')}", "remove headings and fragments"
    if faults["markup"]["rows"] > OFTEN * rows:
        yield f"HTML tags or entities in {_counted(seen, 'markup')}", "remove them, because they count as words"
    if faults["control"]["rows"]:
        yield (
            f"control characters in {_counted(seen, 'control')}",
            "remove them; they are left over from another format",
        )
    if not _tables(seen) and faults["tab"]["rows"] > 0.5 * rows:
        yield (
            f"tabs in {_counted(seen, 'tab')}; the file may be a table",
            "rename it to end in .tsv and name the column with --column",
        )
    if faults["line_break"]["rows"]:
        yield (
            f"U+2028, U+0085 or a carriage return inside {_counted(seen, 'line_break')}",
            "replace these characters with spaces, because other tools treat them as line ends and count more rows",
        )
    if seen["blank"]:
        yield (
            f"{_rows(seen['blank'])} blank",
            "no action needed; blank rows keep their row number and are not trained on",
        )
    if seen["joined_lines"]:
        yield f"a line break inside {_rows(seen['joined_lines'])}", "no action needed; it is read as a space"
    if 0.8 * seen["terms"] < seen["singletons"] < seen["terms"]:
        yield (
            f"{seen['singletons'] / seen['terms']:.0%} of the terms occur in one sentence only",
            "pass --min-df 2 to cse augment, so that these terms are not sampled as replacements",
        )
    if documents < 10_000:
        yield f"only {_rows(documents)}", "the published results use a million rows"
    mixed = [(name, share) for name, share in _writing(seen["scripts"]) if share > 0.05]
    if len(mixed) > 1:
        yield (
            "several scripts: " + ", ".join(f"{name} {share:.0%}" for name, share in mixed),
            "use a multilingual --model, or one corpus per language",
        )


def _counted(seen: dict[str, Any], name: str) -> str:
    """Describes the rows that have a fault: their number, their share, and the first of them."""
    found = seen["faults"][name]
    where = "" if len(seen["files"]) == 1 else f" of {found['file']}"
    unit = "row" if _tables(seen) else "line"
    return f"{_rows(found['rows'])} ({found['rows'] / seen['rows']:.2%}), the first at {unit} {found['first']:,}{where}"


def _tables(seen: dict[str, Any]) -> bool:
    return any("column" in file for file in seen["files"])


def _writing(scripts: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Returns scripts and their fractions, largest first; Japanese scripts count as one, and so do Korean ones."""
    shares = {name: share for name, share in scripts if name != "Common"}
    for name, parts in (("Japanese", ("Hiragana", "Katakana", "Han")), ("Korean", ("Hangul", "Han"))):
        if shares.get(parts[0], 0) > 0.05:
            shares[name] = sum(shares.pop(part, 0) for part in parts)
    return sorted(shares.items(), key=lambda pair: -pair[1])


def _rows(number: int) -> str:
    return f"{number:,} row" + ("s" if number != 1 else "")
