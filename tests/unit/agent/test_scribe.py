"""The scribe: nothing is durable before the child says so, and nothing that isn't is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.agent import doubles

from surefoot.agent import scribe
from surefoot.agent.scribe import BEAT_NS, INBOX_NS, RETRY_NS, Scribe
from surefoot.testing import ManualClock


class Desk:
    """A scribe that has written up to line 10, its clock, and its child."""

    def __init__(self) -> None:
        self.time = ManualClock(10 * BEAT_NS)
        self.scribe = Scribe(Path("run"), 3, 10, self.time.now_ns)
        child = self.scribe._child
        assert isinstance(child, doubles.Child)
        self.child = child
        self.seq = 10

    def append(self, count: int = 1, *, sync: bool = True) -> None:
        lines = [b"%d\n" % (self.seq + n) for n in range(1, count + 1)]
        self.scribe.append(self.seq + 1, lines, sync=sync)
        self.seq += count

    def appended(self) -> list[list[int]]:
        """Return the lines of each append that waits for its answer."""
        return [[int(line) for line in job.args["lines"]] for job in self.child.of("append")]

    def answer(self, do: str, result: dict | None = None, error: str | None = None) -> None:
        """Answer the oldest job, which is of that kind."""
        assert self.child.jobs[0].do == do
        self.child.answer(result, error)
        self.scribe.tick()

    def quiet(self) -> None:
        """Answer the first beat and the first look into the inbox."""
        self.scribe.tick()
        self.answer("beat", {"newest_term": 3})
        self.answer("inbox", {"requests": [], "bad": []})


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(scribe, "Child", doubles.Child)
    made = Desk()
    made.quiet()
    return made


def test_lines_go_out_at_once_and_in_order(desk: Desk) -> None:
    """Each append is a job with its first seq, its lines and whether it is to be synced."""
    desk.append(2)
    desk.append(1, sync=False)
    first, second = (job.args for job in desk.child.jobs)
    assert (first["first_seq"], first["lines"], first["sync"]) == (11, ["11\n", "12\n"], True)
    assert (second["first_seq"], second["lines"], second["sync"]) == (13, ["13\n"], False)
    assert (first["run_dir"], first["term"]) == ("run", 3)


def test_a_line_is_durable_when_the_child_says_so(desk: Desk) -> None:
    """What was only written isn't durable; a sync makes everything before it so."""
    desk.append(2, sync=False)
    desk.append(1)
    assert desk.scribe.durable == 10
    desk.answer("append", {})
    assert desk.scribe.durable == 10
    desk.answer("append", {"durable": 13})
    assert (desk.scribe.durable, list(desk.scribe._kept)) == (13, [])


def test_a_beat_makes_turns_durable(desk: Desk) -> None:
    """What nobody asked to sync is durable with the next beat: within a second."""
    desk.append(1, sync=False)
    desk.answer("append", {})
    desk.time.advance(BEAT_NS)
    desk.scribe.tick()
    desk.answer("beat", {"newest_term": 3, "durable": 11})
    assert desk.scribe.durable == 11


def test_beats_count(desk: Desk) -> None:
    """The counter goes up each second, and no beat is asked for while one is under way."""
    for expected in (2, 3):
        desk.time.advance(BEAT_NS)
        desk.scribe.tick()
        desk.scribe.tick()
        (beat,) = desk.child.of("beat")
        assert beat.args["n"] == expected
        desk.time.advance(BEAT_NS)
        desk.scribe.tick()
        assert len(desk.child.of("beat")) == 1
        desk.answer("beat", {"newest_term": 3})
        desk.answer("inbox", {"requests": [], "bad": []})


def test_a_newer_term_is_seen(desk: Desk) -> None:
    """The beat brings back the newest term that anybody took."""
    desk.time.advance(BEAT_NS)
    desk.scribe.tick()
    desk.answer("beat", {"newest_term": 4})
    assert desk.scribe.newest_term == 4


def test_the_inbox_is_looked_into(desk: Desk) -> None:
    """Requests come with their ids, what can't be read with its reason; a taken one is removed by name."""
    desk.time.advance(INBOX_NS)
    desk.scribe.tick()
    desk.answer("inbox", {"requests": [["a", {"do": "save"}]], "bad": ["b is torn"]})
    assert desk.scribe.requests == [("a", {"do": "save"})]
    assert desk.scribe.bad_requests == ["b is torn"]
    desk.scribe.remove("a")
    (job,) = desk.child.of("remove_request")
    assert job.args["id"] == "a"


