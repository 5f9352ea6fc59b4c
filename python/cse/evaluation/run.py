"""Evaluates and compares models, for Python and for the commands ``cse eval`` and ``cse compare``.

Also creates evaluations by name, and evaluates embeddings that are truncated to their first dimensions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..options import options_of, parse_options
from ..registry import parse_setting
from . import EVALUATIONS
from .base import Encodes, Evaluation, Report, Sample, counted
from .ranking import Indexed, Searched, System, as_system, check_systems
from .significance import adjust
from .significance import compare as compare_reports

if TYPE_CHECKING:
    from ..models.running.inference import Encoder

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
      the tasks by Holm's method; all four are absent for metrics without examples (geometry), and if there is no
      interval because a score is NaN;
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
            or an encoder in memory, such as a ``cse.Encoder``. In the suite ``retrieval`` also ``"bm25"``,
            ``"run:FILE"`` (a TREC run file), or a ``cse.evaluation.ranking.System``, which is a model with options of
            ``SearchIndex.search``.
        suite: One or more names of suites: ``sts``, ``retrieval``, ``geometry``, ``halves``, ``transfer``, or a suite
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
    system = as_system(model)
    check_systems([system], suite, options, dims)
    if system.fixed and (pooler is not None or prompt is not None):
        raise InputError(f"--pooler, --prompt have no effect on {system.fixed}; leave them out")
    suites = open_suites(suite, data, options, allow_partial)
    name, encoder = _load(system.model, pooler, device, precision, prompt, threads)
    known = _as_encoder(encoder, dims)
    (reports,) = _run(suites, [(lambda: encoder, [system])], progress, list(dims or ()))[0]
    notes: list[str] = []
    title = " ".join([name, *system.flags])
    if known is None:
        return EvaluationResult(title, "", "", "", reports, notes)
    if known.plain:
        notes.append(f"{name}: the folder does not declare a pooling; used --pooler {known.pooler}")
    if known.pooler == "cls":
        notes.append(f"pooling {known.pooling}")
    notes.append(f"encoded in {known.precision} ({known.precision_reason})")
    return EvaluationResult(title, known.pooling, known.precision, known.precision_reason, reports, notes)


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
        b: A model, or a list of the same length as ``a``. The same model with other options of search is a ``System``:
            ``compare("minilm", System("minilm", hybrid=True), "retrieval", data)``.
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
    """Compares the first list of models with each further list; every text is encoded once by each model.

    Without ``seeds``, each list has one model; with ``seeds``, all have the same number of models, at least two. The
    other arguments are those of ``evaluate``. Returns the comparison of each side after the first with the first side;
    raises ``InputError`` as ``compare`` does.
    """
    sizes = {len(side) for side in sides}
    if seeds and (len(sizes) > 1 or min(sizes) < 2):
        raise InputError("--seeds: every side must list the same number of checkpoints, at least two: A1,A2 B1,B2")
    if len(sides) < 2 or (not seeds and sizes != {1}):
        raise InputError("MODELS: at least two models are needed, one on each side; name another one")
    systems = [[as_system(model) for model in side] for side in sides]
    check_systems([system for side in systems for system in side], suite, options, dims)
    suites = open_suites(suite, data, options, allow_partial)
    groups: dict[Any, dict[Any, System]] = {}
    for system in (system for side in systems for system in side):
        groups.setdefault(system.model_key, {})[system.key] = system
    names: dict[Any, str] = {}
    used = ("", "")

    def opened(group: dict[Any, System]) -> Encodes:
        nonlocal used
        name, encoder = _load(next(iter(group.values())).model, pooler, device, precision, prompt, threads)
        names.update({key: " ".join([name, *system.flags]) for key, system in group.items()})
        if known := _as_encoder(encoder, dims):
            used = (known.precision, known.precision_reason)
        return encoder

    makers = [(partial(opened, group), list(group.values())) for group in groups.values()]
    lines = _run(suites, makers, progress, list(dims or ()))
    reports = {
        key: report
        for group, line in zip(groups.values(), lines, strict=True)
        for key, report in zip(group, line, strict=True)
    }
    first = systems[0]
    results = []
    for side in systems[1:]:
        records = []
        for name in suites:
            before, after = ([reports[system.key][name] for system in members] for members in (first, side))
            records += compare_reports(before, after, seeds)
        adjust(records)
        a, b = (",".join(names[system.key] for system in members) for members in (first, side))
        results.append(Comparison(a, b, seeds, *used, records))
    return results


def _run(
    suites: Mapping[str, Evaluation],
    groups: Sequence[tuple[Callable[[], Encodes], Sequence[System]]],
    progress: Progress | None,
    dims: Sequence[int] = (),
) -> list[list[dict[str, Report]]]:
    """Returns the reports of each system by suite, in a list for each encoder.

    Suites that do not rank documents are run once for each encoder. ``dims`` requires a ``cse.Encoder`` (see
    ``evaluate_dims``).
    """
    runs = [(suite, len(systems) if suite.ranks else 1) for suite in suites.values() for _, systems in groups]
    advance = counted(max(len(dims), 1) * sum(count * suite.work() for suite, count in runs), progress)
    results = []
    for make, systems in groups:
        encoder = make()
        for size in dims:
            encoder.keep_dims(size)  # type: ignore[attr-defined]  # checks dims before texts are encoded
        advance(0)
        if dims:
            encoder.keep_dims(None)  # type: ignore[attr-defined]
        lines: list[dict[str, Report]] = [{} for _ in systems]
        for name, suite in suites.items():
            for line, wrap in zip(lines, _wraps(encoder, systems, suite.ranks), strict=True):
                if not suite.ranks and name in lines[0]:
                    line[name] = lines[0][name]
                elif dims:
                    line[name] = evaluate_dims(suite, encoder, dims, advance, wrap)
                else:
                    line[name] = suite(wrap(encoder), advance)
        results.append(lines)
        del encoder  # frees its memory before the next one is loaded
    return results


def opened(model: Model) -> tuple[str, Any]:
    """Returns the name of a model, and what the suites evaluate for it."""
    system = as_system(model)
    name, encoder = _load(system.model)
    return " ".join([name, *system.flags]), _wraps(encoder, [system], True)[0](encoder)


def _wraps(encoder: Encodes, systems: Sequence[System], ranks: bool) -> list[Callable[[Any], Encodes]]:
    """Returns, for each system, a function from an encoder to what the suite evaluates.

    If one of the systems has options of search and the suite ranks documents, all are ranked by a search index, so that
    they share the vectors.
    """
    flags = [flag for system in systems for flag in system.flags]
    if not ranks or not flags:
        return [lambda encoder: encoder for _ in systems]
    if _as_encoder(encoder) is None:
        raise InputError(f"{flags[0]} needs a cse.Encoder; leave it out for other encoders")
    indexes = Indexed(max(system.tokens for system in systems))
    return [partial(Searched, system=system, indexes=indexes) for system in systems]


def _load(
    model: str | PathLike[str] | Encodes,
    pooler: str | None = None,
    device: str = "auto",
    precision: str = "fp32",
    prompt: str | None = None,
    threads: int | None = None,
) -> tuple[str, Encodes]:
    """Sets the number of threads, and returns the name of a model and its encoder."""
    if threads is not None:
        from ..models.device import set_threads

        set_threads(threads)
    if (ranker := System(model).ranker()) is not None:
        return ranker.name, ranker
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


def _as_encoder(encoder: Encodes, dims: Sequence[int] | None = None) -> Encoder | None:
    """Returns a ``cse.Encoder`` unchanged, and None for others; raises ``InputError`` if these are to be truncated."""
    from ..models.running.inference import Encoder

    if isinstance(encoder, Encoder):
        return encoder
    if dims:
        raise InputError("dims: needs a cse.Encoder; truncate the embeddings of another encoder yourself")
    return None


class Replayed:
    """Wraps a ``cse.Encoder`` for several passes of an evaluation, each with a different number of dimensions.

    The first pass encodes texts and stores all dimensions of their vectors in ``folder``; later passes read them.
    """

    def __init__(self, encoder: Any, folder: Path) -> None:
        self.encoder = self.wrapped = encoder
        self.folder = folder
        self.calls: list[int] = []
        self.place, self.embedding_dim = 0, 0

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the encoder; ``encode`` and its variants return truncated embeddings."""
        value = getattr(self.encoder, name)
        return partial(self._vectors, value) if name.startswith("encode") and callable(value) else value

    def _vectors(self, encode: Callable[..., Any], texts: Sequence[str], **settings: Any) -> npt.NDArray[np.float32]:
        number, self.place = self.place, self.place + 1
        file, key = self.folder / f"{number}.npy", hash((encode.__name__, *texts))
        if number < len(self.calls) and self.calls[number] == key:
            vectors = np.load(file, mmap_mode="r")
            if progress := settings.get("progress"):
                progress(len(texts))
        else:
            vectors = encode(texts, **settings)
            np.save(file, vectors)
            self.calls[number:] = [key]
        shortened: npt.NDArray[np.float32] = self.encoder.shortened(np.asarray(vectors), self.embedding_dim)
        return shortened


