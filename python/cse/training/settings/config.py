"""The configuration of a run: settings, options of methods, their form as TOML, and which combinations are refused."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import tomli_w

from ... import io
from ...augment import AUGMENTATIONS, LABELS_POSITIVE, PAIRS_POSITIVE
from ...augment.base import Edit
from ...errors import InputError, did_you_mean, for_python, shown
from ...hooks import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ...io import SURROGATES
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS
from ...losses.options import ContrastiveOptions, incompatibility
from ...options import combination_fault, options_of, parse_options
from ...registry import Registry, check_imports, import_methods
from .declared import Settings
from .values import LOSS_SETTINGS, SETTINGS, TABLES, flag, flat, merge, method_flags, plain, switch, tables_of

CONTRASTIVE_FLAGS = "--loss standard, focal and mixed"


class TrainConfig(Settings):
    """Training configuration: the settings of a run, and the options of the methods that they name.

    A setting that is None but needs a value gets a default that depends on preset, loss and model; see
    ``cse.training.settings.precedence.resolve``. Invalid values raise ``InputError``. Settings are given as keyword
    arguments: ``una=True`` enables UNA, and ``una={"beta": 0.3}`` sets its options.

    Sources: SimCSE (Gao et al. 2021), Focal-InfoNCE (Hou and Li 2023), MixCSE (Zhang et al. 2022), UNA (Shu and
    Lampos 2024).
    """

    options: dict[str, dict[str, Any]]
    """Options by name of the augmentation, loss term or other method. In TOML, the options of UNA are the table
    ``[una]``; in Python, ``una={"beta": 0.3}`` is equivalent to ``options={"una": {"beta": 0.3}}``. An option with a
    flag can also be given alone: ``beta=0.3``."""
    given: dict[str, Any] | None
    """The values that the user gave; the other values were derived from them. A table in the ``config.toml`` of a run,
    set by ``cse.training.settings.precedence``. None: the user gave all values."""

    @for_python
    def __init__(self, /, **values: Any) -> None:
        """Checks types and ranges; raises ``InputError`` with the flag of the first invalid setting."""
        values = {name: plain(value) for name, value in flat(values).items()}
        for name in SETTINGS.keys() & values.keys():
            if SETTINGS[name].opt.paths and isinstance(values[name], str):
                values[name] = (values[name],)
        for file in SETTINGS["imports"].check(values.get("imports") or ()):
            import_methods(file)  # registers methods before their names are looked up
        options = tables_of(values)
        for name in [name for name in values if "." not in name and name not in (*SETTINGS, "given")]:
            used = values.pop(name)  # una=True
            if name not in AUGMENTATIONS:
                known = (*SETTINGS, *method_flags(), *AUGMENTATIONS.flagged())
                raise InputError(f"unknown key {name!r}{did_you_mean(name, known)}; see cse train --help-all")
            elif isinstance(used, bool):
                switch(values, "negatives", name, used)
            elif used is not None:
                raise InputError(f"--{name} must be true or false, or a table of options, got {used!r}")
        if (given := values.get("given")) is not None:
            if not isinstance(given, dict):
                raise InputError(f"given must be a table of settings, got {shown(given)}")
            given = TrainConfig(**given).values()
        checked = {
            name: option.check(values[name]) if name in values else option.default for name, option in SETTINGS.items()
        }
        names = {*values, *(["options"] if options else [])}
        self._fill({**checked, "options": options, "given": given}, frozenset(names))
        for name, table in options.items():
            known = vars(self.options_of(name))
            options[name] = {key: known[key] for key in table}
        for problem in filter(None, refusals(self)):
            raise InputError(problem)

    def _fill(self, values: Mapping[str, Any], names: frozenset[str]) -> None:
        for name, value in {**values, "_names": names}.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        return all(getattr(other, name) == getattr(self, name) for name in (*SETTINGS, "options", "given"))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.values().items())})"

    @property
    def contrastive(self) -> ContrastiveOptions:
        """The options of the contrastive loss."""
        table = dict(self.options.get(CONTRASTIVE, {}))
        if self.loss in CONTRASTIVE_LOSSES:
            own = {name: getattr(self, name) for name in LOSS_SETTINGS if name != "logits"}
            table |= {name: value for name, value in own.items() if value is not None} | CONTRASTIVE_LOSSES[self.loss]
        options: ContrastiveOptions = parse_options(CONTRASTIVE, ContrastiveOptions, table)
        return options

    @property
    def all_terms(self) -> tuple[str, ...]:
        """The loss terms besides the loss, as far as they were given."""
        return tuple(dict.fromkeys((*self.loss_terms, *self.more_loss_terms)))

    @property
    def synthetic_pairs(self) -> bool:
        """Whether negatives are known to form further pairs; this may depend on options that only defaults set."""
        return False

    @property
    def methods(self) -> dict[str, Registry[Any]]:
        """The registries of the methods that the configuration names, by method name."""
        terms = self.all_terms if self.loss in CONTRASTIVE_LOSSES else (self.loss, *self.all_terms)
        tables: dict[Registry[Any], tuple[str | None, ...]] = {
            AUGMENTATIONS: (self.positive, *self.negatives, LABELS_POSITIVE if self.learn else None),
            FEATURE_AUGMENTATIONS: self.feature_augmentations,
            ENCODER_METHODS: self.encoder_methods,
            HOOKS: (self.anchor_hook, self.positive_hook),
            LOSS_TERMS: terms,
        }
        return {name: table for table, names in tables.items() for name in names if name is not None}

    def implied(self) -> dict[str, Any]:
        """Returns the defaults of settings that the methods imply; see ``TextMethod.implies``."""
        implied: dict[str, Any] = {}
        for name, table in self.methods.items():
            implied |= table.get(name).implies(self.options_of(name))
        return implied

    def options_of(self, method: str) -> Any:
        """Returns the options of a method, with defaults filled in; raises ``InputError`` for an invalid option."""
        table = next((registry for registry in TABLES if method in registry), None)
        if table is None:
            raise InputError(f"{method}: neither a setting nor a method; see cse train --help and cse methods")
        return parse_options(method, table.options(method), self.options.get(method, {}))

    def values(self) -> dict[str, Any]:
        """Returns the values that were set, by name, without ``given``."""
        return {name: getattr(self, name) for name in (*SETTINGS, "options") if name in self._names}  # type: ignore[attr-defined]

    def replace(self, **values: Any) -> Self:
        """Returns a validated copy in which these values are changed."""
        return type(self)(**{**self.values(), "given": self.given, **values})

    def copied(self, **values: Any) -> Self:
        """Returns a copy in which these values are changed without being validated."""
        copy = object.__new__(type(self))
        copy._fill({**vars(self), **values}, self._names | values.keys())  # type: ignore[attr-defined]
        return copy

    def to_toml(self) -> str:
        """Returns the configuration as TOML without None values; options of methods are tables at the end."""
        stored = _tables({name: getattr(self, name) for name in (*SETTINGS, "options")})
        stored |= {} if self.given is None else {"given": _tables(self.given)}
        # TOML cannot hold names of files that are not UTF-8; see ``cse.data.readers.find_again``.
        return SURROGATES.sub("\ufffd", tomli_w.dumps(stored))

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Reads a TOML file, as written by ``to_toml``; raises ``InputError`` for an invalid file, key or value."""
        return cls(**read_toml(path))


