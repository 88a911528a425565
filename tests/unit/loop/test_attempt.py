"""One rank's membership: what the agent sends counts once, whichever agent sends it."""

from __future__ import annotations

from collections import deque

import pytest

from surefoot.loop.attempt import Attempt


class Line:
    """Brings what an agent sent."""

    def __init__(self) -> None:
        self.sent: list[dict] = []

    def poll(self) -> list[tuple[dict, list[int]]]:
        sent, self.sent = self.sent, []
        return [(message, []) for message in sent]


@pytest.fixture
def attempt() -> Attempt:
    """Return a rank that has joined: only what it knows of orders."""
    made = object.__new__(Attempt)
    made.link = Line()  # type: ignore[assignment]
    made.acted = 0
    made._orders = deque()
    return made


def hear(attempt: Attempt, *orders: int) -> None:
    line = attempt.link
    assert isinstance(line, Line)
    line.sent += [{"kind": "order", "order": order, "do": "save"} for order in orders]
    attempt.messages()


def act(attempt: Attempt) -> int:
    """Carry out what the vector says is next, as all ranks do at one boundary."""
    order = attempt.order
    assert order is not None
    number: int = order["order"]
    if number > attempt.acted:
        attempt.take_order()
        attempt.acted = number
    return number


def test_orders_are_carried_out_in_turn(attempt: Attempt) -> None:
    """One order at a boundary, oldest first."""
    hear(attempt, 4, 6)
    assert [act(attempt), act(attempt)] == [4, 6]
    assert attempt.order is None


def test_an_order_that_was_carried_out_is_not_taken_again(attempt: Attempt) -> None:
    """A new agent sends again what it doesn't know to be done."""
    hear(attempt, 4)
    act(attempt)
    hear(attempt, 4)
    assert attempt.order is None


def test_an_order_that_comes_twice_before_it_is_carried_out_counts_once(attempt: Attempt) -> None:
    """An agent may die between sending an order and hearing of it: its successor sends it again."""
    hear(attempt, 4)
    hear(attempt, 4, 6)
    assert act(attempt) == 4
    assert act(attempt) == 6
