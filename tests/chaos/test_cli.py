"""The command line against real runs: the right word for every end, and requests that reach a live loop."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from surefoot.cli.main import main
from surefoot.core.advance import advance
from surefoot.core.state import RunState
from surefoot.journal import files, lease
from surefoot.journal.cache import state_hash

pytestmark = pytest.mark.chaos

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 60.0

SCRIPT = '''
import os, signal, struct, sys, time
from surefoot import Run
from surefoot.checkpoint.layout import Box

class Walk:
    """Eight numbers that wander; no framework."""

    def __init__(self):
        self.weights = bytearray(struct.pack("<8d", *range(1, 9)))

    def boxes(self):
        return (Box("walk.weights", "F64", (8,)),)

    def plain(self):
        return {}

    def copy_out(self, into):
        into["walk.weights"][:] = self.weights

    def copy_in(self, tensors, plain):
        self.weights[:] = tensors["walk.weights"]

    def turn(self, x):
        values = [w * 0.99 + x * 0.01 for w in struct.unpack("<8d", self.weights)]
        self.weights[:] = struct.pack("<8d", *values)
        return sum(w * w for w in values)

steps, at, how = int(sys.argv[1]), int(sys.argv[4]), sys.argv[5]
pause_s, linger_s = float(sys.argv[2]), float(sys.argv[3])
walk = Walk()
settings = {"stage_every_steps": 5, "save_every_steps": 60, "keep": 1, "linger_s": linger_s}
run = Run("run", state=walk, data=lambda place: place * 7919 % 13 / 13, **settings)
for step in run.steps(steps):
    loss = walk.turn(next(run.data))
    run.log(loss=loss, grad_norm=run.knob("clip", 1.0))
    time.sleep(pause_s)
    if step == at and how == "raise":
        raise RuntimeError("no luck today")
    if step == at and how != "raise":
        os.kill(os.getpid(), getattr(signal, how))
'''


class Place:
    """A folder with a script in it, and the run that the script trains."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.started: list[subprocess.Popen[bytes]] = []
        (folder / "walk.py").write_text(SCRIPT, encoding="utf-8")

    def start(
        self, steps: int, *, pause_s: float = 0.002, linger_s: float = 30.0, at: int = -1, how: str = "raise"
    ) -> subprocess.Popen[bytes]:
        """Start the script; at step `at` it raises, or gets the signal `how`."""
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        with (self.folder / "printed.txt").open("ab") as printed:
            process = subprocess.Popen(
                [sys.executable, "walk.py", str(steps), str(pause_s), str(linger_s), str(at), how],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": paths},
                stdout=printed,
                stderr=printed,
            )
        self.started.append(process)
        return process

    def end(self, *arguments: Any, **keywords: Any) -> int:
        """Start the script, wait for its end, and return its exit code."""
        code = self.start(*arguments, **keywords).wait(DEADLINE_S)
        print((self.folder / "printed.txt").read_text())  # what a failing test shows
        return code

    def wait_for_step(self, step: int) -> None:
        """Wait until the run has done a step."""
        self.wait_for(lambda: (self.run / "run.json").exists() and json_of("status", self.run)["step"] >= step)

    def wait_for(self, holds: Callable[[], Any]) -> Any:
        """Wait until something holds."""
        until = time.monotonic() + DEADLINE_S
        while not (found := holds()):
            assert time.monotonic() < until, surefoot("logbook", self.run).output
            time.sleep(0.02)
        return found

    def kill_agent(self) -> None:
        """Kill the agent."""
        holder = lease.holder(self.run)
        assert holder is not None
        os.kill(holder.lease.pid, signal.SIGKILL)
        self.wait_for(lambda: (now := lease.holder(self.run)) is not None and now.evidence == "gone")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Return a place whose sockets are its own; a socket's path has to be short."""
    with tempfile.TemporaryDirectory(prefix="sf-", ignore_cleanup_errors=True) as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        monkeypatch.chdir(tmp_path)
        here = Place(tmp_path)
        yield here
        for process in here.started:
            process.kill()
            process.wait()


def surefoot(*arguments: Any) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def json_of(*arguments: Any) -> Any:
    """Return what a command prints as JSON; nothing may go wrong."""
    ran = surefoot(*arguments, "--json")
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def agrees(fold: dict[str, Any], run: Path) -> bool:
    """Tell whether the live agent's state is what the files fold to at the same line, once that is on disk."""
    assert fold["source"] == "agent"
    state = RunState()
    for line in files.read(run):
        if line.seq <= fold["seq"]:
            state, _ = advance(state, line)
    assert state.seq < fold["seq"] or state_hash(state) == fold["hash"]
    return state.seq == fold["seq"]


def word_of(place: Place) -> str:
    return str(json_of("status", place.run)["word"])


@pytest.mark.parametrize(
    ("how", "code", "word"),
    [
        ("", 0, "finished"),
        ("raise", 1, "failed"),
        ("SIGTERM", 75, "preempted"),
        ("SIGINT", 83, "stopped"),
        ("SIGKILL", -signal.SIGKILL, "failed"),
    ],
)
def test_every_end_has_its_word(place: Place, how: str, code: int, word: str) -> None:
    """A normal end, an exception, TERM, Ctrl-C and a killed worker each give the right word (case D33)."""
    assert place.end(40, at=20 if how else -1, how=how or "raise") == code
    place.wait_for(lambda: word_of(place) == word)
    assert word_of(place) == word  # and it stays
    told = surefoot("status", place.run).output
    assert word in told
    assert ("waiting to be started again" in told) == (word == "failed")


