"""Writes docs/api.md from the docstrings of the package (``make api``).

Needs griffe2md, which reads the code without importing it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import griffe
from griffe2md import render_object_docs  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs" / "api.md"
PROTOCOLS = {
    "augment.base": ("Edit", "Pairing", "Paired", "Block", "View"),
    "features.base": ("FeatureMethod", "EncoderMethod", "Hook"),
    "losses.base": ("RowTerm", "BatchTerm"),
    "views": ("Views", "BatchStep", "RowStep", "Frozen"),
    "context": ("Context",),
    "evaluation.base": ("Evaluation", "Report", "Sample"),
    "models.encoders": ("OtherEncoder",),
    "rng": ("Draws",),
}
FURTHER = ("sentence_transformers", "sklearn")
CONFIG = {
    "docstring_style": "google",
    "heading_level": 3,
    "show_root_full_path": False,
    "show_object_full_path": False,
    "show_signature_annotations": True,
    "separate_signature": True,
    "summary": False,
    "inherited_members": False,
    "filters": ["!^_"],
}
HEAD = """# Python API

The names on this page and the command line are public; everything else may change between versions without notice.
The page lists the names that `from cse import ...` provides, the base classes for your own methods
([extending.md](extending.md)), and the classes and functions for other libraries. `make api` writes this page from the
docstrings.
"""


def page() -> str:
    """Returns the text of docs/api.md."""
    package = griffe.load("cse", search_paths=[ROOT / "python"], docstring_parser="google", resolve_aliases=True)
    parts = [HEAD, "## `cse`\n"]
    names = [each for each in exported(package) if each != "__version__"]
    for name in sorted(names, key=str.lower):
        parts.append(rendered(package[name]))
        if name == "TrainConfig":
            parts.append(settings(package))
    parts.append("## Base classes of methods\n")
    for module, classes in PROTOCOLS.items():
        parts.append(f"From `cse.{module}`:\n")
        parts += [rendered(package[f"{module}.{name}"]) for name in classes]
    parts.append("## Other libraries\n")
    for module in FURTHER:
        found = package[module]
        listed = [name for name in exported(found) if name in found.members]
        if listed:
            parts.append(f"From `cse.{module}`:\n")
            parts += [rendered(found[name]) for name in listed]
    return "\n".join(parts).rstrip() + "\n"


def exported(module: griffe.Object | griffe.Alias) -> list[str]:
    """Returns the names in a module's ``__all__``."""
    return [str(name).strip("'\"") for name in module.exports or ()]


def rendered(found: griffe.Object | griffe.Alias) -> str:
    """Returns the documentation of an object as Markdown, with links inside the page replaced by their text."""
    target = found.final_target if isinstance(found, griffe.Alias) else found
    text = render_object_docs(target, CONFIG)
    text = re.sub(r"\[([^\[\]]+)\]\(#[^)]*\)", r"\1", text)
    text = re.sub(r"</?code>", "`", re.sub(r"(?<!`)``(?!`)", "`", text))
    text = re.sub(r"^(#{4} `)cse\.[\w.]+\.(\w+\.\w+`)", r"\1\2", text, flags=re.MULTILINE)
    return text.strip() + "\n"


def settings(package: griffe.Object | griffe.Alias) -> str:
    """Returns lists of the settings of a run (keyword arguments of ``TrainConfig``), one list per group of settings."""
    lines = ["#### Settings\n"]
    module = package["training.settings.groups"]
    for name in map(str, module["Settings"].bases):
        group = module[name].final_target
        fields = [each for each in group.attributes.values() if each.docstring is not None]
        lines.append(f"{group.docstring.value.splitlines()[0]}:\n")
        for each in fields:
            meaning = " ".join(each.docstring.value.replace("``", "`").split())
            lines.append(f"- **{each.name}**: {meaning}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(
            0 if OUTPUT.read_text(encoding="utf8") == text else "docs/api.md: differs from the docstrings; run make api"
        )
    OUTPUT.write_text(text, encoding="utf8")
