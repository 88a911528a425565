"""The ranks that one launch brought: who has said hello, who is alive, who has said goodbye."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
from dataclasses import dataclass, field
from typing import Any

from surefoot import wire
from surefoot.agent.memory import Offer
from surefoot.core.events import StepDone, WorkerExited
from surefoot.core.recovery import Candidate
from surefoot.core.state import RunState
from surefoot.loop.beat import Beat

Message = dict[str, Any]

# linux/pidfd.h: struct pidfd_info, its first version, and _IOWR(0xFF, 11, struct pidfd_info).
_INFO_BYTES = 64
_EXIT_CODE_AT = 60
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 3 << 30 | _INFO_BYTES << 16 | 0xFF << 8 | 11


@dataclass(slots=True)
class Rank:
    """One rank's process, seen from its agent."""

    number: int
    channel: wire.Channel
    hello: Message
    pid: int
    pidfd: int
    beat: Beat
    offer: Offer | None = None
    """What it offered since slots were last made."""
    slot_fds: list[int] = field(default_factory=list)
    """Handed back by a rank whose agent died."""
    bye: Message | None = None
    report: tuple[WorkerExited, int, int] | None = None
    """What it says of its end, its n, and when that came: not yet judged."""
    hung_up: bool = False
    failed: bool = False
    """It has said what ended it."""
    ended_ns: int | None = None
    """When its end was noticed, on the agent's clock."""
    dead: bool = False
    """Its end has been taken in."""

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    @property
    def gone(self) -> bool:
        """Whether it has ended, or left the run with an error of its own: a notebook lives on after one."""
        return not self.alive or (self.failed and self.hung_up)

    def exit_status(self) -> int | None:
        """Return how its process ended, as `os.waitstatus_to_exitcode` gives it: negative for a signal.

        It isn't our child: Linux tells since 6.15, once the parent has collected it. None before that.
        """
        info = bytearray(struct.pack("Q", _PIDFD_INFO_EXIT).ljust(_INFO_BYTES, b"\0"))
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.pidfd, _PIDFD_GET_INFO, info)
            (known,) = struct.unpack_from("Q", info)
            (status,) = struct.unpack_from("i", info, _EXIT_CODE_AT)
            if known & _PIDFD_INFO_EXIT:
                return os.waitstatus_to_exitcode(status)
        return None

    def exited(self, node: str, status: int | None) -> WorkerExited:
        """Return its end as an event."""
        if status is None:
            return WorkerExited(node=node, rank=self.number)
        if status < 0:
            return WorkerExited(node=node, rank=self.number, signal=-status)
        return WorkerExited(node=node, rank=self.number, code=status)

    def unreported(self, state: RunState) -> list[StepDone]:
        """Return the turns that rank 0 finished and couldn't report any more: its page has them.

        Without the agreed values: the sum over the ranks died with it.
        """
        if self.number != 0 or state.attempt.phase != "running":
            return []
        return [
            StepDone(
                branch=state.lineage[-1][0],
                step=turn.step,
                batch=turn.batch,
                sample=turn.sample,
                end_ns=turn.end_ns,
                data_ns=turn.data_ns,
            )
            for turn in self.beat.turns()
            if turn.step >= state.step
        ]

    def kill(self) -> None:
        """End its process at once; by descriptor, so never a stranger that has its pid now."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of everything of the rank's."""
        self.channel.close()
        os.close(self.pidfd)
        fd = self.beat.fd
        self.beat.close()
        os.close(fd)


@dataclass(slots=True)
class Group:
    """All ranks of one launch on this node."""

    id: str
    world_size: int
    phase: str
    """joining, asked (a start is asked for), starting (on record), rejoining (after an agent's death),
    running, left (said goodbye), over (lost a rank)."""
    ranks: dict[int, Rank] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = ()
    """What it may restore, newest first."""
    kill_ns: int = 0
    """When what is left of it is ended, on the agent's clock."""

    @property
    def complete(self) -> bool:
        """Whether every rank has said hello."""
        return len(self.ranks) == self.world_size

    def in_order(self) -> list[Rank]:
        """Return the ranks by number."""
        return [self.ranks[number] for number in sorted(self.ranks)]

    def times_of(self, step: int) -> dict[str, Any] | None:
        """Return the median compute time of a turn over the ranks and the slowest rank, as pages show it."""
        times = {
            rank.number: turn.compute_ns
            for rank in self.in_order()
            for turn in rank.beat.turns(last=4)
            if turn.step == step
        }
        if len(times) < self.world_size:
            return None
        from statistics import median  # not at the start: it brings fractions, decimal and random

        slowest = max(times, key=lambda number: times[number])
        return {"median_ns": int(median(times.values())), "slowest": slowest}

    def pids(self) -> str:
        """Return the pids for a message."""
        return ", ".join(str(rank.pid) for rank in self.in_order())

    def kill(self) -> None:
        """End what is left of the group."""
        for rank in self.ranks.values():
            if not rank.gone:
                rank.kill()

    def close(self) -> None:
        """Let go of everything of the group's."""
        for rank in self.ranks.values():
            rank.close()
