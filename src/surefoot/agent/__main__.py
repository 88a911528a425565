"""`python -m surefoot.agent RUN`: the agent of a run on this node, detached from whoever started it.

A bare entry: it has to be ready before the first rank gets impatient.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from surefoot import wire
from surefoot.agent.agent import Agent
from surefoot.agent.start import begin
from surefoot.core.settings import Settings
from surefoot.errors import AgentError, StoreUnavailable, SurefootError
from surefoot.journal import rundir

REFUSE_S = 1.0
"""How long an agent that can't begin stays to say why: the ranks of a group come close together."""


def main() -> None:
    """Detach, listen, take the run, serve."""
    run_dir = Path(sys.argv[1])
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Whoever ends the ranks' session doesn't mean us: their last state is still to be written.
        signal.signal(number, signal.SIG_IGN)
    run = rundir.read(run_dir)
    if run is None:
        raise SystemExit(f"surefoot: {run_dir} holds no run")
    try:
        listener = wire.listen(wire.socket_path(run.run))
    except AgentError:
        return  # another agent was quicker
    # Whoever started us holds the other end of a pipe: we have come.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        start = begin(run_dir, Settings().lease_s)
    except SurefootError as error:
        _refuse(listener, error)
        raise
    except OSError as error:
        why = (
            f"{run_dir}: the run directory refuses: {error}. Expected one that can be read and written; mend it"
        )
        _refuse(listener, StoreUnavailable(f"{why}, then start again"))
        raise
    Agent(start, listener).serve()


def _refuse(listener: socket.socket, error: SurefootError) -> None:
    """Tell the ranks that wait why there is no agent; for a moment, or who tries again hears it for ever."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    deadline_s = time.monotonic() + REFUSE_S
    while (left_s := deadline_s - time.monotonic()) > 0 and poll.poll(left_s * 1000):
        channel = wire.accept(listener)
        if channel is not None and channel.wait(left_s):
            channel.receive()
            channel.send({"kind": "refuse", "error": type(error).__name__, "why": str(error)})
            channel.close()
    listener.close()


if __name__ == "__main__":
    main()
