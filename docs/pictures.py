"""Draws the pictures in docs/pictures from the sample corpus and the loss (``make pictures``).

``--check`` compares the pictures with the files. ``--quickstart FOLDER`` draws search.svg (the terminal), report.webp
and report-dark.webp (the page of ``cse report``) from the folder of a quickstart run instead. The folder must contain
runs/ and the two search indexes, and Chromium must be installed. These pictures depend on the run and are not checked.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
SAMPLE = ROOT / "python" / "cse" / "resources" / "sample.txt"
ROW, EPOCH = 53, 1  # row of the sentence of una.svg in the sample corpus; epoch for which its negative is drawn
QUERY = "an illness that doctors could not cure"
WIDTH = 600
STYLE = """
  .ground { fill: #ffffff } text { font: 15px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #2b303b }
  .title { font-weight: 600 } .small { font-size: 13px; fill: #5d6677 } .axis { stroke: #b9c0cc; fill: none }
  .one { fill: #2f6fde } .two { fill: #c2410c } .new { font-weight: 600; fill: #c2410c }
  .sentence { font-size: 14px } .sentence .new { font-weight: 400 }
  .line { fill: none; stroke-width: 2.5 } .line.one { stroke: #2f6fde } .line.two { stroke: #c2410c }
  .line.grey { stroke: #7d8696; stroke-dasharray: 6 4 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } text { fill: #dde3ec } .small { fill: #98a3b5 } .axis { stroke: #434d5d }
    .one { fill: #6ea0ff } .two, .new { fill: #fb923c }
    .line { fill: none } .line.one { stroke: #6ea0ff } .line.two { stroke: #fb923c }
  }
"""


def svg(height: float, title: str, parts: list[str]) -> str:
    """Returns a picture of ``WIDTH`` by ``height`` pixels; the title is read by screen readers."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">'
    ground = f'<rect class="ground" width="{WIDTH}" height="{height:g}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", ground, *parts, "</svg>\n"])


def words(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """Returns a line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def rule(x: float, y: float, to_x: float, to_y: float) -> str:
    """Returns a thin line."""
    return f'<path class="axis" d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/>'


def una() -> str:
    """Returns a picture of a sentence, the scores and probabilities of its words, and its negative."""
    from cse import TfidfIndex

    index = TfidfIndex.build(SAMPLE)
    text = SAMPLE.read_text(encoding="utf8").split("\n")[ROW]
    negative, replaced = index.replacements(text, row=ROW, epoch=EPOCH)
    explained = index.explain(text, samples=0)
    largest = max(each.score for each in explained)
    parts = [words(16, 24, "word", "title"), words(130, 24, "TF-IDF score", "title")]
    parts += [words(395, 24, "probability", "title", "end"), words(425, 24, "negative", "title")]
    spans = {each.span: each.new for each in replaced}
    at = 0
    y = 24.0
    for each in explained:
        y += 27
        start = text.index(each.word, at)
        at = start + len(each.word)
        new = spans.get((start, at))
        wide = 110 * each.score / largest
        bar = f'<rect class="{"two" if new else "one"}" x="130" y="{y - 12:g}" width="{wide:.1f}" height="14" rx="2"/>'
        parts += [words(16, y, each.word), bar, words(136 + wide, y, f"{each.score:.2f}", "small")]
        parts += [words(395, y, f"{each.p:.2f}", anchor="end"), words(425, y, new or each.word, "new" if new else "")]
    marked, at = "", 0
    for word in replaced:
        start, end = word.new_span
        marked += f'{escape(negative[at:start])}<tspan class="new">{escape(negative[start:end])}</tspan>'
        at = end
    parts += [rule(16, y + 14, WIDTH - 16, y + 14), words(16, y + 38, text, "sentence")]
    parts.append(f'<text x="16" y="{y + 61:g}" class="sentence">{marked}{escape(negative[at:])}</text>')
    return svg(y + 76, f"Words of a sentence with a high TF-IDF score are replaced: {text} becomes {negative}", parts)


def focal() -> str:
    """Returns a picture of the similarities that Focal-InfoNCE divides by the temperature, as functions of s."""
    import torch

    from cse.losses.base import focal
    from cse.losses.options import ContrastiveOptions

    margin = ContrastiveOptions().margin
    s = torch.linspace(-1, 1, 81, dtype=torch.float64)
    curves = {
        "grey": s,
        "one": focal(s[:, None], torch.zeros(81, dtype=torch.int64), 1.0, margin)[:, 0],
        "two": focal(s[:, None], None, 1.0, margin)[:, 0],
    }
    bottom, top = -1.0, 1.3

    def place(x: float, y: float) -> tuple[float, float]:
        return 50 + (x + 1) / 2 * 360, 20 + (top - y) / (top - bottom) * 290

    parts = [rule(*place(-1, 0), *place(1, 0)), rule(*place(0, bottom), *place(0, top))]
    for value in (-1, -0.5, 0.5, 1):
        x, y = place(value, 0)
        parts += [rule(x, y - 4, x, y + 4), words(x, y + 20, f"{value:g}", "small", "middle")]
        x, y = place(0, value)
        parts += [rule(x - 4, y, x + 4, y), words(x - 9, y + 5, f"{value:g}", "small", "end")]
    for kind, values in curves.items():
        points = [place(x, y) for x, y in zip(s.tolist(), values.tolist(), strict=True)]
        parts.append(f'<path class="line {kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>')
    x, y = place(-margin / 2, -(margin**2) / 4)
    parts.append(f'<circle class="two" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
    x, y = place(0.18, -0.5)
    parts += [f'<circle class="two" cx="{x:.1f}" cy="{y:.1f}" r="4"/>']
    parts += [words(x + 12, y + 5, f"lowest at s = -m/2 = {-margin / 2:g}, for margin m = {margin:g}", "small")]
    x = place(1, 0)[0] + 12
    labels = [(1 + margin, "two", "negative: s(s + m)"), (1.0, "one", "positive: s²"), (0.86, "", "standard: s")]
    parts += [words(x, place(0, y)[1] + 5, label, kind) for y, kind, label in labels]
    parts.append(words(x, place(0, 0)[1] + 5, "cosine s", "small"))
    return svg(325, "Similarities before the division by the temperature, as functions of the cosine s", parts)


def focal_weights() -> str:
    """Returns a picture of the factors by which focal logits multiply exp(s / tau), as functions of s."""
    import torch

    from cse.losses.base import focal
    from cse.losses.options import ContrastiveOptions

    margin, tau = ContrastiveOptions().margin, 0.07
    s = torch.linspace(0, 1, 81, dtype=torch.float64)
    none = torch.zeros(81, dtype=torch.int64)
    curves = {
        "one": (focal(s[:, None], none, tau, margin)[:, 0] - s / tau).exp().log10(),
        "two": (focal(s[:, None], None, tau, margin)[:, 0] - s / tau).exp().log10(),
    }
    bottom, top = -2.0, 2.0

    def place(x: float, y: float) -> tuple[float, float]:
        return 60 + x * 350, 20 + (top - y) / (top - bottom) * 220

    parts = [rule(*place(0, 0), *place(1, 0)), rule(*place(0, bottom), *place(0, top))]
    for value in (0.25, 0.5, 0.75, 1):
        x, y = place(value, 0)
        parts += [rule(x, y - 4, x, y + 4), words(x, y + 20, f"{value:g}", "small", "middle")]
    for value in (-2, -1, 0, 1, 2):
        x, y = place(0, value)
        parts += [rule(x - 4, y, x + 4, y), words(x - 9, y + 5, f"{10.0**value:g}", "small", "end")]
    for kind, values in curves.items():
        points = [place(x, y) for x, y in zip(s.tolist(), values.tolist(), strict=True)]
        parts.append(f'<path class="line {kind}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>')
    x, y = place(1 - margin, 0)
    parts += [f'<circle class="two" cx="{x:.1f}" cy="{y:.1f}" r="4"/>']
    parts += [words(x + 4, y - 10, f"1 - m = {1 - margin:g}", "small", "end")]
    x = place(1, 0)[0] + 12
    for at, kind, label in ((curves["two"][-1].item(), "two", "negative"), (0.35, "one", "positive")):
        parts.append(words(x, place(0, at)[1] + 5, label, kind))
    parts.append(words(x, place(0, 0)[1] + 5, "cosine s", "small"))
    about = f"for tau = {tau:g} and margin m = {margin:g}"
    return svg(262, f"Weights that focal logits give to exp(s / tau), as functions of the cosine s, {about}", parts)


def search(folder: Path) -> str:
    """Returns a picture of the terminal in which the searches of ``make quickstart`` are run."""
    from rich.console import Console
    from rich.text import Text

    newest = newest_run(folder)
    console = Console(record=True, width=76, file=io.StringIO(), force_terminal=True)
    for model, shown, index in (("minilm", "minilm", "before"), (str(newest), "runs/trained", "after")):
        console.print(Text(f"$ cse search {shown} corpus.txt --top 5 \\\n    --query '{QUERY}'", "bold"))
        command = [sys.executable, "-m", "cse", "search", model, "-o", str(folder / index), "--query", QUERY]
        done = subprocess.run([*command, "--top", "5"], capture_output=True, text=True, check=True)
        for line in done.stdout.strip().splitlines()[1:]:
            rank, score, _, text = line.split(maxsplit=3)
            cut = text if len(text) <= 60 else text[:59].rstrip() + "…"
            console.print(Text.assemble((f"{rank:>3}  ", "dim"), (score, "green"), f"  {cut}"))
        console.print() if index == "before" else None
    text = console.export_svg(title="search before and after training", unique_id="search")
    return re.sub(r"\s*@font-face \{.*?\}", "", text, flags=re.DOTALL)  # these fonts are on another host


def newest_run(folder: Path) -> Path:
    """Returns the run of a quickstart folder that was written last."""
    return max((folder / "runs").iterdir(), key=lambda each: each.stat().st_mtime)


def report(folder: Path) -> None:
    """Writes pictures of the first part of the page of ``cse report``, in light and dark colours."""
    from PIL import Image

    browser = next(found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name)))
    page = (newest_run(folder) / "report.html").as_uri()
    for name, scheme in (("report", 1), ("report-dark", 0)):
        with tempfile.TemporaryDirectory() as place:
            shot = Path(place) / "shot.png"
            given = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1000,1180"]
            given += [f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={shot}", page]
            subprocess.run([browser, *given], check=True, capture_output=True)
            Image.open(shot).save(FOLDER / f"{name}.webp", quality=80, method=6)


PICTURES: dict[str, Callable[[], str]] = {"una": una, "focal": focal, "focal-weights": focal_weights}


def main() -> int:
    """Draws or checks the pictures; returns the exit code."""
    if "--quickstart" in sys.argv:
        folder = Path(sys.argv[-1]).resolve()
        (FOLDER / "search.svg").write_text(search(folder), encoding="utf8")
        report(folder)
        return 0
    for name, draw in PICTURES.items():
        file, text = FOLDER / f"{name}.svg", draw()
        if "--check" not in sys.argv:
            file.write_text(text, encoding="utf8")
        elif not file.exists() or file.read_text(encoding="utf8") != text:
            print(f"docs/pictures/{name}.svg: differs from its data; run make pictures", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
