"""Tests of options and settings: declarations, presets, what overrides what, and what is refused or has no effect."""

import re
import tomllib
from collections import Counter
from dataclasses import MISSING, dataclass
from itertools import product
from typing import Annotated, Literal

import click
import numpy as np
import pytest
from annotated_types import Ge, Gt, Lt, MinLen
from click.testing import CliRunner

from commands import refuses
from cse import InputError, ProgressCallback, TfidfIndex, TrainConfig, train
from cse.cli import cli
from cse.cli.command import Text
from cse.options import SIGNS, If, Opt, combination_fault, options_of, parse_options
from cse.training.loop import resumed_config
from cse.training.settings.defaults import COMMON, FAMILIES, SITUATIONS, defaults, described
from cse.training.settings.flat import flat, merge
from cse.training.settings.given import repeated
from cse.training.settings.names import SETTINGS, TABLES, method_flags
from cse.training.settings.resolve import with_preset
from cse.training.setup import prepare
from runs import resolved


def stored_by(family="bert-base", **values):
    """Returns the contents of the configuration file of a run with the settings ``values``."""
    return tomllib.loads(resolved(TrainConfig(**values), family).to_toml())


def config(tmp_path, corpus, model, **values):
    shared = {"batch_size": 8, "max_steps": 2, "eval_every": 0, "device": "cpu", "tfidf": corpus.with_name("tfidf")}
    return TrainConfig(**{**shared, "corpus": corpus, "output": tmp_path / "runs", "model": model, **values})


@pytest.mark.parametrize(
    ("first", "given", "expected"),
    [
        ({"loss": "mixed"}, {"loss": "standard"}, {"mixed_negatives": False, "objective": "infonce"}),
        ({}, {"loss": "mixed"}, {"mixed_negatives": True}),
        ({}, {"una": True}, {"objective": "nt-xent", "negatives": ("una",)}),
        ({"una": True}, {"una": False}, {"objective": "infonce", "negatives": ()}),
        ({"loss": "focal"}, {"loss": "standard"}, {"temperature": 0.05}),
        ({"loss": "focal"}, {"loss": "standard", "temperature": 0.2}, {"temperature": 0.2}),
        ({"positive": "spans", "spans": {"max_share": 0.8}}, {"positive": "dropout"}, {"options": {}}),
        ({"una": {"beta": 0.3}, "negatives": ("una",)}, {"una": False}, {"options": {}, "negatives": ()}),
        ({"positive": "crop"}, {"model": "other"}, {"positive": "crop"}),
        ({"max_steps": 60}, {"epochs": 1}, {"max_steps": None, "epochs": 1}),  # 1 is the default
        ({"epochs": 3}, {"max_steps": 60}, {"max_steps": 60, "epochs": None}),
        ({"epochs": 3, "max_steps": 60}, {"lr": 1e-4}, {"max_steps": 60, "epochs": 3}),
    ],
)
def test_flags_override_a_stored_configuration(first, given, expected):
    kept, _ = repeated(stored_by(**first), given)
    values = resolved(TrainConfig(**merge(given, kept))).values()
    assert {name: values[name] for name in expected} == expected


def test_a_run_repeated_with_another_model_has_the_defaults_of_that_model():
    kept, _ = repeated(stored_by(batch_size=48), {"model": "roberta-base"})
    optimisation = resolved(TrainConfig(**merge({"model": "roberta-base"}, kept)), "roberta-base").optimisation
    assert (optimisation.lr, optimisation.batch_size) == (1e-5, 48)
    assert "lr" not in kept
    kept, _ = repeated(stored_by("encoder"), {"model": "bert-base"})
    settings = resolved(TrainConfig(**merge({"model": "bert-base"}, kept)))
    assert settings.methods.positive == "dropout"
    assert (settings.optimisation.max_steps, settings.optimisation.merge_with_base) == (None, 0.0)


