"""The agent of a run, found by its lease: to be killed, or to be waited for.

It is named by pid and start time and then held by a descriptor, so a stranger that has its pid by now
is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surefoot.journal import lease

_POLL_S = 0.02


def kill(run_dir: Path) -> int | None:
    """Kill the agent of a run on this machine and return its pid; None if none is there."""
    with _held(run_dir) as agent:
        if agent is None:
            return None
        pid, pidfd = agent
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [])
        return pid


def left(run_dir: Path, timeout_s: float) -> bool:
    """Wait until no agent serves the run; return whether that is so."""
    with _held(run_dir) as agent:
        return agent is None or bool(select.select([agent[1]], [], [], timeout_s)[0])


def end(run_dir: Path) -> None:
    """Kill the agent of a run whose ranks are gone, also one that they had just started."""
    until_s = time.monotonic() + 1.0
    while time.monotonic() < until_s:
        kill(run_dir)
        time.sleep(_POLL_S)


@contextmanager
def _held(run_dir: Path) -> Iterator[tuple[int, int] | None]:
    """Give (pid, descriptor) of the agent while it can be signalled; None if no agent is alive here."""
    found = lease.holder(run_dir)
    pidfd = None
    if found is not None and found.evidence in ("alive", "stopped"):
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(found.lease.pid)
    if found is None or pidfd is None:
        yield None
        return
    try:
        # Looked at again: the pid may have passed on to another process before the descriptor held it.
        again = lease.holder(run_dir)
        same = again is not None and again.lease == found.lease and again.evidence in ("alive", "stopped")
        yield (found.lease.pid, pidfd) if same else None
    finally:
        os.close(pidfd)
