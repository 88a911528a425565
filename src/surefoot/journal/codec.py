"""The journal's lines: an event with its place, as one sealed object, and back (formats §4).

Also the front of the package for whoever writes or reads JSON of ours: sealed objects, plain state
and dataclasses each have a module of their own. Nothing that is read is executed.
"""

from __future__ import annotations

from typing import Any

from surefoot.core.events import EVENTS, Event, Json, Line, Ordered, Proposed, WouldHave
from surefoot.errors import JournalError
from surefoot.journal.plain import tag, untag
from surefoot.journal.sealed import DEPTH_MAX, FORMAT, SEALED_BYTES_MAX, canonical, is_sealed, seal, unseal
from surefoot.journal.shapes import from_json, to_json

__all__ = [
    "DEPTH_MAX", "FORMAT", "LINE_BYTES_MAX", "SEALED_BYTES_MAX", "TEXT_BYTES_MAX",
    "seal", "unseal", "is_sealed", "canonical", "tag", "untag", "to_json", "from_json",
    "encode_event", "decode_event", "encode", "decode",
]  # fmt: skip

LINE_BYTES_MAX = 1 << 20
TEXT_BYTES_MAX = 64 << 10


def encode_event(event: Event) -> Json:
    """Return an event as on a line, without seq, at_ns and origin; an order's body is flattened."""
    obj = {"ev": event.EV, **to_json(event)}
    if "body" not in obj:
        return obj
    flat: Json = {}
    for key, value in obj.items():
        if key == "body":
            flat.update(value)
        elif flat.get(key) is None:  # a note's verdict is also that of the event around it
            flat[key] = value
    return flat


_CARRIERS = frozenset(cls.EV for cls in (Ordered, Proposed, WouldHave))
"""Events with an order inside, flattened: their `from` is the order's."""


def decode_event(obj: Json) -> Event:
    """Return the event of an object, whatever else it has. Raises JournalError if there is none."""
    name = obj.get("ev")
    if name not in EVENTS:
        raise JournalError(
            f"unknown event {name!r} in format {FORMAT}; a newer surefoot wrote it and can read it"
        )
    return from_json(EVENTS[name], {**obj, "body": obj} if name in _CARRIERS else obj)


def encode(line: Line) -> bytes:
    """Return a line of the journal, sealed; texts over 64 KiB are cut and say so.

    Raises JournalError if it is longer than 1 MiB all the same.
    """
    obj = {"seq": line.seq, "at_ns": line.at_ns, **encode_event(line.event)}
    if line.origin is not None:
        obj["from"] = line.origin
    raw = seal(obj)
    if len(raw) > TEXT_BYTES_MAX:
        raw = seal(_cut(obj))
    if len(raw) > LINE_BYTES_MAX:
        raise JournalError(
            f"{line.event.EV} makes a line of {len(raw):,} bytes; a line has at most {LINE_BYTES_MAX:,}"
        )
    return raw


def decode(raw: bytes) -> Line:
    """Return a line of the journal. Raises JournalError if a byte is wrong or the event is unknown."""
    obj = unseal(raw)
    event = decode_event(obj)
    # Only ranks' events have an origin, and ranks give no orders.
    origin = None if event.EV in _CARRIERS else obj.get("from")
    try:
        return Line(obj["seq"], obj["at_ns"], event, None if origin is None else (origin[0], origin[1]))
    except (KeyError, IndexError, TypeError) as error:
        raise JournalError(f"an event without its place in the journal: {error!r}") from error


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        raw = value.encode("utf-8", "backslashreplace")
        if len(raw) <= TEXT_BYTES_MAX:
            return value
        return f"{raw[: TEXT_BYTES_MAX - 64].decode(errors='ignore')}… (cut: {len(raw):,} bytes in all)"
    if isinstance(value, dict):
        return {key: _cut(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(inner) for inner in value]
    return value
