"""`status`, `logbook` and `ckpt` on run directories: what is shown, as a page and as JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.checkpoints import change
from tests.unit.cli.places import json_of, put, surefoot, with_checkpoints
from tests.unit.views.tales import Tale, trained

from surefoot.checkpoint.store import DiskStore
from surefoot.cli import runs
from surefoot.core.events import Noted, RunEnded, TermEnded
from surefoot.journal import cache, lease, rundir


def ended() -> Tale:
    return trained(50).tell(RunEnded(word="finished", exit_code=0), TermEnded())


def test_status_is_a_page_and_json(tmp_path: Path) -> None:
    """Both say the same; the JSON names the state that it was read from."""
    run = put(tmp_path / "gpt", ended())
    page = surefoot("status", run).output
    assert page.startswith("gpt: finished since ")
    for part in ("step     50", "loss     0.02", "durable  step 0, on probation, 3.0 MiB", "ETTR"):
        assert part in page
    found = json_of("status", run)
    assert (found["word"], found["step"], found["loss"]) == ("finished", 50, 0.02)
    state = cache.fold(run)
    assert found["fold"] == {"seq": state.seq, "hash": cache.state_hash(state), "source": "files"}


def test_a_run_that_has_only_been_made_can_be_read(tmp_path: Path) -> None:
    """Between `run.json` and the first line every command has something to say."""
    rundir.create(tmp_path / "gpt", "gpt")
    assert "nothing has been trained yet" in surefoot("status", tmp_path / "gpt", "--curve").output
    for command in (["logbook"], ["ckpt", "ls"], ["ckpt", "verify"]):
        assert surefoot(*command, tmp_path / "gpt").exit_code == 0


def test_json_has_no_bare_nan(tmp_path: Path) -> None:
    """A loss that isn't finite is a text: every JSON reader takes it."""
    tale = Tale().term().attempt().turns(3, loss=lambda _: float("nan"))
    run = put(tmp_path / "gpt", tale)
    text = surefoot("status", run, "--json").stdout
    assert json.loads(text, parse_constant=pytest.fail)["loss"] == "nan"


def test_status_can_draw_the_curve(tmp_path: Path) -> None:
    """`--curve` adds the picture, without colour in a pipe."""
    page = surefoot("status", put(tmp_path / "gpt", ended()), "--curve").output
    assert "step 49" in page
    assert "┤" in page
    assert "\x1b" not in page


def test_a_live_agent_of_another_container_is_believed_to_live(tmp_path: Path) -> None:
    """A holder whose process runs and whose socket is mute is running; the page says what that is from."""
    run = put(tmp_path / "gpt", trained(), pid=None)
    assert json_of("status", run)["word"] == "running"
    assert "does not answer from here" in surefoot("status", run).output


class Clock:
    """Stands in for `time` in `runs`: sleeping moves it, and lets somebody else act."""

    def __init__(self, acts: list[object]) -> None:
        self.now, self.acts = 0.0, acts

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.acts and callable(act := self.acts.pop(0)):
            act()


