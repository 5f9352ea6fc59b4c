"""Tests of training: updates, logs, saved files, reproducibility, defaults of settings, and checks of a run."""

import io
import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

import cse
from commands import refuses
from cse import InputError, TfidfIndex, TrainConfig, train
from cse.augment import AUGMENTATIONS
from cse.augment.base import Edit
from cse.augment.pairings import Dropout, DropoutOptions
from cse.augment.una import UNA, UNAOptions
from cse.context import TextContext
from cse.data.corpus import Corpus, hold_out
from cse.encoder.encoder import Encoder
from cse.evaluation.base import read_pairs
from cse.evaluation.sts import score_pairs
from cse.training.batches.checks import cut_off
from cse.training.loop import resumed_config
from cse.training.selection import halve, is_collapsed
from cse.training.settings.flat import flat
from cse.training.settings.presets import preset_names
from cse.training.setup import prepare
from cse.training.watching import SaturationCheck
from runs import batches_of, records_of, resolved, same_run, weights

DROPOUT = Dropout(DropoutOptions(), TextContext())


@pytest.fixture
def base(run_config):
    """The configuration of a run of six steps with tiny_bert."""
    return run_config.replace(max_steps=6, log_every=1)


def steps(folder):
    return records_of(folder)[0]


def test_a_run_folder_records_settings_versions_and_log(base):
    result = train(base.replace(una=True, loss="focal"))
    names = "best checkpoints config.toml data.json environment.json judges.json last log.jsonl result.json seen.npy"
    assert sorted(path.name for path in result.folder.iterdir()) == names.split()
    again = TrainConfig.from_toml(result.folder / "config.toml")
    # 0.07 is the default of the focal loss for BERT.
    assert (again.temperature, again.objective, again.negatives) == (0.07, "nt-xent", ("una",))
    assert again.options["una"]["radius"] == TfidfIndex.open(base.tfidf).default_radius
    versions = json.loads((result.folder / "environment.json").read_text())["versions"]
    assert versions["torch"] == torch.__version__
    log = steps(result.folder)
    # By default, negatives are drawn in every fifth step, so in steps 0 and 5; the log counts from 1.
    assert [record["step"] for record in log if "cos_syn" in record] == [1, 6]
    assert (len(log), result.synthetic_steps) == (6, 2)
    assert {"loss", "lr", "cos_pos", "cos_neg", "cos_syn", "synthetic_steps", "sentences_per_second"} <= set(log[0])
    assert [record["step"] for record in records_of(result.folder)[1]] == [0, 3, 6]
    assert result.best_step == 6


class WithFile(Edit):
    """An augmentation with a file among its options."""

    @dataclass(frozen=True)
    class Options:
        file: str

    def __call__(self, texts, rows, draws):
        return [f"{text} not" for text in texts]


@pytest.mark.parametrize(("pairs", "relative"), [(False, True), (True, False)])
def test_no_saved_model_contains_a_local_path(
    base, tmp_path, tiny_bert, sample_rows, scored_pairs, pairs, relative, monkeypatch
):
    folder = tmp_path / "secretly"
    shutil.copytree(tiny_bert, folder / "tiny")
    shutil.copytree(base.tfidf, folder / "tfidf")
    shutil.copy(scored_pairs, folder / "dev.tsv")
    (folder / "rows.txt").write_text("\n".join(sample_rows[:300]) + "\n")
    lines = [json.dumps({"anchor": text, "positive": text[10:]}) for text in sample_rows[:300]]
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "methods.py").write_text("")
    monkeypatch.setitem(AUGMENTATIONS._loaded, "with-file", WithFile)
    monkeypatch.chdir(tmp_path)
    place = Path("secretly") if relative else folder
    names = {"model": "tiny", "output": "runs", "cache": "cache", "dev": "dev.tsv", "imports": "methods.py"}
    values = {name: place / file for name, file in {**names, "tfidf": "tfidf"}.items()}
    if pairs:
        values |= {"pairs": place / "pairs.jsonl", "corpus": (), "negatives": ("una",)}
    else:
        values |= {"corpus": place / "rows.txt", "negatives": ("with-file",)}
        values["options"] = {"with-file": {"file": str(place / "rows.txt")}}
    result = train(config := base.replace(**values, patience=5, max_steps=2))
    again = train(config.replace(model=result.folder / "best", name="second"))
    for run in (result.folder, again.folder):
        saved = [path for name in ("best", "last") for path in (run / name).rglob("*") if path.is_file()]
        assert len(saved) > 10
        secrets = (b"secretly", str(tmp_path).encode(), str(Path.home()).encode() + b"/")
        assert not [path for path in saved if any(secret in path.read_bytes() for secret in secrets)]
    card = (result.folder / "best" / "README.md").read_text()
    assert all(text in card for text in ("Base model: `tiny`", 'model = "tiny"'))
    assert "base_model:" not in card
    assert f"Base model: `{result.folder.name}/best`" in (again.folder / "best" / "README.md").read_text()


