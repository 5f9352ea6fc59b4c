"""Tests of learning from labels (--learn): the classes of rows, their positives and negatives, and what is refused."""

from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cosine_similarity

from cse import InputError, train
from cse.augment import AUGMENTATIONS
from cse.augment.base import Draws
from cse.augment.same_label import SameLabel, SameLabelOptions
from cse.context import TextContext
from cse.data.classes import Classes
from cse.data.corpus import Corpus
from cse.evaluation.base import Pairs
from cse.losses.auxiliary import similarity_divergence
from cse.training.callbacks import Callback
from cse.training.loop import Trainer, resumed_config
from cse.training.remarks import notes
from cse.training.scoring import Scorer
from cse.training.selection import Selector
from cse.training.setup import prepare
from cse.training.step.encode import Inputs, gathered_views
from cse.training.step.ranks import World
from cse.training.step.step import batch_step, propagate
from runs import first_batches, in_float64, labelled_corpus, write_table


@pytest.fixture
def table(tmp_path, sample_rows):
    """A table of 200 sentences, of which every fifth has one of three labels, too few of each to judge."""
    rows = [(text, "abc"[number // 5 % 3] if number % 5 == 0 else "") for number, text in enumerate(sample_rows[:200])]
    return write_table(tmp_path / "table.csv", rows)


@pytest.fixture
def learning(run_config, table):
    return run_config.replace(corpus=table, column="text", labels="label", learn=True, tfidf=None)


def pairing(texts, classes, rest=None, **options):
    names = sorted({str(number) for number in classes if number >= 0})
    context = TextContext(corpus=Corpus.from_texts(texts), classes=Classes("label", names, np.array(classes)))
    context.rows = np.arange(len(texts))
    method = SameLabel(SameLabelOptions(**options), context)
    method.rest = rest
    return method


def test_a_text_with_two_labels_has_no_class_and_equal_texts_have_the_same(tmp_path):
    rows = [("one", "a"), ("two", "b"), ("one", "b"), ("three", " a "), ("two", ""), ("", "a"), ("four", "")]
    _, found = labelled_corpus(tmp_path / "t.csv", rows)
    assert found.names == ["a", "b"]
    assert found.of_rows.tolist() == [-1, 1, -1, 0, 1, -1, -1]


def test_the_positive_is_each_other_text_with_the_label_equally_often_and_depends_only_on_seed_epoch_and_row():
    texts = ["a0", "a1", "a2", "a3", "a1", "b0", "b1", "none", "alone"]
    method = pairing(texts, [0, 0, 0, 0, 0, 1, 1, -1, 2])
    rows = np.arange(9)
    counts = {text: Counter() for text in texts}
    for epoch in range(900):
        made = method(texts, rows, Draws(3, epoch))
        assert made.anchors == texts
        assert made.mask.tolist() == [True] * 7 + [False] * 2
        assert made.labels[:7].tolist() == [0, 0, 0, 0, 0, 1, 1]
        assert max(made.labels[7:]) < 0  # no other text has the label of the last row
        for text, positive in zip(texts[:7], made.positives, strict=False):
            counts[text][positive] += 1
        some = method([texts[6], texts[2]], rows[[6, 2]], Draws(3, epoch))
        assert some.positives == [made.positives[6], made.positives[2]]
    assert [each.text for each in method.examples(texts, rows, Draws(3, 0))] == texts[:7]
    for text in ("a0", "a1", "a2", "a3"):
        assert counts[text].keys() == {"a0", "a1", "a2", "a3"} - {text}
        assert max(counts[text].values()) < 1.25 * min(counts[text].values())
    assert counts["b0"].keys() == {"b1"}


def test_rows_without_a_label_have_the_positives_of_the_recipe(sample_rows):
    texts, rows = sample_rows[:60], np.arange(60)
    classes = [number % 2 if number < 20 else -1 for number in range(60)]
    for name in ("spans", "halves", "dropout", "delete"):
        kind = AUGMENTATIONS.get(name)
        rest = kind(kind.Options(), TextContext())
        made, alone = pairing(texts, classes, rest)(texts, rows, Draws(1, 2)), rest(texts, rows, Draws(1, 2))
        anchors = texts if isinstance(alone, list) else alone.anchors
        positives = alone if isinstance(alone, list) else alone.positives or texts
        assert made.anchors == [*texts[:20], *anchors[20:]]
        assert made.positives[20:] == positives[20:]
        assert not set(made.positives[:20]) & set(texts[20:])


def test_an_epoch_has_all_rows_with_a_label_and_takes_turns_with_as_many_of_the_others(learning):
    run = prepare(learning.replace(batch_size=16, max_steps=20))
    data, taught = run.batches, set(range(0, 200, 5))
    epochs = {}
    for number in range(20):
        batch = data[number]
        epochs.setdefault(batch.epoch, []).extend(batch.rows.tolist())
    assert data.order.per_epoch == 5  # 80 of 190 rows
    for rows in epochs.values():
        assert len(set(rows)) == 80
        assert set(rows) >= taught
    others = [row for rows in epochs.values() for row in rows if row not in taught]
    assert len(set(others)) == len(data.order.rows) - 40  # all are used before one is used again
    assert Counter(others).most_common(1)[0][1] == 2
    again = prepare(learning.replace(batch_size=16, max_steps=20, name="again")).batches
    assert again[13].rows.tolist() == data[13].rows.tolist()  # whatever was taken before


@pytest.mark.parametrize("changes", [{}, {"objective": "nt-xent"}, {"loss": "focal"}])
def test_rows_with_the_same_label_are_not_negatives_nor_those_without_one_of_those_with_one(learning, changes):
    run = prepare(learning.replace(batch_size=24, **changes))
    in_float64(run)
    (batch,) = first_batches(run)
    views = gathered_views(run.state, Inputs(batch, "cpu"), run.forward, World())
    found = propagate(run.state, batch, run.forward)["loss"]
    margin = run.settings.contrastive.margin
    labels = [number // 5 % 3 if number % 5 == 0 else -1 - number for number in batch.rows]
    assert len(set(labels)) < len(labels)
    names = ["anchor", "positive"]
    anchors = names if changes.get("objective") else names[:1]
    columns = names if changes.get("objective") else names[1:]
    losses = []
    for one in anchors:
        for row, label in enumerate(labels):
            logits = {}
            for other in columns:
                for place, its in enumerate(labels):
                    is_positive = place == row and other != one
                    if is_positive or (its != label and (its < 0) == (label < 0)):  # see Views.equal
                        s = cosine_similarity(views[one][row], views[other][place], dim=0)
                        focal = s * (s + margin * (not is_positive))
                        logits[other, place] = (focal if changes.get("loss") else s) / run.settings.loss.temperature
            own = logits[columns[-1] if one == "anchor" else "anchor", row]
            losses.append(torch.logsumexp(torch.stack(list(logits.values())), 0) - own)
    assert found.item() == pytest.approx(torch.stack(losses).mean().item(), abs=1e-9)


def test_similarities_are_kept_of_rows_without_a_label_only(learning):
    run = prepare(learning.replace(batch_size=24, loss_terms=("keep-similarities",)))
    in_float64(run)
    term = run.state.terms["keep-similarities"]
    (batch,) = first_batches(run)
    with torch.no_grad():
        for parameter in run.state.encoder.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    found = propagate(run.state, batch, run.forward)["kept"].item()
    inputs = Inputs(batch, "cpu")
    views = gathered_views(run.state, inputs, run.forward, World())
    assert views.taught.tolist() == [number % 5 == 0 for number in batch.rows]
    left, step = ~views.taught, batch_step(run.state, inputs, run.forward, World())
    expected = []
    for name in ("anchor", "positive"):
        base = step.encode(name, term.base)
        expected.append(similarity_divergence(base[left], views[name][left], 0.05).item())
    assert found == pytest.approx(np.mean(expected), abs=1e-10)
    assert found > 1e-6


@pytest.mark.parametrize("every", [2, 1])
def test_the_base_model_encodes_only_the_rows_whose_similarities_are_kept(
    learning, tmp_path, sample_rows, monkeypatch, every
):
    rows = [(text, "ab"[number // every % 2] if number % every == 0 else "") for number, text in enumerate(sample_rows)]
    file = write_table(tmp_path / "some.csv", rows[:80])
    run = prepare(learning.replace(corpus=file, batch_size=24, loss_terms=("keep-similarities",), folds=0))
    (batch,) = first_batches(run)
    base, encoded = run.state.terms["keep-similarities"].base, []
    embed = base.model.embed
    monkeypatch.setattr(base.model, "embed", lambda tokens: encoded.append(len(tokens["input_ids"])) or embed(tokens))
    kept = propagate(run.state, batch, run.forward)["kept"].item()
    without = sum(int(row) % every != 0 for row in batch.rows)
    assert sum(encoded) == 2 * max(without, 1)  # of the anchors and of the positives
    assert (kept == 0) == (without == 0)


def test_what_cannot_teach_is_refused_and_few_texts_of_a_label_are_said(learning, tmp_path, sample_rows):
    def prepared(*values):
        file = write_table(tmp_path / "other.csv", [*zip(sample_rows, values, strict=False)])
        return prepare(learning.replace(corpus=file, name=None))

    with pytest.raises(InputError, match=r"--labels label --learn: all rows .* have the same; at least two labels"):
        prepared(*["a"] * 100)
    with pytest.raises(InputError, match="--labels label --learn: no row to train on has a label"):
        prepared(*[""] * 100)
    with pytest.raises(InputError, match="100 texts with a label have 100 labels, nearly one each, as identifiers do"):
        prepared(*range(100))
    assert "50 labels have 2 texts each (median)" in prepared(*[number // 2 for number in range(100)]).facts["warning"]
    with pytest.raises(InputError, match="--learn has no effect without --labels"):
        learning.replace(labels=None)
    with pytest.raises(InputError, match="--keep-duplicates"):
        learning.replace(keep_duplicates=True)
    with pytest.raises(InputError, match="--positive same-label needs labels; use --labels COLUMN --learn"):
        prepare(learning.replace(learn=False, positive="same-label"))


def test_rows_that_judge_do_not_teach_and_rows_with_a_label_are_not_held_out_without_labels(
    learning, tmp_path, sample_rows
):
    rows = [(text, "ab"[len(text) > 110] if number < 300 else "") for number, text in enumerate(sample_rows[:400])]
    run = prepare(learning.replace(corpus=write_table(tmp_path / "many.csv", rows), folds=0))
    (judge,) = (each.texts for each in run.judge.evaluations)
    labelled = {text for text, label in rows if label}
    members = run.batches.corpus.take(run.batches.positive.members)
    assert len(judge.texts) == 60
    assert not set(judge.texts) & set(members)
    assert set(judge.texts) | set(members) == labelled
    assert run.state.selector.scorer.held_out
    assert not set(run.state.selector.scorer.held_out) & labelled


def test_rows_that_are_left_out_neither_teach_nor_are_trained_on(learning):
    every = prepare(learning, left_out=np.arange(0))
    fold = np.arange(0, 200, 25)
    run = prepare(learning.replace(name="fold"), left_out=fold)
    members = [set(each.batches.positive.members.tolist()) for each in (every, run)]
    assert members[0] == set(range(0, 200, 5))
    assert members[1] == members[0] - set(fold.tolist())
    assert not set(run.batches.order.rows.tolist()) & set(fold.tolist())
    assert not run.judge.evaluations


@pytest.mark.parametrize(
    ("dev", "metric", "scores"), [(True, "spearman", (80.0, 79.2, 78.8)), (False, "mrr", (0.9, 0.892, 0.888))]
)
def test_an_encoder_that_loses_more_than_a_point_elsewhere_is_not_selected(dev, metric, scores, monkeypatch):
    pairs = {"dev": Pairs(np.arange(3.0), ["a", "b", "c"], ["d", "e", "f"])}
    for last, best, words in (
        (scores[1], 60, "best/ is step 60: "),
        (scores[2], 0, "best/ is the encoder before training: "),
    ):
        selector = Selector(Scorer(None, pairs if dev else {}, [] if dev else ["a sentence"]), most_lost=1.0)
        records = [{metric: scores[0], "uniformity": -2.0}, {metric: last, "uniformity": -2.0}]
        monkeypatch.setattr(selector.scorer, "scores", lambda first, records=records: (records.pop(0), None))
        selector.score(0)
        assert selector.score(60)[1] == (best > 0)
        assert selector.best_step == best
        (note,) = notes(selector)
        assert note.startswith(words)
        assert f"changed by {-0.8 if best else -1.2} points" in note


def test_an_encoder_that_loses_too_much_is_averaged_with_the_base_as_little_as_suffices(learning, monkeypatch):
    scored = iter([0.9, 0.85, 0.855, 0.86, 0.895])  # before, at the end, with a tenth, a quarter and a half of the base
    monkeypatch.setattr(Scorer, "_scores", lambda selector: {"mrr": next(scored), "uniformity": -2.0})
    run = prepare(learning.replace(max_steps=2), left_out=np.arange(0))
    base = {name: each.clone() for name, each in run.state.encoder.state_dict().items()}
    trainer = Trainer(run, World(), Callback())
    result = trainer.run()
    assert result.best_step == 2
    assert result.after["mrr"] == 0.895
    assert any("averaged with the base model (weight 50%)" in note for note in result.notes)
    assert "averaged with the base model's (weight 50%)" in (result.folder / "best" / "README.md").read_text("utf8")
    saved = load_file(result.folder / "best" / "model.safetensors")
    trained = load_file(result.folder / "last" / "model.safetensors")
    for name, weights in saved.items():
        first = next(value for key, value in base.items() if key.endswith(name))
        assert torch.allclose(weights, (first + trained[name]) / 2, atol=1e-6)


def test_encoders_of_a_label_may_score_less_than_earlier_ones_which_counts_for_patience(monkeypatch):
    scorer = Scorer(None, {"dev": Pairs(np.arange(3.0), ["a", "b", "c"], ["d", "e", "f"])}, [])
    selector = Selector(scorer, most_lost=1.0)
    scores = iter([80.0, 81.0, 80.5, 80.2, 81.5])
    monkeypatch.setattr(scorer, "scores", lambda first: ({"spearman": next(scores), "uniformity": -2.0}, None))
    misses = []
    for step in range(5):
        assert selector.score(step)[1]  # each loses less than a point
        misses.append(selector.misses)
    assert misses == [0, 0, 1, 2, 0]


def test_neighbours_are_those_of_the_selected_encoder(learning, monkeypatch):
    run = prepare(learning.replace(max_steps=2), left_out=np.arange(0))
    monkeypatch.setattr(Scorer, "_scores", lambda selector: {"mrr": 0.9 - 0.1 * len(seen), "uniformity": -2.0})
    seen = []
    monkeypatch.setattr(Selector, "lost", lambda selector, record: seen.append(record) or 10.0)
    result = Trainer(run, World(), Callback()).run()
    assert len(seen) == 6  # the trained encoder, four averages, and the note
    assert result.best_step == 0
    assert result.neighbours == []


def test_few_labels_in_a_large_table_can_be_learned_with_dropout(learning, tmp_path, sample_rows, monkeypatch):
    monkeypatch.setattr("cse.training.batches.checks.SAMPLE_ROWS", 5)  # of all rows, none of them would have a label
    rows = [(text, "ab"[number % 2] if 12 <= number < 32 else "") for number, text in enumerate(sample_rows[:200])]
    corpus = write_table(tmp_path / "large.csv", rows)
    run = prepare(learning.replace(corpus=corpus, positive="dropout", loss_terms=()))
    assert len(run.batches.order.rows_of_epoch(0)) == 40


def test_a_resumed_run_has_the_labels_with_which_it_began(learning, sample_rows):
    config = learning.replace(corpus=(), column=None, max_steps=2)
    texts = sample_rows[:100]
    labels = ["ab"[number % 2] if number < 40 else None for number in range(100)]
    folder = train(config.replace(folds=0), texts=texts, labels=labels).folder
    longer = resumed_config(folder, {"max_steps": 3})
    with pytest.raises(InputError, match="the column of labels has changed since the run began"):
        train(longer, resume=folder, texts=texts, labels=labels[::-1])
    assert train(longer, resume=folder, texts=texts, labels=labels).steps == 3


def test_the_points_that_may_be_lost_for_the_labels_are_an_option(learning, monkeypatch):
    scored = iter([0.9, 0.5])
    monkeypatch.setattr(Scorer, "_scores", lambda selector: {"mrr": next(scored), "uniformity": -2.0})
    options = {"same-label": {"most_lost": 100.0}}
    run = prepare(learning.replace(max_steps=2, options=options), left_out=np.arange(0))
    result = Trainer(run, World(), Callback()).run()
    assert (result.best_step, run.state.selector.share) == (2, 0.0)
    assert any("changed by -40.0 points up to step 2; at most 100 may be lost" in note for note in result.notes)
