"""Profiles: servers' addresses under names, in a TOML file of the user's (`profiles.toml` in the configuration folder).

    current = "dev"

    [profiles.dev]
    url = "http://127.0.0.1:4780"
    namespace = "default"

A profile holds no secrets. The file is written whole, to a new file that then takes the old one's place.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from basalt.cli.output.failures import EXIT_NOT_FOUND, Failure

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEYS = ("url", "namespace")


@dataclass(frozen=True, slots=True)
class Profile:
    """The values that a profile sets; None where it leaves the default."""

    url: str | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles by name, and the name of the one in use."""

    by_name: Mapping[str, Profile] = field(default_factory=dict)
    current: str | None = None

    def get(self, name: str) -> Profile:
        """The profile, or a `Failure` that lists those there are."""
        profile = self.by_name.get(name)
        if profile is None:
            known = ", ".join(self.by_name) or "none yet"
            raise Failure(
                f"there is no profile {name!r} (there are: {known})",
                hint=f"add it with `basalt profile add {name if _NAME.fullmatch(name) else 'NAME'} --url URL`",
                exit_code=EXIT_NOT_FOUND,
            )
        return profile

    def with_profile(self, name: str, profile: Profile) -> Profiles:
        """With one more profile, or another one under this name."""
        return replace(self, by_name={**self.by_name, name: profile})

    def using(self, name: str) -> Profiles:
        """With this profile in use where no other is named."""
        return replace(self, current=name)

    def without(self, name: str) -> Profiles:
        """Without this profile, and with none in use if it was."""
        left = {other: profile for other, profile in self.by_name.items() if other != name}
        return Profiles(left, None if self.current == name else self.current)


def check_profile_name(name: str) -> str:
    """The name if it may be one: 1 to 64 letters, digits, _ or -."""
    if not _NAME.fullmatch(name):
        raise click.BadParameter(f"{name[:80]!r} is not 1 to 64 letters, digits, _ or -")
    return name


def profiles_path() -> Path:
    """Return the path of the file, whether or not it exists."""
    return Path(click.get_app_dir("basalt")) / "profiles.toml"


def read_profiles() -> Profiles:
    """The user's profiles; none when there is no file."""
    path = profiles_path()
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Profiles()
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise Failure(f"profiles file {path}: {reason}", hint="mend or remove it") from None
    return _checked(tree, path)


def write_profiles(profiles: Profiles) -> None:
    """Put the file in place, readable by its owner only."""
    path = profiles_path()
    lines = [] if profiles.current is None else [f'current = "{profiles.current}"\n']
    for name, profile in profiles.by_name.items():
        lines.append(f"\n[profiles.{name}]\n")
        lines.extend(f"{key} = {_quoted(value)}\n" for key in _KEYS if (value := getattr(profile, key)) is not None)
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.write_text("".join(lines).lstrip("\n"), encoding="utf-8")
        new.chmod(0o600)
        new.replace(path)
    except OSError as error:
        raise Failure(f"profiles file {path}: {os.strerror(error.errno or 0)}") from None


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped) + '"'


def _checked(tree: Mapping[str, object], path: Path) -> Profiles:
    current = tree.get("current")
    tables = tree.get("profiles", {})
    if not isinstance(tables, dict) or not (current is None or isinstance(current, str)):
        raise Failure(
            f'profiles file {path}: it has no "current" name and [profiles.NAME] tables', hint="mend or remove it"
        )
    by_name = {}
    for name, table in tables.items():
        wrong = not isinstance(table, dict) or not all(
            key in _KEYS and isinstance(value, str) for key, value in table.items()
        )
        if wrong or not _NAME.fullmatch(name):
            raise Failure(
                f"profiles file {path}: profile {name!r} is not a url and a namespace", hint="mend or remove it"
            )
        by_name[name] = Profile(**table)
    return Profiles(by_name, current)