def test_runs_with_the_same_seed_or_of_the_same_configuration_file_are_bit_identical(base):
    config = base.replace(una=True, loss="mixed", threads=1)
    first = train(config)
    assert train(config.replace(max_steps=1)).folder.name == first.folder.name + "-2"
    second = train(TrainConfig.from_toml(first.folder / "config.toml").replace(name="again"))
    same_run(first.folder, second.folder)
    other = train(config.replace(seed=config.seed + 1))
    assert [record["loss"] for record in steps(first.folder)] != [record["loss"] for record in steps(other.folder)]


def test_a_corpus_changed_since_it_was_indexed_is_refused(base, tmp_path, sample_rows):
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(sample_rows[:200]), encoding="utf8")
    TfidfIndex.build(path).save(tmp_path / "tfidf")
    path.write_text("\n".join(sample_rows[1:201]), encoding="utf8")
    other_spelling = str(path.parent / "." / ".." / path.parent.name / path.name)
    for corpus in ((), (str(path),), (other_spelling,)):
        with pytest.raises(InputError, match=r"mine\.txt: the file has changed since it was indexed"):
            train(base.replace(corpus=corpus, tfidf=str(tmp_path / "tfidf"), una=True))
    assert not (tmp_path / "runs").exists()


def test_held_out_rows_are_distinct_and_long_and_never_used_for_training(sample, tmp_path):
    rows = sample.read_text(encoding="utf8").split("\n")[:1000]
    path = tmp_path / "twice.txt"
    path.write_text("\n".join(["", *rows, "", *rows, "short row"]), encoding="utf8")
    corpus = Corpus.read([str(path)])
    split = hold_out(corpus, 3, wanted=True)
    held, trained = corpus.take(split.held_out), corpus.take(split.train)
    assert len(held) == len(set(held)) == int(0.05 * 2001)
    assert all(len(text.split()) >= 8 for text in held)
    assert not {*held, ""} & set(trained)
    assert split.blank == 2
    assert not np.array_equal(split.held_out, hold_out(corpus, 4, wanted=True).held_out)


def test_every_epoch_has_each_row_at_most_once_and_an_order_of_its_own(sample, base):
    corpus = Corpus.read([str(sample)])
    rows = np.arange(0, 10_000, 100)
    config = resolved(base.replace(batch_size=9, epochs=2, max_steps=None))
    batches = batches_of(config, corpus, rows, DROPOUT)
    epochs = [np.concatenate([batches[step].rows for step in range(e * 11, e * 11 + 11)]) for e in (0, 1)]
    # 100 rows give eleven batches of nine; the one remaining row would have no negatives and is left out.
    assert len(batches) == 22
    for seen in epochs:
        assert len(seen) == len(set(seen.tolist()))
    assert not np.array_equal(epochs[0], epochs[1])


@pytest.mark.parametrize(
    ("epochs", "max_steps", "accumulate", "steps"),
    [(None, None, 1, 11), (None, 30, 1, 30), (None, 5, 1, 5), (2, 30, 1, 22), (1, 30, 1, 11), (3, 30, 1, 30),
     (2, None, 3, 7), (None, 30, 3, 30)],
)  # fmt: skip
def test_the_number_of_steps_follows_from_epochs_and_max_steps(sample, epochs, max_steps, accumulate, steps):
    limits = {"epochs": epochs, "max_steps": max_steps, "accumulate": accumulate}
    config = resolved(TrainConfig(model="m", batch_size=9, **limits))
    batches = batches_of(config, Corpus.read([str(sample)]), np.arange(0, 10_000, 100), DROPOUT)
    assert len(batches) == steps
    last = batches[batches.order.of_step(steps - 1)[-1]]
    assert len(last.rows)
    assert last.epoch == (steps * accumulate - 1) // 11


