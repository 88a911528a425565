"""The agent: one tick loop that turns sockets, exits and children's answers into events.

No callback does work, and nothing here waits on the run directory: lines go through the scribe,
checkpoints through the mover, both children. The agent outlives its ranks for a while, so that the
next attempt finds its memory.
"""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Any

from surefoot import wire
from surefoot.agent.attempts import Attempts
from surefoot.agent.memory import Memory
from surefoot.agent.scribe import Scribe
from surefoot.agent.start import Start
from surefoot.agent.writes import Writes
from surefoot.brain import Brain
from surefoot.core.events import Asked, ConditionSeen, Noted, TermEnded
from surefoot.core.numbers import newness
from surefoot.errors import RunHeld, SurefootError
from surefoot.journal.cache import state_hash

Message = dict[str, Any]

TICK_MS = 250
"""The longest a tick lasts: beats, deadlines and the inbox need no more."""

PAUSE_S = 0.002
"""Between two ticks while steps come in: short ones are taken by the bunch, and sending one wakes nobody."""

ACK_NS = 500_000_000
"""How often ranks hear which of their lines are on disk."""

LAST_LINES_S = 5.0
"""How long the last lines may take."""


class Agent:
    """The one agent of a run on this node."""

    def __init__(self, start: Start, listener: socket.socket) -> None:
        self._start = start
        self._listener = listener
        self._strangers: list[wire.Channel] = []
        """Connections that haven't said who they are."""
        self._scribe = Scribe(start.run_dir, start.term, start.state.seq, time.monotonic_ns)
        self._brain = Brain(start.state, self._scribe, start.clock, start.node)
        self._memory = Memory(lambda id: newness(self._brain.state.lineage, id))
        self._writes = Writes(start, self._brain, self._memory)
        self._attempts = Attempts(start, self._brain, self._memory, self._writes)
        self._ack_ns = 0
        self._acks: list[tuple[int, dict[str, int]]] = []
        """(seq, rank → n heard) of lines that aren't known to be on disk."""
        self._removals: list[tuple[int, str]] = []
        """(seq, request) of requests that may go once their line is on disk."""
        self._store_error: str | None = None
        for event in start.events:
            self._brain.tell(event)
        self._attempts.take_up()

    def serve(self) -> None:
        """Run until there is nobody left to serve."""
        while not self._attempts.leaving:
            self._wait()
            self._tick()
        self._leave()

    def _wait(self) -> None:
        if self._attempts.live and self._brain.state.session is not None:
            time.sleep(PAUSE_S)
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        channels = [*self._strangers, *self._attempts.channels()]
        for channel in channels:
            poll.register(channel, select.POLLIN | (select.POLLOUT if channel.queued else 0))
        for fd in (*self._attempts.pidfds(), self._scribe.fd, self._writes.fd):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        poll.poll(TICK_MS)

    def _tick(self) -> None:
        self._attempts.look_at_exits()
        self._accept()
        self._attempts.listen()
        self._scribe.tick()
        self._look_at_store()
        self._brain.durable(self._scribe.durable)
        self._take_requests()
        self._writes.tick()
        self._attempts.tick()
        for pending in self._brain.due():
            self._attempts.carry_out(pending)
        self._attempts.grant()
        self._brain.flush()
        self._acknowledge()

    def _accept(self) -> None:
        while (channel := wire.accept(self._listener)) is not None:
            self._strangers.append(channel)
        for channel in list(self._strangers):
            try:
                channel.flush()
                received = channel.receive()
            except ConnectionError:
                self._strangers.remove(channel)
                channel.close()
                continue
            for message, fds in received:
                self._first_words(channel, message, fds)

    def _first_words(self, channel: wire.Channel, message: Message, fds: list[int]) -> None:
        try:
            if message["kind"] == "hello":
                self._attempts.hello(channel, message, fds)
                self._strangers.remove(channel)
            elif message["kind"] == "ask":
                channel.send(self._answer(message))
        except (KeyError, TypeError, ValueError) as error:
            for fd in fds:
                os.close(fd)
            why = (
                f"{self._start.run_dir}: a {message['kind']!r} that this version doesn't understand ({error!r})"
            )
            channel.send({"kind": "refuse", "error": "AgentError", "why": why})
        except SurefootError as error:
            for fd in fds:
                os.close(fd)
            channel.send({"kind": "refuse", "error": type(error).__name__, "why": str(error)})

    def _answer(self, message: Message) -> Message:
        """Answer somebody on this node who asks for the fold, or wants an idle agent to leave."""
        if message.get("what") == "leave":
            self._attempts.leave_if_idle()
            return {"kind": "left"}
        state = self._brain.state
        return {"kind": "fold", "seq": state.seq, "hash": state_hash(state), "live": self._attempts.live}

    def _look_at_store(self) -> None:
        if self._scribe.newest_term > self._start.term:
            self._attempts.kill()
            raise RunHeld(
                f"{self._start.run_dir}: term {self._scribe.newest_term} has begun, this agent holds term "
                f"{self._start.term}: another one leads the run now"
            )
        if self._scribe.error != self._store_error:
            self._store_error = self._scribe.error
            if self._store_error is not None:
                text = f"the run directory refuses: {self._store_error}"
                self._brain.tell(ConditionSeen(node=self._start.node, device=None, kind="store", text=text))

    def _take_requests(self) -> None:
        """Journal what people asked for through the inbox; a request goes once its line is on disk."""
        taken = {id for _, id in self._removals}
        for id, request in self._scribe.requests:
            if id in taken:
                continue
            who, do, args = str(request["who"]), str(request["do"]), dict(request.get("args", {}))
            if do == "note":
                self._brain.tell(Noted(text=str(args.get("text", "")), who=who))
            else:
                self._brain.tell(Asked(id=id, who=who, do=do, args=args))
            self._removals.append((self._brain.state.seq, id))
        self._scribe.requests.clear()
        while self._scribe.bad_requests:
            text = self._scribe.bad_requests.pop()
            self._brain.tell(ConditionSeen(node=self._start.node, device=None, kind="bad_request", text=text))
        while self._removals and self._removals[0][0] <= self._scribe.durable:
            self._scribe.remove(self._removals.pop(0)[1])

    def _acknowledge(self) -> None:
        now_ns = time.monotonic_ns()
        state = self._brain.state
        if now_ns - self._ack_ns >= ACK_NS:
            self._ack_ns = now_ns
            self._acks.append((state.seq, state.heard))
        known: dict[str, int] = {}
        while self._acks and self._acks[0][0] <= self._scribe.durable:
            known = self._acks.pop(0)[1]
        for rank, n in known.items():
            self._attempts.send(int(rank), {"kind": "known", "n": n})

    def _leave(self) -> None:
        """Give the lease back, once the last lines are on disk."""
        self._brain.tell(TermEnded())
        self._brain.flush()
        deadline_ns = time.monotonic_ns() + int(LAST_LINES_S * 1e9)
        while self._scribe.durable < self._brain.state.seq and time.monotonic_ns() < deadline_ns:
            poll = select.poll()
            if self._scribe.fd is not None:
                poll.register(self._scribe.fd, select.POLLIN)
            poll.poll(50)
            self._scribe.tick()
        # Nobody is served here any more: a next agent makes a socket and a log of its own.
        path = wire.socket_path(self._start.run)
        path.unlink(missing_ok=True)
        path.with_suffix(".log").unlink(missing_ok=True)
        self._listener.close()
        self._scribe.close()
        self._writes.close()
        self._attempts.close()
