"""What a campaign strikes."""

from __future__ import annotations

import importlib
from collections import Counter
from functools import reduce

import pytest

from surefoot.chaos.faults import AGENT, CHILD, RANK, STORE, Point
from surefoot.chaos.strikes import BOUNDARIES, BOUNDARY, INSTANT, PHASES, VICTIMS, aimed, draw

POINTS = [*BOUNDARIES, *(point for points in PHASES.values() for point in points)]
STEPS = 32


@pytest.mark.parametrize("point", [point for point in POINTS if point.when != STORE], ids=str)
def test_every_point_is_there(point: Point) -> None:
    """The function that a point is put into, and the one it has to be inside of, exist under these names."""
    for call in filter(None, (point.call, point.inside)):
        module, _, path = call.partition(":")
        assert callable(reduce(getattr, path.split("."), importlib.import_module(module)))


def test_a_seed_draws_the_same_trial_again() -> None:
    """The same seed gives the same trial, another seed another one."""
    assert draw(7, STEPS) == draw(7, STEPS)
    assert draw(7, STEPS).strikes != draw(11, STEPS).strikes


def test_the_full_campaign_draws_everything() -> None:
    """400 seeds strike every boundary, point, kind of victim and setup, and instants all over a run's life."""
    plans = [draw(seed, STEPS) for seed in range(400)]
    strikes = [strike for plan in plans for strike in plan.strikes]
    assert {strike.step for strike in strikes if strike.aim == BOUNDARY} >= set(range(STEPS))
    assert {strike.point for strike in strikes} == {None, *POINTS}
    assert {strike.victims for strike in strikes} == set(VICTIMS)
    assert len({plan.setup for plan in plans}) == 8
    tenths = Counter(int(strike.part * 10) for strike in strikes if strike.aim == INSTANT)
    assert len(tenths) == 10
    assert min(tenths.values()) > 20


def test_what_follows_a_boundary_finds_something_to_strike() -> None:
    """A trial that aims into phases begins with a death of ranks in the loop: a start and a restore follow."""
    for seed in (2, 3, 6, 7):
        first, *others = draw(seed, STEPS).strikes
        assert first.aim == BOUNDARY
        assert first.step >= 2
        assert {strike.aim for strike in others} <= set(PHASES)


def test_each_point_is_aimed_at_with_every_victim_of_its_kind() -> None:
    """A pattern picks points and victims by name; each trial strikes its point twice."""
    (plan,) = aimed("child: store rename */manifest.json, the mover", STEPS)
    assert [strike.aim for strike in plan.strikes] == [BOUNDARY, "commit", "commit"]
    processes = Counter(plan.strikes[1].point.process for plan in aimed("*", STEPS) if plan.strikes[1].point)
    per_point = {kind: n / sum(point.process == kind for point in POINTS[2:]) for kind, n in processes.items()}
    assert per_point == {RANK: 4, AGENT: 3, CHILD: 3}
