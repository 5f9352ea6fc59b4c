"""``--teacher``: the loss term that learns the vectors of another encoder, which are computed once."""

import json
from pathlib import Path
from shutil import copytree, rmtree

import numpy as np
import pytest
import torch

from commands import refuses
from cse import Encoder, TrainConfig, context, train
from cse.evaluation.geometry import unit
from cse.losses import teacher as module
from cse.training.settings import described
from cse.training.setup import prepare
from cse.training.step.encode import Inputs
from cse.training.step.ranks import World
from cse.training.step.step import batch_step, propagate
from cse.views import RowStep, Views
from runs import first_batches, in_float64, records_of, resolved


def alignment(teacher, base):
    return module.alignment(*(torch.from_numpy(np.asarray(each)) for each in (teacher, base))).numpy()


@pytest.fixture
def taught(run_config, tmp_path):
    """A function that returns settings with a teacher and a cache of the test."""

    def settings(teacher, **changes):
        return run_config.replace(teacher=str(teacher), cache=str(tmp_path / "cache"), **{"pooler": "avg", **changes})

    return settings


@pytest.fixture
def teacher(masked_model):
    """An encoder with half as many dimensions as ``tiny_bert``."""
    return masked_model


@pytest.fixture
def encoded(monkeypatch):
    """The kind of encoder and the number of texts of all calls of ``Encoder.encode``."""
    calls, encode = [], Encoder.encode
    monkeypatch.setattr(
        Encoder,
        "encode",
        lambda *given, **named: calls.append((given[0].given[0], len(given[1]))) or encode(*given, **named),
    )
    return calls


def test_the_alignment_maximises_the_mean_cosine_over_all_rotations():
    generator = np.random.default_rng(0)
    base = generator.normal(size=(200, 6))
    turned = generator.normal(size=(200, 6)) * 0.1 + base  # the base's vectors, changed and rotated
    rotations = [np.linalg.qr(generator.normal(size=(6, 6)))[0] for _ in range(2000)]
    whole = alignment(base @ rotations[0], base)
    assert np.allclose(base @ rotations[0] @ whole, base, atol=1e-12)
    found = alignment(turned @ rotations[1], base)
    assert np.allclose(found.T @ found, np.eye(6), atol=1e-12)

    def mean_cosine(mapping):
        return (unit(turned @ rotations[1]) @ mapping * unit(base)).sum(1).mean()

    near = [found @ np.linalg.qr(np.eye(6) + 0.01 * generator.normal(size=(6, 6)))[0] for _ in range(200)]
    assert mean_cosine(found) >= max(map(mean_cosine, (*rotations, *(m * np.sign(np.diag(found.T @ m)) for m in near))))
    wide = np.hstack([turned, np.zeros((200, 5))]) @ np.linalg.qr(generator.normal(size=(11, 11)))[0]
    assert np.allclose(wide @ alignment(wide, base), turned @ alignment(turned, base), atol=1e-10)
    narrow = alignment(turned[:, :3], base)
    assert narrow.shape == (3, 6)
    assert np.allclose(narrow @ narrow.T, np.eye(3), atol=1e-12)
    assert alignment(wide[:4], base[:4]).shape == (11, 6)


@pytest.mark.parametrize("positive", ["dropout", "spans", "halves"])
def test_the_term_is_one_minus_the_mean_cosine_with_the_aligned_vectors_of_whole_rows(
    taught, teacher, positive, short_rows
):
    run = prepare(taught(teacher, positive=positive, options={"teacher": {"weight": 0.5}}))
    assert list(run.state.terms) == ["contrastive", "teacher"]
    used = [short_rows[row] for row in run.batches.order.used_rows()]
    mapping = alignment(Encoder(teacher).encode(used), run.state.encoder.encode(used))
    in_float64(run)
    (batch,) = first_batches(run)
    metrics = propagate(run.state, batch, run.forward)
    step = batch_step(run.state, Inputs(batch, "cpu"), run.forward, World())
    targets = Encoder(teacher).encode([short_rows[row] for row in batch.rows]) @ mapping
    with torch.no_grad():
        expected = np.mean((unit(step.encode("anchor").numpy()) * unit(targets)).sum(1))
    assert float(metrics["cos_teacher"]) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["loss/teacher"]) == pytest.approx((1 - expected) / 2, rel=1e-5)
    assert 0.01 < 1 - expected < 1


