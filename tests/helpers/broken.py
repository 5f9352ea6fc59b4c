"""Breaks the product in one place at a time, and checks that a test notices.

    python tests/helpers/broken.py [--only PATTERN] [--jobs 2]

Each place of ``PLACES`` is a fragment of a module and what replaces it when the module is imported; no file is changed.
This process imports PyTorch and other libraries, which takes longer than most of the tests, and forks for each place.
The replacement is made in the forked process, and by ``sitecustomize`` in a folder on PYTHONPATH in other processes
that a test starts. Prints a line for each place: its name, the first test that failed, and seconds. Exits with 1 if no
test notices a breakage, or if one of the tests fails without a breakage.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]  # of the tests
SECONDS = 240  # within which a test must end; some breakages would make it wait forever
HOOK = """
import os, sys
from importlib.machinery import PathFinder, SourceFileLoader

module, old, new = (os.environ[f"CSE_BROKEN_{part}"] for part in ("MODULE", "OLD", "NEW"))


class Loader(SourceFileLoader):
    def get_code(self, name):  # not from the bytecode that is stored for the unbroken module
        path = self.get_filename(name)
        source = self.get_data(path).decode("utf8")
        assert source.count(old) == 1, f"{path} holds {old!r} {source.count(old)} times"
        return self.source_to_code(source.replace(old, new).encode("utf8"), path)


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        spec.loader = Loader(name, spec.origin)
        return spec


if module:
    sys.meta_path.insert(0, Finder)
