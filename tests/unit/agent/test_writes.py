"""What is written, for whom, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent import doubles
from tests.unit.agent.doubles import Rig

from surefoot.agent import writes
from surefoot.agent.writes import Writes
from surefoot.core.events import (
    Asked,
    OrderDone,
    Ordered,
    OrderFailed,
    SaveFailed,
    SnapshotCommitted,
    SnapshotMarked,
)
from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import Write
from surefoot.core.snapshots import find

RESULT = {"bytes": 100, "write_ns": 7}


class Bench:
    """The writing side over a rig, and the child that is asked."""

    def __init__(self, run_dir: Path, ranks: int = 2) -> None:
        self.rig = Rig(run_dir, ranks)
        self.writes = Writes(self.rig.start, self.rig.brain, self.rig.memory)
        child = self.writes._child
        assert isinstance(child, doubles.Child)
        self.child = child

    def staged(self, id: SnapshotId, rank: int, *, save: bool = False, orders: tuple[int, ...] = ()) -> None:
        message = {"step": id.step, "branch": id.branch, "save": save, "orders": orders}
        self.writes.staged(message, rank, self.rig.memory.ranks)

    def stage(self, step: int, *, save: bool = False, orders: tuple[int, ...] = ()) -> SnapshotId:
        """All ranks fill a slot and report it to memory and to the writing side."""
        id = self.rig.stage(step)
        for rank in range(self.rig.memory.ranks):
            self.staged(id, rank, save=save, orders=orders)
        return id

    def written(self, **answer: Any) -> dict[str, Any]:
        """Answer the write under way, and begin the next."""
        args = self.child.answer(**(answer or {"result": RESULT})).args
        self.writes.tick()
        return args

    def outcomes(self) -> dict[int, type]:
        over = [*self.rig.events(OrderDone), *self.rig.events(OrderFailed)]
        assert len(over) == len({event.order for event in over})
        return {event.order: type(event) for event in over}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(writes, "Child", doubles.Child)
    made = Bench(tmp_path)
    yield made
    made.rig.memory.close()
    made.writes.close()
    assert made.child.closed


def at(step: int, branch: int = 1) -> SnapshotId:
    return SnapshotId(step, branch)


def test_what_is_staged_for_an_order_is_written_once_all_ranks_have_it(bench: Bench) -> None:
    """The last rank's report begins the write, in the name of the order, from the slots of all ranks."""
    id = bench.rig.stage(5)
    bench.staged(id, 0, orders=(4,))
    bench.writes.tick()
    assert bench.child.jobs == []
    bench.staged(id, 1, orders=(4,))
    bench.writes.tick()
    (job,) = bench.child.of("write")
    assert list(job.fds) == bench.rig.memory.descriptors(id)
    common = job.args["common"]
    assert common == {"run": "0" * 32, "step": 5, "branch": 1, "attempt": 1, "term": 3, "order": 4}
    assert (job.args["directory"], job.args["lineage"]) == ("000000005.b0001.t0003", ((1, 0),))


def test_staging_alone_writes_nothing(bench: Bench) -> None:
    """A memory snapshot that nobody wants on disk stays in memory."""
    bench.stage(5)
    bench.writes.tick()
    assert (bench.child.jobs, bench.rig.events(Asked), bench.writes.busy) == ([], [], False)


def test_a_scripts_save_becomes_an_order_first(bench: Bench) -> None:
    """`run.save()` on any rank is asked for, ordered and on record before it is written."""
    id = bench.rig.stage(5)
    bench.staged(id, 0, save=True)
    bench.staged(id, 1)
    (asked,) = bench.rig.events(Asked)
    assert (asked.do, asked.who, asked.args) == ("write", "the script", {"step": 5, "branch": 1})
    assert [event.body for event in bench.rig.events(Ordered)][-1] == Write(snapshot=id)
    bench.writes.tick()
    assert bench.child.jobs == []


