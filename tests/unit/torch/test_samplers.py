from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from surefoot.core.skips import Batches
from surefoot.errors import ConfigError
from surefoot.torch.samplers import Reading, reading_of

ROWS: Any = list(range(12))
FIRST = [4, 1, 7, 11, 8, 5, 10, 9, 3, 6, 2, 0]
SECOND = [10, 0, 7, 4, 8, 6, 11, 1, 2, 9, 3, 5]
"""Epochs 0 and 1 of twelve rows, shuffled by seed 5."""


class Counting(Sampler):
    """Counts its epochs itself; shuffles by two generators of its own and by the main ones."""

    def __init__(self) -> None:
        self.epoch = 0
        self.own = random.Random(3)
        self.generator = torch.Generator()

    def __len__(self) -> int:
        return 9

    def __iter__(self) -> Iterator[int]:
        order = list(range(8))
        self.own.shuffle(order)
        order = [order[at] for at in torch.randperm(8, generator=self.generator)]
        random.shuffle(order)
        self.epoch += 1
        return iter([*order, 8 + self.epoch])


class Told(Sampler):
    """Is told its epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch] * 4)


class Short(Told):
    """Has less to give in every epoch."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4 - self.epoch))


class Buckets(Sampler):
    """Gives batches of unequal size over another sampler."""

    def __init__(self) -> None:
        self.sampler = RandomSampler(range(10), generator=torch.Generator())

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        return iter([order[:2], order[2:7], order[7:]])


class Strided(Sampler):
    """Splits the data among ranks by itself."""

    def __init__(self, rank: int) -> None:
        self.rank, self.num_replicas = rank, 2

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        order = list(range(12))
        random.shuffle(order)
        return iter(order[self.rank :: 2])


def read(sampler: Any = None, *, seed: int = 5, rank: int = 0, world_size: int = 1, **options: Any) -> Reading:
    loader: DataLoader = DataLoader(ROWS, sampler=sampler, **options)
    return reading_of(loader, seed=seed, rank=rank, world_size=world_size)


def epoch(reading: Reading, number: int) -> list[Any]:
    length = reading.order.length
    return reading.order.entries(number * length, (number + 1) * length)


def test_in_order() -> None:
    """Without shuffling every epoch is the dataset's order."""
    reading = read(batch_size=5, drop_last=True)
    assert epoch(reading, 0) == epoch(reading, 10**9) == list(range(12))
    assert reading.order.entries(12 + 3, 12 + 6) == [3, 4, 5]
    assert reading.batches == Batches(5, 12, drop_last=True)
    assert (reading.unit, reading.order.word) == ("sample", "in order")


def test_the_shuffled_order_never_changes() -> None:
    """The permutation of an epoch is the same on any machine and under any version, by seed and epoch alone."""
    reading = read(shuffle=True)
    assert epoch(reading, 0) == FIRST
    assert epoch(reading, 1) == SECOND
    assert epoch(reading, 0) == FIRST
    assert epoch(read(shuffle=True, seed=6), 0) != FIRST
    assert reading.order.word == "shuffled"


def test_indices_are_python_integers() -> None:
    """A dataset is asked for what it would be asked for by the stock sampler."""
    assert {type(index) for index in epoch(read(shuffle=True), 0)} == {int}


SAMPLERS: list[Callable[[], Iterable[Any]]] = [
    Counting,
    lambda: SubsetRandomSampler(range(3, 9)),
    lambda: WeightedRandomSampler([1.0] * 12, 12, generator=torch.Generator()),
    lambda: RandomSampler(ROWS, replacement=True),
    lambda: RandomSampler(ROWS, num_samples=7),
    lambda: [5, 3, 9, 1, 2],
]


@pytest.mark.parametrize("make", SAMPLERS)
def test_any_sampler_is_known_for_any_epoch(make: Callable[[], Iterable[Any]]) -> None:
    """What a sampler gives in an epoch doesn't depend on the epochs that were drawn before."""
    walk, jump = read(make()), read(make())
    walked = [epoch(walk, number) for number in range(3)]
    assert [epoch(jump, number) for number in (2, 0, 1)] == [walked[2], walked[0], walked[1]]
    assert isinstance(make(), list) or walked[0] != walked[1] != walked[2]
    assert walk.order.word == "drawn"


