from __future__ import annotations

import functools
import os
import pickle
import random
import select
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from surefoot.core.skips import Range
from surefoot.loop.data import Data, Position, Source
from surefoot.torch.dataloader import DataLoaderSource, fingerprint_of, source_for

SEED = 11
LENGTH = 23
Rows = list[tuple[float, ...]]
WAYS = [(0, None, False), *[(w, p, k) for w in (1, 2, 4) for p, k in ((2, False), (4, True))]]
"""(workers, prefetch, persistent)."""


class Noisy(Dataset):
    """Samples that are their index and draws from every generator in reach."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length
        self.own = np.random.default_rng(0)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> list[float]:
        return [index, random.random(), np.random.rand(), float(torch.rand(())), self.own.random()]  # noqa: NPY002


class Whole(Noisy):
    """Fetches batches whole."""

    def __getitems__(self, indices: list[int]) -> list[list[float]]:
        return [self[index] for index in indices]


class Plain(Dataset):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


class Streamed(IterableDataset):
    """Six noisy samples an epoch, with a state for torchdata."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[list[float]]:
        while self.at < 6:
            self.at += 1
            yield [self.at - 1, random.random(), float(torch.rand(()))]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def rows(batch: Any) -> Rows:
    """A collated batch as one tuple of numbers per sample."""
    return [tuple(float(number) for number in row) for row in zip(*batch, strict=True)]


def loader(
    workers: int = 0, prefetch: int | None = None, persistent: bool = False, **options: Any
) -> DataLoader:
    options.setdefault("dataset", Noisy())
    if "batch_sampler" not in options:
        options = {"batch_size": 4, "shuffle": "sampler" not in options} | options
    return DataLoader(num_workers=workers, prefetch_factor=prefetch, persistent_workers=persistent, **options)


def data_of(loader: DataLoader, *, rank: int = 0, world_size: int = 1) -> Data:
    return Data(source_for(loader, seed=SEED, rank=rank, world_size=world_size))


def take(data: Data, count: int, of: Callable[[Any], Any] = rows) -> list[Any]:
    batches = [of(next(data)) for _ in range(count)]
    data.consume()
    return batches


def ids(batches: list[Rows]) -> list[int]:
    return [int(row[0]) for batch in batches for row in batch]


def main_generators() -> list[Any]:
    with np.printoptions(threshold=10_000):
        numpy_state = repr(np.random.get_state())  # noqa: NPY002
    return [random.getstate(), numpy_state, torch.get_rng_state().tolist()]


@functools.cache
def uninterrupted(drop_last: bool = False, count: int = 18) -> list[Rows]:
    """Three epochs of the shuffled loader, read in one go in the main process."""
    return take(data_of(loader(drop_last=drop_last)), count)


@pytest.mark.parametrize(("workers", "prefetch", "persistent"), WAYS)
def test_resumes_are_exact(workers: int, prefetch: int | None, persistent: bool) -> None:
    """Samples and what they draw at random are equal after several resumes, however they are fetched."""
    saved = data_of(loader()).capture()
    seen: list[Rows] = []
    for turns in (3, 4, 1, 8):  # ends inside epoch 0, in epoch 1, at a batch behind that, in epoch 2
        data = data_of(loader(workers, prefetch, persistent))
        data.restore(saved, [])
        seen += take(data, turns)
        next(data)  # drawn in a turn that never finished
        saved = data.capture()
        data.close()
    assert seen == uninterrupted()[:16]


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_position_in_every_epoch(drop_last: bool) -> None:
    """From each position, epoch edges and tails among them, the data goes on as if it had never been left."""
    whole = uninterrupted(drop_last)
    walk, again = data_of(loader(drop_last=drop_last)), data_of(loader(drop_last=drop_last))
    for batch in range(len(whole) - 1):
        again.restore(walk.capture(), [])
        assert take(again, 2) == whole[batch : batch + 2]
        take(walk, 1)


