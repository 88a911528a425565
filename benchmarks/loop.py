"""What surefoot costs a training run: per step, at its start, and after a million events.

The two sides of a comparison take turns in the same processes, a block each, so that whatever else
the machine does falls on both; a figure is the median over the rounds. Processes, agents, sockets
and journals are real.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import sub
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from report import Figure, report

from surefoot import wire
from surefoot.brain import Brain, Clock
from surefoot.core.advance import advance
from surefoot.core.events import (
    Asked,
    AttemptJoined,
    AttemptStarted,
    Event,
    Line,
    OrderDone,
    Restored,
    SnapshotCommitted,
    SnapshotMarked,
    StepDone,
    TermStarted,
    WorkerExited,
)
from surefoot.core.numbers import SnapshotId, fork
from surefoot.core.orders import DISK, HOST, Mark, Prune, Restart, Save, Write
from surefoot.core.state import Pending, RunState
from surefoot.journal import rundir
from surefoot.journal.files import Appender
from surefoot.loop.agree import Word
from surefoot.loop.link import AGENT_COMMAND

if TYPE_CHECKING:
    import torch

# --- a step -------------------------------------------------------------------------------------------

BLOCK_STEPS = 100
ROUNDS = 40
WARM_UP_ROUNDS = 4


def loop_overhead() -> Figure:
    """One process: `run.steps` and `run.log` over the bare loop."""
    return _loop("loop_overhead_us", ranks=1, against="the bare loop", reach_us=100)


def loop_overhead_ddp() -> Figure:
    """Two ranks: the same over a DDP loop that sums as many numbers a step, asynchronously."""
    against = "a DDP loop with one asynchronous all-reduce of as many numbers"
    return _loop("loop_overhead_ddp_us", ranks=2, against=against, reach_us=200)


def _loop(name: str, *, ranks: int, against: str, reach_us: float) -> Figure:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    folder = Path(tempfile.mkdtemp())
    group = [context.Process(target=_train, args=(rank, ranks, folder, theirs)) for rank in range(ranks)]
    for process in group:
        process.start()
    theirs.close()
    bare_us, with_us = ours.recv()
    for process in group:
        process.join()
    value, bare = median(map(sub, with_us, bare_us)), median(bare_us)
    against = f"{against}: {bare:,.0f} µs a step"
    return Figure(name, value, "µs", against, 1 + value / bare, f"≤ {reach_us:g}", value <= reach_us)


def _train(rank: int, ranks: int, folder: Path, report_to: Any) -> None:
    """One rank: turn by turn a block of the bare loop and one under a run; rank 0 reports."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if ranks > 1:
        meet = f"file://{folder}/rendezvous"
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks)
    rounds = WARM_UP_ROUNDS + ROUNDS
    loops = (_bare_loop(ranks), _surefoot_loop(ranks, folder / "run", rounds * BLOCK_STEPS))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for loop, taken in zip(loops, times, strict=True):
            began_ns = time.perf_counter_ns()
            for _ in range(BLOCK_STEPS):
                next(loop)
            taken.append((time.perf_counter_ns() - began_ns) / BLOCK_STEPS / 1e3)
    next(loops[1], None)
    if rank == 0:
        report_to.send([taken[WARM_UP_ROUNDS:] for taken in times])
    if ranks > 1:
        dist.destroy_process_group()


def _bare_loop(ranks: int) -> Iterator[None]:
    import torch
    import torch.distributed as dist

    model, optimizer, x = _objects(ranks)
    numbers = len(Word().vector())
    under_way: Any = None
    while True:
        _step(model, optimizer, x)
        if ranks > 1:
            if under_way is not None:
                under_way.wait()
            under_way = dist.all_reduce(torch.zeros(numbers, dtype=torch.float64), async_op=True)
        yield


def _surefoot_loop(ranks: int, run_dir: Path, steps: int) -> Iterator[None]:
    import surefoot

    model, optimizer, x = _objects(ranks)
    run = surefoot.Run(run_dir, model=model, optimizer=optimizer, stage_every_steps=steps + 1, save_every_s=1e6)
    for _ in run.steps(steps):
        run.log(loss=_step(model, optimizer, x))
        yield


def _objects(ranks: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]:
    import torch
    from torch import nn

    torch.manual_seed(7)
    model: nn.Module = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters()), torch.randn(32, 128)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(x) - x).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


# --- the start ----------------------------------------------------------------------------------------

