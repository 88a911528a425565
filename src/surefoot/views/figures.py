"""Pictures in plain characters: as wide as the terminal, readable without colour.

Each function takes a view's data and returns lines of text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from surefoot.views.curve import RESTART, RESUME, ROLLBACK, Curve, Points
from surefoot.views.words import number

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille cell, by row and column."""
_DISCARDED = "·"
_MARKS = {RESTART: "▲", RESUME: "△", ROLLBACK: "▼"}
_WORDS = {RESTART: "restarted", RESUME: "resumed", ROLLBACK: "rolled back"}
_PALE, _STRONG, _END = "\x1b[2m", "\x1b[36m", "\x1b[0m"

_LOG_ABOVE = 20.0
"""From this ratio of largest to smallest loss on, the axis is logarithmic."""


@dataclass(slots=True)
class _Column:
    """What a series does in one column of dots."""

    first: int
    last: int
    low: int
    high: int

    def add(self, row: int) -> None:
        self.last, self.low, self.high = row, min(self.low, row), max(self.high, row)


@dataclass(slots=True)
class _Canvas:
    """A grid of dots, two by four to a cell."""

    width: int
    height: int
    cells: dict[tuple[int, int], int] = field(default_factory=dict)
    """(row, column) → braille bits."""

    def stroke(self, column: int, low: int, high: int) -> None:
        """Draw a vertical line of dots; rows count from the top."""
        for row in range(low, high + 1):
            cell = (row // 4, column // 2)
            self.cells[cell] = self.cells.get(cell, 0) | _DOTS[row % 4][column % 2]

    def draw(self, places: Iterable[tuple[int, int]]) -> None:
        """Draw a series of (column, row), by column, joined up."""
        columns: dict[int, _Column] = {}
        for column, row in places:
            if column in columns:
                columns[column].add(row)
            else:
                columns[column] = _Column(row, row, row, row)
        before: tuple[int, int] | None = None
        for column, here in columns.items():
            if before is not None:
                self._join(*before, column, here.first)
            self.stroke(column, here.low, here.high)
            before = (column, here.last)

    def _join(self, column: int, row: int, to_column: int, to_row: int) -> None:
        at = row
        for between in range(column + 1, to_column + 1):
            then = round(row + (to_row - row) * (between - column) / (to_column - column))
            self.stroke(between, min(at, then), max(at, then))
            at = then


def loss_curve(curve: Curve, *, width: int = 80, height: int = 14, colour: bool = False) -> list[str]:
    """Draw the loss over the steps: kept turns as a line, discarded ones as pale dots, restarts below.

    `width` and `height` are in characters, axes included; what the signs mean follows in as many lines as
    it needs. Infinite and missing values are left out.
    """
    series = [_finite(discarded.points) for discarded in curve.discarded]
    kept = _finite(curve.kept)
    points = [point for points in (kept, *series) for point in points]
    if not points:
        return ["no loss on record yet"]
    losses = [loss for _, loss in points]
    low, high = min(losses), max(losses)
    log = low > 0 and high / low >= _LOG_ABOVE
    labels = [number(high), number(math.sqrt(low * high) if log else (low + high) / 2), number(low)]
    margin = max(map(len, labels)) + 2
    plot = max(10, width - margin), max(3, height - 2)
    steps = (min(step for step, _ in points), max(step for step, _ in points))

    def place(points: Points) -> Iterable[tuple[int, int]]:
        for step, loss in points:
            x = (step - steps[0]) / max(1, steps[1] - steps[0])
            y = _share(math.log(loss), math.log(low), math.log(high)) if log else _share(loss, low, high)
            yield round(x * (2 * plot[0] - 1)), round((1 - y) * (4 * plot[1] - 1))

    canvas, beside = _Canvas(*plot), _Canvas(*plot)
    canvas.draw(place(kept))
    for each in series:
        beside.draw(place(each))
    rows = _rows(canvas, beside, labels, margin, colour=colour)
    return rows + _axis(curve, steps, plot[0], margin, colour=colour) + _legend(curve, width, margin, log=log)


def _finite(points: Points) -> Points:
    return tuple(point for point in points if math.isfinite(point[1]))


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _rows(canvas: _Canvas, beside: _Canvas, labels: Sequence[str], margin: int, *, colour: bool) -> list[str]:
    named = {0: labels[0], canvas.height // 2: labels[1], canvas.height - 1: labels[2]}
    rows = []
    for row in range(canvas.height):
        tick = "┤" if row in named else "│"
        text = f"{named.get(row, ''):>{margin - 2}} {tick}"
        for column in range(canvas.width):
            cell = row, column
            if cell in canvas.cells:
                text += _painted(chr(0x2800 + canvas.cells[cell]), _STRONG, colour=colour)
            elif cell in beside.cells:
                text += _painted(_DISCARDED, _PALE, colour=colour)
            else:
                text += " "
        rows.append(text.rstrip())
    return rows


def _axis(curve: Curve, steps: tuple[int, int], width: int, margin: int, *, colour: bool) -> list[str]:
    line = ["─"] * width
    for mark in curve.marks:
        if mark.kind in _MARKS and steps[0] <= mark.step <= steps[1] + 1:
            at = round((mark.step - steps[0]) / max(1, steps[1] - steps[0]) * (width - 1))
            line[min(at, width - 1)] = _painted(_MARKS[mark.kind], _STRONG, colour=colour)
    first, last = f"{steps[0]:,}", f"step {steps[1]:,}"
    return [
        " " * (margin - 1) + "└" + "".join(line),
        " " * margin + first + last.rjust(max(0, width - len(first))),
    ]


def _legend(curve: Curve, width: int, margin: int, *, log: bool) -> list[str]:
    kinds = [mark.kind for mark in curve.marks]
    parts = [f"{_MARKS[kind]} {_WORDS[kind]} ({kinds.count(kind)})" for kind in _MARKS if kind in kinds]
    if curve.discarded:
        turns = sum(len(discarded.points) for discarded in curve.discarded)
        parts.append(f"{_DISCARDED} computed, then discarded ({turns:,})")
    if log:
        parts.append("log scale")
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f"   {part}"
        else:
            lines.append(" " * min(margin, max(0, width - len(part))) + part)
    return lines


def _painted(text: str, code: str, *, colour: bool) -> str:
    return f"{code}{text}{_END}" if colour else text
