"""run.json: what makes a directory a run, and what is refused."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from surefoot.errors import ForeignRun
from surefoot.journal import rundir
from surefoot.journal.codec import seal
from surefoot.journal.rundir import create, move_aside, read


@pytest.mark.parametrize("made", [False, True])
def test_a_new_directory_becomes_a_run(tmp_path: Path, made: bool) -> None:
    """An absent or empty directory is no run, and becomes one with an id of its own."""
    run_dir = tmp_path / "runs" / "gpt"
    if made:
        run_dir.mkdir(parents=True)
    assert read(run_dir) is None
    run = create(run_dir, "gpt")
    assert re.fullmatch("[0-9a-f]{32}", run.run)
    assert (run.name, run.format) == ("gpt", 1)
    assert read(run_dir) == run
    assert create(tmp_path / "other", "gpt").run != run.run


def test_a_run_is_created_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many that create it at once, all get what one wrote; what is there is never rewritten."""
    with ThreadPoolExecutor(8) as pool:
        runs = set(pool.map(lambda n: create(tmp_path / "r", f"name {n}"), range(16)))
    assert len(runs) == 1
    assert read(tmp_path / "r") in runs
    found = [None, *runs]
    monkeypatch.setattr(rundir, "read", lambda _: found.pop(0))
    assert create(tmp_path / "r", "late") in runs
    assert found == []


def test_what_a_crash_left_aside_is_not_foreign(tmp_path: Path) -> None:
    """A directory with only a half-written run.json aside is still empty."""
    (tmp_path / ".run.json.17-abcdef01").touch()
    assert read(tmp_path) is None
    create(tmp_path, "gpt")


def test_a_directory_with_other_things_is_refused(tmp_path: Path) -> None:
    """What is not a run and not empty is named and left alone."""
    for name in "abcd":
        (tmp_path / name).touch()
    with pytest.raises(ForeignRun, match=r"it has a, b, c, …, but no run\.json"):
        create(tmp_path, "gpt")
    assert len(list(tmp_path.iterdir())) == 4


def test_a_file_is_no_run(tmp_path: Path) -> None:
    """A path that leads through a file is refused."""
    (tmp_path / "gpt").touch()
    with pytest.raises(ForeignRun, match="can't be read"):
        read(tmp_path / "gpt")


@pytest.mark.parametrize("content", [b"", b'{"run":"1"}\n', seal({"name": "gpt"}), seal({"a": 1})[:-2]])
def test_unreadable_is_not_new(tmp_path: Path, content: bytes) -> None:
    """A run.json that can't be read never becomes a fresh start."""
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ForeignRun, match=r"run\.json can't be read.*restore"):
        create(tmp_path, "gpt")
    assert (tmp_path / "run.json").read_bytes() == content


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """A run of a higher format is refused and says which."""
    (tmp_path / "run.json").write_bytes(seal({"run": "0" * 32, "name": "gpt", "format": 2}))
    with pytest.raises(ForeignRun, match=r"format 2\..*at most 1"):
        read(tmp_path)


def test_moved_aside_nothing_is_lost(tmp_path: Path) -> None:
    """A run moved aside is whole under its new name, and names never clash."""
    run_dir = tmp_path / "gpt"
    moved = set()
    for n in range(3):
        run = create(run_dir, f"{n}")
        old = move_aside(run_dir)
        assert re.fullmatch(r"gpt\.old-\d{8}-\d{6}(-\d)?", old.name)
        assert read(old) == run
        assert not run_dir.exists()
        moved.add(old)
    assert len(moved) == 3


def test_a_link_is_moved_where_it_points(tmp_path: Path) -> None:
    """A directory behind a link moves beside itself; the link then leads to the new run."""
    (tmp_path / "scratch").mkdir()
    link = tmp_path / "gpt"
    link.symlink_to(tmp_path / "scratch" / "real")
    first = create(link, "gpt")
    old = move_aside(link)
    assert old.parent == tmp_path / "scratch"
    second = create(link, "gpt")
    assert (read(old), read(tmp_path / "scratch" / "real")) == (first, second)
