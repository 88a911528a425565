"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from surefoot.journal import atomic


def test_one_of_many_creates(tmp_path: Path) -> None:
    """Of sixteen that try at once one makes the file, and it is that one's."""
    with ThreadPoolExecutor(8) as pool:
        ours = list(pool.map(lambda n: atomic.create(tmp_path / "x", b"%d" % n), range(16)))
    assert ours.count(True) == 1
    assert (tmp_path / "x").read_bytes() == b"%d" % ours.index(True)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_lost_answer_is_not_a_lost_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that NFS made and then calls already there is ours; one that another made is not."""
    link = Path.hardlink_to

    def twice(self: Path, target: Path) -> None:
        link(self, target)
        link(self, target)

    monkeypatch.setattr(Path, "hardlink_to", twice)
    assert atomic.create(tmp_path / "x", b"1")
    assert not atomic.create(tmp_path / "x", b"2")


@pytest.mark.parametrize("write", [atomic.create, atomic.replace])
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], object]
) -> None:
    """If the data can't be made durable there is no file, and none aside."""

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "x", b"1")
    assert list(tmp_path.iterdir()) == []


def test_replace_replaces(tmp_path: Path) -> None:
    """The newest content is there under the one name."""
    atomic.replace(tmp_path / "x", b"1")
    atomic.replace(tmp_path / "x", b"2")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"2")]