class ResolvedConfig(TrainConfig):
    """Training configuration in which each of these settings has a value."""

    max_length: int
    model: str
    pooler: str
    keep_head: bool
    positive: str
    keep_duplicates: bool
    temperature: float
    objective: Any
    mixed_negatives: bool
    batch_size: int
    lr: float
    lr_scheduler: Any
    weight_decay: float
    max_grad_norm: float
    merge_with_base: float
    eval_every: int

    @property
    def synthetic_pairs(self) -> bool:
        """Whether synthetic negatives are used as further pairs, encoded twice under different dropout masks."""
        return any(AUGMENTATIONS.get(name).makes_pairs(self.options_of(name)) for name in self.negatives)

    def public(self) -> ResolvedConfig:
        """Returns the configuration without settings that name data; paths are shortened to their last component."""
        from ...encoder.saving import public_name

        private: dict[str, Any] = dict.fromkeys(("cache", "patience", "given", "data", "judged_queries"))
        private |= dict.fromkeys(("corpus", "pairs", "columns", "dev"), ())
        private |= {"model": public_name(self.model), "tfidf": None, "output": "runs"}
        private["imports"] = _without_folder(self.imports)
        private["options"] = {
            name: {key: _without_folder(value) for key, value in table.items()} for name, table in self.options.items()
        }
        if self.pairs:  # these settings are valid only with pairs
            private |= {"positive": "dropout", "where": None, "min_score": None}
            private["options"].get(CONTRASTIVE, {}).pop("hard_negative_weight", None)
        return self.copied(**private)  # not validated: files may be missing, and imports have lost their folder

    def public_text(self, text: str) -> str:
        """Returns a description of methods in which the paths of options are shortened, as ``public`` does."""
        for value in (value for table in self.options.values() for value in table.values()):
            if isinstance(value, str) and value:
                text = text.replace(value, _without_folder(value))
        return text

    def with_used_options(self, methods: dict[str, Any]) -> ResolvedConfig:
        """Returns the configuration with all options of the methods that are used, including defaults."""
        used = {name: asdict(method.options) for name, method in methods.items()}
        if self.loss in CONTRASTIVE_LOSSES:
            used[CONTRASTIVE] = {name: value for name, value in used[CONTRASTIVE].items() if name not in LOSS_SETTINGS}
        return self.copied(options={name: table for name, table in used.items() if table})


