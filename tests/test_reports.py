"""Tests of data.json in a run folder, pictures of runs, the report page, and `cse runs`."""

import json
import re
import shutil
import sys
from base64 import b64decode
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from commands import refuses, run_here
from cse import TfidfIndex, train
from cse.evaluation.geometry import unit
from cse.losses.base import focal
from cse.reports import curves
from cse.reports.held_out import compare_models
from cse.reports.page import report_page
from cse.reports.runs import differing, find_runs, read_run
from cse.reports.style import figure, require_extra, styled
from test_cli import run_and_list_imports
from test_retrieval import command
from tiny import config_of_eight_steps

VOID = {"meta", "link", "br", "hr", "img", "input", "col", "wbr", "area", "base", "embed", "source", "track"}


# A sentence that breaks HTML, plots and shell commands if it is not escaped.
HOSTILE = """</style><script>alert('{0}')</script> costs $5_{{{0}}}$ & "{1}" <img src=http://x.test/>\n"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def corpus(folder, sample_rows):
    path = folder / "corpus.txt"
    path.write_text("".join(HOSTILE.format(len(row), row) for row in sample_rows[:600]), encoding="utf8")
    TfidfIndex.build(path).save(folder / "tfidf")
    return path


@pytest.fixture(scope="module")
def trained(folder, corpus, tiny_bert):
    """A function that trains a model and returns the run folder; PyTorch's number of threads is restored."""
    threads = torch.get_num_threads()
    both = {"eval_every": 2, "log_every": 3, "output": folder / "runs"}
    yield lambda **values: train(config_of_eight_steps(corpus, tiny_bert, **both, **values)).folder
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def run(trained):
    # Mean pooling, because with random weights all [CLS] vectors are nearly equal, so ranks would be noise.
    values = {"name": "focal", "loss": "focal", "una": {"every": 1}, "negatives": ("una",), "pooler": "avg"}
    return trained(max_steps=6, **values)


@pytest.fixture(scope="module")
def dev_run(trained, folder, sample_rows):
    """A run with a development set, whose name begins with _: by default, matplotlib hides such labels."""
    both = zip(sample_rows[700:760], sample_rows[760:820], strict=True)
    lines = [f"{number % 6}\t{one}\t{two}\n" for number, (one, two) in enumerate(both)]
    (folder / "dev.tsv").write_text("".join(lines), encoding="utf8")
    return trained(name="_dev", loss="mixed", dev=(folder / "dev.tsv",), max_steps=4)


@pytest.fixture(scope="module")
def material(run, tiny_bert):
    return curves.Material(read_run(run), str(tiny_bert), device="cpu")


@pytest.fixture(scope="module")
def dev_material(dev_run, tiny_bert):
    return curves.Material(read_run(dev_run), str(tiny_bert), device="cpu")


def page_of(folder):
    return report_page(curves.Material(read_run(folder), encode=False))


def records_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf8").splitlines()]


def write_log(folder, records):
    (folder / "log.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf8")


def copy_of(run, folder, *left_out):
    shutil.copytree(run, folder / "copy", ignore=shutil.ignore_patterns("checkpoints", "last", *left_out))
    return folder / "copy"


