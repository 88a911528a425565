"""Points: who comes to one reports it and waits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from surefoot.chaos.faults import CHILD, ENTER, HALFWAY, LEAVE, RANK, STORE, Point, Post, bootstrap

PLACES = """
import os
def outer(): inner()
def inner(): pass
def write(path):
    fd, left = os.open(path, os.O_WRONLY | os.O_CREAT), b"12345"
    while left:
        left = left[os.write(fd, left):]
"""
OUTER, INNER = "places:outer", "places:inner"


@pytest.fixture
def post() -> Iterator[Path]:
    with TemporaryDirectory(prefix="sf-") as short:
        yield Path(short) / "post"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "places.py").write_text(PLACES)
    paths = [str(tmp_path), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return tmp_path


def start(points: list[Point], post: Path, does: str) -> subprocess.Popen[bytes]:
    """Start a rank with these points in it that does something with places."""
    return subprocess.Popen([sys.executable, "-c", bootstrap(RANK, points, post, f"import places\n{does}")])


def comes_to(points: list[Point], post: Path, does: str) -> list[int]:
    """Return the numbers of the points that a rank comes to, each of which it may pass."""
    met, watch = [], Post(post)
    with start(points, post, does) as process:
        while process.poll() is None:
            for coming in watch.coming():
                assert coming.pid == process.pid
                met.append(coming.point)
                coming.release()
    watch.close()
    assert process.returncode == 0
    return met


def test_a_call_is_entered_and_left(post: Path, place: Path) -> None:
    """A process reports in the order in which it comes by; points of other kinds of processes aren't its."""
    points = [Point(RANK, LEAVE, OUTER), Point(CHILD, ENTER, OUTER), Point(RANK, ENTER, OUTER)]
    assert comes_to(points, post, "places.outer()") == [2, 0]


def test_a_point_inside_of_another_call(post: Path, place: Path) -> None:
    """Such a point is one only while the other call lasts."""
    points = [Point(RANK, ENTER, INNER, OUTER)]
    assert comes_to(points, post, "places.inner(); places.outer(); places.inner()") == [0]


def test_halfway_through_the_bytes(post: Path, place: Path) -> None:
    """Who goes on from halfway through a write writes it all; who is killed there has written half of it."""
    points = [Point(RANK, HALFWAY, "os:write", "places:write")]
    assert len(comes_to(points, post, f"places.write({str(place / 'whole')!r})")) > 1
    assert (place / "whole").read_bytes() == b"12345"
    watch = Post(post.with_name("other"))
    with start(points, post.with_name("other"), f"places.write({str(place / 'half')!r})") as process:
        while not (met := watch.coming()):
            assert process.poll() is None
        process.kill()
    met[0].release()
    watch.close()
    assert (place / "half").read_bytes() == b"123"


def test_an_operation_of_a_store(post: Path, place: Path) -> None:
    """A store's operations are points by name, before they are done."""
    points = [Point(RANK, STORE, "rename */b"), Point(RANK, STORE, "create a/*")]
    does = f"""
from surefoot.checkpoint.store import DiskStore
store = DiskStore(Path({str(place / "store")!r}))
store.make_dir("a")
store.put("a/b", b"data")
"""
    assert comes_to(points, post, does) == [1, 0]


def test_nobody_at_the_post(post: Path, place: Path) -> None:
    """Where nobody listens, a point is none: the process goes on."""
    with start([Point(RANK, ENTER, OUTER)], post, "places.outer()") as process:
        pass
    assert process.returncode == 0