def test_a_write_that_came_through_is_a_checkpoint(bench: Bench) -> None:
    """Its line comes first, then its orders' outcome; where it lies is known, and its slots are free again."""
    id = bench.stage(5, orders=(4, 6))
    bench.writes.tick()
    args = bench.written()
    (committed,) = bench.rig.events(SnapshotCommitted)
    assert (committed.step, committed.branch, committed.tier) == (5, 1, "DISK")
    assert (committed.bytes, committed.write_ns) == (100, 7)
    assert bench.outcomes() == {4: OrderDone, 6: OrderDone}
    assert bench.writes.is_durable(id)
    assert bench.rig.start.names == {id: args["directory"]}
    assert (bench.rig.memory._busy, bench.writes.busy) == (set(), False)


def test_a_write_that_failed_is_an_event_and_a_counter(bench: Bench) -> None:
    """Training goes on: the order has failed, failures in a row are counted, and the next one may succeed."""
    for step, in_a_row in ((5, 1), (10, 2)):
        id = bench.stage(step, orders=(step,))
        bench.writes.tick()
        bench.written(error="StoreUnavailable: No space left on device")
        assert bench.rig.events(SaveFailed)[-1].in_a_row == in_a_row
        assert "No space" in bench.writes.failed[id]
    bench.stage(15, orders=(15,))
    bench.writes.tick()
    bench.written()
    assert bench.outcomes() == {5: OrderFailed, 10: OrderFailed, 15: OrderDone}
    assert bench.rig.brain.state.save_failures == 0
    assert bench.rig.memory._busy == set()


def test_a_mover_that_died_has_failed(bench: Bench) -> None:
    """Whether it was done isn't known, so it doesn't count; what waits behind it goes on."""
    bench.stage(5, orders=(1,))
    bench.writes.tick()
    bench.child.dies()
    bench.stage(10, orders=(2,))
    bench.writes.tick()
    assert bench.rig.events(SaveFailed)[0].error == "the child that did it ended"
    bench.written()
    assert bench.outcomes() == {1: OrderFailed, 2: OrderDone}


def test_one_write_at_a_time(bench: Bench) -> None:
    """A second write waits for the first, and both are done in order."""
    first, second = bench.stage(5, orders=(1,)), bench.stage(10, orders=(2,))
    bench.writes.tick()
    bench.writes.tick()
    assert [job.args["common"]["step"] for job in bench.child.jobs] == [5]
    assert bench.writes.is_queued(first)
    assert bench.writes.is_queued(second)
    bench.written()
    assert [job.args["common"]["step"] for job in bench.child.jobs] == [10]
    bench.written()
    assert not bench.writes.is_queued(second)
    assert bench.outcomes() == {1: OrderDone, 2: OrderDone}


def test_what_is_durable_already_is_not_written_again(bench: Bench) -> None:
    """An order for a snapshot that is on disk, or that gets there before its turn, is done."""
    id = bench.stage(5, orders=(1,))
    bench.writes.write(id, [2])
    bench.writes.tick()
    bench.written()
    bench.writes.write(id, [3])
    assert bench.child.jobs == []
    assert bench.outcomes() == {1: OrderDone, 2: OrderDone, 3: OrderDone}


def test_the_newest_in_memory_is_what_an_order_without_a_name_means(bench: Bench) -> None:
    """`write` with no snapshot takes the newest whole one; with none there the order fails."""
    bench.writes.write(None, [1])
    assert bench.outcomes() == {1: OrderFailed}
    bench.stage(5)
    bench.stage(10)
    bench.writes.write(None, [2])
    bench.writes.tick()
    assert [job.args["common"]["step"] for job in bench.child.jobs] == [10]


def test_the_slots_of_a_write_are_not_lent(bench: Bench) -> None:
    """What is being written stays in memory, however much is staged meanwhile."""
    id = bench.stage(5, orders=(1,))
    bench.writes.tick()
    for step in range(6, 12):
        bench.stage(step)
    assert id in bench.rig.memory.ids()


