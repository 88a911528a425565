"""Fully sharded modules, put back into their shards before anybody reads or writes them.

After a forward without backward FSDP leaves its root unsharded: the module then shows whole parameters
that are not the trained ones, and its next forward uses them again without a look at the shards. A
restore into the shards alone would change nothing that is computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from surefoot.torch.tensors import is_kind


def reshard(modules: Iterable[nn.Module]) -> None:
    """Reshard those of the modules that FSDP has sharded, by `fully_shard` or by its older wrapper."""
    for module in modules:
        sharded: Any = module
        if is_kind(module, "torch.distributed.fsdp", "FSDPModule"):
            sharded.reshard()
        elif is_kind(module, "torch.distributed.fsdp", "FullyShardedDataParallel"):
            _reshard_wrapper(sharded)


def _reshard_wrapper(wrapper: Any) -> None:
    # The wrapper has no public way back into its shards; its own backward ends with this call.
    from torch.distributed.fsdp._runtime_utils import _reshard

    handle = wrapper._handle  # noqa: SLF001 - as above
    if handle is not None:
        _reshard(wrapper, handle, True)
