"""Converts Matplotlib's SVG output to SVG elements of an HTML page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from .style import BLUE, GRID, INK, PAPER, SKY, Panel, drawn

__all__ = ["inline_svg"]

SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"
# CSS colours that replace the colours of the plots; the page defines each in a light and a dark version.
OF_PAGE = {INK: "currentColor", GRID: "var(--grid)", PAPER: "var(--paper)", BLUE: "var(--blue)", SKY: "var(--sky)"}


def inline_svg(panel: Panel) -> str:
    """Returns a panel as an SVG element for an HTML page; it refers to no external resources.

    Text stays text, in the font of the page. Identifiers are prefixed with the name of the panel, which makes them
    unique on the page. The colours in ``OF_PAGE`` are replaced by colours of the page. Points get the texts of
    ``Panel.titles``, which browsers show as tooltips.
    """
    root = ElementTree.fromstring(drawn([panel], "svg", text_as_text=True))
    for child in list(root):
        if child.tag == f"{SVG}metadata":
            root.remove(child)
    for element in root.iter():
        _rewrite(element, panel.name)
    for gid, texts in (panel.titles or {}).items():
        _add_titles(root, f"{panel.name}-{gid}", texts)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", panel.title)
    return _without_namespaces(ElementTree.tostring(root, encoding="unicode"))


def _rewrite(element: ElementTree.Element, prefix: str) -> None:
    for name, value in list(element.attrib.items()):
        if name == "id":
            element.set("id", f"{prefix}-{value}")
        elif name == HREF:
            del element.attrib[HREF]
            element.set("href", re.sub("^#", f"#{prefix}-", value))
        elif "url(#" in value:
            element.set(name, value.replace("url(#", f"url(#{prefix}-"))
    style = element.get("style")
    if style is not None:
        for colour, of_page in OF_PAGE.items():
            style = style.replace(colour, of_page)
        if element.tag == f"{SVG}text":  # the font size is kept; the font comes from the page
            style = re.sub(r"'[^']*'(?:, *'[^']*')*(?:, *[a-z-]+)*", "sans-serif", style)
            if "fill" not in style:
                style = f"{style}; fill: currentColor"
        element.set("style", style)


def _add_titles(root: ElementTree.Element, group: str, texts: Sequence[str]) -> None:
    for element in root.iter(f"{SVG}g"):
        if element.get("id") == group:
            points = list(element.iter(f"{SVG}use"))
            if len(points) != len(texts):
                raise ValueError(f"{group}: {len(points)} points, but {len(texts)} titles")
            for point, text in zip(points, texts, strict=True):
                ElementTree.SubElement(point, f"{SVG}title").text = text


def _without_namespaces(svg: str) -> str:
    """Returns SVG without namespace prefixes, which HTML parsers do not understand."""
    prefixes: Mapping[str, str] = dict(re.findall(r'xmlns:(\w+)="([^"]+)"', svg.split(">", 1)[0]))
    for prefix, address in prefixes.items():
        if address == SVG[1:-1]:
            svg = re.sub(rf"(</?){prefix}:", r"\1", svg)
        svg = svg.replace(f' xmlns:{prefix}="{address}"', "")
    return svg
