"""Dataclasses and JSON: which annotations work, and how the rest is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import Order, Rollback
from surefoot.errors import JournalError
from surefoot.journal.shapes import from_json, to_json


@dataclass(frozen=True, slots=True)
class Empty:
    pass


@dataclass(frozen=True, slots=True)
class Inner:
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    one: Inner
    maybe: Inner | None = None
    many: tuple[Inner, ...] = ()
    named: dict[str, Inner] = field(default_factory=dict)
    pair: tuple[Inner, float] | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    order: Order | None = None
    empty: Empty = Empty()
    anything: Any = None
    level: float = math.inf


@dataclass(frozen=True)
class Odd:
    what: set[int]


def test_every_shape_comes_back() -> None:
    """Nested dataclasses, tuples, dicts, orders and non-finite numbers are equal when they come back."""
    value = Outer(
        one=Inner(1),
        maybe=Inner(2),
        many=(Inner(3), Inner(4)),
        named={"a": Inner(5)},
        pair=(Inner(6), 0.5),
        numbers={"x": -math.inf},
        order=Rollback(to=SnapshotId(4, 1), branch=2, skip=(3, 5, "sample")),
        anything=[1, {"k": "inf"}],
    )
    obj = to_json(value)
    assert obj["order"]["do"] == "rollback"
    assert from_json(Outer, obj) == value
    assert from_json(Outer, {**obj, "level": "inf", "pair": [{"n": 6}, "nan"]}).level == math.inf


def test_missing_members_take_defaults() -> None:
    """What a file lacks has the field's default, made anew for each; what it has too much is ignored."""
    first, second = (from_json(Outer, {"one": {"n": 1, "mood": "good"}, "colour": 3}) for _ in range(2))
    assert first == second == Outer(one=Inner(1))
    assert first.named is not second.named


@pytest.mark.parametrize("obj", [{}, {"one": None}, {"one": {}}, {"one": {"n": 1}, "many": 7}, [], None])
def test_another_shape_is_refused(obj: Any) -> None:
    """An object that lacks what has no default, or isn't one, is a JournalError."""
    with pytest.raises(JournalError, match="not a Outer"):
        from_json(Outer, obj)


def test_an_annotation_without_a_form_is_a_bug_of_ours() -> None:
    """A field whose type has no JSON form is noticed at the first use, not when its value is odd."""
    with pytest.raises(TypeError, match="no JSON form"):
        to_json(Odd(set()))
