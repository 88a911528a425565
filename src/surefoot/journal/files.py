"""The journal on disk: append and sync for its one writer, the lines that count for everybody else.

A file holds consecutive lines of one term, `TTTTTT-SSSSSSSSS.jsonl` by term and first seq. A writer
never opens a file that another made: a scribe that replaces a dead one begins a file of its own
(`….1.jsonl` where the name is taken) and sends again what may have been lost, so no line is ever
appended to a torn one, and a line may be there twice. What counts is decided here alone: a term up
to where the next one's `after` cut it, each seq once, no seq missing.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from pathlib import Path

from surefoot.core.events import Line, TermStarted
from surefoot.errors import JournalError
from surefoot.journal.atomic import sync_folder
from surefoot.journal.codec import FORMAT, LINE_BYTES_MAX, decode, is_sealed

FILE_BYTES_MAX = 64 << 20

_NAME = re.compile(r"(\d{6,})-(\d{9,})(?:\.(\d+))?\.jsonl")


class Appender:
    """The pen of one term. After an error, send again every line since the last `sync` that returned."""

    def __init__(self, run_dir: Path, term: int) -> None:
        self._folder = run_dir / "journal"
        self._term = term
        self._fd = -1
        self._bytes = 0
        self._next_seq = 0
        self._durable_seq = 0
        self._lost = False
        """Whether a file had to be given up with lines in it that weren't durable."""

    def append(self, first_seq: int, lines: Sequence[bytes]) -> None:
        """Write consecutive lines, the first of which has `first_seq`. Raises OSError if the store refuses."""
        if self._next_seq == 0:
            self._durable_seq = first_seq - 1
        self._lost = self._lost and first_seq > self._durable_seq + 1
        self._refuse_if_lost()
        if 0 < self._next_seq < first_seq:
            # What was under way behind a write that failed: a file with a hole before it can't be read.
            raise OSError(errno.EIO, f"lines from {self._next_seq} on are to be sent first")
        data = b"".join(lines)
        full = self._bytes > 0 and self._bytes + len(data) > FILE_BYTES_MAX
        if self._fd < 0 or full or first_seq != self._next_seq:
            self.close()
            self._open(first_seq)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            self._take_back()
            raise
        self._bytes += len(data)
        self._next_seq += len(lines)

    def sync(self) -> None:
        """Make what was appended durable. Raises OSError if the store refuses."""
        self._refuse_if_lost()
        if self._fd >= 0:
            try:
                os.fsync(self._fd)
            except OSError:
                # The kernel may have dropped the pages and will call the next sync a success.
                self._give_up()
                raise
            self._durable_seq = self._next_seq - 1

    def close(self) -> None:
        """Sync and let go of the file; the next append begins a new one."""
        self.sync()
        self._let_go()

    def _open(self, first_seq: int) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self._folder.parent)
        for part in count():
            suffix = f".{part}" if part else ""
            path = self._folder / f"{self._term:06d}-{first_seq:09d}{suffix}.jsonl"
            try:
                self._fd = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
                )
            except FileExistsError:
                continue
            break
        self._bytes, self._next_seq = 0, first_seq
        try:
            sync_folder(self._folder)
        except OSError:
            self._let_go()
            raise

    def _take_back(self) -> None:
        """Cut off what a failed write left, so that what comes next doesn't follow a torn line."""
        try:
            os.ftruncate(self._fd, self._bytes)
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        self._lost = True
        self._let_go()

    def _let_go(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _refuse_if_lost(self) -> None:
        if self._lost:
            raise OSError(
                errno.EIO, f"lines from {self._durable_seq + 1} on are to be sent again: a write failed"
            )


@dataclass(frozen=True, slots=True, order=True)
class _Piece:
    term: int
    first_seq: int
    part: int
    path: Path


@dataclass(frozen=True, slots=True)
class _Span:
    """The lines of one term that count: from the first of its pieces to `until`, None for all there are."""

    term: int
    pieces: tuple[_Piece, ...]
    until: int | None

    @property
    def first_seq(self) -> int:
        return self.pieces[0].first_seq


def read(run_dir: Path, after: tuple[int, int] | None = None) -> Iterator[Line]:
    """Yield every line that counts, in order; with `after` (term, seq) only those behind it.

    `after` must count itself (see `counts`); what lies before it is not looked at. Raises
    JournalError naming file and line where one is damaged, missing or of a newer version.
    """
    term, seq = after or (0, 0)
    for span in _spans(run_dir):
        if span.term >= term:
            yield from _read_span(span, seq)
            seq = seq if span.until is None else span.until


def counts(run_dir: Path, term: int, seq: int) -> bool:
    """Tell whether that line is in the journal and no later term cut it."""
    for span in _spans(run_dir):
        if span.term == term:
            until = _last_line(span).seq if span.until is None else span.until
            return span.first_seq <= seq <= until
    return False


def last(run_dir: Path) -> tuple[int, Line] | None:
    """Return (term, line) of the newest line that counts, or None for a journal without any."""
    spans = _spans(run_dir)
    return (spans[-1].term, _last_line(spans[-1])) if spans else None


def tail(run_dir: Path) -> tuple[int, int]:
    """Return (term, seq) of the newest line that counts; (0, 0) for a journal without any."""
    found = last(run_dir)
    return (found[0], found[1].seq) if found else (0, 0)


def _spans(run_dir: Path) -> list[_Span]:
    """Follow each term's `after` back from the newest; a term that none of them names never happened."""
    terms = _pieces(run_dir)
    begun = (term for term in sorted(terms, reverse=True) if _opening(terms[term]) is not None)
    term, until, spans = next(begun, 0), None, list[_Span]()
    while term:
        opening = _opening(terms.get(term, []))
        if opening is None:
            raise JournalError(
                f"{run_dir / 'journal'}: term {spans[-1].term} goes on from term {term}, whose first line is "
                f"missing. Expected files {term:06d}-….jsonl beside the others: restore them from a copy"
            )
        spans.append(_Span(term, tuple(terms[term]), until))
        term, until = opening.after["term"], opening.after["seq"]
    return spans[::-1]


def _pieces(run_dir: Path) -> dict[int, list[_Piece]]:
    folder = run_dir / "journal"
    terms: dict[int, list[_Piece]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            piece = _Piece(int(match[1]), int(match[2]), int(match[3] or 0), path)
            terms.setdefault(piece.term, []).append(piece)
    return {term: sorted(pieces) for term, pieces in terms.items()}


def _opening(pieces: Sequence[_Piece]) -> TermStarted | None:
    """Return the term's first event, or None if no whole line of it reached the disk."""
    for piece, follower in zip_longest(pieces, pieces[1:]):
        with piece.path.open("rb") as file:
            raw = file.readline()
        again = follower is not None and follower.first_seq == piece.first_seq
        if not raw or _torn(raw) or (again and not is_sealed(raw)):
            continue
        line = _decode(raw, piece, 1)
        event = line.event
        if not isinstance(event, TermStarted) or event.term != piece.term or event.after["term"] >= piece.term:
            raise _damage(piece, 1, f"expected the start of term {piece.term}, found {event.EV}")
        if event.format > FORMAT:
            raise _damage(piece, 1, f"format {event.format}; expected at most {FORMAT}: use {event.versions}")
        if line.seq != event.after["seq"] + 1:
            raise _damage(piece, 1, f"expected line {event.after['seq'] + 1:,} of the run, found {line.seq:,}")
        return event
    return None


def _read_span(span: _Span, seq: int) -> Iterator[Line]:
    """Yield the lines of a span behind `seq`."""
    until, repeated = span.until, dict[int, bytes]()
    for piece, follower in zip_longest(span.pieces, span.pieces[1:]):
        if piece.first_seq > seq + 1:
            raise _damage(
                piece, 1, f"lines {seq + 1:,} to {piece.first_seq - 1:,} of the run are missing before it"
            )
        again_from = follower.first_seq if follower else None
        if again_from is not None and again_from <= seq + 1 and _ends_by(piece, seq):
            continue
        with piece.path.open("rb") as file:
            for here, raw in enumerate(file, piece.first_seq):
                if until is not None and here > until:
                    break
                if here <= seq and raw == repeated.get(here, raw):
                    continue
                again = again_from is not None and again_from <= here
                if _torn(raw) or (again and not is_sealed(raw)):
                    break  # what its writer left unfinished, or what the next one has again
                number = here - piece.first_seq + 1
                line = _decode(raw, piece, number)
                if line.seq != here or here <= seq:
                    raise _damage(piece, number, f"expected line {here:,} of the run, found another")
                if again:
                    repeated[here] = raw
                seq = here
                yield line
    if until is not None and seq < until:
        raise _damage(span.pieces[-1], None, f"it is line {seq:,}; a later term goes on from line {until:,}")


def _last_line(span: _Span) -> Line:
    """Return the newest line of a span without an end: by the ends of its files, where those tell."""
    pieces, begin = span.pieces, 0
    try:
        ends = [_last_of(piece) for piece in pieces]
    except JournalError:
        pass  # whether that matters, and where it is, only the whole tells
    else:
        seqs = [end.seq if end else 0 for end in ends]
        begin = max(
            k for k, piece in enumerate(pieces) if any(seqs[k:]) and max([0, *seqs[:k]]) < piece.first_seq
        )
        # Nothing before this file reaches into it; if nothing follows it either, its end is the end.
        if (end := ends[begin]) and not any(seqs[begin + 1 :]):
            return end
    rest = _Span(span.term, pieces[begin:], None)
    return deque(_read_span(rest, rest.first_seq - 1), maxlen=1)[0]


def _ends_by(piece: _Piece, seq: int) -> bool:
    try:
        line = _last_of(piece)
    except JournalError:
        return False
    return line is None or line.seq <= seq


def _last_of(piece: _Piece) -> Line | None:
    with piece.path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for block in (64 << 10, 2 * LINE_BYTES_MAX):
            file.seek(max(0, size - block))
            *whole, rest = file.read().split(b"\n")
            if rest and not _torn(rest):
                raise _damage(piece, None, "its newline is another byte")
            if block < size:
                whole = whole[1:]  # its beginning was not read
            if whole:
                return _decode(whole[-1] + b"\n", piece, None)
            if block >= size:
                return None
    raise _damage(piece, None, f"longer than {LINE_BYTES_MAX:,} bytes")


def _torn(raw: bytes) -> bool:
    """Tell whether a file ends in the middle of this line; one whose newline was changed is not torn."""
    return not raw.endswith(b"\n") and not is_sealed(raw[:-1] + b"\n")


def _decode(raw: bytes, piece: _Piece, number: int | None) -> Line:
    try:
        return decode(raw)
    except JournalError as error:
        raise _damage(piece, number, str(error)) from error


def _damage(piece: _Piece, number: int | None, what: str) -> JournalError:
    where = f"{piece.path}:{number}" if number else f"{piece.path}, last line"
    return JournalError(f"{where}: {what}. Nothing was changed; restore the file from a copy")
