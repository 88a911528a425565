"""Commit, discover, verify, delete: whole or nothing, whatever happens between."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.checkpoints import change, save, values_of

from surefoot.checkpoint.commit import commit, delete, discover, verify
from surefoot.checkpoint.index import Index
from surefoot.checkpoint.layout import Box, Layout
from surefoot.checkpoint.records import MANIFEST, Manifest, dump, read_record
from surefoot.checkpoint.store import DiskStore
from surefoot.errors import CheckpointError, StoreUnavailable

BOXES = (Box("w", "F32", (4,), replicated=True), Box("own", "U8", (3,)))
RANKS = (BOXES, BOXES)
VALUES = (values_of(BOXES), values_of(BOXES))


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "checkpoints")


def save_at(store: DiskStore, step: int) -> str:
    return save(store, RANKS, VALUES, step=step)


def whole(store: DiskStore) -> list[str]:
    return [found.name for found in discover(store) if found.manifest is not None]


def in_child(act: Callable[[], object]) -> bool:
    """Do something in a process of its own; return whether it got to the end alive."""
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def kill_at(number: int) -> Callable[[int, str], None]:
    return lambda call, _: os.kill(os.getpid(), signal.SIGKILL) if call == number else None


def fail_at(number: int) -> Callable[[int, str], None]:
    def fault(call: int, _: str) -> None:
        if call == number:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return fault


def test_a_commit_is_found_and_verifies(store: DiskStore) -> None:
    """What was committed is discovered with its manifest, and every byte of it is right."""
    name = save_at(store, 5)
    assert name == "000000005.b0003.t0007"
    (found,) = discover(store)
    assert found.manifest is not None
    assert (found.name, found.why_not, found.manifest.snapshot.step) == (name, "", 5)
    assert found.manifest.bytes == sum(
        path.stat().st_size for path in (store.root / name).glob("*.safetensors")
    )
    assert verify(store, name) == []


def test_a_kill_at_any_operation_leaves_all_or_nothing(store: DiskStore) -> None:
    """Killed at its n-th file operation, for every n, a save leaves all of itself or none, the older whole."""
    older, number, completed = save_at(store, 1), 0, False
    while not completed:
        number += 1
        dying = DiskStore(store.root, kill_at(number))
        completed = in_child(lambda dying=dying: save_at(dying, 2))  # type: ignore[misc]
        names = whole(store)
        assert names[0] == older
        assert all(verify(store, name) == [] for name in names)
        for name in names[1:]:
            delete(store, name)
    assert number > 25


def test_a_failure_at_any_operation_leaves_all_or_nothing(store: DiskStore) -> None:
    """An error at its n-th file operation, for every n, is a `StoreUnavailable` or has no effect at all."""
    older, number = save_at(store, 1), 0
    while True:
        number += 1
        failing = DiskStore(store.root, fail_at(number))
        with suppress(StoreUnavailable):
            save_at(failing, 2)
        assert whole(store)[0] == older
        assert verify(store, older) == []
        for name in whole(store)[1:]:
            assert verify(store, name) == []
            delete(store, name)
        if failing.calls < number:
            break


def test_a_retry_after_a_failed_save_succeeds(store: DiskStore) -> None:
    """What a failed try left behind is in nobody's way."""
    assert not in_child(lambda: save_at(DiskStore(store.root, kill_at(12)), 2))
    assert whole(store) == []
    name = save_at(store, 2)
    assert whole(store) == [name]
    assert verify(store, name) == []


def test_a_kill_in_a_deletion_leaves_all_or_nothing(store: DiskStore) -> None:
    """Killed at its n-th file operation, for every n, a deletion leaves all or nothing, and can be repeated."""
    number, completed = 0, False
    while not completed:
        number += 1
        name = save_at(store, 1)
        dying = DiskStore(store.root, kill_at(number))
        completed = in_child(lambda dying=dying, name=name: delete(dying, name))  # type: ignore[misc]
        assert all(verify(store, name) == [] for name in whole(store))
        delete(store, name)
        assert store.names() == []
    assert number > 5


def test_only_the_newest_term_commits(store: DiskStore) -> None:
    """A holder whose term is over commits nothing, and is told who has begun."""
    save_at(store, 1)
    manifest = read_record(store, Manifest, f"{whole(store)[0]}/{MANIFEST}")
    index = Index(manifest.layout, ())
    store.make_dir("000000002.b0003.t0007")
    with pytest.raises(CheckpointError, match="term 8 has begun, this is 7"):
        commit(store, "000000002.b0003.t0007", replace(manifest, step=2), index, lambda: 8)
    assert MANIFEST not in store.names("000000002.b0003.t0007")
    with pytest.raises(ValueError, match="layout"):
        commit(store, "x", manifest, Index("0" * 16, ()), lambda: 7)


def test_the_lease_is_looked_at_last(store: DiskStore) -> None:
    """Between the look for a newer term and the manifest's name there is no write and no sync of ours."""
    done: list[str] = []
    recorded = DiskStore(store.root, lambda _, what: done.append(what.split(" ")[0]))
    save_at(store, 1)
    name = whole(store)[0]
    manifest = read_record(store, Manifest, f"{name}/{MANIFEST}")
    index = read_record(store, Index, f"{name}/layout-{manifest.layout}.json")
    recorded.make_dir("000000002.b0003.t0007")

    def newest() -> int:
        done.append("look")
        return 7

    commit(recorded, "000000002.b0003.t0007", replace(manifest, step=2), index, newest)
    assert done[done.index("look") :] == ["look", "close", "rename", "open", "fsync"]


