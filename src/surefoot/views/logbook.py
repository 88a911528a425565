"""The logbook: what a careful engineer would have written down, from the journal's lines.

One entry per happening worth telling; turns are summed up over each stretch in which nothing stopped
them, and periodic saves are counted there. What a person or a script asked for is told by what came of it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from surefoot.core import exactness
from surefoot.core.events import (
    Asked,
    AttemptJoined,
    AttemptStarted,
    Configured,
    Line,
    OrderDone,
    Ordered,
    OrderFailed,
    Restored,
    RunEnded,
    SnapshotCommitted,
    StepDone,
    TermStarted,
    WorkerExited,
)
from surefoot.core.exactness import Exactness
from surefoot.core.orders import HOST, Exclude, Pause, Resume, Rollback, Save, ScaleLr, Write
from surefoot.views.remarks import CHANGE, FAULT, ORDER, WARNING, cause, of_change, remark, sentence
from surefoot.views.words import duration, local, many, number, of_order, size

START, STEPS, SAVE, END = "start", "steps", "save", "end"
"""Kinds of entries, beside those of remarks."""

_STRETCH_NS = 24 * 3600 * 1_000_000_000
"""A longer stretch is told day by day."""

_POLICY = (Rollback, ScaleLr, Exclude, Pause, Resume)
"""Orders that are told when they are given; of the others the outcome is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One happening."""

    seq: int
    """Of the journal's line that tells it."""
    at_ns: int
    attempt: int
    step: int
    """Turns that the head held then."""
    kind: str
    text: str


def logbook(lines: Iterable[Line]) -> tuple[Entry, ...]:
    """Return the entries, oldest first."""
    book = _Book()
    for line in lines:
        book.take(line)
    book.close_stretch()
    # A stretch is told when it is over, and stands where its last turn does.
    return tuple(sorted(book.entries, key=lambda entry: entry.seq))


def since(entries: Sequence[Entry], *, step: int = 0, at_ns: int = 0) -> tuple[Entry, ...]:
    """Return the entries from the first one that is at `step` or later, and not before `at_ns`."""
    first = next((place for place, entry in enumerate(entries) if entry.step >= step), len(entries))
    return tuple(entry for entry in entries[first:] if entry.at_ns >= at_ns)


def paragraph(entry: Entry, width: int | None = None) -> list[str]:
    """Return an entry's lines: local time, attempt, step and text; without a width all in one line."""
    begin = f"{local(entry.at_ns):%Y-%m-%d %H:%M:%S}  #{entry.attempt:<3} {entry.step:>9,}  "
    if width is None:
        return [begin + entry.text]
    # The date stands in a heading of its own (`days`).
    begin = begin[11:]
    room = max(20, width - len(begin))
    first, *rest = textwrap.wrap(entry.text, room, break_on_hyphens=False) or [""]
    return [begin + first, *(" " * len(begin) + line for line in rest)]


def days(entries: Iterable[Entry]) -> Iterable[tuple[str, list[Entry]]]:
    """Yield the entries of each local day under its name."""
    together: dict[str, list[Entry]] = {}
    for entry in entries:
        together.setdefault(f"{local(entry.at_ns):%A %d %B %Y}", []).append(entry)
    return together.items()


@dataclass(slots=True)
class _Stretch:
    """Turns done one after the other."""

    first: StepDone
    last: StepDone
    line: Line
    """Of the last turn."""
    turns: int = 0
    dropped: int = 0
    saves: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    lowest: tuple[float, int] | None = None
    """(loss, step)."""

    def add(self, line: Line, event: StepDone) -> None:
        self.last, self.line = event, line
        self.turns += 1
        self.dropped += event.dropped
        if event.loss is None:
            return
        self.first_loss = event.loss if self.first_loss is None else self.first_loss
        self.last_loss = event.loss
        if self.lowest is None or event.loss < self.lowest[0]:
            self.lowest = (event.loss, event.step)

    def text(self) -> str:
        span_ns = self.last.end_ns - self.first.end_ns
        each = f", {duration(span_ns / (self.turns - 1) / 1e9)} each" if self.turns > 1 else ""
        first, last = f"{self.first.step:,}", f"{self.last.step:,}"
        names = f"Steps {first} to {last}" if self.turns > 1 else f"Step {last}"
        parts = [f"{names} ({many(self.turns, 'turn')}{each})"]
        if self.lowest is not None:
            low, at = self.lowest
            parts.append(f": loss {number(self.first_loss)} → {number(self.last_loss)}")
            if low != self.last_loss:
                parts.append(f", lowest {number(low)} at {at:,}")
        if self.dropped:
            parts.append(f"; {many(self.dropped, 'update')} dropped")
        if self.saves:
            parts.append(f"; {many(self.saves, 'periodic checkpoint')}")
        return "".join(parts) + "."


