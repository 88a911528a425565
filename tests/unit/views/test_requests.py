"""What came of a request is read off the journal, and nothing is claimed before it is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from surefoot.core.events import (
    Asked,
    Event,
    KnobSet,
    Line,
    Noted,
    OrderDone,
    Ordered,
    OrderFailed,
    PhaseEntered,
    RunEnded,
    SnapshotCommitted,
)
from surefoot.core.orders import DISK, Order, Save, Set, Stop
from surefoot.views.requests import Came, came_of

ID = "0001-aa"
SAVED = SnapshotCommitted(step=1240, branch=1, tier=DISK, bytes=1)
ENDED = RunEnded(word="stopped", exit_code=83)


def came(do: str, *events: Event, live: bool = True, **args: Any) -> Came | None:
    request = {"who": "anna", "do": do, "args": args}
    lines = [Line(seq, seq, event) for seq, event in enumerate(events, 7)]
    return came_of(lines, ID, request, live=live)


def asked(do: str, body: Order, *then: Event) -> Sequence[Event]:
    return (
        PhaseEntered(phase="eval"),
        Asked(id=ID, who="anna", do=do),
        Ordered(order=4, body=body, reason="r"),
        *then,
    )


@pytest.mark.parametrize("do", ["save", "set", "stop", "note", "accept_change"])
def test_what_is_not_on_record_is_open(do: str) -> None:
    """Without its line nothing came of a request; other people's lines are none of it."""
    args: dict[str, Any] = {"name": "clip", "value": 1, "text": "hi", "keys": ["a"]}
    others = (
        Asked(id="other", who="anna", do=do),
        Noted(text="hello", who="anna"),
        Noted(text="hi", who="ben"),
    )
    assert came(do, *others, **args) is None
    assert came(do, **args) is None


def test_a_save_is_done_when_its_order_is() -> None:
    """`saved` is said once the order is done, with the step that became durable."""
    events = asked("save", Save())
    assert came("save", *events) is None
    assert came("save", *events, SAVED) is None
    assert came("save", *events, SAVED, OrderDone(order=3)) is None
    assert came("save", *events, SAVED, OrderDone(order=4)) == Came(True, "saved step 1,240")
    durable = OrderDone(order=4, outcome="step 7 (branch 1) is durable already")
    assert came("save", *events, durable) == Came(True, "step 7 (branch 1) is durable already")
    assert came("save", *events, OrderFailed(order=4, outcome="no space")) == Came(False, "no space")


def test_a_save_that_the_end_overtakes_has_failed() -> None:
    """A run that ends first has not done what was asked, and the answer says what becomes of the order."""
    answer = came("save", *asked("save", Save()), ENDED)
    assert answer is not None
    assert not answer.well
    assert "order 4 stands" in answer.text


def test_a_knob_is_set_from_a_step_on() -> None:
    """The answer is the loop's own; where it doesn't name the knob, the name stands before it."""
    events = asked("set", Set(name="clip", value=0.5))
    done = (
        KnobSet(name="clip", value=0.5, from_step=9),
        OrderDone(order=4, outcome="clip = 0.5 from step 9 on"),
    )
    assert came("set", *events, name="clip", value=0.5) is None
    assert came("set", *events, *done, name="clip", value=0.5) == Came(True, "clip = 0.5 from step 9 on")
    bare = OrderDone(order=4, outcome="from step 9 on")
    assert came("set", *events, bare, name="stage_every", value=7) == Came(
        True, "stage_every = 7 from step 9 on"
    )
    resting = came("set", *events, live=False, name="clip", value=0.5)
    assert resting == Came(True, "clip = 0.5 from its next start on")


def test_a_stop_is_over_when_the_run_is() -> None:
    """The order's outcome is not the end: the last state may still be on its way to the disk."""
    events = (*asked("stop", Stop(word="stopped", exit_code=83)), OrderDone(order=4, outcome="left at step 9"))
    assert came("stop", *events) is None
    assert came("stop", *events, ENDED) == Came(True, "stopped: left at step 9")
    other = (*asked("stop", Stop(word="stopped", exit_code=83)), RunEnded(word="finished", exit_code=0))
    assert came("stop", *other) == Came(True, "the run has ended: finished")


def test_notes_and_accepted_changes_need_no_order() -> None:
    """To be on record is all they are for."""
    assert came("note", Noted(text="hi", who="anna"), text="hi") == Came(True, "on record")
    accepted = came("accept_change", Asked(id=ID, who="anna", do="accept_change"), keys=["a", "b"])
    assert accepted == Came(True, "accepted for the next start: a, b")


def test_a_request_that_led_to_nothing_is_told() -> None:
    """An agent that knows no such request ordered nothing; a line that isn't there yet is waited for."""
    assert came("dance", Asked(id=ID, who="anna", do="dance")) is None
    answer = came("dance", Asked(id=ID, who="anna", do="dance"), PhaseEntered(phase="eval"))
    assert answer is not None
    assert not answer.well
