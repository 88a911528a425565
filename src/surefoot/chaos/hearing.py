"""What the live agent says about its fold, asked again and again while it works and never waited for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from surefoot import wire
from surefoot.journal import lease, rundir

ASK_S = 0.1
"""Between two questions."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The hash of the state that the holder of a term had after a line."""

    term: int
    seq: int
    hash: str


class Hearing:
    """Asks the agent of a run whose socket is below `runtime`."""

    def __init__(self, run_dir: Path, runtime: Path) -> None:
        self.heard: list[Heard] = []
        self._run_dir = run_dir
        self._runtime = runtime
        self._run: str | None = None
        self._asked: tuple[int, wire.Channel] | None = None
        """In which term, and where the answer comes."""
        self._ask_s = 0.0

    def tick(self) -> None:
        """Take an answer that has come, or ask."""
        now_s = time.monotonic()
        if self._asked is not None:
            self._listen(*self._asked)
        elif now_s >= self._ask_s:
            self._ask_s = now_s + ASK_S
            self._ask()

    def _ask(self) -> None:
        if self._run is None:
            file = rundir.read(self._run_dir)
            if file is None:
                return
            self._run = file.run
        term = lease.newest_term(self._run_dir)
        try:
            channel = wire.connect(self._runtime / "surefoot" / f"{self._run}.sock")
        except OSError:
            return
        channel.send({"kind": "ask", "what": "fold"})
        self._asked = term, channel

    def _listen(self, term: int, channel: wire.Channel) -> None:
        try:
            received = channel.receive()
        except ConnectionError:
            self.close()
            return
        if not received:
            return
        answer = received[0][0]
        # The answer is of the term that was the newest before and after it.
        if answer["kind"] == "fold" and lease.newest_term(self._run_dir) == term:
            self.heard.append(Heard(term, int(answer["seq"]), str(answer["hash"])))
        self.close()

    def close(self) -> None:
        """Wait for no answer any more."""
        if self._asked is not None:
            self._asked[1].close()
            self._asked = None
