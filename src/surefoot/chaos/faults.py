"""Points at which a process can be struck: it reports that it has come to one, and waits.

A point is a call, of a function of ours or of an operation of a checkpoint's store. It is put in from
outside, by replacing the function where it is looked up; the product knows nothing of it. Whoever sits
at the post decides: it lets the process go on, or kills it, or another, while it stands there. So a
fault strikes between two given instructions, and any victim can be struck at any point of any process.
"""

from __future__ import annotations

import functools
import importlib
import json
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from surefoot.checkpoint.store import DiskStore

RANK, AGENT, CHILD = "rank", "agent", "child"
"""The kinds of processes of a run; an agent's children do its writing."""

ENTER, LEAVE, HALFWAY, STORE = "enter", "leave", "halfway", "store"


@dataclass(frozen=True, slots=True)
class Point:
    """Where a process stops and reports."""

    process: str
    when: str
    """`ENTER` or `LEAVE` a call, `HALFWAY` through its bytes, or before an operation of a `STORE`."""
    call: str
    """"module:name" or "module:Class.method"; of a store "operation name", as a pattern."""
    inside: str = ""
    """Only while this other call lasts."""

    def __str__(self) -> str:
        where = self.call.removeprefix("surefoot.")
        inside = f" in {self.inside.removeprefix('surefoot.')}" if self.inside else ""
        return f"{self.process}: {self.when} {where}{inside}"


def install(process: str, points: Sequence[Point], post: Path) -> None:
    """Put the points of a kind of process into this one; it reports to whoever listens at `post`."""
    for number, point in enumerate(points):
        if point.process == process:
            report = functools.partial(_report, post, number)
            if point.when == STORE:
                _into_stores(point, report)
            else:
                _into_call(point, report)


def bootstrap(process: str, points: Sequence[Point], post: Path, then: str) -> str:
    """Return a program for `python -c` that puts the points into itself and then does what it is for."""
    return (
        "import faulthandler, json; faulthandler.enable(); from pathlib import Path\n"
        "from surefoot.chaos import faults\n"
        f"points = [faults.Point(**point) for point in json.loads({dump(points)!r})]\n"
        f"faults.install({process!r}, points, Path({str(post)!r}))\n"
        f"{then}"
    )


def dump(points: Sequence[Point]) -> str:
    """Return points as JSON."""
    return json.dumps([asdict(point) for point in points])


def _report(post: Path, number: int) -> None:
    """Say that this process has come to a point, and wait until it may go on; nobody there: go on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        try:
            line.connect(str(post))
            line.send(str(number).encode())
            line.recv(1)
        except OSError:
            return


def _into_call(point: Point, report: Callable[[], None]) -> None:
    owner, name = _place(point.call)
    original = getattr(owner, name)
    lasting = _lasting(point.inside) if point.inside else None

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if lasting is not None and not lasting:
            return original(*args, **kwargs)
        if point.when == HALFWAY:
            # As os.write and os.pwrite: a descriptor, bytes, perhaps an offset.
            fd, data, *offset = args
            done: int = original(fd, data[: (len(data) + 1) // 2], *offset)
            report()
            return done
        if point.when == ENTER:
            report()
        result = original(*args, **kwargs)
        if point.when == LEAVE:
            report()
        return result

    setattr(owner, name, watched)


def _lasting(call: str) -> list[None]:
    """Return a list that is empty unless the call lasts."""
    owner, name = _place(call)
    original = getattr(owner, name)
    depth: list[None] = []

    @functools.wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        depth.append(None)
        try:
            return original(*args, **kwargs)
        finally:
            depth.pop()

    setattr(owner, name, counted)
    return depth


def _into_stores(point: Point, report: Callable[[], None]) -> None:
    """Watch every store that is opened from here on, beside what watches it already."""
    original = DiskStore.__init__

    @functools.wraps(original)
    def watched(self: DiskStore, root: Path, fault: Callable[[int, str], None] | None = None) -> None:
        def both(n: int, operation: str) -> None:
            if fnmatchcase(operation, point.call):
                report()
            if fault is not None:
                fault(n, operation)

        original(self, root, both)

    DiskStore.__init__ = watched  # type: ignore[method-assign]


def _place(call: str) -> tuple[Any, str]:
    """Return what holds a function, and its name there."""
    module, _, path = call.partition(":")
    *outer, name = path.split(".")
    owner: Any = functools.reduce(getattr, outer, importlib.import_module(module))
    getattr(owner, name)
    return owner, name


class Coming:
    """A process that stands at a point until it is released."""

    def __init__(self, line: socket.socket, point: int) -> None:
        self.point = point
        """Its number."""
        raw = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid = int.from_bytes(raw[:4], "little")
        self._line = line

    def release(self) -> None:
        """Let it go on, if it still can."""
        self._line.close()


class Post:
    """Where processes report."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(256)
        self._listener.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._listener.fileno()

    def coming(self) -> list[Coming]:
        """Return who has come to a point since the last call; each stands there until released."""
        found = []
        while select.select([self._listener], [], [], 0)[0]:
            line, _ = self._listener.accept()
            line.settimeout(1.0)
            try:
                found.append(Coming(line, int(line.recv(16) or b"-1")))
            except (OSError, ValueError):
                line.close()
        return found

    def close(self) -> None:
        """Leave the post: whoever comes to a point goes on."""
        self._listener.close()
