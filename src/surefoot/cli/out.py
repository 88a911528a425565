"""Where words go: a person's terminal, a pipe, or JSON for a program.

A pipe gets no colour and no line broken that wasn't one; JSON has non-finite numbers as texts.
"""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPE_WIDTH = 10_000


def console(*, stderr: bool = False) -> Console:
    """Return a person's terminal, as wide as it is, or a pipe wide enough that nothing is broken."""
    from rich.console import Console

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = None if is_terminal else _PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def show(*renderables: RenderableType) -> None:
    """Print what rich lays out, without the blanks it fills lines with."""
    terminal = console()
    with terminal.capture() as captured:
        for renderable in renderables:
            terminal.print(renderable)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def say(text: str) -> None:
    """Print a line."""
    click.echo(text)


def complain(text: str) -> None:
    """Print an error, red where there is colour."""
    click.echo(click.style(f"surefoot: {text}", fg="red"), err=True)


def as_json(value: Any) -> None:
    """Print a view, or a list of them, as JSON."""
    from surefoot.journal.codec import to_json

    plain = [to_json(each) for each in value] if isinstance(value, list | tuple) else to_json(value)
    click.echo(json.dumps(_spelled(plain), indent=2, ensure_ascii=False))


def _spelled(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, dict):
        return {key: _spelled(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(inner) for inner in value]
    return value
