"""`surefoot.Run`: picks the adapters that fit what it was given, and wires them to the loop.

PyTorch objects are taken by name; another framework hands in a `State` (surefoot.loop.state) and
torch is never imported.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol

from surefoot.config import FILE, did_you_mean, layer
from surefoot.core.settings import Settings
from surefoot.errors import ConfigError
from surefoot.loop.data import Data, Loaders
from surefoot.loop.ranks import OneRank, Ranks
from surefoot.loop.sources import data_for
from surefoot.loop.state import Optimizers, State
from surefoot.loop.steps import Loop

_SETTINGS = tuple(field.name for field in fields(Settings) if field.name != "steps")

_open: dict[Path, weakref.ref[Run]] = {}
"""The runs of this process by directory: a notebook's cell that is run twice takes over from itself."""


class Run(Loop):
    """A training run in a directory: resumes, rewinds and stops by itself.

    Everything that is to be saved is passed by name: `model=`, `optimizer=`, `scheduler=`, any
    number of models and optimizers, anything with `state_dict` and `load_state_dict`, generator
    objects. `data` is a DataLoader, a function of the batch index, an iterable, or several by name.
    Keywords that name a setting (surefoot.core.settings) set it. Without a directory the run is the
    one that a launcher names in SUREFOOT_DIR.

    Raises ConfigError for a keyword that is neither a setting nor something with state,
    ChangedSettings, RunHeld, ForeignRun, NoUsableSnapshot, StateMismatch or UnstorableState where
    the run can't be joined as it is.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        data: Any = None,
        state: State | None = None,
        fresh: bool = False,
        accept_change: Iterable[str] = (),
        **named: Any,
    ) -> None:
        place = _directory(directory)
        keywords = {name: value for name, value in named.items() if name in _SETTINGS}
        objects = {name: value for name, value in named.items() if name not in _SETTINGS}
        configured = layer(keywords, file=Path(FILE))
        _take_over(place)
        wired = _of_torch(objects, configured.settings) if state is None else _of_state(state, objects)
        seed = wired.seed if configured.settings.seed is None else configured.settings.seed
        # One seed for all: with one of its own each rank would read the data in another order.
        seed = int(wired.ranks.broadcast(str(seed).encode()))
        configured = replace(configured, settings=replace(configured.settings, seed=seed))
        super().__init__(
            place,
            state=wired.state,
            ranks=wired.ranks,
            configured=configured,
            data=wired.data(data, seed) if data is not None else None,
            optimizers=wired.optimizers,
            declared=wired.declared(),
            accept=wired.accept,
            accept_change=tuple(accept_change),
            fresh=fresh,
            twice=wired.twice,
        )
        _open[place] = weakref.ref(self)


class _Wired(Protocol):
    """What a framework's adapters bring to a run."""

    @property
    def state(self) -> State: ...
    @property
    def ranks(self) -> Ranks: ...
    @property
    def optimizers(self) -> Optimizers | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def twice(self) -> bool: ...
    def data(self, data: Any, seed: int) -> Data | Loaders: ...
    def declared(self) -> dict[str, Any]: ...
    def accept(self, changes: Mapping[str, Any]) -> None: ...


class _WiredState:
    """A `State` that was handed in: there are no optimizers to watch, so every turn ends at a boundary."""

    optimizers = None
    seed = 0
    twice = False

    def __init__(self, state: State, ranks: Ranks) -> None:
        self.state = state
        self.ranks = ranks

    def data(self, data: Any, seed: int) -> Data | Loaders:
        return data_for(data, seed=seed, rank=self.ranks.rank, world_size=self.ranks.world_size)

    def declared(self) -> dict[str, Any]:
        return {}

    def accept(self, changes: Mapping[str, Any]) -> None:
        del changes  # nothing was declared


def _directory(directory: str | os.PathLike[str] | None) -> Path:
    given = os.environ.get("SUREFOOT_DIR")
    if directory is None and not given:
        raise ConfigError('Run(...) was given no directory: expected one, such as Run("runs/gpt", …)')
    chosen = Path(directory if directory is not None else str(given))
    if given and chosen.absolute() != Path(given).absolute():
        raise ConfigError(
            f"the launcher runs {given}, the script Run({str(directory)!r}): expected the same directory; "
            "leave it out in the script, or give --dir the script's"
        )
    return chosen


def _take_over(place: Path) -> None:
    before = _open.pop(place, None)
    run = before() if before is not None else None
    if run is not None:
        run.close("the same process opens the run again")


def _of_state(state: State, objects: Mapping[str, Any]) -> _Wired:
    if objects:
        names = ", ".join(objects)
        raise ConfigError(
            f"Run(..., state=…) holds the whole state; {names} {_as_settings(objects)}: "
            "let the state hold it, or leave it out"
        )
    if not isinstance(state, State):
        raise ConfigError(
            f"state= is a {type(state).__name__}: expected the protocol of surefoot.loop.state.State "
            "(boxes, plain, copy_out, copy_in)"
        )
    if sys.modules.get("torch") is None:
        return _WiredState(state, OneRank())
    from surefoot.torch.ranks import ranks

    return _WiredState(state, ranks())


def _of_torch(objects: Mapping[str, Any], settings: Settings) -> _Wired:
    for name, value in objects.items():
        if value is None or isinstance(value, str | int | float | bool):
            raise ConfigError(
                f"Run(..., {name}={value!r}) {_as_settings({name: value})}; "
                "plain values of yours go into run.state"
            )
    if not objects:
        raise ConfigError("Run(...) was given nothing to save: expected model=, optimizer=, … or state=")
    from surefoot.torch.wired import WiredTorch

    return WiredTorch(objects, settings)


def _as_settings(objects: Mapping[str, Any]) -> str:
    name = next(iter(objects))
    return f"is neither a setting nor something with a state{did_you_mean(name, list(_SETTINGS))}"
