"""Every file operation: atomic names, errors with their place, names that stay inside."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.checkpoints import descriptors

from surefoot.checkpoint.store import DiskStore
from surefoot.errors import CorruptCheckpoint, StoreUnavailable


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    made = DiskStore(tmp_path / "checkpoints")
    made.make_dir("a")
    return made


def test_a_file_is_there_whole(store: DiskStore) -> None:
    """What was put is read back, and nothing else lies beside it."""
    store.put("a/x", b"hello")
    assert store.read("a/x", 10) == b"hello"
    assert (store.size("a/x"), store.size("a/y"), store.names("a"), store.names()) == (5, None, ["x"], ["a"])
    store.put("a/x", b"again")
    assert store.read("a/x", 10) == b"again"


def test_a_failed_file_leaves_nothing(store: DiskStore) -> None:
    """An exception in the middle removes what was written, and the name keeps what it had."""
    store.put("a/x", b"old")
    before = descriptors()
    with pytest.raises(StoreUnavailable), store.create("a/x") as file:
        file.write(b"new", -1)
    assert store.names("a") == ["x"]
    assert store.read("a/x", 10) == b"old"
    assert descriptors() == before


def test_writes_may_lie_anywhere(store: DiskStore) -> None:
    """Offsets are absolute and an empty write is one."""
    with store.create("a/x") as file:
        file.write(memoryview(b"def"), 3)
        file.write(b"abc", 0)
        file.write(b"", 0)
    assert store.read("a/x", 6) == b"abcdef"


def test_durable_before_visible(tmp_path: Path) -> None:
    """A file is synced before it has its name, and its directory after."""
    done: list[str] = []
    store = DiskStore(tmp_path, lambda _, what: done.append(what.rsplit(" ", 1)[0]))
    store.put("x", b"1")
    assert done == ["create", "write", "fsync", "close", "rename", "open", "fsync dir"]
    assert store.calls == len(done)


@pytest.mark.parametrize("number", range(1, 8))
def test_every_refusal_has_its_place(tmp_path: Path, number: int) -> None:
    """Whichever operation fails, the error names it and its file, and no file is half there."""

    def fault(call: int, _: str) -> None:
        if call == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = DiskStore(tmp_path, fault)
    with pytest.raises(StoreUnavailable, match=r"cannot .* No space left .* try again") as caught:
        store.put("x", b"1")
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value, OSError)
    assert [path.name for path in tmp_path.iterdir()] == (["x"] if number > 5 else [])


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a//b", "", "a/\0", "a/."])
def test_names_stay_inside(store: DiskStore, name: str) -> None:
    """A name that leads out of the store is refused, whatever is asked of it."""
    for operation in (store.size, store.names, store.remove, store.make_dir):
        with pytest.raises(CorruptCheckpoint, match="leads out"):
            operation(name)


def test_links_are_not_followed(store: DiskStore, tmp_path: Path) -> None:
    """A symbolic link is neither a file nor a directory of the store."""
    (tmp_path / "secret").write_text("x")
    (store.root / "a" / "link").symlink_to(tmp_path / "secret")
    (store.root / "elsewhere").symlink_to(tmp_path)
    with pytest.raises(CorruptCheckpoint, match="no regular file"):
        store.read("a/link", 10)
    with pytest.raises(StoreUnavailable), store.open("a/link"):
        pass
    assert not store.is_dir("elsewhere")
    assert store.is_dir("a")


def test_absent_long_and_cut_files(store: DiskStore) -> None:
    """An absent file, one over the limit and one that ends too early are corrupt, each in its words."""
    store.put("a/x", b"hello")
    with pytest.raises(CorruptCheckpoint, match="is not there"):
        store.read("a/y", 10)
    with pytest.raises(CorruptCheckpoint, match="has 5 bytes"):
        store.read("a/x", 4)
    with store.open("a/x") as file, pytest.raises(CorruptCheckpoint, match="ends at byte 5"):
        file.read_into(3, memoryview(bytearray(3)))


def test_an_absent_store_is_empty(tmp_path: Path) -> None:
    """A run that never saved has no names; a store that can't be listed is an error."""
    assert DiskStore(tmp_path / "none").names() == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        DiskStore(tmp_path / "file").names()


def test_links_and_removal(store: DiskStore) -> None:
    """A second name outlives the first; removing what is gone is fine."""
    store.make_dir("b")
    store.put("a/x", b"1")
    store.link("a/x", "b/x")
    store.remove("a/x")
    store.remove("a/x")
    store.remove_dir("a")
    assert (store.read("b/x", 1), store.names()) == (b"1", ["b"])
