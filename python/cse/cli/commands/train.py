"""The commands ``cse train`` and ``cse adapt``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from ...errors import InputError
from ...options import Device, Opt, Seed, Threads
from ...progress import duration
from ...training.callbacks import ProgressCallback, header, score_text
from .. import corpus_index, printing
from ..command import Heading, command, given_options
from ..options import AsJson, IdColumn
from ..train_options import HEADINGS, given_values, setting_options

if TYPE_CHECKING:
    from ...search.searching import Hit
    from ...training.loop import RunResult
    from ...training.run import Run
    from ...training.settings.config import TrainConfig

# Of cse adapt: the name of the run, the steps between its checkpoints, and the hits shown.
RUN = "run"
SAVE_EVERY = 20
HITS = 5


class ConsoleCallback(ProgressCallback):
    """Shows the progress of a run; examples have marked words, and the command prints the result.

    Args:
        verbose: Print all descriptions and examples.
        lost: Returns the values of a configuration file that a run repeated with changes does not have.
    """

    def __init__(self, verbose: bool = False, lost: Callable[[TrainConfig], list[str]] | None = None) -> None:
        super().__init__(verbose=verbose)
        self.lost = lost

    def on_train_begin(self, run: Run) -> None:
        """Prints a description of the run, one fact per line, then examples of augmentations."""
        for line in header(run.facts, self.verbose):
            self.display.print(line)
        if step := run.state.step:
            if run.plan.patience is not None and run.state.selector.misses >= run.plan.patience:
                self.display.print(f"ended by --patience at step {step}; a larger --patience trains further")
            elif step >= len(run.batches):
                self.display.print(f"finished at step {step}: nothing is left to train; --max-steps extends the run")
        if self.lost is not None and (lost := self.lost(run.config)):
            self.display.print(
                f"not as in the file: {', '.join(lost)}; with further flags, values that are not in its table given "
                "are derived again"
            )
        printing.print_examples(run.examples[: None if self.verbose else 1])

    def on_train_end(self, result: Any) -> None:
        self.close()


@command("train", setting_options, HEADINGS)
def train_command(
    corpus: tuple[str, ...] = (),
    *,
    config_file: Annotated[
        str | None, Heading("Model"), Opt("config.toml of a run, to repeat that run.", "FILE", flag="--config")
    ] = None,
    settings: Annotated[
        tuple[str, ...],
        Heading("Run"),
        Opt("Set an option of a method; see cse methods.", "METHOD.OPTION=VALUE", flag="--set"),
    ] = (),
    resume: Annotated[
        str | None,
        Opt("Resume or extend a run from its last checkpoint.", "RUN"),
    ] = None,
    verbose: Annotated[bool, Opt("Print all descriptions and examples before training.")] = False,
    as_json: AsJson = False,
    **values: Any,
) -> None:
    """Train an encoder on CORPUS (one sentence per line), or on the files the TF-IDF index was built from.

    The encoder is saved in the folder best/ of the run (see --output and --name), from which AutoModel and
    SentenceTransformer can load it. Values that are not given are taken from --preset, else from the defaults of the
    loss, else from the defaults of the model family. cse methods lists the augmentations and loss terms with their
    options, which are set in the configuration file or with --set, for example --set una.beta=0.3.
    """
    from ...registry import import_methods, parse_setting
    from ...training.parts.data import check_source
    from ...training.settings.changes import differences, repeated
    from ...training.settings.config import TrainConfig, read_toml
    from ...training.settings.precedence import merge, with_preset

    chosen = given_values({"corpus": corpus, **values})
    for file in chosen.get("imports", ()):  # before a configuration that names them, too
        import_methods(file)
    for text in settings:
        method, option, value = parse_setting(text)
        chosen.setdefault("options", {}).setdefault(method, {})[option] = value
    if resume is not None:
        if config_file or "preset" in chosen:
            raise InputError("--resume uses the configuration of the run; leave out --config and --preset")
        from ...training.loop import resumed_config

        _run(resumed_config(resume, chosen), resume, verbose, as_json)
        return
    if "preset" in chosen and config_file:
        raise InputError("--preset cannot be combined with --config; choose one")
    stored = read_toml(config_file) if config_file else {}
    base, before = repeated(stored, chosen)
    # Validated before torch is imported, so that an invalid flag is reported immediately.
    config = with_preset(TrainConfig(**merge(chosen, base), given=before))
    check_source(config.corpus, config.pairs, config.tfidf)
    lost = None
    if before is None and "given" in stored:
        again = TrainConfig(**{name: value for name, value in stored.items() if name != "given"})
        lost = partial(differences, before=again, chosen=chosen)
    _run(config, None, verbose, as_json, lost)


def _run(
    config: TrainConfig,
    resume: str | None,
    verbose: bool,
    as_json: bool,
    lost: Callable[[TrainConfig], list[str]] | None = None,
) -> None:
    from ...training.folder.lock import has_checkpoint
    from ...training.loop import train

    result = train(config, ConsoleCallback(verbose, lost), resume=resume)
    if int(os.environ.get("RANK", "0")):  # torchrun: rank 0 prints the result
        return
    further = "" if config.patience is None else " --patience N"
    resumable = has_checkpoint(result.folder)  # False if no checkpoint could be written
    lines = [
        *_summary(result),
        *([", ".join(f"{task} {score:.2f}" for task, score in result.sts.items())] if result.sts else []),
        *_verdict(result),
        *([f"train longer with: cse train --resume {result.folder} --max-steps N{further}"] if resumable else []),
        f"{result.folder / 'best'}",
    ]
    printing.result(result.to_dict(), as_json, lines)


def _verdict(result: RunResult) -> list[str]:
    """Returns the lines of the verdict."""
    from ...evaluation.verdict import lines

    return lines(result.verdict)


def _summary(result: RunResult) -> list[str]:
    """Returns lines with the number of steps, the scores before and after training, and nearest neighbours."""
    synthetic = f", {result.synthetic_steps:,} of them with synthetic negatives" if result.synthetic_steps else ""
    return [
        f"{result.steps:,} steps in {duration(result.seconds)}{synthetic}",
        f"before  {score_text(result.before)}",
        f"after   {score_text(result.after)}",
        *result.notes,
        *printing.neighbours(result.neighbours),
    ]


@command("adapt")
def adapt_command(
    corpus: tuple[str, ...],
    *,
    model: Annotated[str, Opt("Sentence encoder to train: minilm, a folder, or a name on the hub.")] = "minilm",
    query: Annotated[str | None, Opt("Query to search with.", "TEXT", "taken from a row of CORPUS")] = None,
    column: Annotated[str | None, Opt("Column with the documents, if CORPUS is a table.", "NAME")] = None,
    id_column: IdColumn = None,
    output: Annotated[str, Opt("Folder for the run and the indexes.", "DIR", short="-o", flag="--output")] = "adapted",
    max_steps: Annotated[int | None, Ge(1), Opt("Training steps.", "N", "60, of the recipe")] = None,
    batch_size: Annotated[int | None, Ge(2), Opt("Rows per step.", "N", "64, of the recipe")] = None,
    device: Device = "auto",
    threads: Threads = 0,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Train a sentence encoder on the documents in CORPUS, build their search index, and compare search results.

    The recipe is that of cse train --preset adapt. The output folder holds the run (run/), the search index of the
    trained encoder (index/), and that of the encoder before training (before/). Documents are searched by their best
    passage. The output shows the hits of one query before and after training. If the command is interrupted, repeat it
    to continue; with a larger --max-steps, the training is extended.
    """
    printing.check_output()
    if query is not None and not query.strip():
        raise InputError("--query is blank; write a query, or leave it out")
    if "-" in corpus:
        raise InputError("CORPUS is read several times, so it cannot be standard input (-); name a file")
    if id_column is not None:
        corpus_index.read_ids(corpus, id_column)  # refuses a wrong column before training
    folder = Path(output)
    values = {"corpus": corpus, "model": model, "column": column, "max_steps": max_steps, "batch_size": batch_size}
    values |= {"device": device, "threads": threads, "seed": seed}
    config, resume = _adapting(folder, {name: value for name, value in values.items() if name in given_options()})
    from ...training.loop import train

    result = train(config, ConsoleCallback(), resume=resume)
    if int(os.environ.get("RANK", "0")):
        return
    source, query = (-1, query) if query is not None else _beginning_of_a_row(config)
    before, after = (
        _hits(config, *pair, query, source, id_column)
        for pair in ((str(config.model), folder / "before"), (str(result.folder), folder / "index"))
    )
    from .search import lines as hit_lines

    shown = [
        *_summary(result),
        "",
        f"query   {query}",
        *([f"        (from row {source}, which is not shown)"] if source >= 0 else []),
        "before training:",
        *hit_lines(before),
        "after training:",
        *hit_lines(after),
        "",
        "next:",
        f'  cse search {result.folder} -o {folder / "index"} --query "..."',
        f"  cse report {result.folder}",
        f'  SentenceTransformer("{result.folder / "best"}")',
    ]
    record = {
        "run": result.to_dict(),
        "index": str(folder / "index"),
        "query": query,
        "query_row": source if source >= 0 else None,
        "before": [asdict(hit) for hit in before],
        "after": [asdict(hit) for hit in after],
    }
    printing.result(record, as_json, shown)


