"""Reads a PyTorch `DataLoader` from any position, every sample as it was the first time.

The user's loader is a description and is never iterated or changed: from each position that is sought, a
new loader is built with its dataset, workers, collate function and so on, and with an endless batch sampler
of ours. What a worker is to fetch comes with the seed for it, which depends on the sample's place alone:
not on the workers, on what they fetched before, on the ranks, or on how often the run was restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
)
from torch.utils.data._utils import worker as torch_worker
from xxhash import xxh3_64_hexdigest

from surefoot.core.seeds import mix
from surefoot.core.skips import Range
from surefoot.loop import sources
from surefoot.loop.data import Position, Source
from surefoot.loop.sources import StatefulSource
from surefoot.torch.nested import pack, unpack
from surefoot.torch.samplers import reading_of
from surefoot.torch.seeding import generators_of, seed_main, seed_one, seeded

_Pick = tuple[int, int, Any]
"""What one `next` fetches: a seed, the number of the first sample under that seed, the dataset's indices."""

_STOCK_ITER = {"torch.utils.data.dataloader", "torchdata.stateful_dataloader.stateful_dataloader"}
_HASHED = 1024


def source_for(data: Any, *, seed: int, rank: int = 0, world_size: int = 1) -> Source:
    """Return a source for whatever a PyTorch script reads its batches from.

    `rank` and `world_size` count the ranks that load different data. Raises `ConfigError` for what
    can't be read batch by batch.
    """
    if isinstance(data, DataLoader) and _can_be_rebuilt(data):
        return DataLoaderSource(data, seed=seed, rank=rank, world_size=world_size)
    source = sources.source_for(data, seed=seed, rank=rank, world_size=world_size, seeded=seeded)
    return PackedSource(data, seed=seed, rank=rank, seeded=seeded) if type(source) is StatefulSource else source


class PackedSource(StatefulSource):
    """An iterable whose state may hold tensors and arrays."""

    def capture(self) -> dict[str, Any]:
        """Return the iterable's state, packed, and how many batches it has given."""
        captured = super().capture()
        return {**captured, "state": pack(captured["state"], "state")}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Load a state. Raises `StateMismatch` if there is none."""
        state = {"state": unpack(plain["state"], "state")} if "state" in plain else {}
        super().restore({**plain, **state})


class DataLoaderSource:
    """A `DataLoader` over a map-style dataset; torchdata's `StatefulDataLoader` too.

    `batch_size` of the loader is a rank's; the global batch is as many samples from every rank. A dataset
    that fetches batches whole (`__getitems__`) is seeded once per rank's batch instead of per sample.
    """

    level = "exact"

    def __init__(self, loader: DataLoader[Any], *, seed: int, rank: int = 0, world_size: int = 1) -> None:
        reading = reading_of(loader, seed=mix(seed, *b"order"), rank=rank, world_size=world_size)
        self.kind = type(loader).__name__
        self.unit = reading.unit
        self.length = reading.order.length
        self.batch_size = reading.batches.batch_size if self.unit == "sample" else None
        self.fingerprint = f"{fingerprint_of(loader.dataset)} {reading.order.word}"
        self._loader = loader
        self._seed = seed
        self._order = reading.order
        self._batches = reading.batches
        self._rank = reading.rank
        self._dataset = _Seeded(loader.dataset, loader.collate_fn)

    def seek(self, position: Position, skips: Sequence[Range]) -> Generator[tuple[Any, Position], None, None]:
        """Yield batches from a position on, over all epochs."""
        loader = self._loader_from(position.sample, skips)
        fetched_here = not loader.num_workers and self._dataset.may_draw
        batch, sample = position.batch, position.sample
        iterator: Any = iter(loader)
        try:
            while True:
                with seeded(self._seed) if fetched_here else nullcontext():
                    item = next(iterator)
                batch, sample = batch + 1, self._batches.after(sample, skips)[1]
                yield item, Position(batch, sample)
        finally:
            if loader.num_workers:
                iterator._shutdown_workers()  # noqa: SLF001, else they live until the last reference is gone

    def capture(self) -> dict[str, Any]:
        """Return {}: a position is all it needs."""
        return {}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Take up nothing."""

    def _loader_from(self, sample: int, skips: Sequence[Range]) -> DataLoader[Any]:
        user = self._loader
        # An own generator, since a loader draws a seed for its workers when it begins.
        generator = torch.Generator().manual_seed(mix(self._seed, *b"workers", sample, self._rank))
        options: dict[str, Any] = {}
        if user.num_workers:
            options = {
                "num_workers": user.num_workers,
                "prefetch_factor": user.prefetch_factor,
                "timeout": user.timeout,
                "multiprocessing_context": user.multiprocessing_context,
                "worker_init_fn": _WorkerStart(user.worker_init_fn),
                # One iterator serves all epochs, so they are; saying so makes torch end the thread that
                # pins memory before the workers when the process exits.
                "persistent_workers": True,
            }
        if user.pin_memory and user.pin_memory_device:
            options["pin_memory_device"] = user.pin_memory_device
        picks = _Picks(lambda: self._picks(sample, skips))
        if user.batch_sampler is None:
            options |= {"batch_size": None, "sampler": picks}
        else:
            options["batch_sampler"] = picks
        return DataLoader(
            self._dataset,
            collate_fn=user.collate_fn,
            pin_memory=user.pin_memory,
            generator=generator,
            **options,
        )

    def _picks(self, sample: int, skips: Sequence[Range]) -> Iterator[_Pick]:
        """Yield what this rank fetches from a sample on, without end."""
        while True:
            start, sample = self._batches.after(sample, skips)
            if self.unit == "batch":
                # Ranks may read other batches at the same place: their samples aren't the same either.
                yield mix(self._seed, self._rank, start), 0, self._order.entries(start, sample)[0]
                continue
            first, behind = self._batches.part((start, sample), self._rank)
            indices = self._order.entries(first, behind)
            yield self._seed, first, indices[0] if self._loader.batch_sampler is None else indices


