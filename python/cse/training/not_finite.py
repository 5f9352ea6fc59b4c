"""What happens if the loss or a gradient is NaN or infinite: the weights are not updated, and the run ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import RunError
from ..models.device import skips_by_flag

__all__ = ["check_finite", "skip_if_not_finite"]


def skip_if_not_finite(optimizer: torch.optim.Optimizer, loss: Tensor, norm: Tensor) -> Tensor:
    """Makes the next step of the optimizer do nothing if the loss or the norm of the gradient is not finite.

    The host does not wait for the device, except on ``mps`` (see ``skips_by_flag``). ``check_finite`` raises the error
    later, when the metrics are read.

    Args:
        optimizer: A fused optimizer.
        loss: Scalar tensor.
        norm: Norm of the gradient, a scalar tensor.

    Returns:
        Scalar bool tensor, True if both are finite.
    """
    finite = torch.isfinite(loss) & torch.isfinite(norm)
    # The fused optimizer skips the update if this flag is 1, as with a GradScaler, without a copy to the host.
    optimizer.found_inf = (~finite).to(torch.float32)  # type: ignore[attr-defined]
    if not skips_by_flag(loss.device) and not finite:
        optimizer.zero_grad(set_to_none=True)  # parameters without gradients are not updated
    return finite


def check_finite(records: list[dict[str, Any]]) -> None:
    """Raises ``RunError`` for the first step whose loss or gradient is not finite.

    Args:
        records: Records of steps as ``MetricBuffer.read`` returns them: ``finite`` and ``rows`` are present only if
            the loss or a gradient was not finite.
    """
    for record in records:
        if "finite" in record:
            rows = ", ".join(str(row) for row in record.get("rows", ()))
            raise RunError(
                f"the loss or its gradient is not finite at step {record['step']} (first rows of the batch: {rows}); "
                f"the weights of the previous step were kept; lower --lr, which is now {record['lr']:g}"
            )
