"""Real processes for the chaos tests: scripts forked from a warm process, kills by pid, what the journal says.

Starting torch takes a second, so trials fork their ranks from one process that has done it. Each child
ends as any script's process does: exit hooks, traceback and exit code are the interpreter's own. Whatever
is waited for has a deadline, and a trial that misses it shows what its processes printed.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import hashlib
import importlib
import inspect
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from surefoot.core.advance import advance
from surefoot.core.events import Event, Line, StepDone
from surefoot.core.state import RunState
from surefoot.errors import AgentError
from surefoot.journal import files, inbox, lease, rundir
from surefoot.journal.cache import state_hash
from surefoot.loop.link import ask
from surefoot.wire import runtime_dir

ROOT = Path.cwd()
DEADLINE_S = 60.0

Script = Callable[..., None]
"""What a rank runs: a function of a test module, called with a `Here` and keywords that JSON can hold."""

E = TypeVar("E", bound=Event)


# --- in the rank's process ----------------------------------------------------------------------------


class Here:
    """What a script knows of its place."""

    def __init__(self, folder: Path, rank: int, world_size: int, group: str) -> None:
        self.run_dir = folder / "run"
        self.rank = rank
        self.world_size = world_size
        self._group = group
        self._trace = os.open(folder / f"trace-{rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def turn(self, step: int, **values: Any) -> None:
        """Put a turn on the script's own record: losses as hex, ids, hashes. What comes again must be equal."""
        os.write(self._trace, f"{json.dumps({'step': step, **exact(values)})}\n".encode())

    def breathe(self, run: Any) -> None:
        """Take as long as a real turn: until the agent has lent a slot, so that the next boundary can stage."""
        until = time.monotonic() + 5.0
        while not run._snapshots.has_slot and time.monotonic() < until:
            run._joined.messages()
            time.sleep(0.001)

    def events(self, kind: type[E]) -> list[E]:
        """Return every event of one kind that the run's journal holds so far."""
        return [line.event for line in files.read(self.run_dir) if isinstance(line.event, kind)]

    def die(self) -> None:
        """End at once, as the kernel's out-of-memory killer would do it."""
        os.kill(os.getpid(), signal.SIGKILL)

    def join(self) -> None:
        """Join the ranks of this start into a gloo group."""
        import torch.distributed as dist

        where = f"file://{self._group}"
        dist.init_process_group("gloo", init_method=where, rank=self.rank, world_size=self.world_size)


def exact(value: Any) -> Any:
    """Return a value as JSON that two values share only if they are equal to the last bit."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): exact(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [exact(inner) for inner in value]
    if hasattr(value, "detach"):
        value = value.detach()
        return exact(value.tolist()) if value.numel() <= 64 else digest([value])
    return value


def digest(tensors: Iterable[Any]) -> str:
    """Return a hash of all bytes of these tensors."""
    hashed = hashlib.sha1()
    for tensor in tensors:
        hashed.update(tensor.detach().contiguous().numpy().tobytes())
    return hashed.hexdigest()[:16]


def fingerprint(part: Any) -> str:
    """Return a hash of everything that a model, an optimizer or anything else with a state dict holds."""
    hashed = hashlib.sha1()

    def take(value: Any) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                hashed.update(repr(key).encode())
                take(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                take(inner)
        elif hasattr(value, "detach"):
            hashed.update(value.detach().contiguous().numpy().tobytes())
        else:
            hashed.update(repr(value).encode())

    if hasattr(part, "state_dict"):
        take(part.state_dict())
    elif hasattr(part, "bit_generator"):
        take(part.bit_generator.state)
    else:
        take(part.get_state() if hasattr(part, "get_state") else part.getstate())
    return hashed.hexdigest()[:16]


def seed(number: int) -> None:
    """Seed every main generator, as a script does that wants to be the same every time."""
    import numpy as np
    import torch

    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


def dice() -> list[str]:
    """Return the fingerprint of each main generator."""
    import numpy as np
    import torch

    states = torch.get_rng_state().numpy().tobytes(), repr(random.getstate()), repr(np.random.get_state())  # noqa: NPY002
    return [hashlib.sha1(s if isinstance(s, bytes) else s.encode()).hexdigest()[:8] for s in states]


# --- the warm process ---------------------------------------------------------------------------------


_code: int | None = None
"""What the interpreter is about to end with; None while nothing is known, or it is a signal."""


def _skip_teardown() -> None:
    """End here, behind everybody else's exit hooks: taking torch apart would take longer than the trial."""
    if _code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_code)


