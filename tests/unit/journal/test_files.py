"""The journal's files: what is appended where, and which lines count."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.unit.journal.lines import noted, pieces, started, term, write

from surefoot.errors import JournalError
from surefoot.journal import files
from surefoot.journal.codec import encode, seal
from surefoot.journal.files import Appender, counts, last, read, tail


def test_no_journal_has_no_lines(tmp_path: Path) -> None:
    """A run that never began reads as empty."""
    assert list(read(tmp_path)) == []
    assert tail(tmp_path) == (0, 0)
    assert last(tmp_path) is None
    assert not counts(tmp_path, 1, 1)


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    """Lines come back in order, from a file named by term and first seq."""
    lines = term(1, 5)
    write(tmp_path, 1, lines)
    assert [path.name for path in pieces(tmp_path)] == ["000001-000000001.jsonl"]
    assert list(read(tmp_path)) == lines
    assert list(read(tmp_path, after=(1, 3))) == lines[3:]
    assert tail(tmp_path) == (1, 5)
    assert last(tmp_path) == (1, lines[-1])


def test_files_rotate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that would outgrow its limit is closed; the next is named by its first seq."""
    lines = term(1, 6)
    raw = [encode(line) for line in lines]
    monkeypatch.setattr(files, "FILE_BYTES_MAX", len(raw[0]) + 2 * len(raw[1]))
    appender = Appender(tmp_path, 1)
    for line, bytes in zip(lines, raw, strict=True):
        appender.append(line.seq, [bytes])
    appender.close()
    assert [path.name for path in pieces(tmp_path)] == ["000001-000000001.jsonl", "000001-000000004.jsonl"]
    assert list(read(tmp_path)) == lines
    assert [list(read(tmp_path, after=(1, seq))) for seq in range(1, 7)] == [lines[seq:] for seq in range(1, 7)]
    assert tail(tmp_path) == (1, 6)


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    """At whatever byte the last line ends, the lines before it count and it doesn't."""
    lines = term(1, 3)
    write(tmp_path, 1, lines)
    (path,) = pieces(tmp_path)
    whole = path.read_bytes()
    before = len(whole) - len(encode(lines[-1]))
    for end in range(before, len(whole)):
        path.write_bytes(whole[:end])
        assert list(read(tmp_path)) == lines[:2]
        assert tail(tmp_path) == (1, 2)


def test_a_torn_line_is_never_appended_to(tmp_path: Path) -> None:
    """A new writer of the term begins a file of its own, under another name where that is taken."""
    lines = term(1, 4)
    write(tmp_path, 1, lines[:1])
    (path,) = pieces(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    write(tmp_path, 1, lines)
    assert [path.name for path in pieces(tmp_path)] == ["000001-000000001.1.jsonl", "000001-000000001.jsonl"]
    assert list(read(tmp_path)) == lines
    assert tail(tmp_path) == (1, 4)


def test_a_line_that_comes_twice_counts_once(tmp_path: Path) -> None:
    """What a new writer sends again is counted once, also if the old one got further."""
    lines = term(1, 9)
    write(tmp_path, 1, lines[:7])
    write(tmp_path, 1, lines[3:6])
    assert list(read(tmp_path)) == lines[:7]
    assert tail(tmp_path) == (1, 7)
    write(tmp_path, 1, lines[5:])
    assert list(read(tmp_path)) == lines
    assert [list(read(tmp_path, after=(1, seq))) for seq in range(1, 10)] == [
        lines[seq:] for seq in range(1, 10)
    ]


def test_two_lines_of_one_seq_are_an_error(tmp_path: Path) -> None:
    """A seq that was written twice with different words has no meaning, so it gets none."""
    lines = term(1, 3)
    write(tmp_path, 1, lines)
    write(tmp_path, 1, [noted(3, "something else"), noted(4)])
    with pytest.raises(JournalError, match=r"000001-000000003\.jsonl:1: expected line 3"):
        list(read(tmp_path))


def test_damage_that_was_sent_again_is_passed_over(tmp_path: Path) -> None:
    """Where a later file of the term has the line, a bad one in an earlier file costs nothing."""
    lines = term(1, 5)
    write(tmp_path, 1, lines)
    (path,) = pieces(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"line 4", b"\0\0\0\0\0\0"))
    write(tmp_path, 1, lines[2:])
    assert list(read(tmp_path)) == lines
    assert list(read(tmp_path, after=(1, 3))) == lines[3:]
    path.write_bytes(path.read_bytes().replace(b"line 5", b"\0\0\0\0\0\0"))
    assert list(read(tmp_path)) == lines
    assert tail(tmp_path) == (1, 5)


def test_a_bad_line_elsewhere_is_named(tmp_path: Path) -> None:
    """The error tells file and line, also if it is the last one and whole."""
    lines = term(1, 3)
    write(tmp_path, 1, lines)
    (path,) = pieces(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"line 2", b"line 7"))
    with pytest.raises(JournalError, match=r"000001-000000001\.jsonl:2: the seal .*restore"):
        list(read(tmp_path))
    path.write_bytes(whole.replace(b"line 3", b"line 7"))
    with pytest.raises(JournalError, match=r"000001-000000001\.jsonl:3: the seal"):
        list(read(tmp_path))
    with pytest.raises(JournalError, match=r"000001-000000001\.jsonl:3: the seal"):
        tail(tmp_path)
    path.write_bytes(whole[:-1] + b"\r")
    with pytest.raises(JournalError, match=r"000001-000000001\.jsonl:3: the seal"):
        tail(tmp_path)