@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs(drop_last: bool) -> None:
    """Each epoch holds each sample once, shuffled anew, but for a tail that is dropped."""
    per_epoch = 5 if drop_last else 6
    whole = uninterrupted(drop_last)
    epochs = [ids(whole[epoch * per_epoch : (epoch + 1) * per_epoch]) for epoch in range(3)]
    for epoch in epochs:
        assert len(epoch) == len(set(epoch)) == (20 if drop_last else LENGTH)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_sample_differs_from_epoch_to_epoch() -> None:
    """A sample draws other numbers in every epoch, and other ones than its neighbours."""
    noise = [row[1:] for batch in uninterrupted() for row in batch]
    for column in zip(*noise, strict=True):
        assert len(set(column)) == len(column)


@pytest.mark.parametrize("workers", [0, 2])
def test_main_generators_are_left_alone(workers: int) -> None:
    """Reading, seeking and drawing a sampler's order change none of the generators that training draws from."""
    random.gauss(0, 1)
    np.random.randn()  # noqa: NPY002
    torch.randn(1)
    before = main_generators()
    for one in (loader(workers), loader(workers, sampler=WeightedRandomSampler([1.0] * 9, 9))):
        data = data_of(one)
        take(data, 7)
        data.seek(Position(2, 8), [])
        take(data, 1)
        data.close()
    assert main_generators() == before


def test_the_users_loader_stays_as_it_is() -> None:
    """The loader that was handed in is not iterated, and its samplers and generators don't move."""
    generator = torch.Generator().manual_seed(5)
    user = loader(generator=generator)
    before = dict(vars(user))
    state = generator.get_state()
    take(data_of(user), 9)
    assert vars(user) == before
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("workers", [0, 2])
def test_rollback_ends_the_workers_of_before(workers: int) -> None:
    """A live source goes back, skips, and has as many workers as before."""
    data = data_of(loader(workers))
    take(data, 1)
    saved = data.capture()
    assert take(data, 6) == uninterrupted()[1:7]
    old = torch.multiprocessing.active_children()
    data.restore(saved, [])
    assert take(data, 2) == uninterrupted()[1:3]
    assert len(torch.multiprocessing.active_children()) == workers
    assert not [child for child in old if child.is_alive()]
    data.close()
    assert not torch.multiprocessing.active_children()


@pytest.mark.parametrize("workers", [0, 2])
def test_skips(workers: int) -> None:
    """A skipped range is left out and the rest is what it would have been, sample by sample."""
    whole = [row for batch in uninterrupted() for row in batch]
    skips: list[Range] = [(8, 12), (21, 30), (37, 38)]
    data = data_of(loader(workers))
    data.leave_out(skips)
    places = [
        range(4),
        range(4, 8),
        range(12, 16),
        range(16, 20),
        range(30, 34),
        range(38, 42),
        range(42, 46),
    ]
    assert take(data, 7) == [[whole[place] for place in batch] for batch in places]
    assert data.position == Position(7, 46)
    data.close()


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_share_the_global_batch(workers: int, drop_last: bool) -> None:
    """Two ranks of batch 4 read the batches of one rank of batch 8: the same samples with the same draws."""
    one = take(data_of(loader(batch_size=8, drop_last=drop_last)), 6)
    ranks = [data_of(loader(workers, drop_last=drop_last), rank=rank, world_size=2) for rank in range(2)]
    parts = [take(data, 6) for data in ranks]
    joined = [first + second for first, second in zip(*parts, strict=True)]
    # One sample of the tail of 7 can't be shared by two ranks.
    assert joined == [batch[: len(batch) - len(batch) % 2] for batch in one]
    assert {data.source.batch_size for data in ranks} == {8}
    for data in ranks:
        data.close()


def test_the_world_may_change() -> None:
    """With the global batch kept, a run that goes on with other ranks reads on where it was."""
    whole = take(data_of(loader(batch_size=8, drop_last=True)), 5)
    first = [data_of(loader(batch_size=2, drop_last=True), rank=rank, world_size=4) for rank in range(4)]
    start = [take(data, 3) for data in first]
    second = [data_of(loader(drop_last=True), rank=rank, world_size=2) for rank in range(2)]
    for data in second:
        data.restore(first[0].capture(), [])
    rest = [take(data, 2) for data in second]
    seen = [[*chain(*parts)] for part in (start, rest) for parts in zip(*part, strict=True)]
    assert seen == whole


