"""Trains a tiny model and writes down all it does: what the campaign of kills breaks (`make soak`).

    python -m surefoot.chaos.campaign --seed 7              # one trial of it

A turn takes some milliseconds, and has in it what is easily lost at a restart: dropout, batch norm, a
random draw in the loader, moments, a schedule, a value of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch._dynamo  # an optimizer's first step imports it, which takes a second: the warm process has it
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

import surefoot
import surefoot.run
import surefoot.torch.wired  # as torch._dynamo

WIDTH = 192


class Noise(Dataset[tuple[Tensor, Tensor]]):
    """Samples that know their number, and are drawn anew each time."""

    def __len__(self) -> int:
        return 52

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor(index), torch.randn(16)


def tiny() -> nn.Module:
    """Return a model of some 40,000 parameters."""
    narrow, wide = nn.Linear(16, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(
        narrow, nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.1), wide, nn.Tanh(), nn.Linear(WIDTH, 1)
    )


def digest(model: nn.Module) -> str:
    """Return a hash of all weights and buffers."""
    values = model.state_dict().values()
    return hashlib.sha1(b"".join(v.numpy().tobytes() for v in values), usedforsecurity=False).hexdigest()


def trace(file: str, *words: object) -> None:
    """Append a line to the trace, whole or not at all."""
    line = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(line, f"{' '.join(map(str, words))}\n".encode())
    os.close(line)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train a tiny model.")
    parser.add_argument("--dir", type=Path, default="runs/tiny", help="the run's directory (%(default)s)")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--trace", metavar="FILE", default=os.devnull)
    parser.add_argument("--rendezvous", default="env://", help="where the ranks meet (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="of the loader")
    parser.add_argument("--slots", type=int, default=3, help="memory snapshots per rank")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds that a turn rests (%(default)s)")
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    return parser.parse_args()


def main() -> None:
    """Train."""
    args = arguments()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "0"))
    if world_size:
        dist.init_process_group("gloo", init_method=args.rendezvous, rank=rank, world_size=world_size)
    torch.set_num_threads(1)
    torch.manual_seed(7)

    loader = DataLoader(Noise(), 4, shuffle=True, drop_last=True, num_workers=args.workers)
    bare = tiny()
    model = DistributedDataParallel(bare) if world_size else bare
    optimizer: torch.optim.Optimizer
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=3e-2)
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))

    run = surefoot.Run(
        args.dir,
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        data=loader,
        stage_every_steps=2,
        save_every_steps=5,
        keep=2,
        probation_steps=6,
        slots=args.slots,
    )
    for step in run.steps(args.steps):
        index, x = next(run.data)
        time.sleep(args.pause)
        loss = (model(x).squeeze(1) - index / 52).pow(2).mean()
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), run.knob("clip", 1.0))
        lr = float(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        run.log(loss=loss, grad_norm=norm)
        run.state["seen"] = run.state.get("seen", 0) + int(index.sum())
        told = loss.item().hex(), lr.hex(), run.state["seen"], digest(bare), index.tolist()
        trace(args.trace, "step", step, rank, *told)
    trace(args.trace, "weights", args.steps, rank, digest(bare))


if __name__ == "__main__":
    main()
