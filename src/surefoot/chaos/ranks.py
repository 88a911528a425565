"""A command started as N ranks, as torchrun starts it, and ended as faults end it.

Each rank leads a process group of its own, so that nothing it started outlives it. Whatever is killed
is killed by a descriptor of a child of ours: never a stranger that has its pid by now.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

GRACE_S = 15.0
"""Once a rank has failed the others get SIGTERM, as from torchrun, and so much later SIGKILL."""


class Launch:
    """One start of a command as N ranks on this machine; leaving the `with` block ends what is left of it.

    Rank r writes to `logs/rank-R.log`.
    """

    def __init__(
        self, command: Sequence[str], ranks: int, logs: Path, *, env: Mapping[str, str] | None = None
    ) -> None:
        self._logs = logs
        self._failed_s: float | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pidfds: list[int] = []
        logs.mkdir(parents=True)
        given = {"OMP_NUM_THREADS": "1", **os.environ, **(env or {})}
        job = {
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": _free_port(),
        }
        try:
            for rank in range(ranks):
                place = {name: str(value) for name, value in {**job, "RANK": rank, "LOCAL_RANK": rank}.items()}
                self._start(command, rank, given | place)
        except BaseException:
            self.close()
            raise

    def _start(self, command: Sequence[str], rank: int, env: Mapping[str, str]) -> None:
        with self.log(rank).open("wb") as log:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=self._logs,  # where no surefoot.toml of somebody's project has a say
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self._processes.append(process)
        self._pidfds.append(os.pidfd_open(process.pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log(self, rank: int) -> Path:
        """Return the file that a rank's output goes to."""
        return self._logs / f"rank-{rank}.log"

    def kill(self, ranks: Sequence[int], number: int = signal.SIGKILL) -> None:
        """Send these ranks a signal, one right after the other; one that has ended is left alone."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfds[rank], number)

    def wait(self, timeout_s: float) -> bool:
        """Wait until all ranks have ended or the time is over; return whether they have.

        A rank that failed ends the others, as under torchrun.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            alive = [rank for rank in range(len(self._processes)) if not self._ended(rank)]
            now_s = time.monotonic()
            wake_s = until_s
            if alive and any(self.codes):
                if self._failed_s is None:
                    self._failed_s = now_s
                    self.kill(alive, signal.SIGTERM)
                if now_s >= self._failed_s + GRACE_S:
                    self.kill(alive)
                else:
                    wake_s = min(until_s, self._failed_s + GRACE_S)
            if not alive or now_s >= until_s:
                return not alive
            poll = select.poll()
            for rank in alive:
                poll.register(self._pidfds[rank], select.POLLIN)
            poll.poll(max(1.0, (wake_s - now_s) * 1000))

    @property
    def codes(self) -> list[int | None]:
        """The ranks' exit codes, -n for signal n; None while one runs or hasn't been waited for."""
        return [process.returncode for process in self._processes]

    def close(self) -> None:
        """End what is left of it, and let go of it."""
        self.kill(range(len(self._processes)))
        for rank, process in enumerate(self._processes):
            if process.returncode is None:
                select.select([self._pidfds[rank]], [], [])
                self._reap(process)
        while self._pidfds:
            os.close(self._pidfds.pop())

    def _ended(self, rank: int) -> bool:
        process = self._processes[rank]
        if process.returncode is None and select.select([self._pidfds[rank]], [], [], 0)[0]:
            self._reap(process)
        return process.returncode is not None

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Collect a rank that has ended; first its loader workers go, while its pid still names their group."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
