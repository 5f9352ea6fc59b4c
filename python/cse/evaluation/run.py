"""Evaluates and compares models, for Python and for the commands ``cse eval`` and ``cse compare``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike, fspath
from typing import Any

from ..encoder.base import compared_by
from ..encoder.taught import Taught, taught_of, together
from ..errors import EqualVectors, InputError, check_integer, check_list, for_python
from ..options import options_of, parse_options
from ..registry import parse_setting
from . import EVALUATIONS
from .apart import need, undecided, untaught
from .base import Adapted, Encodes, Evaluation, Report, counted
from .ranking import BM25, RUN, ByWords, FromRun, Searched, System, as_system, check_systems
from .significance import adjust, baselines
from .significance import compare as compare_reports

Model = str | PathLike[str] | Encodes | System
Options = Mapping[str, Mapping[str, Any]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class EvaluationResult:
    """The scores of a model."""

    model: str
    """Folder or name of the model; for an encoder in memory, its attribute ``name``, or else its class name."""
    pooling: str
    """Name and description of the pooling; "" if it is not known."""
    precision: str
    """Precision of the encoder, ``fp32`` or ``bf16``; "" if it is not known."""
    precision_reason: str
    """Why this precision was used."""
    reports: dict[str, Report]
    """Reports by suite: one record per task (``rows``), scores over all tasks (``summary``), and notes."""
    notes: list[str]
    """Remarks on how the texts were encoded, and on texts that judge although the model was trained on them."""
    undecided: frozenset[str] = frozenset()
    """The suites by labels, if labels of texts that are not known taught the model."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that ``cse eval --json`` prints."""
        reports = self.reports.items()
        suites = {name: {"tasks": each.rows, **each.summary, "notes": each.notes} for name, each in reports}
        about = {"model": self.model, "pooling": self.pooling, "precision": self.precision}
        return {**about, "suites": suites, "notes": self.notes}


@dataclass(frozen=True)
class Comparison:
    """The differences between two models a and b."""

    a: str
    """Name of model a; if ``seeds`` is True, the names of all models of side a, separated by commas."""
    b: str
    """Name of model b, or the names of all models of side b."""
    seeds: bool
    """True if methods are compared over seeds, False if checkpoints are compared over examples."""
    precision: str
    """Precision of the encoders, ``fp32`` or ``bf16``; "" if it is not known."""
    precision_reason: str
    """Why this precision was used."""
    tasks: list[dict[str, Any]]
    """One record per task:

    - ``task``: name of the task; ``examples``: number of examples, None for metrics without examples;
    - ``a``, ``b``: the scores; ``mean``: the difference b - a;
    - ``low``, ``high``: the 95 % interval of the difference; ``p``: its p-value; ``p_holm``: the p-value adjusted over
      the tasks by Holm's method; all four are absent for metrics without examples (geometry), and if there is no
      interval because a score is NaN;
    - ``verdict``: ``better`` or ``worse`` if the interval excludes 0 and ``p_holm`` is below 0.05, else
      ``cannot tell``; "" for metrics without examples.
    """

    notes: list[str] = field(default_factory=list)
    """Remarks on what was evaluated, and on how the texts were encoded."""
    beside: dict[str, float] = field(default_factory=dict)
    """Scores that need no encoder, by name, in the suite ``labels``."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison as a dict that can be serialised to JSON."""
        return asdict(self)


