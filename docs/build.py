"""Builds the documentation site in target/site (``make docs``).

The pages are README.md and those that docs/site.toml lists (guides, reference, measurements), which also has the
settings of the generator, Zensical. The page of commands is made from their declarations and is not stored. Warnings of
Zensical are errors, such as a link to a page or heading that does not exist. It is also an error if a page would load a
script, style, font or picture from another host, or if a guide does not begin with a command.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import griffe
import tomli_w

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "target" / "site-source"
SITE = ROOT / "target" / "site"
MADE = "commands.md"  # the page that is made when the site is built
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc(?:set)?=["']?(?P<source>(?:https?:)?//[^\s"'>]+)
    | <link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|preconnect|preload|modulepreload))[^>]*
      \bhref=["']?(?P<link>(?:https?:)?//[^\s"'>]+)
    | (?:@import\s+["']|url\(["']?)(?P<style>(?:https?:)?//[^\s"')]+)""",
    re.VERBOSE,
)


class PlainTypes(griffe.Extension):
    """Shows a setting annotated with ``Annotated[type, ...]`` with its type alone."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Removes ``Annotated`` from the annotation of an attribute."""
        found = attr.annotation
        if isinstance(found, griffe.ExprSubscript) and str(found.left) == "Annotated":
            attr.annotation = found.slice.elements[0] if isinstance(found.slice, griffe.ExprTuple) else found


def pages() -> list[str]:
    """Returns the names of the pages on the shelves of docs/site.toml, in their order."""
    shelves = tomllib.loads((DOCS / "site.toml").read_text(encoding="utf8"))["shelves"]
    return [page for files in shelves.values() for page in files]


def placed(text: str, place: Path) -> str:
    """Returns a page with its links as they must be on the site; ``place`` is the folder of the page in the project.

    A link to a file that is not part of the site is replaced with its text.
    """

    def link(found: re.Match[str]) -> str:
        mark, words, target, anchor = found.groups(default="")
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        goal = (place / target).resolve()
        if goal.is_relative_to(DOCS):
            return f"{mark}[{words.removeprefix('docs/')}]({goal.relative_to(DOCS)}{anchor})"
        return f"[{words}](index.md{anchor})" if goal == ROOT / "README.md" else words

    blocks = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    blocks[::2] = [LINK.sub(link, each) for each in blocks[::2]]
    return "".join(blocks).replace('srcset="docs/', 'srcset="').replace('src="docs/', 'src="')


def with_docstrings(text: str) -> str:
    """Returns docs/api.md with each list item that names an object replaced by the documentation of the object."""
    return re.sub(r"^- `(cse\.[\w.]+)`$", r"\n::: \1\n", text, flags=re.MULTILINE)


def stage() -> Path:
    """Writes the pages and the configuration of the generator to target/site-source; returns the configuration file."""
    from reference import commands  # here, because Zensical imports this file from elsewhere, for PlainTypes

    shutil.rmtree(SOURCE, ignore_errors=True)
    (SOURCE / "docs").mkdir(parents=True)
    readme = (ROOT / "README.md").read_text(encoding="utf8")
    texts = {"index.md": placed(readme, ROOT)}
    for name in pages():
        texts[name] = commands() if name == MADE else placed((DOCS / name).read_text(encoding="utf8"), DOCS)
    texts["api.md"] = with_docstrings(texts["api.md"])
    for name, text in texts.items():
        (SOURCE / "docs" / name).write_text(text, encoding="utf8")
    for picture in (each for kind in ("svg", "webp", "css") for each in DOCS.glob(f"**/*.{kind}")):
        goal = SOURCE / "docs" / picture.relative_to(DOCS)
        goal.parent.mkdir(exist_ok=True)
        shutil.copyfile(picture, goal)
    settings: dict[str, Any] = tomllib.loads((DOCS / "site.toml").read_text(encoding="utf8"))
    project = settings["project"]
    shelves = [{name: files} for name, files in settings.pop("shelves").items()]
    project |= {"docs_dir": "docs", "site_dir": "site", "nav": [{"Overview": "index.md"}, *shelves]}
    handler = project["plugins"]["mkdocstrings"]["handlers"]["python"]
    handler["paths"] = [str(ROOT / "python")]
    handler["options"]["extensions"] = [{f"{Path(__file__).resolve()}:PlainTypes": {}}]
    file = SOURCE / "zensical.toml"
    file.write_text(tomli_w.dumps(settings), encoding="utf8")
    return file


def first_command(page: str) -> str:
    """Returns the first command of a guide; raises ``ValueError`` if the guide does not begin with a block of them."""
    found = re.match(r"# .+\n\n```sh\n(cse .+?)\s*(?:#.*)?\n", page)
    if not found:
        raise ValueError("a guide must begin with a block of shell commands that work on the sample corpus")
    return found[1]


def loaded_from_elsewhere(text: str) -> list[str]:
    """Returns the scripts, styles, fonts and pictures that an HTML page or style sheet loads from other hosts."""
    return [next(filter(None, found.groups())) for found in LOADED.finditer(text)]


def main() -> int:
    """Builds the site; returns the exit code."""
    for name in tomllib.loads((DOCS / "site.toml").read_text(encoding="utf8"))["shelves"]["Guides"]:
        try:
            first_command((DOCS / name).read_text(encoding="utf8"))
        except ValueError as error:
            print(f"docs/{name}: {error}", file=sys.stderr)
            return 1
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(stage())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
        print(said.partition("Traceback")[0], file=sys.stderr)
        return 1
    for file in sorted([*(SOURCE / "site").rglob("*.html"), *(SOURCE / "site").rglob("*.css")]):
        if found := loaded_from_elsewhere(file.read_text(encoding="utf8")):
            print(f"{file}: loads {', '.join(found)}", file=sys.stderr)
            return 1
    shutil.rmtree(SITE, ignore_errors=True)
    (SOURCE / "site").rename(SITE)
    print(f"the documentation is in {SITE.relative_to(ROOT)}; to read it, run python -m http.server -d target/site")
    return 0


if __name__ == "__main__":
    sys.exit(main())
