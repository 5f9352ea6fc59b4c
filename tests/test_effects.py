"""The laboratory benches/effects: its experiments, intervals, stored results and tables. No model is trained."""

import json
import re
import sys
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cse import TrainConfig
from prose import faults, marked, unmarked

ROOT = Path(__file__).resolve().parents[1]
EFFECTS = ROOT / "benches" / "effects"
if not EFFECTS.is_dir():
    pytest.skip("there is no benches/ folder", allow_module_level=True)
sys.path.insert(0, str(EFFECTS))
experiments, run, scores, table = map(import_module, ("experiments", "run", "scores", "table"))
Experiment = experiments.Experiment
ALL = list(chain(*experiments.declared({}).values()))


def test_every_experiment_is_declared_once():
    assert len({each.name for each in ALL}) == len(ALL) > 100
    assert len({json.dumps(each.keywords(), sort_keys=True) for each in ALL}) == len(ALL)


def test_the_settings_of_every_experiment_are_valid():
    from cse.cli import cli
    from cse.training.settings.precedence import resolve, with_preset

    context = cli.make_context("cse", [], resilient_parsing=True)
    for experiment in ALL:
        settings = experiment.keywords()
        if "una" in settings:
            settings["negatives"] = ("una", *settings.get("negatives", ()))
        config = TrainConfig(corpus="c.txt", model="m", **settings)
        resolve(with_preset(config), "bert-base")
        arguments = ["train", "c.txt", "--model", "m", *experiment.arguments()]
        _, command, rest = cli.resolve_command(context, arguments)
        command.make_context("train", list(rest))


def test_the_flags_of_an_experiment():
    settings = {"una": {"beta": 0.3}, "feature_augmentations": ["modals"], "modals": {"kind": "noise"}}
    flags = " ".join(Experiment("focal + UNA", 0.07, 2, "changed", settings).arguments())
    for part in (
        "--loss focal ",
        "--una --set una.every=5 --set una.use_as=pairs --set una.beta=0.3 --set una.radius=1%",
        "--feature-augmentation modals --set modals.kind=noise",
        "--temperature 0.07 --seed 2",
    ):
        assert part in flags


def test_the_best_temperatures_are_run_with_further_seeds():
    declared = experiments.declared({"focal": 0.1})["seeds"]
    assert {each.tau for each in declared if each.system == "focal"} == {0.07, 0.1}
    assert {each.seed for each in declared} == {1, 2, 3, 4}


def test_published_values_exist_for_every_row_that_names_one():
    published = table.Published()
    cells = [each.published(label) for each in experiments.ABLATIONS for label in each.rows]
    values = [published.cell(*cell) for cell in cells if cell is not None]
    assert len(values) > 50
    assert np.isfinite(values).all()
    after, before = experiments.PUBLISHED["UNA"]
    assert published.cell(*after, "Avg.") - published.cell(*before, "Avg.") == pytest.approx(0.82)


def test_the_interval_of_one_seed_holds_the_middle_of_the_resampled_differences():
    before = np.zeros((1, 1001))
    assert scores.interval(np.arange(1001.0)[None], before) == pytest.approx((25, 975))


def test_the_interval_of_several_seeds_has_the_variance_of_their_mean():
    seeds = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])  # no variance over pairs; standard error of the mean sqrt(2.5 / 5)
    low, high = scores.interval(3 + np.tile(seeds[:, None], (1, 2000)), np.zeros((5, 2000)))
    assert (low, high) == pytest.approx((3 - 1.96 * 0.5**0.5, 3 + 1.96 * 0.5**0.5), abs=0.15)


@pytest.fixture
def suite(tmp_path):
    """A suite whose sets have 40 pairs of 80 sentences each."""
    for number, key in enumerate(scores.FILES):
        rows = [f"{place % 6}\ta {number} {place}\tb {number} {place}\tgenre" for place in range(40)]
        (tmp_path / f"{key}.tsv").write_text("\n".join(rows) + "\n", encoding="utf8")
    return scores.read_suite(tmp_path)


def test_the_scores_are_those_of_the_package(suite):
    from cse.evaluation.sts import Pairs, score_vectors

    vectors = np.random.default_rng(0).normal(size=(len(suite.texts), 8)).astype(np.float32)
    found, _ = scores.evaluate(suite, vectors)
    for title, pairs in suite.sets.items():
        texts = [[suite.texts[place] for place in side] for side in (pairs.left, pairs.right)]
        expected = score_vectors(Pairs(pairs.gold, *texts), vectors[pairs.left], vectors[pairs.right])
        assert found[title] == pytest.approx(expected.spearman)
    assert found["mean"] == pytest.approx(np.mean([found[title] for title in scores.SEVEN]))
    assert found["alignment"] == pytest.approx(expected.alignment)  # STS-B dev is the last set
    assert found["uniformity"] == pytest.approx(expected.uniformity)


