"""Converts test collections for retrieval from the files of their publishers to the layout of BEIR.

    python benches/convert_collections.py SOURCE TARGET     # every collection whose files are in SOURCE or below

========  =================================================  =============================
name      subject; number of texts and converted queries     files
========  =================================================  =============================
medline   medicine: 1,033 abstracts, 30 queries              MED.ALL, MED.QRY, MED.REL
cisi      information science: 1,460 abstracts, 76 queries   CISI.ALL, CISI.QRY, CISI.REL
time      world news of 1963: 423 articles, 79 queries       TIME.ALL, TIME.QUE, TIME.REL
lisa      library science: 5,999 abstracts, 35 queries       LISA0.001, LISA.QUE, LISA.REL
npl       electronics: 11,429 short abstracts, 93 queries    doc-text, query-text, rlv-ass
========  =================================================  =============================

The texts of lisa are in 14 files LISA0.001 to LISA5.850, which must be in the same folder.

The collections are distributed freely for research, without a licence, by the information retrieval group of the
University of Glasgow (http://ir.dcs.gla.ac.uk/resources/test_collections/), which received them from Cornell University
(SMART); the texts of TIME are from Time magazine. Copies of the same files are in public repositories, for example
under ``data/`` in fabianobie/luppar on GitHub. No part of them is included in this project, and converted files should
not be passed on.

The script writes ``TARGET/NAME/corpus.jsonl`` (_id, title, text), ``queries.jsonl`` (_id, text) and ``qrels/test.tsv``,
the files that ``cse eval --suite retrieval`` reads. Queries without a relevant document are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

Texts = dict[str, tuple[str, str]]
"""Title and text by id."""
Judgements = list[tuple[str, str]]
"""Pairs of query and relevant document."""


def smart_records(path: Path) -> Iterator[dict[str, str]]:
    """Yields the records of a SMART file: ``.I`` begins a record; ``.T``, ``.W`` and so on begin a field."""
    record: dict[str, str] = {}
    field = ""
    for line in path.read_text(encoding="latin-1").splitlines():
        begins = re.match(r"\.I\s*(\d+)\s*$", line)
        if begins:
            if record:
                yield record
            record, field = {"I": begins[1]}, ""
        elif re.match(r"\.[A-Z]\s*$", line):
            field = line[1]
        elif field:
            record[field] = f"{record.get(field, '')} {line}"
    if record:
        yield record


def plain(text: str) -> str:
    """Returns the text with runs of white space collapsed to single spaces."""
    return " ".join(text.split())


def smart_texts(path: Path) -> Texts:
    """Returns the titles and texts of a SMART file; cross references and authors are left out."""
    return {each["I"]: (plain(each.get("T", "")), plain(each.get("W", ""))) for each in smart_records(path)}


def columns(path: Path, document: int) -> Judgements:
    """Reads judgements with the query in column 0 and the document in column ``document``, counted from 0."""
    rows = [line.split() for line in path.read_text(encoding="latin-1").splitlines() if line.strip()]
    return [(row[0], row[document]) for row in rows]


def time_texts(path: Path) -> Texts:
    """Returns the articles of TIME, keyed by the numbers that the judgements use.

    The judgements count 425 articles in file order, but the distributed file has only 423. The words that queries share
    with their relevant articles show that the gap is after one of the articles 371 to 380; this function assumes that
    it is after article 371. Up to this article, the number in the judgements is the position in the file; after it, the
    number is the position plus 2.
    """
    text = path.read_text(encoding="latin-1").split("*STOP")[0]
    articles = re.split(r"^\*TEXT[^\n]*\n", text, flags=re.MULTILINE)[1:]
    missing = 425 - len(articles)
    return {str(n if n <= 371 else n + missing): ("", plain(article)) for n, article in enumerate(articles, 1)}


def time_queries(path: Path) -> Texts:
    """Reads the queries of TIME: a line ``*FIND NUMBER``, then the text."""
    parts = re.split(r"^\*FIND\s+(\d+)\s*\n", path.read_text(encoding="latin-1").split("*STOP")[0], flags=re.MULTILINE)
    return {number: ("", plain(text)) for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def time_judgements(path: Path) -> Judgements:
    """Reads the judgements of TIME: each line has the number of a query and the numbers of its relevant articles."""
    rows = [line.split() for line in path.read_text(encoding="latin-1").splitlines() if line.strip()]
    return [(row[0], document) for row in rows for document in row[1:]]


def lisa_texts(path: Path) -> Texts:
    """Reads the abstracts of LISA from all files of the folder: title, blank line, text, line of asterisks."""
    found = {}
    for each in sorted(path.parent.glob("LISA[0-5].[0-9][0-9][0-9]")):
        for record in re.split(r"^\*{44}\s*\n", each.read_text(encoding="latin-1"), flags=re.MULTILINE):
            begins = re.match(r"\s*Document\s+(\d+)\s*\n", record)
            if begins:
                title, _, text = record[begins.end() :].partition("\n\n")
                found[begins[1]] = (plain(title), plain(text))
    return found


def lisa_queries(path: Path) -> Texts:
    """Reads the queries of LISA: a line with the number, then the text up to ``#``."""
    parts = re.findall(r"(\d+)\s*\n([^#]*)#", path.read_text(encoding="latin-1"))
    return {number: ("", plain(text)) for number, text in parts}