def test_negatives_are_drawn_with_the_options_of_the_run(base, short_rows):
    """The options for ablations, the filters of the index and a radius in per cent take effect in the batches."""
    options = {"replace_which": "random", "replace_with": "random", "beta": 0.8, "surface": "plain"}
    index = TfidfIndex.open(base.tfidf, min_df=3, max_terms=2000)
    for table in (options, {**options, "replace_with": "radius", "radius": "5%"}):
        config = base.replace(una=table, negatives=("una",), min_df=3, max_terms=2000)
        run = prepare(config)
        if "radius" in table:
            assert run.settings.options["una"]["radius"] == round(0.05 * len(index))
        batch = run.batches[0]
        rows = batch.rows.tolist()
        expected = index.augment([short_rows[row] for row in rows], rows=rows, seed=config.seed, **table)
        assert batch.blocks["synthetic"].texts == expected

    refuses("--radius", lambda: train(config.replace(una={"radius": "some"})))


def test_merging_with_the_base_model_changes_only_the_saved_weights(base):
    plain, merged = train(base), train(base.replace(merge_with_base=0.25))
    start = load_file(f"{base.model}/model.safetensors")
    trained, saved = weights(plain.folder), weights(merged.folder)
    for name, value in trained.items():
        if not name.startswith("pooler"):
            torch.testing.assert_close(saved[name], 0.75 * value + 0.25 * start[name])
    assert [record["loss"] for record in steps(plain.folder)] == [record["loss"] for record in steps(merged.folder)]
    best = Encoder(merged.folder / "best", device="cpu").encode(["A sentence."])
    np.testing.assert_array_equal(best, Encoder(merged.folder / "last", device="cpu").encode(["A sentence."]))


@pytest.mark.slow
def test_a_task_that_is_solved_from_the_start_is_reported(minilm, base, short_corpus):
    """The loss of a trained sentence encoder starts near 0 with dropout positives, but not with recipe ``encoder``."""
    config = base.replace(model=minilm, max_steps=10, eval_every=0, max_length=16)
    solved = train(config.replace(positive="dropout", temperature=0.05, loss="standard", loss_terms=()))
    assert any("solved from the start" in note and "--positive spans" in note for note in solved.notes)
    assert all(record["p_pos"] > 0.99 for record in steps(solved.folder))


def test_best_is_the_model_with_the_highest_spearman_correlation(base, scored_pairs):
    result = train(base.replace(dev=scored_pairs, eval_every=1))
    scores = {record["step"]: record["spearman"] for record in records_of(result.folder)[1]}
    assert result.best_step == max(scores, key=lambda step: (scores[step], -step))
    encoder = Encoder(result.folder / "best", device="cpu")
    (selecting,) = halve({"dev": read_pairs(scored_pairs)})[0].values()
    assert score_pairs(encoder, selecting).spearman == pytest.approx(scores[result.best_step], abs=1e-3)


def test_a_collapsed_model_is_not_selected_as_best(base):
    """If the learning rate destroys the model, best/ is the model before training, and a note reports the collapse."""
    result = train(base.replace(lr=3.0, lr_scheduler="constant", max_steps=8, eval_every=8, max_grad_norm=0.0))
    assert result.after["mrr"] < 0.5 * result.before["mrr"]
    assert result.best_step == 0
    assert any("collapsed" in note for note in result.notes)
    assert result.neighbours == []  # no neighbour has changed, because best/ is the model before training


