"""`run.state`: plain values of the user's that live and are rewound with the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from surefoot.journal.codec import tag


class Values(MutableMapping[str, Any]):
    """A dict of plain values (formats §2); what can't be stored is refused when it is set."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        tag(value, f"run.state[{name!r}]")
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Take the values of a snapshot in place of all that are here."""
        self._values = dict(values)