class _Picks:
    """A batch sampler that begins at the same place each time: a loader calls `iter` more than once."""

    def __init__(self, begin: Callable[[], Iterator[_Pick]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[_Pick]:
        return self._begin()


class _Seeded(Dataset[Any]):
    """The user's dataset, with the generators seeded before each sample: `mix(seed, its place)`."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        self.dataset = dataset
        self._per_sample = not (_draws_nothing(dataset) or _fetches_whole(dataset))
        # Seeding takes some 8 µs a sample, which is much for a row of a tensor.
        self.may_draw = not (_draws_nothing(dataset) and collate in (default_collate, default_convert))

    def __getitem__(self, pick: _Pick) -> Any:
        seed, first, index = pick
        self._seed(mix(seed, first))
        return self.dataset[index]

    def __getitems__(self, pick: _Pick) -> Any:
        seed, first, indices = pick
        if not self._per_sample:
            self._seed(mix(seed, first))
            return self._fetch(indices)
        samples = []
        for place, index in enumerate(indices, first):
            self._seed(mix(seed, place))
            samples.append(self.dataset[index])
        return samples

    def _fetch(self, indices: Any) -> Any:
        whole = getattr(self.dataset, "__getitems__", None)
        return whole(indices) if whole else [self.dataset[index] for index in indices]

    def _seed(self, seed: int) -> None:
        if self.may_draw:
            seed_main(seed)
            # Looked for each time: a worker's init function may have put a new one there.
            for n, generator in enumerate(_held_within(self.dataset)):
                seed_one(generator, mix(seed, n))


class _WorkerStart:
    """What a worker does first: show the user's code its own dataset, then call its init function."""

    def __init__(self, user_init: Callable[[int], None] | None) -> None:
        self._user_init = user_init

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, _Seeded)
        torch_worker._worker_info = type(info)(  # noqa: SLF001, the only way to tell get_worker_info
            id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=info.dataset.dataset
        )
        if self._user_init is not None:
            self._user_init(worker_id)


def fingerprint_of(dataset: Any) -> str:
    """Return a word that changes when the data does, as far as can be told cheaply.

    Type, length, what the dataset calls its fingerprint (`fingerprint`, `_fingerprint`), and for tensors
    and arrays a hash of some of the elements.
    """
    length = len(dataset) if hasattr(dataset, "__len__") else "?"
    name = f"{type(dataset).__name__}[{length}]"
    inner = _passed_on_by(dataset)
    if inner:
        return f"{name}({', '.join(fingerprint_of(part) for part in inner)})"
    for attribute in ("fingerprint", "_fingerprint"):
        told = getattr(dataset, attribute, None)
        if isinstance(told, str | int):
            return f"{name}:{told}"
    arrays = dataset.tensors if isinstance(dataset, TensorDataset) else [dataset]
    hashes = [_hash_of(array) for array in arrays if isinstance(array, torch.Tensor | np.ndarray)]
    return ":".join([name, *hashes])


def _hash_of(array: Any) -> str:
    """Return a hash of dtype, shape and at most 1,024 elements, always the same ones."""
    if isinstance(array, torch.Tensor):
        count, shape = array.numel(), tuple(array.shape)
    else:
        count, shape = array.size, array.shape
    places = np.arange(count)
    if count > _HASHED:
        # Scattered, not evenly spaced: a stride might fall on one column, which may be padding.
        places = np.sort(np.random.RandomState(count & 0xFFFF_FFFF).randint(count, size=_HASHED))
    where = np.unravel_index(places, shape)
    if isinstance(array, torch.Tensor):
        elements = array.detach()[tuple(torch.from_numpy(axis) for axis in where)].cpu()
        raw = elements.view(torch.uint8).numpy().tobytes()
    else:
        raw = array[where].tobytes()
    return xxh3_64_hexdigest(f"{array.dtype}{shape}".encode() + raw)


def _can_be_rebuilt(loader: DataLoader[Any]) -> bool:
    if isinstance(loader.dataset, IterableDataset) or type(loader).__iter__.__module__ not in _STOCK_ITER:
        return False
    try:
        len(loader)
    except TypeError:  # a sampler without a length
        return False
    return True


def _passed_on_by(dataset: Any) -> list[Any]:
    """Return the datasets whose samples one of torch's own combinations passes on; [] for any other."""
    if type(dataset) is Subset:
        return [dataset.dataset]
    if type(dataset) is ConcatDataset:
        return list(dataset.datasets)
    if type(dataset) is StackDataset:
        parts = dataset.datasets
        return list(parts.values() if isinstance(parts, dict) else parts)
    return []


def _draws_nothing(dataset: Any) -> bool:
    inner = _passed_on_by(dataset)
    if inner:
        return all(_draws_nothing(part) for part in inner)
    return type(dataset) in {TensorDataset, torch.Tensor, np.ndarray, list, tuple, range}


def _fetches_whole(dataset: Any) -> bool:
    if not callable(getattr(dataset, "__getitems__", None)):
        return False
    inner = _passed_on_by(dataset)
    return not inner or any(_fetches_whole(part) for part in inner)


def _held_within(dataset: Any) -> list[Any]:
    held = list(generators_of(dataset).values())
    for part in _passed_on_by(dataset):
        held += _held_within(part)
    return held
