"""Reads a loader's samplers as an order that is known at once for any epoch.

Sequential and shuffled orders are made anew from (seed, epoch). Any other sampler is drawn once per
epoch, whole: a copy of it, told the epoch, with every generator seeded from (seed, epoch), so that
epoch 7 is the same whether or not the six before it were drawn. A sampler that splits the data among
ranks by itself goes on doing so, which leaves no samples to count: places are its batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Sampler

from surefoot.core.seeds import mix
from surefoot.core.skips import Batches
from surefoot.errors import ConfigError
from surefoot.torch.seeding import generators_of, seed_one, seeded

_STOCK = {
    "torch.utils.data.sampler",
    "torch.utils.data.distributed",
    "torchdata.stateful_dataloader.sampler",
}


class Order:
    """What a sampler gives in each epoch; the epoch asked for last is kept."""

    def __init__(self, word: str, length: int, draw: Callable[[int], Sequence[Any]]) -> None:
        self.word = word
        """"in order", "shuffled" or "drawn"."""
        self.length = length
        self._draw = draw
        self._epoch = -1
        self._entries: Sequence[Any] = ()

    def entries(self, start: int, stop: int) -> list[Any]:
        """Return what stands at places [start, stop), which lie in one epoch."""
        epoch, place = divmod(start, self.length)
        if epoch != self._epoch:
            self._entries = ()  # first: two permutations of a large dataset need not fit into memory
            self._entries = self._draw(epoch)
            self._epoch = epoch
        part: Any = self._entries[place : place + stop - start]
        return part.tolist() if isinstance(part, np.ndarray) else list(part)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a loader is read: its order, how that is cut into batches, and which part is this rank's."""

    order: Order
    batches: Batches
    rank: int
    unit: str
    """"sample" where an entry of the order is an index, "batch" where it is what one `next` fetches."""


def reading_of(loader: DataLoader[Any], *, seed: int, rank: int, world_size: int) -> Reading:
    """Return how a loader over a map-style dataset is read by one of the ranks that share its batches.

    A `DistributedSampler` knows better than the job how many ranks load different data, and which of
    them this is: its numbers count. Raises TypeError for a sampler without a length.
    """
    batching: Any = loader.batch_sampler
    sampler: Any
    if batching is None:  # batch_size=None: one index is one batch, uncollated
        sampler, per_rank, drop_last = loader.sampler, 1, False
    elif _stock_name(batching) == "BatchSampler":
        sampler, per_rank, drop_last = batching.sampler, batching.batch_size, batching.drop_last
    else:
        return _by_batches(batching, seed, rank)
    if _stock_name(sampler).endswith("DistributedSampler"):
        rank, world_size = sampler.rank, sampler.num_replicas
    elif _splits_itself(sampler):
        return _by_batches(sampler if batching is None else batching, seed, rank)
    order = _order_of(sampler, seed)
    batches = Batches(per_rank * world_size, order.length, drop_last, parts=world_size)
    return Reading(order, batches, rank, "sample")


def _by_batches(batching: Any, seed: int, rank: int) -> Reading:
    order = _drawn(batching, seed)
    return Reading(order, Batches(1, order.length), rank, "batch")


def _order_of(sampler: Any, seed: int) -> Order:
    name = _stock_name(sampler)
    if name == "SequentialSampler":
        return _in_order(len(sampler.data_source))
    if name == "RandomSampler" and not sampler.replacement and len(sampler) == len(sampler.data_source):
        return _shuffled(len(sampler), seed)
    if name.endswith("DistributedSampler"):
        length = len(sampler.dataset)
        return _shuffled(length, mix(seed, sampler.seed)) if sampler.shuffle else _in_order(length)
    return _drawn(sampler, seed)


def _in_order(length: int) -> Order:
    return Order("in order", length, lambda _: range(length))


def _shuffled(length: int, seed: int) -> Order:
    def draw(epoch: int) -> Any:
        # RandomState, not Generator: its algorithms are frozen (NEP 19), so that an upgrade of NumPy in the
        # middle of an epoch doesn't change the order of the rest.
        generator = np.random.RandomState(np.random.PCG64(mix(seed, epoch)))
        return generator.permutation(length)

    return Order("shuffled", length, draw)


def _drawn(sampler: Any, seed: int) -> Order:
    length = len(sampler)

    def draw(epoch: int) -> list[Any]:
        epoch_seed = mix(seed, epoch)
        with seeded(epoch_seed):
            entries = list(_at_epoch(sampler, epoch, epoch_seed))
        if len(entries) != length:
            raise ConfigError(
                f"{type(sampler).__name__} gave {len(entries)} entries in epoch {epoch}, its len() says "
                f"{length}. Expected the same number in every epoch, or no place in the data could be found "
                "again. Give it a fixed length, or pass an object whose __iter__ goes through the loader: that "
                "is drawn again and discarded up to the place."
            )
        return entries

    return Order("drawn", length, draw)


def _at_epoch(sampler: Any, epoch: int, seed: int) -> Any:
    """Return a copy of a sampler that stands before an epoch; the user's stays as it is."""
    sampler = copy.copy(sampler)
    for n, (name, generator) in enumerate(generators_of(sampler).items()):
        own = copy.deepcopy(generator)
        seed_one(own, mix(seed, n))
        setattr(sampler, name, own)
    for name, inner in list(getattr(sampler, "__dict__", {}).items()):
        if isinstance(inner, Sampler):
            setattr(sampler, name, _at_epoch(inner, epoch, mix(seed, *name.encode())))
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    elif isinstance(getattr(sampler, "epoch", None), int):
        sampler.epoch = epoch  # it counts its epochs by itself
    return sampler


def _splits_itself(sampler: Any) -> bool:
    inner = getattr(sampler, "sampler", None)
    return hasattr(sampler, "num_replicas") or (inner is not None and _splits_itself(inner))


def _stock_name(sampler: Any) -> str:
    kind = type(sampler)  # exactly: a subclass may do anything
    return kind.__name__ if kind.__module__ in _STOCK else ""
