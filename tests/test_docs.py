"""Runs the code blocks in README.md and docs/, with tiny models and small files in place of those named there."""

import importlib
import inspect
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from itertools import cycle, pairwise, product
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

import cse as package
from cse import TfidfIndex
from cse.augment import AUGMENTATIONS
from cse.cli import cli
from cse.evaluation.verdict import lines
from cse.training.loggers import LOGGERS
from cse.training.settings.declared import GROUPS
from prose import flat, selected, tables_in, unmarked
from test_cli import ran
from test_retrieval import write
from tiny import make_t5

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
if not (ROOT / "docs").is_dir():
    pytest.skip("there is no docs/ folder", allow_module_level=True)

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Commands with these phrases are parsed but not run, because they need a cluster, several processes, a published
# checkpoint, full data sets, or a user who types queries or judges texts.
PARSED = ("--engine ray", "torchrun", "make ", "--preset simcse-sup-bert-base", "asks for queries", "una-table1 --data",
          "--judged", "--import my_loss.py", "--corpus enwiki1m.txt.gz", "--pool", "tolabel.csv",
          "cse predict", "intfloat/", "runs/tuned")  # fmt: skip
GENERATORS = ("tuner007/pegasus_paraphrase", "doc2query/msmarco-t5-base-v1")
GENERATORS += ("Helsinki-NLP/opus-mt-en-fr", "Helsinki-NLP/opus-mt-fr-en")
# Flags that are added to a command so that it ends soon.
SHORT = {"train": ["--max-steps", "2", "--batch-size", "8", "--name", "NAME"], "generate": ["--max-new-tokens", "4"],
         "draw": ["-n", "10"]}  # fmt: skip


def blocks(*languages):
    found = []
    for page in PAGES:
        for number, (language, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf8"))):
            assert language in ("sh", "bash", "python", "toml", "text"), (page, language)
            # tests/test_tools.py runs the Python code of docs/with.md, which needs packages of its own.
            if language in languages and (page.name, language) != ("with.md", "python"):
                found.append(pytest.param(text, id=f"{page.name}-{number}"))
    return found


@pytest.fixture
def build(monkeypatch):
    """The module docs/build.py."""
    pytest.importorskip("zensical", reason="zensical is not installed")
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("build")


@pytest.fixture(scope="session")
def small_files(tmp_path_factory, sample_rows):
    """A folder with the files that the documentation names."""
    folder = tmp_path_factory.mktemp("files")
    rows = sample_rows[:60]
    quoted = [row.replace('"', "'") for row in rows]
    rated = [row for row in sample_rows[:400] if '"' not in row]
    documents = [(f"d{n}", "", row) for n, row in enumerate(rows)]
    queries = {f"q{n}": row[:40] for n, row in enumerate(rows[:9])}
    for place in ("DIR", "data/retrieval"):
        write(folder / place, documents, queries, {f"q{n}": {f"d{n}": 1} for n in range(9)})
    shutil.copy(folder / "DIR" / "corpus.jsonl", folder)
    contents = {
        **dict.fromkeys(("corpus.txt", "wiki.txt", "sample"), rows),
        **dict.fromkeys(("sentences.txt", "wiki1m.txt", "queries.txt"), rows[:6]),  # few, because generation is slow
        "docs.csv": ["name,text", *(f'd{n},"{row}"' for n, row in enumerate(quoted))],
        "pairs.csv": ["first,second", *(f'"{a}","{b}"' for a, b in pairwise(quoted))],
        "tweets.csv": ["text,airline_sentiment", *map('"{}",{}'.format, rated, cycle(("positive", "negative")))],
    }
    scored = [f"{n % 6}\t{a}\t{b}" for n, (a, b) in enumerate(pairwise(rows))]
    for place in ("DIR", "data"):
        contents |= {f"{place}/{name}": scored for name in ("stsb.dev.tsv", "sts12.test.tsv")}
    for name, written in contents.items():
        (folder / name).write_text("".join(f"{line}\n" for line in written), encoding="utf8")
    (folder / "benches").symlink_to(ROOT / "benches")
    (folder / "shards").mkdir()
    for number in range(2):
        text = "".join(f"{row}\n" for row in rows[30 * number : 30 * number + 30])
        with pa.CompressedOutputStream(str(folder / "shards" / f"{number}.txt.zst"), "zstd") as file:
            file.write(text.encode())
    return folder


@pytest.fixture(scope="session")
def replaced(tmp_path_factory, tiny_bert):
    """A function that replaces model names in a text with paths of a tiny BERT and a tiny T5."""
    t5 = make_t5(tmp_path_factory.mktemp("t5"), tiny_bert)
    names = ("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-mpnet-base-v2", "minilm", "TINY")
    stands = dict.fromkeys(names, tiny_bert)
    stands |= dict.fromkeys(GENERATORS, t5)
    names = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, stands))})(?![\w-])")
    return lambda text: names.sub(lambda match: str(stands[match[1]]), text)


