"""Random generators as plain values: the process's own, and any that a script made.

What a generator draws next depends on nothing but its state, so a restore puts it back last: building
a model or an iterator draws too. States are kept as bytes; spelled out as numbers they would be the
largest part of a rank's plain values.
"""

from __future__ import annotations

import random
import struct
import sys
from importlib import import_module
from typing import Any

import torch

from surefoot.torch.tensors import accelerator, from_bytes, to_bytes

_MERSENNE = struct.Struct("<625I")


def capture() -> dict[str, Any]:
    """Return the state of Python's, NumPy's, torch's and every device's global generator.

    NumPy's only where something has imported it. Devices are listed from the current one on, so that
    a rank that comes back on another device finds its own state there.
    """
    states: dict[str, Any] = {"python": _python(random), "torch": to_bytes(torch.get_rng_state())}
    if "numpy.random" in sys.modules:
        states["numpy"] = _packed(sys.modules["numpy.random"].get_state(legacy=False))
    device = accelerator()
    if device is not None:
        states["devices"] = [to_bytes(device.get_rng_state(index)) for index in _from_current(device)]
    return states


def restore(states: dict[str, Any]) -> None:
    """Set the global generators; one that the states lack is left as it is."""
    _set_python(random, states["python"])
    torch.set_rng_state(from_bytes(states["torch"]))
    if "numpy" in states:
        import_module("numpy.random").set_state(_unpacked(states["numpy"]))
    device = accelerator()
    if device is not None:
        for index, state in zip(_from_current(device), states.get("devices", ()), strict=False):
            device.set_rng_state(from_bytes(state), index)


def is_generator(value: object) -> bool:
    """Tell whether `state_of` knows the object."""
    return isinstance(value, torch.Generator | random.Random) or _numpy_kind(value) is not None


def state_of(generator: Any) -> Any:
    """Return the state of a generator object: torch's, Python's or NumPy's."""
    if isinstance(generator, torch.Generator):
        return to_bytes(generator.get_state())
    if isinstance(generator, random.Random):
        return _python(generator)
    if _numpy_kind(generator) == "Generator":
        return _packed(generator.bit_generator.state)
    return _packed(generator.get_state(legacy=False))


def set_state(generator: Any, state: Any) -> None:
    """Put a generator object back into a state that `state_of` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(from_bytes(state))
    elif isinstance(generator, random.Random):
        _set_python(generator, state)
    elif _numpy_kind(generator) == "Generator":
        generator.bit_generator.state = _unpacked(state)
    else:
        generator.set_state(_unpacked(state))


def _numpy_kind(value: object) -> str | None:
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return None
    return next(
        (kind for kind in ("Generator", "RandomState") if isinstance(value, getattr(numpy_random, kind))), None
    )


def _python(generator: Any) -> tuple[int, bytes, float | None]:
    version, words, gauss = generator.getstate()
    return version, _MERSENNE.pack(*words), gauss


def _set_python(generator: Any, state: tuple[int, bytes, float | None]) -> None:
    version, packed, gauss = state
    generator.setstate((version, _MERSENNE.unpack(packed), gauss))


def _packed(state: Any) -> Any:
    """Return a bit generator's state with its arrays as {"array": dtype, "bytes": …}."""
    if isinstance(state, dict):
        return {key: _packed(value) for key, value in state.items()}
    if hasattr(state, "tobytes"):
        return {"array": state.dtype.str, "bytes": state.tobytes()} if state.ndim else state.item()
    return state


def _unpacked(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    if "array" in state:
        return import_module("numpy").frombuffer(state["bytes"], dtype=state["array"])
    return {key: _unpacked(value) for key, value in state.items()}


def _from_current(device: Any) -> list[int]:
    count, current = device.device_count(), device.current_device()
    return [(current + index) % count for index in range(count)]
