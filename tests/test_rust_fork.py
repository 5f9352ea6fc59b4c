"""Tests of the Rust core in worker processes of every start method; each case runs under a time limit."""

import os
import signal
import subprocess
import sys

import pytest

SECONDS = 120

# The parent process opens and builds indexes; then each task does the same in a worker process.
PREPARE = """
import pickle, sys
import multiprocessing
from cse import TfidfIndex

corpus, folder = sys.argv[1:]
TEXTS = ["A man is playing a guitar.", "Two dogs run over the snow."]

def task(number):
    index = TfidfIndex.open(folder)
    built = TfidfIndex.build(corpus, threads=number % 3)
    counted = TfidfIndex.from_texts(TEXTS)
    copy = pickle.loads(pickle.dumps(index))
    assert len(index) == len(built) == len(copy) > 1000 and len(counted) > 5
    assert copy.augment(TEXTS) == built.augment(TEXTS)
    return built.augment(TEXTS)

if __name__ == "__main__":
    built = TfidfIndex.build(corpus)
    built.save(folder)
    expected = task(0)
"""

CASES = {
    "process": """
    for method in ("fork", "forkserver", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(task, range(4)) == [expected] * 4
""",
    "fork_of_a_fork": """
    import os
    for generation in range(3):
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            os._exit(os.waitstatus_to_exitcode(status))
        assert task(generation) == expected
    os._exit(0)
""",
    "data_loader": """
    from torch.utils.data import DataLoader, Dataset

    class Negatives(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, row):
            return task(row)[0]

    seen = list(DataLoader(Negatives(), batch_size=2, num_workers=2, multiprocessing_context="fork"))
    assert seen == [[expected[0]] * 2] * 4
""",
    "joblib": """
    from joblib import Parallel, delayed, parallel_config
    from cse import TfidfIndex

    def fit(number):
        texts = TEXTS * (number + 1)
        return TfidfIndex.from_texts(texts).transform(texts).shape[0]

    with parallel_config(backend="multiprocessing"):
        assert Parallel(n_jobs=2)(delayed(fit)(number) for number in range(4)) == [2, 4, 6, 8]
""",
}


def run_limited(arguments):
    """Runs a command that must succeed within ``SECONDS`` seconds; after that, kills it and its children."""
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail(f"not finished after {SECONDS} seconds")
    assert process.returncode == 0, output


@pytest.mark.parametrize("case", CASES)
def test_the_rust_core_works_in_forks_and_in_workers_of_every_kind(tmp_path, sample, case):
    if case == "joblib":
        pytest.importorskip("joblib")
    script = tmp_path / "script.py"
    script.write_text(PREPARE + CASES[case])
    run_limited([sys.executable, script, sample, tmp_path / "tfidf"])
