"""Tests of `cse reproduce`: published tables, recipes, single runs (cells), and comparisons with published values."""

import json
import math
import re
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy.stats import t, ttest_rel

from cse import Encoder, InputError, TfidfIndex, evaluate
from cse.encoder.pooling import POOLERS
from cse.errors import RunError
from cse.evaluation.base import read_pairs
from cse.training.settings.presets import preset_names
from cse.training.settings.resolve import with_preset
from cse_papers.reproduce.cells import cells_of, config_of
from cse_papers.reproduce.inputs import SENTENCES, open_inputs
from cse_papers.reproduce.published import Ours, collect, markdown, paired_tests, panels, to_dict
from cse_papers.reproduce.runner import run_cell
from cse_papers.reproduce.scores import TASKS, Scorer
from cse_papers.reproduce.smoke import run_smoke, smoke_inputs
from cse_papers.reproduce.stored import identity, read_cell
from cse_papers.reproduce.tables import find_table, tables
from cse_papers.reproduce.work import Work

STORED = Path(__file__).resolve().parents[2] / "benches" / "results" / "effects.parquet"


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A function that returns the inputs of a smoke run of a table; they are made once per table."""
    known = {}

    def make(name):
        if name not in known:
            known[name] = smoke_inputs(find_table(name), tmp_path_factory.mktemp("smoke"), "cpu", 1)
        return known[name]

    return make


def scorer_of(table, inputs):
    return Scorer(table.suite, table.columns, inputs.data, inputs.partial)


def test_tables_match_published_toml_and_recipes_use_only_known_names():
    published = tomllib.loads((files("cse_papers") / "tables" / "published.toml").read_text(encoding="utf8"))["table"]
    for each in published:
        table = tables()[each["id"]]
        assert [row.values for row in table.rows] == [pytest.approx(row["values"], nan_ok=True) for row in each["rows"]]
        assert all(len(row.values) == len(table.columns) for row in table.rows)
    for table in tables().values():
        if table.suite not in ("", "geometry, stsb-test"):  # all scores are times 100
            assert all(value > 1 for row in table.rows for value in row.values if not math.isnan(value)), table.name
        for row in table.rows:
            assert table.suite or not row.recipes
            for column, recipe in row.recipes.items():
                assert column is None or column in table.columns
                assert recipe.preset is None or recipe.preset in preset_names()
                assert recipe.pooler is None or recipe.pooler in POOLERS
                assert recipe.encoder or recipe.preset or table.name in ("adapt-minilm", "domain", "effects")


def test_every_recipe_is_a_valid_configuration(small, tmp_path):
    inputs = replace(small("una-tableC3"), model=None, max_steps=None, batch_size=None)
    names = {
        name for table in tables().values() for row in table.rows for r in row.recipes.values() for name in r.needs()
    }
    inputs = replace(inputs, files={name: str(inputs.corpus) for name in names})
    seen = 0
    for table in tables().values():
        for cell in cells_of(table, table.rows, [0]):
            if cell.recipe.encoder is None:
                with_preset(config_of(cell, inputs, tmp_path))
                seen += 1
    assert seen > 200


def cell_of(small, name, row, seed=0):
    """Returns the cell of a row, the inputs of a smoke run of its table, and the scorer."""
    table, inputs = find_table(name), small(name)
    (cell,) = cells_of(table, table.find_rows([row]), [seed])
    return cell, inputs, scorer_of(table, inputs)


def test_stored_cells_are_not_run_again_and_refused_with_other_settings(small, tmp_path):
    cell, inputs, scorer = cell_of(small, "una-table1", "UNA, bert-base-uncased", 3)
    record = run_cell(cell, inputs, scorer, tmp_path)
    assert set(record["scores"]) == set(cell.table.columns)
    assert record["scores"]["Avg."] == pytest.approx(fmean(list(record["scores"].values())[:7]))
    assert not (tmp_path / cell.folder / "seed-3").exists()  # the run folder is not kept
    again = Work(cell.table, [cell.row], [3, 4], inputs, scorer, tmp_path).plan()
    assert again.stored == {cell.row.name: [record]}
    assert [each.seed for each in again.wanted] == [4]
    with pytest.raises(InputError, match="was made with max_steps 2, not 3; choose another folder"):
        read_cell(cell, replace(inputs, max_steps=3), scorer, tmp_path)
    with pytest.raises(InputError, match="was made with batch_size 8, not 9"):
        read_cell(cell, replace(inputs, batch_size=9), scorer, tmp_path)
    cell.path(tmp_path).write_text("{}", encoding="utf8")
    with pytest.raises(InputError, match="was not written by cse reproduce"):
        read_cell(cell, inputs, scorer, tmp_path)


def test_incomplete_evaluation_data_are_refused(small):
    data = small("una-table1").data
    with pytest.raises(InputError, match=r"sts12.test.tsv: 24 pairs, but STS12 has 3,108; scores would not be"):
        Scorer("sts", (), data)
    with pytest.raises(InputError, match=r"mr.tsv: 60 rows, but MR has 10,662"):
        Scorer("transfer", (), small("una-table2").data)


def test_reproduce_and_evaluate_give_equal_scores(small, tiny_bert):
    data = small("una-table1").data
    encoder = Encoder(tiny_bert, pooler="avg", device="cpu")
    ours = Scorer("sts", (), data, partial=True).measure(encoder)[0]
    rows = evaluate(encoder, "sts", data, allow_partial=True).reports["sts"].rows
    theirs = {row["task"]: row["spearman"] for row in rows if row["task"] in ours}
    assert len(theirs) == 7
    assert {task: ours[task] for task in theirs} == pytest.approx(theirs, abs=1e-9)


def test_mirror_bert_and_consert_are_trained_on_the_sentences_of_the_sts_files(small, tmp_path):
    inputs, data, texts = small("una-tableD8"), tmp_path / "data", {}
    data.mkdir()
    for number, stem in enumerate(SENTENCES["sts-texts"][0]):
        count = 6000 if stem == "stsb.train" else 5 + number
        pairs = [(f"{stem} left {n // 2}", f"{stem} right {n}") for n in range(count)]  # each left sentence twice
        lines = [f"{n % 6}\t{left}\t{right}\n" for n, (left, right) in enumerate(pairs)]
        (data / f"{stem}.tsv").write_text("".join(lines), encoding="utf8")
        texts[stem] = [text for pair in pairs for text in pair]

    def opened(name, *row, **given):
        table = find_table(name)
        (cell,) = cells_of(table, table.find_rows(list(row)), [0])
        return table, cell, replace(open_inputs(table, str(data), made=tmp_path / "made", **given), model=inputs.model)

    _, mirror, found = opened("una-tableD8", "Mirror-BERT")
    config = config_of(mirror, found, tmp_path)
    drawn = Path(*config.corpus).read_text(encoding="utf8").splitlines()
    assert len(drawn) == 10_000
    rest = iter(texts["stsb.train"])
    assert all(text in rest for text in drawn)  # a subsequence: without replacement, in the order of the file
    assert max(map(drawn.count, texts["stsb.train"][:40:2])) == 2
    assert config_of(replace(mirror, seed=1), found, tmp_path).corpus == config.corpus

    row = "unsup ConSERT, bert-base-uncased"
    table, consert, found = opened("consert-readme", row)
    everything = [text for stem in SENTENCES["sts-texts"][0] for text in texts[stem]]
    assert Path(*config_of(consert, found, tmp_path).corpus).read_text(encoding="utf8").splitlines() == everything
    given = opened("consert-readme", row, files=[f"sts-texts={inputs.corpus}"])[2]
    assert given.files["sts-texts"] == str(inputs.corpus)
    (data / "sickr.train.tsv").unlink()
    lacking = opened("consert-readme", row, corpus=str(inputs.corpus))[2]
    assert consert.lacks(lacking).startswith("--file sts-texts=PATH, or sts12.test.tsv, ")
    stored = {consert.row.name: [{"column": None, "seed": 0, "scores": {"Avg.": 70.0}}]}
    text = markdown(table, [consert.row], stored, {})
    assert f"| {row} ‡ | ours, 1 seed |" in text
    assert f"‡ {row}: trained on test texts without labels" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "kind"),
    [("GloVe avg.", "glove"), ("BERT-whitening", "whitening"), ("first-last avg., bert-*", "")],
)
def test_a_trial_evaluates_the_kind_of_encoder_that_the_row_names(small, tmp_path, row, kind):
    cell, inputs, scorer = cell_of(small, "focal-table2", row)
    whitening = f"whitening:{inputs.model}@{inputs.files['nli-sentences']}"
    names = {"glove": f"glove:{inputs.files['glove']}", "whitening": whitening, "": inputs.model}
    encoders = {each: Encoder(name, pooler=None if each else "avg_embed_last") for each, name in names.items()}
    expected = {each: scorer.measure(encoder)[0]["Avg."] for each, encoder in encoders.items()}
    assert len({round(score, 3) for score in expected.values()}) == 3
    assert run_cell(cell, inputs, scorer, tmp_path)["scores"]["Avg."] == pytest.approx(expected[kind], abs=1e-6)


def stored_cells(scores):
    """Returns the stored cells by row; ``scores`` maps each pair (row, column) to a dict of scores by seed."""
    found = {}
    for (row, column), values in scores.items():
        for seed, value in values.items():
            found.setdefault(row, []).append({"column": column, "seed": seed, "scores": {column or "*": value}})
    return found


def test_intervals_and_paired_tests_equal_those_of_scipy():
    table = find_table("simcse-table1")
    rows = table.find_rows(["none (unsup SimCSE)", "crop 10%", "crop 20%"])
    names, generator = [row.name for row in rows], np.random.default_rng(0)
    values = {name: dict(enumerate(generator.normal(80, 1, 5))) for name in names}
    values[names[2]].pop(4)  # the paired test uses only the seeds that both rows have
    stored = stored_cells({(name, None): each for name, each in values.items()})
    ours = collect(table, rows[0], stored)["value"]
    first = list(values[names[0]].values())
    low, high = t.interval(0.95, 4, fmean(first), stdev(first) / math.sqrt(5))
    assert (ours.interval.low, ours.interval.high, ours.sd) == pytest.approx((low, high, stdev(first)))
    assert ours.holds(low + 0.01)
    assert not ours.holds(low - 0.01)
    assert Ours({0: 1.0}).holds(1.0) is None
    records = paired_tests(table, rows, stored)
    assert [each["seeds"] for each in records] == [5, 4]
    for record, name in zip(records, names[1:], strict=True):
        pairs = [(values[name][seed], values[names[0]][seed]) for seed in values[name]]
        assert record["p"] == pytest.approx(ttest_rel(*zip(*pairs, strict=True)).pvalue)
    smaller, larger = sorted(records, key=lambda each: each["p"])
    assert smaller["p_holm"] == pytest.approx(min(1, 2 * smaller["p"]))
    assert larger["p_holm"] == pytest.approx(max(smaller["p_holm"], larger["p"]))


def test_published_and_reproduced_values_are_printed_and_misprints_are_marked():
    table = find_table("focal-table2")
    rows = table.find_rows(["Focal-InfoNCE, bert-base-uncased", "DeCLUTR"])
    scores = [{"STS12": 68.0 + seed, "Avg.": 77.0 + seed} for seed in (0, 1)]
    stored = {rows[0].name: [{"column": None, "seed": seed, "scores": each} for seed, each in enumerate(scores)]}
    text = markdown(table, rows, stored, {rows[1].name: rows[1].status})
    assert "| Focal-InfoNCE, bert-base-uncased † | published | 68.50 ± 0.08 |" in text
    assert "68.50 ± 0.71 [62.15, 74.85] *" in text
    assert "† Focal-InfoNCE, bert-base-uncased: the printed values do not agree with each other" in text
    why = "its training on spans of long documents is not implemented"
    assert f"| DeCLUTR, roberta-base | published only: {why} |" in text
    found = to_dict(table, rows, stored, {})
    cell = found["rows"][0]["cells"]["Avg."]
    assert (cell["published"], cell["ours"], cell["published_in_interval"]) == (77.33, 77.5, True)
    assert "ours" not in found["rows"][0]["cells"]["STS13"]
    json.dumps(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "column"), [("una-table1", None), ("una-tableC4", "paraphrasing + UNA"), ("una-tableD8", None)]
)
def test_the_index_of_una_counts_the_paraphrases_that_are_trained_on(small, tmp_path, table, column):
    inputs, known = small("una-table1"), find_table(table)
    scorer, first = scorer_of(known, small(table)), find_table("una-table1")
    cells = [cell for cell in cells_of(known, known.rows, [0]) if "paraphrases" in cell.recipe.needs()]
    cells = [cell for cell in cells if cell.column == column and cell.recipe.settings.get("negatives") != []]
    alone = cells_of(first, first.find_rows(["UNA"]), [0])[0]
    assert cells
    for cell in cells:
        assert config_of(cell, inputs, tmp_path).tfidf != config_of(alone, inputs, tmp_path).tfidf
        assert len(identity(cell, inputs, scorer)["index"]) == 2
    assert "index" not in identity(alone, inputs, scorer)
    for cell, count in ((cells[0], 2), (alone, 1)) if table == "una-table1" else ():
        run_cell(cell, inputs, scorer, tmp_path)
        index = TfidfIndex.open(config_of(cell, inputs, tmp_path).tfidf)
        assert index.info.documents == count * len(inputs.corpus.read_text(encoding="utf8").splitlines())


@pytest.mark.slow
def test_cse_reproduce_with_smoke_prints_whether_each_row_runs_and_no_scores(cse_here, tmp_path):
    done = cse_here("reproduce", "una-table2", "--smoke", "--json", "-o", "cells", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["status"] for row in found["rows"]] == 3 * ["runs"]
    assert not re.search(r"\d\.\d", done.stdout)  # no scores
    assert not re.search(r"(score|STS-B dev) \d", done.stderr)
    again = cse_here("reproduce", "una-table2", "--smoke", "--json", "-o", "cells", cwd=tmp_path)
    assert "3 of them stored" in again.stderr
    assert json.loads(again.stdout) == found


def test_a_row_that_fails_in_a_trial_is_named_and_the_others_run(small, tmp_path, monkeypatch, capsys):
    from cse_papers.reproduce import smoke, work

    table, inputs = find_table("una-table2"), small("una-table2")
    trying = Work(table, table.rows, [0], inputs, scorer_of(table, inputs), tmp_path)

    def run_cell(cell, *_, **__):
        if cell.row.method.endswith("row 2"):
            raise ValueError("no such method")
        return {"scores": {"*": 40.0}, "seconds": 1.0}

    monkeypatch.setattr(smoke, "run_cell", run_cell)
    with pytest.raises(RunError, match="una-table2: 1 of 3 rows fail"):
        run_smoke(trying, None, True)
    printed = capsys.readouterr()
    assert [row["status"] for row in json.loads(printed.out)["rows"]] == ["runs", "fails", "runs"]
    assert "fails: no such method" in printed.err
    monkeypatch.setattr(work, "run_cell", run_cell)
    with pytest.raises(ValueError, match="no such method"):
        work.run(trying.plan(), trying)


def test_a_run_that_lacks_memory_does_not_stop_the_others(small, tmp_path, monkeypatch):
    from cse_papers.reproduce import work

    table, inputs = find_table("una-table2"), small("una-table2")
    whole = work.Work(table, table.rows, [0], inputs, scorer_of(table, inputs), tmp_path)
    chosen, done = whole.plan(), []

    def run_cell(cell, *_):
        if cell == chosen.wanted[0]:
            raise RunError("out of memory at step 6")
        done.append(cell)
        return {"scores": {"*": 40.0}, "seconds": 1.0}

    monkeypatch.setattr(work, "run_cell", run_cell)
    with pytest.raises(RunError, match=r"1 of 3 runs failed \(.*, seed 0: out of memory at step 6\); the others are"):
        work.run(chosen, whole)
    assert done == chosen.wanted[1:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "TABLE: 'nowhere' is unknown"),
        (["una-table1"], "--data: name the folder"),
        (["una-tableA1", "--smoke"], "has no row that can be reproduced"),
        (["una-table1", "--smoke", "--data", "."], "--smoke cannot be combined with --data"),
        (["una-table1", "--data", "."], "has no sts12.test.tsv"),
        (["una-table1", "--data", ".", "--file", "paraphrases"], "must have the form NAME=PATH"),
        (["una-table1", "--data", ".", "--picture", "x.gif"], "the name must end in .png, .svg or .pdf"),
        (["adapt-minilm", "--data", ".", "--dev", "clean"], "--dev clean has no effect on the table adapt-minilm"),
        (["effects", "--small", "--data", "."], "--small cannot be combined with --data"),
        (["una-table1", "--small"], "--rows, --also and --small belong to the table effects"),
        (["effects", "--stored", str(STORED), "--row", "UNA"], "--row has no effect on the tables of --stored"),
    ],
)
def test_invalid_arguments_are_refused_with_a_message_of_one_line(cse_here, tmp_path, arguments, message):
    done = cse_here("reproduce", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_commands_are_printed_with_the_files_that_rows_lack(minilm, cse_here, small, tmp_path):
    inputs, data = small("adapt-minilm"), tmp_path / "data"
    data.mkdir()
    for stem, (_, count) in TASKS.items():
        (data / f"{stem}.tsv").write_text("".join(f"{n % 6}\tone\tanother\n" for n in range(count)), encoding="utf8")
    for name in ("cranfield", "cacm"):
        (data / name).symlink_to(inputs.data / name)
    given = ["--data", data, "--corpus", inputs.corpus, "--seeds", "2", "--print-commands", "--row"]
    done = cse_here("reproduce", "una-table1", *given, "paraphrasing", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "paraphrasing, bert-base-uncased: needs --file paraphrases=PATH" in done.stderr
    assert not done.stdout.strip()
    done = cse_here("reproduce", "adapt-minilm", *given, "standard", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["cells"]
    assert second["cell"] == "standard, minilm, seed 1"
    assert [line.split()[:2] for line in first["commands"]] == [["cse", "train"], *[["cse", "eval"]] * 5]
    assert list(tmp_path.iterdir()) == [data]  # not even the index is written
    done = cse_here("reproduce", "adapt-minilm", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert "--print-commands" in done.stderr


def test_the_latex_of_a_published_table_has_the_cells_that_are_printed(tmp_path):
    from cse_papers.reproduce.printed import Shown, show_published
    from cse_papers.reproduce.work import Plan

    table = find_table("una-tableC4")
    stored = stored_cells({("every 5 batches, bert-base-uncased", "UNA"): {0: 82.0, 1: 83.0}})
    file = tmp_path / "t.tex"
    show_published(table, table.rows, Plan(stored, [], {}), Shown(latex=str(file)))
    lines = file.read_text(encoding="utf8").splitlines()
    (ours,) = (line for line in lines if "ours" in line)
    assert ours.startswith("every 5 batches, bert-base-uncased & ours, 2 seeds & 82.50 ± 0.71 [")
    assert len({line.count("&") for line in lines if "&" in line}) == 1


def test_the_plot_of_a_table_has_a_panel_for_each_column(tmp_path):
    pytest.importorskip("matplotlib")
    from cse.reports.style import write

    table = find_table("una-tableC4")
    stored = stored_cells({("every 5 batches, bert-base-uncased", "UNA"): {0: 82.0, 1: 83.0}})
    drawn = panels(table, table.rows, stored)
    assert [panel.title for panel in drawn] == list(table.columns)
    write(drawn, tmp_path / "table.png")
    assert (tmp_path / "table.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("simcse-table4", "QQP (134k)"),
        ("mixcse-sts", "BERT, bert-base-u*"),
        ("later-systems", "InfoCSE, bert-base-uncased"),
        ("later-systems", "RankCSE, bert-base-uncased"),
    ],
)
def test_further_rows_run(small, tmp_path, table, row):
    cell, inputs, scorer = cell_of(small, table, row)
    if cell.recipe.labelled:
        assert cell.lacks(replace(inputs, files={})).startswith("--file ")
        (name,) = cell.recipe.needs("pairs")
        assert config_of(cell, replace(inputs, pairs=None), tmp_path).pairs == (inputs.files[name],)
    assert all(math.isfinite(score) for score in run_cell(cell, inputs, scorer, tmp_path)["scores"].values())


def test_the_clean_development_set_selects_checkpoints_if_it_is_asked_for(small):
    table = find_table("una-table1")
    data, row = small(table.name), next(row for row in table.rows if any(r.preset for r in row.recipes.values()))
    (cell, *_) = cells_of(table, [row], [0])
    opened = open_inputs(table, str(data.data), str(data.corpus), made=data.data.parent / "made", dev="clean")
    config = config_of(cell, replace(opened, model=data.model), data.data.parent)
    assert [Path(path).name for path in config.dev] == ["sts-b-dev-clean.tsv", "sick-r-train-and-dev-clean.tsv"]
    usual = config_of(cell, data, data.data.parent)
    assert [Path(path).name for path in usual.dev] == ["stsb.dev.tsv"]
    clean, whole = read_pairs(config.dev[0]), read_pairs(usual.dev[0])
    assert set(zip(clean.left, clean.right, clean.gold, strict=True)) <= set(
        zip(whole.left, whole.right, whole.gold, strict=True)
    )
