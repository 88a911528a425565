"""What the brain knows: the fold of the journal, as one frozen value.

Equality, hashing and simulation come free of it. Nothing here is read from anywhere but lines of
the journal (invariant: a run is a journal of events).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from surefoot.core.events import AttemptJoined, RunEnded, StepDone
from surefoot.core.exactness import Exactness
from surefoot.core.faults import Fault
from surefoot.core.ledger import Ledger
from surefoot.core.numbers import Lineage, SnapshotId
from surefoot.core.orders import Order
from surefoot.core.settings import Settings
from surefoot.core.snapshots import Catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The newest start of the worker group."""

    number: int = 0
    world_size: int = 0
    nodes: tuple[str, ...] = ()
    restore: SnapshotId | None = None
    """What it starts from; None for a fresh start."""
    order: int | None = None
    phase: str = "none"
    """none, started (on record), joined (all said hello), running (all hold the state), ended."""
    started_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An order that was given and whose outcome isn't known."""

    order: int
    body: Order
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The steps of one attempt on one branch, for rates: they never mix attempts."""

    step: int
    """The first turn it finished."""
    end_ns: int
    """When that turn ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The whole memory of a run."""

    seq: int = 0
    at_ns: int = 0
    term: int = 0
    term_began_ns: int = 0
    terms: tuple[tuple[int, int], ...] = ()
    """(term, orders given before it): an order belongs to one term, and so does a manifest that names it."""
    heard: dict[str, int] = field(default_factory=dict)
    """rank → the newest n heard of it in this attempt; a line that comes again is known by it."""

    settings: Settings = Settings()
    origins: dict[str, str] = field(default_factory=dict)
    """key → where its value came from."""
    declared: dict[str, Any] = field(default_factory=dict)
    """What the script declares and must not change in silence: `optimizer.lr`, `data.batch_size`, …"""

    attempt: Attempt = Attempt()
    joined: AttemptJoined | None = None
    session: Session | None = None
    lineage: Lineage = ()
    branches: int = 0
    """Branches opened so far; the next restore opens the one after."""
    step: int = 0
    batch: int = 0
    sample: int = 0
    last: StepDone | None = None
    phase: str = ""
    exactness: Exactness = Exactness()

    catalogue: Catalogue = ()
    commits: int = 0
    """Snapshots ever made durable: with none there is nothing that a fresh start could overwrite."""
    suspects: tuple[SnapshotId, ...] = ()
    tries: dict[str, int] = field(default_factory=dict)
    """"step.branch" → attempts in a row that died while loading it."""
    saved_ns: int = 0
    saved_step: int = 0
    """When, and at which step, a save was last ordered or committed."""
    save_failures: int = 0
    """In a row."""

    orders: int = 0
    """Orders given so far."""
    pending: tuple[Pending, ...] = ()
    knobs: dict[str, Any] = field(default_factory=dict)
    skips: tuple[tuple[int, int], ...] = ()
    accepted: tuple[str, ...] = ()
    """Changes of settings that a person agreed to and no attempt has yet made."""

    fault: Fault | None = None
    """Why the last attempt ended; None while one runs."""
    ended: RunEnded | None = None
    finished: tuple[int, int | None] | None = None
    """(step, n) of a run that finished and has done no step since: n is what `run.steps` was asked for."""
    ledger: Ledger = Ledger()

    @property
    def head(self) -> SnapshotId | None:
        """The state as it is now; None before any exists."""
        return SnapshotId(self.step, self.lineage[-1][0]) if self.lineage else None

    def term_of(self, order: int) -> int | None:
        """Return the term in which an order was given; None for an order that the journal doesn't know."""
        if not 0 < order <= self.orders:
            return None
        return next((term for term, before in reversed(self.terms) if before < order), None)
