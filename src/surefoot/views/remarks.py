"""One event, one sentence: what stands in the logbook for happenings that need no other to be told."""

from __future__ import annotations

import signal
from typing import Any

from surefoot.core.events import (
    Answered,
    Asked,
    ChangeExpected,
    ConditionSeen,
    Event,
    KnobSet,
    ModeSet,
    NodeJoined,
    NodeLost,
    Noted,
    OrderJudged,
    Proposed,
    SaveFailed,
    SignalReceived,
    SnapshotMarked,
    WorkerExited,
    WorkerSilent,
    WouldHave,
)
from surefoot.views.words import duration, of_order

FAULT, WARNING, PERSON, CHANGE, ORDER = "fault", "warning", "person", "change", "order"

_MESSAGE_CHARS = 300


def remark(event: Event) -> tuple[str, str] | None:
    """Return (kind, text), or None for an event that isn't told, or not by itself."""
    match event:
        case Asked(do="accept_change", who=who, args=args):
            return PERSON, f"{who} accepts changes of {', '.join(map(str, args.get('keys', ())))}."
        case Noted(text=text, who=who):
            return PERSON, f"Note by {who or 'somebody'}: {text}"
        case ChangeExpected(text=text, who=who):
            return CHANGE, f"A change of the loss is expected ({who or 'somebody'}): {text}"
        case KnobSet(name=name, value=value, from_step=step, who=who, why=why):
            reason = ", ".join(filter(None, (why, f"by {who}" if who and who not in why else "")))
            return CHANGE, f"{name} = {value!r} from step {step:,} on{f' ({reason})' if reason else ''}."
        case ModeSet(name=name, mode=mode, who=who):
            return CHANGE, f"Mode of {name}: {mode}{f' (by {who})' if who else ''}."
        case SnapshotMarked(step=step, mark=mark, why=why) if mark != "good" and why != "pruned":
            return WARNING, f"Step {step:,} is {mark}{_because(why)}"
        case SaveFailed(step=step, error=error, in_a_row=count):
            return FAULT, f"Saving step {step:,} failed ({count} in a row){_because(error)}"
        case WorkerSilent(node=node, rank=rank, phase=phase, silent_ns=silent, limit_ns=limit):
            within = f"{duration(silent / 1e9)} in {phase} (limit {duration(limit / 1e9)})"
            return FAULT, f"Rank {rank} on {node} made no progress for {within}."
        case NodeJoined(node=node, why=why):
            return CHANGE, f"Node {node} joined{_because(why)}"
        case NodeLost(node=node, why=why):
            return FAULT, f"Node {node} is lost{_because(why)}"
        case SignalReceived(node=node, rank=rank, signal=caught):
            whose = f"Rank {rank}" if rank is not None else "The agent"
            return WARNING, f"{whose} on {node} received {signal_name(caught)}."
        case ConditionSeen(node=node, kind=kind, text=text):
            return WARNING, f"Seen on {node} ({kind}){_because(text)}"
        case WouldHave(body=body, reason=reason):
            return ORDER, f"Would have done: {of_order(body)}{_because(reason)}"
        case Proposed(id=id, body=body, reason=reason):
            return ORDER, f"Proposed as {id}: {of_order(body)}{_because(reason)}"
        case Answered(id=id, answer=answer, who=who):
            return PERSON, f"Proposal {id}: {answer}{f' by {who}' if who else ''}."
        case OrderJudged(order=order, word=word):
            return ORDER, f"What order {order} was for {word}."
        case _:
            return None


def cause(event: WorkerExited) -> str:
    """Return what a rank's exit looked like, as the end of a sentence about it."""
    error = event.error
    if error is not None:
        name, message = error.get("type", "an error"), " ".join(str(error.get("message", "")).split())
        place = str(error.get("signature", "")).partition(" in ")[2]
        said = f": {message[:_MESSAGE_CHARS]}" if message else ""
        return f"failed with {name}{said}{f' (in {place})' if place else ''}"
    if event.signal is not None:
        return f"was ended by {signal_name(event.signal)}"
    if event.code is not None:
        return f"ended with exit code {event.code}"
    return f"was gone without a word{f' ({event.tail.strip()})' if event.tail.strip() else ''}"


def of_change(change: dict[str, Any]) -> str:
    """Return a difference between two starts' scripts."""
    if change.get("key") == "code.hash":
        return "the script"
    return f"{change.get('key')} {change.get('was')!r} → {change.get('now')!r} ({change.get('kind')})"


def sentence(text: str) -> str:
    """Return a text with a full stop, unless it ends one already."""
    text = text.strip()
    return text if not text or text[-1] in ".!?…" else f"{text}."


def signal_name(number: int) -> str:
    """Return `SIGTERM` for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _because(why: str) -> str:
    return f": {sentence(why)}" if why else "."
