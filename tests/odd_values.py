"""Gives odd values to every option of every command, and checks that no command ends in a traceback.

    python tests/odd_values.py [--sample N] [--only COMMAND] [--seed 0]

The values are empty, blank, huge, not finite, negative, not UTF-8, a folder and a missing path. A command
must end with 0, 1 or 2, without a traceback. Prints the calls that do not, and the numbers tried and failed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
from pathlib import Path

import click

from conftest import run_cse
from cse.cli.group import cli
from random_texts import some_texts, write_vectors

VALUES = [
    "",
    " ",
    "-1",
    "0",
    "1e999",
    "nan",
    "-inf",
    "9" * 30,
    "9" * 5000,
    "1000000000",
    "x",
    "a=b=c",
    "[",
    "\u202e\x1b[2J",
]
VALUES += [
    "c.txt",
    "p.tsv",
    "../..",
    ".",
    "/nowhere/x",
    os.fsdecode(b"\xff\xfe"),
    "\U0001f600" * 50,
    "1,2,,3",
    "18446744073709551615",
]
# Traces of the program in a message: a traceback, a Python list, a temporary file; and a damage that no file has.
WRONG = re.compile(r"Traceback|\['\w|\.cse-|cse-new-|damaged")
# Arguments with which a command runs on small files; commands that are not listed run without arguments.
BASES = {
    "build-tfidf": ["c.txt", "-o", "out"],
    "doctor": ["c.txt"],
    "merge-tfidf": ["tfidf", "tfidf", "-o", "out"],
    "train": ["c.txt", "--model", "glove:v.txt", "--max-steps", "1"],
    "eval": ["glove:v.txt", "--data", "p.tsv"],
    "compare": ["glove:v.txt", "glove:v.txt", "--data", "p.tsv"],
    "runs": ["runs"],
    "report": ["runs"],
    "augment": ["c.txt", "-o", "out.txt"],
    "explain": ["word1 word2"],
    "encode": ["glove:v.txt", "c.txt", "-o", "out.npy"],
    "search": ["glove:v.txt", "c.txt", "-o", "index", "--query", "word1"],
    "mine": ["glove:v.txt", "c.txt", "--queries", "c.txt", "-o", "out.csv"],
    "export": ["glove:v.txt", "-o", "out"],
}
LEFT_OUT = {"--help", "-h", "--version"}


def commands(only: str | None) -> list[list[str]]:
    """Returns the arguments of all calls: each value for each option, and in place of each argument."""
    found = []
    context = click.Context(cli)
    for name in cli.list_commands(context):
        if only not in (None, name):
            continue
        command, base = cli.get_command(context, name), BASES.get(name, [])
        for parameter in command.get_params(context):
            flags = [flag for flag in parameter.opts if flag.startswith("--")]
            if not isinstance(parameter, click.Option) or parameter.is_flag or not flags or flags[0] in LEFT_OUT:
                continue
            found += [[name, *base, f"{flags[0]}={value}"] for value in VALUES]
        for place in range(len(base)):
            if not base[place].startswith("-"):
                found += [[name, *base[:place], value, *base[place + 1 :]] for value in VALUES]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="number of calls; default: all")
    parser.add_argument("--only", help="name of a command")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    calls = commands(options.only)
    calls = random.Random(options.seed).sample(calls, min(options.sample or len(calls), len(calls)))
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = some_texts(40)
        (folder / "c.txt").write_text("\n".join(texts) + "\n")
        (folder / "p.tsv").write_text("".join(f"{n % 5}\t{text}\tword1\n" for n, text in enumerate(texts)))
        write_vectors(folder / "v.txt")
        write_vectors(folder / "w.txt", 12)
        run_cse("build-tfidf", "c.txt", cwd=folder)
        run_cse("search", "glove:v.txt", "c.txt", "-o", "index", "--query", "word1", cwd=folder)
        for call in calls:
            done = run_cse(*call, cwd=folder)
            last = done.stderr.strip().splitlines()[-1:] or [""]
            if done.returncode not in (0, 1, 2) or WRONG.search(done.stderr):
                failed += 1
                print(f"{' '.join(map(repr, call))[:200]}\n    exit {done.returncode}: {last[0][:200]}", flush=True)
    print(f"tried {len(calls)}, failed {failed}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
