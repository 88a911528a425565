"""The journal's side of the agent: append, beat the lease, look into the inbox, all in a child.

What the child has not confirmed is kept and sent again to its successor; a line that comes twice
counts once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surefoot.agent.child import Child, Reply

BEAT_NS = 1_000_000_000
INBOX_NS = 250_000_000
RETRY_NS = 500_000_000
DEADLINE_S = 30.0
"""A child that hangs in the run directory longer is replaced."""


class Scribe:
    """Implements `brain.Scribe` with a child, and reports what it finds in the run directory."""

    def __init__(self, run_dir: Path, term: int, seq: int, now_ns: Callable[[], int]) -> None:
        self._where = {"run_dir": str(run_dir), "term": term}
        self._now_ns = now_ns
        self._child = Child(DEADLINE_S)
        self._kept: deque[tuple[int, list[str], bool]] = deque()
        """(first seq, lines, sync) that aren't known to be durable: all may have to be sent again."""
        self._under_way: set[str] = set()
        self._appends = 0
        """Appends under way."""
        self._retry_ns: int | None = None
        """When to send again what is kept, after the store refused."""
        self._vouch_from = 0
        """The first job that may say what is durable: one from before a retry knows of a gap."""
        self.durable = seq
        self.newest_term = term
        self.requests: list[tuple[str, dict[str, Any]]] = []
        """From the inbox, not yet taken."""
        self.bad_requests: list[str] = []
        """What of the inbox can't be read, not yet told."""
        self.error: str | None = None
        """What the run directory refused last, until it takes lines again."""
        self._beats = 0
        self._beat_ns = self._inbox_ns = 0

    @property
    def fd(self) -> int | None:
        """The descriptor to wait on."""
        return self._child.fd

    def append(self, first_seq: int, lines: list[bytes], *, sync: bool) -> None:
        """Take lines with consecutive seqs from `first_seq` on."""
        entry = (first_seq, [line.decode() for line in lines], sync)
        self._kept.append(entry)
        if self._retry_ns is None:
            self._write(entry)

    def _write(self, entry: tuple[int, list[str], bool]) -> int:
        first_seq, lines, sync = entry
        args = {**self._where, "first_seq": first_seq, "lines": lines, "sync": sync}
        self._appends += 1
        return self._child.ask("append", args, self._now_ns())

    def remove(self, request: str) -> None:
        """Remove a request whose `asked` is on disk."""
        self._child.ask("remove_request", {**self._where, "id": request}, self._now_ns())

    def tick(self) -> None:
        """Beat, look, send again what the store refused, and take in what came back."""
        now_ns = self._now_ns()
        for reply in self._child.poll(now_ns):
            self._take(reply, now_ns)
        if now_ns - self._beat_ns >= BEAT_NS and "beat" not in self._under_way:
            self._beat_ns = now_ns
            self._beats += 1
            self._ask("beat", {**self._where, "n": self._beats}, now_ns)
        if now_ns - self._inbox_ns >= INBOX_NS and "inbox" not in self._under_way:
            self._inbox_ns = now_ns
            self._ask("inbox", self._where, now_ns)
        if self._retry_ns is not None and now_ns >= self._retry_ns and not self._appends:
            self._retry_ns = None
            self._vouch_from = min([self._write(entry) for entry in self._kept], default=self._vouch_from)

    def _ask(self, do: str, args: dict[str, Any], now_ns: int) -> None:
        self._under_way.add(do)
        self._child.ask(do, args, now_ns)

    def _take(self, reply: Reply, now_ns: int) -> None:
        do, result = reply.job.do, reply.result
        self._under_way.discard(do)
        self._appends -= do == "append"
        if result is None:
            if do in ("append", "beat"):
                # Whatever wasn't synced may be lost, and must come again, in order.
                self.error = f"{do}: {reply.error}"
                self._retry_ns = now_ns + (0 if reply.gone else RETRY_NS)
            return
        if do == "append":
            self.error = None
        if do == "beat":
            self.newest_term = int(result["newest_term"])
        if do == "inbox":
            self.requests += [(id, request) for id, request in result["requests"]]
            self.bad_requests += result["bad"]
        if "durable" in result and self._retry_ns is None and reply.job.id >= self._vouch_from:
            self.durable = max(self.durable, int(result["durable"]))
            while self._kept and self._kept[0][0] + len(self._kept[0][1]) - 1 <= self.durable:
                self._kept.popleft()

    def close(self) -> None:
        """End the child."""
        self._child.close()
