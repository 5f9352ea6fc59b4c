"""Determines the findings of ``cse doctor``: problems of a corpus, each with a recommendation."""

from __future__ import annotations

from typing import Any

__all__ = ["findings"]

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
    rows, documents = seen["rows"], max(seen["documents"], 1)
    faults, tables = seen["faults"], any("column" in file for file in seen["files"])
    out: list[tuple[str, str, str]] = []

    def add(level: str, what: str, do: str) -> None:
        out.append((level, what, do))

    def counted(name: str) -> str:
        found = faults[name]
        where = "" if len(seen["files"]) == 1 else f" of {found['file']}"
        unit = "row" if tables else "line"
        return f"{_rows(found['rows'])} ({found['rows'] / rows:.2%}), the first at {unit} {found['first']:,}{where}"

    binary = False
    for file in seen["formats"]:
        if file["magic"]:
            binary = True
            add("fault", f"{file['path']} is a {file['magic']} file", FORMATS[file["magic"]])
        elif file["bom"] and file["bom"] != "utf-8":
            binary = True
            add(
                "fault",
                f"{file['path']} is encoded as {file['bom'].upper()}",
                f"convert it (iconv -f {file['bom'][:6].upper()} -t UTF-8)",
            )
        elif file["cr_only"]:
            add(
                "fault",
                f"{file['path']} ends its lines with carriage returns only, so it is read as one row",
                "convert it (tr '\\r' '\\n')",
            )
    if binary:
        return out  # the other counts are meaningless for a file that is not UTF-8 text
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
            "the text was damaged by an earlier conversion; convert it again from its source",
        )
    if faults["over_long"]["rows"]:
        add(
            "fault",
            f"longer than {max_line_bytes:,} bytes: {counted('over_long')}",
            "split the text into sentences, one per line, or raise --max-line-bytes",
        )
    if faults["mojibake"]["rows"] > OFTEN * rows:
        add("fault", f"doubly encoded text (\u201ccaf\u00c3\u00a9\u201d) in {counted('mojibake')}", "repair it (ftfy)")
    if seen["unchanged_rate"] > MANY:
        touching = seen["unreplaceable_rate"] > MANY
        add(
            "fault",
            f"{seen['unchanged_rate']:.1%} of the sampled sentences have no word that UNA can replace",
            "put spaces between words (with a segmenter for Chinese, Japanese or Thai) and use --tokenizer whitespace"
            if touching
            else "remove rows without a word, or use --tokenizer whitespace, which counts punctuation as words",
        )
    if seen["duplicates"] > MANY * documents:
        about = "about " if seen["duplicates_estimated"] else ""
        add(
            "fault",
            f"{about}{_rows(seen['duplicates'])} ({seen['duplicates'] / documents:.1%}) repeat an earlier row",
            "remove the repeated rows with a tool that reads tables; in a batch, they are false negatives of each other"
            if tables
            else "remove them (awk '!seen[$0]++'); in a batch, they are false negatives of each other",
        )
    if seen["words_quantiles"][1] > 64 or faults["long"]["rows"] > MANY * documents:
        add(
            "note",
            f"over 128 words: {counted('long')}" if faults["long"]["rows"] else "half of the rows have over 64 words",
            "train on short passages with --positive spans and --set spans.most_words=24 (the defaults for sentence "
            "encoders); with other positives, only the first 32 tokens of a row are used by default, so split the rows "
            "or raise --max-length",
        )
    if faults["short"]["rows"] > MANY * documents:
        add("note", f"under 3 words: {counted('short')}", "remove headings and fragments")
    if faults["markup"]["rows"] > OFTEN * rows:
        add("note", f"HTML tags or entities in {counted('markup')}", "remove them, because they count as words")
    if faults["control"]["rows"]:
        add(
            "note", f"control characters in {counted('control')}", "remove them; they are left over from another format"
        )
    if not tables and faults["tab"]["rows"] > 0.5 * rows:
        add(
            "note",
            f"tabs in {counted('tab')}; the file may be a table",
            "rename it to end in .tsv and name the column with --column",
        )
    if faults["line_break"]["rows"]:
        add(
            "note",
            f"U+2028, U+0085 or a carriage return inside {counted('line_break')}",
            "replace these characters with spaces, because other tools treat them as line ends and count more rows",
        )
    if seen["blank"]:
        add(
            "note",
            f"{_rows(seen['blank'])} blank",
            "no action needed; blank rows keep their row number and are not trained on",
        )
    if seen["joined_lines"]:
        add("note", f"a line break inside {_rows(seen['joined_lines'])}", "no action needed; it is read as a space")
    if 0.8 * seen["terms"] < seen["singletons"] < seen["terms"]:
        add(
            "note",
            f"{seen['singletons'] / seen['terms']:.0%} of the terms occur in one sentence only",
            "pass --min-df 2 to cse augment, so that these terms are not sampled as replacements",
        )
    if documents < 10_000:
        add("note", f"only {_rows(documents)}", "the published results use a million rows")
    mixed = [(name, share) for name, share in _writing(seen["scripts"]) if share > 0.05]
    if len(mixed) > 1:
        add(
            "note",
            "several scripts: " + ", ".join(f"{name} {share:.0%}" for name, share in mixed),
            "use a multilingual --model, or one corpus per language",
        )
    return out


def _writing(scripts: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Returns scripts and their fractions, largest first; Japanese scripts count as one, and so do Korean ones."""
    shares = {name: share for name, share in scripts if name != "Common"}
    for name, parts in (("Japanese", ("Hiragana", "Katakana", "Han")), ("Korean", ("Hangul", "Han"))):
        if shares.get(parts[0], 0) > 0.05:
            shares[name] = sum(shares.pop(part, 0) for part in parts)
    return sorted(shares.items(), key=lambda pair: -pair[1])


def _rows(number: int) -> str:
    return f"{number:,} row" + ("s" if number != 1 else "")
