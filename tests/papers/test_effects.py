"""The laboratory (cse reproduce effects): its rows and tables, stored runs, intervals, and a row of a user."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from cse import InputError, TrainConfig
from cse.augment import AUGMENTATIONS
from cse.evaluation.sts import CLEAN_FILES
from cse.losses import LOSS_TERMS
from cse_papers.reproduce import base_file, effects, effects_tables
from cse_papers.reproduce.base_file import pack, unpack
from cse_papers.reproduce.cells import cells_of
from cse_papers.reproduce.command import run_and_show
from cse_papers.reproduce.inputs import Inputs, check_stored, clean_files, laboratory_inputs
from cse_papers.reproduce.intervals import KEPT, TITLES, interval, rank_correlation, resampled
from cse_papers.reproduce.masked import make, weights_key
from cse_papers.reproduce.printed import Shown, lines_of
from cse_papers.reproduce.published import changes_on_documents
from cse_papers.reproduce.scores import Scorer
from cse_papers.reproduce.smoke import smoke_inputs
from cse_papers.reproduce.stored import hash_code, read_folder, read_sets, write_sets
from cse_papers.reproduce.tables import find_table
from cse_papers.reproduce.work import Work
from prose import faults, marked, selected, tables_in, unmarked
from runs import resolved

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "benches" / "results" / "effects.parquet"
LAB = effects.laboratory()


def test_the_settings_of_every_row_are_valid_and_no_two_runs_are_equal():
    rows = [row for row in LAB.table.rows if row.name != effects.BEFORE]
    assert len({json.dumps(row.recipes["0.05"].settings, sort_keys=True) for row in rows}) == len(rows) > 100
    cells = cells_of(LAB.table, LAB.table.rows, [0])
    assert len({cell.folder for cell in cells}) == len(cells)  # each has a folder of its own
    for row in rows:
        resolved(TrainConfig(corpus="c.txt", model="m", **row.recipes["0.1"].settings))


def test_the_cells_of_a_row_are_its_temperatures_and_further_seeds_of_two_of_them():
    cells = LAB.cells(["focal + UNA"], 3, {"focal + UNA": "0.1", "standard": "0.1"})
    assert {cell.column for cell in cells if cell.row.name == "focal + UNA"} == set(LAB.table.columns)
    for name, published in (("focal + UNA", "0.07"), ("standard", "0.05")):  # standard is what it is compared with
        further = {(cell.column, cell.seed) for cell in cells if cell.row.name == name and cell.seed}
        assert further == {(published, 1), (published, 2), ("0.1", 1), ("0.1", 2)}
    teachers = LAB.teachers(LAB.cells(["RankCSE"], 1, {}))
    assert {name: cell.name for name, cell in teachers.items()} == {
        "trained UNA": "UNA, 0.05, seed 0",
        "trained standard": "standard, 0.05, seed 0",
    }


def test_intervals_hold_the_middle_of_resampled_differences_and_the_variance_over_seeds():
    assert interval(np.arange(1001.0)[None])[:2] == pytest.approx((25, 975))
    seeds = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])  # no variance over pairs; standard error of the mean sqrt(2.5 / 5)
    low, high, p = interval(3 + np.tile(seeds[:, None], (1, 2000)))
    assert p == 2 / 40_000  # no draw is below 0
    assert interval(np.tile(seeds[:, None], (1, 2000)))[2] > 0.9
    assert (low, high) == pytest.approx((3 - 1.96 * 0.5**0.5, 3 + 1.96 * 0.5**0.5), abs=0.15)


def test_all_runs_are_resampled_with_the_same_draws():
    from cse.evaluation.base import Pairs

    generator = np.random.default_rng(1)
    gold = np.arange(40) % 6.0
    sets = {
        title: Pairs(gold, [f"a {title} {n}" for n in range(40)], [f"b {title} {n}" for n in range(40)])
        for title in (*TITLES, "STS-B dev")
    }
    values = {title: generator.normal(size=40) for title in sets}
    first, second = (resampled(sets, each, 20) for each in (values, {name: 2 * v for name, v in values.items()}))
    assert first == second
    assert len(set(first["mean"])) > 10


def record(row, tau, seed, value, clean=None, draws=None):
    titles = (*TITLES, "mean", "STS-B dev", "alignment", "uniformity")
    scores = dict.fromkeys(titles, value) | dict.fromkeys(CLEAN_FILES if clean is not None else (), clean)
    steps = draws or [round(100 * value) + step for step in range(100)]
    made = {"row": row, "column": tau, "seed": seed, "scores": scores, "draws": dict.fromkeys(KEPT, steps)}
    seconds = {"train_seconds": 7.0, "processor_seconds": 2.0, "train_processor_seconds": 1.0}
    return made | {"identity": {}, "steps": 1, **seconds}


def records(*runs):
    return {(each["row"], each["column"], each["seed"]): each for each in runs}


def test_tables_have_rows_for_stored_runs_alone():
    runs = [record("standard", "0.05", 0, 69), record("UNA", "0.05", 0, 70.5), record("focal", "0.07", 0, 68)]
    results = effects_tables.Results(LAB, records(*runs, record("UNA, beta 0.3", "0.05", 0, 70)))
    assert effects_tables.systems(results)[1] == [
        ["standard", "0.05, published", "1", "7", "69.00", "", "", "", ""],
        ["UNA", "0.05, published", "1", "7", "70.50", "+1.50, one seed", "", "+0.82", "no interval"],
        ["focal", "0.07, published", "1", "7", "68.00", "-1.00, one seed", "", "+1.64", "no interval"],
    ]
    beta, margin = LAB.comparisons[2], LAB.comparisons[4]
    assert [row[0] for row in effects_tables.comparison(results, beta)[1]] == ["0.5", "0.3"]
    assert effects_tables.comparison(results, margin)[1] == []


def test_a_sign_needs_several_seeds_and_a_p_value_that_is_adjusted_over_the_rows():
    runs = [record("standard", "0.05", seed, 69) for seed in range(3)]
    wide = list(range(-40, 960, 10))  # of 100 draws, four are below 0: p = 0.08
    gains = {"UNA": 2, "PCL": 0.3, "SNCSE": -2}
    runs += [record(name, "0.05", seed, 69 + gain) for name, gain in gains.items() for seed in range(3)]
    runs += [record("WhitenedCSE", "0.05", seed, 69 + 4.6, draws=[6900 + draw for draw in wide]) for seed in range(3)]
    for each in runs:
        if each["row"] == "standard":
            each["draws"] = dict.fromkeys(KEPT, [6900] * 100)
    printed = {row[0]: row for row in effects_tables.systems(effects_tables.Results(LAB, records(*runs)))[1]}
    assert {name: row[-1] for name, row in printed.items()} == {
        "standard": "",
        "UNA": "same",
        "PCL": "same",
        "SNCSE": "**opposite**",
        "WhitenedCSE": "undecided",
    }
    assert float(printed["UNA"][-3]) == pytest.approx(4 * 2 / 2000)  # the smallest p-value, times four rows
    assert float(printed["WhitenedCSE"][-3]) == pytest.approx(0.08, abs=0.03)


def test_published_and_measured_changes_are_correlated_by_rank():
    published = LAB.published
    runs = [record("standard", "0.05", 0, 69)]
    runs += [record(name, LAB.systems[name], 0, 69 + 2 * change) for name, change in published.items()]
    (row,) = [
        each for each in effects_tables.order(effects_tables.Results(LAB, records(*runs)))[1] if "average" in each[0]
    ]
    assert row[1:] == [str(len(published)), "+1.00 [+1.00, +1.00]"]
    rho, low, high = rank_correlation(range(9), [3, 0, 1, 2, 8, 4, 5, 6, 7])
    assert rho == pytest.approx(1 - 6 * (9 + 3 + 16 + 4) / (9 * 80))
    assert np.arctanh(high) - np.arctanh(low) == pytest.approx(2 * 1.96 * np.sqrt((1 + rho**2 / 2) / 6))


def on(device, *runs, **identity):
    """Records of runs on a device, with the same base, sentences and data."""
    same = {"device": device, "model": "b", "corpus": "c", "evaluation data": "d", **identity}
    return records(*({**run, "identity": same} for run in runs))


def test_the_files_of_the_sts_tasks_may_be_in_a_subfolder(tmp_path):
    inputs = smoke_inputs(LAB.table, tmp_path / "smoke", "cpu", 1)
    (tmp_path / "all").mkdir()
    inputs.data.rename(tmp_path / "all" / "sts")
    scorer = Scorer("effects", LAB.table.columns, tmp_path / "all", True)
    assert {*scorer.clean} == {*CLEAN_FILES}
    assert len(clean_files(tmp_path / "all", tmp_path / "made")) == len(CLEAN_FILES)


def test_changes_on_two_devices_are_compared_each_with_the_standard_run_of_its_own_device(tmp_path):
    from scipy.stats import ttest_ind

    one, other = [1.0, 1.4, 0.9], [0.2, 0.5]
    sides = []
    for device, base, changes in (("cpu", 60, one), ("gpu", 70, other)):
        runs = [record("standard", "0.05", seed, base + seed) for seed in range(len(changes))]
        runs += [record("UNA", "0.05", seed, base + seed + change) for seed, change in enumerate(changes)]
        sides.append(on(device, *runs, record("SSCL", "0.05", 0, base + 2)))
    lab = LAB
    head, rows = effects_tables.across(effects_tables.Results(lab, sides[0]), effects_tables.Results(lab, sides[1]))
    rows = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    expected = ttest_ind(one, other, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert rows["UNA"]["difference [95 % interval]"] == f"+0.75 [{low:+.2f}, {high:+.2f}]"
    assert float(rows["UNA"]["p (Holm)"]) == pytest.approx(expected.pvalue, rel=0.05)
    assert (rows["UNA"]["seeds"], rows["UNA"]["its seeds"]) == ("3", "2")
    assert rows["SSCL"]["difference [95 % interval]"] == "+0.00, one seed"
    assert "Across devices: a and b" in effects_tables.tables_of(lab, {"b": sides[1], "a": sides[0]})
    for changed in ({"model": "other"}, {"corpus": "other"}, {"device": "cpu"}):
        them = {key: {**run, "identity": {**run["identity"], **changed}} for key, run in sides[1].items()}
        assert effects_tables.across(effects_tables.Results(lab, sides[0]), effects_tables.Results(lab, them)) == (
            [],
            [],
        )
    # A row of a user is compared with all systems.
    (tmp_path / "rows.toml").write_text('[[rows]]\nname = "mine"\nsettings = { loss_terms = ["ball"] }\n')
    lab = effects.laboratory(tmp_path / "rows.toml")
    mine = on("cpu", record("standard", "0.05", 0, 60), record("mine", "0.05", 0, 61))
    _, rows = effects_tables.across(effects_tables.Results(lab, mine), effects_tables.Results(lab, sides[1]))
    assert [(row[0], row[4]) for row in rows] == [("mine", "UNA"), ("mine", "SSCL")]


def test_stored_runs_name_their_base_and_sentences_and_others_are_refused(tmp_path):
    from cse_papers.reproduce.scores import hash_file

    for name in ("one", "other"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n", encoding="utf8")
    known = {"corpus": hash_file(str(tmp_path / "one.txt")), "model": "base"}
    stored = {"set": on("cpu", record("UNA", "0.05", 0, 60), **known)}
    inputs, said = Inputs(tmp_path, tmp_path / "one.txt", model=str(tmp_path / "base"), stored=stored), []
    laboratory_inputs(inputs, tmp_path / "made", said.append)
    assert not said
    check_stored(replace(inputs, model=None), tmp_path / "made" / "sentences.txt", said.append)
    assert "began with a base of the hash base; --base names it" in said[0]
    with pytest.raises(InputError, match=f"were trained on {known['corpus']}; name that file, or omit --stored"):
        laboratory_inputs(replace(inputs, corpus=tmp_path / "other.txt"), tmp_path / "new", print)
    with pytest.raises(InputError, match="its weights have the hash other, but the runs of --stored began with base"):
        laboratory_inputs(replace(inputs, model=str(tmp_path / "other")), tmp_path / "made", print)


def test_the_order_over_all_sets_takes_each_system_from_the_set_with_most_seeds():
    gains = {"UNA": 1, "PCL": 2, "SNCSE": 3, "RankCSE": 4}
    sets = {}
    for name, seeds, more in (("one", {"UNA": 2, "PCL": 1}, 0), ("other", {"PCL": 2, "SNCSE": 1, "RankCSE": 1}, 10)):
        runs = [record("standard", "0.05", seed, 60) for seed in range(2)]
        runs += [record(row, "0.05", seed, 60 + gains[row] + more) for row, n in seeds.items() for seed in range(n)]
        sets[name] = records(*runs)
    rows = effects_tables.tables_of(LAB, sets)["Order: the set with most seeds"][1]
    assert [row[:3] for row in rows[:4]] == [
        ["UNA", "one", "2"],
        ["PCL", "other", "2"],
        ["RankCSE", "other", "1"],
        ["SNCSE", "other", "1"],
    ]
    assert rows[4][4].startswith("+1.00 [")  # published: .82, 2.17, 2.72 and 3.80


def test_the_file_of_a_base_has_weights_of_eight_bits_and_is_refused_if_they_changed(tmp_path, tiny_bert):
    from safetensors.numpy import load_file

    model = Path(tiny_bert)
    file = pack(model, tmp_path / "packed")
    found = unpack(file, tmp_path / "made")
    assert file.name == f"base-{weights_key(str(found))}.zip"
    weights = [load_file(folder / "model.safetensors") for folder in (model, found)]
    assert weights[0].keys() == weights[1].keys()
    for name, before in weights[0].items():
        step = np.abs(before).max(-1, keepdims=True) / 127 if before.ndim == 2 else 0 * before
        assert (np.abs(weights[1][name] - before) <= step * 0.501).all(), name
    assert {path.name for path in file.parent.iterdir()} == {file.name}
    renamed = file.with_name("base-0123456789abcdef.zip")
    renamed.write_bytes(file.read_bytes())
    with pytest.raises(InputError, match="not the one in its name; copy it again"):
        unpack(renamed, tmp_path / "new")
    for damaged in (
        b"PK",
        file.read_bytes()[:-200],
        file.read_bytes().replace(b"model.safetensors", b"model.safetensorz"),
    ):
        renamed.write_bytes(damaged)
        with pytest.raises(InputError, match="is not the file of a base, or is damaged"):
            unpack(renamed, tmp_path / "new")
    assert not any((tmp_path / "new").glob("*"))  # a whole file can be copied to the same name


def test_a_base_of_stored_runs_with_another_tokenizer_is_refused(tmp_path, tiny_bert, monkeypatch):
    file = pack(Path(tiny_bert), tmp_path / "packed")
    monkeypatch.setitem(base_file.REST, file.stem.removeprefix("base-"), "0123456789abcdef")
    with pytest.raises(InputError, match="configuration or tokenizer differs from that of the stored runs"):
        unpack(file, tmp_path / "made")
    assert not any((tmp_path / "made").glob("*"))
    monkeypatch.undo()
    (unpack(file, tmp_path / "made") / "config.json").write_text("{}")
    monkeypatch.setitem(base_file.REST, file.stem.removeprefix("base-"), "0123456789abcdef")
    with pytest.raises(InputError, match="configuration or tokenizer differs"):
        unpack(file, tmp_path / "made")


def test_a_setting_that_is_invalid_is_refused_before_the_base_is_made(tmp_path, monkeypatch):
    (tmp_path / "rows.toml").write_text('[[rows]]\nname = "mine"\nsettings = { una = { beta = 7 } }\nlike = "UNA"\n')
    (tmp_path / "corpus.txt").write_text("one\ntwo\n", encoding="utf8")
    lab = effects.laboratory(tmp_path / "rows.toml")
    monkeypatch.setattr("cse_papers.reproduce.inputs.make", pytest.fail)
    inputs = Inputs(tmp_path, tmp_path / "corpus.txt")
    work = Work(lab.table, lab.table.find_rows(["mine"]), [0], inputs, None, tmp_path / "out")
    with pytest.raises(InputError, match="beta"):
        run_and_show(lab, work, Shown())


def small_record(row, tau, seed, value):
    scores = {"halves": value, "alignment": 0.1, "uniformity": -2.0}
    draws = [round(100 * value) + step for step in range(-50, 50)] if row == "standard" else [round(100 * value)] * 100
    made = {"row": row, "column": tau, "seed": seed, "scores": scores, "draws": {"halves": draws}}
    return {**made, "train_seconds": 7.0, "identity": {}}


def test_the_small_laboratory_compares_rows_with_the_standard_loss_at_their_temperature():
    from cse_papers.reproduce import small

    cells = [(cell.row.name, cell.column, cell.seed) for cell in small.cells_of_rows(LAB, ["UNA", "focal"], range(2))]
    names = [("standard", "0.05"), ("standard", "0.07"), ("UNA", "0.05"), ("focal", "0.07")]
    assert cells == [(effects.BEFORE, None, None), *((*name, seed) for seed in range(2) for name in names)]
    others = ["focal, m 0.1", "standard, nt-xent, EDA swap", "focal + SSCL", effects.BEFORE]
    found = small.cells_of_rows(LAB, others, [0])
    assert {cell.row.name: cell.column for cell in found if cell.row.name in others} == {
        "focal, m 0.1": "0.07",
        "standard, nt-xent, EDA swap": "0.05",
        "focal + SSCL": "0.07",
        effects.BEFORE: None,
    }
    runs = [small_record(*name, seed, 50 + n) for n, name in enumerate(names) for seed in range(2)]
    head, rows = effects_tables.small_table(
        effects_tables.Results(LAB, records(small_record(effects.BEFORE, None, None, 40), *runs))
    )
    assert not any("published" in name for name in head)
    rows = {(row[0], row[1]): row[2:] for row in rows}
    assert rows[effects.BEFORE, ""] == ["", "", "40.00", "", "", ""]
    assert rows["focal", "0.07"][:4] == ["2", "7", "53.00", "standard, 0.07"]
    assert rows["focal", "0.07"][4].startswith("+2.00 [+1.")
    trained, judged = small.sample(LAB.small.judged)
    assert len(judged) == LAB.small.judged
    assert not set(trained) & set(judged)
    assert len(trained) > 8000


@pytest.mark.slow
def test_the_small_laboratory_needs_no_data_and_marks_every_output(tmp_path, cse):
    inputs = smoke_inputs(LAB.table, tmp_path / "smoke", "cpu", 1)
    given = [
        "reproduce",
        "effects",
        "--small",
        "--base",
        inputs.model,
        "--max-steps",
        "2",
        "--row",
        "UNA",
        "--threads",
        "1",
    ]
    outputs = ["--csv", tmp_path / "t.csv", "--picture", tmp_path / "t.svg", "-o", tmp_path / "out"]
    done = cse(*given, *outputs, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["small"] is True
    assert [row[0] for row in found["tables"]["Systems (small)"]["rows"]] == [effects.BEFORE, "standard", "UNA"]
    assert "Systems (small)" in (tmp_path / "t.csv").read_text(encoding="utf8")
    assert "small" in (tmp_path / "t.svg").read_text(encoding="utf8")
    again = cse(*given, "-o", tmp_path / "out", cwd=tmp_path)
    assert "5 of them stored" in again.stderr
    assert "### Systems (small)" in again.stdout


def test_the_clean_development_set_chooses_the_temperature_if_all_runs_have_its_score():
    def grid(name, clean):
        return [record(name, tau, 0, 70 + n, 80 - n if clean else None) for n, tau in enumerate(LAB.table.columns)]

    results = effects_tables.Results(LAB, records(*grid("standard", True), *grid("UNA", False)))
    assert results.best() == {"standard": "0.05", "UNA": "0.15"}
    said = effects_tables.chosen_by(results)
    assert "on STS-B dev, clean and SICK-R train and dev, clean: standard" in said
    assert "on STS-B dev, most of whose pairs are test pairs: UNA" in said


def test_stored_sets_are_read_as_they_were_written(tmp_path):
    sets = {"one": records(record("UNA", "0.05", 1, 70.25)), "two": records(record("standard", "0.1", 0, 71))}
    write_sets(tmp_path / "runs.parquet", sets)
    assert read_sets(tmp_path / "runs.parquet") == sets
    (tmp_path / "other.parquet").write_text("x")
    with pytest.raises(InputError, match="not a file of stored runs"):
        read_sets(tmp_path / "other.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows = 1", "rows: must be a list"),
        ('[[rows]]\nname = "UNA"', "the name is taken"),
        ('[[rows]]\nname = "UNA + SSCL"', "the name is taken"),
        ('[[rows]]\nname = "my loss"\n[[rows]]\nname = "My-loss"', "two runs would have the folder my-loss-0.05"),
        (
            '[[rows]]\nname = "mine"\ngrid = { "una.beta" = [-0.1, 0.1] }\nlike = "UNA"',
            "two runs would have the folder mine-una.beta-0.1",
        ),
        ('[[rows]]\nname = "x"\nlike = "y"', "like names no row"),
        ('[[rows]]\nname = "x"\ntau = 0.0', "tau must be at least 0.0001, got 0.0"),
        ('[[rows]]\nname = "x"\ngrid = { "una.beta" = [] }', "grid has a setting without values"),
        ('[[rows]]\nname = "x"\nsettings = { temperature = 0.1 }', "temperature must be given as tau, or in grid"),
        ('[[rows]]\nname = "x"\nlike = "z"\n[[rows]]\nname = "z"', "none above it, 'z'"),
        ('[[rows]]\nname = "x"\npublished = 0.8', "published: must be an object"),
        ('[[rows]]\nname = "x"\nloss = "focal"', "unknown key loss"),
        ('[[rows]]\nname = "x"\nsettings = { teacher = "{trained UNa}" }', "{trained UNa} must name a system"),
        (
            '[[rows]]\nname = "x"\nsettings = { teacher = "{trained RankCSE}" }',
            "must name a system that needs no trained encoder itself; choose one of standard, UNA",
        ),
    ],
)
def test_a_file_of_rows_with_a_mistake_is_refused(tmp_path, text, message):
    file = tmp_path / "rows.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        effects.laboratory(file)


def test_lists_of_rows_that_are_like_others_are_joined_without_repetition(tmp_path):
    file = tmp_path / "rows.toml"
    file.write_text('[[rows]]\nname = "x"\nlike = "UNA"\nsettings = { negatives = ["una", "twins"] }\n')
    lab = effects.laboratory(file)
    (row,) = lab.table.find_rows(["x"])
    assert all(recipe.settings["negatives"] == ["una", "twins"] for recipe in row.recipes.values())


def test_a_row_of_a_user_may_have_another_loss_a_grid_and_any_temperature(tmp_path):
    (tmp_path / "rows.toml").write_text(
        """
