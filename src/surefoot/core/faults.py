"""What a dead or silent worker means: exit evidence → Fault, a value.

The first exit of an attempt in time condemns the group; later exits are symptoms ("connection
closed by peer") and are not classified again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from surefoot.core.events import WorkerExited

_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A classified failure."""

    kind: str
    """crash, hang, straggler, node_loss, preemption, storage, sdc."""
    blame: str
    """user, data, hardware, network, platform."""
    retryable: bool
    signature: str
    """Equal for two failures of the same cause: numbers and addresses are left out."""
    rank: int | None = None
    step: int | None = None


def classify(event: WorkerExited, step: int) -> Fault:
    """Judge an exit; `step` is the turn the attempt was in."""
    if event.error is not None:
        kind, message = str(event.error.get("type", "")), str(event.error.get("message", ""))
        signature = event.error.get("signature") or f"{kind}: {_DIGITS.sub('#', message)[:200]}"
        return Fault(
            kind="crash", blame="user", retryable=True, signature=str(signature), rank=event.rank, step=step
        )
    if event.signal is not None:
        signature = f"signal {event.signal}"
    elif event.code is not None:
        signature = f"exit code {event.code}"
    else:
        signature = "gone without a word"
    return Fault(
        kind="crash", blame="platform", retryable=True, signature=signature, rank=event.rank, step=step
    )
