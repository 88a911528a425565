"""Several ranks of gloo on one machine, forked from a process that has imported torch once.

A test hands over a function of its module; each rank runs it in a process group of its own and returns
something plain. A rank that raises, dies or stays silent fails the test with what it said.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

TIMEOUT_S = 100.0
_FORKED = multiprocessing.get_context("forkserver")


def start() -> None:
    """Start the process that ranks are forked from; it stays for the whole session."""
    _FORKED.set_forkserver_preload(["torch.distributed.fsdp"])
    forkserver.ensure_running()


def run(
    task: Callable[..., Any], world_size: int, folder: Path, *args: Any, dead: tuple[int, ...] = ()
) -> list[Any]:
    """Return what `task(*args)` returned on each rank, None for those that are meant to die of it."""
    ours = []
    for rank in range(world_size):
        mine, its = _FORKED.Pipe()
        store = str(folder / "store")
        _FORKED.Process(target=_rank, args=(its, task, rank, world_size, store, args), daemon=True).start()
        its.close()
        ours.append(mine)
    try:
        return [None if rank in dead else _answer(rank, pipe) for rank, pipe in enumerate(ours)]
    finally:
        for pipe in ours:
            pipe.close()


def _answer(rank: int, pipe: Connection) -> Any:
    assert pipe.poll(TIMEOUT_S), f"rank {rank} said nothing for {TIMEOUT_S} s"
    error, value = pipe.recv()
    assert error is None, f"rank {rank}:\n{error}"
    return value


def _rank(
    pipe: Connection, task: Callable[..., Any], rank: int, world_size: int, store: str, args: tuple[Any, ...]
) -> None:
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            store=FileStore(store, world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=TIMEOUT_S / 2),
        )
        pipe.send((None, task(*args)))
    except BaseException:  # noqa: BLE001 - whatever it was, the test is to show it
        pipe.send((traceback.format_exc(), None))
    pipe.poll(TIMEOUT_S)  # until all have answered: another rank may still be in a collective with this one
    os._exit(0)
