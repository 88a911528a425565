"""Nested states, split and joined."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.errors import UnstorableState
from surefoot.torch.nested import ARRAY, SCALAR, join, split


def parts(value: Any) -> tuple[Any, dict[str, tuple[torch.Tensor, str]]]:
    tensors: dict[str, tuple[torch.Tensor, str]] = {}
    plain = split(value, "x", lambda path, tensor, was: tensors.__setitem__(path, (tensor, was)))
    return plain, tensors


def test_tensors_leave_and_come_back_under_their_path() -> None:
    """Tensors anywhere become entries under their path; a None of the state's own stays a None."""
    first, second = torch.ones(2), torch.zeros(())
    value = {"a": [first, 1, None], 3: {"b": (second, "s")}, "s": {1, 2}, "big": 1 << 100}
    plain, tensors = parts(value)
    assert plain == {"a": [None, 1, None], 3: {"b": (None, "s")}, "s": {1, 2}, "big": 1 << 100}
    assert tensors == {"x.a.0": (first, ""), "x.3.b.0": (second, "")}
    joined = join(plain, "x", tensors, lambda path, _: tensors[path][0])
    assert joined["a"][0] is first
    assert joined["a"][2] is None
    assert joined[3]["b"] == (second, "s")


def test_a_leaf_sees_its_live_counterpart() -> None:
    """What stands at the same path of the live value is handed to the leaf, None where nothing does."""
    seen: dict[str, Any] = {}
    plain, tensors = parts({"a": [torch.ones(1), torch.ones(1)], "b": torch.ones(1)})
    join(plain, "x", tensors, seen.__setitem__, {"a": ["live"]})
    assert seen == {"x.a.0": "live", "x.a.1": None, "x.b": None}


def test_dicts_come_back_as_the_kind_that_is_live() -> None:
    """A Counter, an OrderedDict and a defaultdict keep their kind and what they were made with."""
    for live in (Counter({3: 2}), OrderedDict(a=1), defaultdict(list, {"a": [1]})):
        plain, tensors = parts(live)
        assert type(plain) is dict
        joined = join(plain, "x", tensors, lambda *_: None, live)
        assert joined == live
        assert type(joined) is type(live)
        assert joined is not live


def test_numpy_values_are_tensors_that_remember() -> None:
    """Arrays and NumPy's numbers are stored as tensors, marked as what they were."""
    plain, tensors = parts(
        [np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::-1], np.float32(0.1), np.float64(2.0)]
    )
    assert plain == [None, None, None]
    assert [was for _, was in tensors.values()] == [ARRAY, SCALAR, SCALAR]
    assert tensors["x.0"][0].tolist() == [[2, 1, 0], [5, 4, 3]]
    assert tensors["x.1"][0].dtype is torch.float32


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"f": len}]}, r"x\.a\.1\.f is a builtins\.builtin_function_or_method"),
        ({"a": object()}, r"x\.a is a builtins\.object"),
        ({"a": np.array(["text"])}, r"x\.a is a numpy\.ndarray"),
        ({"a": torch.float32}, r"x\.a is a torch\.dtype"),
        ({"a": {object(): 1}}, r"x\.a has a key of type object"),
    ],
    ids=["function", "object", "texts", "dtype", "key"],
)
def test_what_cannot_be_stored_is_named(value: Any, path: str) -> None:
    """The error names the full path of what is neither plain nor a tensor."""
    with pytest.raises(UnstorableState, match=path):
        parts(value)
