"""`surefoot save | note | set | stop`: a person steers a run, live or between two starts of it."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from surefoot.cli import out
from surefoot.cli.params import RUN

if TYPE_CHECKING:
    from surefoot.cli.runs import Seen

_WAIT = click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=120.0, show_default=True, metavar="SECONDS",
    help="How long to wait for what comes of it.",
)  # fmt: skip
_WHY = click.option("--why", default="", metavar="TEXT", help="The reason, for the logbook.")


@click.command(short_help="Have a live run save now.")
@RUN
@_WAIT
def save(run: Path, *, wait_s: float) -> None:
    """Have a live run save at its next boundary, and wait until that is durable."""
    _ask_running(run, "save", {}, wait_s)


@click.command(short_help="Have a live run save and stop.")
@RUN
@_WHY
@_WAIT
def stop(run: Path, *, why: str, wait_s: float) -> None:
    """Have a live run save and stop at its next boundary; the same command starts it again from there."""
    _ask_running(run, "stop", {"why": f"{why} ({_who()})"} if why else {}, wait_s)


@click.command()
@RUN
@click.argument("text")
@_WAIT
def note(run: Path, text: str, *, wait_s: float) -> None:
    """Write a remark into a run's logbook."""
    from surefoot.core.events import Noted

    seen = _look(run)
    if seen.held:
        _ask(seen, "note", {"text": text}, wait_s)
        return
    from surefoot.cli.dead import term

    with term(seen) as brain:
        brain.tell(Noted(text=text, who=_who()))
    out.say("on record")


@click.command("set", short_help="Change a knob, or accept a changed script.")
@RUN
@click.argument("words", metavar="[KNOB=VALUE]…", nargs=-1)
@click.option(
    "--accept-change",
    "keys",
    multiple=True,
    metavar="KEY",
    help="Let the next start differ in KEY; may be repeated.",
)
@_WHY
@_WAIT
def set_(run: Path, words: tuple[str, ...], keys: tuple[str, ...], *, why: str, wait_s: float) -> None:
    """Change a knob of a run, now or for its next start; or accept what the script has changed.

    A knob is what the loop asks for by run.knob(name, default).
    """
    # `--accept-change a b`: what has no value is another key.
    accepted = [*keys, *(word for word in words if keys and "=" not in word)]
    knobs = [_knob(word) for word in words if not (keys and "=" not in word)]
    if not knobs and not accepted:
        raise click.UsageError("expected KNOB=VALUE, such as clip=0.5, or --accept-change KEY")
    seen = _look(run)
    if accepted:
        _accept(seen, accepted, wait_s)
    for name, value in knobs:
        if seen.held:
            _ask(
                seen,
                "set",
                {"name": name, "value": value, **({"why": f"{why} ({_who()})"} if why else {})},
                wait_s,
            )
        else:
            _set_dead(seen, name, value, why)


def _accept(seen: Seen, keys: list[str], wait_s: float) -> None:
    from surefoot.config import did_you_mean

    for key in keys:
        if seen.state.declared and key not in seen.state.declared and key != "seed":
            # A key may be new in the script: it is accepted all the same.
            hint = did_you_mean(key, list(seen.state.declared))
            click.echo(f"surefoot: this run has not declared {key!r} so far{hint}", err=True)
    if seen.held:
        _ask(seen, "accept_change", {"keys": keys}, wait_s)
        return
    from surefoot.cli.dead import term
    from surefoot.core.events import Asked

    with term(seen) as brain:
        brain.tell(Asked(id=_id(), who=_who(), do="accept_change", args={"keys": keys}))
    out.say(f"accepted for the next start: {', '.join(keys)}")


def _set_dead(seen: Seen, name: str, value: Any, why: str) -> None:
    """Put a knob's value on record where no loop can be asked: the next start has it from its first step."""
    from surefoot.cli.dead import term
    from surefoot.core.events import Asked, KnobSet, OrderDone, OrderFailed
    from surefoot.core.orders import Set
    from surefoot.core.settings import Settings
    from surefoot.errors import ConfigError

    if name == "stage_every" or name in {field.name for field in fields(Settings)}:
        raise ConfigError(
            f"{name} is a setting, and {seen.path} is not running: expected a knob; give a setting to Run(...) "
            "or surefoot.toml before the next start"
        )
    before = seen.state.knobs.get(name)
    if isinstance(before, int | float) and not isinstance(value, int | float):
        raise ConfigError(f"{name} is {before!r} now: expected a number, got {value!r}")
    who, outcome = _who(), f"{name} = {value!r} from its next start on"
    with term(seen) as brain:
        # One that no boundary has carried out would come after this one, and undo it.
        for pending in brain.state.pending:
            if isinstance(pending.body, Set) and pending.body.name == name:
                brain.tell(OrderFailed(order=pending.order, outcome=f"overtaken by {name} = {value!r}"))
        brain.tell(Asked(id=_id(), who=who, do="set", args={"name": name, "value": value, "why": why}))
        order = brain.state.orders
        brain.tell(KnobSet(name=name, value=value, from_step=brain.state.step, who=who, why=why))
        brain.tell(OrderDone(order=order, outcome=outcome))
    out.say(outcome)


def _ask_running(run: Path, do: str, args: dict[str, Any], wait_s: float) -> None:
    """Ask what only ranks that train can do."""
    from surefoot.errors import RunError

    seen = _look(run)
    if not seen.held or seen.signs.live is False:
        raise RunError(f"{run}: nothing is running here to {do}. Look with: surefoot status {run}")
    _ask(seen, do, args, wait_s)


def _ask(seen: Seen, do: str, args: dict[str, Any], wait_s: float) -> None:
    """Ask a live run, and say what came of it; the command fails if nothing good did."""
    from surefoot.cli.live import ask
    from surefoot.errors import RunError

    if sys.stderr.isatty():
        with out.console(stderr=True).status("asked; waiting for the next boundary"):
            came = ask(seen, _who(), do, args, wait_s)
    else:
        came = ask(seen, _who(), do, args, wait_s)
    if not came.well:
        raise RunError(f"{seen.path}: {came.text}")
    out.say(came.text)


def _look(run: Path) -> Seen:
    """Look at a run that is to be steered. Raises RunError in the moment between two agents of a live one."""
    from surefoot.cli.runs import look, newest_lines
    from surefoot.errors import RunError
    from surefoot.views.status import RUNNING, judge

    seen = look(run)
    word, detail, _ = judge(seen.state, newest_lines(run, seen.state), seen.signs, seen.now_ns)
    if not seen.held and word == RUNNING:
        raise RunError(f"{run}: {detail}. Expected a run that is alive or at rest; ask again in a few seconds")
    return seen


def _knob(word: str) -> tuple[str, Any]:
    """Return (name, value) of `clip=0.5`. Raises ConfigError for what no loop should get."""
    from surefoot.errors import ConfigError

    name, equals, text = word.partition("=")
    name, text = name.strip(), text.strip()
    if not equals or not name or not text:
        raise ConfigError(f"{word!r}: expected KNOB=VALUE, such as clip=0.5")
    for read in (int, float, json.loads):
        try:
            value = read(text)
        except ValueError:
            continue
        if isinstance(value, str | bool) or (isinstance(value, int | float) and math.isfinite(value)):
            return name, value
        break
    raise ConfigError(f"{word!r}: expected a finite number, true or false, or a text in double quotes")


def _id() -> str:
    return f"{time.time_ns():019d}-{os.urandom(4).hex()}"


def _who() -> str:
    from surefoot.loop.opening import who

    return who()
