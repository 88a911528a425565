"""Trains a small byte-level GPT on the documentation and sources of the Python it runs on.

    python examples/train_gpt.py                            # one process
    torchrun --nproc-per-node 2 examples/train_gpt.py       # two ranks

Kill it at any instant and start the same command again: it goes on as if nothing had happened. What makes
it so are the lines with `surefoot` or `run.` in them; the rest is an ordinary training script.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sysconfig
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

import surefoot


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout(self.out(y.transpose(1, 2).reshape(b, t, c)))


class Block(nn.Module):
    """Attention, then an MLP, each beside the residual path."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        widen, out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(widen, nn.GELU(), out, nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A decoder-only transformer over bytes, its output layer tied to the embedding."""

    def __init__(self, block: int, layers: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.wte = nn.Embedding(256, width)
        self.wpe = nn.Embedding(block, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() >= 2:
                residual = name.endswith(("out.weight", "mlp.2.weight"))  # scaled by depth, as in GPT-2
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.dropout(self.wte(x) + self.wpe(torch.arange(x.shape[1])))
        logits = self.head(self.ln_f(self.blocks(h)))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class Windows(Dataset[tuple[Tensor, ...]]):
    """Windows of a text: inputs, targets, beginning. With `jitter` each begins a random way into its place."""

    def __init__(self, text: Tensor, block: int, *, jitter: bool) -> None:
        self.text, self.block, self.jitter = text, block, jitter

    def __len__(self) -> int:
        return len(self.text) // self.block - 2

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        start = index * self.block
        if self.jitter:
            start += int(torch.randint(self.block, ()))
        window = self.text[start : start + self.block + 1].long()
        return window[:-1], window[1:], torch.tensor(start)


def python_text() -> tuple[Tensor, Tensor]:
    """Return documentation and sources of this Python as bytes: to train on, and every 20th file held out."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [library / "pydoc_data" / "topics.py", *sorted(library.glob("*.py"))]
    held_out = files[19::20]
    texts = [b"".join(f.read_bytes() for f in files if (f in held_out) is wanted) for wanted in (False, True)]
    train, test = (torch.frombuffer(bytearray(text[: 4 << 20]), dtype=torch.uint8) for text in texts)
    return train, test


def make_optimizer(model: nn.Module, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW that decays matrices and leaves gains and biases alone."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def warmup_cosine(step: int, warmup: int, steps: int) -> float:
    """Return the factor of the LR: up in a line, then down to a tenth along a cosine."""
    done = min(1.0, max(0, step - warmup) / max(1, steps - warmup))
    return min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * done))


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], batches: int = 4) -> float:
    """Return the mean loss over the first batches."""
    model.eval()
    losses = [model(x, y).item() for x, y, _ in islice(loader, batches)]
    model.train()
    return sum(losses) / len(losses)


def trace(file: str | None, *words: object) -> None:
    """Append a line to the trace, if one was asked for."""
    if file is not None:
        with Path(file).open("a") as lines:
            print(*words, file=lines)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train a byte-level GPT on Python's own text.")
    parser.add_argument("--dir", default="runs/gpt", help="the run's directory (%(default)s)")
    parser.add_argument("--fresh", action="store_true", help="start over; an old run is moved aside")
    parser.add_argument("--trace", metavar="FILE", help="append samples, losses and the weights' hash to it")
    numbers = {"steps": 500, "batch": 8, "block": 128, "layers": 2, "heads": 4, "width": 128, "dropout": 0.1}
    numbers |= {"lr": 3e-3, "warmup": 20, "weight-decay": 0.1, "workers": 1, "eval-every": 50, "seed": 1337}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help="(%(default)s)")
    return parser.parse_args()


def main() -> None:
    """Train."""
    args = arguments()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)  # a core to each rank
    torch.manual_seed(args.seed)

    text, held_out_text = python_text()
    windows = Windows(text, args.block, jitter=True)
    loader = DataLoader(windows, args.batch, shuffle=True, drop_last=True, num_workers=args.workers)
    held_out = DataLoader(Windows(held_out_text, args.block, jitter=False), args.batch)
    gpt = GPT(args.block, args.layers, args.heads, args.width, args.dropout)
    model = DistributedDataParallel(gpt) if world_size > 1 else gpt
    opt = make_optimizer(model, args.lr, args.weight_decay)
    sched = LambdaLR(opt, lambda step: warmup_cosine(step, args.warmup, args.steps))

    run = surefoot.Run(args.dir, model=model, optimizer=opt, scheduler=sched, data=loader, fresh=args.fresh)
    for step in run.steps(args.steps):
        x, y, start = next(run.data)
        loss = model(x, y)
        loss.backward()
        grad_norm = clip_grad_norm_(model.parameters(), run.knob("clip", 1.0))
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        run.log(loss=loss, grad_norm=grad_norm)
        trace(args.trace, "step", step, rank, loss.item().hex(), *start.tolist())
        if rank == 0 and (step + 1) % args.eval_every == 0:
            with run.phase("eval"):
                print(f"step {step + 1}: loss {loss:.3f}, held out {evaluate(gpt, held_out):.3f}", flush=True)

    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in gpt.parameters()))
    trace(args.trace, "weights", args.steps, rank, weights.hexdigest())


if __name__ == "__main__":
    main()