def test_the_selected_model_is_scored_on_sts_tasks_at_the_end(base, tmp_path, sample_rows):
    (tmp_path / "data").mkdir()
    lines = [f"{i % 5}\t{a}\t{b}" for i, (a, b) in enumerate(zip(sample_rows[:20], sample_rows[20:40], strict=True))]
    (tmp_path / "data" / "stsb.test.tsv").write_text("\n".join(lines), encoding="utf8")
    config = base.replace(data=str(tmp_path / "data"))
    refuses(r"stsb\.test\.tsv: 20 pairs, but STS-B has 1,379; .*--allow-partial", train, config)
    assert not (tmp_path / "runs").exists()
    assert set(train(config.replace(allow_partial=True)).sts) == {"STS-B"}
    (tmp_path / "data" / "stsb.test.tsv").write_text("1\ta\tb\nbroken\n")
    refuses(r"stsb\.test\.tsv: line 2", train, config.replace(name="faulty"))
    assert not (tmp_path / "runs" / "faulty").exists()


def test_a_training_step_equals_one_written_in_plain_pytorch(base):
    """The plain version takes the encoder and the loss from cse, and gradient clipping and AdamW from PyTorch."""
    from cse.encoder.fast.dropout import use_fast_dropout
    from cse.encoder.resolve import find_model
    from cse.encoder.trained import load_encoder
    from cse.losses.contrastive import contrastive_loss

    result = train(base.replace(max_steps=1, pooler="avg", loss="focal", temperature=0.05, una=True))
    config = TrainConfig.from_toml(result.folder / "config.toml")
    corpus = Corpus.read(list(config.corpus))
    una = UNA(UNAOptions(), TextContext(lambda _: TfidfIndex.open(config.tfidf)))
    rows = hold_out(corpus, 0, wanted=True).train
    batch = batches_of(resolved(config), corpus, rows, DROPOUT, [una])[0]
    torch.manual_seed(0)
    model = load_encoder(find_model(config.model), "avg")
    use_fast_dropout(model.backbone)
    model.packed = True
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    views = {}
    for name, twin in (("anchor", "positive"), ("synthetic", "synthetic_positive")):
        limits = {"padding": True, "truncation": True, "max_length": 32}
        tokens = model.tokenizer(batch.blocks[name].texts * 2, **limits, return_tensors="pt")
        views[name], views[twin] = model.embed(tokens).view(2, 8, -1)
    loss = contrastive_loss(views, logits="focal", objective="nt-xent", temperature=0.05)
    assert loss.item() == pytest.approx(steps(result.folder)[0]["loss"], rel=1e-5)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    state = model.backbone.state_dict()
    for name, value in weights(result.folder).items():
        torch.testing.assert_close(value, state[name], rtol=1e-4, atol=1e-6)


SIMCSE, UNA_BERT, CONSERT = ({"preset": f"{name}-bert-base"} for name in ("simcse", "una", "consert"))


