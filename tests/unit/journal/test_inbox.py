"""The inbox: requests come in whole, in order, and stay until removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.journal.codec import LINE_BYTES_MAX, seal
from surefoot.journal.inbox import collect, leave, remove


def nothing(text: str) -> None:
    raise AssertionError(text)


def test_requests_come_in_order_and_stay_until_removed(tmp_path: Path) -> None:
    """What was left is collected oldest first, again and again, until it is removed."""
    assert collect(tmp_path, nothing) == []
    ids = [leave(tmp_path, {"do": "set", "n": n}) for n in range(5)]
    expected = [(id, {"do": "set", "n": n}) for n, id in enumerate(ids)]
    assert collect(tmp_path, nothing) == expected
    remove(tmp_path, ids[0])
    remove(tmp_path, ids[0])
    assert collect(tmp_path, nothing) == expected[1:]


def test_what_is_aside_is_not_there_yet(tmp_path: Path) -> None:
    """A request that is still being written is no request."""
    leave(tmp_path, {"do": "save"})
    (tmp_path / "inbox" / ".x.json.17-abcdef01").write_bytes(b"{")
    (tmp_path / "inbox" / ".y.json").write_bytes(b"{")
    assert len(collect(tmp_path, nothing)) == 1


@pytest.mark.parametrize("content", [b"", b'{"do":"stop"}\n', seal({"text": "x" * LINE_BYTES_MAX})])
def test_bad_files_are_set_aside(tmp_path: Path, content: bytes) -> None:
    """A file that is no sealed request is reported once and kept as ID.bad; the others are served."""
    good = leave(tmp_path, {"do": "save"})
    (tmp_path / "inbox" / "odd.json").write_bytes(content)
    told: list[str] = []
    assert collect(tmp_path, told.append) == [(good, {"do": "save"})]
    assert collect(tmp_path, nothing) == [(good, {"do": "save"})]
    assert len(told) == 1
    assert "odd.json" in told[0]
    assert (tmp_path / "inbox" / "odd.bad").read_bytes() == content
