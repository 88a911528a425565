"""What a run needs of the training state: names → buffers, and plain values beside them.

`surefoot.torch` implements this protocol for PyTorch objects; a NumPy model or another framework
hands in its own (`Run("runs/x", state=my_state)`). A state names its tensors, says how large they
are, copies them out into buffers it is given and back in from buffers it is given, and keeps none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from surefoot.checkpoint.layout import Box
from surefoot.loop.ranks import Scalar

__all__ = ["Box", "Optimizers", "State"]


@runtime_checkable
class State(Protocol):
    """The training state of one rank.

    Order of a capture: `boxes`, `plain`, `copy_out`. Order of a restore: `copy_in`. Both happen at
    a boundary only, with all device work of the loop issued but not necessarily finished.
    """

    def boxes(self) -> Sequence[Box]:
        """Describe every tensor as it is now. Optimizer state is lazy: the list may grow."""
        ...

    def plain(self) -> dict[str, Any]:
        """Return everything that isn't a tensor, as plain values (formats §2).

        Values that JSON lacks (tuples, sets, bytes, complex, maps with other keys) are tagged by
        the caller. Raises `UnstorableState` naming the path of anything else.
        """
        ...

    def copy_out(self, into: Mapping[str, memoryview]) -> None:
        """Write every tensor's bytes, C order, native endian, into the buffer of its name."""
        ...

    def copy_in(self, tensors: Mapping[str, memoryview], plain: Mapping[str, Any]) -> None:
        """Make the live state equal to a snapshot, writing into the live tensors in place.

        A lazy state tensor that the snapshot lacks is removed, one that the live state lacks is
        made. Generators come last. Raises `StateMismatch` listing every unmatched name, shape or
        dtype *before* anything is changed.
        """
        ...


class Optimizers(Protocol):
    """What the loop asks of the managed optimizers."""

    def stepped(self) -> bool:
        """Tell whether one stepped (or its scaler skipped it) since the last call: a boundary."""
        ...

    def lr(self) -> Scalar | None:
        """Return the LR of the newest update of the first optimizer."""
        ...
