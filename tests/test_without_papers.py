"""The package cse works without cse_papers, whose modules and entry points are hidden here."""

import json
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cse import InputError
from cse.augment import AUGMENTATIONS

# ``sitecustomize`` is imported at the start of every Python process, so also in those that the tests start.
HIDDEN = """
import sys
from importlib import metadata
from importlib.abc import MetaPathFinder


class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "cse_papers":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def entry_points(**only):
    found = installed(**only)
    return metadata.EntryPoints(each for each in found if "cse_papers" not in each.value) if only else found


sys.meta_path.insert(0, Hidden())
installed, metadata.entry_points = metadata.entry_points, entry_points
"""


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """A function that runs Python in a process in which cse_papers is hidden."""
    folder = tmp_path_factory.mktemp("hidden")
    (folder / "sitecustomize.py").write_text(HIDDEN, encoding="utf8")
    (folder / "x.txt").write_text("one row\nanother row\n" * 9, encoding="utf8")
    paths = ":".join([str(folder), *filter(None, sys.path)])
    env = {"PYTHONPATH": paths, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=folder)

    return run


def test_commands_that_need_no_paper_run_without_them(hidden):
    for arguments in (["--help"], ["train", "--help"], ["methods"], ["methods", "una"]):
        done = hidden("-m", "cse", *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert "Traceback" not in done.stdout + done.stderr
    listed = json.loads(hidden("-m", "cse", "methods", "--json").stdout)["methods"]
    names = {method["name"] for method in listed}
    assert {"una", "spans", "lora", "keep-similarities", "sts"} <= names
    assert not names & {"aeda", "one-of", "dclr", "prompt", "pca", "scd", "transfer"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "x.txt", "--model", "minilm", "--positive", "aeda"], "--positive: 'aeda' is unknown"),
        (["train", "x.txt", "--preset", "scd-bert-base"], "--preset: 'scd-bert-base' is unknown"),
        (["reproduce"], "No such command 'reproduce'"),
    ],
)
def test_a_method_that_is_not_installed_is_refused_in_one_sentence(hidden, arguments, message):
    done = hidden("-m", "cse", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_methods_of_a_declared_package_that_is_missing_are_not_listed_and_refused(monkeypatch):
    point = EntryPoint("odd", "no_such_package:Odd", AUGMENTATIONS.group)
    monkeypatch.setattr("cse.registry.declared", lambda group: [point])
    assert "odd" in AUGMENTATIONS.names()
    assert "odd" not in AUGMENTATIONS.installed()
    with pytest.raises(InputError, match=r"odd: no_such_package:Odd cannot be imported .*; install its package again"):
        AUGMENTATIONS.get("odd")


@pytest.mark.slow
def test_tests_of_methods_and_losses_pass_without_the_papers(hidden):
    tests = Path(__file__).parent
    files = [tests / "test_extensions.py", tests / "test_rng.py", tests / "test_losses.py"]
    done = hidden("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not legal and not derivatives", *files)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_wheel_contains_every_package_and_what_its_entry_points_name():
    root = Path(__file__).parents[1]
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))
    packages = {path.parent.name for path in (root / "python").glob("*/__init__.py")}
    assert packages == set(settings["tool"]["maturin"]["python-packages"])
    for group, points in settings["project"]["entry-points"].items():
        for name, target in points.items():
            module, _, attribute = target.partition(":")
            found = import_module(module)
            assert not attribute or hasattr(found, attribute), (group, name)
