"""Damages every kind of file that cse reads, and checks that a command accepts it or refuses it in one sentence.

    python tests/helpers/mutations.py [--sample N] [--only NAME] [--seed 0]

Each mutation is tried in a copy of the folder: flipped bytes, truncations, and for JSON and TOML other shapes and sizes
at every place. A command must exit with 2 (1 for a damaged run) and one sentence, or with 0 and the result of the
undamaged file; where ``Case.may`` allows another result, only its part ``Case.kept`` is compared. Prints a table of the
numbers tried, accepted with the whole or a part of the result compared, refused and failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from commands import run_cse
from cse import InputError
from cse.data.corpus import Corpus
from random_texts import some_texts, write_vectors
from tiny import make_tiny

DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = b"9" * 5000
WHOLE = [b"", b"[]", b"null", b'"x"', b"3", b"\xff\xfe", DEEP.encode(), DIGITS, b'{"a": ' + DIGITS + b"}", b"{"]
VALUES = [None, [], {}, "x", "", -1, 0, 1.5, True, 10**30, 1e308, [[["x"]]], {"x": {"y": []}}, "\x00", "../x", ["x", 1]]
TIMES = {"seconds", "index_seconds", "search_seconds", "sentences_per_second", "rows_per_second"}


def shape(value: object) -> object:
    """Returns the keys of JSON at each level, without notes, and the kinds of its values; of a list, the first ones."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items() if key != "notes"}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return "number" if isinstance(value, (int, float)) else type(value).__name__


