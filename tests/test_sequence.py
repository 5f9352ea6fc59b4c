"""--learn --teacher: a run that learns from the teacher, then one that learns the labels from its encoder."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from cse import Callback, Encoder, InputError, TrainConfig, train
from cse.classifier.stored import load
from cse.cli.commands.train import ConsoleCallback
from cse.encoder.taught import taught_of
from cse.errors import Interrupted
from cse.identity import row_keys
from cse.training import folds, loop, sequence
from cse.training.folder.stored import resumed_config
from cse.training.step.ranks import World
from runs import resolved, write_table


@pytest.fixture
def config(run_config, tiny_roberta, sample_rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cse.training.selection.Selector.lost", lambda selector, record: 0.0)
    draw = np.random.default_rng(0)
    rows = [(text, "ab"[len(text) % 2] if draw.random() < 0.5 else "") for text in sample_rows[:120]]
    table = write_table(tmp_path / "t.csv", rows)
    values = {"corpus": table, "column": "text", "labels": "label", "learn": True, "folds": 2, "output": "runs"}
    plain = run_config.replace(tfidf=None, pooler="avg", max_steps=3, batch_size=8, lr=1e-3, **values)
    return plain.replace(more_loss_terms=("teacher",), options={"teacher": {"model": str(tiny_roberta)}}, name="both")


def test_the_teacher_comes_first_and_the_verdict_compares_with_the_encoder_before_both(config, monkeypatch):
    made = []
    create = loop.prepare

    def counts(given, *more):
        made.append((given.name, given.learn, given.model))
        return create(given, *more)

    monkeypatch.setattr(loop, "prepare", counts)
    base, opened, load_encoder = str(config.model), [], loop.outputs.load

    def opens(run, model):
        opened.append((run.folder.name, str(model)))
        return load_encoder(run, model)

    monkeypatch.setattr(loop.outputs, "load", opens)
    result = train(config)
    assert [name for name, model in opened if model == base] == ["both"]
    first = "runs/both-teacher/best"
    checked, *trained = made
    assert checked == ("both", True, base)  # before anything is trained
    assert trained == [("both-teacher", False, base), ("both", True, first), ("1", True, first), ("2", True, first)]
    stored = TrainConfig.from_toml("runs/both/config.toml")
    assert stored.against == base
    assert "teacher" not in stored.all_terms
    teachers = json.loads((result.folder.with_name("both-teacher") / "result.json").read_text(encoding="utf8"))
    assert teachers["verdict"]["word"] == "not judged"
    assert any("compared with" in note for note in result.verdict["notes"])
    judge = create(stored, None, result.folder).judge
    judge.begin(Encoder(base, pooler="avg"))
    written = json.loads((result.folder / "before.json").read_text(encoding="utf8"))
    assert [each["values"] for each in written] == [sample.values.tolist() for sample in judge.before]
    assert len(result.verdict["measures"]) == 2
    taught = taught_of("runs/both/best")
    assert len(taught.labelled) > 0
    assert load(result.folder / "best").promise is not None
    card = (result.folder / "best/README.md").read_text(encoding="utf8")
    assert f"Base model: `{Path(base).name}`" in card
    teacher = Path(str(config.options["teacher"]["model"])).name
    assert f"Before this run, the model learned the vectors of the teacher {teacher}. Loss:" in card


def test_a_repeated_command_goes_on_after_the_teacher(config, monkeypatch):
    judged_by_fold = folds.judged_by_fold

    def stops(*given):
        raise MemoryError("a crash")

    monkeypatch.setattr(folds, "judged_by_fold", stops)
    with pytest.raises(MemoryError):
        train(config)
    monkeypatch.setattr(folds, "judged_by_fold", judged_by_fold)
    again = train(resumed_config("runs/both"), resume="runs/both")
    whole = train(config.replace(name="other"))
    assert again.verdict["measures"] == whole.verdict["measures"]  # notes name the folders
    # The run of the teacher stands: another run of labels begins with its encoder.
    shutil.rmtree("runs/other")
    trained = []
    run = loop.trained
    monkeypatch.setattr(
        loop,
        "trained",
        lambda given, *more, **how: (trained.append((given.name, more[2])), run(given, *more, **how))[1],
    )
    third = train(config.replace(name="other"))
    assert str(trained[0][1]).endswith("other-teacher")  # resumed, with nothing left to train
    assert third.verdict == whole.verdict
    shutil.rmtree("runs/other")
    with pytest.raises(InputError, match=r"was trained with other values \(seed\); remove it"):
        train(config.replace(name="other", seed=7))


def test_a_first_run_that_is_stopped_says_to_repeat_the_command(config):
    class Stops(Callback):
        said: str | None = None

        def on_step_end(self, step, steps):
            if self.said is None and step == 1:
                signal.raise_signal(signal.SIGTERM)

        def on_interrupt(self, why):
            self.said = why

    stops = Stops()
    with pytest.raises(Interrupted):
        train(config, stops)
    assert stops.said.startswith("stopped at step 1 of 3; ")
    assert stops.said.endswith("; to go on with this run and those after it, repeat the command")
    assert train(config, stops).folder.name == "both"


class Records(Callback):
    """Keeps what is said, and stops at a phase, as a signal outside the steps does."""

    def __init__(self, stop=""):
        self.said, self.why, self.stop = [], [], stop

    def on_status(self, text):
        self.said.append(text)
        if self.stop and text.startswith(self.stop):
            raise KeyboardInterrupt

    def on_progress(self, text, done, total, unit):
        if self.stop and text.startswith(self.stop):
            raise KeyboardInterrupt

    def on_interrupt(self, why):
        self.why.append(why)


def test_what_would_refuse_the_second_run_is_said_before_the_first_is_trained(config, tmp_path):
    (tmp_path / "runs/both").mkdir(parents=True)
    (tmp_path / "runs/both/notes.txt").write_text("mine")
    rows = [(f"sentence number {row}", "same") for row in range(100)]
    for changes, why in (
        ({}, "runs/both exists; choose another name or remove it"),
        ({"name": "one", "corpus": write_table(tmp_path / "one.csv", rows)}, "at least two labels"),
    ):
        with pytest.raises(InputError, match=why):
            train(config.replace(**changes))
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["both"]


def test_each_run_is_announced_with_what_follows_it(config):
    records = Records()
    train(config, records)
    said = [text for text in records.said if text.startswith("run ")]
    assert said == [
        "run 1 of 2: learning from the teacher, in runs/both-teacher; then 3 steps with the labels; these again for "
        "each of the 2 encoders that judge",
        "run 2 of 2: learning the labels, in runs/both",
    ]
    shown = ConsoleCallback()
    printed = []
    shown.display.print = printed.append
    train(config.replace(name="shown"), shown)
    assert [line.partition(":")[0] for line in printed if line.startswith("run ")] == ["run 1 of 2", "run 2 of 2"]
    assert printed.count("training ...") == 2
    assert sequence.to_come(80, 0, True) == "; then learning from it, and 80 steps with the labels"
    assert "; all of it again for each of the 5 encoders" in sequence.to_come(80, 5, True)


def test_an_interruption_outside_the_steps_says_how_to_go_on(config):
    def stopped(phase):
        records = Records(phase)
        with pytest.raises(Interrupted):
            train(config, records)
        (why,) = records.why
        return why

    assert stopped("vectors of") == loop.GO_ON  # the teacher encodes the rows
    assert stopped("run 2 of 2") == loop.GO_ON
    resume = "stopped before the verdict; runs/both/best holds the encoder; resume with: cse train --resume runs/both"
    assert stopped("evaluating best/") == resume
    # In an encoder of a fold, the run that it judges is named.
    records = Records("training 2 encoders")
    with pytest.raises(Interrupted):
        train(resumed_config("runs/both"), records, resume="runs/both")
    assert records.why == [resume]
    assert train(resumed_config("runs/both"), resume="runs/both").verdict["word"] != "not judged"


def test_a_command_without_a_name_names_the_run_that_was_interrupted(config):
    unnamed = config.replace(name=None)
    with pytest.raises(Interrupted):
        train(unnamed, Records("evaluating best/"))
    (first,) = (path.name for path in Path("runs").iterdir() if not path.name.endswith("-teacher"))
    with pytest.raises(InputError, match=f"runs/{first}: this run was interrupted; go on with cse train --resume"):
        train(unnamed)
    assert train(unnamed.replace(folds=0, max_steps=2)).folder.name == f"{first}-2"  # another run
    train(resumed_config(f"runs/{first}"), resume=f"runs/{first}")
    assert train(unnamed).folder.name == f"{first}-3"


def test_a_table_that_has_changed_since_the_first_run_is_named(config, tmp_path):
    train(config)
    shutil.rmtree("runs/both")
    with open(tmp_path / "t.csv", "a", encoding="utf8") as file:
        file.write("one more sentence,a\n")
    why = (
        "runs/both-teacher: the corpus or the index has changed since the run began; restore it, or remove this folder"
    )
    with pytest.raises(InputError, match=why):
        train(config)


def test_only_labels_with_a_teacher_are_two_runs(config):
    assert sequence.is_sequence(config)
    assert not sequence.is_sequence(config.replace(learn=False, folds=None))
    assert not sequence.is_sequence(config.replace(more_loss_terms=(), options={}))


def test_the_second_run_keeps_the_terms_of_the_recipe_however_the_teacher_is_given(config, tiny_roberta):
    for given, expected in (
        ({}, ("keep-similarities",)),
        ({"more_loss_terms": (), "options": {}, "teacher": str(tiny_roberta)}, ("keep-similarities",)),
        ({"more_loss_terms": ("teacher", "mlm")}, ("keep-similarities", "mlm")),
        ({"more_loss_terms": ("none", "teacher")}, ()),
        ({"loss_terms": ("keep-similarities", "teacher"), "more_loss_terms": ()}, ("keep-similarities",)),
    ):
        second = sequence.taught(config.replace(**given), World(), lambda *_: None)
        assert resolved(second, "encoder").loss.loss_terms == expected


@pytest.fixture
def tuned(config, monkeypatch):
    """A sequence whose teacher learns the labels first; and the folder, name, left-out rows, and whether it is judged,
    of each run that was prepared."""
    made, create = [], loop.prepare

    def noted(given, world, folder, progress, texts, labels, *apart):
        run = create(given, world, folder, progress, texts, labels, *apart)
        if apart:  # not the check before the first run
            left_out, judging = apart
            rows = None if left_out is None else tuple(left_out.tolist())
            made.append((run, str(given.name), rows, judging))
        return run

    monkeypatch.setattr(loop, "prepare", noted)
    return config.replace(tune_teacher=True, name="tuning"), made


def test_a_teacher_learns_the_labels_first_and_anew_for_each_fold(tuned, tiny_roberta):
    config, made = tuned
    result = train(config)
    names = ["tuning-tuned", "tuning-teacher", "tuning"]
    assert [name for _, name, _, _ in made] == [*names, "1-tuned", "1-teacher", "1", "2-tuned", "2-teacher", "2"]
    runs = {name: run for run, name, _, _ in made}
    parts = {name: rows for _, name, rows, _ in made}
    assert [judging for *_, judging in made] == [False, False, *[True] * 7]
    for name in ("tuning-tuned", "1-tuned", "2-tuned"):
        assert runs[name].settings.model.model == str(tiny_roberta)
        assert not runs[name].judge.evaluations
    labelled = runs["tuning"].taught.labelled
    for fold in "12":
        assert parts[fold] == parts[f"{fold}-tuned"] == parts[f"{fold}-teacher"]
        left = row_keys(runs["tuning"].batches.corpus.take(parts[fold]))
        for name in (fold, f"{fold}-tuned"):
            assert not np.isin(left, runs[name].taught.labelled).any()
            assert len(runs[name].taught.labelled) == len(labelled) - len(left)
    # All labels taught the teacher of the run, and judge it by the encoders of the folds.
    (judge,) = runs["tuning"].judge.evaluations
    assert sum(map(len, judge.rows)) == len(labelled)
    assert result.verdict["word"] != "not judged"
    assert load(result.folder / "best").promise is not None
    assert np.isin(labelled, taught_of("runs/tuning/best").labelled).all()
    card = (result.folder / "best/README.md").read_text(encoding="utf8")
    assert f"the teacher {tiny_roberta.name}, after it had learned the labels. Loss:" in card
    shutil.rmtree("runs/tuning-tuned")
    with pytest.raises(InputError, match="runs/tuning-tuned/best: is gone, so that it cannot be trained anew"):
        sequence.check(TrainConfig.from_toml("runs/tuning/config.toml"))
    assert not (result.folder / "folds").exists()


def test_folds_judge_a_base_that_learned_from_a_tuned_teacher_if_the_labels_teach_no_more(tuned, monkeypatch):
    monkeypatch.setattr("cse.training.selection.Selector.lost", lambda selector, record: 100.0)
    config, made = tuned
    result = train(config)
    assert result.best_step == 0  # best/ is the encoder before training, which learned all labels through its teacher
    assert [name for _, name, _, _ in made][3:] == ["1-tuned", "1-teacher", "1", "2-tuned", "2-teacher", "2"]
    assert "judged: 2 encoders trained on 1/2 of the labels" in str(result.verdict["notes"])
    assert "an encoder and a classifier" in load(result.folder / "best").promise.how


def test_held_out_labels_judge_only_if_they_did_not_teach_the_teacher(tuned):
    config, made = tuned
    train(config.replace(folds=0, name="apart"))
    runs = {name: run for run, name, _, _ in made}
    assert list(runs) == ["apart-tuned", "apart-teacher", "apart"]
    held_out = runs["apart"].judge.evaluations[0]
    assert not held_out.known(runs["apart-tuned"].taught.has_labels).any()
    assert len(runs["apart-tuned"].taught.labelled) == len(runs["apart"].taught.labelled) > 0
    # All labels taught this teacher, so that none of those held out by a later run judge.
    train(config)
    later = {"folds": 0, "model": "runs/tuning-teacher/best", "more_loss_terms": (), "options": {}, "name": "later"}
    result = train(config.replace(**later))
    assert result.verdict["word"] == "not judged"


def test_a_repeated_command_with_a_tuned_teacher_begins_with_the_runs_before(tuned):
    config, made = tuned
    train(config.replace(folds=None, max_steps=2))  # not given: of its default, nothing is stored
    shutil.rmtree("runs/tuning")
    made.clear()
    train(config.replace(folds=None, max_steps=2))
    assert all(run.settings.methods.tune_teacher == (name == "tuning") for run, name, _, _ in made)
    again = json.loads(Path("runs/tuning-tuned/result.json").read_text(encoding="utf8"))["seconds"]
    assert next(run for run, name, _, _ in made if name == "tuning").again > again > 0


@pytest.mark.slow
def test_a_sequence_with_a_tuned_teacher_goes_on_where_it_was_stopped(tuned, monkeypatch):
    config, made = tuned
    whole = train(config.replace(name="whole"))
    made.clear()
    create = loop.prepare

    def stops(given, *more):
        if given.name == "1-teacher":
            raise KeyboardInterrupt
        return create(given, *more)

    monkeypatch.setattr(loop, "prepare", stops)
    with pytest.raises(KeyboardInterrupt):
        train(config)
    monkeypatch.setattr(loop, "prepare", create)
    made.clear()
    again = train(resumed_config("runs/tuning"), resume="runs/tuning")
    assert [name for _, name, _, _ in made][:4] == ["tuning", "1-tuned", "1-teacher", "1"]
    assert again.verdict["measures"] == whole.verdict["measures"]


def test_a_tuned_teacher_needs_a_teacher_and_labels(config):
    with pytest.raises(InputError, match=r"--tune-teacher: .* name the teacher with --teacher MODEL"):
        train(config.replace(tune_teacher=True, more_loss_terms=(), options={}))
    with pytest.raises(InputError, match=r"tune-teacher.*--learn"):
        train(config.replace(tune_teacher=True, learn=False, folds=None))


@pytest.mark.slow
@pytest.mark.parametrize("tuned_first", [False, True])
def test_random_labels_after_a_teacher_are_not_called_better(config, sample_rows, tmp_path, tuned_first):
    from cse.evaluation.labels import predict

    words, texts, leaked = [], sample_rows[:120], []
    for seed in range(2):
        labels = np.random.default_rng(seed).permutation(np.repeat([0, 1], 60))
        table = write_table(
            tmp_path / f"{seed}.csv", [(text, "ab"[label]) for text, label in zip(texts, labels, strict=True)]
        )
        own = config.replace(corpus=table, name=f"random{seed}", max_steps=40, batch_size=16, tune_teacher=tuned_first)
        result = train(own)
        words.append(result.verdict["word"])
        # The encoder has learned these labels: judged by rows that taught it, it would be called better.
        vectors = Encoder(result.folder / "best").encode(texts)
        before = Encoder(str(config.model), pooler="avg").encode(texts)
        even = np.arange(120) % 2 == 0
        right = [np.mean(predict(each[even], labels[even], each[~even]) == labels[~even]) for each in (before, vectors)]
        leaked.append(right[1] - right[0])
    assert "better" not in words, words
    assert np.mean(leaked) > 0.1, leaked
