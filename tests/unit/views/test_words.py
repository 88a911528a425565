"""Times, sizes, numbers and orders as people read them."""

from __future__ import annotations

import pytest
from tests.unit.views.tales import BEGAN_NS, S

from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import ORDERS, Mark, Order, Prune, Restart, Rollback, Save, ScaleLr, Set, Stop, Write
from surefoot.views.words import duration, many, moment, number, of_order, size


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1.0, "0 ms"),
        (0.0004, "0 ms"),
        (0.0284, "28 ms"),
        (0.9996, "1.0 s"),
        (3.24, "3.2 s"),
        (9.96, "10 s"),
        (59.7, "1 min"),
        (245, "4 min 5 s"),
        (3600, "1 h"),
        (3900, "1 h 5 min"),
        (2 * 86400 + 3 * 3600 + 59, "2 d 3 h"),
        (86400 * 400, "400 d"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    """A duration has at most two units, and never sixty of one."""
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (1000, "1000 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (69_696, "68 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (5_700 << 40, "5.6 PiB"),
        (1 << 70, "1048576 PiB"),
    ],
)
def test_sizes(count: int, words: str) -> None:
    """Bytes are told in the unit that leaves them short."""
    assert size(count) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (0.0, "0"),
        (2.314561, "2.3146"),
        (3e-4, "3.00e-04"),
        (-12_345.6, "-12346"),
        (1.5e9, "1.50e+09"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_numbers(value: float | None, words: str) -> None:
    """A loss, a norm or a learning rate has five digits at most."""
    assert number(value) == words


def test_counts_agree_with_their_noun() -> None:
    """One is singular; the rest are plural, with thousands apart."""
    assert (many(0, "step"), many(1, "step"), many(12_400, "step")) == ("0 steps", "1 step", "12,400 steps")


def test_a_moment_of_another_day_has_its_date() -> None:
    """Today's instants are times; others have their date."""
    assert len(moment(BEGAN_NS, BEGAN_NS + S)) == len("12:34:56")
    assert len(moment(BEGAN_NS, BEGAN_NS + 3 * 86400 * S)) == len("2023-11-14 22:13")


_AT = SnapshotId(1200, 2)
_ORDERS: dict[type[Order], tuple[Order, str]] = {
    Set: (Set(name="clip", value=0.5), "set clip = 0.5"),
    Save: (Save(), "save to DISK"),
    Write: (Write(), "write the newest snapshot in memory to DISK"),
    Mark: (Mark(snapshot=_AT, mark="suspect"), "mark step 1,200 (branch 2) suspect"),
    Prune: (Prune(snapshot=_AT), "delete step 1,200 (branch 2)"),
    Rollback: (
        Rollback(to=_AT, branch=3, skip=(10, 2000, "sample")),
        "roll back to step 1,200 (branch 2), leaving out samples 10 to 2,000",
    ),
    ScaleLr: (
        ScaleLr(factor=0.5, from_step=1200, until_step=2000),
        "multiply the LR by 0.5 from step 1,200 to 2,000",
    ),
    Restart: (Restart(), "start again from the newest snapshot that may be used"),
    Stop: (Stop(word="stopped", exit_code=83), "stop (stopped)"),
}


@pytest.mark.parametrize("kind", ORDERS.values())
def test_orders(kind: type[Order]) -> None:
    """Every order can be told; those without words of their own by their name."""
    if kind in _ORDERS:
        order, words = _ORDERS[kind]
        assert of_order(order) == words
    else:
        bare = kind(what="n7") if kind.DO == "exclude" else kind()  # type: ignore[call-arg]
        assert of_order(bare) == kind.DO
