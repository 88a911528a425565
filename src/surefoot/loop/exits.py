"""How a run's process may end, seen from inside: signals, uncaught exceptions, a loop that was left.

A signal only sets a flag that the next boundary reads; the handlers that were there before are put
back at the end. The first Ctrl-C asks for a save and a stop, the second one is KeyboardInterrupt.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from inspect import CO_GENERATOR
from types import FrameType, TracebackType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any] | int | None


class Exits:
    """Watches the ways out of this process between `install` and `remove`."""

    def __init__(
        self,
        *,
        on_error: Callable[[dict[str, Any]], None],
        on_exit: Callable[[], None],
    ) -> None:
        self.stop = False
        """A person pressed Ctrl-C."""
        self.preempt = False
        """The machine is about to be taken away (SIGTERM)."""
        self.received: list[int] = []
        """Signals that nobody has reported yet."""
        self._on_error = on_error
        self._on_exit = on_exit
        self._before: dict[int, _Handler] = {}
        self._hook: Callable[..., Any] | None = None
        self._pid = 0
        """Of the process that installed this: children that it forks inherit all of it, and are no rank."""

    def install(self) -> None:
        """Take over; in a notebook Ctrl-C stays what it is there: the interruption of a cell."""
        self.stop = self.preempt = False
        self._pid = os.getpid()
        self._hook = sys.excepthook
        sys.excepthook = self._excepthook
        atexit.register(self._exits)
        if threading.current_thread() is not threading.main_thread():
            return
        wanted = [signal.SIGTERM] if _interactive() else [signal.SIGTERM, signal.SIGINT]
        for number in wanted:
            self._before[number] = signal.signal(number, self._signalled)

    def remove(self) -> None:
        """Put everything back as it was."""
        atexit.unregister(self._exits)
        if self._hook is not None and sys.excepthook == self._excepthook:
            sys.excepthook = self._hook
        self._hook = None
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._signalled:
                signal.signal(number, handler)
        self._before.clear()

    def _exits(self) -> None:
        if os.getpid() == self._pid:
            self._on_exit()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            signal.signal(number, self._before[number] or signal.SIG_DFL)
            signal.raise_signal(number)
            return
        again = self.stop
        self.received.append(number)
        if number == signal.SIGTERM:
            self.preempt = True
        else:
            self.stop = True
        before = self._before.get(number)
        if number == signal.SIGINT and again:
            raise KeyboardInterrupt
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    def _excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        hook = self._hook or sys.__excepthook__
        try:
            if os.getpid() == self._pid:
                self._on_error(describe(error))
        finally:
            hook(kind, error, trace)


def describe(error: BaseException) -> dict[str, Any]:
    """Return an error as `worker_exited` carries it: type, message, signature, stack."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].name}" if frames else ""
    name = type(error).__name__
    return {
        "type": name,
        "message": str(error)[:4096],
        "signature": f"{name} in {place}" if place else name,
        "stack": "".join(traceback.format_exception(error))[-16384:],
    }


def loop_frame(depth: int) -> FrameType:
    """Return the frame whose loop asks for turns: the one `depth` above, or that behind generators."""
    frame = sys._getframe(depth)  # noqa: SLF001 - inspect's way to it builds the whole stack's source lines
    while frame.f_code.co_flags & CO_GENERATOR and frame.f_back is not None:
        frame = frame.f_back
    return frame


def left_on_purpose(depth: int, loop: int) -> bool:
    """Tell whether a loop is being left by `break` or `return`; `loop` is the id of its frame.

    A generator only learns that it is dropped: by the loop itself, or later and elsewhere if a variable
    holds it, which tells nothing. While an exception flies through a frame, a traceback names the frame
    and the very instruction it is at.
    """
    frame = loop_frame(depth + 1)
    return id(frame) == loop and not any(
        isinstance(referrer, TracebackType) and referrer.tb_lasti == frame.f_lasti
        for referrer in gc.get_referrers(frame)
    )


def _interactive() -> bool:
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules
