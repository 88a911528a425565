"""Sealed objects: what is refused when written and when read."""

from __future__ import annotations

from typing import Any

import pytest
from xxhash import xxh3_64_hexdigest

from surefoot.errors import JournalError
from surefoot.journal.sealed import DEPTH_MAX, canonical, is_sealed, seal, unseal


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def forged(body: str) -> bytes:
    """Return any bytes with the seal that fits them."""
    raw = body.encode()
    return raw + b',"check":"%s"}\n' % xxh3_64_hexdigest(raw).encode()


def test_the_seal_is_the_hash_of_all_before_it() -> None:
    """The last member is 16 hex digits of xxh3_64 over all bytes before `,"check"`."""
    assert seal({"a": 1, "b": "ä"}) == forged('{"a":1,"b":"ä"')


@pytest.mark.parametrize("obj", [{}, {"check": 1}, {"a": 1, "check": "0"}])
def test_what_has_no_room_for_a_seal_is_refused(obj: dict) -> None:
    """An object is sealed only if it has members and none of them is the check."""
    with pytest.raises(ValueError, match="check"):
        seal(obj)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}\n",
        seal({"a": 1})[:-1],
        seal({"a": 1}) + b"\n",
        b" " + seal({"a": 1}),
        seal({"a": 1}) * 2,
    ],
)
def test_only_one_whole_line_is_unsealed(line: bytes) -> None:
    """Bytes with anything missing, added or doubled are refused."""
    assert not is_sealed(line)
    with pytest.raises(JournalError, match="seal"):
        unseal(line)


@pytest.mark.parametrize(
    "body", ["", "[1", '{"a":', "{" + "\xff", '{"a":1},{"b":2', "{" * 100_000, '{"a":' + "[" * 5_000]
)
def test_a_seal_makes_no_json(body: str) -> None:
    """What was sealed by somebody else and is no JSON object is refused all the same."""
    with pytest.raises(JournalError):
        unseal(forged(body))


def test_depth_is_limited_both_ways() -> None:
    """32 levels can be written and read, 33 neither."""
    deep = {"a": nested(DEPTH_MAX - 1)}
    assert unseal(seal(deep)) == deep
    with pytest.raises(JournalError, match="32 levels"):
        seal({"a": nested(DEPTH_MAX)})
    with pytest.raises(JournalError, match="32 levels"):
        unseal(forged('{"a":' + "[" * DEPTH_MAX + "]" * DEPTH_MAX))


def test_what_contains_itself_is_refused() -> None:
    """A circle is an error, not a hang."""
    circle: list = []
    circle.append(circle)
    with pytest.raises(JournalError, match="deeper"):
        seal({"a": circle})


def test_canonical_bytes_do_not_depend_on_order() -> None:
    """Equal objects have equal canonical bytes, whatever order their members were added in."""
    assert canonical({"a": 1, "b": {"d": 2.0, "c": [1]}}) == canonical({"b": {"c": [1], "d": 2.0}, "a": 1})
