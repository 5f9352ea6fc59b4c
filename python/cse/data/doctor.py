"""Determines the findings of ``cse doctor``: problems of a corpus, each with a recommendation."""

from __future__ import annotations

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
SPANS = (
    "train on short passages with --positive spans and --set spans.max_span_words=24 (the defaults for sentence "
    "encoders); with other positives, only the first 32 tokens of a row are used by default, so split the rows or "
    "raise --max-length"
)


def findings(seen: dict[str, Any], max_line_bytes: int) -> list[tuple[str, str, str]]:
    """Returns the findings as (level, finding, recommendation), faults first; level is ``fault`` or ``note``.

    If a file is binary or is encoded as UTF-16 or UTF-32, only the findings on file formats are returned.
    """
    results: list[tuple[str, str, str]] = []
    level = "fault"

    def add(what: str, do: str) -> None:
        results.append((level, what, do))

    for file in seen["formats"]:
        if file["magic"]:
            add(f"{file['path']} is a {file['magic']} file", FORMATS[file["magic"]])
        elif file["bom"] and file["bom"] != "utf-8":
            encoding = file["bom"].upper()
            add(
                f"{file['path']} is encoded as {encoding}",
                f"convert it (iconv -f {encoding[:6]}{encoding[7:]} -t UTF-8)",
            )
        elif file["cr_only"]:
            only = "ends its lines with carriage returns only, so it is read as one row"
            add(f"{file['path']} {only}", "convert it (tr '\\r' '\\n')")
    if any(file["magic"] or file["bom"] not in (None, "utf-8") for file in seen["formats"]):
        return results  # the counts are meaningless for a file that is not UTF-8 text

    rows, documents, table = seen["rows"], max(seen["documents"], 1), any("column" in item for item in seen["files"])
    having = {name: fault["rows"] for name, fault in seen["faults"].items()}

    def counted(name: str) -> str:
        fault, unit = seen["faults"][name], "row" if table else "line"
        where = "" if len(seen["files"]) == 1 else f" of {fault['file']}"
        share = f"{having[name] / rows:.2%}"
        return f"{_rows(having[name])} ({share}), the first at {unit} {fault['first']:,}{where}"

    if having["invalid"]:
        convert = "convert the file (iconv -f WINDOWS-1252 -t UTF-8), or pass --encoding-errors replace"
        add(f"bytes that are not UTF-8 in {counted('invalid')}", convert)
    elif having["replacement"]:
        damaged = "the text was damaged by an earlier conversion; convert it again from its source"
        add(f"the replacement character U+FFFD in {counted('replacement')}", damaged)
    if having["over_long"]:
        split = "split the text into sentences, one per line, or raise --max-line-bytes"
        add(f"longer than {max_line_bytes:,} bytes: {counted('over_long')}", split)
    if having["mojibake"] > OFTEN * rows:
        add(f"doubly encoded text (\u201ccaf\u00c3\u00a9\u201d) in {counted('mojibake')}", "repair it (ftfy)")

    level = "note"
    if seen["repeated"]:
        add(seen["repeated"], "name each file once, unless its rows are to count more")
    if seen["duplicates"] > MANY * documents:
        about = "about " if seen["duplicates_estimated"] else ""
        repeated = f"{about}{_rows(seen['duplicates'])} ({seen['duplicates'] / documents:.1%}) repeat an earlier row"
        add(repeated, "no action needed; equal texts are never negatives of each other, but are trained on as often")
    if seen["unchanged_rate"] > MANY:
        remedy = "remove rows without a word, or use --tokenizer whitespace, which counts punctuation as words"
        if seen["unreplaceable_rate"] > MANY:
            remedy = "build the index with --tokenizer wordpieces --model MODEL, or put spaces between words (with a "
            remedy += "segmenter for Chinese, Japanese or Thai) and use --tokenizer whitespace"
        add(f"{seen['unchanged_rate']:.1%} of the sampled sentences have no word that UNA can replace (--una)", remedy)
    if seen["words_quantiles"][1] > 64 or having["long"] > MANY * documents:
        many = f"over 128 words: {counted('long')}" if having["long"] else "half of the rows have over 64 words"
        add(many, SPANS)
    if having["short"] > MANY * documents:
        add(f"under 3 words: {counted('short')}", "remove headings and fragments")
    if having["markup"] > OFTEN * rows:
        add(f"HTML tags or entities in {counted('markup')}", "remove them, because they count as words")
    if having["control"]:
        add(f"control characters in {counted('control')}", "remove them; they are left over from another format")
    if not table and having["tab"] > 0.5 * rows:
        rename = "rename it to end in .tsv and name the column with --column"
        add(f"tabs in {counted('tab')}; the file may be a table", rename)
    if having["line_break"]:
        replace = (
            "replace these characters with spaces, because other tools treat them as line ends and count more rows"
        )
        add(f"U+2028, U+0085 or a carriage return inside {counted('line_break')}", replace)
    if seen["blank"]:
        add(
            f"{_rows(seen['blank'])} blank", "no action needed; blank rows keep their row number and are not trained on"
        )
    if seen["joined_lines"]:
        add(f"a line break inside {_rows(seen['joined_lines'])}", "no action needed; it is read as a space")
    if 0.8 * seen["terms"] < seen["singletons"] < seen["terms"]:
        once = f"{seen['singletons'] / seen['terms']:.0%} of the terms occur in one sentence only"
        add(once, "pass --min-df 2 to cse augment, so that these terms are not sampled as replacements")
    if seen["code"]:
        cut = "search with cse search --hybrid --bm25-tokenizer code, which cuts identifiers into words"
        add("5 % of the words or more are identifiers, as in code", cut)
    shares = {name: share for name, share in seen["scripts"] if name != "Common"}
    for name, parts in (("Japanese", ("Hiragana", "Katakana", "Han")), ("Korean", ("Hangul", "Han"))):
        if shares.get(parts[0], 0) > 0.05:  # the scripts of a language count as one
            shares[name] = sum(shares.pop(part, 0) for part in parts)
    mixed = [f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda it: -it[1]) if share > 0.05]
    if len(mixed) > 1:
        add(f"several scripts: {', '.join(mixed)}", "use a multilingual --model, or one corpus per language")
    return results


def _rows(number: int) -> str:
    return f"{number:,} row" + ("s" if number != 1 else "")
