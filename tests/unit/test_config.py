"""Settings in layers: which one wins, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from surefoot import config
from surefoot.config import did_you_mean, layer
from surefoot.core.settings import Settings
from surefoot.errors import ConfigError


def toml(folder: Path, text: str) -> Path:
    path = folder / "surefoot.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_given_is_the_defaults(tmp_path: Path) -> None:
    """Without a layer every setting has its default, and none has an origin; a missing file is none."""
    found = layer({}, file=tmp_path / "surefoot.toml")
    assert found.settings == Settings()
    assert (dict(found.origins), found.as_event()) == ({}, {})


def test_the_later_layer_wins(tmp_path: Path) -> None:
    """The order is default < surefoot.toml < Run(...) < --set; each value says where it came from."""
    file = toml(tmp_path, "keep = 4\nslots = 4\nseed = 4\n")
    found = layer({"keep": 5, "slots": 3}, file=file, overrides={"keep": "6"})
    assert (found.settings.keep, found.settings.slots, found.settings.seed) == (6, 3, 4)
    assert found.origins == {"keep": "--set", "slots": "Run(...)", "seed": str(file)}
    assert found.as_event() == {"keep": [6, "--set"], "slots": [3, "Run(...)"], "seed": [4, str(file)]}


def test_a_value_that_is_its_default_was_still_given(tmp_path: Path) -> None:
    """An explicit default overrides an earlier layer, and has an origin."""
    found = layer({"keep": Settings().keep}, file=toml(tmp_path, "keep = 9\n"))
    assert (found.settings.keep, found.origins) == (Settings().keep, {"keep": "Run(...)"})


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("8", "keep", 8),
        ("2.5", "save_every_s", 2.5),
        ("60", "save_every_s", 60.0),
        ("1e3", "save_every_s", 1000.0),
        ("true", "first_step_twice", True),
        ("10_000", "save_every_steps", 10_000),
    ],
)
def test_set_reads_values_as_toml_does(text: str, key: str, value: object) -> None:
    """`--set key=value` has the spelling of the file; whole numbers do for a time."""
    found = getattr(layer({}, overrides={key: text}).settings, key)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("where", "key", "near"),
    [
        ("Run(...)", "kep", "keep"),
        ("--set", "save_every", "save_every_s"),
        ("--set", "stage_every", "stage_every_steps"),
    ],
)
def test_an_unknown_key_names_the_nearest(where: str, key: str, near: str) -> None:
    """A misspelt key is an error that says where it stands and which one may be meant."""
    given: dict[str, Any] = {"overrides": {key: "1"}} if where == "--set" else {}
    with pytest.raises(ConfigError) as caught:
        layer({key: 1} if not given else {}, **given)
    assert str(caught.value) == f"{where}: unknown setting {key!r}; did you mean {near!r}?"


def test_an_unknown_key_of_the_file_names_the_file(tmp_path: Path) -> None:
    """A key of the file is named with the file; one that is near to nothing suggests nothing."""
    file = toml(tmp_path, "zzz = 1\n")
    with pytest.raises(ConfigError) as caught:
        layer({}, file=file)
    assert str(caught.value) == f"{file}: unknown setting 'zzz'"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("keep", "3", "int"),
        ("keep", 3.0, "int"),
        ("keep", True, "int"),
        ("keep", None, "int"),
        ("save_every_s", "60", "float"),
        ("save_every_s", True, "float"),
        ("save_every_steps", 2.5, "int or nothing"),
        ("first_step_twice", 1, "bool or nothing"),
        ("seed", [1], "int or nothing"),
    ],
)
def test_a_wrong_type_says_what_was_expected(key: str, value: object, expected: str) -> None:
    """A value of another type is refused, never converted: True is no number, and 3.0 no count."""
    with pytest.raises(ConfigError) as caught:
        layer({key: value})
    assert str(caught.value) == f"Run(...): {key} = {value!r}: expected {expected}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", -1),
        ("stage_every_steps", 0),
        ("slots", 1),
        ("save_every_s", -0.1),
        ("save_every_steps", 0),
        ("keep", -2),
        ("probation_steps", -1),
        ("restore_tries_max", 0),
        ("lease_s", 0.0),
        ("save_every_s", float("nan")),
        ("save_every_s", float("inf")),
    ],
)
def test_a_senseless_value_is_refused(key: str, value: object) -> None:
    """What would never save, never restore or never end is refused when it is given."""
    with pytest.raises(ConfigError, match=f"{key} = .*: expected a number, at least"):
        layer({key: value})


def test_keep_nothing_is_refused_and_keep_all_is_not() -> None:
    """A keep of 0 would delete every checkpoint and is refused at start; -1 keeps all (D18)."""
    with pytest.raises(ConfigError, match=r"keep = 0 would delete every checkpoint; expected -1 \(keep all\)"):
        layer({"keep": 0})
    assert layer({"keep": -1}).settings.keep == -1


@pytest.mark.parametrize("key", ["seed", "steps", "save_every_steps", "first_step_twice"])
def test_nothing_is_a_value_where_it_means_something(key: str) -> None:
    """What may be left open may be left open explicitly."""
    assert getattr(layer({key: None}).settings, key) is None


@pytest.mark.parametrize("text", ["keep = ", "keep = 1\nkeep = 2\n", "\x00"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, text: str) -> None:
    """A broken file is an error with its path and the place of what is wrong, never ignored."""
    file = toml(tmp_path, text)
    with pytest.raises(ConfigError, match=f"^{file} is not valid TOML: "):
        layer({}, file=file)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    """Bytes that aren't UTF-8 are an error with the path."""
    file = tmp_path / "surefoot.toml"
    file.write_bytes(b"keep = '\xff'")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        layer({}, file=file)


def test_a_broken_set_is_a_text_and_refused_as_one() -> None:
    """A value that is no TOML is a text, which no number takes."""
    with pytest.raises(ConfigError, match=r"--set: keep = 'lots': expected int"):
        layer({}, overrides={"keep": "lots"})


def test_every_number_has_a_least_value() -> None:
    """No number can be given that nobody thought about: each has its least value, but for the seed."""
    numbers = {field.name for field in fields(Settings)} - {"seed", "first_step_twice"}
    assert set(config._LEAST) == numbers


def test_the_defaults_pass_their_own_checks() -> None:
    """Every default could have been given."""
    defaults = {field.name: getattr(Settings(), field.name) for field in fields(Settings)}
    assert layer(defaults).settings == Settings()


def test_did_you_mean() -> None:
    """A word that is near to none suggests none."""
    assert did_you_mean("optimzer", ["model", "optimizer"]) == "; did you mean 'optimizer'?"
    assert did_you_mean("x", ["model", "optimizer"]) == ""
