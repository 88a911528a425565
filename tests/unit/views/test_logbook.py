"""The logbook reads like what a careful engineer would have written down, and leaves the rest out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.views.tales import Tale, trained

from surefoot.core.events import (
    Asked,
    Configured,
    KnobSet,
    Noted,
    OrderDone,
    Ordered,
    OrderFailed,
    RunEnded,
    SignalReceived,
    SnapshotMarked,
    TermEnded,
    WorkerExited,
)
from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import Mark, Prune, Save, Write
from surefoot.views.logbook import Entry, days, logbook, paragraph, since
from surefoot.views.remarks import cause


def texts(tale: Tale) -> list[str]:
    return [entry.text for entry in logbook(tale.lines)]


def test_a_start_a_fault_and_a_resume_are_three_entries() -> None:
    """Who started what where; why it ended; from where it went on, how long after, and what is done again."""
    tale = Tale().term().tell(Asked(id="s", who="anna@n0", do="start")).attempt().turns(50).commit(40)
    error = {"type": "ValueError", "message": "no\n luck", "signature": "ValueError in train.py:loss"}
    tale.tell(WorkerExited(node="n0", rank=1, error=error), WorkerExited(node="n0", rank=0, signal=9))
    tale.attempt(40, ((1, 0), (2, 40)), tier="HOST").turns(60).tell(RunEnded(word="finished", exit_code=0))
    starts, again = [text for text in texts(tale) if "ttempt" in text], "10 steps after it will be done again."
    assert starts == [
        "Attempt 1 starts at step 0: 2 ranks on n0, train.py, started by anna@n0.",
        f"Attempt 2 resumes at step 40 from memory, 500 ms after the fault: 2 ranks on n0, train.py. {again}",
    ]
    assert texts(tale).count("Rank 1 on n0 failed with ValueError: no luck (in train.py:loss).") == 1
    assert not any("Rank 0" in text for text in texts(tale))
    assert texts(tale)[-1] == "The run ended: finished (exit code 0)."


def test_turns_are_summed_up_over_a_stretch() -> None:
    """However many turns, one entry: how many, how fast, the loss at both ends and at its lowest."""
    losses = {0: 4.0, 30: 0.5}
    tale = Tale().term().attempt().turns(100, loss=lambda step: losses.get(step, 2.0))
    assert texts(tale)[1:] == ["Steps 0 to 99 (100 turns, 100 ms each): loss 4 → 2, lowest 0.5 at 30."]
    assert texts(Tale().term().attempt().turns(1, loss=lambda _: None))[1:] == ["Step 0 (1 turn)."]


def test_a_long_stretch_is_told_day_by_day() -> None:
    """A week without a fault is seven entries, not one."""
    assert len(texts(Tale().term().attempt().turns(170, each_s=3600))) == 1 + 7


def test_what_came_back_is_compared_with_what_was_there() -> None:
    """Turns done again are the proof at hand: the stretch after a restart says what they showed."""
    again = trained(50).commit(40).tell(WorkerExited(node="n0", rank=0))
    again.attempt(40, ((1, 0), (2, 40)), tier="DISK")
    assert "restart: bit-exact." in texts(again.turns(50))[-1]
    other = trained(50).commit(40).tell(WorkerExited(node="n0", rank=0))
    other.attempt(40, ((1, 0), (2, 40)), tier="DISK").turns(50, loss=lambda _: 7.0)
    assert "approximate: the loss of step 40 differs from the record." in texts(other)[-1]


def test_what_a_resume_passed_over_and_what_changed_is_told() -> None:
    """A resume says which newer checkpoints it could not use, and how the script differs."""
    over = {"what": "step 60 (branch 1) in DISK", "why": "chunk 3 has another hash"}
    changed: list[dict[str, Any]] = [
        {"key": "code.hash", "was": "a", "now": "b", "kind": "harmless"},
        {"key": "optimizer.lr", "was": 0.1, "now": 0.2, "kind": "maths"},
    ]
    tale = trained(70).commit(40).tell(WorkerExited(node="n0", rank=0, code=1))
    tale.attempt(40, ((1, 0), (2, 40)), tier="DISK", passed_over=[over], changed=changed)
    said = texts(tale)[-1]
    assert "Passed over step 60 (branch 1) in DISK: chunk 3 has another hash." in said
    assert "Changed: the script; optimizer.lr 0.1 → 0.2 (maths)." in said


def test_periodic_saves_are_counted_and_others_told() -> None:
    """The first save, one that was asked for and the last are told; those that are due anyway are a number."""
    tale = Tale().term().attempt()
    tale.tell(
        Ordered(order=2, body=Write(snapshot=SnapshotId(0, 1)), reason="the state at step 0 is always saved")
    )
    tale.turns(5).commit(0).tell(OrderDone(order=2))
    for order, step in ((3, 10), (4, 20)):
        tale.turns(step).tell(Ordered(order=order, body=Save(why="every 10 steps"), reason="is due"))
        tale.commit(step).tell(OrderDone(order=order))
    tale.turns(30).tell(Ordered(order=5, body=Save(why="asked by anna"), reason="asked by anna"))
    tale.commit(30).tell(OrderDone(order=5))
    assert texts(tale)[1:] == [
        "Step 0 is durable: 3.0 MiB to disk in 2.0 s; the state at step 0 is always saved.",
        "Steps 0 to 29 (30 turns, 100 ms each): loss 1 → 0.033333; 2 periodic checkpoints.",
        "Step 30 is durable: 3.0 MiB to disk in 2.0 s; asked by anna.",
    ]


def test_a_write_after_a_fault_is_told_as_that() -> None:
    """A commit is put down to the order that fits it best, whatever else is under way."""
    tale = trained(20).tell(
        Ordered(order=2, body=Save(why="every 300 s"), reason="is due"),
        Ordered(order=3, body=Write(), reason="the attempt ended"),
        Ordered(order=4, body=Write(snapshot=SnapshotId(20, 1)), reason="asked by the end of the run"),
    )
    assert "asked by the end of the run." in texts(tale.commit(20))[-1]
    assert "the attempt ended." in texts(tale.tell(OrderDone(order=4)).commit(10))[-1]


def test_what_keeps_the_house_is_left_out() -> None:
    """Marks of good, pruning and orders that went well are no news; an order that failed is."""
    at = SnapshotId(0, 1)
    before = len(texts(trained()))
    tale = trained().tell(
        Ordered(order=2, body=Mark(snapshot=at, mark="good"), reason="r"),
        SnapshotMarked(step=0, branch=1, mark="good"),
        OrderDone(order=2),
        Ordered(order=3, body=Prune(snapshot=at), reason="r"),
        SnapshotMarked(step=0, branch=1, mark="gone", why="pruned"),
        OrderDone(order=3),
    )
    assert len(texts(tale)) == before
    tale.tell(Ordered(order=4, body=Save(why="asked by anna"), reason="asked by anna"))
    tale.tell(OrderFailed(order=4, outcome="no space left"))
    assert texts(tale)[-1] == "Could not save to DISK (asked by anna): no space left."


def test_what_people_did_is_told_with_their_name() -> None:
    """Notes, knobs, accepted changes and suspects each have a sentence."""
    tale = trained(3).tell(
        Noted(text="looks calm", who="anna"),
        KnobSet(name="clip", value=0.5, from_step=3, who="ben", why="spiky"),
        Asked(id="a", who="anna", do="accept_change", args={"keys": ["optimizer.lr"]}),
        SnapshotMarked(step=0, branch=1, mark="suspect", why="a bad chunk"),
        SignalReceived(node="n0", rank=0, signal=15),
    )
    assert texts(tale)[-5:] == [
        "Note by anna: looks calm",
        "clip = 0.5 from step 3 on (spiky, by ben).",
        "anna accepts changes of optimizer.lr.",
        "Step 0 is suspect: a bad chunk.",
        "Rank 0 on n0 received SIGTERM.",
    ]


def test_settings_are_told_when_they_change() -> None:
    """What a run begins with is no change; what a later start sets is."""
    tale = Tale().term().tell(Configured(settings={"keep": [5, "Run(...)"], "seed": [7, "script"]})).attempt()
    tale.tell(Configured(settings={"steps": [100, "run.steps"]})).turns(3)
    assert not any("Settings" in text for text in texts(tale))
    tale.tell(
        Configured(settings={"steps": [200, "run.steps"], "keep": [5, "Run(...)"], "slots": [2, "x.toml"]})
    )
    assert texts(tale)[-1] == "Settings: steps = 200 (from run.steps), slots = 2 (from x.toml)."


def test_another_agent_is_told_only_if_the_ranks_lived_on() -> None:
    """A term that begins while ranks train is worth a line once they are heard of; a person's term is not."""
    lived = trained(10).term(2).turns(12)
    assert "Another agent took over; the ranks had trained on." in texts(lived)
    died = trained(10).term(2).tell(Noted(text="n"), TermEnded()).term(3).tell(WorkerExited(node="n0", rank=0))
    assert not any("took over" in text for text in texts(died))


