"""The curve: what is kept, what was discarded, where it restarted; and the picture of it."""

from __future__ import annotations

import pytest
from tests.unit.views.tales import Tale, trained

from surefoot.core.events import Ordered, Restored, RunEnded, WorkerExited
from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import Rollback
from surefoot.views.curve import Curve, Discarded, Mark, curve
from surefoot.views.figures import loss_curve


def restarted() -> Tale:
    """Return a run that lost ten turns, did them again, and went back a long way once."""
    tale = trained(50).tell(WorkerExited(node="n0", rank=0))
    tale.attempt(40, ((1, 0), (2, 40)), tier="HOST").turns(80)
    tale.tell(Ordered(order=9, body=Rollback(to=SnapshotId(20, 1), branch=3), reason="a spike"))
    tale.tell(
        Restored(
            branch=3, lineage=((1, 0), (3, 20)), step=20, batch=20, sample=20, tier="DISK", order=9
        )
    )  # fmt: skip
    return tale.turns(60)


def test_kept_turns_are_those_of_the_final_lineage() -> None:
    """Each step is kept once, on the branch that leads to the head; the rest was discarded, all of it."""
    found = curve(restarted().lines)
    assert [step for step, _ in found.kept] == list(range(60))
    assert [(each.branch, each.points[0][0], len(each.points)) for each in found.discarded] == [
        (1, 20, 30),
        (2, 40, 40),
    ]
    done = sum(len(each.points) for each in found.discarded) + len(found.kept)
    assert done == 50 + 40 + 40


def test_marks_tell_why_a_branch_began() -> None:
    """A start, a restart after a fault, a rollback, and a resume after an end are told apart."""
    tale = restarted().commit(60, 3).tell(RunEnded(word="stopped", exit_code=83))
    tale.attempt(60, ((1, 0), (3, 20), (4, 60)), tier="DISK").turns(70)
    found = [(mark.kind, mark.step, mark.again, mark.tier) for mark in curve(tale.lines).marks]
    assert found == [
        ("start", 0, 0, None),
        ("restart", 40, 10, "HOST"),
        ("rollback", 20, 60, "DISK"),
        ("resume", 60, 0, "DISK"),
    ]


def test_a_failure_that_was_given_up_is_still_restarted() -> None:
    """The agent's own end after a fault does not make a restart a resume."""
    tale = trained(50).commit(50).tell(WorkerExited(node="n0", rank=0), RunEnded(word="failed", exit_code=None))
    assert curve(tale.attempt(50, ((1, 0), (2, 50)), tier="DISK").lines).marks[-1].kind == "restart"


def test_turns_without_a_loss_are_no_points() -> None:
    """What nobody measured is not drawn."""
    tale = Tale().term().attempt().turns(10, loss=lambda step: None if step % 2 else 1.0)
    assert [step for step, _ in curve(tale.lines).kept] == [0, 2, 4, 6, 8]
    assert curve([]) == Curve(kept=(), discarded=(), marks=())


@pytest.mark.parametrize("width", [30, 80, 120])
@pytest.mark.parametrize("height", [8, 14])
def test_a_picture_is_as_large_as_asked(width: int, height: int) -> None:
    """No line is wider than the terminal, whatever the numbers; restarts and discarded turns are in it."""
    picture = loss_curve(curve(restarted().lines), width=width, height=height)
    assert max(map(len, picture)) <= max(width, 36)  # the longest of the signs' meanings
    assert max(map(len, picture[:height])) <= width
    text = "\n".join(picture)
    assert "▲" in text
    assert "▼" in text
    assert "·" in text
    assert "step 79" in text
    assert "\x1b" not in text
    assert "\x1b[2m·" in "\n".join(loss_curve(curve(restarted().lines), width=width, colour=True))


def rows_of(picture: list[str]) -> list[str]:
    return [row for row in picture if "┤" in row or "│" in row]


def test_a_falling_loss_falls_from_left_to_right() -> None:
    """The first turn is at the top left, the last at the bottom right, and no column between is empty."""
    points = tuple((step, 10.0 - step / 10) for step in range(100))
    rows = rows_of(loss_curve(Curve(kept=points, discarded=(), marks=()), width=60, height=12))
    cells = [row.partition("┤")[2] or row.partition("│")[2] for row in rows]
    assert cells[0][0] not in " ·"
    assert cells[-1].rstrip()[-1] not in " ·"
    plot = max(map(len, cells))
    drawn = {column for row in cells for column, cell in enumerate(row) if cell != " "}
    assert drawn == set(range(plot))


@pytest.mark.parametrize(
    "points",
    [
        ((0, 1.0),),
        ((5, 2.0), (6, 2.0)),
        ((0, float("nan")), (1, 3.0), (2, float("inf"))),
        ((0, -1.0), (1, 0.0), (2, 1.0)),
        ((0, 1e-30), (1, 1e30)),
        ((0, 5e-324), (1, 1.7e308)),
    ],
)
def test_odd_curves_have_pictures_too(points: tuple[tuple[int, float], ...]) -> None:
    """One point, a flat line, values that aren't finite or positive: a picture all the same."""
    mark = Mark(step=points[0][0], branch=2, kind="restart", tier="DISK", again=0, at_ns=0)
    odd = Curve(kept=points, discarded=(Discarded(branch=2, points=points[:1]),), marks=(mark,))
    assert len(loss_curve(odd, width=40, height=10)) > 10


def test_a_curve_without_a_loss_says_so() -> None:
    """Nothing to draw is told, not drawn."""
    assert loss_curve(curve(Tale().term().lines)) == ["no loss on record yet"]


def test_a_loss_over_decades_is_drawn_on_a_log_scale() -> None:
    """The picture says which scale it has."""
    points = tuple((step, 1000.0 / 2**step) for step in range(10))
    assert "log scale" in loss_curve(Curve(kept=points, discarded=(), marks=()))[-1]
    assert "100" not in loss_curve(Curve(kept=((0, 2.0), (1, 1.0)), discarded=(), marks=()))[-1]