@dataclass(slots=True)
class _Book:
    """Where the telling is: what an entry needs of the lines before its own."""

    entries: list[Entry] = field(default_factory=list)
    attempt: int = 0
    step: int = 0
    running: bool = False
    """Between a restore and whatever ended the attempt."""
    stretch: _Stretch | None = None
    started: AttemptStarted | None = None
    joined: AttemptJoined | None = None
    starter: str = ""
    down: tuple[int, str] | None = None
    """Since when nothing has been trained, and after what."""
    orders: dict[int, Ordered] = field(default_factory=dict)
    """Without an outcome so far."""
    saved: bool = False
    """Whether any checkpoint is on record."""
    settings: dict[str, Any] = field(default_factory=dict)
    exactness: Exactness = field(default_factory=Exactness)
    takeover: Line | None = None
    """Another agent's term, until a turn tells that the ranks lived on."""

    def take(self, line: Line) -> None:
        """Take in the next line of the journal."""
        match line.event:
            case StepDone() as event:
                self._turn(line, event)
            case AttemptStarted() as event:
                self.attempt, self.started, self.takeover = event.attempt, event, None
            case AttemptJoined() as event:
                self.joined = event
            case Restored() as event:
                self._restored(line, event)
            case WorkerExited() as event:
                self._exited(line, event)
            case RunEnded() as event:
                self.close_stretch()
                why = f", {event.reason}" if event.reason else ""
                code = f" (exit code {event.exit_code})" if event.exit_code is not None else ""
                self._tell(line, END, f"The run ended: {event.word}{why}{code}.")
                self.running, self.started, self.down = False, None, (line.at_ns, event.word)
            case TermStarted():
                self.takeover = line if self.running else None
            case Configured() as event:
                self._configured(line, event)
            case Ordered() as event:
                self.orders[event.order] = event
                if isinstance(event.body, _POLICY):
                    self._tell(line, ORDER, f"Ordered: {of_order(event.body)}. {sentence(event.reason)}")
            case OrderDone() as event:
                self.orders.pop(event.order, None)
            case OrderFailed() as event:
                order = self.orders.pop(event.order, None)
                what = of_order(order.body) if order is not None else f"order {event.order}"
                why = f" ({order.reason})" if order is not None else ""
                self._tell(line, FAULT, f"Could not {what}{why}: {sentence(event.outcome)}")
            case SnapshotCommitted() as event:
                self._committed(line, event)
            case Asked(do="start", who=who):
                self.starter = who
            case _ if (told := remark(line.event)) is not None:
                self._tell(line, *told)

    def close_stretch(self) -> None:
        """Tell the turns so far."""
        if self.stretch is None:
            return
        text = self.stretch.text()
        if self.started is not None and self.started.restore is not None and self.joined is not None:
            compared = exactness.word(self.exactness, str(self.joined.data.get("level", "exact")))
            if self.exactness.equal or self.exactness.differs_at is not None:
                text += f" {sentence(f'Against what was computed before the restart: {compared}')}"
                self.exactness = Exactness(trail=self.exactness.trail)
        line, self.stretch = self.stretch.line, None
        self._tell(line, STEPS, text)

    def _tell(self, line: Line, kind: str, text: str) -> None:
        self.entries.append(
            Entry(seq=line.seq, at_ns=line.at_ns, attempt=self.attempt, step=self.step, kind=kind, text=text)
        )

    def _turn(self, line: Line, event: StepDone) -> None:
        if self.takeover is not None:
            self._tell(self.takeover, WARNING, "Another agent took over; the ranks had trained on.")
            self.takeover = None
        if self.stretch is None:
            self.stretch = _Stretch(event, event, line)
        self.stretch.add(line, event)
        self.step = event.step + 1
        self.exactness = exactness.observed(self.exactness, event.step, event.loss)
        if event.end_ns - self.stretch.first.end_ns >= _STRETCH_NS:
            self.close_stretch()

    def _restored(self, line: Line, event: Restored) -> None:
        self.close_stretch()
        joined, started = self.joined, self.started
        again, self.step, self.running = self.step - event.step, event.step, True
        self.exactness = exactness.restored(self.exactness, event.step)
        order = self.orders.get(event.order) if event.order is not None else None
        if order is not None and isinstance(order.body, Rollback):
            self._tell(line, START, f"Rolled back to step {event.step:,} in {duration(event.took_ns / 1e9)}.")
            return
        ranks = many(started.world_size, "rank") if started is not None else "ranks"
        nodes = f" on {', '.join(started.nodes)}" if started is not None and started.nodes else ""
        code = joined.code if joined is not None else {}
        script = f", {PurePath(code['script']).name}" if code.get("script") else ""
        by = f", started by {self.starter}" if self.starter else ""
        who = f"{ranks}{nodes}{script}{by}"
        if event.tier is None:
            parts = [f"Attempt {self.attempt} starts at step {event.step:,}: {who}."]
        else:
            source = ("memory" if event.tier == HOST else event.tier.lower()) + self._down(line)
            parts = [f"Attempt {self.attempt} resumes at step {event.step:,} from {source}: {who}."]
        if again > 0:
            parts.append(f"{many(again, 'step')} after it will be done again.")
        for over in event.passed_over:
            parts.append(f"Passed over {over.get('what')}: {sentence(str(over.get('why')))}")
        if joined is not None and joined.changed:
            parts.append(f"Changed: {sentence('; '.join(map(of_change, joined.changed)))}")
        self._tell(line, START, " ".join(parts))
        self.down, self.starter = None, ""

    def _down(self, line: Line) -> str:
        if self.down is None:
            return ""
        since_ns, after = self.down
        return f", {duration((line.at_ns - since_ns) / 1e9)} after {after}"

    def _exited(self, line: Line, event: WorkerExited) -> None:
        """Tell the first exit of an attempt; those after it are its symptoms."""
        if self.started is None:
            return
        self.close_stretch()
        loading = "" if self.running else " while it was starting"
        self._tell(line, FAULT, f"Rank {event.rank} on {event.node} {cause(event)}{loading}.")
        self.running, self.started, self.down, self.takeover = False, None, (line.at_ns, "the fault"), None

    def _configured(self, line: Line, event: Configured) -> None:
        before, self.settings = self.settings, {**self.settings, **event.settings}
        # What a run begins with is no change, and what its script declares is told where it resumes.
        changed = []
        for key, (value, where) in event.settings.items():
            new = before[key][0] != value if key in before else self.attempt > 0 and key != "steps"
            if new and where != "script":
                changed.append(f"{key} = {value!r} (from {where})")
        if changed:
            self._tell(line, CHANGE, f"Settings: {', '.join(changed)}.")

    def _committed(self, line: Line, event: SnapshotCommitted) -> None:
        order = max(self.orders.values(), key=lambda order: _fits(order, event), default=None)
        if order is None or not _fits(order, event):
            why = "found on disk, committed before that could be told"
        elif isinstance(order.body, Save) and order.body.why.startswith("every ") and self.saved:
            if self.stretch is not None:
                self.stretch.saves += 1
            return
        else:
            why = order.reason
        self.saved = True
        took = f" in {duration(event.write_ns / 1e9)}" if event.write_ns else ""
        what = f"{size(event.bytes)} to {event.tier.lower()}{took}"
        self._tell(line, SAVE, f"Step {event.step:,} is durable: {what}; {sentence(why)}")


def _fits(order: Ordered, event: SnapshotCommitted) -> int:
    """Say how well an order explains a commit; 0 is not at all."""
    match order.body:
        case Write(snapshot=snapshot, tier=event.tier) if snapshot is not None:
            return 3 * ((snapshot.step, snapshot.branch) == (event.step, event.branch))
        case Write(tier=event.tier):
            return 2
        case Save(tiers=tiers):
            return int(event.tier in tiers)
        case _:
            return 0
