"""Dataclasses ⇄ JSON by their annotations, worked out once per class.

Unknown members are ignored and missing ones take the field's default, so that a file outlives the
version that wrote it. Non-finite floats are left to `seal`, which spells them; they come back here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from surefoot.core.orders import ORDERS, Order
from surefoot.errors import JournalError
from surefoot.journal.sealed import FORMAT

T = TypeVar("T")
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one dataclass looks as JSON, worked out once; per value only what JSON can't hold is touched."""

    cls: type
    names: tuple[str, ...]
    keys: tuple[str, ...]
    """What the fields are called as members; one name differs."""
    get_fields: Callable[[Any], Iterable[Any]]
    get_members: Callable[[Any], Iterable[Any]]
    defaults: tuple[tuple[str, Callable[[], Any]], ...]
    outward: tuple[tuple[str, Convert], ...]
    inward: tuple[tuple[int, Convert], ...]
    floats: tuple[int, ...]
    """Places of the fields that are "nan", "inf" or "-inf" now and then."""

    def dump(self, value: Any) -> dict[str, Any]:
        obj = dict(zip(self.keys, self.get_fields(value), strict=True))
        for key, convert in self.outward:
            obj[key] = convert(obj[key])
        return obj

    def load(self, obj: dict[str, Any]) -> Any:
        try:
            values = list(self.get_members(obj))
        except KeyError:  # written before a field was thought of
            values = list(self.get_members({**{key: default() for key, default in self.defaults}, **obj}))
        for place in self.floats:
            if type(values[place]) is str:
                values[place] = float(values[place])
        for place, convert in self.inward:
            values[place] = convert(values[place])
        # What the generated __init__ of a frozen class does, in half the time.
        made: Any = object.__new__(self.cls)
        put = object.__setattr__
        for name, value in zip(self.names, values, strict=True):
            put(made, name, value)
        return made


_KEYS = {("Restart", "source"): "from"}
"""What can't be called in Python what it is called on a line."""

_SHAPES: dict[type, _Shape] = {}


def _shape(cls: type) -> _Shape:
    if cls not in _SHAPES:
        _SHAPES[cls] = _work_out(cls)
    return _SHAPES[cls]


def _work_out(cls: type) -> _Shape:
    assert is_dataclass(cls)
    assert not hasattr(cls, "__post_init__")
    hints = get_type_hints(cls)
    names = tuple(field.name for field in fields(cls))
    keys = tuple(_KEYS.get((cls.__name__, name), name) for name in names)
    ways = [_converters(hints[name]) for name in names]
    # The C getters are several times faster, but of fewer than two names they make no tuple.
    several = len(names) > 1
    return _Shape(
        cls=cls,
        names=names,
        keys=keys,
        get_fields=attrgetter(*names) if several else lambda value: [getattr(value, name) for name in names],
        get_members=itemgetter(*keys) if several else lambda obj: [obj[key] for key in keys],
        defaults=tuple(
            (key, _default(field, out))
            for key, field, (out, _) in zip(keys, fields(cls), ways, strict=True)
            if field.default is not MISSING or field.default_factory is not MISSING
        ),
        outward=tuple((key, out) for key, (out, _) in zip(keys, ways, strict=True) if out),
        inward=tuple((place, back) for place, (_, back) in enumerate(ways) if back and back is not _float),
        floats=tuple(place for place, (_, back) in enumerate(ways) if back is _float),
    )


def _default(field: Field[Any], out: Convert | None) -> Callable[[], Any]:
    def make() -> Any:
        value = field.default if field.default_factory is MISSING else field.default_factory()
        return out(value) if out else value

    return make


def _converters(hint: Any) -> tuple[Convert | None, Convert | None]:
    """Return how a value of this type becomes JSON and comes back; None where it is JSON as it is."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (Any, int, str, bool):
        return None, None
    if hint is float:
        return None, _float
    if hint is Order:
        return dump_order, load_order
    if isinstance(hint, type) and is_dataclass(hint):
        return _shape(hint).dump, _shape(hint).load
    if origin in (Union, UnionType) and len(args) == 2 and NoneType in args:
        out, back = _converters(next(arg for arg in args if arg is not NoneType))
        return out and _or_none(out), back and (back if back is _float else _or_none(back))
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        out, back = _converters(args[0])
        return out and _each(out), _each(back) if back else tuple
    if origin is tuple:
        outs, backs = zip(*map(_converters, args), strict=True)
        return _by_place(outs) if any(outs) else None, _by_place(backs)
    if origin is dict and args[0] is str:
        out, back = _converters(args[1])
        return out and _each_value(out), back and _each_value(back)
    raise TypeError(f"{hint} has no JSON form here")


def _float(value: Any) -> Any:
    return float(value) if type(value) is str else value


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _each(convert: Convert) -> Convert:
    return lambda values: tuple([convert(value) for value in values])


def _by_place(converts: Sequence[Convert | None]) -> Convert:
    if not any(converts):
        return tuple
    return lambda values: tuple([c(v) if c else v for c, v in zip(converts, values, strict=True)])


def _each_value(convert: Convert) -> Convert:
    return lambda values: {key: convert(value) for key, value in values.items()}


def to_json(obj: Any) -> dict[str, Any]:
    """Return a dataclass as an object that can be sealed: a member for every field."""
    return _shape(type(obj)).dump(obj)


def from_json(cls: type[T], value: dict[str, Any]) -> T:
    """Return the dataclass of an object: unknown members are ignored, a missing one has its default.

    Raises JournalError if the object has another shape.
    """
    try:
        loaded: T = _shape(cls).load(value)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise JournalError(f"not a {cls.__name__}: {error!r}") from error
    return loaded


def dump_order(order: Order) -> dict[str, Any]:
    """Return an order as an object that begins with its `do`."""
    return {"do": order.DO, **_shape(type(order)).dump(order)}


def load_order(obj: dict[str, Any]) -> Order:
    """Return the order of an object. Raises JournalError if there is none that this version knows."""
    cls = ORDERS.get(obj.get("do", ""))
    if cls is None:
        raise JournalError(
            f"unknown order {obj.get('do')!r} in format {FORMAT}: a newer surefoot wrote it and can read it"
        )
    order: Order = _shape(cls).load(obj)
    return order
