"""The modules of the Rust core import each other without circles."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "rust" / "src"


def imports(path, modules):
    """Returns the modules that a file names with ``crate::``, outside its comments and its unit tests."""
    code = re.sub(r"//.*", "", path.read_text("utf8").partition("#[cfg(test)]")[0])
    # crate::a::{b, c::d} -> crate::a::b, crate::a::c::d
    names = set(re.findall(r"crate::((?:\w+::)*\w+)", code))
    for base, group in re.findall(r"crate::((?:\w+::)*)\{([^{}]*)", code):
        names |= {base + each.strip() for each in group.split(",") if each.strip()}
    found = set()
    for name in names:
        parts = name.split("::")
        longest = next(("/".join(parts[:n]) for n in range(len(parts), 0, -1) if "/".join(parts[:n]) in modules), None)
        found |= {longest} - {None}
    return found


def test_no_module_of_the_core_imports_itself_through_others():
    paths = [path for path in SOURCE.rglob("*.rs") if path.name != "lib.rs"]
    modules = {str(path.relative_to(SOURCE).with_suffix("")).removesuffix("/mod"): path for path in paths}
    assert len(modules) > 40
    graph = {name: imports(path, modules) - {name} for name, path in modules.items()}
    assert graph["una/augment"] >= {"una/word", "index", "text/tokenize"}
    list(TopologicalSorter(graph).static_order())  # raises CycleError
