"""What the ranks agree on at a boundary: one summed vector (formats §7).

At each boundary the vector started a turn ago is read and acted on, and only then the next is
started, so that it tells the state after the boundary. A non-finite loss or norm is counted and
contributes 0, or one rank's NaN would be everyone's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.loop.ranks import Scalar


@dataclass(slots=True)
class Word:
    """One rank's contribution at one boundary."""

    loss: Scalar = 0.0
    """Sum of loss × weight over the turn."""
    weight: float = 0.0
    grad_norm: Scalar = 0.0
    reporting: float = 0.0
    """1 if this rank logged a gradient norm."""
    save: bool = False
    stop: bool = False
    """A person wants the run to end."""
    preempt: bool = False
    """The machine is about to be taken away."""
    without_slot: bool = False
    unfinished: bool = False
    """This rank's last staging isn't whole."""
    outgrown: bool = False
    """This rank's state no longer fits its layout."""
    order: int = 0
    """Rank 0 only: the newest order for the ranks."""
    own_boundary: bool = False
    """Rank 0 only: steps are long, read the vector at its own boundary from here on."""

    def vector(self) -> list[Scalar]:
        """Return the numbers in the order of `Agreed`."""
        loss, weight, bad = _finite(self.loss, self.weight)
        norm, reporting, bad_norm = _finite(self.grad_norm, self.reporting)
        return [
            loss,
            weight,
            norm,
            reporting,
            bad,
            bad_norm,
            self.save,
            self.stop,
            self.preempt,
            self.without_slot,
            self.unfinished,
            self.outgrown,
            self.order,
            self.own_boundary,
        ]


@dataclass(frozen=True, slots=True)
class Agreed:
    """The sum over all ranks."""

    loss: float | None
    """Weighted mean over the ranks that logged one."""
    grad_norm: float | None
    non_finite: int
    """Losses and norms that were not finite, over all ranks."""
    save: bool
    stop: bool
    preempt: bool
    may_stage: bool
    """Every rank has a granted slot and its last staging is whole."""
    outgrown: bool
    """Every rank offers its layout anew at this boundary."""
    order: int
    own_boundary: bool

    @classmethod
    def of(cls, total: Sequence[float]) -> Agreed:
        """Read the summed vector."""
        loss, weight, norm, reporting, bad, bad_norm, *flags, order, own = total
        save, stop, preempt, without, unfinished, outgrown = flags
        # A device scalar can't be looked at without a sync before it is summed: then the sum tells.
        bad += not math.isfinite(loss)
        bad_norm += not math.isfinite(norm)
        return cls(
            # One rank's NaN is shown as the job's: a mean over the others would hide it.
            loss=math.nan if bad else loss / weight if weight else None,
            grad_norm=math.nan if bad_norm else norm / reporting if reporting else None,
            non_finite=round(bad + bad_norm),
            save=save > 0,
            stop=stop > 0,
            preempt=preempt > 0,
            may_stage=without == 0 and unfinished == 0,
            outgrown=outgrown > 0,
            order=round(order),
            own_boundary=own > 0,
        )


def _finite(value: Scalar, weight: float) -> tuple[Scalar, float, float]:
    if isinstance(value, float) and not math.isfinite(value):
        return 0.0, 0.0, 1.0
    return value, weight, 0.0