@for_python
def evaluate(
    model: Model,
    suite: str | Sequence[str] = "sts",
    data: str | PathLike[str] | None = None,
    *,
    options: Options | None = None,
    allow_partial: bool = False,
    pooler: str | None = None,
    prompt: str | None = None,
    dims: int | None = None,
    device: str = "auto",
    precision: str = "fp32",
    threads: int | None = None,
    progress: Progress | None = None,
) -> EvaluationResult:
    """Evaluates a model with one or more suites, as ``cse eval`` does.

    Args:
        model: Folder or name of a model (see ``cse.Encoder``); a run folder, whose checkpoint ``best`` is evaluated;
            or an encoder in memory, such as a ``cse.Encoder``. In the suite ``retrieval`` also ``"bm25"``,
            ``"run:FILE"`` (a TREC run file), or a ``cse.evaluation.ranking.System``, which is a model with hybrid
            ranking.
        suite: One or more names of suites: ``sts``, ``retrieval``, ``geometry``, ``halves``, ``transfer``, or a suite
            of another package; ``cse methods`` describes them.
        data: File or folder of the data.
        options: Options by suite name, for example ``{"transfer": {"classifier": "senteval"}}``.
        allow_partial: Accept incomplete STS and transfer files.
        pooler: See ``cse.Encoder``; must be None for an encoder in memory.
        prompt: Name of a prompt of the model, or a text; see ``cse.Encoder``. Must be None for an encoder in memory.
        dims: Keep only the first ``dims`` dimensions; must be None for an encoder in memory. None: all.
        device: A PyTorch device; see ``cse.Encoder``.
        precision: ``fp32``, ``bf16`` or ``auto``; see ``cse.Encoder``.
        threads: Number of CPU threads, 0 for all cores. None: PyTorch's setting is not changed.
        progress: Called with the units of work done and their total; a unit is usually one encoded text.

    Returns:
        The scores, for example in ``evaluate(...).reports["sts"].rows`` or ``evaluate(...).to_dict()``.

    Raises:
        InputError: For an unknown suite or option, data that are missing or invalid, or a model that cannot be loaded.
    """
    system = as_system(model)
    if system.fixed and (pooler is not None or prompt is not None):
        raise InputError(f"--pooler and --prompt have no effect on {system.fixed}; omit them")
    loading: dict[str, Any] = {
        "pooler": pooler,
        "prompt": prompt,
        "device": device,
        "precision": precision,
        "threads": threads,
    }
    return _evaluated([system], suite, data, options, allow_partial, progress, dims=dims, **loading)[system.key]


@for_python
def compare(
    a: Model | Sequence[Model],
    b: Model | Sequence[Model],
    suite: str | Sequence[str] = "sts",
    data: str | PathLike[str] | None = None,
    **settings: Any,
) -> Comparison:
    """Compares model b with model a, as ``cse compare`` does.

    Except in suites without examples (``geometry``), every difference has a 95 % interval over examples, and a p-value
    that is adjusted over the tasks; ``cse.evaluation.significance`` describes them. The interval and the p-value
    describe these two checkpoints only; checkpoints of one method with different seeds may differ just as much.

    If ``a`` and ``b`` are lists, each holds models trained by one method, with the same seeds in the same order. The
    two methods are then compared with a paired t-test over seeds.

    Args:
        a: A model, as for ``evaluate``, or a list of at least two models.
        b: A model, or a list of the same length as ``a``. The same model with hybrid ranking is a ``System``:
            ``compare("minilm", System("minilm", hybrid=True), "retrieval", data)``.
        suite: See ``evaluate``.
        data: File or folder of the data.
        **settings: ``options``, ``allow_partial``, ``pooler``, ``prompt``, ``dims``, ``device``, ``precision``,
            ``threads`` and ``progress`` of ``evaluate``.

    Raises:
        InputError: As for ``evaluate``, and for lists of different lengths or of fewer than two models.
    """
    sides: list[Any] = [a, b]
    single = [isinstance(side, (str, PathLike, System)) or hasattr(side, "encode") for side in sides]
    listed = [
        [side] if alone else check_list(side, "a, b", "models") for side, alone in zip(sides, single, strict=True)
    ]
    return compare_models(listed, suite, data, seeds=not all(single), **settings)[0]


def compare_models(
    sides: Sequence[Sequence[Any]],
    suite: str | Sequence[str] = "sts",
    data: str | PathLike[str] | None = None,
    *,
    seeds: bool = False,
    **settings: Any,
) -> list[Comparison]:
    """Compares the first list of models with each further list; see ``compare`` and ``evaluate``."""
    return compare_results(evaluate_sides(sides, suite, data, seeds=seeds, **settings), seeds)


def evaluate_sides(
    sides: Sequence[Sequence[Any]],
    suite: str | Sequence[str],
    data: str | PathLike[str] | None,
    *,
    seeds: bool = False,
    **settings: Any,
) -> list[list[EvaluationResult]]:
    """Returns the result of each model of each list; a model is evaluated once."""
    sizes = {len(side) for side in sides}
    if seeds and (len(sizes) > 1 or min(sizes) < 2):
        raise InputError("--seeds: every side must list the same number of checkpoints, at least two: A1,A2 B1,B2")
    if len(sides) < 2 or (not seeds and sizes != {1}):
        raise InputError("MODELS: at least two models are needed, one on each side; name another one")
    systems = [[as_system(model) for model in side] for side in sides]
    results = _evaluated([system for side in systems for system in side], suite, data, **settings)
    return [[results[system.key] for system in side] for side in systems]