[[rows]]
name = "other loss"
settings = { loss = "ball" }
[[rows]]
name = "grid"
settings = { loss_terms = ["ball"] }
tau = 0.06
grid = { "una.beta" = [0.2, 0.4], lr = [1e-5] }
published = { change = 0.8, source = "A. Author (2025), Table 2" }
[[rows]]
name = "warm"
like = "grid"
tau = 0.2
rivals = ["UNA", "grid"]
"""
    )
    lab = effects.laboratory(tmp_path / "rows.toml")
    recipes = {row.name: row.recipes for row in lab.table.rows}
    (only,) = recipes["other loss"].values()
    assert "temperature" not in only.settings
    found = {column: recipe.settings for column, recipe in recipes["grid"].items()}
    assert [*found] == ["una.beta 0.2, lr 1e-05", "una.beta 0.4, lr 1e-05"]
    for settings, beta in zip(found.values(), (0.2, 0.4), strict=True):
        assert (settings["una"], settings["lr"], settings["temperature"]) == ({"beta": beta}, 1e-5, 0.06)
    assert [*recipes["warm"]] == [*lab.table.columns, "0.2"]
    assert recipes["warm"]["0.2"].settings["loss_terms"] == ["ball"]
    runs = [(cell.row.name, cell.column) for cell in lab.cells(["grid", "other loss", "warm"], 1, {})]
    assert {name: sum(row == name for row, _ in runs) for name in ("grid", "other loss", "warm")} == {
        "grid": 2,
        "other loss": 1,
        "warm": 6,
    }
    assert lab.columns("standard") == lab.table.columns  # by which its best temperature is chosen
    grid = "una.beta 0.2, lr 1e-05"
    assert [lab.same("grid", grid), lab.same("warm", "0.2"), lab.same("warm", "0.1")] == ["0.06", "0.2", "0.1"]
    assert {("standard", "0.06"), ("standard", "0.2")} <= {*runs}
    assert lab.same("other loss", effects.OWN) == "0.05"  # it has no temperature
    rows = [record("standard", tau, 0, score) for tau, score in (("0.05", 69), ("0.06", 69.5))]
    rows += [record("grid", grid, 0, 70), record("UNA", "0.05", 0, 71)]
    results = effects_tables.Results(lab, records(*rows))
    printed = {(row[0], row[1]): row[5:] for row in effects_tables.systems(results)[1]}
    assert printed["grid", f"{grid}, own"] == ["+0.50, one seed", "", "+0.80", "no interval"]
    assert printed["UNA", "0.05, published"][0] == "+2.00, one seed"
    (rival,) = (each for each in lab.comparisons if each.title == "warm against UNA: system")
    assert [(line.row, line.tau) for line in rival.lines] == [("UNA", "0.05"), ("warm", "0.2")]
    (rival,) = (each for each in lab.comparisons if each.title == "warm against grid: system")
    assert rival.lines[0].tau == grid
    wanted = {(cell.row.name, cell.column, cell.seed) for cell in lab.cells(["warm"], 2, {})}
    assert {("UNA", "0.05", 1), ("warm", "0.2", 1), ("standard", "0.2", 1)} <= wanted


def test_a_file_of_runs_of_another_table_is_refused(tmp_path, cse_here):
    write_sets(tmp_path / "runs.parquet", {"one": records(record("standard", "0.05", 0, 69))})
    done = cse_here("reproduce", "domain", "--stored", tmp_path / "runs.parquet")
    assert done.returncode == 2
    assert "holds no runs of the table domain; name another file" in " ".join(done.stderr.split())


def test_stored_runs_of_rows_that_are_not_known_are_left_out(tmp_path, cse_here):
    runs = [record("standard", "0.05", 0, 69), record("UNA", "0.05", 0, 70)]
    sets = {"one": records(*runs), "two": records(record("own row", "0.05", 0, 71))}
    write_sets(tmp_path / "runs.parquet", sets)
    done = cse_here("reproduce", "effects", "--stored", tmp_path / "runs.parquet", "--json")
    assert done.returncode == 0, done.stderr
    assert "Systems (one)" in json.loads(done.stdout)["tables"]
    assert "1 runs of other rows than those of effects are left out" in " ".join(done.stderr.split())


def test_a_changed_comment_discards_no_runs(tmp_path):
    path = tmp_path / "mine.py"
    hashes = []
    for text in ("x = 1\n", "# why\nx = 1  # one\n", "x = 2\n"):
        path.write_text(text)
        hashes.append(hash_code(str(path)))
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_tables_are_also_written_as_csv_and_drawn(tmp_path, cse_here):
    runs = [record(name, "0.05", seed, 69 + gain) for name, gain in (("standard", 0), ("UNA", 1)) for seed in range(2)]
    write_sets(tmp_path / "runs.parquet", {"one": records(*runs)})
    outputs = ["--csv", tmp_path / "t.csv", "--picture", tmp_path / "t.svg", "--latex", tmp_path / "t.tex"]
    done = cse_here("reproduce", "effects", "--stored", tmp_path / "runs.parquet", *outputs)
    assert done.returncode == 0, done.stderr
    cells = list(csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf8").splitlines()))
    found = {
        each["column"]: each["value"] for each in cells if (each["table"], each["row"]) == ("Systems (one)", "UNA")
    }
    assert (found["seeds"], found["mean of seven"], found["published change"]) == ("2", "70.00", "+0.82")
    assert "UNA" in (tmp_path / "t.svg").read_text(encoding="utf8")
    (change,) = (each for each in cells if each["row"] == "UNA" and each["column"].startswith("change [95"))
    assert float(change["low"]) <= float(change["value"]) <= float(change["high"])
    assert change["text"] == f"{change['value']} [{change['low']}, {change['high']}]"
    tex = (tmp_path / "t.tex").read_text(encoding="utf8")
    (line,) = (line for line in tex.splitlines() if line.startswith("UNA & 0.05, published"))
    assert line.endswith(r" \\")
    assert r"change [95 \% interval]" in tex
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") > 0


def test_the_picture_of_the_order_leaves_out_systems_with_one_seed(tmp_path):
    from cse.reports.style import drawn

    runs = [record(name, "0.05", seed, 69) for name in ("standard", "UNA") for seed in range(2)]
    results = effects_tables.Results(LAB, records(*runs, record("mixed", "0.05", 0, 69)))
    picture = drawn([effects_tables.order_panel(results, "")], "svg").decode("utf8")
    assert "UNA" in picture
    assert "mixed" not in picture
    assert drawn([effects_tables.order_panel(results, "")], "pdf").startswith(b"%PDF")


@pytest.mark.slow
def test_a_row_of_a_user_is_run_beside_the_standard_loss_and_continued_after_a_kill(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text('[[rows]]\nname = "mine"\nsettings = { loss_terms = ["ball"] }\n')
    with patch.dict(LOSS_TERMS._loaded), patch.dict(AUGMENTATIONS._loaded):
        methods = Path(__file__).parents[1] / "helpers" / "user_methods.py"
        lab = effects.laboratory(tmp_path / "mine.toml", (str(methods),))
        inputs = smoke_inputs(lab.table, tmp_path / "smoke", "cpu", 1)
        scorer = Scorer("effects", lab.table.columns, inputs.data, True)
        work = Work(lab.table, lab.table.find_rows(["mine"]), [0], inputs, scorer, tmp_path / "out")

        def printed(work):
            capsys.readouterr()
            run_and_show(lab, work, Shown(as_json=True))
            said = capsys.readouterr()
            return json.loads(said.out), said.err

        found, _ = printed(work)
        rows = {(row[0], row[1].split(", ")[1]) for row in found["tables"]["Systems"]["rows"]}
        assert rows == {
            (name, which) for name, own in (("standard", "published"), ("mine", "own")) for which in ("best", own)
        }
        assert "SICK-R train and dev, clean: standard; mine" in found["selection"][""]
        (tmp_path / "out" / "mine-0.1" / "seed-0.json").unlink()  # as if killed before the last cell, and continued
        again, said = printed(replace(work, jobs=2))
        assert "10 of them stored" in said
        assert again["tables"]["Systems"] == found["tables"]["Systems"]
        runs = read_folder(tmp_path / "out")
        assert len(runs) == 11
        # Stored runs of equal settings are read, not run again.
        reading = replace(work, place=tmp_path / "new", inputs=replace(inputs, stored={"runs": runs}))
        assert printed(reading)[0] == again
        assert not list((tmp_path / "new").glob("*/seed-*"))


@pytest.mark.slow
def test_an_interrupted_masked_model_continues_with_the_same_result(minilm, tmp_path, sample_rows, monkeypatch):
    from cse_papers.reproduce import masked

    monkeypatch.setattr(masked, "SAVE_EVERY", 2)
    monkeypatch.setitem(masked.SETTINGS, "batch", 12)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(sample_rows[:60]) + "\n", encoding="utf8")

    def stop(message):
        if "step 2" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(corpus, tmp_path / "a", "cpu", 4, stop)
    said = []
    whole = make(corpus, tmp_path / "b", "cpu", 4, said.append)
    resumed = make(corpus, tmp_path / "a", "cpu", 4, said.append)
    assert masked.weights_key(str(resumed)) == masked.weights_key(str(whole))
    assert make(corpus, tmp_path / "b", "cpu", 4, pytest.fail) == whole  # made once


def test_the_laboratory_reads_the_first_sentences_of_a_corpus(tmp_path):
    (tmp_path / "corpus.txt").write_text("one\ntwo\n", encoding="utf8")
    inputs = Inputs(tmp_path, tmp_path / "corpus.txt", model="m")
    found = laboratory_inputs(inputs, tmp_path / "made", print)
    assert found.corpus.read_text(encoding="utf8") == "one\ntwo\n"
    assert found.files == {"base": "m"}
    for content, message in ((b"\xff\n", "is not UTF-8 text, or is damaged"), (b"\n", "has no sentence")):
        (tmp_path / "bad.txt").write_bytes(content)
        with pytest.raises(InputError, match=message):
            laboratory_inputs(replace(inputs, corpus=tmp_path / "bad.txt"), tmp_path, print)
    with pytest.raises(InputError, match="--corpus: name the file"):
        laboratory_inputs(replace(inputs, corpus=None), tmp_path, print)


def test_losses_on_documents_are_compared_with_the_standard_loss_at_the_same_temperature():
    table, records = find_table("domain"), {}
    generator = np.random.default_rng(0)
    for name, gain in (("cacm", 2.0), ("cosqa", 4.0)):
        before = generator.uniform(40, 60, 200)
        for row in table.rows:
            change = gain * row.method.startswith("focal") + 0.5 * row.method.endswith(", .1")
            for seed in (None,) if row.method == effects.BEFORE else range(3):
                values = before + (0 if seed is None else change + 0.1 * seed)
                records[row.name, name, seed] = {"draws": {"ndcg": np.round(100 * values).tolist()}}
    head, rows = changes_on_documents(table, {"cpu": records})
    assert head[2:4] == ["cacm", "cosqa"]
    rows = {row[0]: row[1:] for row in rows}
    # The mean of the seeds adds .1. Change: the standard error is .1 / sqrt(3 * 2). Difference: no variance.
    assert rows["focal, .05"] == ["3", "+2.1", "+4.1", "+3.10 [+3.02, +3.18]", "+3.00 [+3.00, +3.00]", "+2.1"]
    assert rows["standard, .1"] == ["3", "+0.6", "+0.6", "+0.60 [+0.52, +0.68]", "", "+0.6"]


@pytest.mark.slow
def test_the_table_of_losses_on_documents_is_a_selection_of_the_stored_runs():
    file = ROOT / "benches" / "results" / "rivals.parquet"
    if not file.exists():
        pytest.skip("there is no benches/ folder")
    (whole,) = tables_in("\n".join(lines_of(*changes_on_documents(find_table("domain"), read_sets(file)))))
    page = tables_in((ROOT / "docs" / "domain.md").read_text(encoding="utf8"))
    (rows,) = (len(table) for table in page if selected(table, whole))
    assert rows >= 8


@pytest.fixture(scope="module")
def stored_tables():
    """The tables of all sets of stored runs, by title."""
    if not STORED.exists():
        pytest.skip("there is no benches/ folder")
    return effects_tables.tables_of(LAB, read_sets(STORED))


def test_the_tables_of_the_page_are_selections_of_those_of_the_stored_runs(stored_tables):
    text = (ROOT / "docs" / "effects.md").read_text(encoding="utf8")
    shown = re.findall(r"^### (.*)\n\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(shown) == 2
    for title, rows in shown:
        (page,), (whole,) = tables_in(rows), tables_in("\n".join(lines_of(*stored_tables[title])) + "\n")
        assert selected(page, whole), title
        assert len(page) > 10


def test_every_marked_number_in_prose_is_that_of_its_row(stored_tables):
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = {path.name: faults(path.read_text(encoding="utf8"), stored_tables) for path in pages}
    assert not any(found.values()), found


def test_numbers_in_prose_that_differ_from_their_row_are_found():
    tables = {
        "T (A)": (["system", "mean of seven", "change [95 %]"], [["UNA", "70.12 (69.69)", "+1.14 [+0.79, +1.51]"]])
    }
    marker = "<!-- row: T (A) | UNA |"
    assert not faults(f"**+1.14 [+.79, +1.51]** {marker} change --> and 70.1\n{marker} mean -->", tables)
    assert len(faults(f"+1.15 {marker} change --> and +1.1 [.8, 1.6] {marker} change -->", tables)) == 2
    assert unmarked(f"of .05 +1.14 {marker} change --> and -.3, 70.1") == ["-.3", "70.1"]
    with pytest.raises(ValueError, match="1 markers, of which 0 follow a number"):
        marked(f"a gain {marker} change -->")
    for wrong in (f"1 {marker} cost -->", "1 <!-- row: T (A) | UN | change -->"):
        with pytest.raises(ValueError, match="is not one of"):
            faults(wrong, tables)