def test_the_preset_encoder_equals_the_defaults_of_the_family_encoder():
    given = ({}, {"loss": "focal", "una": True}, {"loss": "mixed"}, {"pairs": "nli.csv"})
    for family, values in product(("encoder", "bert-base"), given):
        preset = resolved(TrainConfig(preset="encoder", model="m", **values), family)
        own = resolved(TrainConfig(model="m", **values), "encoder")
        # The defaults of a family include options of methods that the run does not use.
        assert {**preset.values(), "options": {}} == {**own.values(), "options": {}}
        assert {**own.options, **preset.options} == own.options
        assert {preset.methods.positive, *preset.methods.negatives} - {"labelled"} <= set(preset.options)
    declared = resolved(TrainConfig(preset="encoder", model="m"), "encoder", "cls")
    assert declared.model.pooler == "cls"
    assert resolved(TrainConfig(preset="encoder", model="m", pooler="max"), "encoder", "cls").model.pooler == "max"


def test_the_documented_default_of_a_family_is_that_of_a_run_without_further_settings():
    for family in FAMILIES:
        values = resolved(TrainConfig(model="m"), family).values()
        for name in COMMON.keys() | FAMILIES[family].keys() - {"spans", "una"}:
            known = dict(described(name, SETTINGS[name].default))
            assert values[name] == known.get(family, known[""]), (family, name)


