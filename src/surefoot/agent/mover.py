"""The child's program: does jobs one after the other and answers each.

It ends with its agent. A job that fails is answered with its error; whether to try again is the
agent's affair.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surefoot import wire
from surefoot.checkpoint import commit as commits
from surefoot.checkpoint.index import Index
from surefoot.checkpoint.layout import Box, parse
from surefoot.checkpoint.records import MANIFEST, Manifest, Part, World, rank_file
from surefoot.checkpoint.slots import IMAGE_OFFSET_BYTES, Slot
from surefoot.checkpoint.store import DiskStore
from surefoot.checkpoint.writer import seal_part, write_image
from surefoot.errors import CheckpointError, SurefootError
from surefoot.journal import inbox, lease
from surefoot.journal.files import Appender
from surefoot.journal.plain import tag
from surefoot.journal.sealed import seal
from surefoot.journal.shapes import from_json

Args = dict[str, Any]
Fds = list[int]

_PR_SET_PDEATHSIG = 1

_appenders: dict[tuple[str, int], Appender] = {}
_appended: dict[tuple[str, int], int] = {}
"""Per run and term: the newest seq that was appended, durable or not."""


def append(args: Args, _: Fds) -> Args:
    """Append lines; with `sync` they are durable when this returns."""
    key = (args["run_dir"], args["term"])
    appender = _appenders.setdefault(key, Appender(Path(key[0]), key[1]))
    appender.append(args["first_seq"], [line.encode() for line in args["lines"]])
    _appended[key] = args["first_seq"] + len(args["lines"]) - 1
    return _synced(key) if args["sync"] else {}


def beat(args: Args, _: Fds) -> Args:
    """Rewrite the lease's counter, make lines durable, and look for a newer term."""
    key = (args["run_dir"], args["term"])
    lease.beat(Path(key[0]), key[1], args["n"])
    return {"newest_term": lease.newest_term(Path(key[0])), **(_synced(key) if key in _appenders else {})}


def _synced(key: tuple[str, int]) -> Args:
    _appenders[key].sync()
    return {"durable": _appended[key]}


def look_into_inbox(args: Args, _: Fds) -> Args:
    """Return the requests that wait."""
    bad: list[str] = []
    return {"requests": inbox.collect(Path(args["run_dir"]), bad.append), "bad": bad}


def remove_request(args: Args, _: Fds) -> Args:
    """Remove a request that was journalled."""
    inbox.remove(Path(args["run_dir"]), args["id"])
    return {}


def write(args: Args, fds: Fds) -> Args:
    """Write the slots of a node's ranks as a checkpoint; what a failed write left gives its space back."""
    store = DiskStore(Path(args["run_dir"]) / "checkpoints")
    try:
        return _write(store, args, fds)
    except (CheckpointError, OSError):
        with contextlib.suppress(CheckpointError, OSError):
            clear_away(args, fds)
        raise


def _write(store: DiskStore, args: Args, fds: Fds) -> Args:
    """Write the image of every rank, in rank order, seal the part, commit."""
    began_ns = time.monotonic_ns()
    run_dir = Path(args["run_dir"])
    directory, common = args["directory"], args["common"]
    layouts, files = [], []
    plain: dict[str, Any] = {}
    for fd in fds:
        slot = Slot(os.dup(fd))
        try:
            layout = parse(slot.image, slot.size)
            if layout.rank == 0:
                plain = layout.read_plain(slot.image)
            size = slot.size
        finally:
            slot.close()
        layouts.append(layout)
        files.append(write_image(store, directory, rank_file(layout.rank), fd, IMAGE_OFFSET_BYTES, size))
    held = [[from_json(Box, box) for box in boxes] for boxes in args["held"]]
    index = Index.of(layouts, held)
    write_ns = time.monotonic_ns() - began_ns
    part = seal_part(
        store, directory, 0, Part(**common, node=args["node"], files=tuple(files), write_ns=write_ns)
    )
    total = sum(file.bytes for file in files)
    manifest = Manifest(
        **common,
        lineage=tuple((branch, step) for branch, step in args["lineage"]),
        batch=plain["loop"]["batch"],
        sample=plain["loop"]["sample"],
        unit=args["unit"],
        world=World(size=len(layouts)),
        layout=index.layout,
        plain=tag(plain),
        parts=(part,),
        bytes=total,
        at_ns=args["at_ns"],
        versions=args["versions"],
        skips=tuple(tuple(skip) for skip in args["skips"]),
    )
    commits.commit(store, directory, manifest, index, lambda: lease.newest_term(run_dir))
    return {"bytes": total, "write_ns": time.monotonic_ns() - began_ns}


def clear_away(args: Args, _: Fds) -> Args:
    """Delete a directory that has no manifest: no checkpoint, or none any more."""
    store = DiskStore(Path(args["run_dir"]) / "checkpoints")
    if store.size(f"{args['directory']}/{MANIFEST}") is None:
        commits.delete(store, args["directory"])
    return {}


def prune(args: Args, _: Fds) -> Args:
    """Delete a checkpoint, manifest first."""
    commits.delete(DiskStore(Path(args["run_dir"]) / "checkpoints"), args["directory"])
    return {}


def record(args: Args, _: Fds) -> Args:
    """Write what is worth keeping of an attempt beside the journal: its code, a rank's last error."""
    path = Path(args["run_dir"]) / "attempts" / args["name"]
    path.parent.mkdir(parents=True, exist_ok=True)
    content = dict(args["content"])
    if content.get("script") and args["name"].endswith("code.json"):
        content["diff"] = _git_diff(Path(content["script"]).parent)
    aside = path.with_name(path.name + ".new")
    aside.write_bytes(seal(content))
    aside.replace(path)
    return {}


def _git_diff(folder: Path) -> str:
    try:
        command = ["git", "-C", str(folder), "diff", "HEAD"]
        done = subprocess.run(command, capture_output=True, timeout=5, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")[: 64 << 10]


JOBS: dict[str, Callable[[Args, Fds], Args]] = {
    "append": append,
    "beat": beat,
    "inbox": look_into_inbox,
    "remove_request": remove_request,
    "write": write,
    "prune": prune,
    "clear_away": clear_away,
    "record": record,
}


def serve(channel: wire.Channel) -> None:
    """Do jobs until the agent hangs up."""
    while True:
        channel.wait(3600.0)
        try:
            messages = channel.receive()
        except ConnectionError:
            return
        for message, fds in messages:
            answer: dict[str, Any] = {"kind": "done", "id": message["id"]}
            try:
                answer["result"] = JOBS[message["do"]](message["args"], fds)
            except (SurefootError, OSError, ValueError, KeyError) as error:
                answer["error"] = f"{type(error).__name__}: {error}"
            finally:
                for fd in fds:
                    os.close(fd)
            channel.send(answer)
            while channel.queued:
                channel.wait(1.0)
                channel.flush()


def main() -> None:
    """Serve on the descriptor that the agent passed."""
    fd, agent = int(sys.argv[1]), int(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        # It died in between; the signal would never come.
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(wire.Channel(socket.socket(fileno=fd)))


if __name__ == "__main__":
    main()