def serve(fd: int) -> None:
    """Fork a child for every request; in the child return once its script is through."""
    atexit.register(_skip_teardown)  # before torch has any of its own: the first one is the last to be called
    import torch
    import torch._dynamo  # an optimizer's first step imports it
    import torch.distributed
    import torch.utils.data

    import surefoot.run
    import surefoot.torch.dataloader
    import surefoot.torch.ranks
    import surefoot.torch.state  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()
    server = socket.socket(fileno=fd)
    while packet := server.recv(1 << 20):
        request = json.loads(packet)
        if "reap" in request:
            code = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
            server.send(json.dumps(code).encode())
            continue
        importlib.import_module(request["module"])
        pid = os.fork()
        if pid == 0:
            server.close()
            _play(request)
            return
        server.send(json.dumps(pid).encode())


def _play(request: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    out = os.open(request["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(out, number)
    faulthandler.enable()
    seed(0)
    sys.argv = [request["script"]]
    script = getattr(sys.modules[request["module"]], request["script"])
    here = Here(Path(request["folder"]), request["rank"], request["world_size"], request["group"])
    global _code
    try:
        script(here, **request["args"])
        _code = 0
    except SystemExit as leaving:
        _code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        raise
    except Exception:
        _code = 1
        raise


class Warm:
    """A process from which trials fork their ranks."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = "import sys; from tests import runs; runs.serve(int(sys.argv[1]))"
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
            )

    def fork(self, request: dict[str, Any]) -> int:
        """Start a script in a child of the warm process; return its pid."""
        return self._ask(request)

    def reap(self, pid: int) -> int:
        """Return the exit code of a child that has ended; -n for signal n."""
        return self._ask({"reap": pid})

    def _ask(self, request: dict[str, Any]) -> int:
        self._ours.send(json.dumps(request).encode())
        return int(json.loads(self._ours.recv(4096)))

    def close(self) -> None:
        """End it."""
        self._ours.close()
        self._process.wait(10)


# --- in the test --------------------------------------------------------------------------------------


class Worker:
    """One rank's process."""

    def __init__(self, warm: Warm, pid: int, out: Path) -> None:
        self.pid = pid
        self.out = out
        self._warm = warm
        self._pidfd = os.pidfd_open(pid)
        self._code: int | None = None

    @property
    def text(self) -> str:
        """What it has printed so far, on both streams."""
        return self.out.read_text()

    def signal(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; by descriptor, so never to a stranger that has its pid now."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            pass

    def ended(self, deadline_s: float = 0.0) -> bool:
        """Tell whether it has ended, or does so within the deadline."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(deadline_s * 1000))

    def code(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for its end and return the exit code, -n for signal n."""
        if self._code is None:
            if not self.ended(deadline_s):
                self.signal(signal.SIGABRT)  # which prints where it stands
                self.ended(5.0)
                raise AssertionError(f"process {self.pid} still runs after {deadline_s:g} s:\n{self.text}")
            self._code = self._warm.reap(self.pid)
        return self._code


class Trial:
    """One run and the processes that train it, started again and again."""

    def __init__(self, warm: Warm, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self._warm = warm
        self._starts = 0
        self.workers: list[Worker] = []
        """Of every start so far."""
        folder.mkdir(parents=True, exist_ok=True)

    def start(
        self, script: Script, *, ranks: int = 1, env: Mapping[str, str] | None = None, **args: Any
    ) -> list[Worker]:
        """Start a script's ranks; keywords go to the script."""
        self._starts += 1
        group = self.folder / f"group-{self._starts}"
        started = []
        for rank in range(ranks):
            out = self.folder / f"out-{self._starts}-{rank}.txt"
            out.touch()
            request = {
                "module": script.__module__,
                "script": script.__name__,
                "args": args,
                "env": {**os.environ, **(env or {})},
                "folder": str(self.folder),
                "out": str(out),
                "rank": rank,
                "world_size": ranks,
                "group": str(group),
            }
            started.append(Worker(self._warm, self._warm.fork(request), out))
        self.workers += started
        return started

    def run(
        self,
        script: Script,
        *,
        ends: int | None = 0,
        ranks: int = 1,
        deadline_s: float = DEADLINE_S,
        **args: Any,
    ) -> str:
        """Start a script, wait for all its ranks, and return what rank 0 printed.

        Every rank has to end with the code `ends`; None: with any.
        """
        workers = self.start(script, ranks=ranks, **args)
        codes = [worker.code(deadline_s) for worker in workers]
        if ends is not None and codes != [ends] * ranks:
            raise AssertionError(f"exit codes {codes}, expected {ends}:\n{self.told()}")
        return workers[0].text

    def told(self) -> str:
        """Return all that the processes of this run have printed, and its agents."""
        texts = [f"--- {worker.out.name}\n{worker.text}" for worker in self.workers[-4:]]
        logs = runtime_dir().glob("*.log")
        return "\n".join(texts + [f"--- agent\n{log.read_text()[-4000:]}" for log in logs])

    # --- what is on record ----------------------------------------------------------------------------

    def turns(self, rank: int = 0, *, twice: bool = False) -> dict[int, dict[str, Any]]:
        """Return the script's own record by step; every time a step was done it has to be the same.

        With `twice` the first of two equal steps in a row counts for nothing: it was done to be rewound.
        """
        turns: dict[int, dict[str, Any]] = {}
        done = [json.loads(line) for line in (self.folder / f"trace-{rank}.jsonl").read_text().splitlines()]
        for turn, following in zip_longest(done, done[1:]):
            if twice and following is not None and following["step"] == turn["step"]:
                continue
            before = turns.setdefault(turn["step"], turn)
            assert turn == before, f"step {turn['step']} came back as {turn}, it had been {before}"
        return turns

    def same_as(self, other: Trial, ranks: int = 1, *, twice: bool = False) -> None:
        """Check that this run and another one did the same turns, to the last bit."""
        for rank in range(ranks):
            ours, theirs = self.turns(rank, twice=twice), other.turns(rank, twice=twice)
            assert list(ours) == sorted(ours), f"rank {rank} did its turns in the order {list(ours)}"
            differ = [step for step in ours | theirs if ours.get(step) != theirs.get(step)]
            if differ:
                first = f"{ours.get(differ[0])}\nexpected {theirs.get(differ[0])}"
                raise AssertionError(f"rank {rank} differs at steps {differ}: {first}\n{self.told()}")

    def lines(self) -> list[Line]:
        """Return the journal so far."""
        return list(files.read(self.run_dir))

    def events(self, kind: type[E]) -> list[E]:
        """Return every event of one kind, oldest first."""
        return [line.event for line in self.lines() if isinstance(line.event, kind)]

    def state(self) -> RunState:
        """Return the fold of the journal."""
        state = RunState()
        for line in files.read(self.run_dir):
            state, _ = advance(state, line)
        return state

    def kept(self) -> list[StepDone]:
        """Return the turns that count: of each step the newest one."""
        done = {event.step: event for event in self.events(StepDone)}
        return [done[step] for step in sorted(done)]

    @property
    def agent_pid(self) -> int | None:
        """The pid of the agent that holds the run, if one lives."""
        holder = lease.holder(self.run_dir) if self.run_dir.is_dir() else None
        return holder.lease.pid if holder is not None and holder.evidence == "alive" else None

    def kill_agent(self) -> int | None:
        """Kill the agent, if one lives; return its pid."""
        pid = self.agent_pid
        if pid is not None:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return None
        return pid

    def leave(self, do: str, **args: Any) -> str:
        """Ask something of the live run, as a command would; return the request's id."""
        return inbox.leave(self.run_dir, {"who": "tester@here", "do": do, "args": args})

    def wait_for(self, what: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
        """Wait until `what` returns something true, and return that."""
        until = time.monotonic() + deadline_s
        while not (found := what()):
            if time.monotonic() > until:
                wanted = inspect.getsource(what).strip()
                raise AssertionError(f"not within {deadline_s:g} s: {wanted}\n{self.told()}")
            time.sleep(0.01)
        return found

    def wait_for_nobody(self) -> None:
        """Wait until the run's agent has left."""
        self.wait_for(lambda: self.agent_pid is None)

    def wait_for_step(self, step: int, rank: int = 0) -> None:
        """Wait until the script has recorded that step."""
        path = self.folder / f"trace-{rank}.jsonl"
        self.wait_for(lambda: path.exists() and any(json.loads(line)["step"] >= step for line in whole(path)))

    def end(self) -> None:
        """Kill what still runs, and let the warm process forget its children."""
        for worker in self.workers:
            worker.signal()
            worker.code()

    # --- what always holds ------------------------------------------------------------------------------

    def check(self) -> None:
        """Check what holds of every run at rest: files and live agent agree, and time is accounted for."""
        if rundir.read(self.run_dir) is None:
            return
        self._check_fold()
        state = self.state()
        ledger = state.ledger
        assert sum(ledger.accounts.values()) == ledger.mark_ns - ledger.begin_ns
        assert all(ns >= 0 for ns in ledger.accounts.values()), ledger.accounts

    def _check_fold(self) -> None:
        """Compare the live agent's hash of its state with the one that the files give at the same line."""
        run = rundir.read(self.run_dir)
        assert run is not None

        def compared() -> bool:
            try:
                told = ask(run.run, "fold")
            except (OSError, AgentError, IndexError):
                return self.agent_pid is None
            state = RunState()
            for line in files.read(self.run_dir):
                if line.seq <= told["seq"]:
                    state, _ = advance(state, line)
            if state.seq < told["seq"]:
                return False  # its newest lines are still on their way
            assert state_hash(state) == told["hash"], f"the files and the agent differ at line {state.seq}"
            return True

        self.wait_for(compared, 15.0)


def whole(path: Path) -> Sequence[str]:
    """Return the whole lines of a file that is being written."""
    return path.read_text().rpartition("\n")[0].splitlines()