def test_missing_lines_are_noticed(tmp_path: Path) -> None:
    """A file that was lost from the middle is an error that names what is missing."""
    lines = term(1, 6)
    write(tmp_path, 1, lines[:2])
    write(tmp_path, 1, lines[4:])
    with pytest.raises(JournalError, match="lines 3 to 4 of the run are missing"):
        list(read(tmp_path))


def test_a_term_ends_where_the_next_one_cuts_it(tmp_path: Path) -> None:
    """Lines of a stale writer behind the cut never happened, whole, torn or bad."""
    old, new = term(1, 5), term(3, 3, after=(1, 3))
    write(tmp_path, 1, old)
    write(tmp_path, 3, new)
    assert list(read(tmp_path)) == old[:3] + new
    with pieces(tmp_path)[0].open("ab") as file:
        file.write(b"not even JSON\nand torn")
    assert list(read(tmp_path)) == old[:3] + new
    assert list(read(tmp_path, after=(1, 2))) == [old[2], *new]
    assert list(read(tmp_path, after=(1, 3))) == new
    assert list(read(tmp_path, after=(3, 4))) == new[1:]
    assert [counts(tmp_path, 1, seq) for seq in (0, 1, 3, 4)] == [False, True, True, False]
    assert [counts(tmp_path, 3, seq) for seq in (3, 4, 6, 7)] == [False, True, True, False]


def test_a_term_that_no_later_one_names_never_happened(tmp_path: Path) -> None:
    """A holder that wrote while a newer one went on from before it is passed over whole."""
    first, stale, new = term(1, 3), term(2, 4, after=(1, 2)), term(3, 2, after=(1, 3))
    write(tmp_path, 1, first)
    write(tmp_path, 2, stale)
    write(tmp_path, 3, new)
    assert list(read(tmp_path)) == first + new
    assert not counts(tmp_path, 2, 3)


def test_a_term_begins_with_its_first_whole_line(tmp_path: Path) -> None:
    """A holder that died before its first line was whole cuts nothing."""
    lines = term(1, 3)
    write(tmp_path, 1, lines)
    (tmp_path / "journal" / "000002-000000003.jsonl").write_bytes(encode(started(2, (1, 2)))[:-9])
    (tmp_path / "journal" / "000003-000000003.jsonl").touch()
    assert list(read(tmp_path)) == lines
    assert tail(tmp_path) == (1, 3)


def test_a_lost_term_is_noticed(tmp_path: Path) -> None:
    """A term that goes on from one whose files are gone, or end too early, is an error."""
    write(tmp_path, 1, term(1, 3))
    write(tmp_path, 2, term(2, 2, after=(1, 3)))
    old, _ = pieces(tmp_path)
    whole = old.read_bytes()
    old.write_bytes(whole[: whole.rindex(b'{"seq"')])
    with pytest.raises(JournalError, match="line 2; a later term goes on from line 3"):
        list(read(tmp_path))
    old.unlink()
    with pytest.raises(JournalError, match="goes on from term 1, whose first line is missing"):
        list(read(tmp_path))


def test_a_newer_format_names_the_version_that_reads_it(tmp_path: Path) -> None:
    """A journal of a higher format is refused with the versions its first line names."""
    first = seal(
        {"seq": 1, "at_ns": 1, "ev": "term_started", "format": 2, "term": 1, "after": {"term": 0, "seq": 0},
         "node": "n", "versions": {"surefoot": "9.1"}}
    )  # fmt: skip
    Appender(tmp_path, 1).append(1, [first])
    with pytest.raises(JournalError, match=r"format 2; expected at most 1: use .*9\.1"):
        list(read(tmp_path))


class Failing:
    """A call of `os` that fails once, the n-th time, after having done part of its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.call = getattr(os, name)
        self.after = 0
        monkeypatch.setattr(os, name, self)

    def __call__(self, fd: int, *args: memoryview) -> int:
        self.after -= 1
        if self.after == 0:
            if args and isinstance(args[0], memoryview):
                self.call(fd, args[0][: len(args[0]) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self.call(fd, *args) or 0)


def test_a_failed_write_leaves_no_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full for a moment, the same lines again complete the same file."""
    lines = term(1, 4)
    raw = [encode(line) for line in lines]
    write_fails = Failing(monkeypatch, "write")
    appender = Appender(tmp_path, 1)
    appender.append(1, raw[:2])
    write_fails.after = 1
    with pytest.raises(OSError, match="No space"):
        appender.append(3, raw[2:])
    assert list(read(tmp_path)) == lines[:2]
    appender.append(3, raw[2:])
    appender.close()
    assert len(pieces(tmp_path)) == 1
    assert list(read(tmp_path)) == lines


@pytest.mark.parametrize("also", ["ftruncate", "fsync"])
def test_a_file_that_cannot_be_trusted_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, also: str
) -> None:
    """After a failed sync, or a torn line that can't be cut off, all unsynced lines go to a new file."""
    lines = term(1, 4)
    raw = [encode(line) for line in lines]
    write_fails, also_fails = Failing(monkeypatch, "write"), Failing(monkeypatch, also)
    appender = Appender(tmp_path, 1)
    appender.append(1, raw[:1])
    appender.sync()
    appender.append(2, raw[1:3])
    also_fails.after = 1
    write_fails.after = 1
    failing = appender.sync if also == "fsync" else lambda: appender.append(4, raw[3:])
    with pytest.raises(OSError, match="No space"):
        failing()
    write_fails.after = 0
    for early in (appender.sync, lambda: appender.append(3, raw[2:])):
        with pytest.raises(OSError, match="lines from 2 on are to be sent again"):
            early()
    appender.append(2, raw[1:])
    appender.close()
    assert len(pieces(tmp_path)) == 2
    assert list(read(tmp_path)) == lines
