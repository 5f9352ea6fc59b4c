"""Evaluates and compares models, for Python and for the commands ``cse eval`` and ``cse compare``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..models.pooling import UNDECLARED
from .base import Encodes, Evaluation, Report, counted
from .dims import evaluate_dims
from .significance import adjust
from .significance import compare as compare_reports
from .suites import open_suites

if TYPE_CHECKING:
    from ..models.running.inference import Encoder

Model = str | PathLike[str] | Encodes
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
    """Remarks on how the texts were encoded."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that ``cse eval --json`` prints."""
        suites = {
            name: {"tasks": report.rows, **report.summary, "notes": report.notes}
            for name, report in self.reports.items()
        }
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
      the tasks by Holm's method; all four are absent for metrics without examples (geometry);
    - ``verdict``: ``better``, ``worse`` or ``no difference seen`` at the level 0.05; "" if there is no p-value.
    """

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison as a dict that can be serialised to JSON."""
        return asdict(self)


def evaluate(
    model: Model,
    suite: str | Sequence[str] = "sts",
    data: str | PathLike[str] | None = None,
    *,
    options: Options | None = None,
    allow_partial: bool = False,
    pooler: str | None = None,
    prompt: str | None = None,
    dims: Sequence[int] | None = None,
    device: str = "auto",
    precision: str = "fp32",
    threads: int | None = None,
    progress: Progress | None = None,
) -> EvaluationResult:
    """Evaluates a model with one or more suites, as ``cse eval`` does.

    Args:
        model: Folder or name of a model (see ``cse.Encoder``); a run folder, whose checkpoint ``best`` is evaluated;
            or an encoder in memory, such as a ``cse.Encoder``.
        suite: One or more names of suites: ``sts``, ``transfer``, ``retrieval``, ``geometry``, ``halves``, or a suite
            of another package; ``cse methods`` describes them.
        data: File or folder of the data.
        options: Options by suite name, for example ``{"transfer": {"classifier": "senteval"}}``.
        allow_partial: Accept incomplete STS and transfer files.
        pooler: See ``cse.Encoder``; must be None for an encoder in memory.
        prompt: Name of a prompt of the model, or a text; see ``cse.Encoder``. Must be None for an encoder in memory.
        dims: Numbers of dimensions; embeddings are truncated to each of them in turn. None: they are not truncated.
        device: A PyTorch device; see ``cse.Encoder``.
        precision: ``fp32``, ``bf16`` or ``auto``; see ``cse.Encoder``.
        threads: Number of CPU threads, 0 for all cores. None: PyTorch's setting is not changed.
        progress: Called with the units of work done and their total; a unit is usually one encoded text.

    Returns:
        The scores, for example in ``evaluate(...).reports["sts"].rows`` or ``evaluate(...).to_dict()``.

    Raises:
        InputError: For an unknown suite or option, data that are missing or invalid, or a model that cannot be loaded.
    """
    suites = open_suites(suite, data, options, allow_partial)
    _set_threads(threads)
    name, encoder = _load(model, pooler, device, precision, prompt)
    known = _as_encoder(encoder)
    sizes = list(dims or ())
    _check_dims(known, sizes)
    (reports,) = _run(suites, [lambda: encoder], progress, sizes)
    notes: list[str] = []
    if known is None:
        return EvaluationResult(name, "", "", "", reports, notes)
    if known.plain:
        notes.append(f"{name}: the folder does not declare a pooling; used --pooler {UNDECLARED}")
    if known.model.pooler == "cls":
        notes.append(f"pooling {known.pooling}")
    notes.append(f"encoded in {known.precision} ({known.precision_reason})")
    return EvaluationResult(name, known.pooling, known.precision, known.precision_reason, reports, notes)


def compare(
    a: Model | Sequence[Model],
    b: Model | Sequence[Model],
    suite: str | Sequence[str] = "sts",
    data: str | PathLike[str] | None = None,
    **settings: Any,
) -> Comparison:
    """Compares model b with model a, as ``cse compare`` does.

    Except in suites without examples (``geometry``), every difference has a 95 % interval from a bootstrap over
    examples, and a p-value that is adjusted over the tasks. The interval and the p-value describe these two
    checkpoints only; checkpoints of one method with different seeds may differ just as much.

    If ``a`` and ``b`` are lists, each holds models trained by one method, with the same seeds in the same order. The
    two methods are then compared with a paired t-test over seeds.

    Args:
        a: A model, as for ``evaluate``, or a list of at least two models.
        b: A model, or a list of the same length as ``a``.
        suite: See ``evaluate``.
        data: File or folder of the data.
        **settings: ``options``, ``allow_partial``, ``pooler``, ``prompt``, ``dims``, ``device``, ``precision``,
            ``threads`` and ``progress`` of ``evaluate``.

    Raises:
        InputError: As for ``evaluate``, and for lists of different lengths or of fewer than two models.
    """
    sides = [list(side) if isinstance(side, (list, tuple)) else [side] for side in (a, b)]
    seeds = any(isinstance(side, (list, tuple)) for side in (a, b))
    return compare_models(sides, suite, data, seeds=seeds, **settings)[0]


