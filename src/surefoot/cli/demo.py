"""`surefoot demo`: a real training is killed again and again, and compared with the undisturbed one."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from surefoot.cli import out
from surefoot.cli.group import BUG
from surefoot.cli.params import JSON

if TYPE_CHECKING:
    from surefoot.chaos.demo import Outcome

_WIDTH_MAX = 110


@click.command(short_help="Kill a small training again and again; it ends bit-equal.")
@click.option("--seed", type=int, help="Draws what is killed, and when. [default: another one each time]")
@click.option("--steps", type=click.IntRange(min=10), default=150, show_default=True, help="Turns of each run.")
@click.option("--kills", type=click.IntRange(min=0), default=7, show_default=True, help="How many there are.")
@click.option(
    "--keep", metavar="DIR", type=click.Path(path_type=Path), help="Leave both runs in this empty directory."
)
@JSON
def demo(*, seed: int | None, steps: int, kills: int, keep: Path | None, as_json: bool) -> None:
    """Train a small GPT on two ranks, twice, and compare the two runs bit for bit.

    All through the second run ranks and agent are killed, at instants drawn from a seed.
    """
    import random
    import shutil
    import signal
    import tempfile

    from surefoot.chaos.demo import Demo

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # nothing of ours is left behind
    seed = random.SystemRandom().randrange(1000) if seed is None else seed
    place = keep or Path(tempfile.mkdtemp(prefix="surefoot-demo-"))
    say = partial(click.echo, err=as_json)
    wrong = False
    try:
        outcome = Demo(place, steps=steps, say=say).run(seed, kills)
        wrong = outcome.problem is not None
        if as_json:
            out.as_json(outcome)
        else:
            _show(outcome)
    finally:
        if keep is None and not wrong:
            shutil.rmtree(place, ignore_errors=True)
        else:
            say(f"Both runs, their traces and what they printed: {place}")
    sys.exit(BUG if wrong else 0)


def _show(outcome: Outcome) -> None:
    """Print the disturbed run's curve and logbook, and what the comparison says."""
    from surefoot.journal import files
    from surefoot.views.curve import curve
    from surefoot.views.figures import loss_curve
    from surefoot.views.logbook import logbook, paragraph

    width = min(out.console().width, _WIDTH_MAX)
    lines = list(files.read(Path(outcome.place) / outcome.disturbed.name))
    if outcome.problem is None:
        colour = sys.stdout.isatty()
        out.say("\n".join(["", *loss_curve(curve(lines), width=width, colour=colour), ""]))
    for entry in logbook(lines):
        out.say("\n".join(paragraph(entry, width)))
    out.say(f"\n{_verdict(outcome)}")


def _verdict(outcome: Outcome) -> str:
    calm, wild = outcome.undisturbed, outcome.disturbed
    if outcome.problem is not None:
        return f"NOT EQUAL, seed {outcome.seed}. {outcome.problem}"
    return (
        f"Equal to the last bit: samples and losses of {outcome.turns:,} turns, {outcome.again:,} of them done "
        f"again, and the weights ({outcome.weights[:16]}…).\n"
        f"{len(wild.kills)} kills of seed {outcome.seed}, {wild.starts} starts; "
        f"undisturbed {calm.took_s:.0f} s, disturbed {wild.took_s:.0f} s."
    )
