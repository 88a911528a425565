"""Plain state: how the tags look, and what is refused by which name."""

from __future__ import annotations

from collections import Counter, OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

from surefoot.errors import JournalError, UnstorableState
from surefoot.journal.plain import tag, untag


@pytest.mark.parametrize(
    ("value", "tagged"),
    [
        ({"a": [1, 2.5, None, True, "x"]}, {"a": [1, 2.5, None, True, "x"]}),
        ((1, (2,)), {"$tuple": [1, {"$tuple": [2]}]}),
        ({3, 1, 2}, {"$set": [1, 2, 3]}),
        ({1: "a", "b": 2}, {"$map": [[1, "a"], ["b", 2]]}),
        ({"$a": 1}, {"$map": [["$a", 1]]}),
        (b"\x00\xff", {"$bytes": "AP8="}),
        (1 - 2j, {"$complex": [1.0, -2.0]}),
        (float("-inf"), {"$float": "-inf"}),
        ("nan", "nan"),
    ],
)
def test_tags(value: Any, tagged: Any) -> None:
    """Each kind of value has the one form that the format gives it, and comes back from it."""
    assert tag(value) == tagged
    assert untag(tagged) == value


def test_what_frameworks_hand_over_is_taken() -> None:
    """A state_dict's OrderedDict and a NumPy float come back as the plain values they equal."""
    value = untag(tag(OrderedDict(best=np.float64(0.5))))
    assert value == {"best": 0.5}


Point = namedtuple("Point", "x y")  # noqa: PYI024 - an untyped one is what is found in the wild


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "the value is a builtins.object"),
        ({"a": [1, {"b": range(3)}]}, r"a\[1\]\.b is a builtins.range"),
        ({"t": (0, {1: frozenset()})}, r"t\[1\]\[1\] is a builtins.frozenset"),
        ({"c": Counter("ab")}, r"c is a collections.Counter"),
        ({"p": Point(1, 2)}, r"p is a .*Point"),
        ({"n": np.int64(1)}, r"n is a numpy.int64"),
        ({frozenset(): 1}, r"key frozenset\(\) of the value"),
    ],
)
def test_what_cannot_come_back_is_refused(value: Any, path: str) -> None:
    """A value that would come back as something else is an error that names its path."""
    with pytest.raises(UnstorableState, match=path):
        tag(value)


def test_the_path_begins_where_the_caller_says() -> None:
    """The error names the keyword the state was handed in by."""
    with pytest.raises(UnstorableState, match=r"^scaler\.hook is"):
        tag({"hook": len}, "scaler")


def test_what_contains_itself_is_refused() -> None:
    """A circle is an error that names the path, not a hang."""
    circle: dict[str, Any] = {}
    circle["me"] = circle
    with pytest.raises(UnstorableState, match=r"^state\.me\.me\..*contains itself"):
        tag(circle, "state")


def test_an_unknown_tag_is_refused() -> None:
    """A tag of a newer version is an error, not a dict."""
    with pytest.raises(JournalError, match=r"unknown tag '\$tensor'"):
        untag({"$tensor": []})
