"""Seeds from seeds: `mix` is the one way in which our randomness derives from a run's seed.

A seed made from (seed, place) needs no history: whoever comes to that place, at whatever time and on
whichever rank, gets the same numbers. Words separate uses of one seed: `mix(seed, *b"order", epoch)`.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def mix(seed: int, *numbers: int) -> int:
    """Return 64 bits that depend on every bit of `seed` and of `numbers`, and on their order.

    Integers count modulo 2**64, so negative seeds are fine.
    """
    mixed = _scramble(seed)
    for number in numbers:
        mixed = _scramble(mixed ^ number)
    return mixed


def _scramble(bits: int) -> int:
    # splitmix64: a bijection, so two numbers after the same beginning never collide.
    bits = (bits + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)