STARTS = 25

_IMPORT = """
import sys, time
began_ns = time.perf_counter_ns()
import surefoot
print(time.perf_counter_ns() - began_ns, *{"torch", "numpy"} & sys.modules.keys())
"""


def import_package() -> Figure:
    """`import surefoot` in a fresh process."""
    import_ms, bare_ms = [], []
    for _ in range(STARTS):
        bare_ms.append(_bare_start_ms())
        import_ns, *heavy = _python(_IMPORT).split()
        assert not heavy, f"import surefoot loads {heavy}"
        import_ms.append(int(import_ns) / 1e6)
    return _start_figure("import_ms", import_ms, bare_ms, 50)


def agent_ready() -> Figure:
    """From exec to the first answer of an agent, in a new run."""
    ready_ms, bare_ms = [], []
    for _ in range(STARTS):
        bare_ms.append(_bare_start_ms())
        ready_ms.append(_agent_ready_ms(Path(tempfile.mkdtemp())))
    return _start_figure("agent_ready_ms", ready_ms, bare_ms, 150)


def _start_figure(name: str, taken_ms: Sequence[float], bare_ms: Sequence[float], reach_ms: float) -> Figure:
    value, bare = median(taken_ms), median(bare_ms)
    against = f"an interpreter that does nothing: {bare:.0f} ms"
    return Figure(name, value, "ms", against, value / bare, f"≤ {reach_ms:g}", value <= reach_ms)


def _agent_ready_ms(run_dir: Path) -> float:
    path = wire.socket_path(rundir.create(run_dir, "bench").run)
    began_ns = time.perf_counter_ns()
    starter = subprocess.Popen([*AGENT_COMMAND, str(run_dir)])
    channel = None
    while channel is None:
        try:
            channel = wire.connect(path)
        except OSError:
            time.sleep(0.0005)
    channel.send({"kind": "ask", "what": "fold"})
    assert channel.wait(60)
    ready_ns = time.perf_counter_ns()
    channel.receive()
    starter.wait()
    channel.send({"kind": "ask", "what": "leave"})
    while channel.wait(60):  # its end is not to fall into the next round
        try:
            channel.receive()
        except ConnectionError:
            break
    channel.close()
    return (ready_ns - began_ns) / 1e6


def _bare_start_ms() -> float:
    began_ns = time.perf_counter_ns()
    _python("pass")
    return (time.perf_counter_ns() - began_ns) / 1e6


def _python(code: str, *arguments: str) -> str:
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


# --- a long history -----------------------------------------------------------------------------------

SHORT, LONG = 1_000, 1_000_000
STEP_NS = 1_000_000_000
CRASH_STEPS = 50_000


class _World:
    """A run as its brain hears of it: a step a second, a crash now and then, orders carried out at once."""

    def __init__(self, run_dir: Path) -> None:
        self.now_ns = 0
        self.brain = Brain(RunState(), self, Clock(1_700_000_000 * STEP_NS, lambda: self.now_ns), "node")
        self._pen = Appender(run_dir, 1)
        self._tell(TermStarted(format=1, term=1, after={"term": 0, "seq": 0}, node="node"))
        self._tell(Asked(id="start", who="bench", do="start"))

    def append(self, first_seq: int, lines: Sequence[bytes], *, sync: bool) -> None:
        """Take the brain's lines, as its scribe."""
        self._pen.append(first_seq, lines)

    def live_until(self, seq: int) -> RunState:
        """Let it train until its journal has that many lines; return the state then."""
        while self.brain.state.seq < seq:
            self.now_ns += STEP_NS
            self._tell(_step_done(self.brain.state))
            if self.brain.state.step % CRASH_STEPS == 0:
                self._tell(WorkerExited(node="node", rank=0, signal=9))
        return self.brain.state

    def _tell(self, event: Event) -> None:
        self.brain.tell(event)
        self.brain.flush()
        self.brain.durable(self.brain.state.seq)
        for pending in self.brain.due():
            self._carry_out(pending)

    def _carry_out(self, pending: Pending) -> None:
        match pending.body:
            case Save() | Write():
                head = self.brain.state.head
                assert head is not None
                self._tell(SnapshotCommitted(step=head.step, branch=head.branch, tier=DISK, bytes=1 << 30))
            case Mark(snapshot=id, mark=mark):
                self._tell(SnapshotMarked(step=id.step, branch=id.branch, mark=mark))
            case Prune(snapshot=id):
                self._tell(SnapshotMarked(step=id.step, branch=id.branch, mark="gone"))
            case Restart():
                self._start(pending.order)
        self._tell(OrderDone(order=pending.order))

    def _start(self, order: int) -> None:
        state = self.brain.state
        number, branch = state.attempt.number + 1, state.branches + 1
        head = state.head
        source = None if head is None else SnapshotId(max(head.step - 5, 0), head.branch)
        step = 0 if source is None else source.step
        self._tell(AttemptStarted(attempt=number, world_size=1, nodes=("node",), restore=source, order=order))
        self._tell(AttemptJoined(attempt=number, layout="", data={}, code={}))
        self._tell(
            Restored(
                branch=branch,
                lineage=((branch, 0),) if source is None else fork(state.lineage, source, branch),
                step=step,
                batch=step,
                sample=64 * step,
                tier=None if source is None else HOST,
                order=order,
            )
        )