def test_a_stateful_dataloader_is_read_the_same_way() -> None:
    """The loader of torchdata over a map-style dataset is exact too, with the same order."""
    with pytest.warns(UserWarning, match="set_vital"):
        stock = StatefulDataLoader(Noisy(), batch_size=4, shuffle=True)
    data = data_of(stock)
    assert (data.source.kind, data.source.level) == ("StatefulDataLoader", "exact")
    assert take(data, 18) == uninterrupted()


def test_a_distributed_sampler_gives_way_to_our_split() -> None:
    """Its ranks count, also where they aren't the job's; its padding and interleaving don't."""
    samplers: list[DistributedSampler] = [
        DistributedSampler(Noisy(), num_replicas=2, rank=rank, shuffle=False) for rank in range(2)
    ]
    ranks = [data_of(loader(sampler=sampler), rank=3, world_size=8) for sampler in samplers]
    parts = [take(data, 6) for data in ranks]
    assert ids([[*chain(*both)] for both in zip(*parts, strict=True)]) == [*range(22), *range(22)]


class Buckets(Sampler):
    """Batches of unequal size over a shuffled sampler."""

    def __init__(self) -> None:
        self.sampler = RandomSampler(range(10), generator=torch.Generator())

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        return iter([order[:2], order[2:7], order[7:]])


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": SubsetRandomSampler(range(3, 15))},
        {"sampler": WeightedRandomSampler([1.0] * 12, 12, generator=torch.Generator())},
        {"batch_sampler": Buckets()},
    ],
)
def test_any_sampler_comes_back(options: dict) -> None:
    """From each position within three epochs of a sampler that is drawn, the same data follows."""
    whole = take(data_of(loader(**options)), 9)
    walk, again = data_of(loader(**options)), data_of(loader(**options))
    for start in range(8):
        again.restore(walk.capture(), [])
        assert take(again, 2) == whole[start : start + 2]
        take(walk, 1)


def test_batches_of_a_custom_batch_sampler_are_places() -> None:
    """Where a batch sampler of the user's decides, places are batches, and skips are too."""
    data = data_of(loader(batch_sampler=Buckets()))
    assert (data.source.unit, data.source.length, data.source.batch_size) == ("batch", 3, None)
    whole = take(data, 6)
    assert [len(batch) for batch in whole] == [2, 5, 3] * 2
    data.seek(Position(1, 1), [(2, 4)])
    assert take(data, 2) == [whole[1], whole[4]]
    assert data.position == Position(3, 5)


class Strided(Sampler):
    """Splits the data among ranks by itself."""

    def __init__(self, rank: int) -> None:
        self.rank, self.num_replicas = rank, 2

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[int]:
        order = list(range(20))
        random.shuffle(order)
        return iter(order[self.rank :: 2])


def test_a_sampler_that_splits_by_itself_goes_on_doing_so() -> None:
    """Its ranks read what it gives them, from one shuffle, with draws of their own."""
    ranks = [data_of(loader(sampler=Strided(rank)), rank=rank, world_size=2) for rank in range(2)]
    parts = [take(data, 3) for data in ranks]
    assert sorted(ids(parts[0] + parts[1])) == list(range(20))
    assert {data.source.unit for data in ranks} == {"batch"}
    noise = [row[1] for part in parts for batch in part for row in batch]
    assert len(set(noise)) == 20


def test_without_batching() -> None:
    """With batch_size=None each index is fetched alone, uncollated, with the same draws."""
    alone = take(data_of(loader(batch_size=None)), 5, of=tuple)
    assert alone == [row for batch in uninterrupted() for row in batch][:5]
    rows_at_once: Any = torch.arange(8)
    halves = BatchSampler(RandomSampler(range(8)), 4, drop_last=True)
    fast: DataLoader = DataLoader(rows_at_once, sampler=halves, batch_size=None)
    batches = take(data_of(fast), 4, of=torch.Tensor.tolist)
    assert [sorted(first + second) for first, second in (batches[:2], batches[2:])] == [list(range(8))] * 2


def test_random_collate_functions_come_back() -> None:
    """What a collate function draws, masks say, depends on its batch alone."""

    def masked(samples: list[list[float]]) -> Any:
        return [*default_collate(samples), torch.rand(len(samples))]

    plain = {"dataset": [[float(number)] for number in range(9)], "collate_fn": masked}
    for options in ({"collate_fn": masked}, plain):
        whole = take(data_of(loader(**options)), 4)
        assert len({row[-1] for batch in whole for row in batch}) == sum(map(len, whole))
        for workers in (0, 1):
            data = data_of(loader(workers, **options))
            data.seek(Position(2, 8), [])
            assert take(data, 2) == whole[2:]
            data.close()


