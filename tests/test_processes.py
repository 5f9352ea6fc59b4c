"""Tests of interrupted and concurrent processes, closed pipes, symbolic links as outputs, and thread counts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forked import Forked


def is_open(pid, path):
    """Returns whether the process ``pid`` has the file ``path`` open."""
    try:
        return any(os.readlink(link) == str(path) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


@pytest.mark.slow
def test_two_runs_that_start_together_get_different_folders(tmp_path, sample, tiny_bert):
    flags = ("--model", tiny_bert, "--max-steps", "1", "--batch-size", "8", "--json", "-o", tmp_path)
    runs = [Forked("train", sample, *flags) for _ in range(2)]
    folders = {json.loads(run.communicate(timeout=200)[0])["folder"] for run in runs}
    assert len(folders) == 2


@pytest.mark.slow
def test_the_setting_threads_applies_to_torch_and_the_rust_core(tmp_path, sample, tiny_bert):
    script = (
        "import os, torch\n"
        "from cse import TrainConfig\n"
        "from cse.training.setup import prepare\n"
        f"prepare(TrainConfig(corpus={str(sample)!r}, model={str(tiny_bert)!r}, threads=1, batch_size=8))\n"
        "names = [open(f'/proc/self/task/{t}/comm').read().strip() for t in os.listdir('/proc/self/task')]\n"
        "print(torch.get_num_threads(), sum(name.startswith('cse-core') for name in names))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.split() in (["1", "0"], ["1", "1"])


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_after_the_end_of_a_command_is_not_ignored(number):
    program = (
        f"import atexit, os, sys; atexit.register(os.kill, os.getpid(), {int(number)}); "
        "sys.argv = ['cse', 'methods', '--json']; from cse.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-number, "")


@pytest.mark.parametrize(
    ("number", "code", "end"), [(signal.SIGINT, 130, "return 0"), (signal.SIGTERM, 143, "raise InputError('wrong')")]
)
def test_a_signal_while_objects_are_finalized_is_not_ignored(number, code, end):
    program = (
        "import os, time\n"
        "from cse import InputError\n"
        "from cse.cli import group, main\n"
        "class Tidied:\n"
        "    def __del__(self):\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        time.sleep(1)\n"
        "def work(**_):\n"
        "    Tidied()\n"
        f"    {end}\n"
        "group.cli.main = work\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.endswith("Interrupted.\n" if number == signal.SIGINT else "Terminated.\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_build_leaves_no_temporary_file(tmp_path, sample_rows, number, code):
    path = tmp_path / "large.txt"
    with open(path, "w", encoding="utf8") as file:
        for _ in range(120):
            file.write("\n".join(sample_rows) + "\n")
    for wait in (0.0, 0.05, 0.15):
        command = [sys.executable, "-m", "cse", "build-tfidf", path, "-o", tmp_path / "index"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # cse installs its signal handlers before it opens the corpus.
        while process.poll() is None and not is_open(process.pid, path):
            time.sleep(0.005)
        time.sleep(wait)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode in (code, 0)
        left = [file.name for file in tmp_path.rglob(".cse-*")]
        assert not left, left


@pytest.mark.parametrize("command", ["augment", pytest.param("encode {glove}", marks=pytest.mark.slow)])
def test_a_command_ends_with_sigpipe_if_the_reader_of_its_output_exits(indexed, sample, glove, command):
    command = command.format(glove=glove)
    script = f"{sys.executable} -m cse {command} {sample} | head -c 10 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=indexed, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "141"
    assert "rror" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["explain a", "augment {sample}", "encode {glove} {sample}"])
def test_a_closed_standard_output_is_an_error(indexed, sample, glove, command):
    command = f"{sys.executable} -m cse {command.format(sample=sample, glove=glove)} >&-"
    done = subprocess.run(["bash", "-c", command], cwd=indexed, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "standard output" in done.stderr


def test_an_output_file_replaces_a_dangling_link(short_corpus, glove, tmp_path, cse):
    for number, arguments in enumerate((["augment", short_corpus], ["encode", glove, short_corpus])):
        link = tmp_path / f"link{number}.npy"
        link.symlink_to(tmp_path / "nowhere" / "file")
        done = cse(*arguments, "-o", link, cwd=short_corpus.parent)
        assert done.returncode == 0, done.stderr
        assert link.is_file()
        assert not link.is_symlink()
