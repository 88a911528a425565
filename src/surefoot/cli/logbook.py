"""`surefoot logbook`: what happened to a run."""

from __future__ import annotations

import re
from pathlib import Path

import click

from surefoot.cli import out
from surefoot.cli.params import JSON, RUN

_SPANS_S = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_COLOURS = {"fault": "red", "warning": "yellow", "person": "cyan", "end": "bold", "start": "bold"}
_WIDTH_MAX = 110


def _since(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, float]:
    """Return (step, seconds ago) of `1200` or `8h`; one of them is 0."""
    match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)\s*([a-z]+)", text.replace(",", ""))
    if match is not None and match[1]:
        return int(match[1]), 0.0
    if match is not None and match[3] in _SPANS_S:
        return 0, float(match[2]) * _SPANS_S[match[3]]
    expected = "expected a step, such as 1200, or a time ago, such as 8h, 30min or 2d"
    raise click.BadParameter(f"{text!r}: {expected}", ctx, param)


@click.command(short_help="Tell what happened to a run.")
@RUN
@click.option("--since", callback=_since, default="0", metavar="N", help="From step N on, or from 8h ago.")
@JSON
def logbook(run: Path, *, since: tuple[int, float], as_json: bool) -> None:
    """Tell what happened to a run: starts, faults, restarts, saves, notes, and how it went in between.

    Columns: local time, attempt, step.
    """
    import time

    from surefoot.cli.runs import run_file
    from surefoot.journal import files
    from surefoot.views.logbook import days, paragraph
    from surefoot.views.logbook import logbook as view
    from surefoot.views.logbook import since as later

    run_file(run)
    step, ago_s = since
    at_ns = time.time_ns() - int(ago_s * 1e9) if ago_s else 0
    entries = later(view(files.read(run)), step=step, at_ns=at_ns)
    if as_json:
        out.as_json(entries)
        return
    console = out.console()
    if not console.is_terminal:
        for entry in entries:
            out.say(paragraph(entry)[0])
        return
    for day, together in days(entries):
        out.say(click.style(day, bold=True))
        for entry in together:
            colour = _COLOURS.get(entry.kind)
            bold = colour == "bold"
            for text in paragraph(entry, min(console.width, _WIDTH_MAX)):
                out.say(click.style(text, fg=None if bold else colour, bold=bold, dim=entry.kind == "steps"))
