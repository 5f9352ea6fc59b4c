"""Determines the findings of ``cse doctor``: problems of a corpus, each with a recommendation.

``resources/findings.toml`` is the table of the findings; this module computes the amounts that decide about them.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

FORMATS = {
    "gzip": "rename it to end in .gz",
    "zstd": "rename it to end in .zst",
    "parquet": "rename it to end in .parquet and name the column with --column",
    "zip": "decompress it first (unzip)",
    "xz": "decompress it first (xz -d)",
    "bzip2": "decompress it first (bzip2 -d)",
}


def findings(seen: dict[str, Any], max_line_bytes: int) -> list[tuple[str, str, str]]:
    """Returns the findings as (level, finding, recommendation), faults first; level is ``fault`` or ``note``.

    If a file is binary or is encoded as UTF-16 or UTF-32, only the findings on file formats are returned.
    """
    results = [("fault", *fault) for file in seen["formats"] if (fault := of_format(file))]
    if any(file["magic"] or file["bom"] not in (None, "utf-8") for file in seen["formats"]):
        return results  # the counts are meaningless for a file that is not UTF-8 text
    found = amounts(seen, max_line_bytes)
    levels = tomllib.loads((files("cse") / "resources" / "findings.toml").read_text(encoding="utf8"))
    for level, table in levels.items():
        for name, each in table.items():
            amount, words = found[name]
            if amount > each["above"]:
                results.append((level, each["finding"].format(words), each["advice"]))
    return results


def of_format(file: dict[str, Any]) -> tuple[str, str] | None:
    """Returns the finding and the recommendation on the format of a file; None if there is none."""
    if file["magic"]:
        return f"{file['path']} is a {file['magic']} file", FORMATS[file["magic"]]
    if file["bom"] and file["bom"] != "utf-8":
        encoding = file["bom"].upper()
        convert = f"convert it (iconv -f {encoding[:6]}{encoding[7:]} -t UTF-8)"
        return f"{file['path']} is encoded as {encoding}", convert
    if file["cr_only"]:
        only = "ends its lines with carriage returns only, so it is read as one row"
        return f"{file['path']} {only}", "convert it (tr '\\r' '\\n')"
    return None


def amounts(seen: dict[str, Any], max_line_bytes: int) -> dict[str, tuple[float, str]]:
    """Returns the amount of each finding of the table, and the amount in words."""
    rows, documents = seen["rows"], max(seen["documents"], 1)
    unit = "row" if any("column" in file for file in seen["files"]) else "line"
    found: dict[str, tuple[float, str]] = {}
    for name, fault in seen["faults"].items():
        share = fault["rows"] / rows
        where = "" if len(seen["files"]) == 1 else f" of {fault['file']}"
        first = f", the first at {unit} {fault['first']:,}{where}" if fault["rows"] else ""
        found[name] = share, f"{_rows(fault['rows'])} ({share:.2%}){first}"
    if seen["faults"]["invalid"]["rows"]:
        found["replacement"] = 0, ""  # each of these bytes is counted there, too
    if unit == "row":
        found["tab"] = 0, ""
    found["over_long"] = found["over_long"][0], f"{max_line_bytes:,} bytes: {found['over_long'][1]}"
    found["short"] = found["short"][0] * rows / documents, found["short"][1]
    long = seen["faults"]["long"]["rows"]
    many = f"over 128 words: {found['long'][1]}" if long else "half of the rows have over 64 words"
    found["long"] = (1 if seen["words_quantiles"][1] > 64 else long / documents), many
    duplicates, about = seen["duplicates"] / documents, "about " if seen["duplicates_estimated"] else ""
    found["duplicates"] = duplicates, f"{about}{_rows(seen['duplicates'])} ({duplicates:.1%})"
    unchanged, unsegmented = seen["unchanged_rate"], seen["unreplaceable_rate"] > 0.01
    found["wordless"] = 0 if unsegmented else unchanged, f"{unchanged:.1%}"
    found["unsegmented"] = unchanged if unsegmented else 0, f"{unchanged:.1%}"
    once = seen["singletons"] / max(seen["terms"], 1)
    found["singletons"] = once if once < 1 else 0, f"{once:.0%}"
    scripts = main_scripts(dict(seen["scripts"]))
    found["scripts"] = len(scripts), ", ".join(scripts)
    found["repeated"] = bool(seen["repeated"]), seen["repeated"]
    found["code"] = seen["code"], ""
    found["divided"] = seen["divided"], f"{seen['divided']:.1f}"
    return found | {name: (seen[name], _rows(seen[name])) for name in ("blank", "joined_lines")}


def main_scripts(shares: dict[str, float]) -> list[str]:
    """Returns the scripts of over 5 % of the letters with their shares, in words; one language's count as one."""
    shares.pop("Common", None)
    for name, parts in (("Japanese", ("Hiragana", "Katakana", "Han")), ("Korean", ("Hangul", "Han"))):
        if shares.get(parts[0], 0) > 0.05:
            shares[name] = sum(shares.pop(part, 0) for part in parts)
    return [f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda it: -it[1]) if share > 0.05]


def _rows(number: int) -> str:
    return f"{number:,} row" + ("s" if number != 1 else "")
