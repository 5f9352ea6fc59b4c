"""Kills commands at the system calls that change files, repeats them, and compares the results.

    python tests/helpers/crash_points.py [--all] [--case NAME]

Each command of ``CASES`` runs once undisturbed, while its calls that change files below its folder are counted. It is
then killed (SIGKILL) just before the Nth of them: an output file must be the old or the new one, the repeated command
must succeed with the same result, and no temporary file may be left. Without ``--all``, a sample of the calls is tried.

The process imports PyTorch once and forks for each command. A seccomp filter stops the forked process at each call, and
its parent, which traces it, counts the call or kills the process. Linux on x86-64 only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# Numbers of system calls on x86-64, and the position of the argument that is a path, or the descriptor of a file.
PATHS = {"rename": (82, 0), "mkdir": (83, 0), "rmdir": (84, 0), "link": (86, 1), "unlink": (87, 0), "open": (2, 0)}
PATHS |= {"openat": (257, 1), "mkdirat": (258, 1), "unlinkat": (263, 1), "renameat": (264, 1), "linkat": (265, 3)}
PATHS |= {"renameat2": (316, 1)}
FILES = {"write": 1, "pwrite": 18, "writev": 20, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "fallocate": 285}
NAMES = {number: name for name, (number, _) in PATHS.items()} | {number: name for name, number in FILES.items()}

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long
TRACEME, CONT, SETOPTIONS, GET_SYSCALL_INFO = 0, 7, 0x4200, 0x420E
TRACED = 0x2 | 0x4 | 0x8 | 0x80 | 0x100000  # forks, vforks, threads, seccomp; end with the tracer


def trace_me():
    """Lets the parent trace this process, and stops it at the system calls in ``NAMES``."""
    LIBC.ptrace(TRACEME, 0, None, None)
    os.kill(os.getpid(), signal.SIGSTOP)
    numbers = sorted(NAMES)
    # BPF: load the number of the call; jump to the last instruction (trace) if it is one of these, else allow.
    program = struct.pack("HBBI", 0x20, 0, 0, 0)
    for place, number in enumerate(numbers):
        program += struct.pack("HBBI", 0x15, len(numbers) - place, 0, number)
    program += struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000) + struct.pack("HBBI", 0x06, 0, 0, 0x7FF00000)
    buffer = ctypes.create_string_buffer(program)
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer)))
    if LIBC.prctl(38, 1, 0, 0, 0) or LIBC.prctl(22, 2, ctypes.byref(filters), 0, 0):
        os._exit(99)


def call_of(pid, folder):
    """Returns name and place of the call at which a process is stopped; None if it changes no file in ``folder``."""
    info = ctypes.create_string_buffer(88)
    LIBC.ptrace(GET_SYSCALL_INFO, pid, ctypes.c_void_p(88), info)
    number, *arguments = struct.unpack_from("7Q", info.raw, 24)
    name = NAMES.get(number)
    try:
        if name in FILES:
            path = os.readlink(f"/proc/{pid}/fd/{arguments[0]}")
        else:
            position = PATHS[name][1]
            if name in ("open", "openat") and not arguments[position + 1] & (os.O_CREAT | os.O_TRUNC):
                return None
            with open(f"/proc/{pid}/mem", "rb", 0) as memory:
                memory.seek(arguments[position])
                path = os.fsdecode(memory.read(512).partition(b"\0")[0])
            path = os.path.join(os.readlink(f"/proc/{pid}/cwd"), path)
    except (OSError, KeyError):
        return None
    path = os.path.normpath(path)
    if not path.startswith(f"{folder}/"):
        if name in ("unlinkat", "mkdirat") and not path.startswith(("/tmp", "/dev", "/proc", "/root")):
            return name, path
        return None
    return name, re.sub(r"(cse-new-|cse-core-|\.tmp)[A-Za-z0-9_]+", r"\1X", os.path.relpath(path, folder))


def run(arguments, folder, kill_at=0, limit=300, mapped=False, number=signal.SIGKILL):
    """Runs a command, with a signal at call ``kill_at``; returns exit code, messages, and calls that change files."""
    messages = folder.parent / "messages"
    pid = os.fork()
    if pid == 0:
        try:
            output = os.open(messages, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(output, stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(folder)
            os.environ["CSE_CACHE"] = str(folder / "cache")
            sys.argv = ["cse", *arguments]
            if mapped:
                import cse.data.cache

                cse.data.cache.IN_MEMORY_BYTES = 0
            trace_me()
            from cse.cli import main

            main()
        except SystemExit as error:
            sys.stdout.flush()
            os._exit(error.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
        os._exit(70)
    calls, traced, until = [], {pid}, time.monotonic() + limit
    os.waitpid(pid, 0)
    LIBC.ptrace(SETOPTIONS, pid, None, ctypes.c_void_p(TRACED))
    LIBC.ptrace(CONT, pid, None, None)
    while traced:
        stopped, status = os.waitpid(-1, 0x40000000)  # __WALL
        if time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            traced.discard(stopped)
            if stopped == pid:
                code = os.waitstatus_to_exitcode(status)
            continue
        traced.add(stopped)
        event, stop = status >> 16, os.WSTOPSIG(status)
        if event == 7:
            call = call_of(stopped, folder)
            if call is not None:
                calls.append(call)
                if len(calls) == kill_at:
                    os.kill(pid, number)
                    if number == signal.SIGKILL:
                        continue
        passed = 0 if event or stop in (signal.SIGSTOP, signal.SIGTRAP) else stop
        LIBC.ptrace(CONT, stopped, None, ctypes.c_void_p(passed))
    return code, messages.read_text(encoding="utf8", errors="replace"), calls


@dataclass(frozen=True)
class Case:
    """A command, its outputs, and commands that make the outputs that exist before (``old``)."""

    command: str
    outputs: tuple[str, ...]
    old: str = ""
    slow: bool = False
    """Without ``--all``, only one point is tried, the last one."""
    mapped: bool = False
    """Rows of the corpus are written to the cache, as those of large files are."""


RUN = "train corpus.txt --loss focal --una --model model --max-steps 6 --batch-size 4 --threads 1 --precision fp32"
RUN += " --eval-every 2 -o runs"
LABELS = f"{RUN} --labels label --pooler avg".replace("corpus.txt", "table.csv --column text")
LEARN = f"{LABELS} --learn --folds 2 --set same-label.most_lost=100"
CASES = {
    "build-tfidf": Case("build-tfidf corpus.txt -o out", ("out",), "build-tfidf other.txt -o out"),
    "build-tfidf --no-matrix": Case(
        "build-tfidf corpus.txt --no-matrix -o out", ("out",), "build-tfidf other.txt -o out"
    ),
    "augment": Case("augment corpus.txt -o out.txt", ("out.txt",), "augment other.txt -o out.txt"),
    "augment --parts": Case("augment --parts corpus.txt other.txt -o parts", ("parts",)),
    "encode npy": Case("encode model corpus.txt -o v.npy", ("v.npy",), "encode model other.txt -o v.npy"),
    "encode parquet": Case("encode model corpus.txt -o v.parquet", ("v.parquet",)),
    "encode safetensors": Case("encode model corpus.txt -o v.safetensors", ("v.safetensors",)),
    "encode --parts": Case("encode model --parts corpus.txt other.txt -o parts", ("parts",)),
    "train": Case(f"{RUN} --name run", ("runs/run",)),
    "train --save-every": Case(f"{RUN} --name run --save-every 2", ("runs/run",)),
    "train --learn": Case(f"{LEARN} --name run", ("runs/run",)),
    "train --learn --teacher": Case(f"{LEARN} --teacher done/best --name run", ("runs/run", "runs/run-teacher")),
    "train --learn --teacher --tune-teacher": Case(
        f"{LEARN} --teacher done/best --tune-teacher --name run", ("runs/run", "runs/run-teacher", "runs/run-tuned")
    ),
    "predict": Case("predict labelled table.csv -o p.csv", ("p.csv",)),
    "draw": Case("draw table.csv --column text -n 4 -o d.csv", ("d.csv",)),
    "search": Case("search model corpus.txt -o index", ("index",)),
    "search, updated": Case("search model corpus.txt -o index", ("index",), "search model other.txt -o index"),
    "mine": Case("mine model corpus.txt --queries queries.jsonl --query-column anchor -o m.jsonl", ("m.jsonl",)),
    "report": Case("report done -o report.html", ("report.html",)),
    "report --pictures": Case("report done -o report.html --pictures plots", ("report.html", "plots"), slow=True),
    "export --static": Case("export model --static --corpus corpus.txt -o exported", ("exported",)),
    "compare --pool": Case("compare model done/best corpus.txt --queries other.txt --pool p.csv", ("p.csv",)),
    "encode, cached rows": Case("encode model corpus.txt -o v.npy", ("v.npy", "cache"), mapped=True),
    "export --onnx": Case("export model --onnx -o exported", ("exported",), slow=True),
    "export --onnx, again": Case("export model --onnx", ("model",), "export model --onnx", slow=True),
    "merge-tfidf": Case("merge-tfidf tfidf shard -o out", ("out",), "build-tfidf other.txt -o out"),
    "generate": Case(
        "generate corpus.txt --model t5 --max-new-tokens 4 -o g.txt",
        ("g.txt",),
        "generate other.txt --model t5 --max-new-tokens 4 -o g.txt",
    ),
    "reproduce": Case("reproduce focal-table4 --row 'temp 0.05' --smoke -o cells", ("cells",)),
}
# What differs between two runs of a command: times, which may not be known of a resumed run, rates, the peak of memory,
# and the hash of state.json with times.
VARIES = rb"(?:train_)?(?:processor_)?seconds|sentences_per_second|rows_per_second|process_peak_bytes"
TIMES = re.compile(rb'("(?:' + VARIES + rb')": )(?:[0-9.e+-]+|null)|("state.json": ")[0-9a-f]+')
LEFT = re.compile(r"\.cse-.*|.*\.part(\.json)?|.*\.tmp")


def digests(folder, outputs):
    """Returns the hash of each file of the outputs, by path; ``TIMES`` in JSON are left out."""
    found = {}
    for output in outputs:
        for path in sorted([folder / output, *(folder / output).rglob("*")]):
            if path.is_file():
                content = path.read_bytes()
                if path.suffix in (".json", ".jsonl"):
                    content = TIMES.sub(rb"\1\2", content)
                found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()[:16]
    return found


def repeated(case, folder):
    """Returns the command that continues a killed one: the same, or for a run with a checkpoint, its resumption."""
    run_folder = folder / case.outputs[0]
    if case.command.startswith("train") and list(run_folder.glob("checkpoints/step-*")):
        return ["train", "--resume", case.outputs[0]]
    return shlex.split(case.command)


def chosen(calls, everything, share):
    """Returns the numbers of the calls to kill at: all, or one of each kind and place, and a share of the others."""
    if everything:
        return list(range(1, len(calls) + 1))
    first = {call: number for number, call in reversed([*enumerate(calls, 1)])}
    numbers = sorted({*first.values(), len(calls)})
    return numbers[:: -max(1, len(numbers) // share)][::-1]


def crash(name, case, inputs, place, everything, share, how=signal.SIGKILL):
    """Kills a command at the chosen calls; returns how many were reached, how many not, and the failures."""
    whole, work = place / "whole", place / "work"
    for folder in (whole, work):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(inputs, work)
    if case.old:
        code, text, _ = run(shlex.split(case.old), work, mapped=case.mapped)
        if code:
            return 0, 0, [f"{name}: {text}"]
    before = digests(work, case.outputs)
    shutil.copytree(work, whole, symlinks=True)
    shutil.rmtree(work)
    shutil.copytree(whole, work)
    code, text, calls = run(shlex.split(case.command), work, mapped=case.mapped)
    if code or not calls:
        return 0, 0, [f"{name}: {len(calls)} calls, {text}"]
    expected = digests(work, case.outputs)
    weights = work / case.outputs[0] / "last" / "model.safetensors"
    trained = weights.read_bytes() if weights.exists() else b""
    failures, missed, numbers = [], 0, chosen(calls, everything, 1 if case.slow else share)
    for number in numbers:
        shutil.rmtree(work)
        shutil.copytree(whole, work)
        code, text, done = run(shlex.split(case.command), work, number, mapped=case.mapped, number=how)
        point = f"{name}: killed at call {number} of {len(calls)} {done[-1] if done else ''}"
        if len(done) < number:
            missed += 1  # the order of threads differs, and so does the number of calls
            continue
        if code not in (-how, 128 + how):
            failures.append(f"{point}: ends with {code} after signal {int(how)}")
        one_file = len(case.outputs) == 1 and (work / case.outputs[0]).is_file()
        if one_file and digests(work, case.outputs) not in (before, expected):
            failures.append(f"{point}: the output is neither old nor new")
        code, text, _ = run(repeated(case, work), work, mapped=case.mapped)
        if code:
            failures.append(f"{point}: the repeated command failed with {code}: {text.strip()[-300:]}")
            continue
        if how == signal.SIGKILL and digests(work, case.outputs) != expected:
            after = digests(work, case.outputs)
            differing = sorted(path for path in {*after, *expected} if after.get(path) != expected.get(path))
            failures.append(f"{point}: the result of the repeated command differs: {differing}")
        if trained and weights.read_bytes() != trained:
            failures.append(f"{point}: the weights differ")
        left = [str(path.relative_to(work)) for path in work.rglob("*") if LEFT.fullmatch(path.name)]
        if left:
            failures.append(f"{point}: left {left}")
    return len(numbers) - missed, missed, failures


def plain(rows):
    """The rows without what has a meaning in a .csv file."""
    return [row.replace(",", " ").replace('"', " ") for row in rows]


def prepare(folder):
    """Writes the inputs of all cases into a folder: texts, pairs, a tiny model, an index, and a finished run."""
    from cse import TfidfIndex
    from tiny import make_t5, make_tiny

    folder.mkdir()
    sample = Path(__file__).parents[2] / "python" / "cse" / "resources" / "sample.txt"
    rows = sample.read_text(encoding="utf8").split("\n")[:60]
    (folder / "corpus.txt").write_text("\n".join(rows[:40]) + "\n", encoding="utf8")
    (folder / "other.txt").write_text("\n".join(rows[30:]) + "\n", encoding="utf8")
    pairs = "".join(f"{number % 6}\t{rows[number]}\t{rows[number + 20]}\n" for number in range(30))
    (folder / "pairs.tsv").write_text(pairs, encoding="utf8")
    queries = [json.dumps({"anchor": rows[number], "positive": rows[number + 20]}) for number in range(8)]
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n", encoding="utf8")
    lines = [f"{text},{'ab'[number % 2] if number < 24 else ''}" for number, text in enumerate(plain(rows[:40]))]
    (folder / "table.csv").write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf8")
    make_tiny(folder / "model", "bert")
    make_t5(folder / "t5", folder / "model")
    TfidfIndex.build(folder / "corpus.txt").save(folder / "tfidf")
    TfidfIndex.build(folder / "other.txt").save(folder / "shard")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="kill at every call")
    parser.add_argument("--share", type=int, default=6, help="about how many points of a command to try without --all")
    parser.add_argument("--case", default="", metavar="PATTERN", help="only cases that match a regular expression")
    parser.add_argument("--term", action="store_true", help="send SIGTERM, which no command may ignore, not SIGKILL")
    options = parser.parse_args()
    how = signal.SIGTERM if options.term else signal.SIGKILL
    import torch

    torch.set_num_threads(1)
    totals, failures = Counter(), []
    with tempfile.TemporaryDirectory() as name:
        place = Path(os.path.realpath(name))
        prepare(place / "inputs")
        # The commands report and compare need a finished run.
        code, text, _ = run(f"{RUN} --name done".split(), place / "inputs")
        assert code == 0, text
        shutil.move(place / "inputs" / "runs" / "done", place / "inputs" / "done")
        code, text, _ = run(f"{LABELS} --name labelled".split(), place / "inputs")
        assert code == 0, text
        shutil.move(place / "inputs" / "runs" / "labelled", place / "inputs" / "labelled")
        shutil.rmtree(place / "inputs" / "runs")
        for case in (case for case in CASES if re.search(options.case, case)):
            began = time.monotonic()
            tried, missed, failed = crash(case, CASES[case], place / "inputs", place, options.all, options.share, how)
            if not tried and not failed:
                failed = [f"{case}: no point was reached"]
            totals.update(tried=tried, missed=missed)
            failures += failed
            counts = f"{tried:>5} tried{missed:>5} not reached{len(failed):>5} failed"
            print(f"{case:<26}{counts}{time.monotonic() - began:8.1f} s", flush=True)
            print("".join(f"  {line}\n" for line in failed), end="", flush=True)
    print(json.dumps({"tried": totals["tried"], "not reached": totals["missed"], "failed": len(failures)}))
    sys.exit(bool(failures))


if __name__ == "__main__":
    os.environ.update(PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    for module in ("cse.training.loop", "scipy.stats", "pyarrow.parquet", "transformers.models.bert.modeling_bert"):
        __import__(module)
    import cse.cli.group as group
    import plain_processor  # noqa: F401  # the speed of bf16, which is measured, would be part of the results

    for module, _ in group.PLACES.values():
        with contextlib.suppress(ImportError):
            __import__(f"cse.cli.commands.{module}")
    main()