def test_the_users_sampler_stays_as_it_is() -> None:
    """A sampler is drawn through a copy: neither its count of epochs nor its generators move."""
    sampler = Counting()
    before = sampler.own.getstate(), sampler.generator.get_state().tolist()
    epoch(read(sampler), 2)
    assert (sampler.own.getstate(), sampler.generator.get_state().tolist()) == before
    assert sampler.epoch == 0


def test_samplers_are_told_the_epoch() -> None:
    """`set_epoch` is called, and a sampler that counts its epochs itself finds the count it expects."""
    assert [epoch(read(Told()), number) for number in (2, 0)] == [[2] * 4, [0] * 4]
    assert [epoch(read(Counting()), number)[8] for number in (0, 2)] == [9, 11]


def test_a_sampler_of_changing_length_is_refused() -> None:
    """An epoch of another length than the sampler's len() would move every place behind it."""
    reading = read(Short())
    epoch(reading, 0)
    with pytest.raises(ConfigError, match=r"Short gave 3 entries in epoch 1, its len\(\) says 4"):
        epoch(reading, 1)


def test_a_batch_sampler_of_torchs_own_is_seen_through() -> None:
    """A BatchSampler handed in says the same as batch_size, shuffle and drop_last."""
    batching = BatchSampler(RandomSampler(ROWS), 5, drop_last=True)
    reading = read(batch_sampler=batching, world_size=2)
    assert reading.batches == read(shuffle=True, batch_size=5, drop_last=True, world_size=2).batches
    assert reading.batches == Batches(10, 12, drop_last=True, parts=2)
    assert epoch(reading, 0) == FIRST


def test_torchdatas_samplers_are_known() -> None:
    """A StatefulDataLoader's own kinds of samplers are read as torch's are."""
    with pytest.warns(UserWarning, match="set_vital"):
        stateful = StatefulDataLoader(ROWS, batch_size=5, shuffle=True)
    assert epoch(reading_of(stateful, seed=5, rank=0, world_size=1), 1) == SECOND


def test_a_custom_batch_sampler_decides() -> None:
    """Where a batch sampler of the user's makes the batches, they are the places."""
    for batching in (Buckets(), [[1, 2], [3]]):
        reading = read(batch_sampler=batching, rank=1, world_size=2)
        assert (reading.unit, reading.batches) == ("batch", Batches(1, len(batching)))
    reading = read(batch_sampler=Buckets())
    assert [len(batch) for batch in epoch(reading, 0)] == [2, 5, 3]
    assert epoch(read(batch_sampler=Buckets()), 1) == epoch(reading, 1) != epoch(reading, 0)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_distributed_sampler_gives_way_to_our_split(shuffle: bool) -> None:
    """It tells how many ranks there are and which one this is; the order is whole, without padding."""
    sampler: DistributedSampler = DistributedSampler(range(11), num_replicas=2, rank=1, shuffle=shuffle)  # type: ignore[arg-type]
    reading = read(sampler, batch_size=3, rank=5, world_size=8)
    assert (reading.rank, reading.batches) == (1, Batches(6, 11, parts=2))
    assert sorted(epoch(reading, 0)) == list(range(11))
    assert (epoch(reading, 0) != epoch(reading, 1)) is shuffle
    sampler.seed = 1
    assert (epoch(read(sampler), 0) != epoch(reading, 0)) is shuffle


def test_a_sampler_that_splits_by_itself_goes_on_doing_so() -> None:
    """The ranks split one shuffle, and places are a rank's batches, or single indices without batching."""
    ranks = [read(Strided(rank), batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    batches = [epoch(reading, 0) for reading in ranks]
    assert [len(batch) for batch in batches[0]] == [4, 2]
    assert sorted(chain(*batches[0], *batches[1])) == list(range(12))
    assert [(reading.unit, reading.rank) for reading in ranks] == [("batch", 0), ("batch", 1)]
    assert len(epoch(read(Strided(0), batch_size=None), 0)) == 6


def test_without_batching() -> None:
    """With batch_size=None each rank fetches one entry of the order at a time."""
    reading = read(batch_size=None, world_size=3)
    assert (reading.unit, reading.batches) == ("sample", Batches(3, 12, parts=3))


def test_a_sampler_without_a_length() -> None:
    """What has no length has no epochs to find a place in."""

    class Endless(Sampler):
        def __iter__(self) -> Iterator[int]:
            return iter(int, 1)

    with pytest.raises(TypeError):
        read(Endless())
