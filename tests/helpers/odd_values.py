"""Gives odd values to every option of every command, and checks that each call ends as it should.

    python tests/helpers/odd_values.py [--sample N] [--only COMMAND] [--seed 0]

Each value is given to a call of ``BASES`` that succeeds without it. With it, the call must end with 0, or with 2 and
one sentence. Only the commands of ``FAIL`` may end with 1, and a call of ``LONG`` may go on until it is stopped.
Prints the calls that end otherwise, and how many ended with each code.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click

from cse import Classifier
from cse.cli.group import cli
from forked import Forked
from mutations import fault
from random_texts import some_texts, write_vectors

NUMBERS = ["-1", "0", "1e999", "nan", "-inf", "9" * 30, "9" * 5000, "1000000000", "18446744073709551615", "1,2,,3"]
TEXTS = ["", " ", "x", "a=b=c", "[", "\u202e\x1b[2J", os.fsdecode(b"\xff\xfe"), "\U0001f600" * 50]
VALUES = [*NUMBERS, *TEXTS, "c.txt", "p.tsv", "../..", ".", "nowhere/x"]
# Traces of the program in a message: a traceback, a Python list, a temporary file; and a damage that no file has.
WRONG = re.compile(r"Traceback|\['\w|\.cse-|cse-new-|damaged")
ONE = ["--model=m", "--max-steps=1", "--batch-size=8", "--max-length=16"]
BASES = [
    ["build-tfidf", "c.txt", "--output=out"],
    ["doctor", "c.txt"],
    ["merge-tfidf", "tfidf", "tfidf", "--output=out"],
    ["train", "c.txt", *ONE],
    ["train", "c.txt", *ONE, "--loss=focal", "--una", "--dev=p.tsv"],
    ["train", "--pairs=q.jsonl", "--columns=anchor,positive", *ONE],
    ["eval", "glove:v.txt", "--data=p.tsv"],
    ["compare", "glove:v.txt", "glove:w.txt", "--data=p.tsv"],
    ["compare", "glove:v.txt", "glove:w.txt", "c.txt", "--queries=q.txt", "--pool=pool.csv"],
    ["runs", "runs"],
    ["report", "runs/a"],
    ["augment", "c.txt", "--output=out.txt"],
    ["explain", "word1 word2"],
    ["bench", "augment", "c.txt", "--repeat=1"],
    ["encode", "glove:v.txt", "c.txt", "--output=out.npy"],
    ["search", "glove:v.txt", "c.txt", "--output=index", "--query=word1"],
    ["search", "glove:v.txt", "c.txt", "--output=index", "--query=word1", "--hybrid"],
    ["mine", "glove:v.txt", "c.txt", "--queries=q.txt", "--output=out.csv"],
    ["draw", "c.txt", "--rows=4", "--output=out.csv"],
    ["predict", "m", "c.txt", "--output=out.csv"],
    ["export", "m", "--output=out"],
    ["export", "m", "--static", "--corpus=c.txt", "--output=out"],
    ["methods"],
    ["methods", "aeda"],
    ["generate", "c.txt", "--model=t5", "--max-new-tokens=4", "--output=out.txt"],
    ["reproduce", "focal-table4", "--row=temp 0.05", "--smoke", "--output=cells"],
]
# Commands that may fail after they began (exit code 1), with the reason.
FAIL = {"train": "the weights become infinite with a large learning rate"}
# Options whose large values ask for more work than a test can wait for: after SECONDS, SIGTERM must end the call.
LONG = {"train --max-steps", "train --epochs", "bench --repeat", "augment --copies", "explain --samples"}
LONG |= {"generate --max-new-tokens", "reproduce --max-steps"}
SECONDS, LIMIT = 5, 120


def calls() -> list[tuple[list[str], list[str], str]]:
    """Returns the base, the arguments and the option of each call: each value for each option and argument."""
    found = []
    context = click.Context(cli)
    for base in BASES:
        command = cli.get_command(context, base[0])
        assert command is not None, f"there is no command {base[0]}"
        for parameter in command.get_params(context):
            flags = [flag for flag in parameter.opts if flag.startswith("--")]
            if isinstance(parameter, click.Option) and not parameter.is_flag and flags:
                found += [(base, [*base, f"{flags[0]}={value}"], flags[0]) for value in VALUES]
        for place, given in enumerate(base):
            if place and not given.startswith("-"):
                found += [(base, [*base[:place], value, *base[place + 1 :]], "argument") for value in VALUES]
    missing = {*cli.list_commands(context)} - {base[0] for base in BASES}
    assert not missing, f"write a call that succeeds into BASES for {missing}"
    return found


def prepare(folder: Path) -> None:
    """Writes the files that the bases read, among them a tiny model and a run of it."""
    from tiny import make_t5, make_tiny

    texts = some_texts(40)
    (folder / "c.txt").write_text("\n".join(texts) + "\n")
    (folder / "q.txt").write_text("\n".join(texts[:9]) + "\n")
    pairs = [json.dumps({"anchor": one, "positive": other}) for one, other in zip(texts[:20], texts[20:], strict=True)]
    (folder / "q.jsonl").write_text("\n".join(pairs) + "\n")
    (folder / "p.tsv").write_text("".join(f"{n % 5}\t{text}\tword1\n" for n, text in enumerate(texts)))
    write_vectors(folder / "v.txt")
    write_vectors(folder / "w.txt", 12)
    for name in ("m", "t5"):
        (folder / name).mkdir()
    make_t5(folder / "t5", make_tiny(folder / "m", "bert"))
    Classifier(folder / "m", device="cpu").fit(texts, ["ab"[n % 2] for n in range(len(texts))]).save(folder / "m")
    for arguments in (["build-tfidf", "c.txt"], ["train", "c.txt", *ONE, "--name=a"]):
        code, err = ended(arguments, folder)
        assert code == 0, (arguments, err)


def ended(arguments: list[str], folder: Path, limit: float = LIMIT) -> tuple[int, str]:
    """Runs a command, which SIGTERM stops after ``limit`` seconds; returns its exit code and its messages."""
    process = Forked(*arguments, cwd=folder)
    process.threads[-1].join(limit)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    _, err = process.communicate(60)
    return process.returncode, err.decode(errors="replace")


def wrong(call: list[str], option: str, code: int, err: str) -> str:
    """Returns what is wrong with the end of a call; "" if nothing is."""
    if WRONG.search(err):
        return f"exit {code}: {err[-300:]}"
    if code == 128 + signal.SIGTERM and f"{call[0]} {option}" in LONG:
        return ""
    if code == 1 and call[0] not in FAIL:
        return f"exit 1: {err[-300:]}"
    return fault(code, err)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="number of calls; default: all")
    parser.add_argument("--only", help="name of a command")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tried = [each for each in calls() if options.only in (None, each[0][0])]
    tried = random.Random(options.seed).sample(tried, min(options.sample or len(tried), len(tried)))
    os.environ["HF_HUB_OFFLINE"] = "1"  # a name that no hub has is not looked for
    codes, failed = Counter[int](), 0
    with tempfile.TemporaryDirectory() as name:
        # Each call works in a new copy of the inputs, and a path two folders above it is still a temporary one.
        inputs, above = Path(name) / "inputs", Path(name) / "above"
        work = above / "middle" / "work"
        os.environ["CSE_CACHE"] = str(above / "cache")
        inputs.mkdir()
        prepare(inputs)
        bases = [(base, base, "") for base in BASES if any(base is each[0] for each in tried)]
        for base, call, option in [*bases, *tried]:
            shutil.rmtree(above, ignore_errors=True)
            shutil.copytree(inputs, work)
            code, err = ended(call, work, SECONDS if f"{base[0]} {option}" in LONG else LIMIT)
            if not option:
                assert code == 0, f"the call without an odd value fails: {call}: exit {code}: {err[-500:]}"
                continue
            codes[code] += 1
            if reason := wrong(call, option, code, err):
                failed += 1
                print(f"{' '.join(map(repr, call))[:300]}\n    {reason}", flush=True)
    ends = ", ".join(f"exit {code}: {number}" for code, number in sorted(codes.items()))
    print(f"tried {len(tried)} ({ends}), failed {failed}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
