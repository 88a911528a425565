"""Lines of the journal: what stands on them, what is cut, what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from surefoot.core.events import AttemptStarted, Noted, Ordered, StepDone, WorkerExited
from surefoot.core.events import Line as L
from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import ORDERS, Note, Order, Restart, Set
from surefoot.errors import JournalError
from surefoot.journal.codec import (
    LINE_BYTES_MAX,
    TEXT_BYTES_MAX,
    decode,
    decode_event,
    encode,
    encode_event,
    seal,
    unseal,
)


def step(**fields: Any) -> StepDone:
    return StepDone(branch=1, step=4, batch=5, sample=40, **fields)


def test_a_line_reads_as_the_format_says() -> None:
    """seq, at_ns and ev come first, then the fields, then who sent it, then the check."""
    raw = encode(L(7, 123, step(loss=0.5), (0, 3)))
    assert raw.startswith(
        b'{"seq":7,"at_ns":123,"ev":"step_done","branch":1,"step":4,"batch":5,"sample":40,"loss":0.5,'
    )
    assert list(json.loads(raw))[-2:] == ["from", "check"]
    assert json.loads(raw)["from"] == [0, 3]
    assert raw.endswith(b'"}\n')
    assert raw.count(b"\n") == 1


def test_non_finite_numbers_are_spelled() -> None:
    """Nan and inf are strings on the line and floats again when it is read."""
    raw = encode(
        L(1, 1, step(loss=math.inf, grad_norm=-math.inf, lr=math.nan, values={"a": math.nan, "b": 1.0}))
    )
    assert b'"loss":"inf","grad_norm":"-inf","lr":"nan"' in raw
    event = decode(raw).event
    assert isinstance(event, StepDone)
    assert (event.loss, event.grad_norm) == (math.inf, -math.inf)
    assert event.lr is not None
    assert math.isnan(event.lr)
    assert math.isnan(event.values["a"])


def test_an_order_is_flattened() -> None:
    """The order's fields stand on the line beside those of the event; a restart's source is `from`."""
    body = Restart(source=SnapshotId(40, 2), nodes=3)
    raw = encode(L(9, 1, Ordered(order=5, body=body, reason="rank 1 died", fault={"kind": "crash"})))
    obj = json.loads(raw)
    assert (obj["order"], obj["do"], obj["from"], obj["nodes"]) == (5, "restart", {"step": 40, "branch": 2}, 3)
    assert "body" not in obj
    assert decode(raw) == L(9, 1, Ordered(order=5, body=body, reason="rank 1 died", fault={"kind": "crash"}))


def test_a_note_shares_its_verdict() -> None:
    """A line has one verdict: a note's is also that of the event around it."""
    event = decode_event(encode_event(Ordered(order=1, body=Note(verdict={"kind": "spike"}), reason="r")))
    assert event == Ordered(
        order=1, body=Note(verdict={"kind": "spike"}), reason="r", verdict={"kind": "spike"}
    )


@pytest.mark.parametrize("cls", ORDERS.values(), ids=lambda cls: cls.__name__)
def test_no_field_of_an_order_hides_one_of_the_line(cls: type[Order]) -> None:
    """Flattening loses nothing: but for the verdict, no order has a field that `proposed` has too."""
    around = {"seq", "at_ns", "ev", "check", "do", "order", "id", "reason", "fault", "cost", "expires_ns"}
    assert not set(cls.__dataclass_fields__) & around


def test_missing_fields_have_their_defaults_and_unknown_ones_are_ignored() -> None:
    """A line of another version is read as far as it can be."""
    obj = {"seq": 3, "at_ns": 4, "ev": "attempt_started", "attempt": 1, "world_size": 2, "mood": "good"}
    assert decode(seal(obj)) == L(3, 4, AttemptStarted(attempt=1, world_size=2))


@pytest.mark.parametrize(
    ("obj", "what"),
    [
        ({"seq": 1, "at_ns": 1, "ev": "sang"}, "unknown event 'sang'.*newer surefoot"),
        (
            {"seq": 1, "at_ns": 1, "ev": "ordered", "order": 1, "do": "dance", "reason": ""},
            "unknown order 'dance'",
        ),
        ({"seq": 1, "at_ns": 1, "ev": "noted"}, "not a Noted.*text"),
        ({"at_ns": 1, "ev": "noted", "text": ""}, "without its place.*seq"),
        ({"seq": 1, "at_ns": 1, "ev": "restored", "lineage": 3}, "not a Restored"),
        ({"seq": 1, "at_ns": 1, "ev": "noted", "text": "", "from": [0]}, "without its place"),
    ],
)
def test_what_is_no_line_is_refused(obj: dict, what: str) -> None:
    """A sealed object that isn't a line of ours is a JournalError that says why."""
    with pytest.raises(JournalError, match=what):
        decode(seal(obj))


def test_long_texts_are_cut_and_say_so() -> None:
    """A text keeps its first 64 KiB, wherever it lies on the line, and tells how long it was."""
    long = "ä" * TEXT_BYTES_MAX
    event = WorkerExited(node="n", rank=0, error={"stack": [long]}, tail=long)
    raw = encode(L(1, 1, event))
    read = decode(raw).event
    assert isinstance(read, WorkerExited)
    assert read.error is not None
    for text in (read.tail, read.error["stack"][0]):
        assert len(text.encode()) <= TEXT_BYTES_MAX
        assert text.startswith("ä" * 1000)
        assert text.endswith("ä… (cut: 131,072 bytes in all)")
    assert encode(decode(raw)) == raw


def test_a_line_has_an_end() -> None:
    """What is over 1 MiB with all its texts cut is refused, not written."""
    with pytest.raises(JournalError, match=r"ordered makes .* at most 1,048,576"):
        encode(L(1, 1, Ordered(order=1, body=Set(name="k", value=[0] * LINE_BYTES_MAX), reason="")))


def test_a_name_that_is_not_utf8_survives() -> None:
    """A lone surrogate, as in a file name that isn't UTF-8, is written as its escape and read as itself."""
    line = L(1, 1, Noted(text="caf\udce9"))
    raw = encode(line)
    assert b"\\udce9" in raw
    assert decode(raw) == line
    assert unseal(raw)["text"] == "caf\udce9"
