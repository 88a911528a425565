"""The lease: who may take a run, and when."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.unit.journal.lines import term, write

from surefoot.core.events import TermEnded
from surefoot.errors import JournalError, RunHeld
from surefoot.journal import atomic, lease
from surefoot.journal.codec import seal, to_json, unseal
from surefoot.journal.lease import Holder, Lease, Process, beat, holder, newest_term, take, this_process

RUN = "0123456789abcdef" * 2


class ManualClock:
    """A clock that only sleeping moves; `during` is what others do meanwhile."""

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        self.now_s = 0.0
        self.during = during

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.during()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def name_of(pid: int) -> Process:
    state = lease._stat(pid)
    assert state is not None
    return replace(this_process(), pid=pid, start_ticks=state[1])


def elsewhere() -> Process:
    return replace(this_process(), node="far-away", boot="0")


def seen(run_dir: Path, process: Process | None = None) -> Holder:
    found = holder(run_dir, process)
    assert found is not None
    return found


def taken(run_dir: Path, process: Process | None = None, clock: ManualClock | None = None) -> int:
    """Take a term; without a clock it must not need to wait."""

    def waited() -> None:
        raise AssertionError("waited")

    clock = clock or ManualClock(waited)
    return take(run_dir, RUN, process=process, clock=clock.clock, sleep=clock.sleep)


def test_a_new_run_is_free(tmp_path: Path) -> None:
    """The first term is 1, and its file says who took it."""
    assert newest_term(tmp_path) == 0
    assert holder(tmp_path) is None
    assert take(tmp_path, RUN, addresses=["tcp://n:1"]) == 1
    assert newest_term(tmp_path) == 1
    said = unseal((tmp_path / "terms" / "000001.json").read_bytes())
    assert (said["run"], said["term"], said["pid"], said["addresses"]) == (RUN, 1, os.getpid(), ["tcp://n:1"])
    assert set(said) == {"run", "term", "node", "boot", "pid", "pid_namespace", "start_ticks", "addresses"}


def test_a_live_holder_is_named(tmp_path: Path) -> None:
    """A run whose holder runs here is held, at once, and the error names node, pid and term."""
    taken(tmp_path)
    assert seen(tmp_path).evidence == "alive"
    with pytest.raises(RunHeld, match=rf"pid {os.getpid()} on node .*\(term 1\) runs.*surefoot stop"):
        taken(tmp_path)
    assert newest_term(tmp_path) == 1


def test_a_dead_holder_gives_way_at_once(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    """Once the holder's process is gone, as a zombie too, the next term is taken without waiting."""
    taken(tmp_path, name_of(child.pid))
    assert seen(tmp_path).evidence == "alive"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert seen(tmp_path).evidence == "gone"
    child.wait()
    assert seen(tmp_path).evidence == "gone"
    assert taken(tmp_path) == 2


def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    """The start time tells a process from a later one with its number."""
    taken(tmp_path, replace(this_process(), start_ticks=1))
    assert seen(tmp_path).evidence == "gone"
    assert taken(tmp_path) == 2


def test_a_lease_given_back_is_free(tmp_path: Path) -> None:
    """After term_ended the next term is taken at once, though the holder's process still runs."""
    taken(tmp_path)
    write(tmp_path, 1, term(1, 3, last=TermEnded()))
    assert seen(tmp_path).evidence == "ended"
    assert taken(tmp_path) == 2


def test_the_end_of_an_older_term_frees_nothing(tmp_path: Path) -> None:
    """A holder that has not written its first line yet holds the run."""
    write(tmp_path, 1, term(1, 3, last=TermEnded()))
    (tmp_path / "terms").mkdir()
    (tmp_path / "terms" / "000001.json").touch()
    with pytest.raises(JournalError, match=r"000001\.json"):
        holder(tmp_path)
    (tmp_path / "terms" / "000001.json").unlink()
    taken(tmp_path)
    (tmp_path / "terms" / "000001.json").rename(tmp_path / "terms" / "000002.json")
    assert seen(tmp_path).evidence == "alive"


def test_a_stopped_holder_is_waited_for(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    """A holder that a signal stopped loses the run once its counter stood still; woken, it holds it."""
    taken(tmp_path, name_of(child.pid))
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert seen(tmp_path).evidence == "stopped"

    def wake() -> None:
        child.send_signal(signal.SIGCONT)
        os.waitpid(child.pid, os.WCONTINUED)

    with pytest.raises(RunHeld, match="runs"):
        taken(tmp_path, clock=ManualClock(wake))
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    clock = ManualClock()
    assert taken(tmp_path, clock=clock) == 2
    assert 4 <= clock.now_s < 5


def test_a_silent_holder_elsewhere_loses_the_run(tmp_path: Path) -> None:
    """A holder on another node gives way once its counter stood still for the lease, by the taker's clock."""
    taken(tmp_path, elsewhere())
    beat(tmp_path, 1, 41)
    assert (seen(tmp_path).evidence, seen(tmp_path).beat) == ("unknown", 41)
    clock = ManualClock()
    assert taken(tmp_path, clock=clock) == 2
    assert 4 <= clock.now_s < 5


def test_a_counting_holder_elsewhere_holds_the_run(tmp_path: Path) -> None:
    """A counter that moves, also from nothing, is a live holder."""
    taken(tmp_path, elsewhere())
    beats = iter(range(100))

    def count() -> None:
        if (n := next(beats)) % 4 == 3:
            beat(tmp_path, 1, n)

    with pytest.raises(RunHeld, match=r"far-away \(term 1\) goes on counting"):
        taken(tmp_path, clock=ManualClock(count))
    with pytest.raises(RunHeld, match=r"far-away"):
        taken(tmp_path, clock=ManualClock(count))
    assert newest_term(tmp_path) == 1


def test_who_comes_second_finds_the_first(tmp_path: Path) -> None:
    """Of two that wait for the same silent holder one gets the term, and the other meets that one."""
    taken(tmp_path, elsewhere())
    clock = ManualClock()

    def other() -> None:
        if clock.now_s == 3:
            theirs = Lease(**asdict(this_process()), run=RUN, term=2)
            assert atomic.create(tmp_path / "terms" / "000002.json", seal(to_json(theirs)))

    clock.during = other
    with pytest.raises(RunHeld, match=r"\(term 2\) runs"):
        taken(tmp_path, clock=clock)


def test_a_counter_is_one_line_of_fixed_width(tmp_path: Path) -> None:
    """Rewriting the counter leaves the newest number and nothing else."""
    taken(tmp_path)
    for n in (99, 100, 7):
        beat(tmp_path, 1, n)
        assert seen(tmp_path).beat == n
    assert len((tmp_path / "terms" / "000001.beat").read_bytes()) == 21


def test_processes_of_others_may_be_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc hides other users' processes, a holder that may be there is unknown, not gone."""
    taken(tmp_path, replace(this_process(), pid=os.getppid()))
    here = this_process()
    monkeypatch.setattr(lease, "_stat", lambda _: None)
    assert seen(tmp_path, here).evidence == "unknown"

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    assert seen(tmp_path, here).evidence == "unknown"
