"""Steering a run that nobody holds, and asking one that doesn't answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.places import put, surefoot
from tests.unit.views.tales import Tale, trained

from surefoot.cli import live
from surefoot.core.events import Asked, Noted, Ordered, OrderFailed, RunEnded, TermEnded
from surefoot.core.orders import Set
from surefoot.core.state import RunState
from surefoot.journal import cache, files, lease
from surefoot.journal.codec import encode
from surefoot.journal.files import Appender


def at_rest() -> Tale:
    return trained(50).tell(RunEnded(word="stopped", exit_code=83), TermEnded())


def state_of(run: Path) -> RunState:
    return cache.fold(run, use_cache=False)


def events_of(run: Path) -> list[Any]:
    return [line.event for line in files.read(run)]


def test_a_note_on_a_run_at_rest_takes_a_term_and_gives_it_back(tmp_path: Path) -> None:
    """The journal gets a whole term; the next start may begin at once."""
    run = put(tmp_path / "gpt", at_rest())
    assert surefoot("note", run, "looks calm").output == "on record\n"
    *_, started, noted, given_back = events_of(run)
    assert (started.term, started.after) == (2, {"term": 1, "seq": len(at_rest().lines)})
    assert isinstance(noted, Noted)
    assert noted.text == "looks calm"
    assert "@" in noted.who
    assert isinstance(given_back, TermEnded)
    holder = lease.holder(run)
    assert holder is not None
    assert holder.evidence == "ended"


def test_a_knob_of_a_run_at_rest_is_there_at_its_next_start(tmp_path: Path) -> None:
    """Asked, ordered, set and done: the fold has the value, and nothing is pending."""
    run = put(tmp_path / "gpt", at_rest())
    assert surefoot("set", run, "clip=0.5", "beta=1e-3", "--why", "spiky").exit_code == 0
    state = state_of(run)
    assert state.knobs == {"clip": 0.5, "beta": 1e-3}
    assert [pending for pending in state.pending if isinstance(pending.body, Set)] == []
    assert "(spiky, by" in surefoot("logbook", run).output


def test_a_knob_that_no_boundary_took_is_overtaken(tmp_path: Path) -> None:
    """The newest wish wins: an older order for the same knob would come after it and undo it."""
    tale = at_rest().tell(Ordered(order=2, body=Set(name="clip", value=0.1), reason="asked by ben"))
    run = put(tmp_path / "gpt", tale)
    assert surefoot("set", run, "clip=0.5").exit_code == 0
    assert [event.order for event in events_of(run) if isinstance(event, OrderFailed)] == [2]
    assert state_of(run).knobs == {"clip": 0.5}


def test_changes_are_accepted_for_the_next_start(tmp_path: Path) -> None:
    """`--accept-change a b` and `--accept-change a --accept-change b` are the same."""
    for name, arguments in (("x", ["a", "b"]), ("y", ["a", "--accept-change", "b"])):
        run = put(tmp_path / name, at_rest())
        done = surefoot("set", run, "--accept-change", *arguments)
        assert done.output == "accepted for the next start: a, b\n"
        assert state_of(run).accepted == ("a", "b")


@pytest.mark.parametrize("command", ["save", "stop"])
def test_what_only_a_live_run_can_do_is_refused(command: str, tmp_path: Path) -> None:
    """Nothing is running: exit code 1, and the run is as it was."""
    run = put(tmp_path / "gpt", at_rest())
    done = surefoot(command, run)
    assert done.exit_code == 1
    assert "nothing is running" in done.stderr
    assert lease.newest_term(run) == 1


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("clip", "expected KNOB=VALUE"),
        ("=1", "expected KNOB=VALUE"),
        ("clip=", "expected KNOB=VALUE"),
        ("clip=big", "expected a finite number"),
        ("clip=nan", "expected a finite number"),
        ("clip=inf", "expected a finite number"),
        ("clip=[1]", "expected a finite number"),
        ("keep=5", "is a setting"),
        ("stage_every=5", "is a setting"),
    ],
)
def test_a_value_that_no_loop_should_get_is_refused(word: str, said: str, tmp_path: Path) -> None:
    """A typo never reaches a loop: code 2, and nothing on record."""
    run = put(tmp_path / "gpt", at_rest())
    done = surefoot("set", run, word)
    assert done.exit_code == 2
    assert said in done.stderr
    assert lease.newest_term(run) == 1


@pytest.mark.parametrize(
    ("word", "value"), [("k=3", 3), ("k=.5", 0.5), ("k=1e-3", 1e-3), ("k=true", True), ('k="cosine"', "cosine")]
)
def test_values_keep_their_kind(word: str, value: object, tmp_path: Path) -> None:
    """Whole numbers, others, truth and quoted texts are what they look like."""
    run = put(tmp_path / "gpt", at_rest())
    assert surefoot("set", run, word).exit_code == 0
    found = state_of(run).knobs["k"]
    assert (found, type(found)) == (value, type(value))


def test_a_number_is_not_replaced_by_a_text(tmp_path: Path) -> None:
    """A knob that has been a number stays one."""
    run = put(tmp_path / "gpt", at_rest())
    assert surefoot("set", run, "clip=1").exit_code == 0
    assert surefoot("set", run, 'clip="off"').exit_code == 2


def test_a_set_without_anything_to_set_is_a_wrong_call(tmp_path: Path) -> None:
    """Neither a knob nor a key: what was expected is said."""
    done = surefoot("set", put(tmp_path / "gpt", at_rest()))
    assert done.exit_code == 2
    assert "KNOB=VALUE" in done.stderr


class Clock:
    """Stands in for `time` in `live`: sleeping moves it and lets the agent act."""

    def __init__(self, *acts: Any) -> None:
        self.now, self.acts = 0.0, list(acts)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.acts:
            self.acts.pop(0)()


def test_an_agent_that_takes_nothing_is_told_and_asked_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that nobody took within the time is taken back."""
    run = put(tmp_path / "gpt", trained(50), pid=None)
    monkeypatch.setattr(live, "time", clock := Clock())
    done = surefoot("save", run, "--wait", "3")
    assert done.exit_code == 1
    assert "did not take the request within 3 s" in done.stderr
    assert clock.now >= 3
    assert list((run / "inbox").iterdir()) == []


def test_what_is_on_record_and_not_done_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the time is up the message says that the request stands."""
    tale = trained(50)
    run = put(tmp_path / "gpt", tale, pid=None)

    def journal() -> None:
        (request,) = (run / "inbox").glob("*.json")
        before = len(tale.lines)
        tale.tell(
            Asked(id=request.stem, who="anna", do="set", args={}),
            Ordered(order=2, body=Set(name="clip", value=1), reason="asked"),
        )
        appender = Appender(run, 1)
        appender.append(before + 1, [encode(line) for line in tale.lines[before:]])
        appender.close()

    monkeypatch.setattr(live, "time", Clock(journal))
    done = surefoot("set", run, "clip=1", "--wait", "3")
    assert done.exit_code == 1
    assert "It is on record" in done.stderr


def test_a_run_between_two_agents_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that look for another agent must not meet a command that holds their run."""
    tale = trained(50)
    run = put(tmp_path / "gpt", tale)
    monkeypatch.setattr("surefoot.cli.runs.time.time_ns", lambda: tale.now_ns)
    done = surefoot("note", run, "hello")
    assert done.exit_code == 1
    assert "ask again in a few seconds" in done.stderr
    assert lease.newest_term(run) == 1