@pytest.fixture(scope="session")
def trained_files(small_files, tmp_path_factory, cse, replaced):
    """A folder with the small files, an index of the corpus, and a run of two steps."""
    folder = Path(shutil.copytree(small_files, tmp_path_factory.mktemp("trained"), symlinks=True, dirs_exist_ok=True))
    ran(cse("build-tfidf", "corpus.txt", cwd=folder))
    flags = ("--model", replaced("minilm"), *SHORT["train"], "--save-every", "1")
    ran(cse("train", "corpus.txt", *flags, cwd=folder))
    return folder


@pytest.fixture
def place(request, text, tmp_path):
    """A folder with the small files, and with an index and a run if the block needs them."""
    needed = "trained_files" if "runs/" in text or "wiki" in text else "small_files"
    files = request.getfixturevalue(needed)
    return Path(shutil.copytree(files, tmp_path, symlinks=True, dirs_exist_ok=True))


def short(given, replaced):
    """Returns the flags of ``SHORT`` that a command needs, and the tiny model for a training without a model."""
    flags = [*SHORT.get(given[0], [])]
    if "--name" in given:
        flags = flags[: flags.index("--name")]
    return [*flags, *(["--model", replaced("TINY")] if given[0] == "train" and "--model" not in given else [])]


@pytest.mark.slow
@pytest.mark.parametrize("text", blocks("sh", "bash"))
def test_shell_commands_in_the_documentation_run(cse, place, replaced, text):
    done = set()
    for line in text.splitlines():
        arguments = shlex.split(line, comments=True)
        if not arguments:
            continue
        if arguments[0] == "make":
            assert re.search(rf"^{arguments[1]}:", (ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE)
            continue
        if arguments[0] in ("pip", "uvx"):
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
            named = re.search(r"\[(.*?)\]", " ".join(arguments))[1].split(",")
            assert set(named) <= set(extras["optional-dependencies"])
            continue
        if arguments[0] == "torchrun":
            arguments = arguments[arguments.index("cse") :]
        assert arguments[0] == "cse", arguments
        name, command, rest = cli.resolve_command(cli.make_context("cse", [], resilient_parsing=True), arguments[1:])
        command.make_context(name, list(rest))  # parses the arguments
        if any(phrase in line for phrase in PARSED):
            continue
        given = [replaced(each).replace("<name>", "NAME").replace("128", "16") for each in arguments[1:]]
        given = [re.sub(r"^runs/(A|B|adapted|first)(?=$|/)", "runs/NAME", each) for each in given]
        extra = [] if "--resume" in given else short(given, replaced)
        if "--teacher" in given:
            extra += ["--pooler", "avg"]  # the head of the tiny model is not saved
        if name == "mine" and "hybrid" in given:
            extra = ["--rows", "40"]
        if name == "eval" or (name == "compare" and "retrieval" not in given):
            extra += ["--allow-partial"]
        if name == "reproduce" and "--smoke" in given:
            extra += ["--row", "UNA, bert-base-uncased"]
        if name == "search" and "--query" not in given and "--queries" not in given:
            continue  # the command would ask for queries
        if name == "train" and (place / "runs/NAME").exists() and "--name" in extra:
            extra[extra.index("--name") + 1] = f"NAME{len(done)}"
        ran(cse(*given, *extra, cwd=place))
        done.add(" ".join(arguments))


GUIDES = tomllib.loads((ROOT / "docs" / "site.toml").read_text(encoding="utf8"))["shelves"]["Guides"]


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES)
def test_every_guide_begins_with_a_command_that_works_in_an_empty_folder(
    build, cse, replaced, small_files, tmp_path, name
):
    """With few rows in place of the sample, which test_inputs.py finds by its name in an empty folder."""
    command = build.first_command((ROOT / "docs" / name).read_text(encoding="utf8"))
    _, *given = (str(small_files / "sample") if each == "sample" else replaced(each) for each in shlex.split(command))
    ran(cse(*given, *short(given, replaced), cwd=tmp_path))