RELEASED = {
    # cambridgeltl/mirror-bert: mirror_scripts/mirror_sentence_bert.sh, train.py (no schedule, no clipping)
    "mirror-bert-bert-base": {"lr": 2e-5, "lr_scheduler": "constant", "weight_decay": 0.01, "max_grad_norm": 0.0},
    # yym6472/ConSERT: scripts/unsup-consert-base.sh, main.py, SentenceTransformer.fit (weight decay, warm-up);
    # max_grad_norm is 1 / (2 * 0.15), from --cl_rate 0.15 and a sum over two directions
    "consert-bert-base": {"pooler": "avg", "eval_pooler": "avg_top2", "warmup": 0.1, "weight_decay": 0.01,
                          "patience": 10, "max_grad_norm": pytest.approx(1 / 0.3), "epochs": 10, "anchor_dropout": 0.0},
    "consert-bert-large": {"anchor_hook": None, "positive_hook": "token-shuffle", "anchor_dropout": None,
                           "epochs": 25, "eval_every": 100, "max_length": 64, "batch_size": 96, "lr": 5e-7},
    # SAP-samples/acl2022-self-contrastive-decorrelation: README.md, train.py (pooler_type, projector)
    "scd-bert-base": {"eval_every": 250, "pooler": "cls_before_pooler", "batch_size": 192, "scd.width": 4096},
    # caskcsg/sentemb: ESimCSE/run.sh
    "esimcse-roberta-large": {"anchor_dropout": 0.15, "positive_dropout": 0.15, "lr": 1e-5},
    "esimcse-roberta-base": {"anchor_dropout": None, "positive_dropout": None, "lr": 1e-5},
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_a_preset_has_the_settings_of_the_released_code(name):
    values = flat(resolved(TrainConfig(preset=name, dev="stsb.dev.tsv")).values())
    assert {key: values[key] for key in RELEASED[name]} == RELEASED[name]


def test_impossible_settings_are_refused_before_a_run_folder_is_made(tmp_path, short_corpus, tiny_bert):
    for values, message in (
        ({"threads": 10**20}, "--threads"),
        ({"device": "meta"}, "--device meta"),
        ({"corpus": (), "column": "text"}, "--column"),
        ({"negatives": ("halves",)}, "--negative halves: this method makes positives"),
    ):
        refuses(message, lambda values=values: train(config(tmp_path, short_corpus, tiny_bert).replace(**values)))
    assert not (tmp_path / "runs").exists()
    for values in ({"corpus": ["c.txt"]}, "config.toml", None):
        refuses("a TrainConfig was expected", train, values)
    for callback in (ProgressCallback, [ProgressCallback()], print):
        refuses("callback: ", train, config(tmp_path, short_corpus, tiny_bert), callback)


def test_config_toml_stores_given_values_separately_from_resolved_values(tmp_path, short_corpus, tiny_bert):
    values = {"loss": "focal", "positive": "spans", "spans": {"min_share": 0.4}}
    run = train(config(tmp_path, short_corpus, tiny_bert, save_every=1, **values))
    stored = tomllib.loads((run.folder / "config.toml").read_text(encoding="utf8"))
    assert stored["given"]["loss"] == "focal"
    assert stored["given"]["spans"] == {"min_share": 0.4}
    assert "temperature" not in stored["given"]
    assert stored["temperature"] == 0.07
    # With another output folder, all values are repeated; with another loss, the defaults of that loss apply.
    assert repeated(stored, {"output": "elsewhere"})[0]["temperature"] == 0.07
    kept, _ = repeated(stored, {"loss": "standard"})
    assert resolved(TrainConfig(**merge({"loss": "standard"}, kept))).loss.temperature == 0.05
    # A resumed run also stores the given values separately, including those given on resuming.
    again = train(resumed_config(run.folder, {"max_steps": 3}), resume=run.folder)
    stored = tomllib.loads((again.folder / "config.toml").read_text(encoding="utf8"))
    assert (stored["given"]["max_steps"], stored["given"]["loss"], stored["temperature"]) == (3, "focal", 0.07)
    # In a file of an older version, which has no table ``given``, all values count as given.
    del stored["given"]
    assert repeated(stored, {"loss": "standard"})[0]["temperature"] == 0.07


def test_preset_una_bert_base_needs_a_treebank_index(tmp_path, short_corpus, tiny_bert):
    TfidfIndex.build(short_corpus, tokenizer="treebank").save(tmp_path / "treebank")
    preset = config(tmp_path, short_corpus, tiny_bert, preset="una-bert-base", max_steps=1)
    refuses("cse build-tfidf CORPUS --tokenizer treebank", prepare, preset)
    assert prepare(preset.replace(tfidf=tmp_path / "treebank")).settings.options["una"]["surface"] == "plain"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"una": {"beta": 0.9}}, "--beta has no effect without --una; add that, or omit --beta"),
        ({"options": {"crop": {"share": 0.5}}}, "crop.share has no effect without --positive crop or --negative crop"),
        ({"options": {"lora": {"alpha": 4.0}}}, "lora.alpha has no effect without --encoder-method lora; add"),
        ({"options": {"mlm": {"weight": 0.5}}}, "--mlm-weight has no effect without --loss-term mlm; add"),
        ({"options": {"una": 5}}, "options must hold one table per method"),
        ({"options": {"una": {}}}, "the table una holds no option; remove it"),
        ({"negatives": 5, "una": True}, "--negative must be a list"),
        ({"loss": "scd", "temperature": 0.1}, "--loss scd does not use --temperature, .*; use --set scd.temperature"),
        ({"loss": "contrastive", "temperature": 0.1}, "does not use --temperature, .*; use --set contrastive.temp"),
        ({"loss": "scd", "feature_augmentations": ("modals", "dclr")}, "--feature-augmentation dclr has no effect"),
        ({"loss": "scd", "preset": "una-bert-base"}, "--loss scd uses no negatives, so --negative una has no effect"),
        ({"loss": "mlm", "feature_augmentations": ("modals",)}, "no anchors and no negatives and no positives, so"),
        ({"loss": "mlm", "positive_hook": "pca"}, "--loss mlm uses no positives, so --positive-hook has no effect"),
        ({"loss": "mlm", "anchor_dropout": 0.0}, "--loss mlm uses no anchors, so --anchor-dropout has no effect"),
        ({"loss": "mlm", "positive": "crop"}, "--positive crop has no effect"),
        ({"loss": "augcse", "anchor_hook": "token-shuffle"}, "uses no anchors, so --anchor-hook has no effect"),
        ({"margin": 0.2}, "--margin has no effect without --loss focal"),
        ({"mix_lambda": 0.3}, "--mix-lambda has no effect without --mixed-negatives"),
        ({"positive_hook": "pca", "pca": {"ratio": 0.2}}, "pca.ratio has no effect without pca.curriculum=none"),
        ({"feature_augmentations": ("dclr",), "dclr": {"threshold": 0.8}}, "dclr.threshold .* without dclr.model"),
        ({"positive": "spans", "spans": {"min_span_words": 3}}, "spans.min_span_words .* without spans.max_span_words"),
        ({"encoder_methods": ("prompt",), "pooler": "avg"}, "--pooler avg: --encoder-method prompt .* needs --pooler "),
        ({"encoder_methods": ("prompt",), "positive_hook": "pca"}, "--positive-hook pca: .* needs --positive-hook sec"),
        ({"feature_augmentations": ("off-dropout", "projector")}, "off-dropout adds embeddings .* projector maps the "),
        ({"positive": "diverse"}, "--positive diverse with these options makes edited sentences that no loss term"),
        ({"feature_augmentations": ("group-whitening", "projector")}, "group-whitening adds embeddings of the encoder"),
        ({"loss_terms": ("matryoshka", "diffcse"), "dims": "8"}, "--dims would train .* --feature-augmentation proj"),
        ({"loss_terms": ("mlm", "mlm")}, "--loss-term mlm was given twice"),
        ({"loss": "scd", "loss_terms": ("scd",)}, "--loss-term scd is already the loss"),
        ({"pairs": "p.csv", "column": "text"}, "--column cannot be combined with --pairs"),
        ({"pairs": ("p.csv",), "corpus": ("c.txt",)}, "--pairs cannot be combined with CORPUS"),
        ({"pairs": ("p.csv",), "positive": "spans"}, "cannot be combined with --pairs"),
        ({"columns": ("a", "b")}, "--columns has no effect without --pairs"),
        (
            {"learn": True, "labels": "l", "column": "t", "loss": "teacher", "teacher": "minilm"},
            "--loss teacher: with --learn, the run learns from the teacher before the labels; omit --loss",
        ),
        ({"hard_negative_weight": 2.0}, "--hard-negative-weight has no effect without --pairs"),
        ({"where": "a=1"}, "--where has no effect without --pairs"),
        ({"min_score": 4.0}, "--min-score has no effect without --pairs"),
        ({"allow_partial": True}, "--allow-partial has no effect without --data"),
        ({"positive": "una", "options": {"una": {"every": 3}}}, "una.every has an effect only with --negative una"),
    ],
)
def test_settings_without_effect_are_refused(values, message):
    refuses(message, lambda: resolved(TrainConfig(**values)))