@pytest.mark.parametrize(
    ("values", "family", "own_pooler", "fields", "expected"),
    # A comment names the layer whose value is used; "A before B" means that the later layer B also has a value.
    [
        ({}, "bert-base", None, "temperature lr", (0.05, 3e-5)),  # all families; family
        ({}, "roberta-large", None, "batch_size", (512,)),
        ({"una": {"use_as": "hard-negatives"}, "negatives": ("una",)}, "bert-base", None, "objective", ("infonce",)),
        ({"una": {"use_as": "pairs"}, "negatives": ("una",)}, "encoder", "avg", "objective", ("nt-xent",)),
        ({"loss": "focal"}, "roberta-base", None, "temperature", (0.05,)),
        ({"loss": "focal", "temperature": 0.1}, "bert-base", None, "temperature", (0.1,)),  # given before loss
        ({}, "bert-base", "avg_top2", "pooler", ("avg_top2",)),  # model folder before family
        ({}, "encoder", "avg", "positive loss loss_terms", ("spans", "focal", ("keep-similarities",))),  # family first
        ({"loss": "focal"}, "bert-base", None, "temperature", (0.07,)),  # loss before all families
        ({"loss": "focal"}, "encoder", None, "temperature merge_with_base", (0.05, 0.0)),  # loss before family
        ({"loss": "mixed"}, "encoder", None, "merge_with_base", (0.5,)),
        ({"loss": "standard"}, "encoder", None, "temperature", (0.1,)),
        ({"loss": "scd"}, "encoder", None, "loss_terms", ((),)),
        ({"pairs": "nli.csv"}, "encoder", None, "loss loss_terms merge_with_base", ("standard", (), 0.0)),
        ({"preset": "encoder"}, "bert-base", None, "loss", ("focal",)),
        (SIMCSE, "encoder", None, "loss_terms", ((),)),
        ({"preset": "focal-bert-large"}, "bert-large", None, "temperature", (0.07,)),
        (UNA_BERT, "bert-base", "avg", "pooler", ("cls",)),  # preset before model folder
        ({**UNA_BERT, "una": False}, "bert-base", None, "negatives", ((),)),  # given before preset
        ({"preset": "focal-bert-base", "model": "other"}, "bert-base", None, "model", ("other",)),
        ({"una": True}, "encoder", None, "objective", ("infonce",)),  # the family's default for UNA
        ({**UNA_BERT, "una": {"beta": 0.3}}, "bert-base", None, "una.beta una.radius", (0.3, 4000)),  # key by key
        # A given limit on steps or epochs replaces the other limit of the recipe.
        ({"preset": "encoder"}, "bert-base", None, "epochs max_steps", (None, 60)),
        ({"preset": "encoder", "epochs": 1}, "bert-base", None, "epochs max_steps", (1, None)),
        ({"preset": "encoder", "epochs": 2, "max_steps": 9}, "bert-base", None, "epochs max_steps", (2, 9)),
        (SIMCSE, "bert-base", None, "epochs max_steps", (1, None)),
        ({**SIMCSE, "max_steps": 9}, "bert-base", None, "epochs max_steps", (None, 9)),
        # Values of a preset that do not apply are dropped.
        ({**CONSERT, "pooler": "max"}, "bert-base", None, "patience pooler eval_pooler", (None, "max", None)),
        ({**SIMCSE, "pairs": "p.csv"}, "bert-base", None, "positive keep_head", ("labelled", True)),
        ({**SIMCSE, "una": True}, "bert-base", None, "objective", ("nt-xent",)),
    ],
)
def test_settings_follow_the_order_of_precedence(values, family, own_pooler, fields, expected):
    settings = flat(resolved(TrainConfig(**values), family, own_pooler).values())
    found = tuple(settings[name] for name in fields.split())
    assert found == expected


def test_every_preset_is_a_valid_configuration():
    for name in preset_names():
        # The supervised presets, and the one for queries, need a file of pairs.
        given = {"pairs": "nli.csv"} if "sup" in name or name == "encoder-queries" else {}
        resolved(TrainConfig(preset=name, **given), "-".join(name.split("-")[-2:]) if "bert" in name else "encoder")
    una = resolved(TrainConfig(preset="una-roberta-base"), "roberta-base")
    optimisation = una.optimisation
    assert (optimisation.lr, optimisation.lr_scheduler, optimisation.max_grad_norm) == (5e-6, "constant", 0.0)
    assert (una.options["una"]["radius"], una.options["una"]["every"]) == (4000, 5)


@pytest.mark.slow
def test_focal_loss_and_una_raise_stsb_dev_of_minilm_in_12_short_steps(minilm, shared, indexed, tmp_path):
    pairs = shared("sts_raw/stsb.dev.tsv").read_text(encoding="utf8").splitlines()
    (tmp_path / "dev.tsv").write_text("\n".join(pairs[::3]) + "\n", encoding="utf8")
    values = {"loss": "focal", "una": True, "seed": 2, "lr": 6e-5, "batch_size": 32, "max_length": 16, "max_steps": 12}
    values |= {"eval_every": 12, "dev": tmp_path / "dev.tsv", "device": "cpu", "tfidf": indexed / "tfidf"}
    result = train(TrainConfig(output=tmp_path, model=minilm, **values))
    assert result.before["spearman"] == pytest.approx(88.68, abs=0.01)  # of the half of the pairs that selects
    assert result.after["spearman"] > result.before["spearman"] + 0.15
    assert not any("solved from the start" in note for note in result.notes)


