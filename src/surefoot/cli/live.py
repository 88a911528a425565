"""Asking something of a live run: a request in its inbox, and what the journal shows came of it."""

from __future__ import annotations

import time
from typing import Any

from surefoot.cli.runs import Seen
from surefoot.errors import RunError
from surefoot.journal import files, inbox
from surefoot.views.requests import Came, asked_at, came_of

_POLL_S = 0.1
_TAKEN_BACK_S = 1.0
"""How long an agent may still be about to journal what it had read before it was taken back."""


def ask(seen: Seen, who: str, do: str, args: dict[str, Any], wait_s: float) -> Came:
    """Return what came of a request.

    Raises RunError if nothing did in time: the message says whether it is on record all the same.
    """
    state, path = seen.state, seen.path
    after = (state.term, state.seq) if state.seq else None
    request, live = {"who": who, "do": do, "args": args}, seen.signs.live is not False
    id = inbox.leave(path, request)
    until = time.monotonic() + wait_s
    while True:
        began = time.monotonic()
        lines = list(files.read(path, after=after))
        came = came_of(lines, id, request, live=live)
        if came is not None:
            return came
        now = time.monotonic()
        if now >= until:
            break
        # A long journal takes a while to read: never more than a part of the time.
        time.sleep(min(max(_POLL_S, 4 * (now - began)), until - now))
    if asked_at(lines, id) is not None:
        raise RunError(
            f"{path}: nothing came of it within {wait_s:g} s. It is on record and will be done when it can be; "
            f"look with: surefoot status {path}"
        )
    inbox.remove(path, id)
    time.sleep(_TAKEN_BACK_S)
    came = came_of(list(files.read(path, after=after)), id, request, live=live)
    if came is not None:
        return came
    raise RunError(
        f"{path}: its agent (pid {seen.signs.pid} on {seen.signs.node}) did not take the request within "
        f"{wait_s:g} s; it was taken back, nothing was asked. Look with: surefoot status {path}"
    )