def test_entries_stand_in_the_order_in_which_things_happened() -> None:
    """A stretch that is told at its end stands where its last turn does."""
    tale = trained(10).tell(Noted(text="late"), after_s=60).tell(RunEnded(word="stopped", exit_code=83))
    entries = logbook(tale.lines)
    assert [entry.seq for entry in entries] == sorted(entry.seq for entry in entries)
    assert [entry.at_ns for entry in entries] == sorted(entry.at_ns for entry in entries)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (WorkerExited(node="n", rank=0, signal=11), "was ended by SIGSEGV"),
        (WorkerExited(node="n", rank=0, signal=200), "was ended by signal 200"),
        (WorkerExited(node="n", rank=0, code=3), "ended with exit code 3"),
        (WorkerExited(node="n", rank=0), "was gone without a word"),
        (WorkerExited(node="n", rank=0, tail="killed "), "was gone without a word (killed)"),
        (WorkerExited(node="n", rank=0, error={"type": "OSError"}), "failed with OSError"),
    ],
)
def test_causes_claim_no_more_than_is_known(event: WorkerExited, said: str) -> None:
    """An exit is told by its signal, its code or its error, and otherwise as what it is: unexplained."""
    assert cause(event) == said


def test_the_beginning_may_be_missing() -> None:
    """A journal whose beginning is missing still has a logbook."""
    tale = trained(5).tell(WorkerExited(node="n0", rank=0)).attempt(0, ((1, 0), (2, 0)), tier="DISK").turns(3)
    for start in range(len(tale.lines)):
        assert isinstance(logbook(tale.lines[start:]), tuple)


def test_since_a_step_or_a_time() -> None:
    """`since` begins with the first entry that is so far, and leaves out what is older."""
    entries = [
        Entry(seq=seq, at_ns=seq * 10, attempt=1, step=step, kind="x", text="")
        for seq, step in enumerate((0, 100, 40, 60, 200))
    ]
    assert [entry.seq for entry in since(entries, step=50)] == [1, 2, 3, 4]
    assert [entry.seq for entry in since(entries, at_ns=30)] == [3, 4]
    assert since(entries, step=1000) == ()


def test_a_paragraph_fits_its_width() -> None:
    """At a terminal words are wrapped under each other; in a pipe an entry is one line with its date."""
    entry = Entry(seq=1, at_ns=10**18, attempt=2, step=1200, kind="x", text="word " * 40)
    lines = paragraph(entry, 60)
    assert len(lines) > 3
    assert max(map(len, lines)) <= 60
    assert all(line.startswith(" " * 26) for line in lines[1:])
    (line,) = paragraph(entry)
    assert line[:10].count("-") == 2
    assert "#2       1,200  word" in line
    assert [(len(day) > 10, together) for day, together in days([entry])] == [(True, [entry])]
