"""Damages every kind of file that cse reads, and checks that a command accepts it or refuses it in one sentence.

    python tests/mutations.py [--sample N] [--only NAME] [--seed 0]

Each mutation of a file is tried in a copy of its folder: flipped bytes, truncations, and for JSON and TOML other
shapes, depths and sizes at every place. A command must exit with 0, and print the same result if a hash protects the
file, or exit with 2 (1 for a damaged run) and print one sentence. A traceback, another exit code or a changed result is
a failure. Prints a table of the numbers tried, accepted, refused and failed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

from conftest import make_tiny, run_cse
from cse import InputError
from cse.data.corpus import Corpus
from random_texts import some_texts, write_vectors

DEEP = "[" * 100_000 + "]" * 100_000
WHOLE = [
    b"",
    b"[]",
    b"null",
    b'"x"',
    b"3",
    b"\xff\xfe",
    DEEP.encode(),
    b"9" * 5000,
    b'{"a": ' + b"9" * 5000 + b"}",
    b"{",
]
VALUES = [
    None,
    [],
    {},
    "x",
    "",
    -1,
    0,
    1.5,
    True,
    10**30,
    1e308,
    [[["x"]]],
    {"x": {"y": []}},
    "\x00",
    "../../x",
    ["x", 1],
]
TIMES = re.compile(r'"?(seconds|sentences_per_second|rows_per_second)"?: [^,}]*|[\d.]+ s\b|[\d,.]+ rows/s')


@dataclass
class Case:
    """A folder, a command that reads it, and the files to damage."""

    name: str
    folder: Path
    command: list[str]
    files: list[str]
    same: bool = False
    """Whether an accepted file must give the same result, because its content is protected by a hash."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("tried", "accepted", "refused", "failed"), 0))
    failures: list[str] = field(default_factory=list)