def test_a_refused_line_is_sent_again_with_all_that_follow(desk: Desk) -> None:
    """After an error everything that isn't durable goes out again, in order, after a moment.

    Nothing that comes meanwhile overtakes it, and no answer from before counts.
    """
    desk.append(1)
    desk.append(1)
    desk.answer("append", error="OSError: No space left on device")
    assert desk.scribe.error == "append: OSError: No space left on device"
    desk.append(1)
    assert desk.appended() == [[12]]
    desk.answer("append", {"durable": 12})
    assert (desk.scribe.durable, desk.appended()) == (10, [])
    desk.time.advance(RETRY_NS)
    desk.scribe.tick()
    assert desk.appended() == [[11], [12], [13]]


def answer_all(desk: Desk) -> None:
    """Answer every append as a store that is well again does, and whatever else was asked for."""
    while desk.child.jobs:
        job = desk.child.jobs[0]
        if job.do == "append":
            desk.answer("append", {"durable": job.args["first_seq"] + len(job.args["lines"]) - 1})
        elif job.do == "beat":
            desk.answer("beat", {"newest_term": 3})
        else:
            desk.answer("inbox", {"requests": [], "bad": []})


def test_a_store_that_is_well_again_is_said_to_be(desk: Desk) -> None:
    """When the lines are on disk the error is over, and each line is known to be durable."""
    desk.append(1)
    desk.answer("append", error="OSError: full")
    desk.append(2)
    desk.time.advance(RETRY_NS)
    desk.scribe.tick()
    answer_all(desk)
    assert (desk.scribe.error, desk.scribe.durable, list(desk.scribe._kept)) == (None, 13, [])


def test_a_store_that_stays_sick_is_tried_again_and_again(desk: Desk) -> None:
    """Each failure waits its moment; no line is dropped meanwhile."""
    desk.append(1)
    for _ in range(5):
        desk.answer("append", error="OSError: full")
        assert desk.appended() == []
        desk.time.advance(RETRY_NS)
        desk.scribe.tick()
        while desk.child.jobs and desk.child.jobs[0].do != "append":
            job = desk.child.jobs[0]
            desk.answer(job.do, {"newest_term": 3} if job.do == "beat" else {"requests": [], "bad": []})
        assert desk.appended() == [[11]]


def test_a_child_that_died_is_told_everything_again_at_once(desk: Desk) -> None:
    """Its successor gets every line that isn't known to be durable; one that comes twice counts once."""
    desk.append(1)
    desk.append(1)
    desk.child.dies()
    desk.scribe.tick()
    assert desk.appended() == [[11], [12]]


def test_a_failed_beat_may_have_lost_what_was_not_synced(desk: Desk) -> None:
    """A sync that failed may have dropped any line since the last that worked: they come again."""
    desk.append(1, sync=False)
    desk.answer("append", {})
    desk.time.advance(BEAT_NS)
    desk.scribe.tick()
    desk.answer("beat", error="OSError: I/O error")
    desk.answer("inbox", {"requests": [], "bad": []})
    desk.time.advance(RETRY_NS)
    desk.scribe.tick()
    assert desk.appended() == [[11]]


def test_a_beat_from_before_vouches_for_nothing_that_was_sent_again(desk: Desk) -> None:
    """A sync from before the retry covers a line behind the refused one: neither of them is durable yet."""
    desk.append(1)
    desk.append(1, sync=False)
    desk.answer("append", error="OSError: full")
    desk.answer("append", {})
    desk.time.advance(BEAT_NS)
    desk.scribe.tick()
    assert [job.do for job in desk.child.jobs][:1] == ["beat"]
    assert desk.appended() == [[11], [12]]
    desk.answer("beat", {"newest_term": 3, "durable": 12})
    assert desk.scribe.durable == 10


def test_a_failed_look_into_the_inbox_loses_nothing(desk: Desk) -> None:
    """It is looked into again at its next time; lines aren't concerned."""
    desk.time.advance(INBOX_NS)
    desk.scribe.tick()
    desk.answer("inbox", error="OSError: I/O error")
    assert (desk.scribe.error, desk.child.jobs) == (None, [])
    desk.time.advance(INBOX_NS)
    desk.scribe.tick()
    assert len(desk.child.of("inbox")) == 1


def test_the_scribe_ends_its_child(desk: Desk) -> None:
    """Closing ends the child, which may hang in the store."""
    desk.scribe.close()
    assert desk.child.closed
