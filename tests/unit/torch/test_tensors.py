"""Boxes of single tensors: every dtype stock readers know, everything else refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from surefoot.checkpoint.layout import ITEM_BYTES
from surefoot.errors import UnstorableState
from surefoot.torch import tensors


def test_the_words_are_those_of_the_layout() -> None:
    """Every dtype word is one that a rank file may hold, with torch's item size."""
    assert {word: dtype.itemsize for word, dtype in tensors.DTYPES.items()} == ITEM_BYTES


@pytest.mark.parametrize("dtype", tensors.WORDS)
def test_bytes_come_back_in_every_dtype(dtype: torch.dtype) -> None:
    """Bytes written through a typed view are the tensor's own."""
    raw = torch.arange(24, dtype=torch.uint8) % (2 if dtype is torch.bool else 255)
    buffer = memoryview(bytearray(24))
    tensors.flat(buffer, dtype).copy_(raw.view(dtype))
    assert list(buffer) == raw.tolist()
    assert torch.equal(tensors.flat(buffer.toreadonly(), dtype).view(torch.uint8), raw)


def test_spec_and_back() -> None:
    """Dtype and shape are read back from what was noted."""
    for tensor in (torch.zeros(()), torch.zeros(3, 0, dtype=torch.bfloat16), torch.zeros(7, dtype=torch.bool)):
        assert tensors.parse_spec(tensors.spec(tensor)) == (tensor.dtype, tuple(tensor.shape))
    assert tensors.spec(torch.zeros(2, 3)) == "F32[2,3]"


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (torch.eye(2).to_sparse(), "no plain memory"),
        (torch.empty(2, device="meta"), "no plain memory"),
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
        (nn.LazyLinear(2).weight, "no shape yet"),
    ],
    ids=["sparse", "meta", "complex128", "lazy"],
)
def test_what_is_no_plain_memory_is_refused(tensor: torch.Tensor, says: str) -> None:
    """A tensor that can't be stored as bytes is an error that names it."""
    with pytest.raises(UnstorableState, match=rf"model\.w .*{says}"):
        tensors.box("model.w", tensor, replicated=False)


def test_a_class_nobody_imported_has_no_instances() -> None:
    """Asking for a class of a module that isn't loaded is no error and no import."""
    assert not tensors.is_kind(1, "surefoot_never_imported", "Thing")
    assert tensors.is_kind(nn.Parameter(torch.zeros(1)), "torch", "Tensor")