def test_the_index_is_shared_between_checkpoints(store: DiskStore) -> None:
    """Checkpoints of one layout link one index, each whole without the other; a new layout has its own."""
    first, second = save_at(store, 1), save_at(store, 2)
    (index,) = (path.name for path in (store.root / first).glob("layout-*"))
    assert (store.root / first / index).samefile(store.root / second / index)
    delete(store, first)
    assert verify(store, second) == []
    boxes = (*BOXES, Box("more", "U8", (1,)))
    other = save(store, [boxes, boxes], [values_of(boxes)] * 2, step=3)
    assert not (store.root / other / index).exists()


def test_a_rotten_index_is_not_linked_on(store: DiskStore) -> None:
    """An index that has changed on disk is written anew, not passed on to the next checkpoint."""
    first = save_at(store, 1)
    (index,) = (path.name for path in (store.root / first).glob("layout-*"))
    change(store, f"{first}/{index}", 10)
    second = save_at(store, 2)
    assert verify(store, second) == []
    assert verify(store, first) != []


def test_what_does_not_count_says_why(store: DiskStore, tmp_path: Path) -> None:
    """Whatever is named like a checkpoint is listed, with the reason where it doesn't count."""
    good, unfinished, short = save_at(store, 1), save_at(store, 2), save_at(store, 3)
    store.remove(f"{unfinished}/{MANIFEST}")
    (store.root / short / "rank-00001.safetensors").write_bytes(b"")
    (store.root / "000000004.b0001.t0001").symlink_to(tmp_path)
    (store.root / "000000005.b0001.t0001").write_text("a file")
    (store.root / "notes").mkdir()
    found = discover(store)
    assert [(each.name, each.manifest is not None) for each in found] == [
        (good, True), (unfinished, False), (short, False), ("000000004.b0001.t0001", False),
        ("000000005.b0001.t0001", False),
    ]  # fmt: skip
    reasons = ("", "never finished", "has 0 bytes", "no directory", "no directory")
    assert all(reason in each.why_not for reason, each in zip(reasons, found, strict=True))


def test_a_store_that_cannot_be_listed_is_not_empty(store: DiskStore) -> None:
    """Where the store doesn't answer discovery raises: nothing found would mean a fresh start."""
    save_at(store, 1)
    with pytest.raises(StoreUnavailable):
        discover(DiskStore(store.root, fail_at(1)))
    (found,) = discover(DiskStore(store.root, fail_at(2)))
    assert found.manifest is None
    assert "Input/output error" in found.why_not


def test_verify_lists_all_that_is_wrong(store: DiskStore) -> None:
    """Each bad chunk is named with expected and got, and files nobody vouches for are named too."""
    name = save_at(store, 1)
    change(store, f"{name}/rank-00000.safetensors", 5000)
    change(store, f"{name}/rank-00001.safetensors", 3)
    (store.root / name / "stray.safetensors").write_bytes(b"")
    problems = verify(store, name)
    assert [(problem.file, problem.chunk) for problem in problems] == [
        ("rank-00000.safetensors", 0), ("rank-00001.safetensors", 0), ("rank-00001.safetensors", None),
        ("stray.safetensors", None),
    ]  # fmt: skip
    assert problems[0].expected != problems[0].got
    assert verify(store, "000000009.b0001.t0001") != []


def test_verify_compares_header_and_index(store: DiskStore) -> None:
    """An index of other tensors than the files hold is found, though every seal is whole."""
    name = save_at(store, 1)
    manifest = read_record(store, Manifest, f"{name}/{MANIFEST}")
    path = f"{name}/layout-{manifest.layout}.json"
    index = read_record(store, Index, path)
    changed = tuple(replace(file, pieces=file.pieces[1:]) for file in index.files)
    store.put(path, dump(replace(index, files=changed)))
    assert {problem.what for problem in verify(store, name)} == {"its header and the index differ"}


def test_delete_leaves_the_others(store: DiskStore) -> None:
    """A deletion removes one directory with all in it, leftovers too, and does nothing when it is gone."""
    first, second = save_at(store, 1), save_at(store, 2)
    (store.root / first / ".x.1.tmp").write_text("left over")
    delete(store, first)
    delete(store, first)
    assert store.names() == [second]
    with pytest.raises(ValueError, match="not the name"):
        delete(store, "../run.json")


def test_layouts_that_make_no_checkpoint_are_refused() -> None:
    """A tensor is named that two ranks write, that is held and not written, or written and not held."""
    shard = Box("s", "U8", (2,), whole=(4,), offsets=(0,))
    twice = [Layout.of([shard], rank, 2) for rank in (0, 1)]
    with pytest.raises(CheckpointError, match="these layouts: s should"):
        Index.of(twice, [[shard], [shard]])
    shared = Box("w", "U8", (2,), replicated=True)
    with pytest.raises(CheckpointError, match="these layouts: w should"):
        Index.of([Layout.of([], rank, 2) for rank in (0, 1)], [[shared], [shared]])
    with pytest.raises(CheckpointError, match="these layouts: w should"):
        Index.of([Layout.of([shared], 0, 1)], [[]])
