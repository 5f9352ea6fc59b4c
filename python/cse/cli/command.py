"""Makes commands of functions, whose parameters declare the arguments and options; see ``cse.options``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, is_dataclass
from typing import Any, get_type_hints

import click
from click.shell_completion import CompletionItem

from .. import options as declared
from ..errors import InputError, refusing_names
from ..options import Option
from . import printing


@dataclass(frozen=True)
class Heading:
    """Mark of a parameter: the help lists it and those after it under this heading."""

    text: str


class Text(click.ParamType[str]):
    """Parameter type for text; names that are no choices are checked after parsing: ``--import`` may register more."""

    name = "text"

    def __init__(self, option: Option) -> None:
        self.option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "" and self.option.default != "" and not self.option.opt.blank:
            name = self.option.opt.short or self.option.flag
            name = self.option.name.upper() if isinstance(param, click.Argument) else name
            remedy = "" if self.option.default is MISSING else f", or omit {name}"
            raise InputError(f"{name} is empty; give a value{remedy}")
        if self.option.opt.separator and isinstance(value, str):
            return tuple(item.strip() for item in value.split(self.option.opt.separator))
        return self.option.check(value) if self.option.choices and isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self.option.names() if name.startswith(incomplete)]


class Number(click.ParamType[Any]):
    """Parameter type for numbers; ``Option.check`` reports an invalid one."""

    def __init__(self, option: Option) -> None:
        self.option, self.name = option, "integer" if option.kind is int else "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            with suppress(ValueError):
                value = int(value) if self.option.kind is int else float(value)
        return self.option.check(value)


class Ranged(Number, click.FloatRange):
    """As ``Number``, and its range is shown in the help, up to 2**31."""

    def __init__(self, option: Option) -> None:
        Number.__init__(self, option)
        self.name += " range"
        limits = option.limits()
        most = limits.get("le", limits.get("lt", 2**31))
        shown = most if most < 2**31 else None
        click.FloatRange.__init__(self, limits.get("ge", limits.get("gt")), shown, "gt" in limits, "lt" in limits)


class Command(click.Command):
    """A command whose help lists its options under headings; those in ``headings`` come first."""

    headings: Sequence[str] = ()
    common: Sequence[str] = ()
    """Names of the parameters that ``--help`` lists, in this order; ``--help-all`` lists all. Empty: both list all."""

    def get_help_all(self, ctx: click.Context) -> str:
        ctx.meta[HELP_ALL] = True
        return self.get_help(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.common and HELP_ALL not in ctx.meta:
            named = {parameter.name: parameter for parameter in self.params}
            chosen = [named[name].get_help_record(ctx) for name in self.common]
            with formatter.section("Options"):
                formatter.write_dl([record for record in chosen if record is not None])
            others = sum(isinstance(param, click.Option) for param in self.params) - len(self.common) - 1
            formatter.write_paragraph()
            formatter.write_text(f"{others} more options: {ctx.command_path} --help-all")
            return
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in self.headings}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                grouped = any(hasattr(param, "heading") for param in self.params)
                other = "Help" if grouped else "Options"
                sections.setdefault(getattr(parameter, "heading", other), []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


HELP_ALL = "cse.help-all"
"""Key in the ``meta`` of a context in which the help lists all options."""


def _show_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and isinstance(ctx.command, Command):
        printing.echo(ctx.command.get_help_all(ctx))
        ctx.exit()


def click_option(option: Option, heading: str = "", *, ranges: bool = True, **settings: Any) -> click.Option:
    opt, flag, kind = option.opt, option.opt.flag or option.flag, option.kind
    default = None if option.default is MISSING else option.default
    if kind is bool and "/" not in flag and settings.get("default", default) is not False:
        flag += f"/--no-{flag.removeprefix('--')}"
    text = opt.help + (f"  [default: {opt.default}]" if opt.default else "")
    values: dict[str, Any] = {"default": default, "show_default": not opt.default, "help": text}
    values |= {"metavar": opt.metavar or ("|".join(option.choices) if option.choices else None)}
    if option.default is MISSING:
        del values["default"]  # click 8.3 takes None for a given value
        values |= {"required": True}
    if kind is bool:
        values |= {"is_flag": True}
    else:
        number = Ranged if ranges and option.limits() else Number
        values |= {"type": Text(option) if kind is str else number(option)}
        values |= {"multiple": option.several and not opt.separator}
    made = click.Option([flag, *([opt.short] if opt.short else []), option.name], **{**values, **settings})
    if heading:
        made.heading = heading  # type: ignore[attr-defined]
    return made


def command(
    name: str,
    further: Callable[[], list[click.Option]] = list,
    headings: Sequence[str] = (),
    short_help: str = "",
    common: Sequence[str] = (),
) -> Callable[[Callable[..., None]], click.Command]:
    """Returns a decorator that makes a command from a function.

    The positional parameters of the function are the arguments of the command, and the others are its options, as
    ``cse.options`` describes. A parameter whose type is a dataclass receives all options that the dataclass declares.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        params: list[click.Parameter] = []
        single: list[Option] = []
        groups: dict[str, tuple[type[Any], tuple[Option, ...]]] = {}
        heading = ""
        hints = get_type_hints(function, include_extras=True)
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            default = MISSING if parameter.default is parameter.empty else parameter.default
            option = declared.declared(parameter.name, hints[parameter.name], default)
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                many, required = option.several, default is MISSING
                shown: dict[str, Any] = {} if many or required else {"default": default}
                shown["type"] = click.Choice(option.choices) if option.choices else Text(option)
                params.append(
                    click.Argument(
                        [option.name], nargs=-1 if many else 1, required=required, metavar=option.opt.metavar, **shown
                    )
                )
                continue
            heading = next((mark.text for mark in option.marks if isinstance(mark, Heading)), heading)
            if is_dataclass(option.hint) and isinstance(option.hint, type):
                groups[option.name] = (option.hint, declared.options_of(option.hint))
                params += [click_option(member, heading) for member in groups[option.name][1]]
            else:
                single.append(option)
                params.append(click_option(option, heading))
        every = [*single, *(member for _, members in groups.values() for member in members)]

        def call(**values: Any) -> None:
            from ..registry import import_methods

            for file in values.get("imports") or ():
                import_methods(file)
            for option in every:
                if (value := values[option.name]) is not None:
                    values[option.name] = option.check(value)
            flags = {option.name: option.flag for option in every}
            fault = declared.combination_fault(
                every, given_options(), values.get, lambda key: flags.get(key, key.upper())
            )
            if fault:
                raise InputError(fault)
            for parameter, (group, members) in groups.items():
                values[parameter] = group(**{member.name: values.pop(member.name) for member in members})
            with refusing_names():
                function(**values)

        arguments = [param for param in params if isinstance(param, click.Argument)]
        made = Command(name, callback=call, help=inspect.cleandoc(function.__doc__ or ""), short_help=short_help)
        made.params = [*arguments, *further(), *(param for param in params if isinstance(param, click.Option))]
        made.headings = headings
        if common:
            eager: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "default": False}
            text = "Show all options and exit."
            made.params.append(click.Option(["--help-all"], **eager, callback=_show_all, help=text))
            made.common = common
        return made

    return decorate


def given_options() -> set[str]:
    ctx = click.get_current_context()
    default = click.core.ParameterSource.DEFAULT
    return {name for name in ctx.params if ctx.get_parameter_source(name) is not default}