class Parsed(HTMLParser):
    """Collects the elements, the text and the marked text of a page; fails if an element is not closed properly."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.text, self.marked = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"{tag}: an attribute occurs twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "mark":
            self.marked.append("")

    def handle_endtag(self, tag):
        assert tag not in VOID
        assert self.open, f"</{tag}> without a start tag"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text.append(data)
        if "mark" in self.open:
            self.marked[-1] += data


def drawn_axes(panel):
    """Draws a panel and returns its axes."""
    with styled():
        return figure([panel]).axes[0]


def test_data_json_holds_facts_examples_and_held_out_sentences(run, corpus):
    stored = json.loads((run / "data.json").read_text(encoding="utf8"))
    rows = corpus.read_text(encoding="utf8").splitlines()
    assert len(stored["held_out"]) == len(stored["synthetic"]) == 30  # 5 % of 600
    assert set(stored["held_out"]) <= set(rows)
    assert stored["facts"]["loss"].startswith("nt-xent with focal logits")
    assert [example["method"] for example in stored["examples"]] == ["una"] * 3
    for example in stored["examples"]:
        assert example["text"] in rows
        assert example["spans"]
        outside = []
        for name, spans in (("text", "spans"), ("augmented", "augmented_spans")):
            text = [*example[name]]
            for start, end in reversed(example[spans]):
                text[start:end] = "\0"
            outside.append("".join(text))
        assert outside[0] == outside[1]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["material", "dev_material"])
def test_the_page_is_well_formed_and_loads_no_other_file(which, request):
    html = report_page(request.getfixturevalue(which)).html
    parsed = Parsed(html)
    names = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for tag, attributes in parsed.elements:
        assert tag not in {"script", "iframe", "object", "embed", "b"}
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in {"srcset", "data", "poster", "xlink:href", "action"}
            assert name != "src" or value.startswith("data:image/svg+xml;base64,")
            assert name != "href" or value == "data:," or (value[0] == "#" and value[1:] in names)
            assert all(
                target[0] == "#" and target[1:] in names for target in re.findall(r"url\(([^)]*)\)", value or "")
            )
    styles = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    assert "url(" not in styles
    assert "@import" not in styles
    assert "prefers-color-scheme: dark" in styles


def test_the_page_shows_texts_unchanged_what_was_trained_and_how_to_load_it(material, run):
    page = report_page(material)
    parsed = Parsed(page.html)
    text = "".join(parsed.text)
    marked = []
    for each in json.loads((run / "data.json").read_text(encoding="utf8"))["examples"]:
        for form, spans in (("text", "spans"), ("augmented", "augmented_spans")):
            assert each[form] in text
            marked += [each[form][start:end] for start, end in each[spans]]
    assert parsed.marked == marked
    assert page.left_out == {}
    for phrase in (
        "Did it help?",
        "not judged, there are no labels.",
        "nt-xent with focal logits",
        "600 rows: 570 to train on",
        f"--tfidf {run.parents[1] / 'tfidf'}",
        f'SentenceTransformer("{run / "best"}").encode(["A sentence.", "Another one."])',
    ):
        assert phrase in text
    images = [attributes["src"] for tag, attributes in parsed.elements if tag == "img"]
    assert len(images) == 10  # loss, rate, score, cosines, alignment, 2 focal, 3 pairs
    for image in images:
        assert ElementTree.fromstring(b64decode(image.partition(",")[2])).tag.endswith("svg")
    assert re.search(r"steps? in \d+ (s|min \d+ s), loss", page.html)


def test_no_cell_is_empty_and_no_picture_shows_a_constant(run, tmp_path):
    stored = json.loads((run / "result.json").read_text(encoding="utf8"))
    measure = {"task": "held-out pairs", "examples": 1, "unit": "pairs", "a": None, "b": 1.0, "mean": None}
    verdict = {"word": "cannot tell", "why": "", "measures": [{**measure, "word": "cannot tell"}], "notes": []}
    copy = copy_of(run, tmp_path)
    stored |= {"verdict": verdict, "sts": {"STS12": 50.0, "Avg.": None}}
    (copy / "result.json").write_text(json.dumps(stored), encoding="utf8")
    records = records_of(copy)
    for record in records:
        record |= {"lr": 1e-5, "mrr": 1.0} if "event" not in record else {"mrr": 1.0}
    write_log(copy, records)
    html = page_of(copy).html
    assert all(content.strip() for _, content in re.findall(r"<(td|th|dd|dt)[^>]*>(.*?)</\1>", html, re.DOTALL))
    titles = [attributes["alt"] for tag, attributes in Parsed(html).elements if tag == "img"]
    drawn = ["Loss", "Cosines during training", "Alignment and uniformity"]
    assert titles == [*drawn, "Focal re-scaling", "Weights of negatives"]
    write_log(copy, records[:2])
    left_out = page_of(copy).left_out
    assert set(left_out) == {"training", "cosines", "alignment", "pairs"}
    write_log(copy, [each | ({"mrr": None} if "event" in each else {"loss": None, "lr": None}) for each in records])
    for found in (left_out, page_of(copy).left_out):
        assert "no value in its log changes over the steps" in found["training"]


def test_nearest_neighbours_equal_brute_force(material):
    compared = material.compared
    listed, changed, total = compared.neighbours(count=100)
    texts = compared.held_out.sentences
    expected = []
    for text in texts:
        found = []
        for side in (compared.before, compared.after):
            points = {each: unit(side[each][None])[0] for each in texts}
            found.append(max((float(points[text] @ points[each]), each) for each in texts if each != text))
        if found[0][1] != found[1][1]:
            expected.append((text, found))
    assert total == 30
    assert changed == len(listed) == len(expected) > 0
    for each, (text, ((old_cosine, old), (new_cosine, new))) in zip(listed, expected, strict=True):
        assert (each["sentence"], each["before"], each["after"]) == (text, old, new)
        assert each["cosines"] == pytest.approx((old_cosine, new_cosine), abs=1e-6)


def test_histograms_count_each_pair_in_the_right_group(material, dev_material):
    groups = material.compared.cosines()
    same, *others = groups
    assert same == "halves of the same sentence"
    assert others == ["sentence and its synthetic negative", "halves of different sentences"]
    assert [len(before) for before, _ in groups.values()] == [30, 30, 30]
    first, second = (" ".join(part) for part in np.array_split(material.compared.held_out.sentences[0].split(), 2))
    vectors = material.compared.after
    cosine = float(unit(vectors[first][None])[0] @ unit(vectors[second][None])[0])
    assert groups[same][1][0] == pytest.approx(cosine, abs=1e-6)
    stored = json.loads((dev_material.run.folder / "data.json").read_text(encoding="utf8"))["dev"]
    ((_, pairs),) = stored.items()  # those by which best/ was selected
    gold = np.array(pairs["gold"])
    assert set(gold) == {0, 1, 2, 3, 4, 5}  # whose thirds are 0-1, 2-3 and 4-5
    thirds = [len(before) for before, _ in dev_material.compared.cosines().values()]
    assert thirds == [int((gold >= 4).sum()), int(((gold == 2) | (gold == 3)).sum()), int((gold <= 1).sum())]
    *_, spectrum = (drawn_axes(panel) for panel in curves.pair_panels(material.compared))
    for line, side in zip(spectrum.lines, (material.compared.before, vectors), strict=True):
        values = np.linalg.svd(unit(np.stack(list(side.values()))), compute_uv=False)
        assert line.get_ydata() == pytest.approx(values / values[0])


def test_several_runs_are_drawn_in_one_plot_if_they_were_measured_on_the_same_texts(run, dev_run, tmp_path):
    copy = copy_of(run, tmp_path)
    done = command("report", run, copy, "--pictures", tmp_path / "plots")
    assert done.stdout.splitlines() == [str(tmp_path / "plots" / "alignment.png")]
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["alignment.png"]
    write_log(copy_of(run, tmp_path / "short"), records_of(copy)[:1])
    for given, message in (
        ((run, copy), "with several runs, only --pictures DIR and --json apply"),
        ((run, copy, "--pictures", tmp_path, "--no-encode"), "only --pictures DIR and --json apply"),
        ((run, dev_run, "--pictures", tmp_path / "none"), "was measured on other texts than in"),
        ((run, tmp_path / "short" / "copy", "--pictures", tmp_path / "none"), "has fewer than two evaluations"),
    ):
        assert message in str(command("report", *given).exception)
    assert not (tmp_path / "none").exists()


def test_long_curves_are_averaged_over_blocks_of_steps():
    steps, values = np.arange(1.0, 1004.0), np.random.default_rng(0).random(1003)
    x, y, size = curves.thinned(steps, values, points=100)
    assert size == 11
    assert len(x) == 92
    for number in range(92):
        part = slice(number * 11, number * 11 + 11)
        assert x[number] == pytest.approx(steps[part].mean())
        assert y[number] == pytest.approx(values[part].mean())
    assert curves.thinned(steps[:100], values[:100], points=100)[2] == 1


def test_focal_curves_equal_the_formula_and_weights_are_derivatives_of_the_loss(run):
    stored = read_run(run)
    tau = stored.settings["temperature"]
    shown, weights = (
        {line.get_label(): line for line in drawn_axes(each).lines} for each in curves.focal_panels(stored)
    )
    for label, margin in (("positives (m = 0)", 0.0), ("m = 0.1", 0.1), ("m = 0.3, this run", 0.3)):
        s = shown[label].get_xdata()
        assert shown[label].get_ydata() == pytest.approx(s * (s + margin))
    for name, margin in (("m = 0.3", 0.3), ("m = 0", 0.0), ("not re-scaled", None)):
        s = torch.tensor([0.5, 0.7, 0.1, -0.05], dtype=torch.float64, requires_grad=True)
        logits = s / tau if margin is None else focal(s[None], None, tau, margin)[0]
        # minus the positive's logit
        torch.logsumexp(torch.cat([torch.tensor([1 / tau]).double(), logits]), 0).backward()
        expected = (s.grad / s.grad[0]).tolist()
        x, y = weights[name].get_data()
        for cosine, weight in zip(s.tolist(), expected, strict=True):
            place = int(np.abs(x - cosine).argmin())
            assert np.isnan(y[place]) if weight <= 0 else y[place] == pytest.approx(weight, rel=1e-6)


@pytest.mark.parametrize(("which", "left_out"), [("run", ()), ("dev_run", ("focal",)), ("run", ("pairs",))])
def test_report_writes_its_plots_as_files_and_prints_the_path_of_the_page_last(request, tmp_path, which, left_out):
    page, pictures, model = tmp_path / "new" / "page.html", tmp_path / "pictures", request.getfixturevalue("tiny_bert")
    flags = ["--no-encode"] if "pairs" in left_out else ["--device", "cpu", "--before", model]
    done = command("report", request.getfixturevalue(which), "-o", page, "--pictures", pictures, *flags)
    assert done.stdout.splitlines()[-1] == str(page)
    kinds = {"training", "cosines", "alignment", "focal", "pairs"} - {*left_out}
    assert {path.name for path in pictures.iterdir()} == {f"{kind}.png" for kind in kinds}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures.iterdir())
    text = "".join(Parsed(page.read_text(encoding="utf8")).text)
    assert text.count("Left out") == ("--no-encode" in text) == ("--no-encode" in flags)


def test_a_page_can_be_made_for_an_unfinished_run(run, tmp_path):
    copy = copy_of(run, tmp_path, "result.json")
    write_log(copy, records_of(copy)[:-3])
    with open(copy / "log.jsonl", "a", encoding="utf8") as log:
        log.write('{"step": 5, "lo')
    assert read_run(copy).status == "not finished, log up to step 4"
    assert "the run has not finished: its log ends at step 4." in page_of(copy).html
    # A result.json that was written before the run was extended is ignored.
    shutil.copy(run / "result.json", copy / "result.json")
    with open(copy / "log.jsonl", "a", encoding="utf8") as log:
        log.write('\n{"step": 9, "loss": 1.0, "lr": 1e-3}\n')
    assert read_run(copy).result is None


def test_sections_are_left_out_if_texts_are_missing_or_models_cannot_be_compared(run, tiny_bert, tmp_path):
    copy = copy_of(run, tmp_path, "best", "data.json")
    page = report_page(curves.Material(read_run(copy), device="cpu"))
    assert set(page.left_out) == {"positives and negatives", "pairs"}
    assert "".join(Parsed(page.html).text).count("no data.json") == 2
    shutil.copy(run / "data.json", copy / "data.json")
    assert "no encoder there" in report_page(curves.Material(read_run(copy), str(tiny_bert))).left_out["pairs"]
    config = (copy / "config.toml").read_text(encoding="utf8")
    (copy / "config.toml").write_text(config.replace("encoder_methods = []", 'encoder_methods = ["prompt"]'))
    refuses("--encoder-method prompt", compare_models, read_run(copy), str(tiny_bert))


def test_a_page_shows_no_file_outside_the_run_that_its_configuration_names(dev_run, tiny_bert, tmp_path):
    secret, opened = tmp_path / "secret.tsv", []
    secret.write_text("1\tprivate words\tof nobody else\n2\tmore private words\tof nobody\n", encoding="utf8")
    copy = copy_of(dev_run, tmp_path)
    config = (copy / "config.toml").read_text(encoding="utf8").replace(str(dev_run.parents[1] / "dev.tsv"), str(secret))
    assert str(secret) in config
    (copy / "config.toml").write_text(config, encoding="utf8")
    sys.addaudithook(lambda event, found: opened.append(str(found[0])) if event == "open" else None)
    page = report_page(curves.Material(read_run(copy)))
    assert page.left_out["pairs"].endswith(f"--before {tiny_bert}")
    shown = report_page(curves.Material(read_run(copy), str(tiny_bert), device="cpu"))
    assert "pairs" not in shown.left_out
    assert str(secret) not in opened
    assert "private" not in "".join(Parsed(shown.html).text).replace(str(secret), "")


def test_runs_are_listed_with_the_settings_that_differ(cse_here, run, dev_run, folder):
    runs = find_runs(folder / "runs")
    assert [each.name for each in runs] == ["_dev", "focal"]
    names = differing(runs)
    assert {"loss", "max_steps", "negatives", "mixed_negatives", "una.every"} <= set(names)
    assert not {"name", "output", "lr", "seed", "given"} & set(names)
    found = json.loads(cse_here("runs", folder / "runs", "--json").stdout)
    assert found["differing"] == names
    first, second = found["runs"]
    assert (first["metric"], second["metric"]) == ("spearman", "mrr")
    result = json.loads((run / "result.json").read_text(encoding="utf8"))
    assert second["best"] == {"step": result["best_step"], **result["best"]}
    assert second["before"]["mrr"] == result["before"]["mrr"]
    assert second["settings"]["una.every"] == 1
    table = cse_here("runs", folder / "runs").stdout
    assert f"{result['best']['mrr']:.4f}" in table
    assert "max_steps" in table
    assert "│ focal" in table
    one = cse_here("runs", run)
    assert ": 1 run" in " ".join(one.stdout.split())
    assert "loss" not in one.stdout  # with one run, no setting differs
    assert "torch" not in run_and_list_imports("runs", run)[1]


def test_a_folder_that_is_not_a_run_is_refused_with_a_hint(run, dev_run, folder, tmp_path):
    def refused(name, place, *phrases):
        message = str(command(name, place).exception)
        assert all(phrase in message for phrase in phrases), message

    refused("report", tmp_path / "none", "no such folder", "cse runs")
    refused("report", tmp_path, "config.toml is missing")
    refused("report", run / "best", "is inside the folder of a run", str(run))
    refused("report", folder / "runs", "is a folder of 2 runs", "name one")
    copy = copy_of(run, tmp_path, "log.jsonl")
    refused("report", copy, "has no log (log.jsonl)", "cse train --config")
    (copy / "log.jsonl").write_text('{"st', encoding="utf8")
    refused("report", copy, "has no log (log.jsonl)")
    assert command("runs", copy).exit_code == 0  # the run is still listed
    (copy / "config.toml").write_text("loss = ", encoding="utf8")
    refused("report", copy, "is not valid TOML")
    refused("runs", tmp_path / "none", "no such folder")
    (tmp_path / "empty").mkdir()
    refused("runs", tmp_path / "empty", "no runs there")


def test_the_error_for_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refuses(r"cse report needs matplotlib.*, .* run pip install 'cse\[plots\]'", require_extra, "cse report")


def test_the_page_shows_the_verdict_of_the_run_first(run, tmp_path):
    stored = json.loads((run / "result.json").read_text(encoding="utf8"))
    measure = {"task": "label of 10 nearest neighbours", "examples": 1234, "unit": "rows", "a": 60.0, "b": 61.5}
    measure |= {"mean": 1.5, "low": 0.25, "high": 2.75, "p": 0.01, "visible": 1.25, "word": "better"}
    verdict = {"word": "better", "why": f"by {measure['task']}", "measures": [measure], "notes": ["a note"]}
    copy = copy_of(run, tmp_path)
    (copy / "result.json").write_text(json.dumps({**stored, "verdict": verdict}), encoding="utf8")
    page = page_of(copy)
    text = "".join(Parsed(page.html).text)
    first = "60.00 before, 61.50 after: +1.50 [+0.25, +2.75], 1,234 rows."
    assert text.split("copy", 2)[2].split("\n")[1:3] == ["better, by label of 10 nearest neighbours.", first]
    for phrase in ("1,234 rows", "[+0.25, +2.75]", "A note."):
        assert text.rindex("Did it help?") < text.rindex(phrase) < text.rindex("Model and data")
    before, after = stored["before"]["mrr"], stored["best"]["mrr"]
    changes = {"before": before, "after": after, "difference": after - before}
    assert page.changes[0] == {"name": "Mean reciprocal rank of the other half", **changes}


def test_a_picture_that_cannot_be_written_ends_the_command_with_its_name(run, tmp_path):
    (tmp_path / "pictures" / "cosines.png").mkdir(parents=True)
    flags = ("-o", tmp_path / "page.html", "--pictures", tmp_path / "pictures", "--no-encode")
    done = run_here("report", run, *flags)
    assert done.returncode == 2
    assert "cosines.png: is a directory" in "".join(done.stderr.split("\n"))
