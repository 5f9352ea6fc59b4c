"""Tests of the declarations of options: values, combinations, and what follows from a declaration."""

import re
from collections import Counter
from dataclasses import MISSING, dataclass
from typing import Annotated, Literal

import click
import numpy as np
import pytest
from annotated_types import Ge, Gt, Lt, MinLen
from click.testing import CliRunner

from conftest import refuses
from cse import InputError, train
from cse.cli import cli
from cse.cli.command import Text
from cse.options import SIGNS, If, Opt, combination_fault, options_of, parse_options
from cse.training.settings.given import TrainConfig
from cse.training.settings.names import SETTINGS, TABLES, method_flags


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


@pytest.mark.parametrize(
    ("values", "message"),
    [
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
    ],
)
def test_a_value_of_another_type_or_range_is_refused_in_one_sentence(values, message):
    refuses(message, parse_options, "m", Options, values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"only": 3}, "--only has no effect without --sort two; add that, or omit --only"),
        ({"only": 3, "kind": "two", "on": True}, "--only cannot be combined with --on; omit one of them"),
        ({"only": 3, "kind": "two"}, None),
        ({"only": None}, None),
        ({"whole": False}, "--whole has no effect without --sort two; add that, or omit --whole"),
        ({"whole": False, "kind": "two"}, None),
    ],
)
def test_combinations_are_refused_by_declaration(values, message):
    flags = {each.name: each.flag for each in options_of(Options)}
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


@pytest.mark.parametrize("config", [{"corpus": ["c.txt"]}, "config.toml", None])
def test_training_takes_only_a_configuration(config):
    refuses("a TrainConfig was expected", train, config)


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


def test_numbers_of_numpy_are_numbers():
    config = TrainConfig(
        max_steps=np.int64(4), lr=np.float32(0.5), una={"beta": np.float32(0.25)}, dims=(np.int64(8), 4)
    )
    assert (config.max_steps, config.lr, config.options["una"]["beta"]) == (4, 0.5, 0.25)
    assert "beta = 0.25" in config.to_toml()
    refuses("--lr must be a finite number", TrainConfig, lr=np.float32("inf"))
    for wrong in (np.True_, np.float64(4)):
        refuses("--max-steps must be an integer", TrainConfig, max_steps=wrong)
