"""The settings: every one has a default that holds, and a word for what it is."""

from __future__ import annotations

import ast
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise
from pathlib import Path

import pytest

from surefoot.core import settings
from surefoot.core.settings import Settings


def test_every_setting_says_what_it_is_for() -> None:
    """Each field is followed by its docstring: `surefoot config` has nothing else to show."""
    tree = ast.parse(Path(settings.__file__).read_text(encoding="utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    told = [
        node.target.id
        for node, after in pairwise(body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    ]
    assert told == [field.name for field in fields(Settings)]


def test_settings_do_not_change_under_anybody() -> None:
    """Settings are frozen: a change is an event."""
    with pytest.raises(FrozenInstanceError):
        Settings().keep = 5  # type: ignore[misc]


def test_a_length_of_time_says_its_unit() -> None:
    """Every float is a duration in seconds, and its name says so."""
    assert all(f.name.endswith("_s") for f in fields(Settings) if f.type == "float")
