"""What the brain may command (formats §5). Orders command, verdicts describe, events report.

Each class is one `do`; its fields are the order's own, the number, the reason and the verdict or
fault that led to it stand in the `ordered` event around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from surefoot.core.numbers import SnapshotId

DISK = "DISK"
HOST = "HOST"
TIERS = (HOST, "PEER", DISK, "BUCKET")
"""Where a snapshot can live, nearest first: ties between equal snapshots go to the nearest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One command; `DO` is its name in the journal and on the wire."""

    DO: ClassVar[str]
    RANKS: ClassVar[bool] = False
    """Whether the ranks carry it out, all at one boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Order):
    """Put a verdict on record and do nothing."""

    DO: ClassVar[str] = "note"
    verdict: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch(Order):
    """Pin the newest good snapshot and stop pruning until the verdict is settled."""

    DO: ClassVar[str] = "watch"
    verdict: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Save(Order):
    """Stage at the next boundary and write what was staged to `tiers`."""

    DO: ClassVar[str] = "save"
    RANKS: ClassVar[bool] = True
    tiers: tuple[str, ...] = (DISK,)
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write(Order):
    """Write a snapshot that is in memory to `tier`; None names the newest whole one."""

    DO: ClassVar[str] = "write"
    snapshot: SnapshotId | None = None
    tier: str = DISK


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark(Order):
    """Mark a snapshot good, suspect, pinned or unpinned."""

    DO: ClassVar[str] = "mark"
    snapshot: SnapshotId
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune(Order):
    """Delete a snapshot from a tier."""

    DO: ClassVar[str] = "prune"
    snapshot: SnapshotId
    tier: str = DISK


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback(Order):
    """Restore an earlier snapshot in the live run, leave `skip` out, scale the LR."""

    DO: ClassVar[str] = "rollback"
    RANKS: ClassVar[bool] = True
    to: SnapshotId
    branch: int
    skip: tuple[int, int, str] | None = None
    """(from, to, unit), half-open; None replays the same data as a diagnosis."""
    lr_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Set(Order):
    """Change a knob, or `stage_every`, at the next boundary."""

    DO: ClassVar[str] = "set"
    RANKS: ClassVar[bool] = True
    name: str
    value: Any
    from_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleLr(Order):
    """Multiply the LR for a span of steps, whatever the scheduler does."""

    DO: ClassVar[str] = "scale_lr"
    RANKS: ClassVar[bool] = True
    factor: float
    from_step: int
    until_step: int
    ramp_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart(Order):
    """Start a new attempt from a snapshot; None means the newest that may be used."""

    DO: ClassVar[str] = "restart"
    source: SnapshotId | None = None
    """`from` in the journal and on the wire."""
    nodes: int = 1
    leave_out: tuple[str, ...] = ()
    delay_s: float = 0.0
    dump_stacks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclude(Order):
    """Keep a node or a device out of new attempts."""

    DO: ClassVar[str] = "exclude"
    what: str
    until_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Order):
    """Hold every rank at the next boundary, state in place."""

    DO: ClassVar[str] = "pause"
    RANKS: ClassVar[bool] = True
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Order):
    """Let paused ranks go on."""

    DO: ClassVar[str] = "resume"
    RANKS: ClassVar[bool] = True
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Order):
    """Save at the next boundary and leave with `exit_code`."""

    DO: ClassVar[str] = "stop"
    RANKS: ClassVar[bool] = True
    word: str
    exit_code: int
    why: str = ""


ORDERS: dict[str, type[Order]] = {
    kind.DO: kind
    for kind in (
        Note, Watch, Save, Write, Mark, Prune, Rollback, Set, ScaleLr, Restart, Exclude, Pause, Resume, Stop,
    )
}  # fmt: skip
"""Every order by its `do`."""
