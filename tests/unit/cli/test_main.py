"""Errors are one message and an exit code; help comes at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.unit.cli.places import surefoot

import surefoot as package
from surefoot.cli.group import Commands
from surefoot.errors import ConfigError, RunError


def ran(error: BaseException) -> tuple[int, str]:
    """Return exit code and stderr of a command that raises this."""

    @click.group(cls=Commands)
    @click.option("--traceback", is_flag=True, expose_value=False)
    def program() -> None:
        pass

    @program.command()
    def fail() -> None:
        raise error

    done = CliRunner().invoke(program, ["fail"])
    return done.exit_code, done.stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RunError("gpt is gone"), 1, "surefoot: gpt is gone\n"),
        (ConfigError("clip is no number"), 2, "surefoot: clip is no number\n"),
        (PermissionError(13, "Permission denied", "runs/gpt"), 1, "surefoot: Permission denied: runs/gpt\n"),
        (KeyboardInterrupt(), 130, ""),
        (click.ClickException("no"), 1, "surefoot: no\n"),
    ],
)
def test_an_error_is_one_message(error: BaseException, code: int, said: str) -> None:
    """What went wrong stands on stderr without a traceback, and the code tells whose turn it is."""
    got, stderr = ran(error)
    assert got == code
    assert stderr.strip("\n") == said.strip("\n")


def test_a_bug_of_ours_says_so_and_where() -> None:
    """What we did not foresee is code 70, with its place, and the whole traceback for who asks."""
    code, stderr = ran(KeyError("lr"))
    assert code == 70
    assert "a bug of ours, KeyError at test_main.py:" in stderr
    assert "Traceback" not in stderr


def test_a_bug_shows_its_traceback_on_demand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`--traceback` shows what the message only names."""

    def broken(_: Path) -> None:
        raise KeyError("lr")

    monkeypatch.setattr("surefoot.cli.runs.run_file", broken)
    done = CliRunner().invoke(package_main(), ["--traceback", "logbook", str(tmp_path)])
    assert done.exit_code == 70
    assert "Traceback" in done.stderr


def package_main() -> click.Command:
    from surefoot.cli.main import main

    return main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stauts", "x"], "did you mean 'status'?"),
        (["ckpt", "verfy", "x"], "did you mean 'verify'?"),
        (["frobnicate"], "no command 'frobnicate'"),
        (["status"], "Missing argument 'RUN'"),
        (["status", "x", "--jsn"], "--jsn"),
        (["logbook", "x", "--since", "soon"], "expected a step, such as 1200, or a time ago"),
        (["logbook", "x", "--since", "1.5"], "expected a step"),
        (["logbook", "x", "--since", "8y"], "expected a step"),
    ],
)
def test_a_wrong_call_is_code_2(arguments: list[str], said: str) -> None:
    """A command line that can't be meant says what was expected, or what may be meant."""
    done = surefoot(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    "command", ["status", "logbook", "ckpt ls", "ckpt verify", "save", "stop", "note", "set"]
)
def test_what_is_no_run_is_a_clear_error(command: str, tmp_path: Path) -> None:
    """No directory, an empty one, a file, and a folder of runs each say what they are."""
    extra = {"note": ["hello"], "set": ["clip=1"]}.get(command, [])
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "runs" / "gpt").mkdir(parents=True)
    (tmp_path / "runs" / "gpt" / "run.json").write_text("{}")
    for name, said in (
        ("none", "no such directory"),
        ("empty", "no run.json"),
        ("file", "it is a file"),
        ("runs", "the runs in it: gpt"),
        ("runs/gpt", "can't be read"),
    ):
        done = surefoot(*command.split(), tmp_path / name, *extra)
        assert done.exit_code == 1, (name, done.output)
        assert said in done.stderr
        assert "Traceback" not in done.output


def test_version_and_help() -> None:
    """`--version` names it; help names every command and how to complete them."""
    assert surefoot("--version").output == f"surefoot {package.__version__}\n"
    page = surefoot("--help").output
    for word in ("status", "logbook", "ckpt", "save", "note", "set", "stop", "demo", "_SUREFOOT_COMPLETE"):
        assert word in page
    assert all(len(line) <= 80 for line in page.splitlines())


@pytest.mark.parametrize(
    "heavy", ["rich", "torch", "numpy", "surefoot.journal", "surefoot.loop", "surefoot.agent"]
)
def test_help_loads_nothing_heavy(heavy: str) -> None:
    """What a command needs is imported when it runs."""
    code = f"import sys, surefoot.cli.main; print({heavy!r} in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_a_reader_that_leaves_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`surefoot logbook RUN | head` ends without a word."""
    code, stderr = ran(BrokenPipeError())
    assert code == 1
    assert stderr == ""


def test_completion_knows_commands_and_checkpoints(tmp_path: Path) -> None:
    """The shell is told the commands, and a run's checkpoints by name."""
    from click.shell_completion import ShellComplete

    def complete(arguments: list[str], incomplete: str) -> list[str]:
        shell = ShellComplete(package_main(), {}, "surefoot", "_SUREFOOT_COMPLETE")
        return [item.value for item in shell.get_completions(arguments, incomplete)]

    (tmp_path / "checkpoints" / "000000040.b0001.t0001").mkdir(parents=True)
    assert complete([], "st") == ["status", "stop"]
    assert complete(["ckpt", "inspect", str(tmp_path)], "0000") == ["000000040.b0001.t0001"]
