"""Stock readers read the tensors without us: safetensors, and torch.distributed.checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tests.checkpoints import save
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from surefoot.checkpoint.layout import Box
from surefoot.checkpoint.store import DiskStore

WORDS = {
    torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.bool: "BOOL", torch.uint16: "U16",
    torch.float8_e4m3fn: "F8_E4M3", torch.complex64: "C64",
}  # fmt: skip


def raw(tensor: torch.Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def boxed(state: dict[str, torch.Tensor], rows: tuple[int, int]) -> tuple[list[Box], dict[str, bytes]]:
    """Return the boxes and bytes of one rank, which holds these rows of `shard` and all of the others."""
    boxes, values = [], {}
    for name, tensor in state.items():
        part = tensor[slice(*rows)] if name == "shard" else tensor
        whole, offsets = (tuple(tensor.shape), (rows[0], 0)) if name == "shard" else (None, None)
        boxes.append(Box(name, WORDS[part.dtype], tuple(part.shape), whole is None, whole, offsets))
        values[name] = raw(part)
    return boxes, values


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "w": torch.randn(3, 7, generator=generator),
        "half": torch.randn(5, generator=generator).bfloat16(),
        "step": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "mask": torch.tensor([True, False, True]),
        "u": torch.tensor([1, 2, 65535], dtype=torch.uint16),
        "f8": torch.randn(6, generator=generator).to(torch.float8_e4m3fn),
        "c": torch.randn(2, dtype=torch.complex64, generator=generator),
        "shard": torch.randn(5, 4, generator=generator),
    }


@pytest.fixture
def folder(state: dict[str, torch.Tensor], tmp_path: Path) -> Path:
    """Save from three ranks, rows 0:3, 3:5 and none of the sharded tensor; return the directory."""
    store = DiskStore(tmp_path)
    ranks = [boxed(state, rows) for rows in ((0, 3), (3, 5), (5, 5))]
    return tmp_path / save(store, [boxes for boxes, _ in ranks], [values for _, values in ranks])


def test_safetensors_reads_every_file(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """Safetensors opens each rank file and finds every tensor, replicated ones in one file only."""
    seen: dict[str, list[torch.Tensor]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                seen.setdefault(name, []).append(file.get_tensor(name))
    assert torch.equal(torch.cat(seen.pop("shard")), state.pop("shard"))
    assert {name for name in seen if not name.endswith(".state")} == state.keys()
    for name, tensor in state.items():
        (stored,) = seen[name]
        assert (stored.dtype, stored.shape, raw(stored)) == (tensor.dtype, tensor.shape, raw(tensor))


def test_torch_loads_the_directory(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """`dcp.load` with the stock reader restores whole tensors, put together from the shards of all ranks."""
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load(loaded, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    for name, tensor in state.items():
        assert raw(loaded[name]) == raw(tensor), name


def test_torch_loads_other_shards(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """The stock metadata has shape and shards of every tensor: what resharding needs."""
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
    shard = metadata.state_dict_metadata["shard"]
    assert shard.size == state["shard"].shape  # type: ignore[union-attr]
    places = sorted((*chunk.offsets, *chunk.sizes) for chunk in shard.chunks)  # type: ignore[union-attr]
    assert places == [(0, 0, 3, 4), (3, 0, 2, 4), (5, 0, 0, 4)]