def test_settings_with_an_effect_and_values_of_presets_are_accepted():
    for values in (
        {"loss": "scd", "preset": "simcse-bert-base"},
        {"loss": "scd", "feature_augmentations": ("modals",)},
        {"loss": "scd", "feature_augmentations": ("projector",), "mixed_negatives": False},
        {"loss": "scd", "loss_terms": ("mlm",), "positive_hook": "pca"},
        {"loss": "standard", "preset": "mixed-bert-base"},
        {"loss": "mlm", "positive": "spans"},
        {"loss": "focal", "margin": 0.2, "mixed_negatives": True, "mix_lambda": 0.3},
        {"encoder_methods": ("prompt",), "positive_hook": "pca", "prompt": {"positive_template": ""}},
        {"feature_augmentations": ("dclr",), "dclr": {"model": "m", "threshold": 0.8, "noise": 0}},
    ):
        resolved(TrainConfig(**values))


@pytest.mark.slow
def test_a_configuration_runs_no_python_file_that_the_command_does_not_name(cse, tmp_path, tiny_bert, sample):
    methods, config, ran = tmp_path / "methods.py", tmp_path / "config.toml", tmp_path / "ran"
    methods.write_text(f"open({str(ran)!r}, 'a').close()\n")
    config.write_text(f'imports = ["{methods}"]\nmax_steps = 1\nbatch_size = 4\nmodel = "{tiny_bert}"\n')
    hidden = tmp_path / "hidden.toml"
    hidden.write_text(f'max_steps = 1\n[given]\nimports = ["{methods}"]\n')
    train = ("train", sample, "--config", config, "--name", "first")
    resume = ("train", "--resume", tmp_path / "runs" / "first", "--max-steps", "2")
    assert cse(*train, "--import", methods, cwd=tmp_path).returncode == 0
    ran.unlink()
    for refused in (train, ("train", sample, "--config", hidden), resume):  # also after the file has been imported once
        done = cse(*refused, cwd=tmp_path)
        assert done.returncode == 2
        assert f"needs the methods of the Python file {methods}" in done.stderr
        assert f"--import {methods}" in done.stderr
        assert not ran.exists()
    assert cse(*resume, "--import", methods, cwd=tmp_path).returncode == 0
    assert ran.exists()