def test_a_holder_on_another_node_lives_while_its_counter_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of sight only the counter tells: it is watched for as long as one who would take the run watches."""
    run = put(tmp_path / "gpt", trained(), node="elsewhere")
    lease.beat(run, 1, 5)
    monkeypatch.setattr(runs, "time", still := Clock([]))
    assert json_of("status", run)["word"] == "lost"
    assert still.now >= 4.0
    monkeypatch.setattr(runs, "time", moving := Clock([None, lambda: lease.beat(run, 1, 6)]))
    assert json_of("status", run)["word"] == "running"
    assert moving.now < 1.0


def test_only_the_newest_lines_are_read_for_a_page(tmp_path: Path) -> None:
    """However long the journal, a page needs its end; what lies before is not decoded."""
    tale = trained(300).tell(Noted(text="n"))
    run = put(tmp_path / "gpt", tale)
    lines = runs.newest_lines(run, cache.fold(run), count=10)
    assert [line.seq for line in lines] == list(range(len(tale.lines) - 9, len(tale.lines) + 1))
    assert len(runs.newest_lines(run, cache.fold(run), count=10_000)) == len(tale.lines)


def test_the_logbook_of_a_pipe_has_one_line_an_entry(tmp_path: Path) -> None:
    """Nothing is wrapped in a pipe; `--since` leaves out what came before, by step or by time."""
    tale = (
        trained(50)
        .tell(Noted(text="word " * 60, who="anna"))
        .turns(60)
        .tell(RunEnded(word="stopped", exit_code=83))
    )
    run = put(tmp_path / "gpt", tale)
    lines = surefoot("logbook", run).output.splitlines()
    assert len(lines) == len(json_of("logbook", run)) == 5
    assert len(lines[2]) > 300
    assert len(surefoot("logbook", run, "--since", "60").output.splitlines()) == 2
    assert surefoot("logbook", run, "--since", "8h").output == ""  # the tale is of 2023


def test_checkpoints_are_listed(tmp_path: Path) -> None:
    """Each with what it is worth; an arrow shows where a start would begin."""
    run = with_checkpoints(tmp_path / "gpt", 0, 40)
    rows = surefoot("ckpt", "ls", run).output.splitlines()
    assert len(rows) == 3
    assert rows[2].startswith("→  000000040.b0001.t0001")
    assert [row["resumes"] for row in json_of("ckpt", "ls", run)] == [False, True]
    assert "no checkpoint yet" in surefoot("ckpt", "ls", put(tmp_path / "new", Tale().term())).output


def test_every_byte_is_verified(tmp_path: Path) -> None:
    """A whole run is well; one flipped bit, named with its file, is exit code 1."""
    run = with_checkpoints(tmp_path / "gpt", 0, 40)
    whole = surefoot("ckpt", "verify", run)
    assert whole.exit_code == 0
    assert whole.output.count("whole") == 2
    name = "000000040.b0001.t0001"
    change(DiskStore(run / "checkpoints"), f"{name}/rank-00000.safetensors", 5000)
    bad = surefoot("ckpt", "verify", run)
    assert bad.exit_code == 1
    assert "rank-00000.safetensors (chunk 0)" in bad.output
    assert surefoot("ckpt", "verify", run, "0").exit_code == 0
    assert surefoot("ckpt", "verify", run, "40").exit_code == 1
    found = json.loads(surefoot("ckpt", "verify", run, "--json").stdout)
    assert [(each["name"][:9], len(each["problems"])) for each in found] == [("000000000", 0), ("000000040", 1)]


def test_what_was_never_finished_is_no_fault(tmp_path: Path) -> None:
    """A write that a kill cut short is told and isn't wrong; a checkpoint that lost its manifest is."""
    run = with_checkpoints(tmp_path / "gpt", 0, 40)
    (run / "checkpoints" / "000000041.b0001.t0001").mkdir()
    told = surefoot("ckpt", "verify", run)
    assert told.exit_code == 0
    assert "not a checkpoint" in told.output
    (run / "checkpoints" / "000000040.b0001.t0001" / "manifest.json").unlink()
    lost = surefoot("ckpt", "verify", run)
    assert lost.exit_code == 1
    assert "step 40 (branch 1)" in lost.output


def test_a_checkpoint_is_inspected(tmp_path: Path) -> None:
    """Tensors with dtype, shape and size, plain values by path, the manifest as it was written."""
    run = with_checkpoints(tmp_path / "gpt", 0, 40)
    page = surefoot("ckpt", "inspect", run, "40").output
    assert "model.w  F32    64 × 32    8.0 KiB      1" in page
    assert "rank                  0" in page
    found = json_of("ckpt", "inspect", run, "000000040.b0001.t0001")
    assert found["manifest"]["step"] == 40
    assert [tensor["name"] for tensor in found["tensors"]] == ["model.w", "model.b"]
    unknown = surefoot("ckpt", "inspect", run, "000000040.b0001.t0002")
    assert unknown.exit_code == 2
    assert "did you mean '000000040.b0001.t0001'?" in unknown.stderr
