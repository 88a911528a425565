"""Sums and broadcasts over the default group, and what happens when a rank doesn't come."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.unit.torch import gang
from torch._C._distributed_c10d import HashStore

from surefoot.errors import ConfigError, RanksError
from surefoot.loop.ranks import Ranks
from surefoot.torch.ranks import TorchRanks, _OnDevice, _Patience, ranks


def sums_and_bytes() -> dict[str, Any]:
    group: Ranks = ranks()
    rank = group.rank
    first = group.start_sum([rank + 1.0, 0.5, float(1 << 53) if rank == 0 else 0.0])
    second = group.start_sum([10.0 * rank])
    tensor = group.start_sum([torch.tensor(2.0 + rank), math.nan if rank else 1.0, 1.0])
    return {
        "sums": [second.result(), first.result(), first.result()],
        "tensor": tensor.result(),
        "bytes": [
            group.broadcast(b"order" * 1000 if rank == 0 else None),
            group.broadcast(b"" if rank == 0 else None),
        ],
        "who": (group.rank, group.world_size),
    }


@pytest.mark.usefixtures("forked")
def test_sums_and_bytes_are_the_same_on_all(tmp_path: Path) -> None:
    """Sums may overlap, are exact in float64, and are read in any order; bytes are rank 0's."""
    answers = gang.run(sums_and_bytes, 3, tmp_path)
    for rank, answer in enumerate(answers):
        assert answer["sums"] == [[30.0], [6.0, 1.5, float(1 << 53)], [6.0, 1.5, float(1 << 53)]]
        assert answer["tensor"][::2] == [9.0, 3.0]
        assert math.isnan(answer["tensor"][1])
        assert answer["bytes"] == [b"order" * 1000, b""]
        assert answer["who"] == (rank, 3)


def absent() -> str:
    if dist.get_rank() == 1:
        return "never came"
    group = TorchRanks(deadline_s=0.05, who_is_missing=lambda: "rank 1 (phase eval)")
    with pytest.raises(RanksError) as raised:
        group.start_sum([1.0]).result()
    return str(raised.value)


@pytest.mark.usefixtures("forked")
def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    """At the deadline the error says how long was waited and who is missing (case D24)."""
    text = gang.run(absent, 2, tmp_path)[0]
    assert "within 0.05 s" in text
    assert "missing: rank 1 (phase eval)" in text


def take_turns(group: TorchRanks) -> None:
    while group.start_sum([1.0]).result():
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def killed() -> str:
    with pytest.raises(RanksError, match="a rank went away"):
        take_turns(ranks())
    return "noticed"


@pytest.mark.usefixtures("forked")
def test_a_rank_that_dies_ends_the_wait(tmp_path: Path) -> None:
    """The survivors learn of a killed rank by an error, long before the deadline."""
    assert gang.run(killed, 2, tmp_path, dead=(1,)) == ["noticed", None]


def norm_of_shards() -> float:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    spread = distribute_tensor(torch.tensor([3.0, 4.0]), mesh, [Shard(0)])
    return float(ranks().read(torch.linalg.vector_norm(spread)))


@pytest.mark.usefixtures("forked")
def test_a_spread_norm_is_made_whole(tmp_path: Path) -> None:
    """A norm over shards, as FSDP's clipping returns it, is read as the whole norm on every rank."""
    assert gang.run(norm_of_shards, 2, tmp_path) == [5.0, 5.0]


def test_numbers_are_read_as_they_are_now() -> None:
    """Numbers and CPU tensors become floats at once, so that a buffer written to later does no harm."""
    alone = ranks()
    loss = torch.tensor([1.5], requires_grad=True)
    assert alone.read(loss) == 1.5
    assert type(alone.read(torch.tensor(2, dtype=torch.int32))) is float
    assert alone.read(3) == 3.0


def test_only_single_numbers_are_read() -> None:
    """A vector is refused with its shape."""
    with pytest.raises(ConfigError, match=r"shape \[2, 3\]"):
        ranks().read(torch.zeros(2, 3))


def test_one_process_is_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a group a sum is the vector, bytes come back, and the launcher's local rank is kept."""
    monkeypatch.setenv("LOCAL_RANK", "3")
    alone = ranks()
    assert (alone.rank, alone.world_size, alone.local_rank) == (0, 1, 3)
    assert alone.start_sum([1.0, torch.tensor(2.0)]).result() == [1.0, 2.0]
    assert alone.broadcast(b"order") == b"order"
    with pytest.raises(ValueError, match="rank 0"):
        alone.broadcast(None)


def test_processes_that_did_not_join_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes without a group would write one run directory each on its own."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="init_process_group"):
        ranks()


class Event:
    """Stands in for a device's event: the copy before it is done when it has been asked often enough."""

    def __init__(self, after: int, values: torch.Tensor) -> None:
        self.left = after
        self.values = values

    def query(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.values.fill_(7.0)
        return self.left <= 0


def test_a_device_sum_is_read_behind_its_event() -> None:
    """Values in pinned memory are looked at only when the event behind the copy has passed."""
    values = torch.zeros(2, dtype=torch.float64)
    pending = _OnDevice(values, Event(5, values), _Patience(60.0, str))
    assert pending.result() == [7.0, 7.0]


def test_a_device_sum_has_a_deadline() -> None:
    """A device that never gets there is told like a rank that never comes."""
    values = torch.zeros(1)
    with pytest.raises(RanksError, match="missing: unknown"):
        _OnDevice(values, Event(1 << 30, values), _Patience(0.01, str)).result()


@pytest.mark.gpu
@pytest.mark.parametrize("grouped", [False, True])
def test_a_device_scalar_is_summed_without_a_wait(grouped: bool) -> None:
    """With work queued on the device neither `read` nor `start_sum` waits; the value is the logged one."""
    if grouped:
        dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    try:
        one = ranks()
        loss = torch.full((), 2.5, device="cuda")
        one.start_sum([loss]).result()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(1 << 28)
            logged = one.read(loss)
            loss.fill_(9.0)
            pending = one.start_sum([1.0, logged])
            busy = not torch.cuda.current_stream().query()
        assert busy
        assert pending.result() == [1.0, 2.5]
        assert one.broadcast(b"order") == b"order"
    finally:
        if grouped:
            dist.destroy_process_group()
