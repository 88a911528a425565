"""Changed settings at a resume (D21)."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.core.changes import HARMLESS, IMPOSSIBLE, MATHS, compare, describe, refused

BEFORE: dict[str, Any] = {
    "steps": 1_000, "optimizer.lr": 0.1, "data.batch_size": 8, "seed": 7, "data.length": 100,
    "data.kind": "map", "data.unit": "sample", "scheduler.total_steps": 1_000, "code.hash": "a",
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "now", "kind"),
    [
        ("steps", 2_000, HARMLESS),
        ("code.hash", "b", HARMLESS),
        ("world_size", 4, HARMLESS),
        ("optimizer.lr", 0.2, MATHS),
        ("data.batch_size", 16, MATHS),
        ("seed", 8, MATHS),
        ("data.length", 99, MATHS),
        ("scheduler.total_steps", 2_000, MATHS),
        ("data.kind", "iterable", IMPOSSIBLE),
        ("data.unit", "batch", IMPOSSIBLE),
    ],
)
def test_each_difference_has_its_kind(key: str, now: object, kind: str) -> None:
    """One setting that changed is the one difference, sorted by what it does."""
    expected = {"key": key, "was": BEFORE.get(key), "now": now, "kind": kind}
    assert compare(BEFORE, {**BEFORE, key: now}) == [expected]


@pytest.mark.parametrize("name", ["steps_per_epoch", "stepsize.gamma", "world_size_rule.lr", "steps.gamma"])
def test_a_name_that_begins_like_a_harmless_one_is_not_harmless(name: str) -> None:
    """An object that a person calls `steps…` is as much maths as any other."""
    assert compare({name: 1}, {name: 2})[0]["kind"] == MATHS


def test_what_came_or_went_is_a_difference() -> None:
    """A key on one side only differs from nothing; equal values and nothing at all don't."""
    found = compare({"a": 1, "gone": 2, "none": None}, {"a": 1, "new": 3})
    assert [(change["key"], change["was"], change["now"]) for change in found] == [
        ("gone", 2, None),
        ("new", None, 3),
    ]


def test_all_differences_are_listed_by_key() -> None:
    """Several differences come in the order of their keys, each once."""
    now = {**BEFORE, "seed": 1, "optimizer.lr": 1.0, "code.hash": "z"}
    assert [change["key"] for change in compare(BEFORE, now)] == ["code.hash", "optimizer.lr", "seed"]


def test_only_what_needs_a_yes_is_refused() -> None:
    """Harmless changes pass, maths passes with a yes, and no yes helps against the impossible."""
    now = {**BEFORE, "steps": 2, "seed": 1, "optimizer.lr": 1.0, "data.unit": "batch"}
    changed = compare(BEFORE, now)
    assert [change["key"] for change in refused(changed, ())] == ["data.unit", "optimizer.lr", "seed"]
    assert [change["key"] for change in refused(changed, {"seed", "data.unit"})] == [
        "data.unit",
        "optimizer.lr",
    ]


def test_a_difference_is_described_on_one_line() -> None:
    """For people each difference is a line with both values and its kind."""
    text = describe(compare({"seed": 7}, {"seed": "8", "steps": 3}))
    assert text.splitlines() == ["  seed: 7 → '8' (maths)", "  steps: None → 3 (harmless)"]