def compare_results(sides: Sequence[Sequence[EvaluationResult]], seeds: bool) -> list[Comparison]:
    """Compares the first list of results with each further list."""
    encoded = [(each.precision, each.precision_reason) for side in sides for each in side if each.precision]
    before, *others = sides
    compared, uncertain = [], []
    for after in others:
        records: list[dict[str, Any]] = []
        for name in before[0].reports:
            first, second = ([result.reports[name] for result in side] for side in (before, after))
            found = compare_reports(first, second, seeds)
            uncertain += found if any(name in result.undecided for result in (*before, *after)) else []
            records += found
        compared.append(records)
    # All that is compared in one command is one family of tests.
    adjust([record for records in compared for record in records])
    undecided(uncertain)
    comparisons = []
    for after, records in zip(others, compared, strict=True):
        a, b = (",".join(result.model for result in side) for side in (before, after))
        reports = before[0].reports.values()
        notes = [note for report in reports for note in report.notes]
        notes += dict.fromkeys(note for result in (*before, *after) for note in result.notes)
        beside = baselines([sample for report in reports for sample in report.beside])
        comparisons.append(Comparison(a, b, seeds, *(encoded or [("", "")])[-1], records, notes, beside))
    return comparisons


def _evaluated(
    systems: Sequence[System],
    suite: str | Sequence[str],
    data: str | PathLike[str] | None,
    options: Options | None = None,
    allow_partial: bool = False,
    progress: Progress | None = None,
    dims: int | None = None,
    taught_of: Callable[[Any], Taught] = taught_of,
    **loading: Any,
) -> dict[Any, EvaluationResult]:
    """Returns the result of each system, by its key; ``loading`` are arguments of ``_load``."""
    suite = [suite] if isinstance(suite, str) else check_list(suite, "suite", "names of suites")
    if data is not None and not isinstance(data, (str, PathLike)):
        raise InputError(f"--data: a path was expected, not one {type(data).__name__}; write the data to a file")
    check_systems(systems, suite, options, dims)
    suites = open_suites(suite, data, options, allow_partial)
    known: dict[str, Taught] = {}
    if any(each.by_labels for each in suites.values()):
        for system in {each.model_key: each for each in systems if not each.fixed}.values():
            name = _name(system)
            known[name] = together([*([known[name]] if name in known else []), taught_of(system.model)])
    apart = {name: untaught(each, known) for name, each in suites.items()}
    suites = {name: need(found) for name, found in apart.items()}
    more = list(dict.fromkeys(note for found in apart.values() for note in found.notes))
    groups: dict[Any, dict[Any, System]] = {}  # by model, which is loaded once
    for system in systems:
        groups.setdefault(system.model_key, {})[system.key] = system
    counts = [(task, len(group) if task.ranks else 1) for task in suites.values() for group in groups.values()]
    advance = counted(sum(count * task.work() for task, count in counts), progress)
    results: dict[Any, EvaluationResult] = {}
    for group in groups.values():
        results |= _evaluated_model(group, suites, advance, dims=dims, **loading)
    by_labels = frozenset(name for name, each in suites.items() if each.by_labels)
    for key, system in {system.key: system for system in systems}.items():
        taught = known.get(_name(system))
        unknown = by_labels if taught is not None and taught.unknown else frozenset()
        results[key] = replace(results[key], notes=[*more, *results[key].notes], undecided=unknown)
    return results


def _name(system: System) -> str:
    """Returns the name of the model of a system for messages."""
    model = system.model
    return fspath(model) if isinstance(model, (str, PathLike)) else str(getattr(model, "name", type(model).__name__))