def mutations(content: bytes, name: str, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yields a description and the content of each mutation of a file."""
    for _ in range(30 if content else 0):
        place, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
        yield f"byte {place} ^ {bit}", content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
    for part in (0, 1, 4, 7):
        yield f"cut to {part} of 8", content[: len(content) * part // 8]
    if name.endswith((".json", ".jsonl", ".toml")):
        yield from ((f"whole file {each[:20]!r}", each) for each in WHOLE)
    if name.endswith(".jsonl"):
        first, _, rest = content.partition(b"\n")
        yield from ((f"line 1: {text}", each + b"\n" + rest) for text, each in shapes(json.loads(first)))
    elif name.endswith(".json"):
        yield from shapes(json.loads(content))


def shapes(value: object) -> Iterator[tuple[str, bytes]]:
    """Yields JSON in which the value at each place, down to the third level, is left out or replaced."""
    for path in places(value, 3):
        for new in ("missing", *VALUES, "deep", "5,000 digits"):
            changed = json.loads(json.dumps(value))
            target = changed
            for key in path[:-1]:
                target = target[key]
            if new == "missing":
                del target[path[-1]]
            else:
                target[path[-1]] = new
            text = json.dumps(changed).replace('"deep"', DEEP).replace('"5,000 digits"', "9" * 5000)
            yield f"{'.'.join(map(str, path))}: {str(new)[:30]}", text.encode()


def places(value: object, depth: int) -> Iterator[tuple]:
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for key, inner in list(items)[:40] if depth else ():
        yield (key,)
        yield from ((key, *rest) for rest in places(inner, depth - 1))


def rows(folder: Path) -> tuple[int, str, str]:
    """Reads a corpus through the cache of rows, as large files are read."""
    try:
        with patch("cse.data.cache.IN_MEMORY_BYTES", 0):
            corpus = Corpus.open([str(folder / "c.txt")], cache=str(folder / "cache"))
            return 0, f"{corpus.take(range(len(corpus)))} {corpus.word_counts().tolist()}", ""
    except InputError as error:
        return 2, "", f"Error: {error}"
    except Exception as error:
        return 70, "", f"Traceback {error!r}"


def run(case: Case, folder: Path) -> tuple[int, str, str]:
    if case.command == ["rows"]:
        return rows(folder)
    done = run_cse(*(each.replace("{}", str(folder)) for each in case.command), cwd=folder)
    return done.returncode, TIMES.sub("", done.stdout).replace(str(folder), ""), done.stderr


def fault(code: int, out: str, err: str, expected: str | None) -> str:
    """Returns what is wrong with the end of a command; "" if nothing is."""
    if "Traceback" in err or code not in (0, 1, 2):
        return f"exit {code}: {err.strip().splitlines()[-1][:150] if err.strip() else ''}"
    if code and (not err.splitlines()[-1].startswith("Error: ") or len(err.splitlines()[-1]) > 700):
        return f"not one sentence: {err[-200:]!r}"
    return "another result" if code == 0 and expected is not None and out != expected else ""


def test(case: Case, sample: int | None, seed: int) -> None:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "copy"
        shutil.copytree(case.folder, copy)
        code, expected, err = run(case, copy)
        assert code == 0, (case.name, err)
        for file in case.files:
            content = (case.folder / file).read_bytes()
            tried = list(mutations(content, file, draw))
            for what, changed in draw.sample(tried, min(sample or len(tried), len(tried))):
                shutil.rmtree(copy)
                shutil.copytree(case.folder, copy)
                (copy / file).write_bytes(changed)
                code, out, err = run(case, copy)
                wrong = fault(code, out, err, expected if case.same else None)
                case.counts["tried"] += 1
                case.counts["failed" if wrong else "accepted" if code == 0 else "refused"] += 1
                if wrong:
                    case.failures.append(f"{file}: {what}: {wrong}")


def cases(base: Path) -> list[Case]:
    """Makes the folders; each command is run in a copy, whose path stands for ``{}``."""
    texts = some_texts(60, most=20)
    glove = base / "v.txt"
    write_vectors(glove)
    model = make_tiny(base / "tiny", "bert") if not (base / "tiny").mkdir() else None
    made: list[Case] = []

    def case(
        name: str,
        command: list[str],
        files: list[str],
        setup: list[list[object]] = (),
        same: bool = False,
    ) -> None:
        folder = base / name
        folder.mkdir(exist_ok=True)
        for each in setup:
            done = run_cse(*each, cwd=folder)
            assert done.returncode == 0, (each, done.stderr)
        found = [path for pattern in files for path in sorted(folder.glob(pattern)) if path.is_file()]
        assert found, files
        made.append(Case(name, folder, command, [str(path.relative_to(folder)) for path in found], same))

    def write(name: str, files: dict[str, str]) -> None:
        for file, content in files.items():
            path = base / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf8")

    lines = "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts)
    write("tables", {"c.jsonl": lines, "c.csv": "text,n\n" + "".join(f'"{text}",1\n' for text in texts)})
    for file in ("c.jsonl", "c.csv"):
        case("tables", ["build-tfidf", file, "--column", "text", "-o", "out"], [file])
    write("tfidf", {"c.txt": "\n".join(texts) + "\n"})
    case("tfidf", ["explain", texts[0], "--json"], ["tfidf/*.safetensors"], [["build-tfidf", "c.txt"]], True)
    write("index", {"c.txt": "\n".join(texts) + "\n"})
    query = ["--query", texts[0], "--json"]
    search = ["search", f"glove:{glove}", "c.txt", "-o", "index", *query]
    case("index", ["search", "index", *query], ["index/*"], [search])
    mixed = [*query, "--hybrid"]
    write("hybrid", {"c.txt": "\n".join(texts) + "\n"})
    case("hybrid", ["search", "index", *mixed], ["index/*", "index/*/*"], [[*search[:5], *mixed]], True)
    (base / "model").mkdir()
    shutil.copytree(model, base / "model" / "m")
    case("model", ["search", "{}/m", "sample", "--query", "word1 word2", "--json"], ["m/*"])
    write("cache", {"c.txt": "\n".join(texts) + "\n"})
    assert rows(base / "cache")[0] == 0
    case("cache", ["rows"], ["cache/**/*"], [], True)
    write_vectors(base / "w.txt", 12)
    write("labels", {"c.txt": "\n".join(texts) + "\n", "q.txt": "\n".join(texts[:9]) + "\n"})
    label = ["compare", f"glove:{glove}", f"glove:{base}/w.txt", "c.txt", "--queries", "q.txt"]
    pairs = ((a + b, query, text) for a, query in enumerate(texts[:9]) for b, text in enumerate(texts))
    judged = "".join(f'"{query}","{text}",{number % 2}\n' for number, query, text in pairs)
    (base / "labels" / "p.csv").write_text(f"query,text,relevant\n{judged}", encoding="utf8")
    case("labels", [*label, "--judged", "p.csv", "--json"], ["p.csv", "q.txt"])
    write(
        "pairs",
        {"p.tsv": "".join(f"{n % 6}\t{a}\t{b}\n" for n, (a, b) in enumerate(pairwise(texts)))},
    )
    case("pairs", ["eval", f"glove:{glove}", "--data", "p.tsv", "--json"], ["p.tsv"])
    documents = "".join(json.dumps({"_id": f"d{n}", "title": "t", "text": text}) + "\n" for n, text in enumerate(texts))
    asked = "".join(json.dumps({"_id": f"q{n}", "text": text}) + "\n" for n, text in enumerate(texts[:9]))
    judged = "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(9))
    write("beir", {"corpus.jsonl": documents, "queries.jsonl": asked, "qrels/test.tsv": judged})
    case("beir", ["eval", "bm25", "--suite", "retrieval", "--data", "{}", "--json"], ["*.jsonl", "qrels/*"])
    write("run", {"c.txt": "\n".join(f"{text} {text[::-1]}" for text in texts) + "\n"})
    train = [
        "train",
        "c.txt",
        "--model",
        model,
        "--max-steps",
        "2",
        "--batch-size",
        "8",
        "--name",
        "a",
        "--save-every",
        "1",
    ]
    files = ["runs/a/*.json", "runs/a/*.toml", "runs/a/log.jsonl"]
    case("run", ["runs", "runs", "--json"], files, [train])
    case("run", ["report", "runs/a", "--json"], files)
    case("run", ["train", "--resume", "runs/a", "--max-steps", "3"], ["runs/a/checkpoints/step-*2/*.json", *files])
    write("parts", {"c.txt": "\n".join(texts) + "\n"})
    parts = ["augment", "c.txt", "--parts", "-o", "parts"]
    case("parts", [*parts, "--json"], ["parts/*.json"], [["build-tfidf", "c.txt"], parts])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="number of mutations of each file; default: all")
    parser.add_argument("--only", help="name of a case")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        chosen = [each for each in cases(Path(name)) if options.only in (None, each.name)]
        print(f"{'files':40} {'tried':>7} {'accepted':>9} {'refused':>8} {'failed':>7}")
        for case in chosen:
            test(case, options.sample, options.seed)
            numbers = case.counts
            print(
                f"{case.name + ': ' + ' '.join(case.command[:2]):40.40} {numbers['tried']:7} {numbers['accepted']:9} "
                f"{numbers['refused']:8} {numbers['failed']:7}",
                flush=True,
            )
            for text in case.failures[:20]:
                print(f"    {text}")
    sys.exit(any(case.failures for case in chosen))


if __name__ == "__main__":
    main()
