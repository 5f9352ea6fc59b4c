"""The commands ``cse predict`` and ``cse draw``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from ...data import readers, tables
from ...data.pairs import check_column
from ...data.written import WRITTEN, Table, check_written, write
from ...errors import InputError
from ...options import Cache, Column, Device, EncodingErrors, MaxLineBytes, Opt, Precision, Seed, Threads
from ...progress import counting
from .. import printing
from ..command import Heading, command
from ..options import AsJson, open_corpus

if TYPE_CHECKING:
    from ...classifier.predicting import Labelling
    from ...data.corpus import Corpus

TEXT = "text"
"""The name of the column of the rows of a text file."""


@command("predict")
def predict_command(
    model: str,
    table: str | None = None,
    *,
    output: Annotated[str, Opt("The .csv, .jsonl or .parquet file to write.", "FILE", short="-o")],
    min_confidence: Annotated[
        float | None, Ge(0), Le(1), Opt("Leave the label of rows with less confidence empty.", "P", "none")
    ] = None,
    prefix: Annotated[
        str | None, Opt("Beginning of the names of the new columns.", "TEXT", "the name of the column of labels")
    ] = None,
    batch_size: Annotated[int, Ge(1), Heading("Encoding"), Opt("Texts per forward pass.", "N")] = 64,
    device: Device = "auto",
    precision: Precision = "fp32",
    column: Annotated[Column, Heading("Input"), Opt(default="that of the run")] = None,
    encoding_errors: EncodingErrors = "strict",
    max_line_bytes: MaxLineBytes = 1 << 20,
    cache: Cache = None,
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """Write TABLE (default: that of the run) with a label for every row, by the classifier of MODEL.

    MODEL is a run that was trained with --labels COLUMN, or a copy of its encoder. Four columns are added: COLUMN
    predicted, COLUMN confidence (the probability that the label is right), COLUMN second (the next label) and COLUMN
    source: given for rows that have a label in TABLE, which keep it, else predicted. Equal texts get one label. A text
    with two labels in TABLE is predicted. Predicted labels serve accuracy; the classifier of the verdict, which serves
    mean recall, names rare labels more often.

    What is promised about the predicted rows was counted on labelled rows that neither the encoder nor the classifier
    knew. It holds if these were drawn at random from the rows to predict (cse draw); if they do not look so, no
    accuracy is printed. Vectors are not kept in memory. If the command is interrupted, run it again to resume.
    """
    from ...classifier.stored import load, load_labelled
    from ...data.classes import ADDED
    from ...encoder.layout import best_of_run
    from ...encoder.taught import run_of

    printing.check_suffix(output, *WRITTEN)
    folder = Path(best_of_run(model))
    if not folder.is_dir():
        raise InputError(f"{model}: no such folder; name a run that was trained with --labels, or a copy of its best/")
    fitted, run = load(folder), run_of(folder)
    path, column = _table_of(model, table, column, run)
    if os.path.exists(output) and os.path.samefile(output, path):
        raise InputError(f"-o {output}: is the table to read; name another file")
    shown = Table.open(path, max_line_bytes) if tables.is_table(path) else None
    if shown is not None:
        check_written(shown, output)
    prefix = fitted.column if prefix is None else prefix
    if taken := {f"{prefix} {name}" for name in ADDED} & {*(shown.names if shown else [TEXT])}:
        raise InputError(
            f"{path}: {min(taken)!r} is a column of this table already; name the new columns with --prefix TEXT"
        )
    if min_confidence is not None and fitted.promise is None:
        raise InputError(f"--min-confidence: no confidence is known: {fitted.why}")
    corpus = open_corpus([path], column, encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, cache=cache)
    known = load_labelled(run, fitted.linear.weights.shape[1])
    printing.loading()
    from ...classifier.drawn import OTHERS
    from ...classifier.predicting import Known, is_begun, label_rows, labelled_table
    from ...encoder.device import set_threads
    from ...encoder.opening import open_encoder

    if not is_begun(output):
        printing.check_new(output)
    set_threads(threads)
    cells = None
    if shown is not None and fitted.column in shown.names:
        check_column(path, "the column of labels", fitted.column, max_line_bytes)
        cells = list(tables.raw_values(path, fitted.column, max_line_bytes))
    encoder = open_encoder(str(folder), device=device, precision=precision)
    stored, least, began = None if known is None else Known(*known), min_confidence or 0.0, time.perf_counter()
    with ExitStack() as stack:
        with counting("predicting", len(corpus), "rows") as more:
            labelling = label_rows(encoder, fitted, stored, corpus, cells, output, batch_size=batch_size, progress=more)
            found = stack.enter_context(labelling)
        with counting("comparing with the labelled rows", min(OTHERS, int(found.is_predicted.sum())), "rows") as more:
            found.test(encoder, more)
        write(labelled_table(shown or lines_of(corpus), found, prefix, least), output)
        summary = {"output": output, "column": fitted.column, **found.summary(least)}
    summary["seconds"] = round(time.perf_counter() - began, 2)
    printing.result(summary, as_json, lines(summary, found, least))


def _table_of(model: str, table: str | None, column: str | None, run: Path | None) -> tuple[str, str | None]:
    """Returns the path of the table, and the column of its texts; both are by default those of the run."""
    from ...evaluation.kept import files_of
    from ...training.settings.given import TrainConfig

    config = None if run is None else TrainConfig.from_toml(run / "config.toml")
    if table is None:
        if config is None:
            raise InputError(f"{model}: is not the folder of a run, so TABLE must be named")
        files = (files_of(run) if run else []) or readers.expand(config.corpus)
        if len(files) != 1 or not os.path.isfile(files[0]):
            named = ", ".join(config.corpus[:3])
            raise InputError(f"{model}: was trained on {named}, which is not one file here; name TABLE")
        table = files[0]
    if not tables.is_table(table):
        if table != "-":
            os.stat(table)
        if not os.path.isfile(table):
            raise InputError(f"{table}: is read twice; write it to a file first")
        return table, column
    names = tables.column_names(table)
    if column is None and config is not None and config.column in names:
        column = config.column
    readers.resolve([table], column)  # names the columns, if this is none of them
    return table, column


def lines_of(corpus: Corpus) -> Table:
    """Returns the rows of a text file as a table with one column."""

    def texts() -> Iterator[list[str]]:
        for start in range(0, len(corpus), 1 << 14):
            yield from ([text] for text in corpus.take(range(start, min(start + (1 << 14), len(corpus)))))

    return Table([TEXT], texts)


def lines(summary: dict[str, Any], found: Labelling, least: float) -> list[str]:
    """Returns the summary of a labelled table as lines of text."""
    from ...classifier.described import AT_RANDOM, share

    fitted, drawn = found.fitted, found.drawn

    counts = {"given": "with the label of the table", "blank": "blank"}
    parts = [
        f"{summary['predicted']:,} predicted",
        *(f"{summary[name]:,} {what}" for name, what in counts.items() if summary[name]),
    ]
    said = [f"{summary['output']}: {summary['rows']:,} rows: {', '.join(parts)}"]
    if summary["texts_with_two_labels"]:
        said.append(f"{summary['texts_with_two_labels']:,} texts have two labels in the table, and are predicted")
    if unknown := summary["unknown"]["labels"]:
        said.append(
            f"{summary['unknown']['rows']:,} rows have a label in the table that the classifier does not know, such as "
            f"{unknown[0]!r}; they keep it"
        )
    if fitted.promise is None:
        return [*said, f"no confidence is known: {fitted.why}"]
    promised = summary["accuracy"] is not None
    if drawn is not None:
        said.append(drawn.describe())
    if not summary["predicted"]:
        return said
    for each in summary["thresholds"]:
        line = f"confidence {each['confidence']} or more: {each['rows']:,} of {summary['predicted']:,} rows"
        if promised:
            right = (
                "fewer than 5 labelled rows have it"
                if each["accuracy"] is None
                else f"{share(each['accuracy'])} % of such labelled rows are right"
            )
            line += f"; {right}"
        said.append(line)
    if least:
        said.append(f"{summary['below']:,} predicted rows are below {least:g}, and get no label")
    if promised:
        said.append(
            f"all predicted rows: accuracy {share(summary['accuracy'])}, mean recall {share(summary['mean_recall'])} "
            f"(95 % intervals, by {len(fitted.promise.truth):,} labelled texts)"
        )
        if drawn is None:
            said.append(AT_RANDOM)
    else:
        said.append("no accuracy is known for such labels; draw rows to label with cse draw")
    if count := summary["unlike"]["rows"]:
        said.append(f"{count:,} predicted rows are unlike all labelled ones, such as:")
        said += [f"  {text[:100]}" for text in summary["unlike"]["examples"]]
    return said


@command("draw")
def draw_command(
    table: str,
    *,
    rows: Annotated[int, Ge(1), Opt("Number of rows to label.", "N", short="-n")] = 100,
    labels: Annotated[str, Opt("Column for the labels; it is added if TABLE has none.", "NAME")] = "label",
    output: Annotated[str, Opt("The .csv, .jsonl or .parquet file to write.", "FILE", short="-o")],
    column: Column = None,
    seed: Seed = 0,
    encoding_errors: EncodingErrors = "strict",
    max_line_bytes: MaxLineBytes = 1 << 20,
    as_json: AsJson = False,
) -> None:
    """Write TABLE with N rows to label at its head, which are drawn at random.

    Only from labels of rows that were drawn at random follows how many of the other labels are right. Rows that have a
    label, blank rows and further rows of the same text are not drawn. Fill in the column of the first N rows, then:
    cse train FILE --column TEXT --labels NAME --learn, and cse predict.
    """
    from ...classifier.drawing import drawn_first

    printing.check_suffix(output, *WRITTEN)
    printing.check_new(output)
    if labels == column:
        raise InputError(f"--labels {labels}: is the column of the texts; name the column for their labels")
    corpus = open_corpus([table], column, encoding_errors=encoding_errors, max_line_bytes=max_line_bytes)
    shown = Table.open(table, max_line_bytes) if tables.is_table(table) else lines_of(corpus)
    check_written(shown, output)
    write(drawn_first(corpus, shown, rows, labels, seed), output)
    value = {"output": output, "rows": len(corpus), "drawn": rows, "labels": labels}
    printing.result(
        value, as_json, [f"{output}: {len(corpus):,} rows; fill in {labels!r} in the first {rows:,} of them"]
    )
