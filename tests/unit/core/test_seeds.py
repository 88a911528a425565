from __future__ import annotations

from surefoot.core.seeds import mix


def test_known_values() -> None:
    """Seeds never change between versions; the first is splitmix64's own first number for seed 0."""
    assert [mix(0), mix(1), mix(0, 0), mix(7, 1, 2)] == [
        0xE220A8397B1DCDAF,
        0x910A2DEC89025CC1,
        0xA706DD2F4D197E6F,
        0x16E639E2C7AAE6E3,
    ]


def test_every_number_and_the_order_count() -> None:
    """No two ways of mixing small numbers give the same seed."""
    ways = [(a, b) for a in range(30) for b in range(30)]
    assert len({mix(*way) for way in ways} | {mix(a) for a in range(30)}) == len(ways) + 30


def test_any_integer_is_a_seed() -> None:
    """Negative and long integers count modulo 2**64, and the result fits into 64 bits."""
    assert mix(-1, -5) == mix(2**64 - 1, 2**64 - 5)
    assert mix(2**200 + 3) == mix(3)
    assert 0 <= mix(-1) < 2**64


def test_every_bit_matters() -> None:
    """Flipping one bit of a number flips about half of the seed's bits."""
    flipped = [(mix(9, 12345) ^ mix(9, 12345 ^ (1 << bit))).bit_count() for bit in range(64)]
    assert min(flipped) > 12
    assert 28 < sum(flipped) / 64 < 36
