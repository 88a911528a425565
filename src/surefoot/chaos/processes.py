"""The processes below this one: found in /proc, killed by descriptor, and reaped.

This process has to be the reaper of its descendants (PR_SET_CHILD_SUBREAPER): then whoever loses its
parent becomes a child of ours, and nothing that a trial started can be lost.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_END_S = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """One of them, as it is now."""

    pid: int
    parent: int
    args: list[str]


def descendants() -> list[Process]:
    """Return every living process below this one, parents before their children."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                text = (entry / "stat").read_bytes()
                state, above = text[text.rindex(b")") + 2 :].split()[:2]
                if state not in {b"Z", b"X"}:
                    below.setdefault(int(above), []).append(int(entry.name))
    found: list[Process] = []
    parents = [os.getpid()]
    for parent in parents:
        for pid in below.get(parent, ()):
            parents.append(pid)
            found.append(Process(pid, parent, _args(pid)))
    return found


def _args(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def kill(pids: Iterable[int]) -> None:
    """Kill all of these, then wait until they are dead; zombies of ours stay to be reaped."""
    held: list[int] = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                held.append(os.pidfd_open(pid))
        for fd in held:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        for fd in held:
            select.select([fd], [], [], _END_S)
    finally:
        for fd in held:
            os.close(fd)


def reap(pids: Iterable[int]) -> None:
    """Collect the exits of children of ours that are dead."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