def evaluate_dims(
    evaluation: Evaluation,
    encoder: Any,
    dims: Sequence[int],
    progress: Callable[[int], None] | None = None,
    wrap: Callable[[Any], Encodes] | None = None,
) -> Report:
    """Evaluates an encoder once for each number of dimensions to which its embeddings are truncated.

    Texts are encoded once, and their vectors are kept in temporary files.

    Args:
        evaluation: The evaluation.
        encoder: A ``cse.Encoder`` that keeps all dimensions.
        dims: Numbers of dimensions to keep.
        progress: Called with the units of work done since its last call; their total is
            ``len(dims) * evaluation.work()``.
        wrap: Returns what is evaluated, given an encoder of truncated embeddings. None: that encoder.

    Returns:
        A report with one row for each combination of task and number of dimensions. The keys of its summary and the
        task names of its samples include the number of dimensions.
    """
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    notes: dict[str, None] = {}
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="cse-dims-") as folder:
        replayed = Replayed(encoder, Path(folder))
        for size in dims:
            replayed.place, replayed.embedding_dim = 0, size
            report = evaluation(wrap(replayed) if wrap else replayed, progress)
            rows += [{"task": row["task"], "dims": size, **row} for row in report.rows]
            summary |= {f"{key} ({size} dimensions)": value for key, value in report.summary.items()}
            notes |= dict.fromkeys(report.notes)
            samples += [replace(sample, task=f"{sample.task} ({size} dimensions)") for sample in report.samples]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    return Report(sorted(rows, key=lambda row: tasks.index(row["task"])), summary, list(notes), samples)


