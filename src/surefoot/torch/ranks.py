"""The ranks of a torch.distributed job: one small sum a boundary, and bytes from rank 0.

Everything runs on the job's default group: a communicator of our own would take memory on every device,
and could deadlock with the script's. No device is waited for where a value is logged or a sum is
started: the sum runs on a stream of its own and ends in host memory behind an event, so that reading it
a turn later waits for that sum and for nothing that was queued since.

A float that isn't finite is the caller's to leave out. Of a device scalar nobody knows it before it is
read, so it goes into the sum as it is and makes that one number of the result non-finite on all ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from surefoot.errors import ConfigError, RanksError
from surefoot.loop.ranks import Done, Pending, Scalar
from surefoot.torch.tensors import accelerator, flat, is_dtensor

DEADLINE_S = 600.0

_SLICE_S = 1.0
"""Longest wait within one call into torch; between two of them Python runs its signal handlers."""
_POLL_S = 1e-4
_CPU = torch.device("cpu")


def ranks(*, deadline_s: float = DEADLINE_S, who_is_missing: Callable[[], str] = str) -> TorchRanks:
    """Return the ranks of this job.

    Raises `ConfigError` where a launcher started several processes that have not joined a group yet.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and not _joined():
        raise ConfigError(
            f"a launcher started {started} processes (WORLD_SIZE), but torch.distributed is not initialized, "
            "so each would train on its own into one run directory; call init_process_group before Run(...)"
        )
    return TorchRanks(deadline_s=deadline_s, who_is_missing=who_is_missing)


class TorchRanks:
    """The default group, or this process alone where there is none.

    `who_is_missing` is asked once a deadline has passed, and returns the ranks that did not come, "" if
    nobody knows.
    """

    def __init__(self, *, deadline_s: float = DEADLINE_S, who_is_missing: Callable[[], str] = str) -> None:
        self._grouped = _joined()
        self.rank = dist.get_rank() if self._grouped else 0
        self.world_size = dist.get_world_size() if self._grouped else 1
        # Without a launcher's word the rank itself is at least unique on its node.
        self.local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", self.rank)))
        self._device = _group_device() if self._grouped else None
        self._patience = _Patience(deadline_s, who_is_missing)
        self._stream: Any = None

    def read(self, value: Scalar) -> Scalar:
        """Return a logged number as it is now: a float, or for a device scalar a copy on its device.

        The copy is made on the current stream, because a captured graph overwrites its outputs at the
        next replay. A DTensor is made whole first: all its ranks have to log it.
        """
        if not isinstance(value, Tensor):
            return float(value)
        value = value.detach()
        if is_dtensor(value):
            value = value.full_tensor()
        if value.numel() != 1:
            raise ConfigError(
                f"run.log was given a tensor of shape {list(value.shape)}, and takes single numbers: log its "
                "mean or norm, or its elements by name"
            )
        return float(value) if value.is_cpu else value.reshape(()).to(torch.float64, copy=True)

    def start_sum(self, vector: Sequence[Scalar]) -> Pending:
        """Start a sum. Each owns its memory, so the next may start before the last was read."""
        scalars = {place: value for place, value in enumerate(vector) if isinstance(value, Tensor)}
        if self._device is None and not scalars:
            return Done(vector)
        device = self._device or next((value.device for value in scalars.values()), _CPU)
        total = torch.tensor(
            [0.0 if place in scalars else float(value) for place, value in enumerate(vector)],
            dtype=torch.float64,
        )
        if device.type != "cpu":
            return self._start_on_device(total, scalars, device)
        for place, value in scalars.items():
            total[place] = value  # gloo works in host memory: there, a device scalar is waited for
        work = dist.all_reduce(total, async_op=True) if self._grouped else None
        return _OnHost(total, work, self._patience)

    def broadcast(self, data: bytes | None) -> bytes:
        """Return rank 0's bytes on every rank: their number first, then they themselves."""
        if self.rank == 0 and data is None:
            raise ValueError("rank 0 has to give the bytes to broadcast")
        given = data if data is not None and self.rank == 0 else b""
        if self._device is None:
            return given
        length = bytearray(len(given).to_bytes(8, "little"))
        self._share(length)
        received = bytearray(given or int.from_bytes(length, "little"))
        if received:
            self._share(received)
        return bytes(received)

    def _share(self, data: bytearray) -> None:
        """Overwrite the bytes with rank 0's."""
        host = flat(memoryview(data), torch.uint8)
        if self._device == _CPU:
            _OnHost(host, dist.broadcast(host, src=0, async_op=True), self._patience).wait()
            return
        on_device = host.to(self._device)
        dist.broadcast(on_device, src=0, async_op=True).wait()  # the stream waits, the host doesn't
        arrived = _to_host(on_device, self._patience)
        arrived.wait()
        host.copy_(arrived.values)

    def _start_on_device(self, total: Tensor, scalars: Mapping[int, Tensor], device: torch.device) -> Pending:
        module = torch.get_device_module(device)
        if self._stream is None:
            self._stream = module.Stream(device)
        self._stream.wait_stream(module.current_stream(device))  # where the scalars are computed
        with module.stream(self._stream):
            on_device = total.pin_memory().to(device, non_blocking=True)
            for place, value in scalars.items():
                on_device[place] = value
                value.record_stream(self._stream)
            if self._grouped:
                dist.all_reduce(on_device, async_op=True).wait()  # the stream waits, the host doesn't
            return _to_host(on_device, self._patience)