def invoked(*arguments):
    """Runs a command; returns the message of the error, which must be one short sentence."""
    done = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert isinstance(done.exception, InputError), (done.output, done.exception)
    message = str(done.exception)
    assert len(message) < 400
    assert "\n" not in message
    return message


@pytest.mark.parametrize("content", ["self = 1", "imports = 3", "imports = [[1]]", "a.b.c = 1", "lr = 0x" + "f" * 5000,
                                     f"lr = {'9' * 5000}", "model = [['x']]", "given = [1]", "options = {una = {}}",
                                     "[given]\nimports = 5", "[given]\nadd_tokens = 5", 'loss = "matryoshka"',
                                     'model = "a\\u0000b"', "max_steps = " + "9" * 30, "corpus = 5", "corpus = true",
                                     "corpus = [1, 2]", 'corpus = [["a"]]'])  # fmt: skip
def test_configuration_files_with_odd_values_are_refused_in_one_sentence(tmp_path, content, sample):
    config = tmp_path / "config.toml"
    config.write_text(content + "\n")
    assert "config.toml: " in invoked("train", sample, "--config", config)


@pytest.mark.parametrize("value", ["9" * 5000, "0x" + "f" * 5000, "'a\x00b'", "[" * 50_000, "{a = {b = {}}}", "9" * 30])
@pytest.mark.parametrize("name", ["una.beta", "una", "max_steps", "a.b.c"])
def test_odd_values_of_set_are_refused_in_one_sentence(name, value):
    invoked("train", "x.txt", "--una", "--set", f"{name}={value}")