def test_rows_are_encoded_once_and_all_if_the_steps_use_most(taught, teacher, encoded, monkeypatch):
    monkeypatch.setattr("cse.encoder.stored_vectors.BLOCK", 20)
    config = taught(teacher, accumulate=2)
    shown = []
    run = prepare(config, progress=lambda *values: shown.append(values))
    used = np.unique(np.concatenate([run.batches[number].rows for number in range(16)]))
    assert (
        used.tolist() == run.state.terms["teacher"].table.model.rows.tolist() == run.batches.order.used_rows().tolist()
    )
    assert 64 < len(used) <= 128
    assert ("vectors of --teacher", len(used), len(used), "sentences") in shown

    def by_teacher(**changes):
        encoded.clear()
        again = prepare(config.replace(**changes))
        return again.state.terms["teacher"].table.model, sum(
            count for kind, count in encoded if kind == str(teacher) and count > 2
        )

    again, count = by_teacher()
    assert torch.equal(run.state.terms["teacher"].table.model.targets, again.targets)
    assert not count
    whole, count = by_teacher(max_steps=None, epochs=3)
    assert len(whole.rows) == 570
    assert count == 600
    assert not by_teacher(max_steps=None, epochs=2, seed=1)[1]
    found = np.isin(whole.rows, used)
    assert np.corrcoef(whole.targets[found].numpy().ravel(), again.targets.numpy().ravel())[0, 1] > 0.9


def test_with_a_teacher_the_recipe_of_sentence_encoders_is_the_teacher_alone():
    def values(family, **given):
        found = resolved(TrainConfig(model="m", **given), family)
        return found.loss.loss, found.loss.loss_terms, found.optimisation.max_steps, found.methods.positive

    for given in ({"teacher": "t"}, {"more_loss_terms": ("teacher",), "options": {"teacher": {"model": "t"}}}):
        assert values("encoder", **given) == ("teacher", (), 150, "dropout")
        assert values("encoder", epochs=1, mlm_weight=0.1, **given) == ("teacher", ("mlm",), None, "dropout")
    for given in ({"preset": "encoder"}, {"loss": "teacher"}):
        assert values("encoder", teacher="t", **given) == ("teacher", (), 150, "dropout")
    assert values("encoder", teacher="t", loss="focal")[::2] == ("focal", 60)
    assert values("encoder", teacher="t", labels="label", learn=True)[:2] == (
        "standard",
        ("keep-similarities", "teacher"),
    )
    assert values("bert-base", teacher="t") == ("standard", ("teacher",), None, "dropout")
    whole = resolved(TrainConfig(model="m", teacher="t"), "encoder")
    assert whole.options["dropout"] == {"mask": "shared"}


def test_a_model_that_declares_fewer_dimensions_learns_all_of_them(taught, teacher, tiny_bert, tmp_path):
    Encoder(tiny_bert, pooler="avg").save_pretrained(str(tmp_path / "cut"))
    file = tmp_path / "cut" / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf8")), "truncate_dim": 16}), encoding="utf8")
    run = prepare(taught(teacher, model=str(tmp_path / "cut"), pooler=None))
    assert run.state.terms["teacher"].table.model.targets.shape[1] == 32
    assert propagate(run.state, first_batches(run)[0], run.forward)["cos_teacher"] > 0


def test_a_card_names_an_encoder_without_its_folder(tmp_path):
    (tmp_path / "v.txt").touch()
    shown = {f"glove:{tmp_path}/v.txt": "glove:v.txt", f"whitening:org/m@{tmp_path}/v.txt@8": "whitening:org/m@v.txt@8"}
    shown |= {f"{tmp_path}/": tmp_path.name, "org/model": "org/model", "hf://a/b": "hf://a/b"}
    assert {value: described._without_folder(value) for value in shown} == shown


def test_what_cannot_teach_is_refused(taught, teacher, tmp_path, monkeypatch):
    refuses("^--teacher: .*nowhere", prepare, taught(tmp_path / "nowhere"))
    refuses("--loss-term teacher needs an encoder", prepare, taught("").replace(loss_terms=("teacher",)))
    table = tmp_path / "pairs.csv"
    table.write_text("anchor,positive\n" + "".join(f"one {i},two {i}\n" for i in range(40)), encoding="utf8")
    pairs = taught(teacher).replace(corpus=(), pairs=str(table), tfidf=None)
    refuses("^--teacher: belongs to a corpus of single texts, not to --pairs", prepare, pairs)
    refuses("output of the MLP head, which is not saved; add --keep-head", prepare, taught(teacher, pooler="cls"))
    monkeypatch.setattr(context, "MOST_VECTORS", 1000)
    refuses("the vectors of 64 rows would take 0.0 GiB of memory, and .*; use fewer rows", prepare, taught(teacher))


