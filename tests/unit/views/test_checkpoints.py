"""Checkpoints as the journal and the disk know them, and what is in one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.checkpoints import RUN, manifest_of, save, values_of
from tests.unit.views.tales import Tale

from surefoot.checkpoint.commit import Found, discover
from surefoot.checkpoint.layout import Box
from surefoot.checkpoint.reader import Checkpoint
from surefoot.checkpoint.store import DiskStore
from surefoot.core.events import Ordered, SnapshotMarked
from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import Prune, Write
from surefoot.journal.codec import to_json
from surefoot.views.checkpoints import Row, checkpoints, inspect


def tale() -> Tale:
    """Return a run with checkpoints at 0, 40, 80 and 120, the last of which is suspect."""
    told = Tale().term().attempt().turns(130)
    for order, step in enumerate((0, 40, 80, 120), 2):
        told.tell(Ordered(order=order, body=Write(snapshot=SnapshotId(step, 1)), reason="r")).commit(step)
    return told.tell(
        SnapshotMarked(step=120, branch=1, mark="suspect"), SnapshotMarked(step=40, branch=1, mark="pinned")
    )


def found(step: int, *, branch: int = 1, order: int = 2, term: int = 1, run: str = RUN) -> Found:
    manifest = manifest_of("0" * 16, (), 1 << 20, 2, step=step, branch=branch, order=order, term=term, run=run)
    return Found(f"{step:09d}.b{branch:04d}.t{term:04d}", manifest)


def rows(*there: Found) -> dict[tuple[int | None, str], Row]:
    return {(row.step, row.name): row for row in checkpoints(tale().state, RUN, there)}


def test_a_start_would_begin_with_the_newest_that_may_be_used() -> None:
    """Not with a suspect one, nor one of a branch left behind, nor one that is gone."""
    there = [found(0), found(40), found(80), found(120), found(125, branch=9)]
    listed = checkpoints(tale().state, RUN, there)
    assert [row.step for row in listed] == [0, 40, 80, 120, 125]
    assert [row.step for row in listed if row.resumes] == [80]
    assert [row.mark for row in listed[:4]] == ["on probation", "on probation", "on probation", "suspect"]
    assert [row.pinned for row in listed] == [False, True, False, False, False]
    assert not listed[4].on_lineage
    without = checkpoints(tale().state, RUN, [found(0), found(40)])
    assert [row.step for row in without if row.resumes] == [40]


def test_what_the_journal_knows_and_the_disk_lacks_is_listed() -> None:
    """A directory that is gone is told, not passed over."""
    gone = rows(found(0), found(40), found(120))[80, ""]
    assert "gone or damaged" in gone.why_not
    assert not gone.resumes


def test_what_is_being_deleted_is_not_missed() -> None:
    """Between the order and its outcome a checkpoint is there, or half, or gone; none of it is wrong."""
    told = tale().tell(Ordered(order=9, body=Prune(snapshot=SnapshotId(80, 1)), reason="keep"))
    assert [row.step for row in checkpoints(told.state, RUN, [found(0), found(40), found(120)])] == [0, 40, 120]


def test_what_is_no_checkpoint_of_this_run_says_why() -> None:
    """Another run's, one of a term that was cut, and one that was never finished don't count."""
    listed = rows(
        found(200, run="f" * 32),
        found(210, order=99),
        found(220, term=7),
        Found("000000230.b0001.t0001", None, "has no manifest.json"),
    )
    assert "another run" in listed[200, "000000200.b0001.t0001"].why_not
    assert "order 99 of term 1" in listed[210, "000000210.b0001.t0001"].why_not
    assert "order 2 of term 7" in listed[220, "000000220.b0001.t0007"].why_not
    assert listed[None, "000000230.b0001.t0001"].why_not == "has no manifest.json"
    assert not any(row.resumes for row in listed.values() if row.why_not)


def test_a_tensor_is_shown_as_a_whole(tmp_path: Path) -> None:
    """Shards of one tensor are one row with the whole shape and all bytes; plain values have their path."""
    store = DiskStore(tmp_path)
    replica = Box("model.b", "F32", (3,), replicated=True)
    boxes = [
        [
            Box("model.w", "F32", (2, 4), whole=(4, 4), offsets=(2 * rank, 0)),
            replica,
            Box("own", "U8", (rank + 1,)),
        ]
        for rank in range(2)
    ]
    values = [values_of(each) for each in boxes]
    values[1]["model.b"] = values[0]["model.b"]
    plain = [{"loop": {"step": rank}, "state": list(range(100)), "best": 3.5} for rank in range(2)]
    name = save(store, boxes, values, plain)
    checkpoint = Checkpoint.open(store, name)
    manifest = replace(checkpoint.manifest, plain=plain[0])
    inside = inspect(name, manifest, to_json(manifest), checkpoint.index)
    assert [(t.name, t.dtype, t.shape, t.bytes, t.parts) for t in inside.tensors] == [
        ("model.w", "F32", (4, 4), 64, 2),
        ("model.b", "F32", (3,), 12, 1),
        ("rank.1.own", "U8", (2,), 2, 1),
        ("rank.0.own", "U8", (1,), 1, 1),
    ]
    assert inside.tensors[0].files == ("rank-00000.safetensors", "rank-00001.safetensors")
    assert inside.plain == {"loop.step": "0", "state": "list of 100", "best": "3.5"}
    assert "plain" not in inside.manifest
    assert discover(store)[0].manifest is not None
