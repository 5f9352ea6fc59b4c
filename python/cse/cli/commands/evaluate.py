"""The commands ``cse eval`` and ``cse compare``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ...errors import InputError
from ...options import Device, If, Imports, Opt, Precision, Prompt, Threads
from ...progress import progress_of
from .. import options, printing
from ..command import command, given_options
from ..corpus_index import Ranking
from ..options import AsJson, FirstDims, PoolerName, passage_size

if TYPE_CHECKING:
    from ...evaluation.base import Report
    from ...evaluation.ranking import System


@dataclass(frozen=True)
class Evaluated:
    """How encoders are evaluated."""

    pooler: PoolerName = None
    prompt: Prompt = None
    passages: Annotated[
        str | None,
        Opt(
            "Rank documents by their best passage of at most N tokens; max: the model's maximum length.",
            "N|max",
            needs=If("suites", ("retrieval",)),
        ),
    ] = None
    dims: FirstDims = None
    device: Device = "auto"
    precision: Precision = "fp32"
    threads: Threads = 0
    imports: Imports = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``evaluate`` and ``compare_models``."""
        names = ("pooler", "prompt", "dims", "device", "precision", "threads")
        return {name: getattr(self, name) for name in names}

    def settings(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the values of ``--set``, with the option ``passages`` of the suite retrieval."""
        size = passage_size(self.passages)
        return values if size is None else (*values, f"retrieval.passages={0 if size == 'max' else size}")


def systems_of(models: Sequence[str], ranked: Ranking, seeds: bool = False) -> tuple[list[str], list[list[System]]]:
    """Returns a label for each of MODELS, and its systems: one, or with ``seeds`` one for each of its models.

    Args:
        models: Models, ``bm25`` or ``run:FILE``.
        ranked: The options of ranking for all models but ``bm25`` and ``run:FILE``.
        seeds: Each is a list of models, separated by commas.

    Raises:
        InputError: If an option would have no effect.
    """
    from ...evaluation.ranking import System

    fusion = ranked.check().fusion or False
    sides = []
    for text in models:
        fixed = [System(model) for model in (text.split(",") if seeds else [text])]
        sides.append([s if s.fixed else System(options.model_folder(str(s.model)), fusion) for s in fixed])
    if fusion and all(system.fixed for side in sides for system in side):
        raise InputError(f"--hybrid has no effect on {sides[0][0].fixed}; leave it out")
    return [" ".join([text, *side[0].flags]) for text, side in zip(models, sides, strict=True)], sides


@command("eval")
def eval_command(
    model: str,
    *,
    suites: Annotated[tuple[str, ...], Opt("Suite; see cse methods.", "NAME", flag="--suite")] = ("sts",),
    data: Annotated[str | None, Opt("File or folder of the data.", "PATH")] = None,
    mteb: Annotated[
        tuple[str, ...],
        Opt("Task of mteb, such as SciFact, in place of a suite.", "TASK", excludes=("hybrid", "passages")),
    ] = (),
    allow_partial: Annotated[bool, Opt("Accept incomplete STS and transfer files.")] = False,
    compare_published: Annotated[
        bool, Opt("Also list the papers' STS averages.", needs=If("suites", ("sts",)))
    ] = False,
    run: Annotated[
        str | None,
        Opt(
            "Write the rankings of the suite retrieval to a TREC run file.",
            "FILE",
            needs=If("suites", ("retrieval",)),
        ),
    ] = None,
    markdown: Annotated[bool, Opt("Print Markdown tables.", excludes="as_json")] = False,
    settings: Annotated[
        tuple[str, ...], Opt("Set an option of a suite; see cse methods.", "NAME.OPTION=VALUE", flag="--set")
    ] = (),
    ranked: Ranking,
    encoder: Evaluated,
    as_json: AsJson = False,
) -> None:
    """Evaluate MODEL, a folder or a name, with one or more suites.

    The default suite, sts, evaluates the STS tasks whose files are in the folder --data (sts12.test.tsv, ...,
    sickr.test.tsv), or the single file --data. Each line of a file holds score, sentence1 and sentence2, separated by
    tabs. All subsets of a task are concatenated; the score is Spearman's correlation x 100. cse methods describes the
    other suites: transfer, retrieval, geometry, halves.

    In the suite retrieval, MODEL may also be bm25, which ranks by words alone, or run:FILE, a TREC run file with the
    rankings of any system; for a run file, --data may be the file of judgements alone. With --hybrid, documents are
    ranked as by cse search --hybrid.

    With --mteb, the tasks are those of mteb, which downloads their data and ranks by embeddings.
    """
    printing.check_output()
    from ...evaluation.run import evaluate, option_tables
    from ...evaluation.sts import PUBLISHED, SEED_NOTE, TEXT_NOTE

    _, ((system,),) = systems_of([model], ranked)
    tables = option_tables(encoder.settings(settings))
    if mteb:
        suites = (*(suites if "suites" in given_options() else ()), "mteb")
        tables["mteb"] = {"tasks": mteb}
    with progress_of("evaluating", "texts") as progress:
        result = evaluate(
            system,
            suites,
            data,
            options=tables,
            allow_partial=allow_partial,
            progress=progress,
            **encoder.arguments,
        )
    if run is not None:
        from ...evaluation.trec import write_run

        write_run(run, result.reports["retrieval"].rankings)
    published = [dict(zip(("model", "average", "reproductions"), row, strict=True)) for row in PUBLISHED]
    if as_json:
        beside = {"published": published, "published_text": TEXT_NOTE} if compare_published else {}
        printing.result({**result.to_dict(), **beside}, True, [])
        return
    for name, report in result.reports.items():
        title = f"{result.model}: {name}"
        if wide := paper_row(name, report):
            printing.table([wide], title=title, markdown=markdown)
            printing.echo()
        printing.table([cells(row) for row in report.rows], title="" if wide else title, markdown=markdown)
        for key, value in report.summary.items():
            if value is not None:
                printing.echo(f"{key.replace('_', ' ')}: {cell(key, value)}")
        for note in report.notes:
            printing.echo(f"Note: {note}")
    for note in result.notes:
        printing.echo(f"Note: {note}")
    if compare_published:
        printing.echo()
        printing.table(published, title="Published averages over the seven STS test sets", markdown=markdown)
        printing.echo(TEXT_NOTE)
        printing.echo(SEED_NOTE)


def paper_row(suite: str, report: Report) -> dict[str, str]:
    """Returns a table row as in the papers: the scores of the test sets, and their average; {} without an average."""
    from ...evaluation import EVALUATIONS

    key, average = EVALUATIONS.get(suite).paper_row
    mean = report.summary.get(average)
    if mean is None:
        return {}
    tested = [row for row in report.rows if not row["task"].endswith("dev")]
    return {**{row["task"]: f"{row[key]:.2f}" for row in tested}, "Avg.": f"{mean:.2f}"}


def cells(row: dict[str, Any]) -> dict[str, str]:
    """Returns the cells of a record as text, without the columns ``key`` and ``expected``, which are not shown."""
    return {name: cell(name, value) for name, value in row.items() if name not in ("key", "expected")}


PERCENT = ("spearman", "average_of_seven", "accuracy", "average", "f1", "score")


def cell(name: str, value: Any) -> str:
    """Formats a value: scores x 100 (in ``PERCENT``, or named with a rank) with two decimals, others with three."""
    if isinstance(value, float):
        return f"{value:.2f}" if name in PERCENT or "@" in name else f"{value:.3f}"
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


@command("compare")
def compare_command(
    models: tuple[str, ...],
    *,
    suites: Annotated[tuple[str, ...], Opt("Suite; see cse methods.", "NAME", flag="--suite")] = ("sts",),
    data: Annotated[str, Opt("File or folder of the data.", "PATH")],
    seeds: Annotated[bool, Opt("Each of MODELS is a list A1,A2,... with one model per seed.")] = False,
    allow_partial: Annotated[bool, Opt("Accept incomplete STS and transfer files.")] = False,
    settings: Annotated[
        tuple[str, ...], Opt("Set an option of a suite; see cse methods.", "NAME.OPTION=VALUE", flag="--set")
    ] = (),
    markdown: Annotated[bool, Opt("Print Markdown tables.")] = False,
    ranked: Ranking,
    encoder: Evaluated,
    as_json: AsJson = False,
) -> None:
    """Compare the first of MODELS with each of the others, on the suites of cse eval.

    Except in the suite geometry, each difference has a 95 % confidence interval from a bootstrap over examples. Pairs
    that share a sentence are resampled together, and ranks are recomputed for each resample. p-values are adjusted for
    the number of tasks by Holm's method; the significance level is 0.05.

    Without --seeds, checkpoints are compared, not methods: a difference may be due to the training seed alone. With
    --seeds, each of MODELS lists the checkpoints of one method, separated by commas. The seeds must be the same, in the
    same order, for every method. Methods are then compared by a paired t-test over seeds.

    In the suite retrieval, MODELS may be bm25, which ranks by words alone, or run:FILE, a TREC run file. With --hybrid,
    all others rank as cse search --hybrid does. To compare rankings with and without it, write those of one of them to
    a file: cse eval MODEL --suite retrieval --data DIR --hybrid --run hybrid.run; then compare MODEL with
    run:hybrid.run.
    """
    from ...evaluation.run import compare_models, option_tables

    printing.check_output()
    labels, sides = systems_of(models, ranked, seeds)
    with progress_of("evaluating", "texts") as progress:
        results = compare_models(
            sides,
            suites,
            data,
            seeds=seeds,
            options=option_tables(encoder.settings(settings)),
            allow_partial=allow_partial,
            progress=progress,
            **encoder.arguments,
        )
    unit_of = "methods, by a paired t-test over seeds" if seeds else "checkpoints, not methods"
    precision = results[0].precision
    if as_json:
        tables = [{"a": labels[0], "b": b, "tasks": side.tasks} for b, side in zip(labels[1:], results, strict=True)]
        printing.result({"compares": unit_of, "precision": precision, "comparisons": tables}, True, [])
        return
    for label, result in zip(labels[1:], results, strict=True):
        lines = [compared_cells(record) for record in result.tasks]
        printing.table(lines, title=f"{label} against {labels[0]}", markdown=markdown)
    printing.echo(f"This compares {unit_of}. A is the first model. p-values are adjusted by Holm's method.")
    if precision:
        printing.echo(f"Encoded in {precision} ({results[0].precision_reason}).")


def compared_cells(record: dict[str, Any]) -> dict[str, str]:
    """Returns the table cells of one task as text; interval and p-value are empty without a test."""
    tested = "p" in record
    digits = 2 if abs(record["a"]) > 2 else 4
    return {
        "task": record["task"],
        "examples": "" if record["examples"] is None else f"{record['examples']:,}",
        "A": f"{record['a']:.{digits}f}",
        "B": f"{record['b']:.{digits}f}",
        "difference": f"{record['mean']:+.{digits}f}",
        "95 % interval": f"[{record['low']:+.{digits}f}, {record['high']:+.{digits}f}]" if tested else "",
        "p (Holm)": f"{record['p_holm']:.3f}" if tested else "",
        "B is": record["verdict"],
    }
