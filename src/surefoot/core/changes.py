"""What differs between a script and the run it would resume, sorted by what it does (case D21).

`harmless` goes on and is on record, `maths` changes what is computed and needs a person's yes,
`impossible` can't be restored into.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

HARMLESS, MATHS, IMPOSSIBLE = "harmless", "maths", "impossible"

_HARMLESS = ("steps", "world_size")
_SCRIPT = "code."
"""What begins so may change freely, as a larger n may: an edited script."""

_IMPOSSIBLE = ("data.kind", "data.unit")


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every difference as {key, was, now, kind}, ordered by key.

    A key on one side only is a difference too, with None on the other.
    """
    changed = []
    for key in sorted(before.keys() | now.keys()):
        was, is_now = before.get(key), now.get(key)
        if was != is_now:
            changed.append({"key": key, "was": was, "now": is_now, "kind": _kind(key)})
    return changed


def refused(changed: list[dict[str, Any]], accepted: Collection[str]) -> list[dict[str, Any]]:
    """Return the differences that keep the run from resuming."""
    return [
        change
        for change in changed
        if change["kind"] == IMPOSSIBLE or (change["kind"] == MATHS and change["key"] not in accepted)
    ]


def describe(changed: list[dict[str, Any]]) -> str:
    """Return one line a difference, for people."""
    return "\n".join(
        f"  {change['key']}: {change['was']!r} → {change['now']!r} ({change['kind']})" for change in changed
    )


def _kind(key: str) -> str:
    if key in _IMPOSSIBLE:
        return IMPOSSIBLE
    return HARMLESS if key in _HARMLESS or key.startswith(_SCRIPT) else MATHS
