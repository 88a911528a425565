"""Which rank of a node stages what its ranks share.

A tensor is shared only if its placement says so *and* its hash is equal wherever it is claimed. The
same name is no proof: experts and pipeline stages made by hand have equal names and other values.
What can't be proven equal is each rank's own and never merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from surefoot.checkpoint.layout import Box, box_bytes, offsets_of


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which local rank stages which boxes; each tuple of boxes is one local rank's."""

    staged: tuple[tuple[Box, ...], ...]
    """Every replicated tensor at one rank, everything else at its own."""
    held: tuple[tuple[Box, ...], ...]
    """All that a rank needs back at a restore, its neighbours' share included."""
    diverged: tuple[str, ...]
    """Names that claim to be replicated and aren't; each rank keeps its own."""


def assign(boxes: Sequence[Sequence[Box]], hashes: Sequence[Mapping[str, str]]) -> Assignment:
    """Share the replicated tensors of a node among its ranks, the largest to the least loaded first.

    `boxes` are by local rank, `hashes` of the replicated ones by name. The result depends on neither
    the order of a rank's boxes nor on anything outside of the arguments. Replicas that differ in
    shape or hash, or have no hash, lose their placement: what is left is each rank's own tensor.
    """
    claims: dict[_Part, dict[int, Box]] = {}
    for rank, owned in enumerate(boxes):
        for box in owned:
            if box.replicated:
                claims.setdefault(_part(box), {})[rank] = box
    diverged = {part for part, claimed in claims.items() if _differ(claimed, hashes)}
    held = [
        [_alone(box) if box.replicated and _part(box) in diverged else box for box in owned] for owned in boxes
    ]
    staged = [[box for box in owned if not box.replicated] for owned in held]
    load = [sum(map(box_bytes, owned)) for owned in staged]
    shared = [claimed for part, claimed in claims.items() if part not in diverged]
    for claimed in sorted(shared, key=lambda claimed: _largest_first(next(iter(claimed.values())))):
        rank = min(claimed, key=lambda rank: (load[rank], rank))
        staged[rank].append(claimed[rank])
        load[rank] += box_bytes(claimed[rank])
    return Assignment(
        staged=tuple(tuple(sorted(owned, key=_part)) for owned in staged),
        held=tuple(tuple(sorted(owned, key=_part)) for owned in held),
        diverged=tuple(sorted({name for name, _ in diverged})),
    )


_Part = tuple[str, tuple[int, ...]]


def _part(box: Box) -> _Part:
    """Return what two boxes have in common that claim to be replicas of each other."""
    return box.name, () if box.whole is None else offsets_of(box)


def _largest_first(box: Box) -> tuple[int, _Part]:
    return -box_bytes(box), _part(box)


def _alone(box: Box) -> Box:
    return replace(box, replicated=False, whole=None, offsets=None)


def _differ(claimed: Mapping[int, Box], hashes: Sequence[Mapping[str, str]]) -> bool:
    seen = {(box, hashes[rank].get(box.name)) for rank, box in claimed.items()}
    return len(claimed) > 1 and (len(seen) > 1 or next(iter(seen))[1] is None)
