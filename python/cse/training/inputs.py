"""The data of a run that has ended, opened again from its configuration, and what taught its encoder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ..encoder import taught
from ..encoder.taught import SEEN, Taught, taught_of
from ..errors import InputError, RunError, sentence
from ..io import read_json
from ..options import options_of
from .data import TrainingData, open_data, open_index
from .folder.find import CONFIG, find_checkpoint
from .judging import Judge
from .selection import EvaluationData, open_evaluation
from .settings.declared import Data, Evaluation, Methods, Output
from .settings.given import TrainConfig
from .settings.presets import is_published

T = TypeVar("T")


@dataclass(frozen=True)
class Inputs:
    """The data of a run, opened again from its configuration."""

    name: str
    config: TrainConfig
    evaluated: EvaluationData
    data: TrainingData

    @classmethod
    def of(cls, run: str) -> Inputs:
        config = TrainConfig.from_toml(Path(run) / CONFIG)

        def group(kind: type[T]) -> T:
            return kind(**{option.name: getattr(config, option.name) for option in options_of(kind)})

        data, methods, evaluation = group(Data), group(Methods), group(Evaluation)
        try:
            index = open_index(data, methods, Path(run))
            opened = open_data(data, methods, evaluation, group(Output), index, lambda *_: None)
        except FileNotFoundError as error:
            raise InputError(
                f"{run}: {error.filename}, which its {CONFIG} names, is not here; change to the folder in which the "
                "run was trained, put the file back, or name other data with --data"
            ) from None
        whole = is_published((config.given or {}).get("preset"))
        judging = open_evaluation(evaluation, config.options, data.column, whole)
        return cls(run, config, judging, opened)

    @cached_property
    def judge(self) -> Judge:
        return Judge.of(self.evaluated, self.data, self.taught, {})

    @property
    def taught(self) -> Taught:
        """What the encoder of the run was taught, without what had taught its base and its teachers."""
        return self.data.taught(self.evaluated.selecting)


def models_of(config: TrainConfig) -> list[str]:
    """Returns the names of the base model of a run, of a second encoder, and of the models that methods name."""
    named: list[Any] = [config.model, config.positive_encoder]
    for options in config.options.values():
        named += [options.get("model"), *(options.get("teachers") or ())]
    return [name for name in named if isinstance(name, str) and name != "copy"]


def taught_by_model(model: Any) -> Taught:
    """As ``cse.encoder.taught.taught_of``; also for runs of earlier versions, which have no ``seen.npy``: what their
    tables say, if these have not changed."""
    run = taught.run_of(model) if isinstance(model, (str, Path)) else None
    if run is None or (run / SEEN).is_file() or taught.declared(run / "best"):
        return taught_of(model)  # of a run of this version that has lost the file, labels of unknown texts taught it
    again = "train it again, or compare it by rows that are not in its table, with a copy of best/ elsewhere"
    try:
        inputs = Inputs.of(str(run))
        stored = read_json(find_checkpoint(run) / "state.json", dict[str, Any])["data"]
    except (InputError, RunError, OSError, KeyError) as error:
        raise InputError(
            f"{run}: an earlier version of cse trained this run and did not keep what taught it, and its data cannot "
            f"be read again ({sentence(error) if isinstance(error, (InputError, OSError)) else error}); {again}"
        ) from None
    now = inputs.data.fingerprints(None, {})
    if any(stored.get(name) != now.get(name) for name in ("corpus", "labels")):
        raise InputError(
            f"{run}: an earlier version of cse trained this run and did not keep what taught it, and its data have "
            f"changed since; {again}"
        )
    earlier = [taught_by_model(name) for name in models_of(inputs.config)]
    return inputs.taught.after(earlier)
