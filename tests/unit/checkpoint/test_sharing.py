"""Who stages what the ranks of a node share."""

from __future__ import annotations

from surefoot.checkpoint.layout import Box, box_bytes
from surefoot.checkpoint.sharing import assign


def shared(name: str, size: int) -> Box:
    return Box(name, "U8", (size,), replicated=True)


def test_each_replicated_tensor_is_staged_once() -> None:
    """Every replicated tensor has one stager, every other its owner, and the loads are even."""
    common = [shared("a", 60), shared("b", 40), shared("c", 30), shared("d", 0), Box("own", "U8", (10,))]
    hashes = {box.name: "same" for box in common}
    done = assign([common, common], [hashes, hashes])
    assert sorted(box.name for owned in done.staged for box in owned) == ["a", "b", "c", "d", "own", "own"]
    assert [sum(map(box_bytes, owned)) for owned in done.staged] == [70, 80]
    assert done.held == (tuple(common), tuple(common))
    assert done.diverged == ()


def test_only_a_claimant_stages() -> None:
    """A tensor that some ranks share is staged by one of them, also where another has less to do."""
    done = assign([[], [shared("a", 9)], [shared("a", 9)]], [{}, {"a": "h"}, {"a": "h"}])
    assert [len(owned) for owned in done.staged] == [0, 1, 0]


def test_unequal_replicas_stay_apart() -> None:
    """Replicas that differ in hash or shape are named, and are each rank's own from then on."""
    boxes = [[shared("w", 4), shared("v", 4)], [shared("w", 4), shared("v", 8)]]
    done = assign(boxes, [{"w": "1", "v": "1"}, {"w": "2", "v": "1"}])
    assert done.diverged == ("v", "w")
    assert not any(box.replicated for owned in done.staged for box in owned)
    assert done.staged == done.held
    assert [len(owned) for owned in done.staged] == [2, 2]


def test_a_claim_without_a_hash_is_no_proof() -> None:
    """Replicas nobody has hashed are not merged; a sole claimant needs no hash."""
    assert assign([[shared("w", 4)], [shared("w", 4)]], [{}, {}]).diverged == ("w",)
    assert assign([[shared("w", 4)], []], [{}, {}]).diverged == ()


def test_replicated_shards_are_shared_by_place() -> None:
    """Shards of one tensor that several ranks hold are staged once each; a diverged one loses its place."""
    first = Box("w", "U8", (2,), replicated=True, whole=(4,), offsets=(0,))
    second = Box("w", "U8", (2,), replicated=True, whole=(4,), offsets=(2,))
    boxes = [[first], [second], [first], [second]]
    done = assign(boxes, [{"w": "1"}, {"w": "2"}, {"w": "1"}, {"w": "2"}])
    assert done.staged == ((first,), (second,), (), ())
    apart = assign(boxes, [{"w": "1"}, {"w": "2"}, {"w": "1"}, {"w": "3"}])
    assert apart.diverged == ("w",)
    assert apart.staged[1] == (Box("w", "U8", (2,)),) == apart.staged[3]
    assert apart.staged[0] == (first,)
