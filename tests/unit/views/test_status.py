"""The word of a run is what the evidence says, and the page shows what a person would ask next."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.views.tales import S, Tale, trained

from surefoot.core.events import (
    ConditionSeen,
    Configured,
    KnobSet,
    Noted,
    Ordered,
    RunEnded,
    SaveFailed,
    SnapshotMarked,
    TermEnded,
    WorkerExited,
)
from surefoot.core.orders import Restart, Save
from surefoot.views.status import GRACE_NS, Signs, Status, accounts, judge, status

ALIVE = Signs(evidence="alive", node="n0", pid=7, live=True)
LINGERING = replace(ALIVE, live=False)
GONE = Signs(evidence="gone", node="n0", pid=7)
ENDED = Signs(evidence="ended", node="n0", pid=7)
SILENT = Signs(evidence="silent", node="n0", pid=7)
LATER_NS = 60 * S


def page(tale: Tale, signs: Signs = ALIVE, later_ns: int = 0) -> Status:
    return status(tale.state, tale.lines, signs, tale.now_ns + later_ns, name="gpt", run="f" * 32)


def word(tale: Tale, signs: Signs, later_ns: int = LATER_NS) -> str:
    return judge(tale.state, tale.lines, signs, tale.now_ns + later_ns)[0]


def test_a_live_run_is_running() -> None:
    """A holder that lives and says that its ranks do: running, however long its step takes."""
    assert word(trained(), ALIVE) == "running"
    assert word(trained(), replace(ALIVE, live=None)) == "running"
    assert page(trained()).since_ns == trained().lines[3].at_ns


@pytest.mark.parametrize("ended", ["finished", "stopped", "preempted", "failed", "gave up", "needs a person"])
@pytest.mark.parametrize("signs", [LINGERING, ENDED, GONE, SILENT])
def test_a_run_that_ended_has_the_word_of_its_end(ended: str, signs: Signs) -> None:
    """How a run ended is on record, whatever became of its agent since."""
    tale = trained().tell(RunEnded(word=ended, exit_code=0, reason="that's it"), after_s=1)
    at_ns = tale.now_ns
    tale.tell(TermEnded(), after_s=5)
    assert judge(tale.state, tale.lines, signs, tale.now_ns) == (ended, "that's it", at_ns)


def test_a_dead_worker_is_a_failure_that_waits_for_a_start() -> None:
    """While the agent lingers a restart is at hand; when it is gone too, the run has failed all the same."""
    tale = trained().tell(WorkerExited(node="n0", rank=1, signal=9), after_s=1)
    at_ns = tale.now_ns
    tale.tell(Ordered(order=9, body=Restart(), reason="crash"))
    waiting = judge(tale.state, tale.lines, LINGERING, tale.now_ns)
    assert waiting == ("failed", "signal 9; waiting to be started again", at_ns)
    assert judge(tale.state, tale.lines, GONE, tale.now_ns)[:2] == ("failed", "signal 9")


def test_a_run_whose_processes_are_gone_is_lost_after_three_beats() -> None:
    """Ranks bring back an agent that died within moments; when they don't, they are gone as well."""
    tale = trained()
    assert word(tale, GONE, GRACE_NS - 1) == "running"
    assert word(tale, GONE, GRACE_NS) == "lost"
    assert page(tale, GONE, GRACE_NS).since_ns == tale.now_ns


def test_a_holder_that_is_out_of_sight_and_silent_is_lost() -> None:
    """On another node the counter is the only sign of life; it was watched for as long as a taker would."""
    assert word(trained(), SILENT, 0) == "lost"


def test_a_note_on_a_lost_run_is_no_sign_of_life() -> None:
    """A person's term between two starts leaves the word and its time as they were."""
    tale = trained()
    at_ns = tale.now_ns
    tale.term(2, after_s=60).tell(Noted(text="hm", who="anna"), TermEnded())
    assert judge(tale.state, tale.lines, ENDED, tale.now_ns)[0] == "lost"
    assert judge(tale.state, tale.lines, ENDED, tale.now_ns)[2] == at_ns


def test_an_agent_that_took_over_is_given_time_to_hear_of_its_ranks() -> None:
    """A new agent knows no ranks at first; if none come, they are gone."""
    tale = trained().term(2, after_s=1)
    assert word(tale, LINGERING, GRACE_NS - 1) == "running"
    assert word(tale, LINGERING, GRACE_NS) == "failed"


def test_before_anything_was_trained() -> None:
    """Nothing is called running or failed that never began."""
    assert word(Tale(), Signs()) == "stopped"
    assert word(Tale().term(), ALIVE) == "running"
    assert word(Tale().term(), GONE) == "lost"
    assert word(Tale().term().tell(TermEnded()), ENDED) == "stopped"
    assert page(Tale(), Signs()).attempt is None