def compare_models(
    sides: Sequence[Sequence[Any]],
    suite: str | Sequence[str] = "sts",
    data: str | PathLike[str] | None = None,
    *,
    seeds: bool = False,
    options: Options | None = None,
    allow_partial: bool = False,
    pooler: str | None = None,
    prompt: str | None = None,
    dims: Sequence[int] | None = None,
    device: str = "auto",
    precision: str = "fp32",
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[Comparison]:
    """Compares the first list of models with each further list; every model is evaluated once.

    Args:
        sides: At least two lists, each with one model. If ``seeds`` is True, each list has the same number of models,
            at least two.
        suite: See ``evaluate``.
        data: File or folder of the data.
        seeds: True: compare methods over seeds. False: compare checkpoints over examples.
        options: Options of the suites.
        allow_partial: Accept incomplete files.
        pooler: See ``cse.Encoder``.
        prompt: See ``cse.Encoder``.
        dims: See ``evaluate``.
        device: A PyTorch device.
        precision: ``fp32``, ``bf16`` or ``auto``.
        threads: Number of CPU threads.
        progress: See ``evaluate``.

    Returns:
        For each side after the first, its comparison with the first side.

    Raises:
        InputError: As for ``compare``.
    """
    sizes = {len(side) for side in sides}
    if seeds and (len(sizes) > 1 or min(sizes) < 2):
        raise InputError("--seeds: every side must list the same number of checkpoints, at least two: A1,A2 B1,B2")
    if len(sides) < 2 or (not seeds and sizes != {1}):
        raise InputError("MODELS: at least two models are needed, one on each side; name another one")
    suites = open_suites(suite, data, options, allow_partial)
    _set_threads(threads)
    models: dict[Any, Model] = {}
    for side in sides:
        models |= {_key(model): model for model in side}
    names: dict[Any, str] = {}
    used = ("", "")

    def opened(key: Any) -> Encodes:
        nonlocal used
        names[key], encoder = _load(models[key], pooler, device, precision, prompt)
        if known := _as_encoder(encoder):
            used = (known.precision, known.precision_reason)
        _check_dims(known, dims)
        return encoder

    found = _run(suites, [partial(opened, key) for key in models], progress, list(dims or ()))
    reports = dict(zip(models, found, strict=True))
    first = sides[0]
    results = []
    for side in sides[1:]:
        records = []
        for name in suites:
            before, after = ([reports[_key(model)][name] for model in each] for each in (first, side))
            records += compare_reports(before, after, seeds)
        adjust(records)
        a, b = (",".join(names[_key(model)] for model in each) for each in (first, side))
        results.append(Comparison(a, b, seeds, *used, records))
    return results


def _run(
    suites: Mapping[str, Evaluation],
    encoders: Sequence[Callable[[], Encodes]],
    progress: Progress | None,
    dims: Sequence[int] = (),
) -> list[dict[str, Report]]:
    """Returns the reports of each encoder by suite; ``dims`` requires a ``cse.Encoder`` (see ``evaluate_dims``)."""
    total = len(encoders) * max(len(dims), 1) * sum(suite.work() for suite in suites.values())
    advance = counted(total, progress)
    found = []
    for make in encoders:
        encoder = make()
        for size in dims:
            encoder.keep_dims(size)  # type: ignore[attr-defined]  # checks dims before texts are encoded
        advance(0)
        if dims:
            encoder.keep_dims(None)  # type: ignore[attr-defined]
            found.append({name: evaluate_dims(suite, encoder, dims, advance) for name, suite in suites.items()})
        else:
            found.append({name: suite(encoder, advance) for name, suite in suites.items()})
        del encoder  # frees its memory before the next one is loaded
    return found


def _load(model: Model, pooler: str | None, device: str, precision: str, prompt: str | None) -> tuple[str, Encodes]:
    """Returns the name of a model and its encoder."""
    if not isinstance(model, (str, PathLike)):
        if not callable(getattr(model, "encode", None)):
            raise InputError(f"model: must be a folder, a name, or an encoder, got {model!r}")
        if pooler is not None or prompt is not None:
            raise InputError("pooler, prompt: an encoder in memory has its own pooling and prompt; leave these out")
        return getattr(model, "name", type(model).__name__), model
    from ..models.reading.resolve import best_of_run
    from ..models.running.inference import Encoder

    name = best_of_run(fspath(model))
    return name, Encoder(name, pooler=pooler, device=device, precision=precision, prompt=prompt)


def _as_encoder(encoder: Encodes) -> Encoder | None:
    from ..models.running.inference import Encoder

    return encoder if isinstance(encoder, Encoder) else None


def _check_dims(encoder: Encoder | None, dims: Sequence[int] | None) -> None:
    if dims and encoder is None:
        raise InputError("dims: needs a cse.Encoder; truncate the embeddings of another encoder yourself")


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        from ..models.device import set_threads

        set_threads(threads)


def _key(model: Model) -> Any:
    return fspath(model) if isinstance(model, (str, PathLike)) else id(model)
