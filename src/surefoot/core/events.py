"""Everything that can happen to a run (formats §4): the alphabet of the journal.

An event reports what has happened and is never written before it did. Each class is one `ev`; its
fields are the line's, in the order of the table in docs/reference/formats.md, which a test holds
against this module. A `Line` is an event with its place in the journal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from surefoot.core.numbers import Lineage, SnapshotId
from surefoot.core.orders import Order

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened; `EV` is its name in the journal."""

    EV: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Line:
    """An event with its place: `seq` counts the journal's lines from 1, `at_ns` is the brain's clock."""

    seq: int
    at_ns: int
    event: Event
    origin: tuple[int, int] | None = None
    """(rank, n) if a rank sent it, n counted by that rank in its attempt: `from` in the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermStarted(Event):
    """A brain took the run's lease; lines of the term before it behind `after` never happened."""

    EV: ClassVar[str] = "term_started"
    format: int
    term: int
    after: Json
    """{"term": …, "seq": …} of the last line that counts; both 0 in a new run."""
    node: str
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured(Event):
    """Settings that hold from here on; what is not named keeps its value."""

    EV: ClassVar[str] = "configured"
    settings: dict[str, Any]
    """key → [value, where it came from]."""
    policy: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TermEnded(Event):
    """The brain gave the lease back; the next term may begin at once."""

    EV: ClassVar[str] = "term_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(Event):
    """A worker group starts; on record before the snapshot it starts from is tried."""

    EV: ClassVar[str] = "attempt_started"
    attempt: int
    world_size: int
    nodes: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    restore: SnapshotId | None = None
    order: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptJoined(Event):
    """Every rank of the attempt has said hello."""

    EV: ClassVar[str] = "attempt_joined"
    attempt: int
    layout: str
    data: Json
    """kind, unit, length, level (exact, order_only, drawn), fingerprint of the first loader."""
    code: Json
    changed: tuple[Json, ...] = ()
    """What differs from the attempt before: {key, was, now, kind}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Event):
    """All ranks hold the state: a resume, a restart, a rollback or a fresh start alike."""

    EV: ClassVar[str] = "restored"
    branch: int
    lineage: Lineage
    step: int
    batch: int
    sample: int
    tier: str | None
    """None for a fresh start."""
    passed_over: tuple[Json, ...] = ()
    """Newer ones that could not be used: {what, why, step, branch}."""
    took_ns: int = 0
    order: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """A turn of the loop is over on every rank; position is what would be drawn next."""

    EV: ClassVar[str] = "step_done"
    branch: int
    step: int
    batch: int
    sample: int
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    dropped: int = 0
    end_ns: int = 0
    data_ns: int = 0
    stall_ns: int = 0
    phase_ns: dict[str, int] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    ranks: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntered(Event):
    """A named phase began; the next step_done or phase_entered ends it."""

    EV: ClassVar[str] = "phase_entered"
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeExpected(Event):
    """The user says that the loss may move for a reason."""

    EV: ClassVar[str] = "change_expected"
    text: str
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(Event):
    """A remark for the logbook."""

    EV: ClassVar[str] = "noted"
    text: str
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCommitted(Event):
    """A snapshot became durable on a tier."""

    EV: ClassVar[str] = "snapshot_committed"
    step: int
    branch: int
    tier: str
    bytes: int
    write_ns: int = 0
    verified: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMarked(Event):
    """A snapshot is good, suspect, pinned, unpinned or gone; holds for all its copies."""

    EV: ClassVar[str] = "snapshot_marked"
    step: int
    branch: int
    mark: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed(Event):
    """A save was lost; training goes on."""

    EV: ClassVar[str] = "save_failed"
    step: int
    branch: int
    tier: str
    error: str
    in_a_row: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSilent(Event):
    """A rank made no progress for longer than its limit."""

    EV: ClassVar[str] = "worker_silent"
    node: str
    rank: int
    phase: str
    silent_ns: int
    limit_ns: int
    evidence: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited(Event):
    """A rank's process is gone without having said goodbye, or says what killed it."""

    EV: ClassVar[str] = "worker_exited"
    node: str
    rank: int
    code: int | None = None
    signal: int | None = None
    error: Json | None = None
    """{type, message, signature, stack} as the rank reported it."""
    tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined(Event):
    """A node's agent joined the run."""

    EV: ClassVar[str] = "node_joined"
    node: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(Event):
    """A node's agent left or fell silent."""

    EV: ClassVar[str] = "node_lost"
    node: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReceived(Event):
    """Somebody asked a process of the run to end."""

    EV: ClassVar[str] = "signal_received"
    node: str
    rank: int | None
    signal: int
    grace_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionSeen(Event):
    """Something about a machine, a store or ourselves that explains what follows."""

    EV: ClassVar[str] = "condition_seen"
    node: str
    device: str | None
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Event):
    """A person, a launcher or another program asks for something."""

    EV: ClassVar[str] = "asked"
    id: str
    who: str
    do: str
    args: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WouldHave(Event):
    """Mode `observe`: what would have been ordered."""

    EV: ClassVar[str] = "would_have"
    body: Order
    reason: str
    verdict: Json | None = None
    fault: Json | None = None
    cost: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed(Event):
    """Mode `ask`: an order that waits for a person's answer."""

    EV: ClassVar[str] = "proposed"
    id: str
    body: Order
    reason: str
    verdict: Json | None = None
    fault: Json | None = None
    cost: Json = field(default_factory=dict)
    expires_ns: int = 0
    without_answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Event):
    """A proposal was approved, declined, edited, expired or overtaken."""

    EV: ClassVar[str] = "answered"
    id: str
    answer: str
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobSet(Event):
    """A number of the loop has a new value from a step on."""

    EV: ClassVar[str] = "knob_set"
    name: str
    value: Any
    from_step: int
    who: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeSet(Event):
    """A kind of action is observed, asked for or acted on from now on."""

    EV: ClassVar[str] = "mode_set"
    name: str
    mode: str
    from_step: int
    who: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered(Event):
    """The brain gave an order; durable before anyone acts on it."""

    EV: ClassVar[str] = "ordered"
    order: int
    body: Order
    """Flattened on the line: `do` and its fields."""
    reason: str
    verdict: Json | None = None
    fault: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderDone(Event):
    """An order was carried out; `outcome` says how."""

    EV: ClassVar[str] = "order_done"
    order: int
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFailed(Event):
    """An order could not be carried out; `outcome` says why."""

    EV: ClassVar[str] = "order_failed"
    order: int
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderJudged(Event):
    """H steps after an order: did what it was for come back?"""

    EV: ClassVar[str] = "order_judged"
    order: int
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The run is over, for now: finished, stopped, preempted, failed, gave up, needs a person."""

    EV: ClassVar[str] = "run_ended"
    word: str
    exit_code: int | None
    reason: str = ""


EVENTS: dict[str, type[Event]] = {
    kind.EV: kind
    for kind in (
        TermStarted, Configured, TermEnded, AttemptStarted, AttemptJoined, Restored, StepDone, PhaseEntered,
        ChangeExpected, Noted, SnapshotCommitted, SnapshotMarked, SaveFailed, WorkerSilent, WorkerExited,
        NodeJoined, NodeLost, SignalReceived, ConditionSeen, Asked, WouldHave, Proposed, Answered, KnobSet,
        ModeSet, Ordered, OrderDone, OrderFailed, OrderJudged, RunEnded,
    )
}  # fmt: skip
"""Every event by its `ev`."""
