"""The table of keys, derived from the settings tree: names, environment names, kinds and defaults."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from basalt.settings.kinds import Kind
from basalt.settings.tree import DEFAULT, Settings

ENVIRONMENT_PREFIX = "BASALT__"
FILE_SUFFIX = "_FILE"
_HIDDEN = "(secret)"


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: its dotted name, where it is in the tree, what it may be and what it is by default."""

    name: str
    path: tuple[str, ...]
    kind: Kind
    default: object

    @property
    def environment(self) -> str:
        """The name of its environment variable."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "__").replace("-", "_").upper()

    @property
    def unit(self) -> str:
        """The unit of a bare number, by the key's last word other than `max` and `default`: "bytes", "ms", or empty."""
        words = [word for word in self.path[-1].split("_") if word not in ("max", "default")]
        return words[-1] if words[-1] in ("bytes", "ms") else ""


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One setting as people see it: the value written as in the settings file, and where it came from."""

    key: str
    value: str
    origin: str


@functools.cache
def keys() -> Mapping[str, Key]:
    """Every key by name, in the tree's order."""
    return {key.name: key for key in _walk(Settings(), (), ())}


@functools.cache
def sections() -> frozenset[str]:
    """The names that have keys below them: `store`, `store.hbase`, `jobs.retention`, ..."""
    return frozenset(name.rsplit(".", depth)[0] for name in keys() for depth in range(1, name.count(".") + 1))


def value_of(settings: Settings, key: Key) -> object:
    """The key's value in `settings`."""
    value: object = settings
    for attribute in key.path:
        value = getattr(value, attribute)
    return value


def build(values: Mapping[str, object]) -> Settings:
    """The tree with these values (already read by their kinds) in place of defaults."""
    tree: Settings = _build(Settings(), (), {keys()[name].path: value for name, value in values.items()})
    return tree


def effective(settings: Settings) -> list[EffectiveSetting]:
    """Every setting in force, for people: secrets are not shown."""
    shown = []
    for key in keys().values():
        origin = settings.origins.get(key.name, DEFAULT)
        text = _HIDDEN if origin.secret else key.kind.write(value_of(settings, key))
        shown.append(EffectiveSetting(key.name, text, origin.text))
    return shown


def _walk(tree: Any, path: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Key]:
    hints = get_type_hints(type(tree), include_extras=True)
    for field in fields(tree):
        value = getattr(tree, field.name)
        inner = (*path, field.name)
        if is_dataclass(value) and get_origin(hints[field.name]) is not Annotated:
            yield from _walk(value, inner, (*names, field.name.replace("_", "-")))
        elif get_origin(hints[field.name]) is Annotated:
            kind = get_args(hints[field.name])[1]
            yield Key(".".join((*names, field.name)), inner, kind, value)


def _build(tree: Any, path: tuple[str, ...], values: Mapping[tuple[str, ...], object]) -> Any:
    changed: dict[str, object] = {}
    for field in fields(tree):
        inner = (*path, field.name)
        value = getattr(tree, field.name)
        if inner in values:
            changed[field.name] = values[inner]
        elif is_dataclass(value) and field.default is not MISSING:
            changed[field.name] = _build(value, inner, values)
        else:
            changed[field.name] = value
    return type(tree)(**changed)
