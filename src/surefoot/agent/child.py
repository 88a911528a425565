"""A child that does what may block or crash: disk, hashes, git. The agent's tick loop calls none of it.

Jobs go out and replies come back as messages, in order. A child that dies or stays silent past its
deadline is replaced; what it had not answered is handed back to the owner, who knows whether it may
be done again.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from surefoot import wire

CHILD_COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "surefoot.agent.mover")
"""How a child is started; its descriptor follows. Tests put faults in here."""


@dataclass(frozen=True, slots=True)
class Job:
    """One thing to do."""

    id: int
    do: str
    args: dict[str, Any]
    fds: tuple[int, ...]
    """Lent: they stay open here."""
    since_ns: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a job."""

    job: Job
    result: dict[str, Any] | None
    error: str | None
    """Why it failed: the child's own words, or that the child is gone."""
    gone: bool = False
    """The child died or was replaced: whether the job was done isn't known."""


class Child:
    """One worker process for jobs that are done one after the other; it starts with the first."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_ns = int(deadline_s * 1e9)
        self._jobs: deque[Job] = deque()
        self._ids = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: wire.Channel | None = None

    def ask(self, do: str, args: dict[str, Any], now_ns: int, fds: Sequence[int] = ()) -> int:
        """Send a job and return its id; never blocks."""
        self._ids += 1
        job = Job(self._ids, do, args, tuple(fds), now_ns)
        self._jobs.append(job)
        self._send(job)
        return job.id

    @property
    def busy(self) -> bool:
        """Whether an answer is due."""
        return bool(self._jobs)

    @property
    def fd(self) -> int | None:
        """The descriptor to wait on, while there is a child."""
        return self._channel.fileno() if self._channel is not None else None

    def poll(self, now_ns: int) -> list[Reply]:
        """Return what has come back since the last time."""
        replies: list[Reply] = []
        if self._channel is None:
            return replies
        try:
            self._channel.flush()
            for message, _ in self._channel.receive():
                job = self._jobs.popleft()
                assert job.id == message["id"], "a child answers its jobs in order"
                replies.append(Reply(job, message.get("result"), message.get("error")))
        except ConnectionError:
            return replies + self._replace("the child that did it ended")
        if self._jobs and now_ns - self._jobs[0].since_ns > self._deadline_ns:
            replies += self._replace(f"no answer within {self._deadline_ns / 1e9:g} s")
        return replies

    def _send(self, job: Job) -> None:
        if self._channel is None:
            self._start()
        assert self._channel is not None
        try:
            self._channel.send({"kind": "job", "id": job.id, "do": job.do, "args": job.args}, job.fds)
        except ConnectionError:
            # The next poll sees it and hands the job back.
            return

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*CHILD_COMMAND, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._channel = wire.Channel(ours)

    def _replace(self, why: str) -> list[Reply]:
        lost = [Reply(job, None, why, gone=True) for job in self._jobs]
        self._jobs.clear()
        self.close()
        return lost

    def close(self) -> None:
        """End the child; it is killed, since it may hang in the store."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.poll()
            self._process = None