def test_options_without_effect_are_found_in_the_given_values_of_a_configuration_file(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(
        'corpus = ["c.txt"]\nnegatives = ["una"]\n[una]\nradius = 5\nreplace_with = "random"\n'
        '[given]\nnegatives = ["una"]\n[given.una]\nradius = 5\nreplace_with = "random"\n'
    )
    refuses("--radius has no effect without --replace-with radius", resolved, TrainConfig.from_toml(config))


def test_an_empty_value_of_another_type_does_not_switch_a_method_off():
    for values in ({"mlm_weight": []}, {"mlm_weight": ""}, {"lora": []}):
        refuses("must be a", TrainConfig, corpus="c.txt", **values)


@dataclass(frozen=True)
class Options:
    rate: Annotated[float, Gt(0), Lt(1), Opt("a rate")] = 0.5
    count: Annotated[int, Ge(1), Opt(metavar="N")] = 1
    kind: Annotated[Literal["one", "two"] | None, Opt(flag="--sort")] = None
    names: Annotated[tuple[str, ...], MinLen(1)] = ("a",)
    size: int | str | None = None
    on: bool = False
    only: Annotated[int | None, Opt(needs=If("kind", ("two",)), excludes="on")] = None
    whole: Annotated[bool, Opt(needs=If("kind", ("two",)))] = True


def test_a_value_of_another_type_or_range_is_refused_in_one_sentence():
    for values, message in (
        ({"rate": 1}, "m.rate must be < 1, got 1.0"),
        ({"rate": float("inf")}, "m.rate must be a finite number, got inf"),
        ({"rate": "0.5"}, "m.rate must be a number, got '0.5'"),
        ({"rate": True}, "m.rate must be a number, got true"),
        ({"count": 2.0}, "m.count must be an integer, got 2.0"),
        ({"count": 0}, "m.count must be >= 1, got 0"),
        ({"kind": "tow"}, r"--sort: 'tow' is unknown \(did you mean two\?\)"),
        ({"names": "a"}, "m.names must be a list of names or texts, got 'a'"),
        ({"names": []}, "m.names must have at least 1 element"),
        ({"size": 0.5}, "m.size must be an integer or text, got 0.5"),
        ({"on": 1}, "m.on must be true or false, got 1"),
        ({"cuont": 1}, r"m.cuont: no such option \(did you mean count\?\)"),
    ):
        refuses(message, parse_options, "m", Options, values)


def test_combinations_are_refused_by_declaration():
    flags = {each.name: each.flag for each in options_of(Options)}
    for values, message in (
        ({"only": 3}, "--only has no effect without --sort two; add that, or omit --only"),
        ({"only": 3, "kind": "two", "on": True}, "--only cannot be combined with --on; omit one of them"),
        ({"only": 3, "kind": "two"}, None),
        ({"only": None}, None),
        ({"whole": False}, "--whole has no effect without --sort two; add that, or omit --whole"),
        ({"whole": False, "kind": "two"}, None),
    ):
        assert combination_fault(options_of(Options), values, values.get, flags.__getitem__) == message


GROUPS = [SETTINGS.values(), *(options_of(table.options(name)) for table in TABLES for name in table.names())]


def test_every_option_refuses_values_of_another_type_and_out_of_range():
    beyond, tried = {"ge": -1, "gt": 0, "le": 1, "lt": 0}, Counter()
    for each in (option for options in GROUPS for option in options):
        for value in ({"x": 1}, [[1]], b"x", "a\0b", float("nan"), 10**400):
            with pytest.raises(InputError, match=rf"^{re.escape(each.flag)}(: | must be )") as caught:
                each.check(value)
            assert "\n" not in str(caught.value)
            tried["type"] += 1
        for name, limit in each.limits().items():
            value = limit + beyond[name]
            with pytest.raises(InputError, match=rf"^{re.escape(each.flag)} must be {SIGNS[name]} {limit}, got "):
                each.check((value,) if each.several else value)
            tried["range"] += 1
    assert tried["type"] > 1000
    assert tried["range"] > 100


def test_every_condition_names_an_option_and_every_default_is_valid():
    for options in GROUPS:
        names = {each.name for each in options}
        for each in options:
            for conditions in (each.opt.needs, each.opt.excludes):
                for one in conditions if isinstance(conditions, tuple) else (conditions,):
                    assert (one if isinstance(one, str) else one.option) in names
            assert each.default is MISSING or each.default in (None, "") or each.check(each.default) == each.default


def test_a_flag_of_a_method_is_a_keyword_of_the_configuration():
    for keyword, each in method_flags().items():
        config = TrainConfig(**{keyword: each.option.default}) if each.option.default is not None else TrainConfig()
        assert config.options.get(each.method, {}).get(each.option.name) == each.option.default


def test_an_empty_text_is_refused_by_every_option_and_argument_for_which_it_is_no_value():
    context, tried = click.Context(cli), 0
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        arguments = [each for each in command.params if isinstance(each, click.Argument)]
        whole = [each.type.choices[0] if isinstance(each.type, click.Choice) else "x" for each in arguments]
        for parameter in command.params:
            if not isinstance(parameter.type, Text) or parameter.type.option.opt.blank:
                continue
            if parameter.type.option.default == "":
                continue
            at = arguments.index(parameter) if parameter in arguments else None
            given = [f"{parameter.opts[0]}=", *whole] if at is None else [*whole[:at], "", *whole[at + 1 :]]
            done = CliRunner().invoke(cli, [name, *given])
            assert isinstance(done.exception, InputError), (name, given, done.output, done.exception)
            assert "empty" in str(done.exception) or "is unknown" in str(done.exception), (given, done.exception)
            tried += 1
    assert tried > 150


def test_numbers_of_numpy_are_numbers_and_a_configuration_read_back_from_toml_is_unchanged(tmp_path):
    values = {"max_steps": np.int64(4), "lr": np.float32(0.5), "una": {"beta": np.float32(0.25)}}
    config = TrainConfig(**values, dims=(np.int64(8), 4), corpus=("a.txt", 'quote".txt'))
    assert (config.max_steps, config.lr, config.options["una"]["beta"]) == (4, 0.5, 0.25)
    (tmp_path / "c.toml").write_text(config.to_toml(), encoding="utf8")
    assert TrainConfig.from_toml(tmp_path / "c.toml") == config
    refuses("--lr must be a finite number", TrainConfig, lr=np.float32("inf"))
    for wrong in (np.True_, np.float64(4)):
        refuses("--max-steps must be an integer", TrainConfig, max_steps=wrong)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "standard", "seed": 5},
        {"una_as": "pairs"},
        {"una": False},
        {"learn": True, "labels": "label"},
        {"pairs": "p.csv"},
        {"epochs": 2, "max_steps": None},
        {"mlm_weight": 0.1},
    ],
    ids=str,
)
def test_to_replace_values_of_a_stored_run_derives_the_others_again(changes):
    first = TrainConfig(loss="focal", una=True)
    stored = TrainConfig(**tomllib.loads(resolved(first, "encoder").to_toml()))
    assert stored.temperature != first.temperature  # derived
    found, expected = (resolved(each.replace(**changes), "encoder") for each in (stored, first))
    assert found.to_toml() == expected.to_toml()
    renamed = stored.replace(name="other")
    assert (renamed.temperature, renamed.given["name"]) == (stored.temperature, "other")