def test_all_runs_are_resampled_with_the_same_draws(suite):
    generator = np.random.default_rng(1)
    values = {title: generator.normal(size=len(pairs.gold)) for title, pairs in suite.sets.items()}
    first, second = (scores.resample(suite, each, draws=20) for each in (values, {n: 2 * v for n, v in values.items()}))
    assert first == second
    assert len(set(first["mean"])) > 10


def record(value, tau=0.05):
    draws = " ".join(f"{value + step / 100:.3f}" for step in range(100))
    titles = (*scores.SEVEN, "mean", "STS-B dev", "alignment", "uniformity")
    return {
        "scores": dict.fromkeys(titles, value),
        "resampled": dict.fromkeys(("mean", "STS-B", "STS-B dev"), draws),
        "train_seconds": {"core_per_step": 1.0},
    }


def test_stored_runs_are_skipped_and_results_of_another_base_are_refused(tmp_path):
    lab = run.Lab(tmp_path, {"base": "A", "corpus": "B", "data": "C"})
    experiment = Experiment("focal", 0.07)
    assert not lab.is_stored(experiment.name, experiment.arguments())
    lab.store(experiment.name, {"arguments": experiment.arguments(), **record(70)})
    assert lab.is_stored(experiment.name, experiment.arguments())
    assert not lab.is_stored(experiment.name, ["--loss", "focal"])  # declared with other arguments since then
    lab.identity["base"] = "D"
    with pytest.raises(SystemExit, match="another base"):
        lab.is_stored(experiment.name, experiment.arguments())


def test_tables_have_rows_for_stored_runs_alone(tmp_path):
    lab = run.Lab(tmp_path, {})
    for system, tau, value in (("standard", 0.05, 69), ("UNA", 0.05, 70.5), ("focal", 0.07, 68)):
        lab.store(Experiment(system, tau).name, {"arguments": [], **record(value)})
    lab.store(experiments.ABLATIONS[2].experiment("0.3").name, {"arguments": [], **record(70)})
    stored, published = table.Stored([tmp_path]), table.Published()
    assert table.systems(stored, published)[1] == [
        ["standard", "0.05, published", "1", "69.00", "", "", ""],
        ["UNA", "0.05, published", "1", "70.50", "+1.50 [+1.50, +1.50]", "+0.82", "same"],
        ["focal", "0.07, published", "1", "68.00", "-1.00 [-1.00, -1.00]", "+1.64", "**opposite**"],
    ]
    assert [row[0] for row in table.ablation(stored, published, experiments.ABLATIONS[2])[1]] == ["0.5", "0.3"]
    assert table.ablation(stored, published, experiments.ABLATIONS[3])[1] == []
    assert len(table.temperatures(stored)[1]) == len(table.data_sets(stored)[1]) == 3


def test_runs_of_two_bases_are_read_together_if_each_seed_belongs_to_one(tmp_path):
    for base, seed in (("A", 0), ("B", 1)):
        (tmp_path / base).mkdir()
        lab = run.Lab(tmp_path / base, {"base": base})
        for system, value in (("standard", 69), ("UNA", 70 + seed)):
            lab.store(Experiment(system, 0.05, seed).name, {"arguments": [], "seed": seed, **record(value)})
    rows = table.systems(table.Stored([tmp_path / "A", tmp_path / "B"]), table.Published())[1]
    assert [row[:4] for row in rows] == [
        ["standard", "0.05, published", "2", "69.00"],
        ["UNA", "0.05, published", "2", "70.50"],
    ]
    lab.store(Experiment("focal", 0.07, 0).name, {"arguments": [], "seed": 0, **record(70)})
    with pytest.raises(SystemExit, match="seed 0 was run from another base"):
        table.Stored([tmp_path / "A", tmp_path / "B"])


def test_a_run_names_the_models_that_it_needs(tmp_path):
    needed = {name for each in ALL for name in each.teachers}
    assert needed
    assert needed <= {each.name for each in experiments.declared({})["grid"]}
    lab = run.Lab(tmp_path, {}, work=tmp_path, base=Path("base"))
    flags = []
    lab.cse = lambda name, *arguments: flags.extend(arguments)
    lab.train(next(each for each in ALL if each.teachers))
    assert "{" not in "".join(flags)
    assert str(lab.model(sorted(needed)[0])) in " ".join(flags)
    assert lab.model("a") != run.Lab(tmp_path, {"base": "another"}, work=tmp_path).model("a")


