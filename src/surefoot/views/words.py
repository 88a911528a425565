"""Times, sizes and orders as words: one spelling of each, wherever a person reads it."""

from __future__ import annotations

from datetime import UTC, datetime

from surefoot.core.orders import Mark, Order, Prune, Restart, Rollback, Save, ScaleLr, Set, Stop, Write

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def duration(seconds: float) -> str:
    """Return a duration in at most two units: `28 ms`, `3.2 s`, `4 min 5 s`, `2 d 3 h`."""
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1e3:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    place = next(place for place, (_, size) in enumerate(_UNITS) if whole >= size)
    parts = []
    for unit, size in _UNITS[place : place + 2]:
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts)


def size(count: float) -> str:
    """Return a number of bytes: `68 KiB`, `1.2 GiB`."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    place = 0
    while count >= 1023.5 and place < len(units) - 1:
        count /= 1024
        place += 1
    return f"{count:.1f} {units[place]}" if place and count < 9.95 else f"{count:.0f} {units[place]}"


def number(value: float | None) -> str:
    """Return a loss, a norm or a learning rate in at most five digits; `–` where there is none."""
    if value is None:
        return "–"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2e}"
    return f"{value:.5g}"


def local(at_ns: int) -> datetime:
    """Return an instant in the reader's time zone."""
    return datetime.fromtimestamp(at_ns / 1e9, tz=UTC).astimezone()


def moment(at_ns: int, now_ns: int) -> str:
    """Return an instant as briefly as is clear now: the time, and the date unless it is today's."""
    at = local(at_ns)
    same_day = at.date() == local(now_ns).date()
    return f"{at:%H:%M:%S}" if same_day else f"{at:%Y-%m-%d %H:%M}"


def many(count: int, what: str) -> str:
    """Return a count of something: `1 step`, `12,400 steps`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def of_order(body: Order) -> str:
    """Return what an order commands."""
    match body:
        case Set(name=name, value=value):
            return f"set {name} = {value!r}"
        case Save(tiers=tiers):
            return f"save to {', '.join(tiers)}"
        case Write(snapshot=snapshot, tier=tier):
            return f"write {snapshot or 'the newest snapshot in memory'} to {tier}"
        case Mark(snapshot=snapshot, mark=mark):
            return f"mark {snapshot} {mark}"
        case Prune(snapshot=snapshot):
            return f"delete {snapshot}"
        case Rollback(to=to, skip=skip):
            left_out = f", leaving out {skip[2]}s {skip[0]:,} to {skip[1]:,}" if skip is not None else ""
            return f"roll back to {to}{left_out}"
        case ScaleLr(factor=factor, from_step=first, until_step=last):
            return f"multiply the LR by {factor:g} from step {first:,} to {last:,}"
        case Restart(source=source):
            return f"start again from {source or 'the newest snapshot that may be used'}"
        case Stop(word=word):
            return f"stop ({word})"
        case _:
            return body.DO