def test_the_notebook_runs(replaced, tmp_path, monkeypatch):
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "docs" / "corpus-to-plot.ipynb").read_text(encoding="utf8"))
    assert notebook["nbformat"] == 4
    names = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            code = replaced("".join(cell["source"])).replace("max_steps=30", "max_steps=2, batch_size=8")
            exec(compile(code.replace("[:400]", "[:60]"), cell["id"], "exec"), names)
    assert names["after"].shape == (60, names["before"].shape[1])
    assert not (names["before"] == names["after"]).all()
    assert [len(axes.collections[0].get_offsets()) for axes in names["panels"]] == [60, 60]


@pytest.mark.slow
@pytest.mark.parametrize("text", blocks("python"))
def test_python_code_in_the_documentation_runs(cse, place, replaced, text, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr("cse.registry.IMPORTED", {})
    rows = (place / "corpus.txt").read_text(encoding="utf8").splitlines()
    names = {"np": np, "texts": rows, "ids": [f"d{n}" for n in range(len(rows))]}
    if "runs/NAME" in text:
        text = text.replace('"data/stsb.dev.tsv")', '"data/stsb.dev.tsv", allow_partial=True)')
    if "best/onnx" in text:
        ran(cse("export", "runs/NAME", "--onnx", cwd=place))
    if "runs/topics" in text:
        given = ("--column", "text", "--labels", "airline_sentiment", "--name", "topics", "--model", replaced("minilm"))
        ran(cse("train", "tweets.csv", *given, "--max-steps", "1", "--batch-size", "8", cwd=place))
    if "add_negatives(dataset" in text:
        from datasets import Dataset

        from cse.sentence_transformers import add_negatives, number_rows

        dataset = number_rows(Dataset.from_dict({"anchor": rows, "positive": rows}))
        names |= {"dataset": dataset, "index": TfidfIndex.build("corpus.txt"), "add_negatives": add_negatives}
    code = (
        replaced(text)
        .replace('corpus="corpus.txt", una=True', 'corpus="corpus.txt", una=True, max_steps=2, batch_size=8')
        .replace('open("search")', 'open("search", encoder)')
    )
    if 'open("search", encoder)' in code:
        code = code.replace("index = SearchIndex.build(Encoder(", "encoder = Encoder(").replace(
            "), texts,", ")\nindex = SearchIndex.build(encoder, texts,"
        )
    with patch.dict(AUGMENTATIONS._loaded), patch.dict(LOGGERS._loaded):
        exec(compile(code, "a block of the documentation", "exec"), names)


def test_toml_in_the_documentation_is_valid():
    assert all(tomllib.loads(text) for block in blocks("toml") for text in block.values)


def stored_result(name):
    return json.loads((ROOT / "benches" / "results" / name).read_text("utf8"))


def test_the_whole_run_in_the_pages_is_the_stored_one():
    whole = stored_result("whole.json")["parts"]
    page, readme = (
        flat((ROOT / "docs" / "benchmarks.md").read_text("utf8")),
        flat((ROOT / "README.md").read_text("utf8")),
    )
    for loss in ("focal", "standard"):
        run = whole[f"una {loss}"]
        cells = [f"{run['seconds']:.0f}", f"{run['rows a second']:,.0f}", "{:.2f}, {:.2f}".format(*run["ms a step"])]
        cells += [f"{run['waits']:.0%}".replace("%", " %"), f"{run['peak bytes'] / 1e9:.1f} GB"]
        assert " | ".join([loss, *cells, f"{whole['before']['average']:.1f}", f"{run['average']:.1f}"]) in page
    focal, standard = (whole[f"una {loss}"]["tasks"] for loss in ("focal", "standard"))
    lost = "(by {:.1f} and {:.1f} points)".format(
        *(tasks["STS12"][0] - tasks["STS12"][1] for tasks in (focal, standard))
    )
    assert f"STS12 gets worse with both losses {lost}" in page
    above = [[task for task, (*_, low, high) in tasks.items() if low > 0] for tasks in (focal, standard)]
    assert above == [
        ["STS13", "STS14", "STS15", "STS-B", "SICK-R"],
        ["STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"],
    ]
    ended, rate = whole["una focal"]["ended"], whole["una focal"]["rows a second"]
    assert f"to STS scores in {ended:.0f} s" in readme
    assert f"({rate:,.0f} sentences a second)" in readme
    assert f"everything had ended {ended:.0f} s after the start" in page


def test_the_table_of_hybrid_ranking_is_the_stored_one():
    page = (ROOT / "docs" / "domain.md").read_text(encoding="utf8")
    for name, row in stored_result("pool.json").items():
        values = rf"{row['vectors']:.1f} \| {row['bm25']:.1f} \| {re.escape(format(row['pool'], '+.1f'))}"
        assert re.search(rf"^\| {name}( \(\w+\))? \| {values} \|$", page, re.MULTILINE), name


def test_the_verdict_and_the_labels_in_the_pages_are_the_stored_ones():
    readme, evaluation = ((ROOT / name).read_text("utf8") for name in ("README.md", "docs/evaluation.md"))
    printed = lines(stored_result("verdict.json")["first run"])
    for page, indent, count in ((readme, "", 5), (evaluation, "    ", 9)):
        assert "".join(f"{indent}{line}\n" for line in printed[:count]) in page
    whole = stored_result("labels.json")
    stored = whole["means"]
    rows = {"trec": "questions (TREC)", "cr": "customer", "tweets": "tweets", "subj": "film", "medical": "medical"}
    percent = ("before", "after", "difference", "accuracy before", "accuracy after", "most frequent label")
    for name, row in rows.items():
        (line,) = re.findall(rf"^\| {re.escape(row)}.*", readme, re.MULTILINE)
        found = stored[f"{name}/100"]
        assert found["seeds"] == 3
        assert line.endswith("".join(f" | {found[key]:{'+' * (key == 'difference')}.1f}" for key in percent) + " |")
    assert {name for name in rows if stored[f"{name}/100"]["lowest"] > 0} == {*rows} - {"medical"}
    assert [whole["runs"][f"medical/100/{seed}"]["high"] < 0 for seed in range(3)] == [False, True, True]
    training = (ROOT / "docs/training.md").read_text("utf8").partition("## I have 100 labels")[2]
    training, _, taught = training.partition("## A larger encoder as the teacher")
    training, _, setfit = training.partition("SetFit 1.2 was trained")
    for name, row in rows.items():
        (line,) = re.findall(rf"^\| {re.escape(row.removesuffix(')'))}.*", training, re.MULTILINE)
        changes = [stored.get(f"{name}/{count}") for count in (20, 100, 500)]
        cells = ["-" if each is None else f"{each['difference']:+.1f}" for each in changes]
        assert [cell.strip() for cell in line.split("|")[2:-1]] == cells
        if (other := whole["setfit"].get(f"{name}/100")) is not None:
            scores = (whole["runs"][f"{name}/100/0"]["after"], other["after"], other["own classifier"])
            cells = " | ".join(f"{score:.1f}" for score in scores)
            assert re.search(rf"^\| {re.escape(row)}[^|]*\| {re.escape(cells)} \|$", setfit, re.MULTILINE), name
    _, _, after = taught.partition("### A teacher, then labels")
    after = after.partition("\n## ")[0]
    sequence = whole["teacher, then labels"]
    for name in ("trec", "cr", "tweets", "subj"):
        runs = [sequence[f"{name}/100/{seed}"] for seed in range(3)]
        cells = f"{stored[f'{name}/100']['difference']:+.1f} | {sum(run['difference'] for run in runs) / 3:+.1f}"
        assert re.search(
            rf"^\| {re.escape(rows[name].removesuffix(')'))}[^|]*\| {re.escape(cells)} \|$", after, re.M
        ), name
        assert all(run["low"] > 0 for run in runs)
        assert 1 <= round(sum(run["difference"] for run in runs) / 3 - stored[f"{name}/100"]["difference"], 0) <= 3
    few, plain, above = [], whole["teacher, then labels, --loss-term none"], []
    for name, count in product(("trec", "cr", "tweets"), (20, 500)):
        key, place = f"{name}/{count}", rf"^\| {re.escape(rows[name].removesuffix(')'))}[^|]*"
        seeds = [seed for seed in range(3) if f"{key}/{seed}" in sequence]
        assert stored[key]["seeds"] == len(seeds)
        mean = sum(sequence[f"{key}/{seed}"]["difference"] for seed in seeds) / len(seeds)
        cells = f"{count} | {stored[key]['difference']:+.1f} | {mean:+.1f} | {len(seeds)}"
        assert re.search(rf"{place}\| {re.escape(cells)} \|$", after, re.M), cells
        cells = " | ".join(f"{each[f'{key}/0']['difference']:+.1f}" for each in (sequence, plain))
        assert re.search(rf"{place}\| {count} \| {re.escape(cells)} \|$", after, re.M), cells
        if count == 20:
            above += [(name, sequence[f"{key}/{seed}"]["low"] > 0) for seed in seeds]
            few.append(round(mean - stored[key]["difference"]))
    assert f"is above 0 in {sum(low for _, low in above)} of {len(above)} runs" in flat(after)
    assert {each: above.count((each, True)) for each, _ in above} == {"trec": 3, "cr": 1, "tweets": 1}
    alone = {key: run["high"] < 0 for key, run in whole["runs"].items() if "/20/" in key}
    assert {key for key, below in alone.items() if below} == {"cr/20/1", "tweets/20/0", "tweets/20/1"}
    changes = [plain[key]["difference"] - sequence[key]["difference"] for key in plain]
    more, less = ([f"{abs(each):.1f}" for each in sorted(changes, key=abs) if (each > 0) == up] for up in (True, False))
    assert f"(by {more[0]} to {more[-1]} points) and three less (by {less[0]} to {less[-1]})" in flat(after)
    assert len(more) == len(less) == 3
    assert f"with only 20 labels, {min(few)} to {max(few)} (" in flat((ROOT / "README.md").read_text("utf8"))
    tuned, kinds = whole["tuned teacher, then labels"], ("teacher, then labels", "tuned teacher, then labels")
    assert len(tuned) == len(re.findall(r"^\| .* \|$", after.partition("**A teacher that learns")[2], re.M)) - 2
    minutes = sorted(round(each["tuning"] / 60) for each in tuned.values())
    assert f"took {minutes[0]} to {minutes[-1]} minutes of processor time" in flat(after)
    for key in tuned:
        records = [whole["runs"][key], *(whole[kind][key] for kind in kinds)]
        cells = " | ".join("{difference:+.1f} [{low:+.1f}, {high:+.1f}]".format_map(each) for each in records)
        assert f"| {cells} |" in after, key
    more = {key: tuned[key]["difference"] - sequence[key]["difference"] for key in tuned}
    words = "more on reviews ({:.1f} and {:.1f} points), and less on questions ({:.1f} and {:.1f} points) and tweets "
    words += "({:.1f})"
    keys = ("cr/100/1", "cr/100/2", "trec/100/1", "trec/100/2", "tweets/100/1")
    assert words.format(*(abs(more[key]) for key in keys)) in flat(after)
    assert [more[key] > 0 for key in keys] == [True, True, False, False, False]
    setfit, _, permuted = setfit.partition("permuted (no interval")
    assert len(whole["setfit"]) == len(re.findall(r"^\| .*\d \|$", setfit, re.MULTILINE))
    for name in ("trec", "cr"):
        runs = [run["difference"] for key, run in whole["permuted"].items() if key.startswith(f"{name}/")]
        cells = f"{len(runs)} | {min(runs):+.1f} | {max(runs):+.1f}"
        assert re.search(rf"^\| {re.escape(rows[name])}[^|]*\| {re.escape(cells)} \|$", permuted, re.MULTILINE), name
    assert all(run["low"] <= 0 for run in whole["permuted"].values())
    for name, row in rows.items():
        found = stored_result("teacher.json")["means"][f"teacher/{name}"]
        changes = rf"{found['neighbours']:+.1f} | {found['linear']:+.1f} | {found['seeds']}"
        assert re.search(
            rf"^\| {re.escape(row.removesuffix(')'))}[^|]*\| {re.escape(changes)} \|$", taught, re.MULTILINE
        ), name
    runs = stored_result("teacher.json")["runs"]
    lows = {key: run for key, run in runs.items() if key.startswith("teacher/")}
    assert all(run["linear"]["low"] > 0 for run in lows.values())
    assert {key.split("/")[1] for key, run in lows.items() if run["neighbours"]["low"] <= 0} == {"cr", "medical"}


def test_what_labelled_rows_promise_is_the_stored_result_and_reaches_the_goals():
    page, stored = (ROOT / "docs/labels.md").read_text("utf8"), stored_result("promise.json")
    names = {"trec": "TREC", "cr": "CR", "subj": "Subj", "mr": "MR", "mpqa": "MPQA", "sst2": "SST-2"}
    names |= {"tweets": "tweets (3)", "medical": "medical abstracts (5)", "airlines": "airline", "reasons": "complaint"}
    assert len(stored["untrained"]) == len(re.findall(r"^\| .* \| (?:50|200) \| .* \|$", page, re.MULTILINE)) == 20
    for key, each in stored["untrained"].items():
        name, count = key.split("/")
        assert each["draws"] == 100
        cells = f"{count} | {each['accuracy']:.1f} | {each['promised']:.1f} | {each['holds']:.0f} | {each['width']:.1f}"
        cells = re.escape(f"{cells} | {each['calibration error']:.1f} |")
        assert re.search(rf"^\| [^|]*{re.escape(names[name])}[^|]*\| {cells}$", page, re.MULTILINE), key
    for each in stored["overall"]["untrained"].values():
        assert each["holds"] >= 93
        assert each["least"] >= 88
        assert each["calibration error"] <= 5
        assert max(each[f"claims at {threshold}"] for threshold in (0.8, 0.9, 0.95)) <= 3
    assert stored["overall"]["untrained"]["all sets"]["by label"] <= 5
    claims = [f"{-stored['overall']['untrained']['all sets'][f'claims at {each}']:.1f}" for each in (0.8, 0.9, 0.95)]
    assert "by {}, {} and {} points in the mean".format(*claims) in flat(page)
    errors = {key: sorted(each["by label"].values()) for key, each in stored["untrained"].items()}
    assert f"2 % of the rows, by {errors['trec/50'][-1]:.0f} points" in flat(page)
    said = "complaints by {:.0f} and {:.0f} points, and with 200 labels by {:.0f} and {:.0f}."
    assert said.format(*errors["reasons/50"][-2:], *errors["reasons/200"][-2:]) in flat(page)
    fair = [each["random"] for each in stored["drawn"].values()]
    near = [each["near a row"] for each in stored["drawn"].values()]
    assert f"called so in {100 * min(fair):.0f} to {100 * max(fair):.0f} % of 50 draws" in flat(page)
    assert f"nearest to one row in {100 * min(near):.0f} to {100 * max(near):.0f} %" in flat(page)
    noticed = [1 - stored["drawn"][f"{name}/100"]["equal numbers"] for name in ("trec", "tweets")]
    assert "noticed in {:.0%} of the draws on TREC and {:.0%} on tweets".format(*noticed).replace("%", " %") in flat(
        page
    )


WRITTEN = [page for page in PAGES if page.name != "settings.md"]  # which is generated


def test_changes_and_scores_in_prose_name_their_stored_row():
    found = {}
    for page in WRITTEN:
        text = re.sub(BLOCK, "", page.read_text(encoding="utf8"))
        prose = "\n".join(line for line in text.splitlines() if not line.startswith(("|", "    ")))
        found[page.name] = unmarked(re.sub("`[^`]*`", "", prose))
        assert not re.search("^ *<!--", prose, re.MULTILINE), f"{page.name}: a comment that ends a paragraph"
        assert not re.search(r"^\|.*<!--", text, re.MULTILINE), f"{page.name}: a comment whose | ends a cell"
    assert not any(found.values()), found


MEASURED = [("benchmarks", name) for name in ("core", "growth", "train", "gpu", "encode", "search")]
MEASURED += [("export", "static")]


@pytest.mark.parametrize(("page", "name"), [*MEASURED, ("domain", "adapt_peers")])
def test_tables_of_measurements_are_selections_of_the_stored_results(page, name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benches")
    monkeypatch.syspath_prepend(ROOT / "benches" / "domain")
    shown = tables_in((ROOT / "docs" / f"{page}.md").read_text(encoding="utf8"))
    for whole in tables_in(importlib.import_module("stored_tables").printed(name)):
        (rows,) = (len(each) for each in shown if selected(each, whole))
        assert rows >= 5  # the head and at least three rows


def test_the_speed_and_the_ranges_in_readme_are_those_of_stored_results():
    readme = flat((ROOT / "README.md").read_text("utf8"))
    core, training = stored_result("core.json"), stored_result("train.json")["timings"]
    count = core["corpus"]["sentences"]
    speeds = [count / median(core["seconds"][name]) for name in ("cse build-tfidf", "cse augment")]
    others = [count / core["scikit-learn fit_transform"], 1 / core["nlpaug TfIdfAug.augment, per sentence"]]
    for fast, slow in zip(speeds, others, strict=True):
        slow = f"{slow:,.0f}" if slow < 1000 else f"{round(slow, -3):,.0f}"
        assert re.search(rf"\| {round(fast, -3):,.0f} \| [^|]*: {slow} \|", readme)
    systems = ("cse, standard", "sentence-transformers")
    times = [median(each["seconds"] for each in training[f"bf16: {name}"]) for name in systems]
    assert "| {:.0f} | sentence-transformers: {:.0f} |".format(*(64 / each for each in times)) in readme
    assert 7.5e5 < speeds[1] < 8.5e5
    assert "at about 800,000 sentences a second" in readme
    assert "less than a tenth of a second" in flat((ROOT / "docs" / "search.md").read_text("utf8"))
    assert max(stored_result("search.json")["search"]["rankings"].values()) < 0.1
    rows = {"tweets": "tweets", "trec": "(TREC)", "subj": "(Subj)", "cr": "(CR)", "medical": "medical abstracts"}
    evaluation, changes = (ROOT / "docs" / "evaluation.md").read_text("utf8"), []
    for name, row in rows.items():
        measures = stored_result("verdict.json")[name]["seed0"]["large"]["measures"]
        cells = " | ".join("{mean:+.2f} [{low:+.2f}, {high:+.2f}]".format_map(each) for each in measures)
        assert re.search(rf"^\| [^|]*{re.escape(row)} \| {re.escape(cells)} \|$", evaluation, re.MULTILINE), name
        changes.append([each["mean"] for each in measures])
    taught = stored_result("teacher.json")["means"]
    gains = [[taught[f"teacher/{name}"][by] for name in rows] for by in ("neighbours", "linear")]
    ranges = [(min(each), max(each)) for each in (*zip(*changes, strict=True), *gains)]
    said = "by {:.0f} to {:.0f} points by neighbours on these sets, and by {:.0f} to {:.0f} by a logistic regression"
    assert said.format(*ranges[0], *map(abs, ranges[1])) in readme
    assert "by {:.0f} to {:.0f} (not above 0 on customer reviews and abstracts)".format(*ranges[2]) in readme
    assert "and {:.1f} to {:.1f} ([table]".format(*ranges[3]) in readme


def test_the_table_of_models_before_training_is_the_stored_one():
    page, stored = (ROOT / "docs" / "training.md").read_text("utf8"), stored_result("bases.json")
    for each in stored["sets"].values():
        changes = [
            each[name][by] for name in ("multilingual-e5-small", "all-mpnet-base-v2") for by in ("neighbours", "linear")
        ]
        cells = " | ".join("{mean:+.1f} [{low:+.1f}, {high:+.1f}]".format_map(change) for change in changes)
        assert f"| {cells} |" in page
    times = np.array([*stored["seconds for 1,000 rows"].values()])
    assert np.median(times[:, 1:] / times[:, :1], axis=0).round().tolist() == [2, 7]


def test_the_table_of_another_language_is_the_stored_one():
    page = (ROOT / "docs" / "corpora.md").read_text("utf8").replace("`", "")
    for name, each in stored_result("german.json")["models"].items():
        change = "{change:+.1f} [{low:+.1f}, {high:+.1f}]".format_map(each) if "change" in each else ""
        assert f"| {name} | {each['recall']:.1f} | {change} | {each['accuracy']:.1f} |" in page


def test_a_table_with_another_cell_or_order_is_no_selection():
    whole = tables_in("| a | b | c |\n| --- | --- | --- |\n| 1 | 2 | 3 |\n| 4 | 5 | 6 |\n")[0]
    assert selected(whole, whole)
    assert selected([["a", "c"], ["---", "---"], ["4", "6"]], whole)
    assert not selected([["a", "c"], ["---", "---"], ["4", "5"]], whole)
    assert not selected([["b", "c"], ["---", "---"], ["2", "3"]], whole)
    assert not selected([["a", "c"], ["---", "---"], ["4", "6"], ["1", "3"]], whole)


def test_published_averages_are_those_of_the_stored_tables():
    (path,) = (ROOT / "python").glob("*/tables/published.toml")
    averages = set()
    for table in tomllib.loads(path.read_text(encoding="utf8"))["table"]:
        if "Avg." in table["columns"]:
            place = table["columns"].index("Avg.")
            averages |= {f"{row['values'][place]:.2f}" for row in table["rows"]}
    section = (ROOT / "docs" / "published.md").read_text(encoding="utf8").split("\n## ")[2]
    shown = re.findall(r"\d\d\.\d\d", "".join(re.findall(r"^\|.*", section, re.MULTILINE)))
    assert len(shown) > 10
    assert set(shown) <= averages


def test_reproduced_values_are_those_of_the_stored_runs():
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf8")
    for folder in sorted((ROOT / "benches" / "results" / "adapt-minilm").iterdir()):
        runs = [json.loads(file.read_text(encoding="utf8"))["scores"] for file in folder.iterdir()]
        means = [f"{sum(run[name] for run in runs) / len(runs):.2f}" for name in runs[0]]
        row = re.search(rf"^\| {folder.name.removesuffix('-minilm').replace('-', ' ')} \| .*", page, re.MULTILINE)
        assert re.findall(r"\| (\d\d\.\d\d)", row[0]) == means


def test_links_between_pages_are_valid():
    for page in PAGES:
        text = re.sub(BLOCK, "", page.read_text(encoding="utf8"))
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target or target.startswith("mailto:"):
                continue
            path, _, anchor = target.partition("#")
            goal = (page.parent / path).resolve() if path else page
            assert goal.exists(), (page.name, target)
            if anchor and goal.suffix == ".md":
                heads = re.findall(r"^#+ (.+)$", goal.read_text(encoding="utf8"), re.MULTILINE)
                slugs = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
                assert anchor in slugs, (page.name, target)


def test_the_table_of_pages_and_the_pages_of_the_api_and_of_commands_are_complete(build):
    readme, names = (ROOT / "README.md").read_text("utf8"), (ROOT / "docs" / "api.md").read_text("utf8")
    stored = {*build.pages()} - {build.MADE}
    assert sorted(stored) == sorted(page.name for page in PAGES[1:])
    assert set(re.findall(r"\]\(docs/([\w-]+\.md)", readme)) == stored
    listed = re.findall(r"^::: ([\w.]+)$", build.with_docstrings(names), re.MULTILINE)
    assert len(listed) == len(set(listed)) == names.count("\n- ")
    public = {f"cse.{name}" for name in package.__all__ if name != "__version__"}
    public |= {f"{group.__module__}.{group.__name__}" for group in GROUPS}
    assert public <= set(listed)
    page = importlib.import_module("reference").commands()
    names = cli.list_commands(cli.make_context("cse", [], resilient_parsing=True))
    assert re.findall(r"^## `cse (.+)`$", page, re.MULTILINE) == list(names)
    assert page.count("    Usage: cse ") == len(names)


def test_the_readme_names_the_extras_of_users():
    (named,) = re.findall(r"^Extras: (.+?)\n\n", (ROOT / "README.md").read_text("utf8"), re.MULTILINE | re.DOTALL)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    extras = project["optional-dependencies"].keys() - {"test", "lint", "docs", "tools", "bench"}
    assert set(re.findall(r"`([a-z][a-z-]*)`", named)) == extras


def test_every_name_of_the_api_and_every_member_has_a_docstring():
    names = re.findall(r"^- `(cse[\w.]*)`", (ROOT / "docs" / "api.md").read_text("utf8"), re.MULTILINE)
    assert len(names) > 40
    missing = []
    for name in names:
        module, _, member = name.rpartition(".")
        found = getattr(importlib.import_module(module), member)
        parts = {name: found}
        if isinstance(found, type):
            parts |= {
                f"{name}.{each}": getattr(found, each)
                for each, value in vars(found).items()
                if not each.startswith("_") and each not in getattr(found, "__dataclass_fields__", {})
                if isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
            }
        missing += [each for each, value in parts.items() if not (inspect.getdoc(value) or "").strip()]
    assert not missing


@pytest.mark.slow
def test_generated_pages_are_current():
    done = subprocess.run([sys.executable, ROOT / "docs" / "reference.py", "--check"], check=False)
    assert done.returncode == 0


def test_the_number_of_papers_in_the_documentation_is_the_one_that_cse_reproduce_counts(cse_here):
    count = json.loads(cse_here("reproduce", "--json").stdout)["papers"]
    text = " ".join(" ".join(page.read_text(encoding="utf8").split()) for page in PAGES)
    quoted = re.findall(r"(\d+) (?:published |other )?(?:papers|systems)\b", text)
    assert quoted
    assert {*map(int, quoted)} == {count}


def test_the_weights_of_focal_logits_in_the_page_are_those_of_the_formula():
    text = flat((ROOT / "docs/training.md").read_text("utf8"))
    weights = [math.exp(s * (s + m - 1) / 0.07) for s, m in ((0.35, 0.3), (1, 0.3), (0.5, 0))]
    assert (
        "is least, {:.2f}, at s = (1 - m) / 2 = 0.35, 1 at s = 0.7, and {:.0f} at s = 1; that of a positive falls to "
        "{:.2f} at s = 0.5".format(*weights)
        in text
    )