def test_rows_without_a_sign_are_repeated_with_further_seeds(tmp_path):
    ablation = next(each for each in experiments.ABLATIONS if each.title.startswith("UNA, Table C5"))
    lab = run.Lab(tmp_path, {})
    for label, values in (("0.5", (70, 70)), ("0.3", (69, 71)), ("0.4", (71, 71.5))):
        experiment = ablation.experiment(label)
        draws = " ".join(f"{value:.3f}" for value in np.linspace(*values, 100))
        rest = {"scores": record(np.mean(values))["scores"], "train_seconds": {"core_per_step": 1.0}}
        lab.store(experiment.name, {"arguments": [], "seed": 0, "resampled": {"STS-B dev": draws}, **rest})
    stored = table.Stored([tmp_path])
    assert [each.name for each in table.undecided(stored, ablation)] == [
        ablation.experiment(label).name for label in ("0.5", "0.3")
    ]
    repeated = run.undecided(tmp_path)
    assert [each.seed for each in repeated] == [1, 1, 2, 2]
    for each in repeated:
        lab.store(each.name, {"arguments": [], "seed": each.seed, **record(72 if "0.3" in each.name else 70)})
    rows = {row[0]: row for row in table.ablation(table.Stored([tmp_path]), table.Published(), ablation)[1]}
    assert rows["0.3"][1:3] == ["3", "71.33"]
    assert rows["0.4"][1] == "1"


def test_mixtures_with_a_gradient_differ_from_mixed_negatives_in_the_gradient_alone():
    import torch

    from cse.features import FEATURE_AUGMENTATIONS
    from cse.losses.contrastive import contrastive_loss
    from cse.views import Views

    with FEATURE_AUGMENTATIONS.preserved():
        mixtures = import_module("mixtures")
    generator = torch.Generator().manual_seed(0)
    anchor, positive = (torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    u = torch.rand(6, 1, generator=generator)
    partners = torch.tensor([(row + 1 + int(u[row] * 5)) % 6 for row in range(6)])
    step = SimpleNamespace(uniform=lambda purpose, count: u)
    found = {}
    for gradient in (True, False):
        z = positive.clone().requires_grad_()
        options = mixtures.MixturesOptions(gradient=gradient)
        views = mixtures.Mixtures(options, None)(Views({"anchor": anchor, "positive": z}), step)
        loss = contrastive_loss(dict(views.embeddings), own_negatives=views.own_negatives)
        loss.backward()
        found[gradient] = loss.detach(), z.grad
    z = positive.clone().requires_grad_()
    loss = contrastive_loss({"anchor": anchor, "positive": z}, mixed="paper", partners=partners)
    loss.backward()
    assert torch.allclose(found[False][0], loss, rtol=1e-12)
    assert torch.allclose(found[False][1], z.grad, rtol=1e-10)
    assert torch.allclose(found[True][0], loss, rtol=1e-12)
    assert not torch.allclose(found[True][1], z.grad, rtol=1e-2)


@pytest.fixture(scope="module")
def stored_tables():
    """The tables of all sets of stored runs, by title."""
    return table.tables_of_sets()


@pytest.fixture(scope="module")
def page():
    return (ROOT / "docs" / "effects.md").read_text(encoding="utf8")


def test_the_tables_of_the_page_are_those_of_the_stored_runs(stored_tables, page):
    shown = re.findall(r"^### (.*)\n\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert len(shown) > 20
    for title, rows in shown:
        assert rows.splitlines() == table.lines(stored_tables[title], markdown=True), title


@pytest.mark.parametrize(
    "path", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]), ids=lambda path: path.name
)
def test_every_marked_number_in_prose_is_that_of_its_row(stored_tables, path):
    assert faults(path.read_text(encoding="utf8"), stored_tables) == []


def test_every_change_and_score_in_the_text_of_the_page_is_marked(page):
    prose = "\n".join(line for line in page.splitlines() if not line.startswith("|"))
    assert len(marked(prose)) > 25
    assert unmarked(prose) == []


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


def test_changes_without_an_interval_have_no_sign(stored_tables):
    for title in ("with", "alignment with"):
        rows = stored_tables[f"Focal-InfoNCE, Table 3: {title} (H200)"][1]
        assert {row[-1] for row in rows[1:]} == {"no interval"}
