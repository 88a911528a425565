"""Sealed JSON, the form of everything we write (formats §2): a byte that changed is noticed wherever it is.

An object is one compact UTF-8 line whose last member is the xxh3_64 of all before it. Errors here
say what is wrong with the bytes; where they lie is added by whoever read them.
"""

from __future__ import annotations

import json
import math
from typing import Any

from xxhash import xxh3_64_hexdigest

from surefoot.errors import JournalError

FORMAT = 1
"""Of the run directory; a higher number in a file is refused."""

SEALED_BYTES_MAX = 64 << 20
DEPTH_MAX = 32


def _encoder(*, sort_keys: bool = False) -> json.JSONEncoder:
    return json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=sort_keys
    )


_COMPACT = _encoder()
_CANONICAL = _encoder(sort_keys=True)
_PARSER = json.JSONDecoder()
_TAIL = b',"check":"%s"}\n'
_TAIL_BYTES = len(_TAIL) - len("%s") + 16


def seal(obj: dict[str, Any]) -> bytes:
    """Return the object as one sealed line.

    Non-finite floats become "nan", "inf" and "-inf". Raises JournalError beyond the limits of
    formats §2, ValueError for an object that is empty or has a member "check" of its own.
    """
    if not obj or "check" in obj:
        raise ValueError('a sealed object has members, and none of them is called "check"')
    body = _dumps(_COMPACT, obj)[:-1]
    if len(body) > SEALED_BYTES_MAX - _TAIL_BYTES:
        raise JournalError(f"an object of {len(body):,} bytes; at most {SEALED_BYTES_MAX:,} can be sealed")
    return body + _TAIL % xxh3_64_hexdigest(body).encode()


def unseal(line: bytes) -> dict[str, Any]:
    """Return the object of a sealed line, without its check. Raises JournalError if a byte is wrong."""
    if len(line) > SEALED_BYTES_MAX:
        raise JournalError(f"{len(line):,} bytes; a sealed object has at most {SEALED_BYTES_MAX:,}")
    if not is_sealed(line):
        raise JournalError(
            f"the seal doesn't fit the bytes before it: {len(line):,} bytes, the end {line[-32:]!r}"
        )
    body = line[:-_TAIL_BYTES]
    try:
        text = body.decode() + "}"
        obj, end = _PARSER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"sealed, but not JSON that we write: {error}") from error
    if not isinstance(obj, dict) or end != len(text) or _too_deep(body, obj):
        raise JournalError(f"sealed, but not one object of at most {DEPTH_MAX} levels")
    return obj


def is_sealed(line: bytes) -> bool:
    """Tell whether the bytes are one whole sealed line, without reading what it says."""
    return line.endswith(_TAIL % xxh3_64_hexdigest(line[:-_TAIL_BYTES]).encode())


def canonical(obj: Any) -> bytes:
    """Return JSON with sorted keys: equal bytes for equal values, whatever order they were made in."""
    return _dumps(_CANONICAL, obj)


def _dumps(encoder: json.JSONEncoder, obj: Any) -> bytes:
    try:
        try:
            text = encoder.encode(obj)
        except ValueError:  # a non-finite number, rare enough to be looked for only now
            text = encoder.encode(_spelled(obj))
    except RecursionError as error:
        raise JournalError(f"an object deeper than {DEPTH_MAX} levels can't be written") from error
    # A lone surrogate (a file name that isn't UTF-8) becomes its JSON escape, and itself again when read.
    raw = text.encode("utf-8", "backslashreplace")
    if _too_deep(raw, obj):
        raise JournalError(f"an object deeper than {DEPTH_MAX} levels can't be written")
    return raw


def _spelled(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(float(value))
    if isinstance(value, dict):
        return {key: _spelled(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(inner) for inner in value]
    return value


def _too_deep(raw: bytes, obj: Any) -> bool:
    # Nearly everything has fewer brackets than levels are allowed; only the rest is walked.
    return raw.count(b"{") + raw.count(b"[") > DEPTH_MAX and _deeper(obj, DEPTH_MAX)


def _deeper(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return levels == 0 or any(_deeper(inner, levels - 1) for inner in value)
