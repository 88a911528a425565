"""`surefoot status`: the run on one page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from surefoot.cli import out
from surefoot.cli.params import JSON, RUN

if TYPE_CHECKING:
    from rich.text import Text

    from surefoot.views.status import Status

_COLOURS = {
    "running": "green",
    "finished": "green",
    "paused": "yellow",
    "preempted": "yellow",
    "stopped": "yellow",
}
"""Every other word is red."""

_BAR_CHARS = 24
_SHARE_MIN = 0.005
"""Of the held time: smaller accounts are told together; JSON has them all."""


@click.command()
@RUN
@click.option("--curve", is_flag=True, help="Draw the loss too.")
@JSON
def status(run: Path, *, curve: bool, as_json: bool) -> None:
    """Say how a run is doing, from evidence.

    Rate and time left are of this attempt alone; ETTR and accounts are of the whole run.
    """
    from surefoot.cli.runs import look, newest_lines
    from surefoot.views.status import status as view

    seen = look(run)
    lines = newest_lines(seen.path, seen.state)
    page = view(
        seen.state, lines, seen.signs, seen.now_ns, name=seen.file.name, run=seen.file.run, fold=seen.fold
    )
    if as_json:
        out.as_json(page)
        return
    _show(page, run)
    if curve:
        _draw(run)


def _draw(run: Path) -> None:
    from surefoot.journal import files
    from surefoot.views.curve import curve
    from surefoot.views.figures import loss_curve

    console = out.console()
    width = min(console.width, 100) if console.is_terminal else 80
    out.say("")
    for row in loss_curve(curve(files.read(run)), width=width, colour=console.is_terminal):
        out.say(row)


def _show(page: Status, run: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from surefoot.views.words import moment

    head = Text.assemble((page.name, "bold"), ": ", (page.word, f"bold {_COLOURS.get(page.word, 'red')}"))
    if page.since_ns is not None:
        head.append(f" since {moment(page.since_ns, page.now_ns)}")
    if page.detail:
        head.append(f", {page.detail}")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _rows(page, run):
        table.add_row(f"  {label}", text)
    out.show(head, table)


def _rows(page: Status, run: Path) -> Iterator[tuple[str, str | Text]]:
    from rich.text import Text

    from surefoot.views.remarks import of_change
    from surefoot.views.words import duration, number

    yield "step", _progress(page)
    if page.loss is not None or page.grad_norm is not None or page.lr is not None:
        named = (("", page.loss), ("grad norm ", page.grad_norm), ("lr ", page.lr))
        yield (
            "loss",
            "   ".join(f"{name}{number(value)}" for name, value in named if not name or value is not None),
        )
    if page.attempt is not None:
        ranks = f"{page.attempt.world_size} rank{'s' if page.attempt.world_size != 1 else ''}"
        nodes = f" on {', '.join(page.attempt.nodes)}" if page.attempt.nodes else ""
        back = f", came back: {page.attempt.exactness}" if page.attempt.exactness else ""
        yield "attempt", f"{page.attempt.number}: {ranks}{nodes}{back}"
    yield "durable", _durable(page)
    yield "at risk", _risk(page)
    if page.save_failures:
        yield "saves", Text(f"{page.save_failures} in a row failed", "red")
    for order in page.pending:
        yield f"order {order.order}", f"{order.words} ({order.reason}), no outcome yet"
    if page.knobs:
        yield "knobs", ", ".join(f"{name} = {value!r}" for name, value in page.knobs.items())
    if page.changed:
        yield "changed", "; ".join(of_change(change) for change in page.changed)
    if page.skips:
        yield "skipped", ", ".join(f"{first:,} to {last:,}" for first, last in page.skips)
    yield "time", _time(page)
    for warning in page.warnings:
        yield "warning", Text(warning, "yellow")
    if page.word not in ("running", "finished") and page.durable is not None:
        ago = duration(page.durable.age_s)
        yield "next", f"the same command again resumes at step {page.durable.step:,} or later (saved {ago} ago)"
    if page.word == "finished":
        yield "next", f"a larger n in run.steps(n) goes on from here; what happened: surefoot logbook {run}"


def _progress(page: Status) -> str:
    from surefoot.views.words import duration

    parts = [f"{page.step:,}"]
    if page.steps:
        share = min(1.0, page.step / page.steps)
        full = round(share * _BAR_CHARS)
        parts = [f"{page.step:,} of {page.steps:,}", "█" * full + "░" * (_BAR_CHARS - full), f"{share:.1%}"]
    if page.steps_per_s is not None:
        slow = page.steps_per_s < 1
        parts.append(f"{duration(1 / page.steps_per_s)}/step" if slow else f"{page.steps_per_s:.1f} steps/s")
    if page.left_s is not None:
        parts.append(f"{duration(page.left_s)} left")
    return "  ".join(parts)


def _durable(page: Status) -> str:
    from surefoot.views.words import duration, size

    newest = page.durable
    if newest is None:
        return "nothing yet"
    return f"step {newest.step:,}, {newest.mark}, {size(newest.bytes)}, {duration(newest.age_s)} old"


def _risk(page: Status) -> str:
    from surefoot.views.words import duration, many

    steps, time_s = page.machine_loss.steps, page.machine_loss.time_s
    work = f" ({duration(time_s)} of training)" if steps and time_s else ""
    parts = [f"if the machine is lost: {many(steps, 'step') if steps else 'nothing'}{work}"]
    if page.crash is not None:
        about = f" ({duration(page.crash.time_s)})" if page.crash.time_s is not None else ""
        parts.append(f"if a worker dies: at most {many(page.crash.steps, 'step')}{about}")
    return "; ".join(parts)


def _time(page: Status) -> str:
    from surefoot.core.ledger import OUTSIDE
    from surefoot.views.words import duration

    if not page.held_ns:
        return "none on record yet"
    inside = {name: ns / page.held_ns for name, ns in page.accounts.items() if name not in OUTSIDE}
    shown = {name: share for name, share in inside.items() if share >= _SHARE_MIN or name == "unattributed"}
    rest = sum(inside.values()) - sum(shown.values())
    ettr = f"ETTR {page.ettr:.1%} of " if page.ettr is not None else ""
    parts = [
        f"{name} {share:.1%}" for name, share in [*shown.items(), *([("other", rest)] if rest > 0 else [])]
    ]
    away = sum(ns for name, ns in page.accounts.items() if name in OUTSIDE)
    outside = f"; {duration(away / 1e9)} away" if away >= 1e9 else ""
    return f"{ettr}{duration(page.held_ns / 1e9)} held: {', '.join(parts)}{outside}"