def test_rates_are_of_this_attempt_alone() -> None:
    """After a resume at 90 % the second report has the true rate and time left (case D31)."""
    tale = trained(900).tell(Configured(settings={"steps": [1000, "run.steps"]}))
    tale.tell(RunEnded(word="stopped", exit_code=83), TermEnded()).commit(900)
    tale.term(2, after_s=3600).attempt(900, ((1, 0), (2, 900)), tier="DISK")
    assert page(tale).steps_per_s is None
    tale.turns(902, each_s=2.0)
    shown = page(tale)
    assert shown.steps_per_s == pytest.approx(0.5)
    assert shown.left_s == pytest.approx(98 * 2.0)
    assert (shown.step, shown.steps) == (902, 1000)
    ended = page(tale.tell(RunEnded(word="stopped", exit_code=83)), ENDED)
    assert (ended.steps_per_s, ended.left_s, ended.crash) == (None, None, None)


def test_what_is_at_risk() -> None:
    """A loss of the machine costs what came after the newest durable state; a crash, the cadence."""
    tale = trained(100)
    none_saved = page(tale)
    assert (none_saved.machine_loss.steps, none_saved.durable and none_saved.durable.step) == (100, 0)
    tale.commit(80).turns(130)
    shown = page(tale, later_ns=S)
    assert shown.durable is not None
    assert (shown.durable.step, shown.durable.mark, shown.durable.age_s) == (80, "on probation", 4.0)
    assert shown.machine_loss.steps == 50
    assert shown.machine_loss.time_s == pytest.approx(5.0)
    assert shown.crash is not None
    assert shown.crash.steps == 10
    assert shown.crash.time_s == pytest.approx(1.0)


def test_only_what_could_be_restored_counts_as_durable() -> None:
    """A suspect checkpoint, or one of a branch left behind, protects nothing."""
    tale = trained(100).commit(40).commit(80).commit(90, branch=7)
    tale.tell(SnapshotMarked(step=80, branch=1, mark="suspect", why="a bad chunk"))
    shown = page(tale)
    assert shown.durable is not None
    assert shown.durable.step == 40
    assert any("step 80 (branch 1) is suspect" in warning for warning in shown.warnings)


def test_accounts_sum_to_all_the_time() -> None:
    """Every nanosecond from the first line on is in an account; the remainder has its own."""
    tale = trained(50).tell(RunEnded(word="stopped", exit_code=83), after_s=3)
    shown = page(tale, ENDED)
    assert sum(shown.accounts.values()) == shown.accounted_ns - tale.lines[0].at_ns
    assert list(shown.accounts)[-1] == "unattributed"
    torn = replace(tale.state.ledger, accounts={"step": 5}, begin_ns=0, mark_ns=12)
    assert accounts(torn) == {"step": 5, "unattributed": 7}


def test_how_it_came_back_is_told_once_it_did() -> None:
    """The first attempt came back from nothing; a resumed one has its word, by its data and its losses."""
    assert page(trained()).attempt is not None
    assert getattr(page(trained()).attempt, "exactness", "") is None
    tale = trained(50).commit(40).tell(WorkerExited(node="n0", rank=0))
    tale.attempt(40, ((1, 0), (2, 40)), tier="DISK").turns(50)
    assert getattr(page(tale).attempt, "exactness", "") == "bit-exact"
    drawn = trained(50).commit(40).tell(WorkerExited(node="n0", rank=0))
    drawn.attempt(40, ((1, 0), (2, 40)), tier="DISK", level="drawn")
    assert str(getattr(page(drawn).attempt, "exactness", "")).startswith("approximate: the data was drawn")


def test_what_a_person_has_to_know_is_a_warning() -> None:
    """Failed saves, an agent that is stopped or mute, a loss that isn't finite, an overdue save, conditions."""
    tale = trained(10).turns(11, loss=lambda _: float("nan"))
    tale.tell(SaveFailed(step=10, branch=1, tier="DISK", error="full", in_a_row=2))
    tale.tell(ConditionSeen(node="n0", device=None, kind="store", text="the run directory refuses: full"))
    said = " | ".join(page(tale, replace(ALIVE, evidence="stopped", live=None), 3600 * S).warnings)
    for part in ("stopped by a signal", "loss is nan", "2 saves failed", "1 h", "the run directory refuses"):
        assert part in said
    assert "does not answer" in page(trained(), replace(ALIVE, live=None)).warnings[0]
    assert page(trained()).warnings == ()


def test_orders_knobs_and_changes_are_on_the_page() -> None:
    """What is under way and what differs from before is shown."""
    changed = {"key": "optimizer.lr", "was": 0.1, "now": 0.2, "kind": "maths"}
    tale = Tale().term().attempt(changed=[changed]).turns(3)
    tale.tell(Ordered(order=2, body=Save(why="asked by anna"), reason="asked by anna"))
    tale.tell(KnobSet(name="clip", value=0.5, from_step=3))
    shown = page(tale)
    assert [(order.order, order.do, order.reason) for order in shown.pending] == [(2, "save", "asked by anna")]
    assert shown.knobs == {"clip": 0.5}
    assert shown.changed == (changed,)