def test_training_on_texts_in_memory_equals_training_on_a_file(base, sample, sample_rows, tmp_path):
    rows = sample_rows[:300]
    path = tmp_path / "rows.txt"
    path.write_text("\n".join(rows) + "\n", encoding="utf8")
    config = base.replace(corpus=(), una=True, threads=1)
    other = train(config.replace(corpus=path))
    result = train(config, texts=iter(rows))
    assert torch.equal(*(weights(run.folder)["pooler.dense.weight"] for run in (result, other)))
    assert [s["loss"] for s in steps(result.folder)] == [s["loss"] for s in steps(other.folder)]
    refuses("texts: cannot be combined with corpus", train, base, texts=rows)
    again = TrainConfig.from_toml(result.folder / "config.toml").replace(name="again")
    refuses(r"the run was trained on texts in memory; .*texts=", train, again)
    refuses("texts: element 1 must be a string", train, config, texts=["a", 3])
    wrong = base.replace(corpus=["A first sentence.", "A second one."])
    refuses(r"no such file 'A first sentence\.'; name files .*texts=", train, wrong)
    # The run is resumed only with the same texts.
    longer = resumed_config(result.folder, {"max_steps": 8})
    changed = {"resume": result.folder, "texts": rows[:299]}
    refuses("the corpus or the index has changed since the run began", train, longer, **changed)
    assert train(longer, resume=result.folder, texts=rows).steps == 8


def test_texts_in_memory_are_cleaned_like_rows_of_a_file():
    texts = ["PAR1 and so on", "two\r\nlines\nhere", " ", "\udc80 alone", "word " * 400_000]
    corpus = Corpus.from_texts(texts)
    expected = ["PAR1 and so on", "two lines here", " ", "\ufffd alone", "word " * 400_000]
    assert corpus.take(range(5)) == expected
    assert corpus.joined_lines == 1
    assert corpus.filled().tolist() == [0, 1, 3, 4]
    refuses(r"\(texts in memory\): all 2 lines are blank", lambda: Corpus.from_texts(["", " "]).filled())
    refuses("at least one sentence", lambda: Corpus.from_texts([]).filled())


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("place", ["file", "terminal", "notebook"])
def test_the_progress_callback_reports_corpus_steps_and_best_folder(base, place, monkeypatch):
    out, err = (io.StringIO(), io.StringIO()) if place == "file" else (Screen(), Screen())
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setattr("cse.progress.LINE_SECONDS", 0.0)
    if place == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    result = train(base.replace(una=True), cse.ProgressCallback())
    assert isinstance(cse.ProgressCallback(), cse.Callback)
    text, other = (out, err) if place == "notebook" else (err, out)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue()).replace("\r", "\n").splitlines()
    assert any(line.startswith("   corpus  ") for line in lines)
    assert any(line.startswith("step 6: MRR ") for line in lines)
    assert any(line.startswith("verdict: not judged, there are no labels") for line in lines)
    assert lines[-1] == str(result.folder / "best")
    if place == "file":
        assert any(re.match(r"training: 3 of 6 steps, (loss \S+, )?about \d+ s left", line) for line in lines)
        assert "\r" not in text.getvalue()
    else:
        assert any(re.match(r"training .* 6/6 loss \S+ ", line) for line in lines)
    assert not other.getvalue()


def test_the_clean_development_set_selects_and_is_compared_in_reports(base, tmp_path):
    from cse.evaluation.sts import SEVEN
    from cse.reports.held_out import held_out
    from cse.reports.runs import read_run

    for key in (*SEVEN, "stsb.dev", "sickr.train", "sickr.dev"):
        rows = [f"{n % 6}\tword {key} {n}\tanother {key} {n * 7}\n" for n in range(12)]
        (tmp_path / f"{key}.tsv").write_text("".join([*rows, "5\ta test pair\tof all files\n"]))
    refuses("--dev clean is made from the STS files of --data; add --data DIR", train, base.replace(dev="clean"))
    result = train(base.replace(dev="clean", data=str(tmp_path), allow_partial=True, max_steps=2))
    sets = held_out(read_run(result.folder)).sets
    found = {name: len(pairs.gold) for name, pairs in sets.items()}
    assert found == {"STS-B dev, clean": 12, "SICK-R train and dev, clean": 24}
    assert all("spearman/STS-B dev, clean" in record for record in records_of(result.folder)[1])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_scores_without_labels_are_computed_in_the_precision_of_the_run_and_dev_sets_in_float32(
    base, precision, scored_pairs, monkeypatch
):
    from cse.encoder.trained import SentenceEncoder

    used, encode = [], SentenceEncoder.encode

    def recorded(self, texts, **settings):
        if len(texts) > 2:  # not the two sentences that an encoder tries when it is loaded
            used.append(settings.get("precision", "fp32"))
        vectors = encode(self, texts, **settings)
        assert self.precision == "fp32"
        return vectors

    monkeypatch.setattr(SentenceEncoder, "encode", recorded)
    for dev, expected in (((), precision), (scored_pairs, "fp32")):
        used.clear()
        train(base.replace(max_steps=1, precision=precision, dev=dev))
        # With --dev, the check for collapse has the precision of the run.
        assert {expected} <= set(used) <= {expected, precision}


EMOJI = ["\U0001f600", "\U0001f602", "\U0001f60d", "\U0001f44d"]
CHINESE = ["北京是中华人民共和国的首都", "上海是一个大城市吗", "我喜欢学习机器学习", "今天天气非常好"]


@pytest.fixture
def of_rows(tmp_path, tiny_bert):
    """A function that prepares a run on given sentences and builds their TF-IDF index."""

    def start(rows, **values):
        path = tmp_path / "corpus.txt"
        path.write_text("".join(row + "\n" for row in rows), encoding="utf8")
        # The default tokenizer finds no terms in emoji, and an index needs at least one term.
        TfidfIndex.from_texts([*rows, "word"]).save(tmp_path / "tfidf")
        settings = {"batch_size": 8, "max_steps": 2, "device": "cpu", "tfidf": tmp_path / "tfidf", **values}
        return prepare(TrainConfig(corpus=path, model=tiny_bert, output=tmp_path / "runs", **settings))

    return start


def test_a_corpus_of_identical_sentences_is_refused(of_rows):
    message = "^CORPUS: the first {} tokens of all {} sampled sentences are identical"
    refuses(message.format(32, 200), of_rows, ["one and the same sentence"] * 200)
    of_rows(["one and the same sentence"] * 199 + ["another one"])
    rows = ["one and the same sentence" + " again" * i for i in range(1, 20)]
    refuses(message.format(7, 19), of_rows, rows, max_length=7)
    of_rows(rows, max_length=64)


@pytest.mark.parametrize("positive", ["crop", "delete", "halves", "spans"])
def test_positives_that_are_all_masked_or_unchanged_are_refused(of_rows, positive):
    words = [f"word{i}" for i in range(40)]
    refuses(rf"^--positive {positive}: none of 40 .* use --positive dropout", of_rows, words, positive=positive)
    of_rows(words, positive="dropout")
    of_rows([*words, "one sentence of several words"], positive=positive)


