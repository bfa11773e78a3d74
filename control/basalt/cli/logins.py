"""Logins: short tokens that `basalt auth login` has got, in a file beside the profiles that its owner alone can read.

One for each server, by its URL: `{"https://basalt.example:443": {"token": …, "principal": …, "expires_ms": …}}`. The file is written whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from basalt.cli.failures import CommandFailure
from basalt.cli.private_file import PrivateFile
from basalt.cli.profiles import profiles_path


@dataclass(frozen=True, slots=True)
class Login:
    """A login: its token, who it is, and when it ends."""

    token: str = field(repr=False)
    principal: str
    expires_ms: int


def logins_path() -> Path:
    """The path of the file, whether or not it exists."""
    return profiles_path().with_name("logins.json")


def read_logins() -> dict[str, Login]:
    """The logins by the URL of their server; none where there is no file."""
    path = logins_path()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreadable(path, os.strerror(error.errno or 0)) from None
    import msgspec  # most commands have no logins to read

    try:
        return msgspec.json.decode(content, type=dict[str, Login])
    except msgspec.MsgspecError:
        raise _unreadable(path, "it holds no logins") from None


def _unreadable(path: Path, reason: str) -> CommandFailure:
    return CommandFailure(f"logins file {path}: {reason}", hint="remove it, and log in again")


def write_logins(logins: Mapping[str, Login]) -> None:
    """Put the file in place."""
    path = logins_path()
    text = json.dumps({url: asdict(login) for url, login in logins.items()}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with PrivateFile(path, replace=True) as file:
            file.fill(text + "\n")
    except OSError as error:
        raise CommandFailure(f"logins file {path}: {os.strerror(error.errno or 0)}") from None
