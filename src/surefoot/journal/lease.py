"""The lease: who holds a run (formats §8).

To hold a run is to have created the newest `terms/NNNNNN.json`; its number, the term, fences every
line of the journal and every manifest. The holder rewrites a counter in `NNNNNN.beat`. Whether a
holder lives is told by its process where it can be seen, and by its counter where it can't: clocks
of different machines are never compared.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from surefoot.core.events import TermEnded
from surefoot.errors import JournalError, RunHeld
from surefoot.journal import atomic, files
from surefoot.journal.codec import from_json, seal, to_json, unseal

_POLL_S = 0.25
_NAME = re.compile(r"(\d{6,})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process, named so that no other can be taken for it, not even after a reboot."""

    node: str
    boot: str
    pid: int
    pid_namespace: str
    """Pids of different containers don't meet."""
    start_ticks: int
    """Since boot; a pid is used again, never with the same start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(Process):
    """What `terms/NNNNNN.json` says: which process holds what, and where it is reached."""

    run: str
    term: int
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who took the newest term, and what can be seen of it from here."""

    lease: Lease
    evidence: str
    """ended (gave it back), alive, stopped (by a signal), gone, or unknown: it can't be seen from here."""
    beat: int | None
    """Its counter; None before the first. Of an unknown holder only this tells that it lives: it moves."""


def this_process() -> Process:
    """Name the process that asks."""
    state = _stat("self")
    assert state is not None
    return Process(
        node=os.uname().nodename,
        boot=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        pid=os.getpid(),
        pid_namespace=str(Path("/proc/self/ns/pid").readlink()),
        start_ticks=state[1],
    )


def newest_term(run_dir: Path) -> int:
    """Return the newest term anybody took; 0 if none."""
    folder = run_dir / "terms"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), default=0)


def take(
    run_dir: Path,
    run: str,
    *,
    process: Process | None = None,
    addresses: Sequence[str] = (),
    lease_s: float = 4.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Take the next term of the run and return it.

    At once if the last holder gave it back or its process is gone; after its counter has stood still
    for `lease_s` if it is stopped or out of sight. Raises RunHeld if it lives.
    """
    process = process or this_process()
    terms = run_dir / "terms"
    if not terms.is_dir():
        terms.mkdir(parents=True, exist_ok=True)
        atomic.sync_folder(run_dir)
    while True:
        term = newest_term(run_dir) + 1
        if term > 1:
            _wait_until_free(run_dir, term - 1, process, lease_s, clock, sleep)
        lease = Lease(**asdict(process), run=run, term=term, addresses=tuple(addresses))
        if atomic.create(terms / f"{term:06d}.json", seal(to_json(lease))):
            return term


def beat(run_dir: Path, term: int, n: int) -> None:
    """Rewrite the holder's counter; each second, with another n. Raises OSError if the store refuses."""
    fd = os.open(run_dir / "terms" / f"{term:06d}.beat", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # As wide as ever, so that a reader meets no other length; closed, so that NFS sends it.
        os.pwrite(fd, b"%020d\n" % n, 0)
    finally:
        os.close(fd)


def holder(run_dir: Path, process: Process | None = None) -> Holder | None:
    """Return who took the newest term, as `process` (this one) sees it; None if nobody ever did.

    Raises JournalError if the lease can't be read.
    """
    term = newest_term(run_dir)
    if term == 0:
        return None
    path = run_dir / "terms" / f"{term:06d}.json"
    try:
        lease = from_json(Lease, unseal(path.read_bytes()))
    except JournalError as error:
        raise JournalError(
            f"{path}: {error}. Expected the lease of term {term}; when no process of this run is left, "
            f"move the file away and start again"
        ) from error
    newest = files.last(run_dir)
    ended = newest is not None and newest[0] == term and isinstance(newest[1].event, TermEnded)
    evidence = "ended" if ended else _evidence(lease, process or this_process())
    return Holder(lease=lease, evidence=evidence, beat=_beat(path.with_suffix(".beat")))


def _wait_until_free(
    run_dir: Path,
    term: int,
    process: Process,
    lease_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    seen, since = holder(run_dir, process), clock()
    now = seen
    while now and seen and now.lease.term == term and now.evidence not in {"ended", "gone"}:
        if now.evidence == "alive" or now.beat != seen.beat:
            why = "runs" if now.evidence == "alive" else "goes on counting"
            raise RunHeld(
                f"{run_dir} is held: pid {now.lease.pid} on node {now.lease.node} (term {term}) {why}. "
                f"Expected a run that nobody holds; watch it with `surefoot status {run_dir}`, "
                f"or end it with `surefoot stop {run_dir}`"
            )
        if clock() - since >= lease_s:
            return
        sleep(_POLL_S)
        now = holder(run_dir, process)


def _evidence(holder: Process, here: Process) -> str:
    if (holder.node, holder.boot, holder.pid_namespace) != (here.node, here.boot, here.pid_namespace):
        return "unknown"
    try:
        state = _stat(holder.pid)
        if state is None:
            os.kill(holder.pid, 0)  # /proc mounted with hidepid shows no process of others
            return "unknown"
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        return "unknown"
    letter, start_ticks = state
    if start_ticks != holder.start_ticks or letter in "ZX":
        return "gone"
    return "stopped" if letter in "Tt" else "alive"


def _stat(pid: int | str) -> tuple[str, int] | None:
    """Return (state letter, start in ticks since boot) of a process, or None if it isn't there."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return None
    rest = text[text.rindex(b")") + 2 :].split()  # the name before it may hold anything
    return rest[0].decode(), int(rest[19])


def _beat(path: Path) -> int | None:
    try:
        return int(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
