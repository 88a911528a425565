"""Where the time went: every nanosecond of a run has exactly one account (formats §9).

Time is charged line by line: what passed since the last mark goes to the account the run was in.
A finished step is *provisional*: if a later restore goes behind it, its time moves from `step` to
`lost`. Steps behind the newest durable checkpoint are remembered one by one, those before it only
by the running total that the checkpoint carries (`kept_ns`), so the ledger stays small for ever.

Invariant: the accounts sum to the time between the run's first line and its newest mark.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from surefoot.core.events import StepDone

OUTSIDE = ("queue", "away")
"""Accounts outside held time."""

FIRST_TURN = ("start_up", "restart:first_step")
"""Where an attempt's first turn is charged: of a fresh start, and of one that restored something."""

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Ledger:
    """The accounts so far, in ns."""

    begin_ns: int = 0
    mark_ns: int = 0
    """Up to here all time is charged."""
    where: str = "start_up"
    """The account that time runs into until the next line says otherwise."""
    accounts: dict[str, int] = field(default_factory=dict)
    kept_ns: int = 0
    """Step time of the head's lineage, each turn once."""
    blocks: tuple[tuple[tuple[int, int], ...], ...] = ()
    """(step, ns) of provisional turns, oldest first, in full blocks: appending copies little."""
    recent: tuple[tuple[int, int], ...] = ()
    """The newest provisional turns, not yet a block."""

    @property
    def held_ns(self) -> int:
        """Time in which the run held its nodes."""
        return sum(ns for name, ns in self.accounts.items() if name not in OUTSIDE)

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio: kept step time over held time; None before any time passed."""
        held = self.held_ns
        return self.kept_ns / held if held > 0 else None


def begin(ledger: Ledger, at_ns: int) -> Ledger:
    """Start the clock of a new run."""
    return replace(ledger, begin_ns=at_ns, mark_ns=at_ns)


def charge(ledger: Ledger, at_ns: int, then: str | None = None) -> Ledger:
    """Charge the time up to `at_ns` to where the run was, and go on in the account `then`."""
    passed = at_ns - ledger.mark_ns
    where = ledger.where if then is None else then
    if passed <= 0:
        return ledger if where == ledger.where else replace(ledger, where=where)
    return replace(ledger, accounts=_plus(ledger.accounts, {ledger.where: passed}), mark_ns=at_ns, where=where)


def instead_of_step(ledger: Ledger, where: str) -> Ledger:
    """Charge what passes since the last turn elsewhere: step time is what finished turns took, and no more."""
    return replace(ledger, where=where) if ledger.where == "step" else ledger


def step(ledger: Ledger, event: StepDone) -> Ledger:
    """Charge a finished turn: what it waited for to those accounts, the rest to `step`.

    The parts a rank reports can't exceed the time that passed; what would is cut, in their order.
    """
    left = max(0, event.end_ns - ledger.mark_ns)
    charged: dict[str, int] = {}
    parts = {"data_wait": event.data_ns, "stall": event.stall_ns}
    parts |= {f"phase:{name}": ns for name, ns in event.phase_ns.items()}
    for name, ns in parts.items():
        if part := min(max(0, ns), left):
            charged[name] = charged.get(name, 0) + part
            left -= part
    # An attempt's first turn brings warm-up that no other turn has: it belongs to the start.
    if ledger.where in FIRST_TURN:
        charged[ledger.where] = left
        left = 0
    charged["step"] = left
    recent = (*ledger.recent, (event.step, left))
    blocks = ledger.blocks
    if len(recent) == _BLOCK:
        blocks, recent = (*blocks, recent), ()
    return replace(
        ledger,
        accounts=_plus(ledger.accounts, charged),
        mark_ns=max(ledger.mark_ns, event.end_ns),
        where="step",
        kept_ns=ledger.kept_ns + left,
        blocks=blocks,
        recent=recent,
    )


def kept_at(ledger: Ledger, step: int) -> int:
    """Return the kept step time before turn `step`, if that turn is still remembered one by one."""
    return ledger.kept_ns - _from(ledger, step)


def settle(ledger: Ledger, step: int) -> Ledger:
    """Forget turns before `step` one by one: whatever is restored behind it knows its own kept time."""
    blocks = tuple(block for block in ledger.blocks if block[-1][0] >= step)
    return ledger if len(blocks) == len(ledger.blocks) else replace(ledger, blocks=blocks)


def rewind(ledger: Ledger, step: int, kept_ns: int | None) -> Ledger:
    """Move the time of turns from `step` on to `lost`.

    `kept_ns` is what the restored snapshot carries if it ever was durable; None for one that was in
    memory only: turns from there on are still remembered one by one.
    """
    lost = ledger.kept_ns - kept_ns if kept_ns is not None else _from(ledger, step)
    if lost <= 0 and not ledger.recent and not ledger.blocks:
        return ledger
    kept = [turn for block in (*ledger.blocks, ledger.recent) for turn in block if turn[0] < step]
    whole = len(kept) - len(kept) % _BLOCK
    return replace(
        ledger,
        accounts=_plus(ledger.accounts, {"step": -lost, "lost": lost}) if lost else ledger.accounts,
        kept_ns=ledger.kept_ns - lost,
        blocks=tuple(tuple(kept[i : i + _BLOCK]) for i in range(0, whole, _BLOCK)),
        recent=tuple(kept[whole:]),
    )


def _from(ledger: Ledger, step: int) -> int:
    total = sum(ns for turn, ns in ledger.recent if turn >= step)
    for block in reversed(ledger.blocks):
        if block[-1][0] < step:
            break
        total += sum(ns for turn, ns in block if turn >= step)
    return total


def _plus(accounts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    total = dict(accounts)
    for name, ns in more.items():
        total[name] = total.get(name, 0) + ns
    return total