def test_an_encoder_method_stands_beside_those_of_the_preset():
    preset = {"preset": "promptbert-bert-base"}
    assert with_preset(TrainConfig(**preset, lora=8)).encoder_methods == ("prompt", "lora")
    assert with_preset(TrainConfig(**preset, encoder_methods=())).encoder_methods == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_read_back_from_toml_resolves_to_the_same_settings(tmp_path, family):
    config = TrainConfig(una=True, max_steps=4)
    (tmp_path / "c.toml").write_text(config.to_toml(), encoding="utf8")
    again = TrainConfig.from_toml(tmp_path / "c.toml")
    assert resolved(again, family).to_toml() == resolved(config, family).to_toml()


def test_the_documentation_of_a_default_is_that_of_the_function_of_defaults():
    for name in ("lr", "temperature", "max_steps", "batch_size", "positive", "merge_with_base"):
        first, *others = described(name, SETTINGS[name].default)
        known = dict(others)
        for family, (words, situation) in product(FAMILIES, SITUATIONS.items()):
            usual = known.get(family, first[1])
            expected = known.get(words, known.get(f"{family} {words}", usual))
            resolved_value = defaults(family, **situation).get(name, COMMON.get(name))
            assert resolved_value == expected, (name, family, words)
    assert described("lr", None) == [
        ("", 1e-5), ("bert-base", 3e-5), ("roberta-large", 3e-5), ("encoder with --teacher", 5e-5),
        ("with --learn", 3e-5),
    ]  # fmt: skip
    assert described("una.every", 5) == [("", 5), ("encoder", 1)]
