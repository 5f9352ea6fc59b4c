"""The commands ``cse eval`` and ``cse compare``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from ...errors import InputError
from ...options import Device, If, Imports, Opt, Precision, Prompt, Threads
from ...progress import progress_of
from .. import options, printing
from ..command import command
from ..options import AsJson, FirstDims, PoolerName, Ranking, passage_size

if TYPE_CHECKING:
    from ...evaluation.base import Report
    from ...evaluation.ranking import System


# Options that apply to one suite.
STS, RETRIEVAL = If("suites", ("sts",)), If("suites", ("retrieval",))

# Options of both commands.
Suites = Annotated[tuple[str, ...], Opt("Suite; see cse methods.", "NAME", flag="--suite")]
Data = Annotated[str | None, Opt("File or folder of the data.", "PATH")]
AllowPartial = Annotated[bool, Opt("Accept incomplete STS and transfer files.")]
Markdown = Annotated[bool, Opt("Print Markdown tables.", excludes="as_json")]
Settings = Annotated[
    tuple[str, ...], Opt("Set an option of a suite; see cse methods.", "NAME.OPTION=VALUE", flag="--set")
]


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
            needs=RETRIEVAL,
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


WITH_WORDS = "+bm25"
"""The end of the name of a model that ranks by vectors and words."""


def systems_of(models: Sequence[str], ranked: Ranking, seeds: bool = False) -> tuple[list[str], list[list[System]]]:
    """Returns a label for each of MODELS, and its systems: one, or with ``seeds`` one for each of its models. A model
    whose name ends in ``+bm25`` ranks as with ``--hybrid``."""
    from ...evaluation.ranking import RUN, System
    from ...search.bm25 import library
    from ...search.fusion import Fusion

    fusion = ranked.fusion or False
    sides = []
    for text in models:
        side = []
        for name in text.split(",") if seeds else [text]:
            model = name.removesuffix(WITH_WORDS)
            if model != name:
                library()
            system = System(model)
            if name.startswith(RUN):
                os.stat(name.removeprefix(RUN))
            together = Fusion() if model != name and not fusion else fusion
            side.append(system if system.fixed else System(options.model_folder(model), together))
        sides.append(side)
    if fusion and all(system.fixed for side in sides for system in side):
        raise InputError(f"--hybrid has no effect on {sides[0][0].fixed}; omit --hybrid")
    named = [text if text.endswith(WITH_WORDS) else " ".join([text, *side[0].flags]) for text, side in
             zip(models, sides, strict=True)]  # fmt: skip
    return named, sides


@command("eval")
def eval_command(
    model: str,
    *,
    suites: Suites = ("sts",),
    data: Data = None,
    allow_partial: AllowPartial = False,
    compare_published: Annotated[bool, Opt("Also list the papers' STS averages.", needs=STS)] = False,
    hard: Annotated[
        int, Ge(0), Opt("List N hard pairs of each STS file: low scores with high cosines.", "N", needs=STS)
    ] = 0,
    run: Annotated[
        str | None, Opt("Write the rankings of the suite retrieval to a TREC run file.", "FILE", needs=RETRIEVAL)
    ] = None,
    markdown: Markdown = False,
    settings: Settings = (),
    ranked: Ranking,
    encoder: Evaluated,
    as_json: AsJson = False,
) -> None:
    """Evaluate MODEL, a folder or a name, with one or more suites.

    The default suite, sts, evaluates the STS tasks whose files are in the folder --data (sts12.test.tsv, ...,
    sickr.test.tsv), or the single file --data. Each line of a file holds score, sentence1 and sentence2, separated by
    tabs. All subsets of a task are concatenated; the score is Spearman's correlation x 100. cse methods describes the
    other suites: transfer, retrieval, labels, sts-dev, geometry, halves.

    In the suite retrieval, MODEL may also be bm25, which ranks by words alone, or run:FILE, a TREC run file with the
    rankings of any system; for a run file, --data may be the file of judgements alone. With --hybrid, documents are
    ranked as by cse search --hybrid.
    """
    printing.check_output()
    from ...evaluation.run import evaluate, option_tables
    from ...evaluation.sts import PUBLISHED, SEED_NOTE, TEXT_NOTE, hard_pairs

    _, ((system,),) = systems_of([model], ranked)
    tables = option_tables(encoder.settings(settings))
    with progress_of("evaluating", "texts") as progress:
        result = evaluate(
            system, suites, data, options=tables, allow_partial=allow_partial, progress=progress, **encoder.arguments
        )
    if run is not None:
        from ...evaluation.ranking import write_run

        write_run(run, result.reports["retrieval"].rankings)
    published = [dict(zip(("model", "average", "reproductions"), row, strict=True)) for row in PUBLISHED]
    listed = [pair for sample in result.reports["sts"].samples for pair in hard_pairs(sample, hard)] if hard else []
    if as_json:
        beside: dict[str, Any] = {"published": published, "published_text": TEXT_NOTE} if compare_published else {}
        beside |= {"hard_pairs": listed} if hard else {}
        printing.result({**result.to_dict(), **beside}, True, [])
        return
    for name, report in result.reports.items():
        title = f"{result.model}: {name}"
        if wide := paper_row(name, report):
            printing.table([wide], title=title, markdown=markdown)
            printing.echo()
        printing.table([cells(row) for row in report.rows], title="" if wide else title, markdown=markdown)
        scores = {key: value for key, value in report.summary.items() if value is not None}
        for line in [f"{key.replace('_', ' ')}: {cell(key, value)}" for key, value in scores.items()]:
            printing.echo(line)
        for note in report.notes:
            printing.echo(f"Note: {note}")
    for note in result.notes:
        printing.echo(f"Note: {note}")
    if listed:
        printing.echo()
        title = "Hard pairs: their rank by cosine exceeds their rank by score most"
        printing.table([cells({**pair, "score": f"{pair['score']:g}"}) for pair in listed], title, markdown)
    if compare_published:
        printing.echo()
        printing.table(published, title="Published averages over the seven STS test sets", markdown=markdown)
        printing.echo(TEXT_NOTE)
        printing.echo(SEED_NOTE)


def paper_row(suite: str, report: Report) -> dict[str, str]:
    """Returns a row as in the papers: the scores of the test sets, and their average; {} without an average."""
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
