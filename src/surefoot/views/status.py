"""The state of a run on one page: a word for it, from evidence, and what a person would ask next.

A pure function of the fold, the journal's newest lines, and what can be seen of the run's processes.
The word never rests on what somebody meant to write: a run whose processes are gone is *lost*, whatever
its last line says. Rates and the time left come from the running attempt alone (case D31); what is of
the whole run (accounts, ETTR) stands apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from surefoot.core import exactness
from surefoot.core.events import (
    AttemptJoined,
    AttemptStarted,
    ConditionSeen,
    Line,
    PhaseEntered,
    Restored,
    RunEnded,
    SnapshotCommitted,
    StepDone,
    WorkerExited,
)
from surefoot.core.ledger import Ledger
from surefoot.core.numbers import newness, place_in
from surefoot.core.orders import DISK, Restart
from surefoot.core.snapshots import Snapshot
from surefoot.core.state import RunState
from surefoot.views.words import duration, many, of_order

RUNNING, FAILED, LOST, STOPPED = "running", "failed", "lost", "stopped"
"""The words that are derived here; every other one is that of the run's own end."""

GRACE_NS = 3_000_000_000
"""Three beats. A rank whose agent died finds or starts another well within; until then nothing is lost."""

_OVERDUE = 2.0
"""A durable checkpoint that is older than so many of its intervals is worth a warning."""

_UNATTRIBUTED_MAX = 0.05
"""The part of the held time that may be in no account before a warning."""

_OF_TRAINING = (AttemptStarted, AttemptJoined, Restored, StepDone, PhaseEntered, SnapshotCommitted)
"""Signs of life of the ranks: a person's note on a dead run is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What can be seen of the run's processes from where the reader is."""

    evidence: str = "none"
    """Of the newest term's holder: none (nobody ever held it), ended (gave it back), alive, stopped (by a
    signal), gone, or silent (out of sight, and its counter stands still)."""
    node: str = ""
    pid: int = 0
    live: bool | None = None
    """Whether ranks are training or about to, as the agent says; None where none answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Names a state: equal hashes at one seq are equal states."""

    seq: int
    hash: str
    source: str
    """agent (its live state) or files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """The newest checkpoint that a new attempt could begin from if the machine were lost now."""

    step: int
    branch: int
    bytes: int
    at_ns: int
    age_s: float
    mark: str
    """good, or on probation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Work that would have to be done again."""

    steps: int
    time_s: float | None
    """Of training, as it took; None where the attempt has shown no rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOrder:
    """An order without an outcome."""

    order: int
    do: str
    words: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The newest start of the worker group."""

    number: int
    world_size: int
    nodes: tuple[str, ...]
    exactness: str | None
    """How exactly it came back; None for one that began at step 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What `surefoot status` shows."""

    name: str
    run: str
    word: str
    detail: str
    since_ns: int | None
    now_ns: int
    step: int
    steps: int | None
    """What the loop was asked for; None where that isn't known."""
    steps_per_s: float | None
    """Of this attempt alone; None unless it is running and has done two steps."""
    left_s: float | None
    loss: float | None
    grad_norm: float | None
    lr: float | None
    phase: str
    attempt: Attempt | None
    durable: Durable | None
    machine_loss: Cost
    """What a loss of the machine would cost now."""
    crash: Cost | None
    """What a crash of the workers costs at most: the cadence of memory snapshots; None unless running."""
    save_failures: int
    """In a row."""
    pending: tuple[PendingOrder, ...]
    knobs: dict[str, Any]
    changed: tuple[dict[str, Any], ...]
    """How this attempt's script differs from the one before: {key, was, now, kind}."""
    skips: tuple[tuple[int, int], ...]
    ettr: float | None
    held_ns: int
    accounts: dict[str, int]
    """Account → ns; with `unattributed` they sum to the time from the first line to `accounted_ns`."""
    accounted_ns: int
    warnings: tuple[str, ...] = ()
    fold: Fold | None = field(default=None)


