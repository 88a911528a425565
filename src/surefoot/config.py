"""Settings in layers: default < surefoot.toml < Run(...) < --set.

Environment variables name identity only; no setting has one. An unknown key is an error with the
nearest valid one, a value of the wrong type names key, place and what was expected.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any, get_args, get_type_hints

from surefoot.core.settings import Settings
from surefoot.errors import ConfigError

FILE = "surefoot.toml"

_TYPES = get_type_hints(Settings)
_DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class Layered:
    """Settings and where each that differs from its default came from."""

    settings: Settings
    origins: Mapping[str, str]

    def as_event(self) -> dict[str, list[Any]]:
        """Return key → [value, where from], as `configured` carries it."""
        return {key: [getattr(self.settings, key), where] for key, where in self.origins.items()}


def layer(
    keywords: Mapping[str, Any], *, file: Path | None = None, overrides: Mapping[str, str] | None = None
) -> Layered:
    """Layer a file, keywords of `Run(...)` and `--set key=value` texts over the defaults.

    Raises ConfigError naming place, key and what was expected.
    """
    settings, origins = _DEFAULTS, dict[str, str]()
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if file is not None and file.exists():
        layers.append((str(file), _read(file)))
    layers.append(("Run(...)", keywords))
    layers.append(("--set", {key: _parse(text) for key, text in (overrides or {}).items()}))
    for where, values in layers:
        for key, value in values.items():
            settings = replace(settings, **{key: _checked(key, value, where)})
            origins[key] = where
    return Layered(settings, origins)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def did_you_mean(word: str, words: list[str]) -> str:
    """Return `; did you mean …?` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _checked(key: str, value: Any, where: str) -> Any:
    if key not in _TYPES:
        known = [field.name for field in fields(Settings)]
        raise ConfigError(f"{where}: unknown setting {key!r}{did_you_mean(key, known)}")
    kinds = get_args(_TYPES[key]) or (_TYPES[key],)
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds:
        value = float(value)
    if not any(type(value) is kind for kind in kinds):
        names = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ConfigError(f"{where}: {key} = {value!r}: expected {names}")
    if (low := _LEAST.get(key)) is not None and value is not None and not low <= value < inf:
        raise ConfigError(f"{where}: {key} = {value!r}: expected a number, at least {low:g}")
    if key == "keep" and value == 0:
        raise ConfigError(
            f"{where}: keep = 0 would delete every checkpoint; expected -1 (keep all) or at least 1"
        )
    return value


_LEAST: dict[str, float] = {
    "steps": 0,
    "stage_every_steps": 1,
    "slots": 2,
    "save_every_s": 0.0,
    "save_every_steps": 1,
    "keep": -1,
    "probation_steps": 0,
    "restore_tries_max": 1,
    "agree_deadline_s": 1.0,
    "own_boundary_s": 0.0,
    "exit_save_s": 0.0,
    "linger_s": 0.0,
    "lease_s": 1.0,
}