def lisa_judgements(path: Path) -> Judgements:
    """Reads the judgements of LISA: ``Query NUMBER``, ``COUNT Relevant Refs:``, then the documents up to -1."""
    parts = re.findall(r"Query (\d+)\s+\d+ Relevant Refs:\s+([\d\s]*)-1", path.read_text(encoding="latin-1"))
    return [(query, document) for query, documents in parts for document in documents.split()]


def npl_records(path: Path) -> dict[str, str]:
    """Reads a file of NPL: records that end with ``/``; each has a line with its number, then its text."""
    parts = re.split(r"^\s*/\s*$", path.read_text(encoding="latin-1"), flags=re.MULTILINE)
    fields = [part.strip().partition("\n") for part in parts if part.strip()]
    return {number.strip(): plain(text) for number, _, text in fields}


def npl_texts(path: Path) -> Texts:
    """Returns the texts or queries of NPL, which have no titles."""
    return {number: ("", text) for number, text in npl_records(path).items()}


def npl_judgements(path: Path) -> Judgements:
    """Reads the judgements of NPL: the number of a query, then the numbers of its relevant documents."""
    return [(query, document) for query, text in npl_records(path).items() for document in text.split()]


Reader = Callable[[Path], Texts]
COLLECTIONS: dict[str, tuple[tuple[str, Reader], tuple[str, Reader], tuple[str, Callable[[Path], Judgements]]]] = {
    "medline": (
        ("MED.ALL", smart_texts),
        ("MED.QRY", smart_texts),
        ("MED.REL", lambda path: columns(path, 2)),
    ),
    "cisi": (
        ("CISI.ALL", smart_texts),
        ("CISI.QRY", smart_texts),
        ("CISI.REL", lambda path: columns(path, 1)),
    ),
    "time": (("TIME.ALL", time_texts), ("TIME.QUE", time_queries), ("TIME.REL", time_judgements)),
    "lisa": (("LISA0.001", lisa_texts), ("LISA.QUE", lisa_queries), ("LISA.REL", lisa_judgements)),
    "npl": (("doc-text", npl_texts), ("query-text", npl_texts), ("rlv-ass", npl_judgements)),
}


def write(folder: Path, documents: Texts, queries: Texts, judgements: Judgements) -> str:
    """Writes a collection; returns the numbers of documents, queries and judgements as text."""
    judged = {query for query, _ in judgements}
    unknown = [each for each in judgements if each[0] not in queries or each[1] not in documents]
    if unknown:
        raise SystemExit(f"{folder.name}: judgement {unknown[0]} names a missing query or document; check the files")
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    with open(folder / "corpus.jsonl", "w", encoding="utf8") as file:
        for key, (title, text) in documents.items():
            file.write(json.dumps({"_id": key, "title": title, "text": text}, ensure_ascii=False) + "\n")
    with open(folder / "queries.jsonl", "w", encoding="utf8") as file:
        for key, parts in queries.items():
            if key in judged:
                file.write(json.dumps({"_id": key, "text": " ".join(parts).strip()}, ensure_ascii=False) + "\n")
    lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{document}\t1" for query, document in judgements)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf8")
    return f"{len(documents):,} documents, {len(judged)} queries, {len(judgements):,} judgements"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    found = {path.name: path for path in sorted(options.source.rglob("*")) if path.is_file()}
    for name, (documents, queries, judgements) in COLLECTIONS.items():
        missing = [file for file, _ in (documents, queries, judgements) if file not in found]
        if missing:
            print(f"{name}: skipped, because {options.source} lacks {', '.join(missing)}", file=sys.stderr)
            continue
        texts, asked = documents[1](found[documents[0]]), queries[1](found[queries[0]])
        relevant = list(dict.fromkeys(judgements[1](found[judgements[0]])))
        print(f"{name}: {write(options.target / name, texts, asked, relevant)}")


if __name__ == "__main__":
    main()