def status(
    state: RunState,
    lines: Sequence[Line],
    signs: Signs,
    now_ns: int,
    *,
    name: str,
    run: str,
    fold: Fold | None = None,
) -> Status:
    """Return the status; `lines` are the journal's newest, back to the attempt's end where it has one."""
    word, detail, since_ns = judge(state, lines, signs, now_ns)
    last, attempt = state.last, state.attempt
    rate = _rate(state) if word == RUNNING else None
    steps = state.settings.steps
    left_s = (steps - state.step) / rate if rate and steps is not None and steps >= state.step else None
    newest = _newest_durable(state)
    every = state.settings.stage_every_steps
    unsaved_ns = state.ledger.kept_ns - (newest.kept_ns if newest is not None else 0)
    return Status(
        name=name,
        run=run,
        word=word,
        detail=detail,
        since_ns=since_ns,
        now_ns=now_ns,
        step=state.step,
        steps=steps,
        steps_per_s=rate,
        left_s=left_s,
        loss=last.loss if last is not None else None,
        grad_norm=last.grad_norm if last is not None else None,
        lr=last.lr if last is not None else None,
        phase=state.phase,
        attempt=_attempt(state) if attempt.number else None,
        durable=_durable(newest, now_ns) if newest is not None else None,
        machine_loss=Cost(
            steps=max(0, state.step - (newest.id.step if newest is not None else 0)),
            time_s=max(0, unsaved_ns) / 1e9,
        ),
        crash=Cost(steps=every, time_s=every / rate if rate else None) if word == RUNNING else None,
        save_failures=state.save_failures,
        pending=tuple(
            PendingOrder(order=p.order, do=p.body.DO, words=of_order(p.body), reason=p.reason)
            for p in state.pending
        ),
        knobs=dict(state.knobs),
        changed=state.joined.changed if state.joined is not None else (),
        skips=state.skips,
        ettr=state.ledger.ettr,
        held_ns=state.ledger.held_ns,
        accounts=accounts(state.ledger),
        accounted_ns=state.ledger.mark_ns,
        warnings=tuple(_warnings(state, lines, signs, word, newest, now_ns)),
        fold=fold,
    )


def judge(state: RunState, lines: Sequence[Line], signs: Signs, now_ns: int) -> tuple[str, str, int | None]:
    """Return the word, why, and since when it holds (None where `lines` don't reach back to that)."""
    attempt, here = state.attempt, signs.evidence in ("alive", "stopped")
    if state.ended is not None:
        return state.ended.word, state.ended.reason, _newest(lines, RunEnded)
    if attempt.phase == "none":
        if here:
            return RUNNING, "the first attempt is about to start", state.term_began_ns or None
        if signs.evidence in ("gone", "silent"):
            return LOST, "its processes ended before anything was trained", state.at_ns or None
        return STOPPED, "nothing has been trained yet", state.at_ns or None
    if attempt.phase == "ended":
        why = state.fault.signature if state.fault is not None else "its ranks are gone"
        waiting = any(isinstance(pending.body, Restart) for pending in state.pending) and here
        return FAILED, f"{why}; waiting to be started again" if waiting else why, _newest(lines, WorkerExited)
    heard_ns = max(
        (line.at_ns for line in lines if isinstance(line.event, _OF_TRAINING)), default=attempt.started_ns
    )
    if here:
        # An agent that has just taken over has not heard from its ranks yet.
        if signs.live is False and now_ns - state.term_began_ns >= GRACE_NS:
            return FAILED, "its ranks are gone; waiting to be started again", heard_ns
        return RUNNING, _doing(state), attempt.started_ns
    if signs.evidence == "gone" and now_ns - heard_ns < GRACE_NS:
        return RUNNING, "its agent is gone; if the ranks live, they are starting another", attempt.started_ns
    who = f" (pid {signs.pid} on {signs.node})" if signs.evidence != "ended" else ""
    return LOST, f"its agent{who} ended without a word, and nothing has been heard since", heard_ns


def accounts(ledger: Ledger) -> dict[str, int]:
    """Return every account, largest first; what is in none is `unattributed`, last, also when it is 0."""
    named = {name: ns for name, ns in ledger.accounts.items() if ns and name != "unattributed"}
    rest = ledger.mark_ns - ledger.begin_ns - sum(named.values())
    return {**dict(sorted(named.items(), key=lambda item: -item[1])), "unattributed": rest}