"""


class Place(NamedTuple):
    """A place where the product is broken."""

    name: str
    module: str
    old: str
    """A fragment that occurs once in the source of the module."""
    new: str
    tests: str
    """The tests that must notice, as arguments of pytest, relative to ``tests``."""


PLACES = [
    Place(
        "the calibration knows the rows that it judges",
        "cse.classifier.calibration",
        "calibrate(log_odds[~own], labels[~own])",
        "calibrate(log_odds, labels)",
        "test_classifier.py::test_the_probability_of_a_row_does_not_depend_on_its_own_label",
    ),
    Place(
        "labels that taught the encoder promise its accuracy",
        "cse.classifier.fitted",
        "predicted if taught is None else predicted & ~taught",
        "predicted",
        "test_classifier.py::test_labels_that_taught_the_encoder_are_learned_but_promise_nothing",
    ),
    Place(
        "rows of rare labels teach the encoders that are to predict them",
        "cse.evaluation.labels",
        "for each in (judges, rest)])",
        "for each in (judges,)])",
        "test_classifier.py::test_an_encoder_that_learns_from_labels_has_the_confidence_of_its_folds",
    ),
    Place(
        "any labelled rows count as drawn at random",
        "cse.classifier.drawn",
        "return self.auc.low <= TOLD_APART and not",
        "return True or not",
        "test_classifier.py::test_labels_that_were_not_drawn_at_random_promise_no_accuracy",
    ),
    Place(
        "after a teacher, the verdict compares with the encoder that it taught",
        "cse.training.loop",
        "outputs.load(run, run.judge.against or run.folder / outputs.BEST)",
        "outputs.load(run, run.folder / outputs.BEST)",
        "test_sequence.py::test_the_teacher_comes_first_and_the_verdict_compares_with_the_encoder_before_both",
    ),
    Place(
        "the teacher of a fold has learned the labels of the fold",
        "cse.training.loop",
        "texts, labels if given.learn else None, rows)",
        "texts, labels if given.learn else None, rows if given.name == folder.name else rows[:0])",
        "test_sequence.py::test_a_teacher_learns_the_labels_first_and_anew_for_each_fold",
    ),
    Place(
        "labels that taught the teacher judge although no fold trains it anew",
        "cse.training.setup",
        "if methods.tune_teacher and data.folds:",
        "if methods.tune_teacher:",
        "test_sequence.py::test_held_out_labels_judge_only_if_they_did_not_teach_the_teacher",
    ),
    Place(
        "a base that learned the labels from its teacher is judged by them, if training changed nothing",
        "cse.training.judging",
        "(selector.best_step > 0 or self.anew)",
        "selector.best_step > 0",
        "test_sequence.py::test_folds_judge_a_base_that_learned_from_a_tuned_teacher_if_the_labels_teach_no_more",
    ),
    Place(
        "a cleaned copy of the rows that taught an encoder judges it",
        "cse.encoder.taught",
        " | np.isin(letter_keys(texts), letters).any(1)",
        "",
        "test_taught.py::test_a_table_that_was_copied_converted_moved_or_grown_is_the_same_rows",
    ),
    Place(
        "a cleaned copy in the same table judges by the label that it taught",
        "cse.evaluation.labels",
        "text_groups(texts, letter_keys(corpus.take(rows[first])))",
        "np.arange(len(texts))",
        "test_verdict.py::test_texts_of_the_same_letters_are_held_out_together",
    ),
    Place(
        "a copy of a model does not say that pairs taught it",
        "cse.encoder.taught",
        "columns + (((PAIRS, len(pairs)),) if paired else ())",
        "columns",
        "test_taught.py::test_texts_that_taught_in_pairs_do_not_judge_by_labels",
    ),
    Place(
        "a resumed run compares the scores of other examples",
        "cse.training.setup",
        "evaluated.fingerprints(settings.evaluation)",
        "{}",
        "test_verdict.py::test_a_run_is_not_resumed_if_what_scores_its_examples_has_changed",
    ),
    Place(
        "held-out pairs that taught the base judge",
        "cse.evaluation.apart",
        "return evaluation.by_labels or evaluation.by_pairs",
        "return evaluation.by_labels",
        "test_verdict.py::test_held_out_pairs_that_taught_the_base_do_not_judge",
    ),
    Place(
        "pairs that were made from labels are judged by them",
        "cse.evaluation.apart",
        'ways["pairs"] = each.has_pairs',
        "pass",
        "test_taught.py::test_texts_that_taught_in_pairs_do_not_judge_by_labels",
    ),
    Place(
        "labels that the encoder predicted judge it",
        "cse.data.classes",
        "if given and kind == ADDED[0]",
        "if False and kind == ADDED[0]",
        "test_classifier.py::test_predicted_labels_neither_judge_nor_teach",
    ),
    Place(
        "a file is written in place, without a rename",
        "cse.io",
        "        if path.exists() and not path.is_file():\n            with open",
        "        if True:\n            with open",
        "test_journal.py",
    ),
    Place(
        "hashes of files are not compared",
        "cse.io",
        "        if not same:\n            raise ValueError",
        "        if False:\n            raise ValueError",
        "test_resume.py::test_every_file_of_a_checkpoint_is_verified",
    ),
    Place(
        "leftovers of killed processes stay",
        "cse.io",
        "                if not free:\n                    continue",
        "                if True:\n                    continue",
        "test_resume.py::test_leftovers_of_killed_processes_are_removed",
    ),
    Place(
        "a line of a journal is read without its hash",
        "cse.io",
        'return json.loads(text) if check.decode("ascii", "replace") == hash_bytes(text) else None',
        "return json.loads(text)",
        "test_journal.py",
    ),
    Place(
        "an entry of the cache is opened without a check",
        "cse.data.entries",
        "        if check:\n",
        "        if False:\n",
        "test_cache.py::test_an_entry_with_a_changed_truncated_or_missing_file_is_written_again",
    ),
    Place(
        "blocks of OUTPUT.part are not verified",
        "cse.encoder.vector_files",
        "if hash_bytes(file.read((stop - done) * shape[1] * 4)) != hashed or stop == done:",
        "if not file.read((stop - done) * shape[1] * 4) or stop == done:",
        "test_journal.py",
    ),
    Place(
        "finished parts are not verified",
        "cse.sharding",
        'whole = is_sealed(record) and path.exists() and _core.hash_file(path) == record["part_xxh3"]',
        "whole = path.exists()",
        "test_sharding.py::test_a_later_call_makes_only_the_missing_parts",
    ),
    Place(
        "embeddings that are not finite are accepted",
        "cse.encoder.base",
        "    if len(faulty):\n        row = int(faulty[0])",
        "    if False:\n        row = int(faulty[0])",
        "test_not_finite.py::test_an_encoder_names_the_text_whose_embedding_is_not_finite",
    ),
    Place(
        "the temperature is always 0.05",
        "cse.losses.contrastive",
        "    scores = shape(s, layout.target, temperature, margin)",
        "    scores = shape(s, layout.target, 0.05, margin)",
        "test_losses.py::test_no_gradient_flows_through_mixed_negatives",
    ),
    Place(
        "a resumed run does not restore the random number generators",
        "cse.training.folder.outputs",
        "        restore_generators(own, run.device)",
        "        pass",
        "test_resume.py::test_a_killed_and_resumed_run_equals_an_uninterrupted_one",
    ),
    Place(
        "each epoch has the order of the first",
        "cse.rng",
        "return stable_order(bits(seed, epoch, rows, SHUFFLE))",
        "return stable_order(bits(seed, 0, rows, SHUFFLE))",
        "test_trainer.py::test_every_epoch_has_each_row_at_most_once_and_an_order_of_its_own",
    ),
    Place(
        "ranks do not share their gradients",
        "cse.training.step.ranks",
        "        if self.size == 1:\n            return\n",
        "        return\n",
        "test_distributed.py::test_two_processes_compute_the_gradients_of_a_single_process",
    ),
    Place(
        "a resumed run does not restore the moments of the optimiser",
        "cse.training.folder.outputs",
        '    state.optimizer.load_state_dict({**state.optimizer.state_dict(), "state": moments})',
        "    pass",
        "test_resume.py::test_a_killed_and_resumed_run_equals_an_uninterrupted_one",
    ),
    Place(
        "the checksum of a search index is not compared",
        "cse.search.storage",
        "            if data[at : at + len(value)] != value:",
        "            if False:",
        "test_search.py::test_a_changed_byte_in_any_file_of_an_index_is_refused",
    ),
    Place(
        "a search returns the text of the next row",
        "cse.search.index",
        "scores[order].tolist(), self.texts(at), spans, strict=True)",
        "scores[order].tolist(), self.texts([(row + 1) % len(self) for row in at]), spans, strict=True)",
        "test_search.py::test_search_results_equal_brute_force",
    ),
    Place(
        "an updated index has the vectors of the row before",
        "cse.search.storage",
        "        places = ranges(firsts[own], counts[own])",
        "        places = np.maximum(ranges(firsts[own], counts[own]) - 1, 0)",
        "test_search.py::test_an_update_encodes_new_texts_only_and_equals_a_new_index",
    ),
    Place(
        "a row of the cache begins with the row before",
        "cse.data.cache",
        "start = int(self._ends[row - 1]) if row else 0",
        "start = int(self._ends[row - 2]) if row > 1 else 0",
        "test_cache.py::test_cached_rows_equal_rows_in_memory",
    ),
    Place(
        "pieces of a job with other settings are used",
        "cse.io",
        "if records and records[0] == key else []",
        "if records else []",
        "test_journal.py",
    ),
    Place(
        "parts of other settings are used",
        "cse.sharding",
        '        if before != value and name != "model":',
        "        if False:",
        "test_sharding.py::test_unsuitable_output_folders_and_flags_are_refused",
    ),
    Place(
        "a difference decides whatever its p-value",
        "cse.evaluation.significance",
        "[direction(low, high) if p < LEVEL else 0]",
        "[direction(low, high)]",
        "test_verdict.py::test_few_rows_and_few_changes_do_not_decide test_ties.py",
    ),
    Place(
        "a teacher counts masked anchors",
        "cse.losses.teacher",
        'valid = views.valid("anchor") & targets.any(-1)',
        "valid = targets.any(-1)",
        "test_teacher.py::test_masked_anchors_are_not_taught",
    ),
    Place(
        "stored vectors do not depend on the encoder",
        "cse.encoder.stored_vectors",
        '{"version": 2, **made, "texts"',
        '{"version": 2, "texts"',
        "test_teacher.py::test_stored_vectors_are_those_of_the_encoder_and_of_its_prompt",
    ),
    Place(
        "stored vectors do not depend on the prompt",
        "cse.encoder.vector_files",
        '        "prompt": encoder.prompt,\n',
        "",
        "test_teacher.py::test_stored_vectors_are_those_of_the_encoder_and_of_its_prompt",
    ),
    Place(
        "each epoch draws what the first drew",
        "cse.rng",
        "uniform(self.seed, self.epoch, rows,",
        "uniform(self.seed, 0, rows,",
        "test_rng.py::test_each_epoch_draws_numbers_of_its_own_and_the_same_ones_again",
    ),
    Place(
        "a search has no margin for rounding",
        "cse.search.index",
        "errors = (2 * self._error + WIDEST * TIE * self._longest)",
        "errors = 0.0",
        "test_search.py::test_rows_that_rounding_may_order_otherwise_are_found_as_in_float64",
    ),
    Place(
        "rows whose labels taught an encoder judge it",
        "cse.evaluation.apart",
        'ways = {"the labels": each.has_labels}',
        "ways = {}",
        "test_taught.py::test_a_table_that_was_copied_converted_moved_or_grown_is_the_same_rows",
    ),
    Place(
        "a model without its run is judged by labels",
        "cse.evaluation.run",
        "    undecided(uncertain)\n",
        "",
        "test_taught.py::test_labels_of_unknown_texts_never_make_a_model_better",
    ),
    Place(
        "the settings of a search index are not checked",
        "cse.search.storage",
        'io.checked({**settings, "version": VERSION}, Settings, path, f"; {AGAIN}")',
        "pass",
        "test_search.py::test_settings_and_columns_of_another_index_are_refused_in_one_sentence",
    ),
    Place(
        "equal texts of other ranks are negatives",
        "cse.training.step.encode",
        "columns = world.gather(torch.stack(list(inputs.keys.values()), dim=1), len(batch.rows)).unbind(1)",
        "columns = torch.stack(list(inputs.keys.values()), dim=1).unbind(1)",
        "test_distributed.py::test_two_processes_compute_the_gradients_of_a_single_process",
    ),
    Place(
        "a rare label is capped as the others",
        "cse.evaluation.labels",
        "least = np.minimum(counts, FEWEST)",
        "least = np.zeros_like(counts)",
        "test_verdict.py::test_a_cap_keeps_ten_rows_of_each_label_that_has_them_and_the_first_ones_of_each",
    ),
]


# No module of cse, which would be imported before the replacement is possible.
LIBRARIES = (
    "pyarrow.parquet",
    "pytest",
    "scipy.stats",
    "sentence_transformers",
    "transformers.models.bert.modeling_bert",
    "transformers.models.roberta.modeling_roberta",
)


class Run(NamedTuple):
    """A forked process in which pytest runs."""

    place: Place | None
    """None: the product is not broken."""
    pid: int
    output: Path
    began: float


def start(place: Place | None, tests: list[str], folder: Path) -> Run:
    """Starts tests, with the product broken in a place. The forked process ends without a return from this function."""
    began, output = time.monotonic(), Path(tempfile.mkstemp(dir=folder)[1])
    if pid := os.fork():
        return Run(place, pid, output, began)
    os.setsid()
    written = os.open(output, os.O_WRONLY)
    for stream, target in enumerate((os.open(os.devnull, os.O_RDONLY), written, written)):
        os.dup2(target, stream)
    broken = ("", "", "") if place is None else (place.module, place.old, place.new)
    for name, text in zip(("MODULE", "OLD", "NEW"), broken, strict=True):
        os.environ[f"CSE_BROKEN_{name}"] = text
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    exec(HOOK, {})
    os.chdir(HERE)
    fork_commands()
    import pytest

    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=line", "-m", "", *tests])
    sys.stdout.flush()
    os._exit(code)


def fork_commands() -> None:
    """Starts the fork server of ``forked.py`` as a fork of this process, so that it imports no library again."""
    import forked

    sys.path.insert(1, str(HERE))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        forked.serve(theirs.detach())
        sys.exit()
    theirs.close()
    forked.server = lambda: ours


def end(run: Run) -> tuple[bool, str] | None:
    """Returns whether all tests passed, and what pytest printed; None while they run."""
    ended, status = os.waitpid(run.pid, os.WNOHANG)
    if ended:
        return status == 0, run.output.read_text(encoding="utf8", errors="replace")
    if time.monotonic() - run.began < SECONDS:
        return None
    stop(run)
    return False, f"FAILED {run.place.tests if run.place else 'tests'} (no end in {SECONDS} s)"


def stop(run: Run) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.killpg(run.pid, signal.SIGKILL)
        os.waitpid(run.pid, 0)


def noticed_by(printed: str) -> str:
    """Returns the name of the test that failed; "" if none did, or if the tests could not be collected."""
    found = re.search(r"^FAILED (?:.*::)?(\S+)", printed, re.MULTILINE)
    return found[1] if found else ""


def check(place: Place) -> None:
    package, *names = place.module.split(".")
    spec = find_spec(package)  # that of a module would import the package
    assert spec is not None, package
    path = Path(str(spec.origin)).parent.joinpath(*names).with_suffix(".py")
    count = path.read_text(encoding="utf8").count(place.old)
    assert count == 1, f"{place.name}: {path} holds the fragment {count} times"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="only places that match a regular expression")
    parser.add_argument("--jobs", type=int, default=2, help="tests that run at the same time")
    options = parser.parse_args()
    places = [place for place in PLACES if re.search(options.only, place.name)]
    for place in places:
        check(place)
    for library in LIBRARIES:
        importlib.import_module(library)
    assert not any(name.partition(".")[0] == "cse" for name in sys.modules)
    tests = sorted({test for place in places for test in place.tests.split()})
    # The unbroken product first: its tests take longest.
    waiting = [(None, tests), *((place, place.tests.split()) for place in places)]
    running: list[Run] = []
    failures, parent, folder = 0, os.getpid(), Path(tempfile.mkdtemp())
    try:
        (folder / "sitecustomize.py").write_text(HOOK, encoding="utf8")
        while waiting or running:
            while waiting and len(running) < options.jobs:
                running.append(start(*waiting.pop(0), folder))
            for run in [*running]:
                if (found := end(run)) is None:
                    continue
                running.remove(run)
                passed, printed = found
                if run.place is None:
                    failures += not passed
                    print(
                        "" if passed else f"without a breakage, a test fails:\n{printed[-2000:]}\n", end="", flush=True
                    )
                    continue
                test = "" if passed else noticed_by(printed) or f"? {printed[-500:]}"
                failures += not test or test.startswith("?")
                seconds = time.monotonic() - run.began
                print(f"{run.place.name:<62} {test or 'NOT NOTICED':<90} {seconds:6.1f} s", flush=True)
            time.sleep(0.1)
    finally:
        if os.getpid() == parent:  # not in a forked process, which leaves this function by an exception
            for run in running:
                stop(run)
            shutil.rmtree(folder)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