def test_a_write_that_waits_holds_up_no_other(bench: Bench) -> None:
    """While a slow write runs, others may be asked for: each comes to an end, and later saves are written."""
    bench.stage(5, orders=(1,))
    bench.writes.tick()
    bench.stage(6, orders=(2,))
    for step in range(7, 12):
        bench.rig.memory.grants()
        if all(bench.rig.granted(rank) is not None for rank in range(2)):
            bench.stage(step)
    bench.written()
    while bench.child.of("write"):
        bench.written()
    assert set(bench.outcomes()) == {1, 2}
    bench.stage(20, orders=(3,))
    bench.writes.tick()
    bench.written()
    assert bench.outcomes()[3] is OrderDone


def test_ranks_that_are_gone_stage_no_more(bench: Bench) -> None:
    """What not all ranks had staged fails when the attempt ends; what memory holds is still written."""
    whole = bench.stage(5, orders=(1,))
    bench.rig.memory.grants()
    bench.rig.fill(0, 10)
    bench.staged(at(10), 0, orders=(2,))
    bench.writes.write(at(10), [3])
    bench.writes.attempt_over()
    assert bench.outcomes() == {3: OrderFailed}
    bench.writes.tick()
    bench.written()
    assert bench.writes.is_durable(whole)
    assert not bench.writes.busy


def test_an_older_branch_is_written_with_its_own_lineage(bench: Bench) -> None:
    """A write that outlives its attempt says where its state came from, not where the run went since."""
    bench.rig.restored(((1, 0), (2, 0)))
    id = bench.rig.stage(5, branch=2)
    bench.rig.restored(((1, 0), (2, 0), (3, 5)))
    bench.writes.write(id, [1])
    bench.writes.tick()
    assert bench.child.jobs[0].args["lineage"] == ((1, 0), (2, 0))


def test_pruning(bench: Bench) -> None:
    """A checkpoint that was deleted is gone from the catalogue; its order is done after that."""
    id = bench.stage(5, orders=(1,))
    bench.writes.tick()
    args = bench.written()
    bench.writes.prune(id, 2)
    (job,) = bench.child.of("prune")
    assert job.args["directory"] == args["directory"]
    bench.written(result={})
    assert find(bench.rig.brain.state.catalogue, id) is None
    assert [event.mark for event in bench.rig.events(SnapshotMarked)] == ["gone"]
    assert bench.outcomes() == {1: OrderDone, 2: OrderDone}
    assert bench.rig.start.names == {}


def test_a_checkpoint_that_cannot_be_deleted_stays_known(bench: Bench) -> None:
    """A store that refuses leaves the catalogue as it is, and the order has failed."""
    id = bench.stage(5, orders=(1,))
    bench.writes.tick()
    bench.written()
    bench.writes.prune(id, 2)
    bench.written(error="StoreUnavailable: read-only")
    assert bench.writes.is_durable(id)
    assert id in bench.rig.start.names
    assert bench.outcomes() == {1: OrderDone, 2: OrderFailed}


def test_what_has_no_directory_cannot_be_deleted(bench: Bench) -> None:
    """An order to delete what isn't there fails and touches nothing."""
    bench.writes.prune(at(99), 1)
    assert bench.outcomes() == {1: OrderFailed}
    assert bench.child.jobs == []


def test_an_attempts_records_lie_under_its_number(bench: Bench) -> None:
    """What is worth keeping beside the journal is filed by attempt; its answer concerns nobody."""
    bench.writes.record("code.json", {"script": "train.py"})
    (job,) = bench.child.of("record")
    assert (job.args["name"], job.args["content"]) == ("0001/code.json", {"script": "train.py"})
    assert bench.writes.busy
    bench.written(error="read-only")
    assert not bench.writes.busy
    assert bench.rig.events(SaveFailed) == []