@dataclass
class Case:
    """A folder, a command that reads it, and the files to damage."""

    name: str
    folder: Path
    command: list[str]
    files: list[str]
    outputs: tuple[str, ...] = ()
    """Patterns of files that the command writes, whose bytes are part of the result."""
    may: dict[str, str] = field(default_factory=dict)
    """Patterns of the files whose change may change the result, with the reason; no other file may."""
    kept: Callable[[Any], object] = shape
    """Returns the part of the result that is the same whatever was changed in the files of ``may``."""
    expected: object = None
    """The result, if it is known without the product; else, that of the undamaged folder is taken."""
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def mutations(content: bytes, name: str, draw: random.Random) -> list[tuple[str, Callable[[], bytes]]]:
    """Returns a description of each mutation of a file, and a function that makes its content."""

    def flipped(place: int, bit: int) -> bytes:
        return content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]

    found: list[tuple[str, Callable[[], bytes]]] = []
    for _ in range(30 if content else 0):
        place, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
        found.append((f"byte {place} ^ {bit}", partial(flipped, place, bit)))
    for part in (0, 1, 4, 7):
        found.append((f"cut to {part} of 8", partial(content.__getitem__, slice(len(content) * part // 8))))
    if name.endswith((".json", ".jsonl", ".toml")):
        found += ((f"whole file {each[:20]!r}", partial(bytes, each)) for each in WHOLE)
    if name.endswith(".jsonl"):
        first, _, rest = content.partition(b"\n")
        lines = shapes(json.loads(first))
        found += ((f"line 1: {text}", lambda make=make: make() + b"\n" + rest) for text, make in lines)
    elif name.endswith(".json"):
        found += shapes(json.loads(content))
    return found


def shapes(value: object) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yields JSON in which the value at each place, down to the third level, is left out or replaced."""

    def changed(path: tuple, new: object) -> bytes:
        copy = json.loads(json.dumps(value))
        target = copy
        for key in path[:-1]:
            target = target[key]
        if new == "missing":
            del target[path[-1]]
        else:
            target[path[-1]] = new
        return json.dumps(copy).replace('"deep"', DEEP).replace('"5,000 digits"', "9" * 5000).encode()

    for path in places(value, 3):
        for new in ("missing", *VALUES, "deep", "5,000 digits"):
            yield f"{'.'.join(map(str, path))}: {str(new)[:30]}", partial(changed, path, new)


def places(value: object, depth: int) -> Iterator[tuple]:
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for key, inner in list(items)[:40] if depth else ():
        yield (key,)
        yield from ((key, *rest) for rest in places(inner, depth - 1))


def rows(folder: Path) -> tuple[int, object, str]:
    """Reads a corpus through the cache of rows, as large files are read."""
    try:
        # The key of an entry has the path of the file: by a relative one, a copy of the folder has the same entry.
        with patch("cse.data.cache.IN_MEMORY_BYTES", 0), contextlib.chdir(folder):
            entries = set(Path("cache").glob("*"))
            corpus = Corpus.open(["c.txt"], cache="cache")
            assert not entries or set(Path("cache").glob("*")) == entries, "the entry was not read"
            return 0, [corpus.take(range(len(corpus))), corpus.word_counts().tolist()], ""
    except InputError as error:
        return 2, "", f"Error: {error}"
    except Exception as error:
        return 70, "", f"Traceback {error!r}"


def timeless(value: object) -> object:
    """Returns JSON without the values of ``TIMES``."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in TIMES}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def run(case: Case, folder: Path) -> tuple[int, object, str]:
    """Runs the command of a case; returns the exit code, the result and the messages."""
    if case.command == ["rows"]:
        return rows(folder)
    done = run_cse(*case.command, cwd=folder)
    result: object = ""
    if done.returncode == 0:
        written = sorted(path for pattern in case.outputs for path in folder.glob(pattern) if path.is_file())
        assert bool(written) == bool(case.outputs), case.outputs
        digests = {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in written}
        result = {"printed": timeless(json.loads(done.stdout)), "written": digests}
    return done.returncode, result, done.stderr


def fault(code: int, err: str) -> str:
    """Returns what is wrong with the end of a command; "" if nothing is."""
    if "Traceback" in err or code not in (0, 1, 2):
        return f"exit {code}: {err.strip().splitlines()[-1][:150] if err.strip() else ''}"
    last = err.splitlines()[-1] if err.strip() else ""
    if code and (not last.startswith("Error: ") or len(last) > 1000):
        return f"not one sentence: {last[:200]!r} ... {last[-200:]!r}"
    return ""


def compared(case: Case, file: str, result: object, expected: object) -> tuple[str, str]:
    """Compares the result of an accepted file; returns how ("whole" or "part"), and the difference, "" if none."""
    reason = next((reason for pattern, reason in case.may.items() if fnmatch(file, pattern)), "")
    if not reason:
        return "whole", "" if result == expected else "another result"
    return "part", "" if case.kept(result) == case.kept(expected) else "another result"


def test(case: Case, sample: int | None, seed: int) -> None:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "copy"
        shutil.copytree(case.folder, copy)
        code, expected, err = run(case, copy)
        assert code == 0, (case.name, err)
        if case.expected is not None:
            assert expected == case.expected, case.name
        for file in case.files:
            content = (case.folder / file).read_bytes()
            tried = mutations(content, file, draw)
            for what, changed in draw.sample(tried, min(sample or len(tried), len(tried))):
                shutil.rmtree(copy)
                shutil.copytree(case.folder, copy)
                (copy / file).write_bytes(changed())
                code, result, err = run(case, copy)
                wrong, how = fault(code, err), "refused"
                if code == 0:
                    how, different = compared(case, file, result, expected)
                    wrong = wrong or different
                case.counts["tried"] += 1
                case.counts["failed" if wrong else how] += 1
                if wrong:
                    case.failures.append(f"{file}: {what}: {wrong}")


def cases(base: Path) -> list[Case]:
    """Makes the folders."""
    texts = some_texts(60, most=20)
    glove = base / "v.txt"
    write_vectors(glove)
    (base / "tiny").mkdir()
    model = make_tiny(base / "tiny", "bert")
    made: list[Case] = []

    def case(name: str, command: list[str], files: list[str], *setup: list[object], **values: Any) -> None:
        folder = base / name
        folder.mkdir(exist_ok=True)
        for each in setup:
            done = run_cse(*each, cwd=folder)
            assert done.returncode == 0, (each, done.stderr)
        found = [path for pattern in files for path in sorted(folder.glob(pattern)) if path.is_file()]
        assert found, files
        made.append(Case(name, folder, command, [str(path.relative_to(folder)) for path in found], **values))

    def write(name: str, files: dict[str, str]) -> None:
        for file, content in files.items():
            path = base / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf8")

    plain = {"c.txt": "\n".join(texts) + "\n", "q.txt": "\n".join(texts[:9]) + "\n"}
    lines = "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts)
    write("tables", {"c.jsonl": lines, "c.csv": "text,n\n" + "".join(f'"{text}",1\n' for text in texts)})
    for file in ("c.jsonl", "c.csv"):
        command = ["build-tfidf", file, "--column", "text", "-o", "out", "--json"]
        case("tables", command, [file], may={"c.*": "the texts of the index"})
    write("tfidf", plain)
    case("tfidf", ["explain", texts[0], "--json"], ["tfidf/*.safetensors"], ["build-tfidf", "c.txt"])
    query = ["--query", texts[0], "--json"]
    search = ["search", f"glove:{glove}", "c.txt", "-o", "index", *query]
    write("index", plain)
    case("index", ["search", "index", *query], ["index/*"], search)
    write("hybrid", plain)
    case("hybrid", ["search", "index", *query, "--hybrid"], ["index/*", "index/*/*"], [*search, "--hybrid"])
    write("model", plain)
    shutil.copytree(model, base / "model" / "m")
    may = {"m/model.safetensors": "the weights have no hash", "m/tokenizer*.json": "the words and their numbers"}
    may["m/config.json"] = "the sizes and functions of the layers"
    case("model", ["encode", "m", "c.txt", "-o", "v.npy", "--json"], ["m/*"], outputs=("v.npy",), may=may)
    write("cache", plain)
    assert rows(base / "cache")[0] == 0
    case("cache", ["rows"], ["cache/**/*"], expected=[texts, [len(text.split()) for text in texts]])
    write_vectors(base / "w.txt", 12)
    write("judged", plain)
    compare = ["compare", f"glove:{glove}", f"glove:{base}/w.txt", "c.txt", "--queries", "q.txt"]
    pairs = ((a + b, query, text) for a, query in enumerate(texts[:9]) for b, text in enumerate(texts))
    judged = "".join(f'"{query}","{text}",{number % 2}\n' for number, query, text in pairs)
    (base / "judged" / "p.csv").write_text(f"query,text,relevant\n{judged}", encoding="utf8")
    data = {"p.csv": "the judgements", "q.txt": "the queries"}
    case("judged", [*compare, "--judged", "p.csv", "--json"], ["p.csv", "q.txt"], may=data)
    write("pairs", {"p.tsv": "".join(f"{n % 6}\t{a}\t{b}\n" for n, (a, b) in enumerate(pairwise(texts)))})
    command = ["eval", f"glove:{glove}", "--data", "p.tsv", "--json"]
    case("pairs", command, ["p.tsv"], may={"p.tsv": "the pairs and scores"})
    documents = "".join(json.dumps({"_id": f"d{n}", "title": "t", "text": text}) + "\n" for n, text in enumerate(texts))
    asked = "".join(json.dumps({"_id": f"q{n}", "text": text}) + "\n" for n, text in enumerate(texts[:9]))
    judged = "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(9))
    write("beir", {"corpus.jsonl": documents, "queries.jsonl": asked, "qrels/test.tsv": judged})
    command = ["eval", "bm25", "--suite", "retrieval", "--data", ".", "--json"]
    case("beir", command, ["*.jsonl", "qrels/*"], may={"*": "the documents, queries and judgements"})
    write("run", {"c.txt": "\n".join(f"{text} {text[::-1]}" for text in texts) + "\n"})
    sizes = ["--max-steps", "2", "--batch-size", "8", "--lr-scheduler", "constant", "--threads", "1"]
    trains = [["train", "c.txt", "--model", model, *sizes, "--name", name, "--save-every", "1"] for name in "ab"]
    files = ["runs/a/*.json", "runs/a/*.toml", "runs/a/log.jsonl"]
    may = {"runs/a/*": "settings and scores are shown"}

    def other_run(result: Any) -> object:
        return [each for each in result["printed"]["runs"] if each["name"] == "b"]

    case("run", ["runs", "runs", "--json"], files, *trains, may=may, kept=other_run)
    case("run", ["report", "runs/a", "--json"], files, may=may, kept=lambda result: result["printed"]["page"])
    resume = ["train", "--resume", "runs/a", "--max-steps", "3", "--json"]
    files, weights = ["runs/a/checkpoints/step-*2/*.json", *files], ("runs/a/last/model.safetensors",)
    case("run", resume, files, outputs=weights, may={"runs/a/config.toml": "the settings"})
    write("parts", plain)
    parts = ["augment", "c.txt", "--parts", "-o", "parts"]
    commands = [["build-tfidf", "c.txt"], parts]
    may = {
        "parts/*": "how many parts were made is printed"
    }  # a changed part, or one with a changed record, is made again
    written: dict[str, Any] = {"outputs": ("parts/*.zst",), "may": may, "kept": lambda result: result["written"]}
    case("parts", [*parts, "--json"], ["parts/*"], *commands, **written)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="number of mutations of each file; default: all")
    parser.add_argument("--only", help="name of a case")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        chosen = [each for each in cases(Path(name)) if options.only in (None, each.name)]
        columns = ("tried", "whole", "part", "refused", "failed")
        print(f"{'files':40}" + "".join(f"{column:>9}" for column in columns))
        for case in chosen:
            test(case, options.sample, options.seed)
            numbers = "".join(f"{case.counts[column]:9}" for column in columns)
            print(f"{case.name + ': ' + ' '.join(case.command[:2]):40.40}{numbers}", flush=True)
            for text in case.failures[:20]:
                print(f"    {text}")
    sys.exit(any(case.failures for case in chosen))


if __name__ == "__main__":
    main()