def test_a_run_whose_processes_are_all_killed_is_lost(place: Place) -> None:
    """Worker and agent killed at one instant: lost within three beats, and a note doesn't change that."""
    process = place.start(100_000, pause_s=0.01)
    place.wait_for_step(20)
    holder = lease.holder(place.run)
    assert holder is not None
    os.kill(holder.lease.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    place.wait_for(lambda: word_of(place) == "lost")
    assert surefoot("note", place.run, "who pulled the plug?").exit_code == 0
    assert word_of(place) == "lost"
    assert surefoot("save", place.run).exit_code == 1
    assert place.end(60) == 0  # n lies behind, and it is started all the same
    assert word_of(place) == "finished"
    assert "Note by" in surefoot("logbook", place.run).output


def test_a_run_whose_agent_is_killed_goes_on_running(place: Place) -> None:
    """The agent's death alone is never called a failure: the ranks bring another."""
    process = place.start(100_000, pause_s=0.01)
    place.wait_for_step(10)
    place.kill_agent()
    words = {word_of(place) for _ in range(20)}
    step = json_of("status", place.run)["step"]
    place.wait_for_step(step + 20)
    assert words == {"running"}
    assert "Another agent took over" in surefoot("logbook", place.run).output
    assert surefoot("stop", place.run).exit_code == 0
    assert process.wait(DEADLINE_S) == 83


def test_a_live_run_is_steered(place: Place) -> None:
    """note, save, set and stop reach a live loop, and each command returns with what came of it."""
    process = place.start(100_000, pause_s=0.01)
    place.wait_for_step(10)
    assert surefoot("note", place.run, "looks calm").output == "on record\n"
    saved = surefoot("save", place.run)
    assert saved.exit_code == 0, saved.output
    assert saved.output.startswith("saved step ")
    changed = surefoot("set", place.run, "clip=0.5", "--why", "calmer")
    assert changed.output.startswith("clip = 0.5 from step "), changed.output
    place.wait_for(lambda: json_of("status", place.run)["grad_norm"] == 0.5)
    unknown = surefoot("set", place.run, "clpi=0.5")
    assert unknown.exit_code == 1
    assert "it asks for: clip" in unknown.stderr
    assert surefoot("ckpt", "verify", place.run).exit_code == 0
    assert place.wait_for(lambda: agrees(json_of("status", place.run)["fold"], place.run))
    stopped = surefoot("stop", place.run, "--why", "lunch")
    assert stopped.exit_code == 0, stopped.output
    assert process.wait(DEADLINE_S) == 83
    assert word_of(place) == "stopped"
    book = surefoot("logbook", place.run).output
    for part in ("looks calm", "clip = 0.5 from step", "calmer", "Could not set clpi", "lunch"):
        assert part in book


@pytest.mark.parametrize("linger_s", [0.0, 30.0])
def test_a_knob_set_between_two_starts_is_there_in_the_next(place: Place, linger_s: float) -> None:
    """Whether its agent lingers or is gone, a run at rest takes a knob, and the next start has it."""
    assert place.end(10, linger_s=linger_s, at=5, how="SIGINT") == 83
    if not linger_s:
        place.wait_for(
            lambda: (now := lease.holder(place.run)) is not None and now.evidence in ("ended", "gone")
        )
    changed = surefoot("set", place.run, "clip=0.25")
    assert changed.output == "clip = 0.25 from its next start on\n"
    assert place.end(20) == 0
    page = json_of("status", place.run)
    assert page["knobs"] == {"clip": 0.25}
    assert page["pending"] == []
    assert page["grad_norm"] == 0.25


def test_a_run_is_read_while_it_is_written(place: Place) -> None:
    """However often a live run is looked at, no command fails, and live state and files agree."""
    process = place.start(1_500, at=700, how="SIGKILL")
    place.wait_for(lambda: (place.run / "terms").is_dir() and any((place.run / "journal").glob("*.jsonl")))
    looks = 0
    for _ in range(2):
        while process.poll() is None:
            for command in (("status",), ("logbook",), ("ckpt", "ls"), ("ckpt", "verify"), ("status",)):
                ran = surefoot(*command, place.run, "--json")
                assert ran.exit_code == 0, ran.output
                json.loads(ran.stdout)
                looks += 1
        process.wait()
        process = place.start(1_500)
    assert process.wait(DEADLINE_S) == 0
    assert looks >= 10
    assert word_of(place) == "finished"
    place.wait_for(lambda: (now := lease.holder(place.run)) is not None and now.evidence == "ended")
    fold = json_of("status", place.run)["fold"]
    assert (fold["seq"], fold["source"]) == (files.tail(place.run)[1], "files")


def test_a_terminal_of_80_columns_is_enough(place: Place) -> None:
    """At a terminal no line is longer than it is wide; in a pipe no line is broken and none has colour."""
    assert place.end(40, at=20, how="SIGKILL") == -signal.SIGKILL
    assert place.end(40) == 0
    for command in (["status", "--curve"], ["logbook"], ["ckpt", "ls"], ["ckpt", "inspect"]):
        arguments = [*command, str(place.run), *(["40"] if command[-1] == "inspect" else [])]
        lines = at_terminal(arguments).splitlines()
        assert lines
        assert max(map(len, lines)) <= 80, arguments
        piped = surefoot(*arguments).output
        assert "\x1b" not in piped
        assert all(line == line.rstrip() for line in piped.splitlines())


def at_terminal(arguments: list[str]) -> str:
    """Run a command at a terminal of 80 columns and return what it shows, colours left out."""
    import re

    ours, theirs = pty.openpty()
    code = "import sys; from surefoot.cli.main import main; main(prog_name='surefoot')"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=theirs,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm-256color", "PYTHONPATH": str(ROOT / "src")},
    )
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], DEADLINE_S)[0]:
        try:
            got = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        shown += got
    os.close(ours)
    assert process.wait(DEADLINE_S) == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
