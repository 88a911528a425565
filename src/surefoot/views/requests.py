"""What came of a request: read off the lines that follow it, so that the answer is what is on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.core.events import (
    Asked,
    Event,
    Line,
    Noted,
    OrderDone,
    Ordered,
    OrderFailed,
    RunEnded,
    SnapshotCommitted,
)


@dataclass(frozen=True, slots=True)
class Came:
    """The end of a request."""

    well: bool
    """Whether what was asked for was done."""
    text: str


def asked_at(lines: Sequence[Line], id: str) -> int | None:
    """Return the place of the line that puts a request on record."""
    found = (place for place, line in enumerate(lines) if isinstance(line.event, Asked) and line.event.id == id)
    return next(found, None)


def came_of(lines: Sequence[Line], id: str, request: Mapping[str, Any], *, live: bool = True) -> Came | None:
    """Return what came of a request, from the lines since it was left; None while that is open.

    Without `live` ranks a knob is as good as set once it is ordered: the next start takes it up.
    """
    do, args = str(request["do"]), request["args"]
    if do == "note":
        noted = Noted(text=str(args["text"]), who=str(request["who"]))
        return Came(True, "on record") if any(line.event == noted for line in lines) else None
    place = asked_at(lines, id)
    if place is None:
        return None
    if do == "accept_change":
        return Came(True, f"accepted for the next start: {', '.join(args['keys'])}")
    # The brain orders in the same breath; the line after may still be on its way to the disk.
    follows = [line.event for line in lines[place + 1 :]]
    if not follows:
        return None
    ordered = follows[0]
    if not isinstance(ordered, Ordered):
        return Came(False, "it is on record, and this run's agent ordered nothing because of it")
    if do == "set" and not live:
        return Came(True, f"{args['name']} = {args['value']!r} from its next start on")
    came = _of_order(follows[1:], ordered.order, do)
    if came is not None and came.well and do == "set" and str(args["name"]) not in came.text:
        return Came(True, f"{args['name']} = {args['value']!r} {came.text}")
    return came


def _of_order(events: Sequence[Event], order: int, do: str) -> Came | None:
    saved, left = None, None
    for event in events:
        match event:
            case SnapshotCommitted(step=step):
                saved = step
            case OrderFailed(order=number, outcome=outcome) if number == order:
                return Came(False, outcome)
            case OrderDone(order=number, outcome=outcome) if number == order:
                if do != "stop":
                    return Came(
                        True, f"saved step {saved:,}" if do == "save" and saved is not None else outcome
                    )
                left = outcome
            case RunEnded(word=word):
                if do == "stop":
                    return Came(True, f"{word}: {left}" if left else f"the run has ended: {word}")
                return Came(
                    False, f"the run ended ({word}) before that; order {order} stands for its next start"
                )
            case _:
                pass
    return None
