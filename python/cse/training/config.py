"""What a training run is told: one frozen dataclass, its recipes, its checks, TOML in and out."""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import tomli_w

from ..errors import InputError
from ..tfidf.options import DrawOptions, percentage

__all__ = ["FAMILIES", "LOSSES", "POOLERS", "TrainConfig", "preset_names", "resolve", "validate"]

LOSSES = ("standard", "focal", "mixed")
POOLERS = ("cls", "cls_before_pooler", "avg", "avg_top2", "avg_first_last", "avg_embed_last")
MIX_VARIANTS = ("paper", "release")
UNA_AS = ("rows", "columns")
NEGATIVES = ("cross", "all")
SCHEDULES = ("linear", "constant")
SURFACES = ("keep", "plain")
STEP2 = ("tfidf", "random")
STEP3 = ("radius", "random")


@dataclass(frozen=True)
class TrainConfig:
    """A training run. ``None`` means "by recipe": see ``resolve``.

    Sources: SimCSE (Gao et al. 2021), Focal-InfoNCE (Hou and Li 2023), MixCSE (Zhang et al. 2022), UNA (Shu and
    Lampos 2024).
    """

    corpus: tuple[str, ...] = ()
    """Text files, patterns or tables (``cse.inputs.resolve``); none: the files the TF-IDF index was built from."""
    column: str | None = None
    """The column of a table that holds the sentences."""
    tfidf: str = "tfidf"
    """Folder of the TF-IDF index."""
    output: str = "runs"
    """Folder in which the run's own folder is made."""
    name: str | None = None
    """The run's folder; none: made from model, loss and seed, with a suffix if it exists."""

    model: str = "bert-base-uncased"
    """``minilm``, a local folder, or a name on the Hugging Face hub."""
    pooler: str | None = None
    """How token vectors become one: see ``cse.model.pool``."""
    max_length: int | None = None
    """Tokens of a training sentence; the saved model keeps its own limit."""

    loss: str = "standard"
    temperature: float | None = None
    margin: float = 0.3
    """Focal's m."""
    mix_lambda: float = 0.2
    """Weight of the anchor's own positive in a mixed negative."""
    mix_variant: str = "paper"
    negatives: str | None = None
    """``cross``: anchors against the other side's views; ``all``: every view against every other."""

    una: bool = False
    una_every: int = 5
    """UNA's turn is each step divisible by this, from step 0; 0 is never."""
    una_as: str = "rows"
    beta: float = 0.5
    radius: int | str | None = None
    """Ranks, or a percentage of the vocabulary (``"5%"``)."""
    surface: str | None = None
    step2: str = "tfidf"
    step3: str = "radius"
    """Which words are replaced, and by which (UNA, Table 2): see ``cse.choices.DrawOptions``."""
    min_df: int = 0
    max_terms: int | None = None
    """The part of the index that is seen: see ``TfidfIndex.open``."""

    batch_size: int | None = None
    lr: float | None = None
    schedule: str | None = None
    weight_decay: float | None = None
    clip_norm: float | None = None
    """Largest norm of the gradient; 0 does not clip."""
    epochs: int = 1
    max_steps: int | None = None

    dev: str | None = None
    """A TSV of score, sentence1, sentence2; none: held-out rows and no labels."""
    eval_every: int | None = None
    """Steps between evaluations; 0 evaluates at the end alone."""
    data: str | None = None
    """A folder of STS test files on which the chosen model is scored at the end."""

    seed: int = 0
    device: str = "auto"
    threads: int = 0
    """Of PyTorch and the Rust core; 0 leaves them their defaults."""
    encoding_errors: str = "strict"
    max_line_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        """Paths may be given as ``Path``, a single corpus by itself; values of the wrong type raise ``InputError``."""
        corpus = (self.corpus,) if isinstance(self.corpus, (str, PathLike)) else self.corpus
        object.__setattr__(self, "corpus", tuple(fspath(path) for path in corpus))
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, PathLike):
                value = fspath(value)
            kinds = str(field.type).split(" | ")
            if "float" in kinds and type(value) is int:
                value = float(value)
            if field.name != "corpus" and type(value).__name__.replace("NoneType", "None") not in kinds:
                flag = "--" + field.name.replace("_", "-")
                raise InputError(f"{flag}: {value!r} was given, and it must be of type {kinds[0]}")
            object.__setattr__(self, field.name, value)

    @classmethod
    def from_preset(cls, name: str, **values: Any) -> TrainConfig:
        """A paper's recipe (``preset_names``), with some values of one's own."""
        return cls(**{**preset(name), **values})

    def drawing(self, epoch: int = 0) -> DrawOptions:
        """How an epoch's synthetic negatives are drawn."""
        return {
            "seed": self.seed,
            "epoch": epoch,
            "beta": self.beta,
            "radius": self.radius,
            "surface": self.surface,
            "step2": self.step2,
            "step3": self.step3,
        }

    @property
    def ablated(self) -> bool:
        """Whether a step of UNA's is left to chance (its Table 2)."""
        return "random" in (self.step2, self.step3)

    def to_toml(self) -> str:
        """As TOML; values that are ``None`` are left out."""
        values = {key: value for key, value in asdict(self).items() if value is not None}
        return tomli_w.dumps(values)

    @classmethod
    def from_toml(cls, path: str | Path) -> TrainConfig:
        """Reads what ``to_toml`` wrote; a key that is no field raises ``InputError``."""
        return cls(**read_toml(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    """The values of a configuration file, checked against the fields of ``TrainConfig``."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a TOML file ({error})") from None
    unknown = set(values) - {field.name for field in fields(TrainConfig)}
    if unknown:
        raise InputError(f"{path}: unknown key {sorted(unknown)[0]!r}; see cse train --help")
    return values


# The rates of a model family where neither a flag, a preset nor the loss says otherwise (SimCSE, table A.1).
FAMILIES: dict[str, dict[str, Any]] = {
    "bert-base": {"batch_size": 64, "lr": 3e-5, "schedule": "linear"},
    "bert-large": {"batch_size": 64, "lr": 1e-5, "schedule": "linear"},
    "roberta-base": {"batch_size": 512, "lr": 1e-5, "schedule": "linear"},
    "roberta-large": {"batch_size": 512, "lr": 3e-5, "schedule": "linear"},
    # all-MiniLM-L6-v2 is contrastive already: a gentle constant rate, its own pooling.
    "minilm": {"batch_size": 64, "lr": 2e-5, "schedule": "constant", "weight_decay": 0.01, "pooler": "avg"},
}
_EVERYWHERE: dict[str, Any] = {
    "temperature": 0.05,
    "weight_decay": 0.0,
    "clip_norm": 1.0,
    "max_length": 32,
    "eval_every": 125,
}


def _loss_recipe(loss: str, family: str) -> dict[str, Any]:
    if loss == "focal":
        return {"temperature": 0.07 if family.startswith("bert-") else 0.05}
    return {}


def resolve(config: TrainConfig, family: str, own_pooler: str | None = None) -> TrainConfig:
    """Fills in what was not given: the loss's recipe, then the model family's, then what holds everywhere.

    Presets are merged before (``TrainConfig.from_preset``), since they name the model. ``own_pooler`` is the pooling a
    sentence-transformers directory brings along; otherwise ``cls`` is used.
    """
    recipe = {
        **_EVERYWHERE,
        "pooler": own_pooler or "cls",
        **FAMILIES[family],
        **_loss_recipe(config.loss, family),
        "negatives": "all" if config.una and config.una_as == "rows" else "cross",
    }
    if own_pooler:
        recipe["pooler"] = own_pooler
    missing = {key: value for key, value in recipe.items() if getattr(config, key) is None}
    return replace(config, **missing)


def _presets() -> dict[str, dict[str, Any]]:
    found = {}
    for paper in ("simcse", "focal", "mixed", "una"):
        tables = tomllib.loads((files("cse") / "presets" / f"{paper}.toml").read_text(encoding="utf8"))
        shared = tables.pop("all")
        for model, values in tables.items():
            found[f"{paper}-{model}"] = {**shared, **values}
    return found


def preset_names() -> list[str]:
    """The papers' recipes: ``simcse-bert-base`` and so on."""
    return sorted(_presets())


def preset(name: str) -> dict[str, Any]:
    """The values of a preset, by name."""
    presets = _presets()
    if name not in presets:
        raise InputError(f"--preset: {name!r} is unknown; choose one of {', '.join(sorted(presets))}")
    return presets[name]


def validate(config: TrainConfig) -> None:
    """Raises ``InputError`` naming the flag and what it takes."""
    _one_of("--loss", config.loss, LOSSES)
    _one_of("--pooler", config.pooler, POOLERS)
    _one_of("--mix-variant", config.mix_variant, MIX_VARIANTS)
    _one_of("--una-as", config.una_as, UNA_AS)
    _one_of("--negatives", config.negatives, NEGATIVES)
    _one_of("--schedule", config.schedule, SCHEDULES)
    _one_of("--surface", config.surface, SURFACES)
    _one_of("--step2", config.step2, STEP2)
    _one_of("--step3", config.step3, STEP3)
    _one_of("--encoding-errors", config.encoding_errors, ("strict", "replace"))
    for field in fields(config):
        value = getattr(config, field.name)
        finite = not isinstance(value, float) or math.isfinite(value)
        _check(finite, "--" + field.name.replace("_", "-"), value, "it must be a finite number")
    _check(config.seed < 2**64, "--seed", config.seed, "it must fit into 64 bits")
    for flag, value in [("--temperature", config.temperature), ("--lr", config.lr)]:
        _check(value is None or value > 0, flag, value, "it must be above 0")
    for flag, value in [
        ("--weight-decay", config.weight_decay),
        ("--clip-norm", config.clip_norm),
        ("--una-every", config.una_every),
        ("--eval-every", config.eval_every),
        ("--threads", config.threads),
        ("--seed", config.seed),
        ("--min-df", config.min_df),
    ]:
        _check(value is None or value >= 0, flag, value, "it must be 0 or more")
    for flag, value in [
        ("--epochs", config.epochs),
        ("--max-steps", config.max_steps),
        ("--radius", _ranks(config.radius)),
        ("--max-terms", config.max_terms),
        ("--max-line-bytes", config.max_line_bytes),
    ]:
        _check(value is None or value >= 1, flag, value, "it must be at least 1")
    _check(config.max_length is None or config.max_length >= 3, "--max-length", config.max_length,
           "it must be at least 3: two tokens mark the ends")  # fmt: skip
    _check(config.batch_size is None or config.batch_size >= 2, "--batch-size", config.batch_size,
           "it must be at least 2: a batch of one has no negatives")  # fmt: skip
    _check(0 <= config.beta <= 1, "--beta", config.beta, "it must be between 0 and 1")
    _check(0 <= config.mix_lambda <= 1, "--mix-lambda", config.mix_lambda, "it must be between 0 and 1")
    if config.una and config.una_as == "columns" and config.negatives == "all":
        raise InputError("--negatives all: --una-as columns has no meaning there; use --negatives cross")
    if config.loss == "mixed" and config.mix_variant == "release":
        if config.una and config.una_as == "rows":
            raise InputError(
                "--mix-variant release: it is not defined for UNA's rows; use --una-as columns, or --mix-variant paper"
            )
        if config.negatives == "all":
            raise InputError("--mix-variant release: it is defined for --negatives cross alone")


def _ranks(radius: int | str | None) -> int | None:
    return None if radius is None or percentage(radius) is not None else int(radius)


def _one_of(flag: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise InputError(f"{flag}: {value!r} is unknown; choose one of {', '.join(choices)}")


def _check(good: bool, flag: str, value: object, why: str) -> None:
    if not good:
        raise InputError(f"{flag}: {value} was given, and {why}")
