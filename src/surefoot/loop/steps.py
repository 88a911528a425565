"""The loop of a training run: `begin` and `end` around each turn, and the iterator over them.

A turn ends; at a boundary (a managed optimizer stepped) the ranks read the vector they started a
turn ago, act on it (stage, order, leave), and start the next. What decides is elsewhere: here orders
are carried out and what happened is reported. No thread, no lock, and no collective of ours but the
one vector, and the broadcast of an order when there is one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from surefoot.config import Layered
from surefoot.core.events import (
    ChangeExpected,
    Configured,
    Noted,
    PhaseEntered,
    Restored,
    WorkerExited,
)
from surefoot.core.numbers import SnapshotId
from surefoot.errors import CheckpointError, ConfigError
from surefoot.journal.codec import to_json
from surefoot.loop import opening
from surefoot.loop.attempt import Attempt
from surefoot.loop.boundary import Boundary
from surefoot.loop.data import Data, Loaders, Position
from surefoot.loop.exits import Exits, describe, left_on_purpose, loop_frame
from surefoot.loop.ranks import Ranks
from surefoot.loop.snapshots import Image, Snapshots
from surefoot.loop.state import Optimizers, State
from surefoot.loop.turns import Turns
from surefoot.loop.values import Values

FINISHED, STOPPED, PREEMPTED = "finished", "stopped", "preempted"
EXIT_CODES = {FINISHED: 0, STOPPED: 83, PREEMPTED: 75}


class Loop:
    """One rank's side of a run. `surefoot.Run` wires it to PyTorch, or to a `State` handed in."""

    def __init__(
        self,
        directory: Path,
        *,
        state: State,
        ranks: Ranks,
        configured: Layered,
        data: Data | Loaders | None = None,
        optimizers: Optimizers | None = None,
        declared: Mapping[str, Any] | None = None,
        accept: Callable[[Mapping[str, Any]], None] | None = None,
        accept_change: tuple[str, ...] = (),
        fresh: bool = False,
        twice: bool = False,
    ) -> None:
        self.step = 0
        """The turn the loop is in, or would begin next."""
        self.state = Values()
        """Plain values that are saved and rewound with the model: `run.state["best"] = 3.1`."""
        self._directory = directory
        self._objects = state
        self._ranks = ranks
        self._configured = configured
        self._data = data
        self._optimizers = optimizers
        self._declared = dict(declared or {})
        self._accept = accept
        self._accept_change = accept_change
        self._fresh = fresh
        self._twice = twice
        self._turns = Turns(ranks.read)
        self._hooks: list[Callable[[], None]] = []
        self._exits = Exits(on_error=self._failed, on_exit=self._process_ends)
        self._attempt: Attempt | None = None
        self._open()

    # --- what a user calls --------------------------------------------------------------------------

    @property
    def data(self) -> Any:
        """The data: `next(run.data)`, or `next(run.data["text"])` with several loaders by name."""
        if self._data is None:
            raise ConfigError(f"{self._directory}: run.data was asked for, but Run(...) was given no data=")
        return self._data

    @property
    def attempt(self) -> int:
        """The number of this start of the worker group, from 1."""
        return self._joined.number

    def steps(self, n: int | None = None) -> Iterator[int]:
        """Yield the numbers of the turns, as `range(n)`, from where the run is; None has no end.

        Leaving by `break` finishes the run at that step; an exception never does. A run that has finished
        yields nothing, unless `n` is larger than it was.
        """
        if n is not None and (type(n) is not int or n < 0):
            raise ConfigError(f"run.steps({n!r}): expected a whole number of turns, 0 or more, or None")
        if self._is_left:
            # An exception left the loop before, and the script (or a notebook's owner) goes on.
            self._leave(STOPPED, f"the loop was left in turn {self.step:,} by an exception", torn=True)
        if self._in_turn:
            raise ConfigError(
                f"{self._directory}: run.steps was called inside turn {self.step:,} of another run.steps; "
                "one loop at a time moves a run"
            )
        attempt = self._joined
        if self._is_finished(n):
            self._say(f"already finished at step {self.step:,}")
            self._leave(FINISHED, "already finished")
            return
        if n != attempt.settings.steps:
            attempt.emit_once(Configured(settings={"steps": [n, "run.steps"]}))
        while n is None or self.step < n:
            step, loop = self.begin(), id(loop_frame(depth=2))
            try:
                yield step
            except GeneratorExit:
                if attempt is self._attempt:  # else the run has been left before its iterator was dropped
                    self._left(on_purpose=left_on_purpose(2, loop))
                raise
            self.end()
        self._finish()

    def begin(self) -> int:
        """Begin a turn and return its number; for frameworks that own their loop."""
        attempt = self._joined
        self._in_turn = True
        self._began_ns = time.monotonic_ns()
        attempt.beat.enter("train", self.step, self._began_ns)
        return self.step

    def end(self, **logged: Any) -> None:
        """End the turn that `begin` began; what it takes goes to `log`."""
        if logged:
            self.log(**logged)
        boundary = self._optimizers is None or self._optimizers.stepped()
        self._in_turn = False
        if self._rewind is not None:
            self._do_again(self._rewind)
        else:
            self._turn_done()
            if boundary:
                self._cross()

    def finish(self) -> None:
        """Save the last state and end the run as finished; `run.steps` does it by itself.

        A turn that was begun counts if it did something: so it may follow a `begin`, or a `break` out of
        a loop whose iterator a variable still holds.
        """
        if self._in_turn:
            self._count_turn(unknown=False)
        if self._attempt is not None:
            self._finish()

    def log(self, *, loss: Any = None, grad_norm: Any = None, weight: float = 1.0, **values: Any) -> None:
        """Report values of this turn; device tensors are welcome, there is no device sync.

        Several calls in a turn (micro-batches) average the loss by `weight`.
        """
        self._turns.log(loss, grad_norm, weight, values)

    def knob(self, name: str, default: Any) -> Any:
        """Return a number that a person may change while the run goes on; `default` until then."""
        attempt = self._joined
        self._boundary.knob_names.add(name)
        return attempt.knobs.get(name, default)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a phase (`eval`, `upload`), for the clock and the hang limits."""
        attempt, began_ns = self._joined, time.monotonic_ns()
        attempt.beat.enter("named", self.step, began_ns)
        attempt.emit_once(PhaseEntered(phase=name))
        try:
            yield
        finally:
            now_ns = time.monotonic_ns()
            self._turns.phase(name, now_ns - began_ns)
            attempt.beat.enter("train", self.step, now_ns)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Say that averaged weights are swapped in: nothing is captured until they are out again."""
        self._boundary.swaps += 1
        try:
            yield
        finally:
            self._boundary.swaps -= 1

    def save(self) -> None:
        """Ask for a durable checkpoint at the next boundary; one rank's wish is every rank's."""
        self._boundary.save_wanted = True

    def note(self, text: str) -> None:
        """Write a remark into the logbook."""
        self._joined.emit_once(Noted(text=str(text), who="the script"))

    def expect_change(self, text: str) -> None:
        """Say that the loss may move for a reason from here on."""
        self._joined.emit_once(ChangeExpected(text=str(text), who="the script"))

    def on_restore(self, hook: Callable[[], None]) -> None:
        """Call `hook` after each restore, to rebuild what is derived from the state.

        If this process began with a restore, it is called at once as well.
        """
        self._hooks.append(hook)
        if self._resumed:
            hook()

    def close(self, reason: str = "closed by the script") -> None:
        """Leave the run as stopped, its last state saved; the same script goes on from there."""
        if self._attempt is not None:
            self._leave(STOPPED, reason, torn=self._in_turn)

    # --- joining ------------------------------------------------------------------------------------

    @property
    def _joined(self) -> Attempt:
        if self._attempt is None:
            self._open()
        assert self._attempt is not None
        return self._attempt

    def _open(self) -> None:
        self._in_turn = self._is_left = self._resumed = False
        self._rewind: Image | None = None
        self._turns.forget()
        place = opening.choose_run(self._directory, self._directory.name, fresh=self._fresh, ranks=self._ranks)
        self._fresh = False
        if place.moved:
            self._say(f"the run that was here is now {place.moved}")
        snapshots = Snapshots(self._objects, self._ranks.rank, self._ranks.world_size, self._plain)
        attempt = Attempt(place, self._hello(place), snapshots, self._ranks, lambda: self.step)
        self._snapshots, self._attempt = snapshots, attempt
        try:
            self._begin_attempt(attempt)
        except BaseException as error:
            self._failed(describe(error))
            attempt.close()
            self._attempt = None
            raise
        self._exits.install()

    def _hello(self, place: opening.Place) -> dict[str, Any]:
        facts = {
            "settings": to_json(self._configured.settings),
            "origins": dict(self._configured.origins),
            "declared": self._declared,
            "made": opening.hash_of(self._objects.boxes()),
            "data": self._data.description if self._data is not None else dict(opening.NO_DATA),
            "accept": list(self._accept_change),
        }
        return opening.hello(place, self._ranks, facts)

    def _begin_attempt(self, attempt: Attempt) -> None:
        began_ns = time.monotonic_ns()
        attempt.beat.enter("restore", 0, began_ns)
        welcome = attempt.welcome
        try:
            beginning = opening.restore(
                welcome, attempt.descriptors, self._snapshots, self._ranks, attempt.place.run_dir
            )
        finally:
            attempt.close_descriptors()
        if beginning.plain is None:
            self._begin_at_zero(attempt)
        else:
            self._take_up(beginning.plain)
            self._resumed = True
            if self._accept is not None and welcome["accepted"]:
                self._accept(welcome["accepted"])
            for hook in self._hooks:
                hook()
        self._began_at = self.step
        self._boundary = Boundary(
            attempt, self._ranks, self._snapshots, self._turns, self._exits, lambda: self._head, self._say
        )
        self._check_first_turn = bool(welcome["round_trip"])
        if welcome["round_trip"]:
            self._snapshots.check()
        candidate = beginning.candidate
        level = self._data.description["level"] if self._data is not None else "exact"
        for text in opening.first_lines(welcome, beginning, self.step, attempt.now_ns(), level):
            self._say(text)
        position = self._position
        attempt.emit_once(
            Restored(
                branch=attempt.branch,
                lineage=candidate.lineage if candidate else ((attempt.branch, 0),),
                step=self.step,
                batch=position.batch,
                sample=position.sample,
                tier=candidate.tier if candidate else None,
                passed_over=beginning.passed_over,
                took_ns=time.monotonic_ns() - began_ns,
                order=welcome["order"],
            )
        )
        twice = attempt.settings.first_step_twice
        if self._twice if twice is None else twice:
            self._rewind = self._snapshots.capture()
        attempt.offer_layout()
        attempt.stage_now(self._head, save=False, orders=[])

    def _begin_at_zero(self, attempt: Attempt) -> None:
        self.step = 0
        if self._data is not None:
            self._data.leave_out(attempt.skips)

    def _take_up(self, plain: Mapping[str, Any]) -> None:
        """Take the loop's own part of a snapshot: step, position, the user's values."""
        self.step = plain["loop"]["step"]
        self.state.replace(plain["values"])
        if self._data is not None:
            self._data.restore(plain["data"], self._joined.skips)

    def _plain(self) -> dict[str, Any]:
        position = self._position
        return {
            "objects": self._objects.plain(),
            "loop": {"step": self.step, "batch": position.batch, "sample": position.sample},
            "data": self._data.capture() if self._data is not None else None,
            "values": dict(self.state),
        }

    @property
    def _position(self) -> Position:
        return self._data.position if self._data is not None else Position(self.step, self.step)

    @property
    def _head(self) -> SnapshotId:
        return SnapshotId(self.step, self._joined.branch)

    def _is_finished(self, n: int | None) -> bool:
        if n is not None and self.step >= n:
            return True
        finished = self._joined.welcome["finished"]
        if finished is None or self.step != finished[0] or self.step != self._began_at:
            return False
        return n is not None and finished[1] is not None and n <= finished[1]

    # --- a turn -------------------------------------------------------------------------------------

    def _turn_done(self) -> None:
        attempt = self._joined
        end_ns = time.monotonic_ns()
        data_ns = 0
        if self._data is not None:
            self._data.consume()
            data_ns = self._data.take_wait_ns()
        to_brain_ns = attempt.offset_ns
        turn = self._turns.done(
            branch=attempt.branch,
            step=self.step,
            position=self._position,
            began_ns=self._began_ns + to_brain_ns,
            end_ns=end_ns + to_brain_ns,
            data_ns=data_ns,
            lr=self._optimizers.lr() if self._optimizers is not None else None,
        )
        attempt.beat.turn(turn)
        self.step += 1

    def _do_again(self, image: Image) -> None:
        """Rewind an attempt's first turn: DDP has regrouped its buckets now, as it was before."""
        self._rewind = None
        self._take_up(self._snapshots.put_back(image))
        self._turns.forget()
        if self._data is not None:
            self._data.take_wait_ns()

    def _cross(self) -> None:
        if self._check_first_turn:
            self._check_first_turn = False
            self._snapshots.check()
        self._boundary.cross(time.monotonic_ns() - self._began_ns)
        if (leave := self._boundary.leave) is not None:
            self._leave(leave.word, leave.reason, leave.exit_code)

    # --- leaving ------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._leave(FINISHED, f"{self.step:,} steps done")

    def _leave(self, word: str, reason: str, exit_code: int = 0, *, torn: bool = False) -> None:
        """Save the last state, say goodbye, and raise SystemExit unless `exit_code` is 0.

        In the middle of a turn (`torn`), or with averaged weights swapped in, there is no state to save:
        the newest snapshot is the last word. Raises CheckpointError if the last save was lost: a run never
        ends well without it.
        """
        attempt, head = self._joined, self._head
        if not torn:
            self._boundary.last()
        if torn or self._boundary.swaps:
            head = self._snapshots.newest or head
        elif self._began_at != self.step and self._snapshots.newest != head:
            attempt.stage_now(head, save=True, orders=[])
        save = self._snapshots.newest is not None
        lost = attempt.leave(word, reason, exit_code, head, save=save, orders=self._boundary.save_orders)
        self._close()
        if lost is not None:
            raise CheckpointError(
                f"{self._directory}: the last save (step {head.step:,}) was lost: {lost}; older ones stand"
            )
        self._say(f"{word} at step {head.step:,}: {reason}")
        if exit_code:
            raise SystemExit(exit_code)

    def _close(self) -> None:
        self._exits.remove()
        if self._data is not None:
            self._data.close()
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None

    def _left(self, *, on_purpose: bool) -> None:
        """The iterator was dropped in the middle of a turn: by `break`, or for another reason."""
        if not on_purpose:
            self._is_left = True
            return
        self._count_turn(unknown=True)
        self._leave(FINISHED, f"the loop was left at step {self.step:,}")

    def _count_turn(self, *, unknown: bool) -> None:
        """End the turn that was begun, if an optimizer stepped in it, or else data was drawn for it."""
        self._in_turn = False
        if self._optimizers is not None:
            happened = self._optimizers.stepped()
        elif self._data is not None:
            loaders = [self._data] if isinstance(self._data, Data) else self._data.values()
            happened = any(data.drawn != data.position for data in loaders)
        else:
            happened = unknown
        if happened:
            self._turn_done()
            self._cross()

    def _failed(self, error: dict[str, Any]) -> None:
        """An exception ends this process: the agent hears it before the process is gone."""
        if self._attempt is not None and self._attempt.link.connected:
            node = os.uname().nodename
            self._attempt.emit(WorkerExited(node=node, rank=self._ranks.rank, error=error))
            self._attempt.link.poll()
        self._attempt = None

    def _process_ends(self) -> None:
        """The process ends by itself while the run is open: what is whole is kept, the next start goes on."""
        if self._attempt is None:
            return
        try:
            self._leave(STOPPED, f"the script ended in turn {self.step:,}", torn=self._in_turn)
        except Exception as error:  # noqa: BLE001 - at exit there is nobody left to raise it to
            self._say(f"left without a last save: {error}")

    def _say(self, text: str) -> None:
        if self._ranks.rank == 0:
            sys.stderr.write(f"surefoot: {self._directory}: {text}\n")
            sys.stderr.flush()