@pytest.mark.parametrize(
    ("texts", "remedy"),
    [(CHINESE, "Chinese, Japanese, Thai"), (EMOJI, "without letters"), (["word"], "the index was built")],
)
def test_negatives_that_are_all_unchanged_are_refused_with_advice(of_rows, texts, remedy):
    rows = [text + end for text in texts for end in ("!" * i for i in range(16 // len(texts)))]
    refuses(rf"^--negative una: none of 16 sampled .*{remedy}", of_rows, rows, negatives=("una",))
    of_rows(rows, negatives=("una",), una={"every": 0})


def test_truncated_fraction_is_measured_on_the_texts_used_for_training(of_rows, tiny_bert):
    rows = [" ".join(f"w{(row * 7 + i) % 50}" for i in range(100)) for row in range(16)]
    whole = of_rows(rows, positive="dropout", max_length=16).facts["text"]
    tokens = sum(map(len, AutoTokenizer.from_pretrained(tiny_bert)(rows).input_ids))
    assert "100.0% of the texts truncated to 16 tokens, " in whole
    assert f"which cuts off {100 - 1600 * len(rows) / tokens:.1f}% of all tokens (--max-length 32 would " in whole
    spans = {"max_span_words": 8, "min_span_words": 2}
    short = of_rows(rows, positive="spans", spans=spans, max_length=64).facts["text"]
    assert "0.0% of the texts truncated to 64 tokens, which cuts off 0.0% of all tokens, " in short


def test_truncation_message_gives_the_cost_of_a_larger_maximum_length():
    lengths = np.array([10, 20, 40, 60])
    # Of 130 tokens, 10 + 16 + 16 + 16 = 58 remain at length 16, and 10 + 20 + 32 + 32 = 94 (1.6 times 58) at 32.
    expected = "75.0% of the texts truncated to 16 tokens, which cuts off 55.4% of all tokens"
    larger = "(--max-length 32 would cut off 27.7%, for 1.6 times the computation)"
    assert cut_off(lengths, 16, 512) == f"{expected} {larger}"
    assert cut_off(lengths, 16, 16) == expected
    assert cut_off(lengths, 64, 512) == "0.0% of the texts truncated to 64 tokens, which cuts off 0.0% of all tokens"


def test_an_encoder_is_collapsed_if_its_mrr_is_close_to_that_of_a_random_ranking():
    for sentences, collapsed, other in ((500, 0.03, 0.05), (15, 0.3, 0.6), (2, 0.75, 1.0)):
        assert is_collapsed({"mrr": collapsed, "uniformity": -3.6}, sentences)
        assert not is_collapsed({"mrr": other, "uniformity": -3.6}, sentences)


def test_the_saturation_check_ignores_steps_without_positives():
    check = SaturationCheck("halves", 0.05)
    assert check.update([{"p_pos": float("nan")}] * 30) is None
    assert "0.9990" in (check.update([{"p_pos": 0.999}] * 10) or "")
    assert check.update([{"p_pos": 0.999}] * 10) is None


def test_the_mean_cosine_of_negatives_excludes_masked_rows():
    from cse.losses.contrastive import similarity_summary

    z = torch.eye(3)
    views = {"anchor": z, "positive": torch.stack([z[0], z[1], z[0]])}
    assert similarity_summary(views, {"positive": torch.tensor([True, True, False])})["cos_neg"] == 0
    assert similarity_summary(views)["cos_neg"] > 0


def test_collapse_is_reported_even_if_training_did_not_cause_it(run_config):
    """The [CLS] vectors of a model with random weights are nearly equal before and after training."""
    result = train(run_config.replace(lr=1e-6, max_steps=3, eval_every=0))
    assert any("nearly all equal" in note for note in result.verdict["notes"])
    assert not any("not collapsed" in note for note in result.verdict["notes"])


def test_rows_without_a_synthetic_negative_are_masked_and_reported(tmp_path, tiny_bert, sample_rows, cse_here):
    rows = [*CHINESE, *sample_rows[:12]]
    (tmp_path / "mixed.txt").write_text("\n".join(rows), encoding="utf8")
    assert cse_here("build-tfidf", "mixed.txt", cwd=tmp_path).returncode == 0
    given = ["--una", "--model", tiny_bert, "--batch-size", 16, "--max-steps", 1, "--name", "r", "--temperature", 0.05]
    done = cse_here("train", "mixed.txt", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "25% of the sentences have no word that can be replaced" in done.stderr
    assert "--tokenizer whitespace" in done.stderr
    (step,) = records_of(tmp_path / "runs" / "r")[0]
    assert step["masked/synthetic"] == 4


def test_printed_row_counts_add_up_to_the_rows_of_the_corpus(tmp_path, tiny_bert, sample_rows, cse_here):
    rows = [*sample_rows[:400], "", *sample_rows[:400]]
    (tmp_path / "twice.txt").write_text("\n".join(rows) + "\n", encoding="utf8")
    flags = ("--model", tiny_bert, "--max-steps", 1, "--batch-size", 8, "--verbose")
    done = cse_here("train", "twice.txt", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "801 rows" in line]
    numbers = [int(word.replace(",", "")) for word in line.split() if word.replace(",", "").isdigit()]
    assert numbers[0] == sum(numbers[1:]) == 801
    assert "left out because they share a text with held-out rows" in line
    (line,) = [line for line in done.stderr.splitlines() if "duplicate rows" in line]
    assert float(re.search(r"(\S+)%", line)[1]) == pytest.approx(50, abs=1)
    assert "unknown tokens" in done.stderr