def read_toml(path: str | Path) -> dict[str, Any]:
    """Reads and validates a configuration file; raises ``InputError`` with the file and the invalid key."""
    values = io.read_toml(path, dict[str, Any])
    try:
        given = values.get("given")
        for table in (values, given if isinstance(given, dict) else {}):  # before methods are imported
            check_imports(SETTINGS["imports"].check(table.get("imports", [])))
        TrainConfig(**values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return values


def _tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values without None, with the options of each method as a table at the end."""
    known = merge(values)
    return {name: value for name, value in known.items() if "." not in name} | tables_of(known)


def _without_folder(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_without_folder(item) for item in value)
    local = isinstance(value, str) and "/" in value and (os.path.isabs(value) or os.path.exists(value))
    return os.path.basename(value) if local else value


def refusals(config: Any) -> Iterator[str]:
    """Yields why a ``TrainConfig`` is refused, whatever the defaults of its model are; may also yield ""."""
    for name in sorted(LOSS_SETTINGS.keys() & config.options.get(CONTRASTIVE, {}).keys()):
        if config.loss in CONTRASTIVE_LOSSES:
            yield f"{CONTRASTIVE}.{name}: use {LOSS_SETTINGS[name]}, unless the loss is --loss {CONTRASTIVE}"
    yield combination_fault(SETTINGS.values(), SETTINGS, lambda name: getattr(config, name), flag) or ""
    if config.loss in config.all_terms:
        yield f"--loss-term {config.loss} is already the loss (--loss {config.loss}); omit this --loss-term"
    if CONTRASTIVE in config.all_terms:
        yield f"--loss-term {CONTRASTIVE} is part of {CONTRASTIVE_FLAGS}; omit this --loss-term"
    if config.loss == "matryoshka":
        yield "--loss matryoshka needs a contrastive loss; use --dims with --loss standard, focal or mixed"
    if "matryoshka" in config.all_terms and config.loss not in (*CONTRASTIVE_LOSSES, CONTRASTIVE):
        yield f"--dims belongs to a contrastive loss, which --loss {config.loss} is not; omit --dims"
    if CONTRASTIVE_LOSSES.get(config.loss, {}).get("mixed_negatives") and config.mixed_negatives is False:
        yield f"--no-mixed-negatives cannot be combined with --loss {config.loss}; use --loss standard"
    contrastive = config.contrastive
    yield incompatibility(config.objective, contrastive.logits, contrastive.mixed, config.synthetic_pairs) or ""
    if contrastive.hard_negative_weight != 1 and not config.pairs:
        yield "--hard-negative-weight has no effect without --pairs; add that, or omit --hard-negative-weight"
    if config.pairs and config.positive not in (None, PAIRS_POSITIVE):
        yield f"--positive {config.positive} cannot be combined with --pairs, which holds the positives"


def without_effect(config: Any, named: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yields which settings that the user gave change nothing; ``named`` are the options that were given, by method."""
    used = {*config.methods, *({CONTRASTIVE} if config.loss in CONTRASTIVE_LOSSES else ())}
    for method in sorted(named.keys() - used):
        option = flag(f"{method}.{next(iter(named[method]))}")
        ways = next([f"{name} {method}" for name in flags] for table, flags in TABLES.items() if method in table)
        if method == CONTRASTIVE:
            ways = [f"--loss {name}" for name in CONTRASTIVE_LOSSES]
        elif method in AUGMENTATIONS.flagged():
            ways = [f"--{method}"]
        yield f"{option} has no effect without {' or '.join(ways)}; add that, or omit {option}"
    chosen = {name: value for name, value in (config.given or {}).items() if value is not None and value is not False}
    for method, table in chosen.get("options", {}).items():
        options = config.contrastive if method == CONTRASTIVE else config.options_of(method)
        flags = {option.name: flag(f"{method}.{option.name}") for option in options_of(type(options))}
        yield combination_fault(options_of(type(options)), table, vars(options).get, flags.__getitem__) or ""
        for name in sorted(table.keys() & getattr(config.methods.get(method, {}).get(method), "of_negatives", ())):
            if method not in config.negatives:
                yield f"{method}.{name} has an effect only with --negative {method}; add that, or omit {method}.{name}"
    for method in config.encoder_methods:
        for name, value in ENCODER_METHODS.get(method).requires(config.options_of(method)).items():
            if (actual := getattr(config, name)) != value:
                yield (
                    f"{flag(name)} {actual}: --encoder-method {method} with these options needs {flag(name)} {value}; "
                    f"omit {flag(name)}, or change the options (cse methods {method})"
                )
    features = {name: FEATURE_AUGMENTATIONS.get(name) for name in config.feature_augmentations}
    terms = {name: LOSS_TERMS.get(name) for name, table in config.methods.items() if table is LOSS_TERMS}
    mapping = [f"--feature-augmentation {name}" for name, kind in features.items() if kind.other_space]
    if "matryoshka" in config.loss_terms and mapping:
        yield f"--dims would train the dimensions of the output of {mapping[0]}, which is not saved; omit one of them"
    encoding = [f"--feature-augmentation {name}" for name, kind in features.items() if kind.encodes]
    encoding += [f"--loss-term {name}" for name, term in terms.items() if term.encodes]
    for one, other in ((one, other) for one in encoding for other in mapping if one != other):
        yield f"{one} adds embeddings of the encoder, and {other} maps the others to another space; omit one of them"
    positive = AUGMENTATIONS.get(config.positive)
    is_view = issubclass(positive, Edit) and not positive.is_positive(config.options_of(config.positive))
    if is_view and not any("other" in term.reads for term in terms.values()):
        yield (
            f"--positive {config.positive} with these options makes edited sentences that no loss term of the run "
            f"reads; add the loss term of its paper (cse methods {config.positive}), or choose another positive"
        )
    if config.loss in CONTRASTIVE_LOSSES:
        return  # reads all views
    changed = {f"--negative {name}": {"negative"} for name in config.negatives}
    changed |= {f"--feature-augmentation {name}": set(kind.changes) for name, kind in features.items()}
    for role in ("anchor", "positive"):
        settings = (f"{role}_hook", f"{role}_dropout", f"{role}_encoder")
        changed |= {flag(name): {role} for name in settings if name in chosen}
    if "positive" in chosen and issubclass(positive, Edit):
        changed[f"--positive {config.positive}"] = {"positive"}
    read = frozenset().union(*(term.reads for term in terms.values()))
    for option, roles in changed.items():
        if not read & roles:
            others = " and ".join(f"no {role}s" for role in sorted(roles))
            yield f"--loss {config.loss} uses {others}, so {option} has no effect; omit one of them"
    own = {option.name for option in options_of(LOSS_TERMS.options(config.loss))}
    for name, option in LOSS_SETTINGS.items():
        if name in chosen:
            remedy = f"use --set {config.loss}.{name}" if name in own else "omit one of them"
            yield f"--loss {config.loss} does not use {option}, which belongs to {CONTRASTIVE_FLAGS}; {remedy}"
