"""Changing a run that nobody holds: take a term, put on record what is to be, give the term back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from surefoot.agent.start import versions
from surefoot.brain import Brain, Clock
from surefoot.cli.runs import Seen
from surefoot.core.events import TermEnded, TermStarted
from surefoot.journal import cache, lease
from surefoot.journal.codec import FORMAT
from surefoot.journal.files import Appender


class _Pen:
    """A scribe that writes at once, and returns when it is on the disk."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender

    def append(self, first_seq: int, lines: list[bytes], *, sync: bool) -> None:  # noqa: ARG002 - always
        """Append and fsync."""
        self._appender.append(first_seq, lines)
        self._appender.sync()


@contextmanager
def term(seen: Seen) -> Iterator[Brain]:
    """Hold the run for a block; what its brain is told is on disk behind it. Raises RunHeld if it is alive."""
    path = seen.path
    number = lease.take(path, seen.file.run, lease_s=seen.state.settings.lease_s)
    state, node = cache.fold(path), os.uname().nodename
    appender = Appender(path, number)
    brain = Brain(state, _Pen(appender), Clock(time.time_ns(), time.monotonic_ns, state.at_ns), node)
    after = {"term": state.term, "seq": state.seq}
    brain.tell(TermStarted(format=FORMAT, term=number, after=after, node=node, versions=versions()))
    try:
        yield brain
    finally:
        brain.tell(TermEnded())
        brain.flush()
        appender.close()