def _adapting(folder: Path, values: dict[str, Any]) -> tuple[TrainConfig, str | None]:
    """Returns the configuration of the run in ``folder``, and its path if it has begun and is to be resumed."""
    from ...training.folder.lock import has_checkpoint, is_unsaved

    run = folder / RUN
    if has_checkpoint(run):
        from ...training.loop import resumed_config

        return resumed_config(run, values, f"-o {folder}", "name another folder with -o"), str(run)
    if run.exists() and not is_unsaved(run):
        raise InputError(f"-o {folder}: {run} is not a run of cse adapt; name another folder with -o")
    from ...training.settings.config import TrainConfig
    from ...training.settings.precedence import with_preset

    new = {"model": "minilm", **values, "output": str(folder), "name": RUN, "save_every": SAVE_EVERY}
    return with_preset(TrainConfig(preset="adapt", **new)), None


def _beginning_of_a_row(config: TrainConfig) -> tuple[int, str]:
    """Returns the number and the first sentence, of at most 24 words, of a row; a held-out row if there is one."""
    from ...data import readers
    from ...data.corpus import Corpus, hold_out

    corpus = Corpus.open(readers.resolve(config.corpus, config.column))
    held_out = hold_out(corpus, config.seed, wanted=True).held_out
    row = int((held_out if len(held_out) else corpus.filled())[0])
    words = corpus.take([row])[0].split()[:24]
    ends = (count for count, word in enumerate(words, 1) if count >= 4 and word.endswith((".", "!", "?")))
    return row, " ".join(words[: next(ends, len(words))])


def _hits(config: TrainConfig, model: str, folder: Path, query: str, source: int, id_column: str | None) -> list[Hit]:
    """Builds or completes the index of the corpus in ``folder``, and returns the best rows other than ``source``."""
    from ...search.index import SearchIndex

    names = ("column", "encoding_errors", "max_line_bytes", "cache", "device", "threads")
    encoding = corpus_index.Encoding(**{name: getattr(config, name) for name in names})
    encoder = encoding.encoder(model)
    rebuild = False
    if folder.exists():
        try:
            rebuild = SearchIndex.open(folder, encoder).has_ids != (id_column is not None)
        except InputError:  # the training was extended after the index had been built
            rebuild = True
    index = encoding.index(encoder, config.corpus, str(folder), id_column, passages="max", rebuild=rebuild)
    return [hit for hit in index.search([query], HITS + 1)[0] if hit.row != source][:HITS]
