"""Journals for the tests of this folder: small, whole, and made by the real appender."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surefoot.core.events import Event, Line, Noted, TermStarted
from surefoot.journal.codec import encode
from surefoot.journal.files import Appender


def started(term: int, after: tuple[int, int] = (0, 0)) -> Line:
    """Return a term's first line."""
    event = TermStarted(format=1, term=term, after={"term": after[0], "seq": after[1]}, node="n")
    return Line(after[1] + 1, 1_000, event)


def noted(seq: int, text: str = "") -> Line:
    """Return a line that says little."""
    return Line(seq, 1_000 + seq, Noted(text=text or f"line {seq}"))


def term(number: int, length: int, after: tuple[int, int] = (0, 0), *, last: Event | None = None) -> list[Line]:
    """Return a term of so many lines, of which the last may be given."""
    first = started(number, after)
    lines = [first, *(noted(seq) for seq in range(first.seq + 1, first.seq + length))]
    return lines if last is None else [*lines[:-1], Line(lines[-1].seq, 2_000, last)]


def write(run_dir: Path, term: int, lines: Sequence[Line]) -> None:
    """Append the lines with an appender of their own."""
    appender = Appender(run_dir, term)
    appender.append(lines[0].seq, [encode(line) for line in lines])
    appender.close()


def pieces(run_dir: Path) -> list[Path]:
    """Return the journal's files by name."""
    return sorted((run_dir / "journal").iterdir())
