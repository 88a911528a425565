"""`advance(state, line) -> (state, advice)`: the product's judgement, as one pure function.

Three drivers call it and nothing else does: the live brain, the simulator, and the fold of a
recorded journal. It reads no clock, rolls no dice and touches no file; time comes in on the line.
Advice is what it would order now; the brain journals an order before anyone acts on it, and a fold
ignores advice: history wins over judgement.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from surefoot.core import exactness
from surefoot.core import ledger as time
from surefoot.core.events import (
    Asked,
    AttemptJoined,
    AttemptStarted,
    Configured,
    KnobSet,
    Line,
    OrderDone,
    Ordered,
    OrderFailed,
    PhaseEntered,
    Restored,
    RunEnded,
    SaveFailed,
    SnapshotCommitted,
    SnapshotMarked,
    StepDone,
    TermStarted,
    WorkerExited,
)
from surefoot.core.faults import classify
from surefoot.core.numbers import SnapshotId, place_in
from surefoot.core.orders import Mark, Order, Prune, Restart, Rollback, Save, Set, Stop, Write
from surefoot.core.recovery import candidates
from surefoot.core.retention import prunable
from surefoot.core.schedule import past_probation, save_due
from surefoot.core.settings import Settings
from surefoot.core.snapshots import Snapshot, caught_up, find, marked, put
from surefoot.core.state import Attempt, Pending, RunState, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """An order that should be given now, and why."""

    body: Order
    reason: str
    fault: dict[str, Any] | None = None


Advised = tuple[RunState, tuple[Advice, ...]]

_SETTINGS = frozenset(field.name for field in fields(Settings))


def advance(state: RunState, line: Line) -> Advised:
    """Return the state after a line of the journal, and what should be ordered because of it."""
    event = line.event
    if isinstance(event, StepDone):
        return _step_done(state, event, line)
    state = replace(state, seq=line.seq, at_ns=line.at_ns, heard=_heard(state, line))
    match event:
        case Ordered():
            pending = (*state.pending, Pending(order=event.order, body=event.body, reason=event.reason))
            state = replace(state, orders=event.order, pending=pending)
            if isinstance(event.body, Save):
                state = replace(state, saved_ns=state.at_ns, saved_step=max(state.saved_step, state.step))
            return state, ()
        case OrderDone() | OrderFailed():
            return _order_over(state, event), ()
        case SnapshotCommitted():
            return _committed(state, event)
        case SnapshotMarked():
            return _marked(state, event), ()
        case SaveFailed():
            return replace(state, save_failures=event.in_a_row), ()
        case KnobSet():
            return replace(state, knobs={**state.knobs, event.name: event.value}), ()
        case PhaseEntered():
            return replace(state, phase=event.phase), ()
        case Asked():
            return _asked(state, event)
        case TermStarted():
            return _term_started(state, event), ()
        case Configured():
            return _configured(state, event), ()
        case AttemptStarted():
            return _attempt_started(state, event), ()
        case AttemptJoined():
            joined = replace(state.attempt, phase="joined")
            return replace(state, attempt=joined, joined=event, accepted=()), ()
        case Restored():
            return _restored(state, event)
        case WorkerExited():
            return _worker_exited(state, event)
        case RunEnded():
            ended = replace(state.attempt, phase="ended")
            # After its last turn a run waits for its last save.
            clock = time.charge(time.instead_of_step(state.ledger, "stall"), state.at_ns, "away")
            finished = (state.step, state.settings.steps) if event.word == "finished" else state.finished
            return replace(state, ended=event, finished=finished, attempt=ended, ledger=clock), ()
        case _:
            return state, ()


def _heard(state: RunState, line: Line) -> dict[str, int]:
    if line.origin is None:
        return state.heard
    rank, n = line.origin
    return {**state.heard, str(rank): n}


def _step_done(state: RunState, event: StepDone, line: Line) -> Advised:
    session = state.session or Session(step=event.step, end_ns=event.end_ns)
    clock, catalogue = time.step(state.ledger, event), state.catalogue
    if state.attempt.phase == "ended":
        # The line of a rank that hadn't heard yet: what passes from here on is the restart's as before.
        clock = replace(clock, where=state.ledger.where)
    if event.step < state.saved_step:
        # Turns lag behind by an agreed vector: what they led to can be durable before they are on record.
        catalogue = caught_up(catalogue, event.branch, event.step, clock.kept_ns - state.ledger.kept_ns)
    state = replace(
        state,
        seq=line.seq,
        at_ns=line.at_ns,
        heard=_heard(state, line),
        step=event.step + 1,
        batch=event.batch,
        sample=event.sample,
        last=event,
        phase="",
        finished=None,
        session=session,
        exactness=exactness.observed(state.exactness, event.step, event.loss),
        catalogue=catalogue,
        ledger=clock,
    )
    advice = [
        Advice(body=Mark(snapshot=id, mark="good"), reason=_probation(id, state.settings.probation_steps))
        for id in past_probation(state)
        if not _under_way(state, Mark, id)
    ]
    why = save_due(state)
    if why is not None and not _under_way(state, Save):
        advice.append(Advice(body=Save(why=why), reason=f"a durable checkpoint is due: {why}"))
    return state, tuple(advice)


def _probation(id: SnapshotId, steps: int) -> str:
    return "the beginning counts as good" if id.step == 0 else f"no alarm for {steps} steps after it"


def _order_over(state: RunState, event: OrderDone | OrderFailed) -> RunState:
    over = [pending.body for pending in state.pending if pending.order == event.order]
    pending = tuple(pending for pending in state.pending if pending.order != event.order)
    state = replace(state, pending=pending)
    if over and isinstance(event, OrderDone) and isinstance(over[0], Rollback) and over[0].skip is not None:
        first, last, _ = over[0].skip
        state = replace(state, skips=tuple(sorted((*state.skips, (first, last)))))
    return state


def _committed(state: RunState, event: SnapshotCommitted) -> Advised:
    id = SnapshotId(event.step, event.branch)
    known = find(state.catalogue, id)
    kept_ns = known.kept_ns if known else time.kept_at(state.ledger, event.step)
    tiers = tuple(sorted({event.tier, *(known.tiers if known else ())}))
    mark = "suspect" if id in state.suspects else known.mark if known else ""
    snapshot = Snapshot(
        id=id,
        tiers=tiers,
        bytes=event.bytes,
        at_ns=state.at_ns,
        mark=mark,
        pinned=known.pinned if known else False,
        kept_ns=kept_ns,
    )
    state = replace(state, catalogue=put(state.catalogue, snapshot), commits=state.commits + 1, save_failures=0)
    if place_in(state.lineage, id) is not None:
        # Memory may hold older ones yet, which no line tells of: their turns are still needed.
        in_memory = state.settings.slots * state.settings.stage_every_steps
        state = replace(
            state,
            saved_ns=state.at_ns,
            saved_step=max(state.saved_step, event.step),
            ledger=time.settle(state.ledger, event.step - in_memory),
        )
    advice = [
        Advice(
            body=Prune(snapshot=old), reason=f"more than keep = {state.settings.keep} newer ones are durable"
        )
        for old in prunable(state.catalogue, state.lineage, state.settings.keep)
        if not _under_way(state, Prune, old)
    ]
    return state, tuple(advice)


def _marked(state: RunState, event: SnapshotMarked) -> RunState:
    id = SnapshotId(event.step, event.branch)
    suspects = state.suspects
    if event.mark == "suspect" and id not in suspects:
        suspects = (*suspects, id)
    elif event.mark == "good":
        suspects = tuple(other for other in suspects if other != id)
    return replace(state, catalogue=marked(state.catalogue, id, event.mark), suspects=suspects)


def _term_started(state: RunState, event: TermStarted) -> RunState:
    clock = state.ledger if state.term else time.begin(state.ledger, state.at_ns)
    if state.attempt.phase in ("none", "ended"):
        clock = time.charge(clock, state.at_ns, "start_up")
    terms = (*state.terms, (event.term, state.orders))
    return replace(state, term=event.term, term_began_ns=state.at_ns, terms=terms, ledger=clock)


def _configured(state: RunState, event: Configured) -> RunState:
    values = {key: pair[0] for key, pair in event.settings.items()}
    ours = {key: value for key, value in values.items() if key in _SETTINGS}
    theirs = {key: value for key, value in values.items() if key not in _SETTINGS}
    return replace(
        state,
        settings=replace(state.settings, **ours),
        origins={**state.origins, **{key: str(pair[1]) for key, pair in event.settings.items()}},
        declared={**state.declared, **theirs},
    )


def _attempt_started(state: RunState, event: AttemptStarted) -> RunState:
    attempt = Attempt(
        number=event.attempt,
        world_size=event.world_size,
        nodes=event.nodes,
        restore=event.restore,
        order=event.order,
        phase="started",
        started_ns=state.at_ns,
    )
    then = "start_up" if event.restore is None else "restart:restore"
    return replace(
        state,
        attempt=attempt,
        heard={},
        session=None,
        ended=None,
        ledger=time.charge(state.ledger, state.at_ns, then),
    )


def _restored(state: RunState, event: Restored) -> Advised:
    source = state.attempt.restore
    used = SnapshotId(event.step, event.lineage[-2][0]) if len(event.lineage) > 1 else None
    snapshot = find(state.catalogue, used) if used is not None else None
    if state.attempt.phase == "running":
        clock = time.charge(time.instead_of_step(state.ledger, "rollback"), state.at_ns, "step")
    else:
        then = "start_up" if event.tier is None else "restart:first_step"
        clock = time.charge(state.ledger, state.at_ns, then)
    clock = time.rewind(clock, event.step, snapshot.kept_ns if snapshot else None)
    tries = {name: n for name, n in state.tries.items() if source is None or name != _name(source)}
    state = replace(
        state,
        attempt=replace(state.attempt, phase="running"),
        lineage=event.lineage,
        branches=max(state.branches, event.branch),
        step=event.step,
        batch=event.batch,
        sample=event.sample,
        session=None,
        last=None,
        exactness=exactness.restored(state.exactness, event.step),
        fault=None,
        tries=tries,
        ledger=clock,
        saved_step=min(state.saved_step, event.step),
        saved_ns=state.at_ns,
    )
    failed = {
        SnapshotId(over["step"], over["branch"]): str(over["why"])
        for over in event.passed_over
        if "branch" in over
    }
    advice = [
        Advice(body=Mark(snapshot=id, mark="suspect"), reason=why)
        for id, why in failed.items()
        # One copy was bad, and the other was restored: marks hold for all copies.
        if id not in state.suspects and id != used
    ]
    if event.tier is None:
        beginning = SnapshotId(event.step, event.branch)
        advice.append(Advice(body=Write(snapshot=beginning), reason="the state at step 0 is always saved"))
    return state, tuple(advice)


def _worker_exited(state: RunState, event: WorkerExited) -> Advised:
    attempt = state.attempt
    if attempt.phase in ("none", "ended"):
        return state, ()
    # The first exit condemns the group; those after it are symptoms.
    fault = classify(event, state.step)
    clock = state.ledger
    if state.term_began_ns > clock.mark_ns:
        clock = time.charge(replace(clock, where="away"), state.term_began_ns, "start_up")
    clock = time.charge(replace(clock, where="detect"), state.at_ns, "restart:spawn")
    tries = state.tries
    loading = attempt.phase != "running" and attempt.restore is not None and event.error is None
    if loading and attempt.restore is not None:
        tries = {**tries, _name(attempt.restore): tries.get(_name(attempt.restore), 0) + 1}
    state = replace(state, attempt=replace(attempt, phase="ended"), fault=fault, tries=tries, ledger=clock)
    where = f"rank {event.rank} at step {state.step:,}"
    advice = []
    if attempt.phase == "running":
        advice.append(Advice(body=Write(), reason=f"the attempt ended ({fault.signature}, {where})"))
    elif loading and attempt.restore is not None:
        count = tries[_name(attempt.restore)]
        if count >= state.settings.restore_tries_max and _has_another(state, attempt.restore):
            reason = f"{count} attempts died while loading it"
            advice.append(Advice(body=Mark(snapshot=attempt.restore, mark="suspect"), reason=reason))
    if not _under_way(state, Restart):
        reason = f"{fault.kind}: {fault.signature}, {where}"
        advice.append(Advice(body=Restart(), reason=reason, fault=asdict(fault)))
    return state, tuple(advice)


def _has_another(state: RunState, id: SnapshotId) -> bool:
    """Tell whether there is another snapshot to go on from: the last one is tried however often that fails."""
    usable = candidates(state.lineage, state.catalogue, (), branch=state.branches + 1, suspects=state.suspects)
    return any(candidate.id != id for candidate in usable)


def _asked(state: RunState, event: Asked) -> Advised:
    try:
        return _answer(state, event)
    except (KeyError, TypeError, ValueError, OverflowError):
        # Anybody may leave a request. One that can't be understood is on record and moves nothing: if it
        # ended the brain, it would end the next one as well.
        return state, ()


def _answer(state: RunState, event: Asked) -> Advised:
    """Return what a request leads to; raises what reading it raises if it makes no sense."""
    who, args = event.who, event.args
    if event.do == "start":
        if _under_way(state, Restart):
            return state, ()
        return state, (Advice(body=Restart(), reason=f"started by {who}"),)
    if event.do == "save":
        return state, (Advice(body=Save(why=f"asked by {who}"), reason=f"asked by {who}"),)
    if event.do == "write":
        write = Write(snapshot=SnapshotId(int(args["step"]), int(args["branch"])))
        return state, (Advice(body=write, reason=f"asked by {who}"),)
    if event.do == "set":
        body = Set(name=str(args["name"]), value=args["value"])
        if body.name == "stage_every" and int(body.value) < 1:
            raise ValueError("staging every 0 steps would end the ranks, and the next ones, and the next")
        return state, (Advice(body=body, reason=str(args.get("why") or f"asked by {who}")),)
    if event.do == "stop":
        why = str(args.get("why") or f"asked by {who}")
        word, code = str(args.get("word", "stopped")), int(args.get("exit_code", 83))
        return state, (Advice(body=Stop(word=word, exit_code=code, why=why), reason=why),)
    if event.do == "accept_change":
        return replace(state, accepted=tuple(sorted({*state.accepted, *map(str, args["keys"])}))), ()
    return state, ()


def _under_way(state: RunState, kind: type[Order], id: SnapshotId | None = None) -> bool:
    return any(
        isinstance(pending.body, kind) and (id is None or getattr(pending.body, "snapshot", None) == id)
        for pending in state.pending
    )


def _name(id: SnapshotId) -> str:
    return f"{id.step}.{id.branch}"
