"""Where a run is computed: its device, threads, precision and processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .step.distributed import World


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
        from ..encoder.device import describe_device

        several = {"processes": f"{self.ranks}, each with a part of the batch"} if self.ranks > 1 else {}
        return {"device": describe_device(self.device, self.precision, self.reason), **several}


def use_machine(device: str, threads: int, precision: str, world: World) -> Machine:
    """Sets the number of threads, and chooses device and precision; raises ``InputError`` for an unusable device."""
    from ..encoder.device import pick_device, pick_precision, set_threads

    set_threads(threads)
    device = world.device(pick_device(device))
    own, reason = pick_precision(device, precision)
    # Speeds measured by the ranks may suggest different precisions.
    return Machine(device, world.agreed(lambda: own), reason, world.size)