class _Patience:
    """How long to wait for the other ranks."""

    def __init__(self, deadline_s: float, who_is_missing: Callable[[], str]) -> None:
        self._deadline_s = deadline_s
        self._who_is_missing = who_is_missing

    def wait(self, came: Callable[[float], bool]) -> None:
        """Call `came(seconds)`, which waits that long at most, until it is true."""
        give_up = time.monotonic() + self._deadline_s
        while not came(min(_SLICE_S, self._deadline_s)):
            if time.monotonic() >= give_up:
                raise RanksError(
                    f"not every rank came to this boundary within {self._deadline_s:g} s; missing: "
                    f"{self._who_is_missing() or 'unknown'}. All ranks have to take the same turns: see where "
                    "the missing ones stand (surefoot status, their stacks)"
                )


class _OnHost:
    """A collective over host memory."""

    def __init__(self, values: Tensor, work: Any, patience: _Patience) -> None:
        self.values = values
        self._work = work
        self._patience = patience

    def wait(self) -> None:
        """Wait for the collective, if there is one."""
        if self._work is not None:
            self._patience.wait(self._came)

    def result(self) -> list[float]:
        """Wait for the sum and return it."""
        self.wait()
        return self.values.tolist()

    def _came(self, seconds: float) -> bool:
        try:
            self._work.wait(timedelta(seconds=seconds))
        except RuntimeError as error:
            if not self._work.is_completed():  # only this slice of the wait is over
                return False
            raise RanksError(
                f"a rank went away while the others waited for it at a boundary: {error}; what it died of "
                "stands in its own log (surefoot logs)"
            ) from error
        return True


class _OnDevice:
    """Values on their way into pinned host memory; the event stands behind the copy."""

    def __init__(self, values: Tensor, event: Any, patience: _Patience) -> None:
        self.values = values
        self._event = event
        self._patience = patience

    def wait(self) -> None:
        """Wait for the copy."""
        self._patience.wait(self._came)

    def result(self) -> list[float]:
        """Wait for the sum and return it."""
        self.wait()
        return self.values.tolist()

    def _came(self, seconds: float) -> bool:
        if not self._event.query():
            time.sleep(min(seconds, _POLL_S))
        return bool(self._event.query())


def _to_host(on_device: Tensor, patience: _Patience) -> _OnDevice:
    """Start copying to the host on the current stream."""
    host = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
    host.copy_(on_device, non_blocking=True)
    event = torch.get_device_module(on_device.device).Event()
    event.record()
    return _OnDevice(host, event, patience)


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def _group_device() -> torch.device:
    """Return the device whose memory the default group's collectives take."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
    accelerated = torch.accelerator.current_accelerator()
    on_cpu = (
        accelerated is None or accelerator() is None or backends.get(accelerated.type) == backends.get("cpu")
    )
    if accelerated is None or (on_cpu and "cpu" in backends):
        return _CPU
    return torch.device(accelerated.type, torch.accelerator.current_device_index())