def option_tables(settings: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns options by evaluation name, from settings of the form ``NAME.OPTION=VALUE``."""
    tables: dict[str, dict[str, Any]] = {}
    for text in settings:
        name, option, value = parse_setting(text)
        tables.setdefault(name, {})[option] = value
    return tables


def open_suites(
    names: str | Sequence[str],
    data: str | PathLike[str] | None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    allow_partial: bool = False,
) -> dict[str, Evaluation]:
    """Creates evaluations by name; each reads and checks its data.

    Args:
        names: Name of an evaluation, or several names.
        data: Value of ``--data``.
        options: Options by evaluation name, as returned by ``option_tables``.
        allow_partial: True: set the option ``allow_partial`` of the evaluations that have it, unless ``options`` does.

    Raises:
        InputError: For an unknown name or option, or invalid data.
    """
    names = [names] if isinstance(names, str) else list(names)
    path = None if data is None else fspath(data)
    tables = dict(options or {})
    if unused := sorted(set(tables) - set(names)):
        raise InputError(f"--set {unused[0]}.OPTION: {unused[0]} is not among the suites; add --suite {unused[0]}")
    evaluations = {}
    for name in dict.fromkeys(names):
        kind = EVALUATIONS.get(name, "--suite")
        table = tables.get(name, {})
        if allow_partial and "allow_partial" in {option.name for option in options_of(kind.Options)}:
            table = {"allow_partial": True, **table}
        evaluations[name] = kind(parse_options(name, kind.Options, table), path)
    return evaluations