def _evaluated_model(
    systems: Mapping[Any, System], suites: Mapping[str, Evaluation], advance: Callable[[int], None], **loading: Any
) -> dict[Any, EvaluationResult]:
    """Loads the model of the systems and evaluates these; the model is released at the end."""
    from ..encoder.encoder import Encoder

    name, encoder = _load(next(iter(systems.values())).model, **loading)
    advance(0)
    views = {key: _view(encoder, system) for key, system in systems.items()}
    reports: dict[Any, dict[str, Report]] = {key: {} for key in systems}
    try:
        for title, suite in suites.items():
            common = None if suite.ranks else suite(encoder, advance)
            for key, view in views.items():
                reports[key][title] = common or suite(view, advance)
    except EqualVectors as error:
        raise EqualVectors(f"{name}: {error}") from None
    _, similarity = compared_by(encoder)
    about, notes = ("", "", ""), [f"{name}: {similarity}"] if similarity else []
    if isinstance(encoder, Encoder):
        about = (encoder.pooling, encoder.precision, encoder.precision_reason)
        if encoder.plain:
            notes.append(f"{name}: the folder does not declare a pooling; used --pooler {encoder.pooler}")
        if encoder.pooler == "cls":
            notes.append(f"pooling {encoder.pooling}")
        notes.append(f"encoded in {encoder.precision} ({encoder.precision_reason})")
    return {
        key: EvaluationResult(" ".join([name, *system.flags]), *about, reports[key], notes)
        for key, system in systems.items()
    }


def opened(system: System, **loading: Any) -> Any:
    """Loads the model of a system, and returns what a suite that ranks documents evaluates for it."""
    return _view(_load(system.model, **loading)[1], system)


def _view(encoder: Any, system: System) -> Any:
    from ..encoder.encoder import Encoder

    if system.fusion is None:
        return encoder
    if not isinstance(encoder, Encoder):
        raise InputError("--hybrid needs a cse.Encoder; omit --hybrid for other encoders")
    return Searched(encoder, system.fusion)


def _load(
    model: Any,
    pooler: str | None = None,
    device: str = "auto",
    precision: str = "fp32",
    prompt: str | None = None,
    threads: int | None = None,
    dims: int | None = None,
) -> tuple[str, Any]:
    """Sets the number of threads, and returns the name of a model and its encoder."""
    from ..encoder.device import set_threads
    from ..encoder.encoder import Encoder
    from ..encoder.layout import best_of_run

    if threads is not None:
        set_threads(check_integer(threads, "threads", 0))
    if System(model).fixed:
        ranker = ByWords() if model == BM25 else FromRun(model.removeprefix(RUN))
        return ranker.name, ranker
    if isinstance(model, (str, PathLike)):
        name = best_of_run(fspath(model))
        return name, Encoder(name, pooler=pooler, device=device, precision=precision, prompt=prompt, dims=dims)
    if not callable(getattr(model, "encode", None)):
        raise InputError(f"model: must be a folder, a name, or an encoder, got {model!r}")
    if pooler is not None or prompt is not None or dims is not None:
        raise InputError(
            "pooler, prompt, dims: an encoder in memory has been loaded with its own values; omit these arguments"
        )
    for argument, value, usual in (("device", device, "auto"), ("precision", precision, "fp32")):
        if value != usual and value != str(own := getattr(model, argument, "not known")):
            raise InputError(f"{argument}: that of an encoder in memory is {own}; omit the argument")
    return getattr(model, "name", type(model).__name__), model if isinstance(model, Encoder) else Adapted(model)


def option_tables(settings: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns options by evaluation name, from settings of the form ``NAME.OPTION=VALUE``."""
    tables: dict[str, dict[str, Any]] = {}
    for name, option, value in map(parse_setting, settings):
        tables.setdefault(name, {})[option] = value
    return tables


def open_suites(
    names: str | Sequence[str],
    data: str | PathLike[str] | None,
    options: Options | None = None,
    allow_partial: bool = False,
) -> dict[str, Evaluation]:
    """Creates evaluations by name; each reads and checks its data."""
    names, tables = [names] if isinstance(names, str) else list(names), options or {}
    if unused := sorted(set(tables) - set(names)):
        raise InputError(f"--set {unused[0]}.OPTION: {unused[0]} is not among the suites; add --suite {unused[0]}")
    evaluations = {}
    for name in dict.fromkeys(names):
        kind = EVALUATIONS.get(name, "--suite")
        table = dict(tables.get(name, {}))
        if allow_partial and "allow_partial" in {option.name for option in options_of(kind.Options)}:
            table.setdefault("allow_partial", True)
        evaluations[name] = kind(parse_options(name, kind.Options, table), None if data is None else fspath(data))
    return evaluations
