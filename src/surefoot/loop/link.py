"""The line between a rank and its agent: start it, join it, and never lose what the journal lacks.

The training process has no thread of ours: the loop polls at its boundaries. Sending never blocks.
Events are numbered by the rank and kept until the agent says they are on disk; if the agent dies,
the line finds or starts another, says hello again and sends what that one hasn't heard.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surefoot import errors, wire
from surefoot.core.events import Event, StepDone
from surefoot.errors import AgentError, SurefootError
from surefoot.journal.codec import encode_event

Message = dict[str, Any]
Received = tuple[Message, list[int]]

AGENT_COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "surefoot.agent")
"""How an agent is started; the run directory follows. Tests put faults in here."""

RETRY_NS = 20_000_000
"""Between two tries to find an agent while training goes on."""

SPAWN_NS = 1_000_000_000
"""Between two starts of an agent, and only once the first of them has come or is dead."""

OTHERS_NS = 5_000_000_000
"""How long ranks other than 0 wait for the agent that rank 0 starts, before they start one."""

STARTS_MAX = 10
"""Agents started in a row without a welcome, before a rank that waits gives up."""

UNKNOWN_MAX = 100_000
"""Events kept for an agent that isn't there; beyond, the oldest step lines go (they are counted)."""


class Link:
    """One rank's line to the agent of its node."""

    def __init__(self, run_dir: Path, run_id: str, rank: int) -> None:
        self.run_dir = run_dir
        self.rank = rank
        self.dropped = 0
        """Step lines given up because no agent took them."""
        self._path = wire.socket_path(run_id)
        self._log = self._path.with_suffix(".log")
        self._starter: subprocess.Popen[bytes] | None = None
        self._coming: int | None = None
        """A pipe that ends when the agent we started listens, or is dead."""
        self._channel: wire.Channel | None = None
        self._n = 0
        self._unknown: deque[tuple[int, Message]] = deque()
        self._joined = False
        self._trains = False
        """Whether it has been welcomed once: from then on no agent's failure ends the rank."""
        self._hello: Callable[[], tuple[Message, list[int]]] | None = None
        self._tried_ns = 0
        self._spawn_ns = self._may_spawn_ns()
        self._starts = 0
        """Agents started since one has welcomed this rank."""
        self._inbox: deque[Received] = deque()

    def join(self, hello: Message, fds: list[int], deadline_s: float) -> Received:
        """Find or start the agent, say hello and return its welcome.

        One that ends before it answers is looked for again: it may have been leaving a finished run.
        Raises the error the agent refuses with, or AgentError at the deadline.
        """
        self._hello = lambda: (hello, fds)
        return self.wait_for("welcome", deadline_s)

    def resume_with(self, hello: Callable[[], tuple[Message, list[int]]]) -> None:
        """Say how to introduce this rank to an agent that takes over."""
        self._hello, self._trains = hello, True

    def event(self, event: Event) -> None:
        """Send an event; it is kept until the agent has it on disk."""
        self._n += 1
        message: Message = {"kind": "event", "n": self._n, **encode_event(event)}
        self._unknown.append((self._n, message))
        if len(self._unknown) > UNKNOWN_MAX:
            self._give_up_oldest()
        if self._joined:
            self.send(message)

    def send(self, message: Message, fds: list[int] | None = None) -> None:
        """Send a message if an agent is there; what must not be lost is an event."""
        if self._channel is None:
            return
        try:
            self._channel.send(message, fds or [])
        except ConnectionError:
            self._lost()

    def poll(self) -> list[Received]:
        """Return what the agent sent; look for another one if it is gone. Never blocks."""
        self._receive()
        if self._channel is None and self._hello is not None:
            now_ns = time.monotonic_ns()
            if now_ns - self._tried_ns >= RETRY_NS:
                self._tried_ns = now_ns
                self._rejoin(now_ns)
        received = list(self._inbox)
        self._inbox.clear()
        return received

    def wait_for(self, kind: str, deadline_s: float) -> Received:
        """Wait for a message of a kind; others stay for `poll`.

        Raises AgentError at the deadline, or where agents are started and none stays.
        """
        deadline_ns = time.monotonic_ns() + int(deadline_s * 1e9)
        while True:
            self._receive()
            for received in self._inbox:
                if received[0]["kind"] == kind:
                    self._inbox.remove(received)
                    return received
            now_ns = time.monotonic_ns()
            if now_ns >= deadline_ns:
                raise AgentError(
                    f"{self.run_dir}: the agent did not answer {kind!r} to rank {self.rank} within "
                    f"{deadline_s:g} s; its log is {self._log}"
                )
            if self._starts > STARTS_MAX:
                raise AgentError(
                    f"{self.run_dir}: {STARTS_MAX} agents were started, none stayed to say {kind!r} to rank "
                    f"{self.rank}; their log is {self._log}"
                )
            if self._channel is None:
                self._rejoin(now_ns)
                time.sleep(0.002)
            else:
                self._channel.wait(min(0.1, (deadline_ns - now_ns) / 1e9))

    @property
    def connected(self) -> bool:
        """Whether an agent is there and has welcomed this rank."""
        return self._channel is not None and self._joined

    def close(self) -> None:
        """Hang up."""
        self._reap()
        self._has_come()
        self._hello = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _receive(self) -> None:
        if self._channel is None:
            return
        try:
            self._channel.flush()
            messages = self._channel.receive()
        except ConnectionError:
            self._lost()
            return
        self._reap()
        for message, fds in messages:
            if message["kind"] == "known":
                self._forget(message["n"])
            elif message["kind"] == "refuse":
                raise _refusal(message)
            elif message["kind"] == "welcome" and not self._joined and self._hello is not None:
                self._forget(message["known"])
                self._joined, self._starts = True, 0
                for _, event in self._unknown:
                    self.send(event)
                self._inbox.append((message, fds))
            else:
                self._inbox.append((message, fds))

    def _forget(self, n: int) -> None:
        while self._unknown and self._unknown[0][0] <= n:
            self._unknown.popleft()

    def _give_up_oldest(self) -> None:
        for index, (_, message) in enumerate(self._unknown):
            if message["ev"] == StepDone.EV:
                del self._unknown[index]
                self.dropped += 1
                return

    def _lost(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel, self._joined = None, False
        self._spawn_ns = max(self._spawn_ns, self._may_spawn_ns())

    def _may_spawn_ns(self) -> int:
        """Return when this rank may start an agent: one is enough, and rank 0 is about to start it."""
        return time.monotonic_ns() + (OTHERS_NS if self.rank != 0 else 0)

    def _rejoin(self, now_ns: int) -> None:
        assert self._hello is not None
        try:
            self._channel = wire.connect(self._path)
        except OSError:
            self._spawn(now_ns)
            return
        self._has_come()
        hello, fds = self._hello()
        self.send(hello, fds)

    def _spawn(self, now_ns: int) -> None:
        """Start an agent. Several ranks may: a lock makes them one."""
        if now_ns < self._spawn_ns or self._is_coming():
            return
        self._spawn_ns = now_ns + SPAWN_NS
        self._starts += 1
        package = str(Path(__file__).resolve().parents[2])
        paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
        self._reap()
        # On a busy machine, or with Python far away, its start takes long: more of them would take longer.
        self._coming, theirs = os.pipe()
        with self._log.open("ab") as log, os.fdopen(theirs, "wb") as ends:
            # It detaches itself, so that it outlives us; only its first half is our child.
            self._starter = subprocess.Popen(
                [*AGENT_COMMAND, str(self.run_dir)], stdin=ends, stdout=log, stderr=log, env=environment
            )

    def _is_coming(self) -> bool:
        """Tell whether the agent we started is still on its way; it holds the other end until it listens."""
        if self._coming is not None and select.select([self._coming], [], [], 0)[0]:
            self._has_come()
        return self._coming is not None

    def _has_come(self) -> None:
        if self._coming is not None:
            os.close(self._coming)
            self._coming = None

    def _reap(self) -> None:
        """Collect the starter; one that failed before it detached says why in the log.

        That ends a rank only before it trains. One that was killed said nothing: the next try tells.
        """
        if self._starter is None or (code := self._starter.poll()) is None:
            return
        self._starter = None
        if code > 0 and not self._trains:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise AgentError(f"{self.run_dir}: the agent can't start: {''.join(last)}; its log is {self._log}")


def _refusal(message: Message) -> SurefootError:
    kind = getattr(errors, str(message.get("error")), AgentError)
    if not (isinstance(kind, type) and issubclass(kind, SurefootError)):
        kind = AgentError
    return kind(str(message["why"]))


def ask(run_id: str, what: str, deadline_s: float = 5.0) -> Message:
    """Ask the agent of a run on this node a question, without being one of its ranks.

    Raises OSError if none is there, AgentError if it doesn't answer in time.
    """
    channel = wire.connect(wire.socket_path(run_id))
    try:
        channel.send({"kind": "ask", "what": what})
        if not channel.wait(deadline_s):
            raise AgentError(f"the agent of run {run_id[:8]}… did not answer {what!r} within {deadline_s:g} s")
        return channel.receive()[0][0]
    finally:
        channel.close()
