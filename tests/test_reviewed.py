"""Faults that a review found: settings that conflict, roles of augmentations, degenerate data."""

import json

import numpy as np
import pytest
import torch

from cse import InputError, TrainConfig, train
from cse.evaluation.geometry import mean_cosine, uniformity
from cse.training.defaults import merge, resolve, with_preset
from cse.training.repeating import repeated
from cse.training.saturation import SaturationCheck
from forked import Forked


def stored_by(tmp_path, family="bert-base", **values):
    """What the configuration file of a run with these values holds."""
    import tomllib

    return tomllib.loads(resolve(TrainConfig(**values), family).to_toml())


@pytest.mark.parametrize(
    ("first", "given", "expected"),
    [
        ({"loss": "mixed"}, {"loss": "standard"}, {"mixed_negatives": False, "objective": "infonce"}),
        ({}, {"loss": "mixed"}, {"mixed_negatives": True}),
        ({}, {"una": True}, {"objective": "nt-xent", "negatives": ("una",)}),
        ({"una": True}, {"una": False}, {"objective": "infonce", "negatives": ()}),
        ({"loss": "focal"}, {"loss": "standard"}, {"temperature": 0.05}),
        ({"loss": "focal", "lr": 1e-4}, {"loss": "standard"}, {"lr": 1e-4}),
        ({"loss": "focal"}, {"loss": "standard", "temperature": 0.2}, {"temperature": 0.2}),
        ({"positive": "spans", "spans": {"longest": 0.8}}, {"positive": "dropout"}, {"options": {}}),
        ({"loss": "focal"}, {"seed": 3}, {"temperature": 0.07, "seed": 3}),
        ({"una": {"beta": 0.3}, "negatives": ("una",)}, {"una": False}, {"options": {}, "negatives": ()}),
        ({"loss_terms": ("mlm",), "mlm": {"weight": 0.2}}, {"loss_terms": ()}, {"options": {}, "loss_terms": ()}),
        ({"positive": "crop"}, {"model": "other"}, {"positive": "crop"}),
        ({"max_steps": 60}, {"epochs": 3}, {"max_steps": None, "epochs": 3}),
        ({"max_steps": 60}, {"epochs": 1}, {"max_steps": None, "epochs": 1}),  # as stored
        ({"epochs": 3}, {"max_steps": 60}, {"max_steps": 60, "epochs": None}),
        ({"epochs": 3, "max_steps": 60}, {"lr": 1e-4}, {"max_steps": 60, "epochs": 3}),
        ({"max_steps": 60}, {"lr": 1e-4}, {"max_steps": 60, "lr": 1e-4}),
    ],
)
def test_a_stored_configuration_with_flags_beside_it(tmp_path, first, given, expected):
    stored = stored_by(tmp_path, **first)
    kept, _ = repeated(stored, given)
    config = resolve(TrainConfig(**merge(given, kept)), "bert-base")
    assert {name: getattr(config, name) for name in expected} == expected


def test_another_model_has_the_defaults_of_its_own_family(tmp_path):
    stored = stored_by(tmp_path, batch_size=48)
    kept, _ = repeated(stored, {"model": "roberta-base"})
    config = resolve(TrainConfig(**merge({"model": "roberta-base"}, kept)), "roberta-base")
    assert (config.lr, config.batch_size) == (1e-5, 48)
    assert "lr" not in kept
    own = stored_by(tmp_path, "adapt")
    kept, _ = repeated(own, {"model": "bert-base"})
    config = resolve(TrainConfig(**merge({"model": "bert-base"}, kept)), "bert-base")
    assert (config.positive, config.max_steps, config.merge_with_base) == ("dropout", None, 0.0)


@pytest.mark.parametrize("family", ["adapt", "bert-base"])
def test_the_preset_adapt_is_the_recipe_of_the_family(family):
    for values in ({}, {"loss": "focal", "una": True}, {"loss": "mixed"}, {"pairs": "nli.csv"}):
        preset = resolve(with_preset(TrainConfig(preset="adapt", model="m", **values)), family)
        own = resolve(TrainConfig(model="m", **values), "adapt")
        # The defaults of a family hold the options of methods that are not used.
        assert preset.model_dump(exclude={"options", "given"}) == own.model_dump(exclude={"options", "given"})
        assert {**own.options, **preset.options} == own.options
        assert {preset.positive, *preset.negatives} - {"labelled"} <= set(preset.options)


def test_a_preset_without_labels_can_train_on_pairs():
    config = resolve(TrainConfig(preset="simcse-bert-base", pairs="nli.csv"), "bert-base")
    assert (config.positive, config.keep_head) == ("labelled", True)


def test_a_preset_with_una_added_or_removed():
    assert resolve(TrainConfig(preset="simcse-bert-base", una=True), "bert-base").objective == "nt-xent"
    off = resolve(with_preset(TrainConfig(preset="una-bert-base", una=False)), "bert-base")
    assert off.negatives == ()
    assert off.options == {}


def config(tmp_path, sample, model, **values):
    values = {"batch_size": 8, "max_steps": 2, "eval_every": 0, "device": "cpu", **values}
    return TrainConfig(corpus=sample, tfidf=tmp_path / "tfidf", output=tmp_path / "runs", model=str(model), **values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"negatives": ("halves",)}, "--negative halves: makes positives"),
        ({"una": {"beta": 0.9}}, "una: its options were given, .*--negative una"),
        ({"options": {"crop": {"share": 0.5}}}, "crop: its options were given"),
        ({"options": {"una": 5}}, "--options"),
        ({"negatives": 5, "una": True}, "--negatives"),
        ({"threads": 10**20}, "--threads"),
        ({"device": "meta"}, "--device meta"),
    ],
)
def test_conflicting_or_impossible_settings_are_refused(tmp_path, sample, sample_index, tiny_bert, values, message):
    sample_index.save(tmp_path / "tfidf")
    with pytest.raises(InputError, match=message):
        train(config(tmp_path, sample, tiny_bert, **values))
    assert not (tmp_path / "runs").exists()