def _doing(state: RunState) -> str:
    match state.attempt.phase:
        case "started":
            return "starting"
        case "joined":
            return f"restoring {state.attempt.restore}" if state.attempt.restore is not None else "starting"
        case _ if state.last is None:
            return "in its first step"
        case _:
            return f"in {state.phase}" if state.phase else ""


def _rate(state: RunState) -> float | None:
    session, last = state.session, state.last
    if session is None or last is None or last.step <= session.step or last.end_ns <= session.end_ns:
        return None
    return (last.step - session.step) / (last.end_ns - session.end_ns) * 1e9


def _attempt(state: RunState) -> Attempt:
    word = None
    if state.attempt.restore is not None and state.joined is not None:
        word = exactness.word(state.exactness, str(state.joined.data.get("level", "exact")))
    attempt = state.attempt
    return Attempt(number=attempt.number, world_size=attempt.world_size, nodes=attempt.nodes, exactness=word)


def _newest_durable(state: RunState) -> Snapshot | None:
    usable = [
        snapshot
        for snapshot in state.catalogue
        if DISK in snapshot.tiers
        and snapshot.mark != "suspect"
        and place_in(state.lineage, snapshot.id) is not None
    ]
    return max(usable, key=lambda snapshot: newness(state.lineage, snapshot.id), default=None)


def _durable(snapshot: Snapshot, now_ns: int) -> Durable:
    return Durable(
        step=snapshot.id.step,
        branch=snapshot.id.branch,
        bytes=snapshot.bytes,
        at_ns=snapshot.at_ns,
        age_s=max(0, now_ns - snapshot.at_ns) / 1e9,
        mark=snapshot.mark or "on probation",
    )


def _newest(lines: Sequence[Line], kind: type[RunEnded | WorkerExited]) -> int | None:
    return next((line.at_ns for line in reversed(lines) if isinstance(line.event, kind)), None)


def _warnings(
    state: RunState, lines: Sequence[Line], signs: Signs, word: str, newest: Snapshot | None, now_ns: int
) -> list[str]:
    settings, warnings = state.settings, []
    if signs.evidence == "stopped":
        warnings.append(
            f"its agent (pid {signs.pid} on {signs.node}) is stopped by a signal: nothing is saved or on record"
        )
    elif signs.evidence == "alive" and signs.live is None:
        warnings.append("its agent does not answer from here: this is what the files say")
    if state.last is not None and state.last.loss is not None and not math.isfinite(state.last.loss):
        warnings.append(f"the newest loss is {state.last.loss}")
    if state.save_failures:
        warnings.append(f"the last {many(state.save_failures, 'save')} failed")
    if word == RUNNING and newest is None and state.step:
        warnings.append("no durable checkpoint yet: a loss of the machine would cost the whole run")
    elif word == RUNNING and newest is not None and state.step > newest.id.step:
        age_s = (now_ns - newest.at_ns) / 1e9
        if age_s > _OVERDUE * settings.save_every_s:
            due = f"one is due every {duration(settings.save_every_s)}"
            warnings.append(f"the newest durable checkpoint is {duration(age_s)} old; {due}")
    if settings.slots == 2:
        warnings.append("with two memory slots no snapshot is staged while a checkpoint is written")
    warnings += [f"{id} is suspect and is not restored" for id in state.suspects]
    if accounts(state.ledger)["unattributed"] > _UNATTRIBUTED_MAX * state.ledger.held_ns:
        warnings.append("much of the time is in no account")
    return warnings + _conditions(state, lines)


def _conditions(state: RunState, lines: Sequence[Line]) -> list[str]:
    """Return what was seen of machines and stores in this attempt, each once, the newest three."""
    since = state.attempt.started_ns
    seen = [line.event.text for line in lines if isinstance(line.event, ConditionSeen) and line.at_ns >= since]
    return list(dict.fromkeys(seen))[-3:]
