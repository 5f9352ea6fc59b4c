"""Where a run is written and computed: its folder, log, checkpoints, seed, device and threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le, Lt

from .fields import ELSEWHERE, Group, MayChange, Named, NotNegative, Positive, Precision, Shown

if TYPE_CHECKING:
    from ..step.distributed import World


class Output(Group):
    """Run"""

    output: Annotated[str, Shown("DIR"), ELSEWHERE] = "runs"
    """Folder that contains the runs."""
    name: Annotated[str | None, Shown(default="from model, loss, negatives and seed"), ELSEWHERE] = None
    """Name of the run's folder.

    None: composed of model, loss, negatives and seed, with a number added if the folder exists."""
    save_every: Annotated[NotNegative, MayChange()] = 0
    """Steps between checkpoints; 0: only at the end, or on a signal."""
    keep_checkpoints: Annotated[Positive, MayChange()] = 2
    """Number of checkpoints to keep; older ones are deleted."""
    loggers: Annotated[
        tuple[str, ...], Shown("NAME", flag="--logger"), Named("cse.training.loggers:LOGGERS"), ELSEWHERE
    ] = ()
    """Logger in addition to log.jsonl: tensorboard, wandb, mlflow or trackio."""
    log_every: Annotated[Positive, ELSEWHERE] = 10
    """Steps between writes of the log, which contains one record per step."""
    seed: Annotated[int, Ge(0), Lt(2**64), Shown("N")] = 0
    """Seed of all random choices."""
    device: Annotated[str, Shown("DEVICE"), ELSEWHERE] = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    threads: Annotated[int, Ge(0), Le(1024), Shown("N"), ELSEWHERE] = 0
    """CPU threads; 0: PyTorch's default, usually all cores."""


@dataclass(frozen=True)
class Machine:
    """Where a run computes."""

    device: str
    precision: str
    """Precision of the encoder, ``fp32`` or ``bf16``; the same on every rank."""
    reason: str
    """Why the precision was chosen."""
    ranks: int

    def describe(self) -> dict[str, str]:
        """Returns the device and, if there are several, the number of processes."""
        from ...models.device import describe_device

        several = {"processes": f"{self.ranks}, each with a part of the batch"} if self.ranks > 1 else {}
        return {"device": describe_device(self.device, self.precision, self.reason), **several}


def use_machine(settings: Output, precision: Precision, world: World) -> Machine:
    """Sets the number of threads, and chooses device and precision; raises ``InputError`` for an unusable device."""
    from ...models.device import pick_device, pick_precision, set_threads

    set_threads(settings.threads)
    device = world.device(pick_device(settings.device))
    own, reason = pick_precision(device, precision)
    # Speeds measured by the ranks may suggest different precisions.
    return Machine(device, world.agreed(lambda: own), reason, world.size)