def test_datasets_that_fetch_batches_whole() -> None:
    """`__getitems__` is used where it is more than a loop, seeded once a batch, and comes back too."""
    for dataset in (Whole(), Subset(Whole(), range(20))):
        whole = take(data_of(loader(dataset=dataset)), 4)
        assert whole != uninterrupted()[:4]
        data = data_of(loader(1, dataset=dataset))
        data.seek(Position(2, 8), [])
        assert take(data, 2) == whole[2:]
        data.close()
    assert take(data_of(loader(dataset=Subset(Noisy(), range(LENGTH)))), 4) == uninterrupted()[:4]


def test_the_users_code_sees_its_own_dataset() -> None:
    """In a worker `get_worker_info().dataset` is the user's, in its init function and in its samples."""

    def start(worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.length = 100 + worker_id  # type: ignore[attr-defined]

    class Telling(Noisy):
        def __getitem__(self, index: int) -> list[float]:
            info = get_worker_info()
            assert info is not None
            return [index, self.length, info.dataset is self, info.num_workers]

    data = data_of(loader(2, dataset=Telling(), worker_init_fn=start))
    assert [row[1:] for batch in take(data, 2) for row in batch] == [(100.0, 1.0, 2.0)] * 4 + [
        (101.0, 1.0, 2.0)
    ] * 4
    data.close()


def test_an_error_in_a_worker_reaches_the_loop() -> None:
    """A sample that fails raises its own error, and is tried again at the next call by new workers."""

    class Failing(Noisy):
        def __getitem__(self, index: int) -> list[float]:
            raise LookupError(f"sample {index} is broken")

    data = data_of(loader(1, dataset=Failing(), shuffle=False))
    for _ in range(2):
        with pytest.raises(LookupError, match="sample 0 is broken"):
            next(data)
    assert not torch.multiprocessing.active_children()


def test_workers_can_be_spawned() -> None:
    """What goes to a worker can be pickled, as contexts other than fork need it."""
    source = data_of(loader()).source
    assert isinstance(source, DataLoaderSource)
    pick = next(source._picks(0, []))
    dataset = pickle.loads(pickle.dumps(source._dataset))
    state = main_generators()
    assert rows(default_collate(dataset.__getitems__(pick))) == uninterrupted()[0]
    random.setstate(state[0])


def test_options_reach_the_new_loader() -> None:
    """Workers, prefetch, timeout, context and collate function are the user's."""
    user = loader(2, 3, timeout=7, multiprocessing_context="spawn", collate_fn=list, pin_memory=True)
    source = data_of(user).source
    assert isinstance(source, DataLoaderSource)
    built = source._loader_from(0, [])
    for option in (
        "num_workers",
        "prefetch_factor",
        "timeout",
        "multiprocessing_context",
        "collate_fn",
        "pin_memory",
    ):
        assert getattr(built, option) == getattr(user, option), option
    assert type(built) is DataLoader


def test_a_dataset_without_randomness_is_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a tensor cost no seeding, also through torch's own combinations; a dataset of the user's does."""
    seeds: list[int] = []
    monkeypatch.setattr("surefoot.torch.dataloader.seed_main", seeds.append)
    tensors = TensorDataset(torch.arange(8.0))
    combined: list[Dataset] = [
        tensors,
        Subset(tensors, range(8)),
        ConcatDataset([tensors, tensors]),
        StackDataset(tensors),
    ]
    for dataset in combined:
        take(data_of(loader(dataset=dataset)), 1, of=list)
    take(data_of(loader(dataset=list(range(8)))), 1, of=list)
    assert seeds == []
    take(data_of(loader(dataset=Subset(Plain(), range(8)))), 1, of=list)
    assert len(seeds) == 4


def test_an_iterable_dataset_is_drawn() -> None:
    """A plain loader over an iterable dataset is drawn and discarded up to the position."""
    data = data_of(DataLoader(Streamed(), batch_size=2))
    assert (data.source.kind, data.source.level) == ("DataLoader", "drawn")
    whole = take(data, 7)
    again = data_of(DataLoader(Streamed(), batch_size=2))
    again.restore({**data.capture(), "batch": 5, "sample": 5}, [])
    before = main_generators()
    assert take(again, 2) == whole[5:]
    assert main_generators() == before


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:'set_vital'")
def test_a_stateful_dataloader_over_an_iterable_keeps_its_order(workers: int) -> None:
    """State of torchdata's brings the samples back: within an epoch, at its end, into a live loader."""

    def stateful() -> Data:
        return data_of(StatefulDataLoader(Streamed(), batch_size=2, num_workers=workers))

    data = stateful()
    assert (data.source.kind, data.source.level) == ("StatefulDataLoader", "order_only")
    assert ids(take(data, 2)) == [0, 1, 2, 3]
    saved = data.capture()
    assert ids(take(data, 2)) == [4, 5, 0, 1]
    for again in (stateful(), data):
        again.restore(saved, [])
        assert again.capture() == saved
        assert ids(take(again, 3)) == [4, 5, 0, 1, 2, 3]
    take(data, 1)
    at_end = stateful()
    at_end.restore(data.capture(), [])
    assert ids(take(at_end, 1)) == [0, 1]


def test_loaders_of_another_make_are_drawn() -> None:
    """A loader class that iterates in its own way, or a sampler without a length, is drawn as it is."""

    class Own(DataLoader):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield [batch]

    class Endless(Sampler):
        def __iter__(self) -> Iterator[int]:
            while True:
                yield 1

    own = data_of(Own(Plain(), batch_size=4))
    assert own.source.level == "drawn"
    assert next(own)[0].tolist() == [0, 1, 2, 3]
    assert data_of(DataLoader(Plain(), sampler=Endless(), batch_size=2)).source.level == "drawn"


def test_functions_draw_from_torch_too() -> None:
    """Under torch a function of the place finds torch's generator seeded as well."""

    def draw(place: int) -> float:
        return float(torch.rand(()))

    whole = take(Data(source_for(draw, seed=SEED)), 5, of=float)
    data = Data(source_for(draw, seed=SEED))
    data.seek(Position(3, 3), [])
    before = main_generators()
    assert take(data, 2, of=float) == whole[3:]
    assert len(set(whole)) == 5
    assert main_generators() == before


def test_description() -> None:
    """A loader tells its unit, length, global batch and fingerprint."""
    data = data_of(loader(), rank=1, world_size=2)
    assert isinstance(data.source, Source)
    assert data.description == {
        "kind": "DataLoader",
        "unit": "sample",
        "length": 23,
        "level": "exact",
        "fingerprint": "Noisy[23] shuffled",
        "batch_size": 8,
    }


def test_fingerprints() -> None:
    """A fingerprint changes with type, length, the dataset's own word and its elements, not with strides."""
    big = torch.arange(300_000, dtype=torch.bfloat16).reshape(1000, 300)
    other = big.clone()
    other[::3] += 1000
    named, bare = Noisy(), Noisy(5)
    named._fingerprint = "9f3a"  # type: ignore[attr-defined]
    words = [
        fingerprint_of(TensorDataset(big)),
        fingerprint_of(TensorDataset(other)),
        fingerprint_of(TensorDataset(big.float())),
        fingerprint_of(Subset(TensorDataset(big), range(7))),
        fingerprint_of(big.float().numpy()),
        fingerprint_of(np.zeros((0, 3))),
        fingerprint_of(named),
        fingerprint_of(bare),
    ]
    assert len(set(words)) == len(words)
    assert words[6:] == ["Noisy[23]:9f3a", "Noisy[5]"]
    assert words[0] == fingerprint_of(TensorDataset(big.t().contiguous().t()))


@pytest.mark.chaos
def test_workers_die_with_their_process() -> None:
    """When the training process is killed its loader workers end by themselves, within torch's own 5 s."""
    alive, inherited = os.pipe()
    training = os.fork()
    if training == 0:
        try:
            os.close(alive)
            next(data_of(loader(2)))
        finally:
            os.kill(os.getpid(), 9)
    os.close(inherited)
    os.waitpid(training, 0)
    assert select.select([alive], [], [], 30)[0], "a worker still holds the pipe"
    assert os.read(alive, 1) == b""
    os.close(alive)