def test_a_column_without_a_corpus_is_refused(tmp_path, sample_index, tiny_bert):
    sample_index.save(tmp_path / "tfidf")
    with pytest.raises(InputError, match="--column"):
        train(TrainConfig(tfidf=tmp_path / "tfidf", column="text", model=str(tiny_bert), output=tmp_path))


def test_options_of_an_evaluation_that_is_not_run_are_refused(cse, tiny_bert, tmp_path):
    (tmp_path / "pairs.tsv").write_text("1\ta\tb\n5\ta\tc\n")
    done = cse("eval", tiny_bert, "--suite", "geometry", "--data", tmp_path / "pairs.tsv", "--set", "halves.limit=3")
    assert done.returncode == 2
    assert "halves: its options were given" in done.stderr


def test_a_loss_term_that_holds_the_encoder_does_not_train_it_twice(tiny_bert):
    from cse.context import Context
    from cse.losses.base import LossTerm
    from cse.models.encoder import load_encoder
    from cse.models.resolve import find_model
    from cse.training.optimizer import build_optimizer

    class Holds(LossTerm):
        def __init__(self, options, context):
            super().__init__(options, context)
            self.encoder = context.trained

    encoder = load_encoder(find_model(str(tiny_bert)), "avg")
    alone = build_optimizer([encoder], 1e-5, 0.0)
    held = build_optimizer([encoder, Holds(None, Context(encoder=encoder))], 1e-5, 0.0)
    count = lambda optimizer: [len(group["params"]) for group in optimizer.param_groups]  # noqa: E731
    assert count(alone) == count(held)


def test_positions_that_start_after_the_padding_index_are_not_used(tmp_path, tiny_bert):
    from transformers import AutoTokenizer, MPNetConfig, MPNetModel

    from cse import Encoder

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    MPNetModel(MPNetConfig(vocab_size=2000, max_position_embeddings=66, **sizes)).save_pretrained(tmp_path / "mpnet")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "mpnet")
    assert Encoder(tmp_path / "mpnet", device="cpu").encode(["the cat " * 200]).shape == (1, 32)


def test_the_geometry_of_one_sentence_is_not_a_number():
    assert np.isnan(uniformity(np.ones((1, 3))))
    assert np.isnan(mean_cosine(np.ones((1, 3))))


def test_a_step_without_a_positive_is_no_sign_of_a_solved_task():
    check = SaturationCheck("halves", 0.05)
    assert check.update([{"p_pos": float("nan")}] * 30) is None
    assert "0.9990" in (check.update([{"p_pos": 0.999}] * 10) or "")
    assert check.update([{"p_pos": 0.999}] * 10) is None


def test_two_runs_that_start_together_get_folders_of_their_own(tmp_path, sample, tiny_bert):
    flags = ("--model", tiny_bert, "--max-steps", "1", "--batch-size", "8", "--json", "-o", tmp_path)
    runs = [Forked("train", sample, *flags) for _ in range(2)]
    folders = {json.loads(run.communicate(timeout=200)[0])["folder"] for run in runs}
    assert len(folders) == 2


def test_a_negative_of_a_masked_row_is_in_no_mean():
    from cse.losses.contrastive import similarity_summary

    z = torch.eye(3)
    views = {"anchor": z, "positive": torch.stack([z[0], z[1], z[0]])}
    assert similarity_summary(views, {"positive": torch.tensor([True, True, False])})["cos_neg"] == 0
    assert similarity_summary(views)["cos_neg"] > 0


def test_a_run_keeps_what_was_given_apart_from_what_was_resolved(tmp_path, sample, tiny_bert):
    import tomllib

    from cse.training.loop import resumed_config

    values = {"loss": "focal", "positive": "spans", "spans": {"shortest": 0.4}}
    run = train(config(tmp_path, sample, tiny_bert, save_every=1, **values))
    stored = tomllib.loads((run.folder / "config.toml").read_text(encoding="utf8"))
    assert stored["given"]["loss"] == "focal"
    assert stored["given"]["spans"] == {"shortest": 0.4}
    assert "temperature" not in stored["given"]
    assert stored["temperature"] == 0.07
    # With changes of the place only, every value is that of the run; with others, they are derived anew.
    assert repeated(stored, {"output": "elsewhere"})[0]["temperature"] == 0.07
    kept, _ = repeated(stored, {"loss": "standard"})
    assert resolve(TrainConfig(**merge({"loss": "standard"}, kept)), "bert-base").temperature == 0.05
    # A resumed run has both, and adds what is given with it.
    again = train(resumed_config(run.folder, {"max_steps": 3}), resume=run.folder)
    stored = tomllib.loads((again.folder / "config.toml").read_text(encoding="utf8"))
    assert (stored["given"]["max_steps"], stored["given"]["loss"], stored["temperature"]) == (3, "focal", 0.07)
    # An older file has no such table: all its values count as given.
    del stored["given"]
    assert repeated(stored, {"loss": "standard"})[0]["temperature"] == 0.07