def test_a_run_is_not_resumed_with_another_teacher_of_the_same_name(taught, shallow, tmp_path):
    teacher = copytree(shallow(1), tmp_path / "teacher")
    folder = train(taught(teacher, max_steps=4, save_every=2)).folder
    assert all("cos_teacher" in record for record in records_of(folder)[0])
    card = (folder / "best" / "README.md").read_text(encoding="utf8")
    assert 'model = "teacher"' in card
    assert str(tmp_path) not in card
    longer = taught(teacher, max_steps=6)  # which uses other rows
    assert train(longer, resume=folder).steps == 6
    rmtree(teacher)
    copytree(shallow(2), teacher)
    refuses("--teacher .* has changed since the run began", train, longer, resume=folder)


def test_a_teacher_without_information_is_refused_and_rows_without_a_vector_are_not_taught(
    taught, short_corpus, tmp_path
):
    texts = Path(short_corpus).read_text(encoding="utf8").splitlines()
    words = sorted({word for text in texts for word in text.lower().split() if word.isalpha()})

    def vectors(name, lines):
        (tmp_path / name).write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in lines), "utf8")
        return f"glove:{tmp_path / name}"

    generator = np.random.default_rng(0)
    for name, lines, message in (
        ("none.txt", [("zzzz", [0.1] * 8), ("qqqq", [0.3] * 8)], "has a vector of zeros for all rows"),
        ("same.txt", [(word, [0.5, 1.0, 2.0]) for word in words], "has the same vector for all rows"),
    ):
        refuses(f"--teacher glove:.*{name}: {message}", prepare, taught(vectors(name, lines)))
    some = [(word, generator.normal(size=8).round(3).tolist()) for word in words[:3]]
    run = prepare(taught(vectors("some.txt", some)))
    (term,) = [term for name, term in run.state.terms.items() if name == "teacher"]
    known = term.table._model[0].targets.any(-1)
    assert 0 < known.sum() < len(known)
    assert f"has a vector of zeros for {int((~known).sum()):,} rows, which it does not teach" in run.facts["warning"]


def test_the_prompt_and_the_pooling_of_a_teacher_are_options_and_in_the_header(taught, teacher):
    plain = prepare(taught(teacher, options={"teacher": {"pooler": "avg"}}))
    assert plain.facts["teacher"].startswith(f"{teacher}: pooling avg")
    assert plain.facts["teacher"].endswith("no prompt")
    changed = {"pooler": "cls_before_pooler", "prompt": "query: "}
    other = prepare(taught(teacher, options={"teacher": changed}, name="other"))
    assert "pooling cls_before_pooler" in other.facts["teacher"]
    assert other.facts["teacher"].endswith("prompt 'query: '")
    tables = [run.state.terms["teacher"].table._model[0].targets for run in (plain, other)]
    assert not torch.allclose(*tables)


def test_masked_anchors_are_not_taught(taught, teacher):
    run = prepare(taught(teacher))
    term = run.state.terms["teacher"]
    rows = torch.from_numpy(run.batches[0].rows)
    z = torch.randn(len(rows), 32, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(len(rows)) % 3 > 0
    facts = {"number": 0, "steps": 1, "epoch": 0, "seed": 0, "uniform": None}
    masked = term(Views({"anchor": z}, masks={"anchor": mask}), RowStep(rows=rows, **facts))
    kept = term(Views({"anchor": z[mask]}), RowStep(rows=rows[mask], **facts))
    assert [float(each) for each in masked] == pytest.approx([float(each) for each in kept])
    assert float(masked[1]) == int(mask.sum()) < len(rows)


def test_stored_vectors_are_those_of_the_encoder_and_of_its_prompt(taught, teacher, shallow, encoded):
    def targets(model, **options):
        before = len(encoded)
        run = prepare(taught(model, options={"teacher": {"pooler": "avg", **options}}, name=f"run{before}"))
        calls = [count for name, count in encoded[before:] if name == str(model)]
        return run.state.terms["teacher"].table._model[0].targets, sum(calls)

    first, other = shallow(1), shallow(2)  # with as many dimensions
    one, count = targets(first)
    assert count > 0
    assert targets(first)[1] < count - 10  # of the cache; an encoder that is opened encodes two texts
    for again, options in ((other, {}), (first, {"prompt": "query: "})):
        found, calls = targets(again, **options)
        assert calls == count
        assert not torch.allclose(found, one, atol=1e-4)
