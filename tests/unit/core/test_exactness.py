"""How exactly an attempt came back: only what was measured is claimed (invariant 15)."""

from __future__ import annotations

from collections.abc import Mapping

from surefoot.core.exactness import TRAIL, Exactness, observed, restored, word

NAN = float("nan")


def trained(exactness: Exactness, losses: Mapping[int, float | None]) -> Exactness:
    for step, loss in losses.items():
        exactness = observed(exactness, step, loss)
    return exactness


def after(before: Mapping[int, float | None], step: int, again: Mapping[int, float | None]) -> Exactness:
    """Train, go back to `step`, and train again."""
    return trained(restored(trained(Exactness(), before), step), again)


def test_nothing_recomputed_proves_nothing() -> None:
    """Without a turn that was done before, the word is only what is known: same data and state."""
    assert word(Exactness(), "exact") == "same data and state"
    assert word(after({0: 1.0, 1: 0.5}, 2, {2: 0.4, 3: 0.3}), "exact") == "same data and state"


def test_equal_turns_are_the_proof() -> None:
    """A turn done again with the same loss makes the attempt bit-exact, from then on."""
    found = after({0: 1.0, 1: 0.5, 2: 0.25}, 1, {1: 0.5})
    assert (found.equal, word(found, "exact")) == (1, "bit-exact")
    assert word(trained(found, {2: 0.25, 3: 0.1}), "exact") == "bit-exact"


def test_one_bit_is_a_difference() -> None:
    """A loss that differs in its last bit is named with its step, and no later equality takes it back."""
    found = after({0: 1.0, 1: 0.5, 2: 0.25, 3: 0.1}, 1, {1: 0.5, 2: 0.25000000000000006, 3: 0.1})
    assert found.differs_at == 2
    assert word(found, "exact") == "approximate: the loss of step 2 differs from the record"


def test_the_sign_of_zero_is_a_bit() -> None:
    """Zero and minus zero are equal numbers and other bits."""
    assert word(after({0: 0.0}, 0, {0: -0.0}), "exact").startswith("approximate")


def test_the_same_nan_is_equal() -> None:
    """A turn that went wrong the same way is a turn that came back."""
    assert word(after({0: NAN}, 0, {0: NAN}), "exact") == "bit-exact"
    assert word(after({0: NAN}, 0, {0: 1.0}), "exact").startswith("approximate")
    assert word(after({0: 1.0}, 0, {0: NAN}), "exact").startswith("approximate")


def test_a_turn_without_a_loss_proves_nothing() -> None:
    """Turns that logged no loss, then or now, are passed over, and those after them still count."""
    assert word(after({0: 1.0, 1: None}, 0, {0: None, 1: 0.5}), "exact") == "same data and state"
    assert word(after({0: None, 1: 0.5}, 0, {0: 1.0, 1: 0.5}), "exact") == "bit-exact"


def test_each_attempt_is_measured_for_itself() -> None:
    """A restore begins anew: what an earlier attempt proved, or disproved, is not claimed for the next."""
    proven = after({0: 1.0, 1: 0.5}, 1, {1: 0.5})
    assert word(restored(proven, 2), "exact") == "same data and state"
    refuted = after({0: 1.0, 1: 0.5}, 1, {1: 0.7})
    assert word(observed(restored(refuted, 1), 1, 0.7), "exact") == "bit-exact"


def test_what_was_computed_is_compared_with_the_newest_time() -> None:
    """Turns that a restore discards are what the next computation is held against."""
    found = restored(trained(Exactness(), {0: 1.0, 1: 0.5, 2: 0.25}), 1)
    assert found == Exactness(trail=((0, 1.0),), expected=((1, 0.5), (2, 0.25)))


def test_a_source_that_is_not_exact_is_said_to_be() -> None:
    """Where the data isn't positioned exactly, equal losses prove less: the source's level is named."""
    found = after({0: 1.0}, 0, {0: 1.0})
    assert word(found, "order_only") == "approximate: the order of the data is exact, its randomness is not"
    assert word(found, "drawn") == "approximate: the data was drawn and discarded up to its place"


def test_the_trail_is_bounded() -> None:
    """Only the newest turns are remembered, whatever the length of the run."""
    found = trained(Exactness(), {step: float(step) for step in range(3 * TRAIL)})
    assert [step for step, _ in found.trail] == list(range(2 * TRAIL, 3 * TRAIL))
