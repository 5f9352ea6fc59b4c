"""Files for packages and citations name the version and the dependencies that pyproject.toml declares."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
CONDA = {"torch": "pytorch", "huggingface-hub": "huggingface_hub"}


def test_the_conda_recipe_has_the_dependencies_and_the_version_of_the_project():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf8"))
    split = [re.fullmatch(r"([A-Za-z0-9-]+)(.*)", text) for text in PROJECT["dependencies"]]
    wanted = [f"{CONDA.get(found[1], found[1])} {found[2]}".strip() for found in split]
    assert recipe["requirements"]["run"][1:] == wanted
    assert recipe["context"]["version"] == PROJECT["version"]
    assert recipe["context"]["python_min"] == PROJECT["requires-python"].removeprefix(">=")


def test_the_citation_has_the_version_of_the_project():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf8")
    assert f"\nversion: {PROJECT['version']}\n" in text