def _step_done(state: RunState) -> StepDone:
    """The turn that a run in this state does next; it takes a second."""
    return StepDone(
        branch=state.lineage[-1][0],
        step=state.step,
        batch=state.step + 1,
        sample=64 * (state.step + 1),
        loss=2.0 + 1 / (1 + state.step),
        grad_norm=0.7,
        lr=3e-4,
        end_ns=state.at_ns + STEP_NS,
        data_ns=1_000_000,
        stall_ns=100_000,
        values={"tokens_per_s": 123456.0},
    )


@cache
def _history() -> tuple[Path, RunState, RunState]:
    """Make the journal of a run; return its directory, and the states after `SHORT` and `LONG` lines."""
    run_dir = Path(tempfile.mkdtemp())
    world = _World(run_dir)
    return run_dir, world.live_until(SHORT), world.live_until(LONG)


EVENTS = 1024
"""In a round: some events cost more than others, and each history is to meet as many of those."""


def advance_one() -> Figure:
    """One event more, after a short and after a long history."""
    _, short, long = _history()
    short_us, long_us = [], []
    for _ in range(15):
        short_us.append(_advance_us(short))
        long_us.append(_advance_us(long))
    value, at_first = median(long_us), median(short_us)
    ratio = value / at_first
    against = f"after {SHORT:,} events: {at_first:.1f} µs"
    holds = value <= 50 and ratio <= 1.5
    return Figure("advance_us", value, "µs", against, ratio, "≤ 50, flat within 1.5 ×", holds)


def _advance_us(state: RunState) -> float:
    spent_ns = 0
    for n in range(1, EVENTS + 1):
        line = Line(state.seq + 1, state.at_ns + STEP_NS, _step_done(state), (0, n))
        began_ns = time.perf_counter_ns()
        state, _ = advance(state, line)
        spent_ns += time.perf_counter_ns() - began_ns
    return spent_ns / EVENTS / 1e3


_FOLD = """
import sys, time
from pathlib import Path
from surefoot.journal.cache import fold
began_ns = time.perf_counter_ns()
fold(Path(sys.argv[1]))
print(time.perf_counter_ns() - began_ns)
"""


def fold_million() -> Figure:
    """A journal of a million events in a fresh process: without a cache, and with the one that this leaves."""
    run_dir, *_ = _history()
    cold_s, cached_s = list[float](), list[float]()
    for _ in range(3):
        (run_dir / "cache" / "fold.json").unlink(missing_ok=True)
        for taken_s in (cold_s, cached_s):
            taken_s.append(int(_python(_FOLD, str(run_dir))) / 1e9)
    value, cached = median(cold_s), median(cached_s)
    against = f"from the cache: {cached:.2f} s"
    holds = value <= 60 and cached <= 2
    return Figure("fold_million_s", value, "s", against, value / cached, "≤ 60 / ≤ 2", holds)


MEASURES: dict[str, Callable[[], Figure]] = {
    "loop_overhead_us": loop_overhead,
    "loop_overhead_ddp_us": loop_overhead_ddp,
    "import_ms": import_package,
    "agent_ready_ms": agent_ready,
    "advance_us": advance_one,
    "fold_million_s": fold_million,
}


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed: modules come compiled
    with tempfile.TemporaryDirectory(prefix="surefoot-bench-", ignore_cleanup_errors=True) as scratch:
        tempfile.tempdir = os.environ["XDG_RUNTIME_DIR"] = scratch  # the agents' sockets and logs, too
        report(MEASURES)
