"""The command ``cse train``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import click

from ..._core import is_blank
from ...augment import AUGMENTATIONS
from ...errors import InputError
from ...options import Opt, Option, options_of, phrase
from ...progress import duration
from ...training.callbacks import ProgressCallback, by_sentence, header, score_text
from ...training.settings.declared import GROUPS
from ...training.settings.defaults import described
from ...training.settings.flat import flat
from ...training.settings.names import method_flags
from .. import options, printing
from ..command import Heading, click_option, command
from ..options import AsJson

if TYPE_CHECKING:
    from ...search.index import Hit
    from ...training.loop import RunResult
    from ...training.run import Run
    from ...training.settings.resolve import Resolved

HITS = 5
"""Hits of --query that are shown, before and after training."""
HEADINGS = [str(group.__doc__) for group in GROUPS]


def setting_options() -> list[click.Option]:
    switched = {name: str(kind.__doc__).partition("\n")[0] for name, kind in AUGMENTATIONS.flagged().items()}
    made: list[click.Option] = []
    for group in GROUPS:
        heading = str(group.__doc__)
        for option in options_of(group):
            if not option.opt.hidden:
                made.append(_option(option, option.name, option.opt.help, heading, option.name))
        of_methods = {name: item for name, item in method_flags().items() if item.group is group}
        for method in {item.method for item in of_methods.values()} & switched.keys():
            made.append(
                click.Option([f"--{method}/--no-{method}"], default=None, help=f"{switched[method]}  [default: no]")
            )
            made[-1].heading = heading  # type: ignore[attr-defined]
        for name, flag in of_methods.items():
            text = phrase(flag.option.opt.help)
            text = f"{flag.method.upper()}: {text}." if flag.method in switched else f"{text[0].upper()}{text[1:]}."
            made.append(_option(flag.option, name, text, heading, f"{flag.method}.{flag.option.name}"))
    return made


def _option(option: Option, name: str, text: str, heading: str, key: str) -> click.Option:
    default = option.opt.default or _by_situation(key, option.default)
    unset = () if option.several and not option.opt.separator else None
    made = click_option(option, heading, ranges=False, default=unset, show_default=False, required=False)
    made.name, made.help = name, f"{text}  [default: {default}]" if default else text
    return made


def given_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return flat({name: value for name, value in values.items() if value is not None and value != ()})


def _by_situation(name: str, default: Any) -> str:
    """Returns the default, then others with where they apply: ``5e-05; 3e-05 for bert-base``."""
    (_, first), *others = described(name, default)
    values: dict[str, list[str]] = {}
    for words, value in others:
        values.setdefault(printing.plain(value), []).append(words if words.startswith("with") else f"for {words}")
    shown = [f"{value} {', '.join(places)}" for value, places in values.items() if value]
    return "; ".join(filter(None, [printing.plain(first), *shown]))


class ConsoleCallback(ProgressCallback):
    """Shows the progress of a run; examples have marked words, and the command prints the result."""

    def __init__(self, verbose: bool = False, lost: Callable[[Resolved], list[str]] | None = None) -> None:
        super().__init__(verbose=verbose)
        self.lost = lost
        self.run: Run | None = None

    def on_train_begin(self, run: Run) -> None:
        """Prints a description of the run, one fact per line, then examples of augmentations."""
        self.run, patience = run, run.settings.evaluation.patience
        self._begin(run)
        for line in header(run.facts, self.verbose):
            self.display.print(line)
        if step := run.state.step:
            if patience is not None and run.state.selector.misses >= patience:
                self.display.print(f"ended by --patience at step {step}; a larger --patience trains further")
            elif step >= len(run.batches):
                judged = (run.folder / "result.json").is_file() or not run.judge.needs_folds(run.state.selector)
                rest = (
                    "nothing is left to train; --max-steps extends the run"
                    if judged
                    else "the encoders that judge it are trained"
                )
                self.display.print(f"finished at step {step}: {rest}")
        if self.lost is not None and (lost := self.lost(run.settings)):
            self.display.print(
                f"not as in the file: {', '.join(lost)}; with further flags, values that are not in its table given "
                "are derived again"
            )
        printing.print_examples(by_sentence(run.examples)[: None if self.verbose else 1])

    def on_train_end(self, result: Any) -> None:
        self.close()


COMMON = (
    *("pairs", "column", "labels", "learn", "model", "teacher", "preset", "loss", "una", "lr", "max_steps"),
    *("dev", "query", "output", "name", "seed", "resume"),
)
"""Options that ``cse train --help`` lists; ``--help-all`` lists all."""


@command("train", setting_options, HEADINGS, common=COMMON)
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
    resume: Annotated[str | None, Opt("Resume or extend a run from its last checkpoint.", "RUN")] = None,
    query: Annotated[
        str | None,
        Opt("Search CORPUS with this query, with the encoder before and after training, and show the hits.", "TEXT"),
    ] = None,
    verbose: Annotated[bool, Opt("Print all descriptions and examples before training.")] = False,
    as_json: AsJson = False,
    **values: Any,
) -> None:
    """Train an encoder on CORPUS (one sentence per line), or on the files that ./tfidf was built from.

    The encoder is saved in the folder best/ of the run (see --output and --name), from which AutoModel and
    SentenceTransformer can load it.

    Without --model, all-MiniLM-L6-v2 (minilm) is trained with the recipe for trained sentence encoders: 60 steps, short
    spans of a row as positives, the similarities of the base model kept and, with --una, a hard negative for each row
    at each step. The published recipes are presets, such as una-bert-base, focal-bert-base and simcse-bert-base, which
    train BERT; --model with a masked language model has the defaults of SimCSE.

    Values that are not given are taken from --preset, else from the defaults of the loss, else from the defaults of the
    model family. cse methods lists the augmentations and loss terms with their options, which are set in the
    configuration file or with --set, for example --set una.beta=0.3.
    """
    from ...registry import parse_setting
    from ...training.data import check_inputs
    from ...training.folder.stored import differences, resumed_config
    from ...training.settings.flat import merge
    from ...training.settings.given import TrainConfig, read_toml, repeated
    from ...training.settings.resolve import with_preset

    chosen = given_values({"corpus": corpus, **values})
    for text in settings:
        method, option, value = parse_setting(text)
        chosen[f"{method}.{option}"] = value
    lost = None
    if resume is not None:
        if config_file or "preset" in chosen:
            raise InputError("--resume uses the configuration of the run; omit --config and --preset")
        config = resumed_config(resume, chosen)
    else:
        if "preset" in chosen and config_file:
            raise InputError("--preset cannot be combined with --config; choose one")
        stored = read_toml(config_file) if config_file else {}
        base, before = repeated(stored, chosen)
        # Validated before torch is imported, so that an invalid flag is reported immediately.
        config = TrainConfig(**merge(chosen, base), given=before)
        check_inputs(with_preset(config))
        if before is None and "given" in stored:
            again = TrainConfig(**{name: value for name, value in stored.items() if name != "given"})
            lost = partial(differences, before=again, chosen=chosen)
    if query is not None and is_blank(query):
        raise InputError("--query is blank; write a query, or omit --query")
    if query is not None and (not config.corpus or "-" in config.corpus):
        raise InputError("--query searches the files of CORPUS; name them, or omit --query")
    printing.loading()
    from ...training.loop import train

    callback = ConsoleCallback(verbose, lost)
    result = train(config, callback, resume=resume)
    if callback.run is not None:  # torchrun: rank 0 prints the result
        _print(result, callback.run.settings, query, as_json)


def _print(result: RunResult, settings: Resolved, query: str | None, as_json: bool) -> None:
    from ...classifier import described
    from ...evaluation import verdict
    from ...training.folder.find import list_checkpoints, resuming
    from .search import lines

    further = "" if settings.evaluation.patience is None else " --patience N"
    resumable = bool(list_checkpoints(result.folder))  # False if no checkpoint could be written
    hits = {} if query is None else _hits(settings, result, query)
    shown = [line for name, found in hits.items() for line in (f"{name} training:", *lines(found))]
    synthetic = f", {result.synthetic_steps:,} of them with synthetic negatives" if result.synthetic_steps else ""
    text = [
        f"{result.steps:,} steps in {duration(result.seconds)}{synthetic}",
        f"before  {score_text(result.before)}",
        f"after   {score_text(result.after)}",
        *result.notes,
        *printing.neighbours(result.neighbours),
        *([", ".join(f"{task} {score:.2f}" for task, score in result.sts.items())] if result.sts else []),
        *verdict.lines(result.verdict),
        *([] if result.classifier is None else described.lines(result.classifier)),
        *(["", f"query   {query}", *shown, ""] if hits else []),
        *([f"train longer with: {resuming(result.folder)} --max-steps N{further}"] if resumable else []),
        *([f"label other rows with: cse predict {result.folder} -o labelled.csv"] if result.classifier else []),
        f"{result.folder / 'best'}",
    ]
    found = {name: [asdict(hit) for hit in hits] for name, hits in hits.items()}
    printing.result(result.to_dict() | ({"query": query, "hits": found} if found else {}), as_json, text)


def _hits(settings: Resolved, result: RunResult, query: str) -> dict[str, list[Hit]]:
    """Returns the hits of a query in the corpus, ranked by passages, for the encoders ``before`` and ``after``."""
    data, output = settings.data, settings.output
    encoding = options.Encoding(
        column=data.column,
        encoding_errors=data.encoding_errors,
        max_line_bytes=data.max_line_bytes,
        cache=data.cache,
        device=output.device,
        threads=output.threads,
    )
    hits = {}
    for name, model, folder in (
        ("before", settings.model.model, "before"),
        ("after", str(result.folder / "best"), "index"),
    ):
        index = encoding.index(
            encoding.encoder(model), data.corpus, str(result.folder / folder), None, passages="max", rebuild=True
        )
        (hits[name],) = index.search([query], HITS)
    return hits
