"""A process that has imported a training script, and forks its ranks: a start costs milliseconds.

The script is an ordinary one, imported once; each rank calls its `main()` with a command line and an
environment of its own, as if it had been started by `python script.py …`. Ranks are forked twice, so
that they are children of whoever asked and not of the warm process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from surefoot.chaos import faults
from surefoot.chaos.faults import AGENT, CHILD, RANK, Point
from surefoot.errors import ConfigError
from surefoot.loop import link

_PR_SET_CHILD_SUBREAPER = 36

_AGENT = """
import sys
from surefoot.agent import child
child.CHILD_COMMAND = (sys.executable, "-P", "-c", {child!r})
from surefoot.agent.__main__ import main
main()
"""
_CHILD = "from surefoot.agent.mover import main; main()"


class Warm:
    """A process from which the ranks of a script are forked; they, and whom they leave, are ours to reap."""

    def __init__(self, script: Path) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package = str(Path(__file__).resolve().parents[2])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "surefoot.chaos.warm", str(theirs.fileno()), str(script)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Only one thread may be there when it forks, and libgomp reads its number once.
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": package},
            )
        if self._ours.recv(64) != b"warm":
            raise ConfigError(f"{script} can't be imported by the campaign's warm process; see its error above")

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def fork(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path,
        log: Path,
        points: Sequence[Point],
        post: Path,
    ) -> int:
        """Start the script in a child of ours, and return its pid."""
        request = {
            "args": list(args),
            "env": dict(env),
            "folder": str(folder),
            "log": str(log),
            "points": json.loads(faults.dump(points)),
            "post": str(post),
        }
        self._ours.send(json.dumps(request).encode())
        return int(self._ours.recv(64))

    def close(self) -> None:
        """End it."""
        self._ours.close()
        self._process.wait()


def serve(server: socket.socket, script: Path) -> None:
    """Fork a child for every request; in the child return once its script is through."""
    module = _imported(script)
    gc.collect()
    gc.freeze()  # or the first collection in every child copies all pages
    server.send(b"warm")
    while packet := server.recv(1 << 20):
        middle = os.fork()
        if middle == 0:
            if rank := os.fork():
                server.send(str(rank).encode())
                os._exit(0)
            server.close()
            _play(module, script, json.loads(packet))
            return
        os.waitpid(middle, 0)


def _imported(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module
    spec.loader.exec_module(module)
    return module


def _play(module: ModuleType, script: Path, request: dict[str, Any]) -> None:
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    faulthandler.enable()
    points, post = [Point(**point) for point in request["points"]], Path(request["post"])
    faults.install(RANK, points, post)
    child = faults.bootstrap(CHILD, points, post, _CHILD)
    link.AGENT_COMMAND = (
        *(sys.executable, "-P", "-c"),
        faults.bootstrap(AGENT, points, post, _AGENT.format(child=child)),
    )
    sys.argv = [str(script), *request["args"]]
    module.main()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
