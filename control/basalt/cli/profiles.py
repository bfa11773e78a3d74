"""Profiles: servers under names, in a TOML file of the user's (`profiles.toml` in the configuration folder), which is written whole.

    current = "dev"

    [profiles.dev]
    url = "https://basalt.example"
    namespace = "default"
    token_command = ["vault", "read", "-field=token", "secret/basalt"]
    ca_file = "/etc/basalt/ca.pem"

A profile holds no secret: it says where one is, in a file or out of a program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import click

from basalt.cli.failures import EXIT_NOT_FOUND, CommandFailure

PROFILE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Profile:
    """The values that a profile sets; None, or nothing, where it leaves the default."""

    url: str | None = None
    namespace: str | None = None
    token_file: str | None = None
    token_command: tuple[str, ...] = ()  # a program and its arguments, which prints a token
    kerberos: bool = False  # the ticket of whoever calls
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for values that do not go together."""
        if self.token_file is not None and self.token_command:
            raise ValueError("a token comes from a file or from a command, not from both")
        if self.kerberos and (self.token_file is not None or self.token_command):
            raise ValueError("who calls is proved by a token or by Kerberos, not by both")
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("a key without the file of its certificate is of no use")


_KEYS = tuple(each.name for each in fields(Profile))


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles by name, and the name of the one in use."""

    by_name: Mapping[str, Profile] = field(default_factory=dict)
    current: str | None = None

    def get(self, name: str) -> Profile:
        """The profile, or a `CommandFailure` that lists those there are."""
        profile = self.by_name.get(name)
        if profile is None:
            known = ", ".join(self.by_name) or "none yet"
            raise CommandFailure(
                f"there is no profile {name!r} (there are: {known})",
                hint=f"add it with `basalt profile add {name if PROFILE_NAME.fullmatch(name) else 'NAME'} --url URL`",
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


def profiles_path() -> Path:
    """Return the path of the file, whether or not it exists."""
    return Path(click.get_app_dir("basalt")) / "profiles.toml"


def read_profiles() -> Profiles:
    """The user's profiles; none when there is no file."""
    import tomllib

    path = profiles_path()
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Profiles()
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise CommandFailure(f"profiles file {path}: {reason}", hint="mend or remove it") from None
    return _checked(tree, path)


def write_profiles(profiles: Profiles) -> None:
    """Put the file in place, readable by its owner only."""
    path = profiles_path()
    lines = [] if profiles.current is None else [f'current = "{profiles.current}"\n']
    for name, profile in profiles.by_name.items():
        lines.append(f"\n[profiles.{name}]\n")
        lines.extend(f"{key} = {_toml(value)}\n" for key in _KEYS if (value := getattr(profile, key)))
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.write_text("".join(lines).lstrip("\n"), encoding="utf-8")
        new.chmod(0o600)
        new.replace(path)
    except OSError as error:
        raise CommandFailure(f"profiles file {path}: {os.strerror(error.errno or 0)}") from None


def _toml(value: str | tuple[str, ...] | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{', '.join(map(_quoted, value))}]" if isinstance(value, tuple) else _quoted(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped) + '"'


def _checked(tree: Mapping[str, object], path: Path) -> Profiles:
    current = tree.get("current")
    tables = tree.get("profiles", {})
    if not isinstance(tables, dict) or not (current is None or isinstance(current, str)):
        raise CommandFailure(
            f'profiles file {path}: it has no "current" name and [profiles.NAME] tables', hint="mend or remove it"
        )
    return Profiles({name: _profile(name, table, path) for name, table in tables.items()}, current)


def _profile(name: str, table: object, path: Path) -> Profile:
    reason = "it is no table of such a name"
    if isinstance(table, dict) and PROFILE_NAME.fullmatch(name):
        wrong = next((key for key, value in table.items() if not _fits(key, value)), None)
        if wrong is None:
            try:
                values: dict[str, Any] = {
                    key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
                }
                return Profile(**values)
            except ValueError as error:
                reason = str(error)
        else:
            reason = f"{wrong!r} is none of {', '.join(_KEYS)}, or not of its kind"
    raise CommandFailure(f"profiles file {path}: profile {name!r}: {reason}", hint="mend or remove it")


def _fits(key: str, value: object) -> bool:
    if key == "token_command":
        return isinstance(value, list) and bool(value) and all(isinstance(part, str) for part in value)
    if key == "kerberos":
        return isinstance(value, bool)
    return key in _KEYS and isinstance(value, str)
