"""docs/reference/formats.md is the truth about the journal: its tables and the code name the same things.

A cell of fields is a list separated by commas. Of each item the first word is the field's name; what
stands in brackets or after "or null" or "or none" explains it. "A or B" are two fields: in a row of one
event it has both, in a row of several each has at least one. "mark: good, suspect; why" lists values up to
the semicolon. "do, its fields" is an order laid flat on the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from surefoot.core.events import EVENTS
from surefoot.core.orders import ORDERS, TIERS

FORMATS = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")

ON_THE_LINE = {("restart", "source"): "from"}
"""Fields that Python can't call what the journal calls them."""

Item = tuple[str, ...]
"""One field of a row; several names where the cell says "A or B"."""


@dataclass(frozen=True)
class Row:
    """A row of a table: the kinds it describes, their fields, and the cell behind."""

    kinds: tuple[str, ...]
    items: tuple[Item, ...]
    rest: str

    def fields_of(self, own: list[str]) -> list[str]:
        """Return what the row says of the kind with these fields: of "A or B" what it has, alone both."""
        found: list[str] = []
        for item in self.items:
            found += [name for name in item if len(self.kinds) == 1 or name in own] or item
        return found


def section(number: int) -> str:
    """Return the text of a numbered section."""
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", FORMATS, re.MULTILINE | re.DOTALL)
    assert found, f"formats.md has no section {number}"
    return found[0]


def table(number: int, heading: str) -> dict[str, Row]:
    """Return each kind's row of the section's table whose first column is headed so."""
    lines = [line.strip().strip("|") for line in section(number).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    start = next(place for place, row in enumerate(cells) if row[0] == heading)
    body = cells[start + 2 :]
    rows = [Row(tuple(first.split(" · ")), items(second), " ".join(rest)) for first, second, *rest in body]
    return {kind: row for row in rows for kind in row.kinds}


def unbracketed(text: str) -> str:
    """Return the text without what stands in round, square or curly brackets, nested ones too."""
    while (shorter := re.sub(r"\([^(){}\[\]]*\)|\[[^(){}\[\]]*\]|\{[^(){}\[\]]*\}", "", text)) != text:
        text = shorter
    assert not re.search(r"[(){}\[\]]", text), f"unbalanced brackets: {text}"
    return text


def items(cell: str) -> tuple[Item, ...]:
    """Return the fields that a cell names, in its order."""
    found: list[Item] = []
    for part in unbracketed(cell).split(";"):
        listed = part.partition(":")[0].replace("do, its fields", "body")
        for item in filter(None, (item.strip() for item in listed.split(","))):
            names = tuple(name for name in re.split(r"\s+or\s+", item) if name not in {"null", "none"})
            assert all(re.fullmatch(r"[a-z][a-z_]*", name) for name in names), f"no field's name: {item!r}"
            found.append(names)
    return tuple(found)


EVENT_ROWS = table(4, "ev")
ORDER_ROWS = table(5, "do")


def event_fields(name: str) -> list[str]:
    """Return the fields that the code gives an event."""
    return [field.name for field in fields(EVENTS[name])]


def order_fields(name: str) -> list[str]:
    """Return the fields that the code gives an order, by their names on the line."""
    return [ON_THE_LINE.get((name, field.name), field.name) for field in fields(ORDERS[name])]


def test_the_tables_name_every_event_and_order() -> None:
    """What the tables list and what the code knows are the same names, in the same order."""
    assert list(EVENT_ROWS) == list(EVENTS)
    assert list(ORDER_ROWS) == list(ORDERS)


@pytest.mark.parametrize("name", EVENTS)
def test_an_events_fields_are_its_rows(name: str) -> None:
    """Each event has exactly the fields of its row, in that order."""
    assert event_fields(name) == EVENT_ROWS[name].fields_of(event_fields(name))


@pytest.mark.parametrize("name", ORDERS)
def test_an_orders_fields_are_its_rows(name: str) -> None:
    """Each order has exactly the fields of its row, in that order."""
    assert order_fields(name) == ORDER_ROWS[name].fields_of(order_fields(name))


@pytest.mark.parametrize("name", ORDERS)
def test_the_ranks_carry_out_what_the_table_says(name: str) -> None:
    """An order goes to the ranks if its row says so."""
    assert ("ranks" in ORDER_ROWS[name].rest) == ORDERS[name].RANKS


@pytest.mark.parametrize(
    "row", dict.fromkeys([*EVENT_ROWS.values(), *ORDER_ROWS.values()]), ids=lambda row: row.kinds[0]
)
def test_every_name_is_somebodys(row: Row) -> None:
    """Of "A or B" in a row of several kinds, each is a field of one of them."""
    has = {name for kind in row.kinds for name in (event_fields if kind in EVENTS else order_fields)(kind)}
    assert {name for item in row.items for name in item} == has


def test_ties_between_tiers_go_the_written_way() -> None:
    """The order of tiers in the text is the order in the code."""
    assert f"ties go {', '.join(TIERS)}" in section(5)
