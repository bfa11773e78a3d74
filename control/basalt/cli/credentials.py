"""The credentials of the command line: a token out of the environment, of a profile's file or of a program that a profile names.

What a profile names goes to the profile's own servers and to nobody else, whichever other URL a command is given.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from basalt.errors import InputError, UnauthenticatedError

if TYPE_CHECKING:
    from basalt.cli.profiles import Profile
    from basalt.client import BearerToken, Tls
    from basalt.client.credential import Token

COMMAND_S_MAX = 120  # a program may have to ask somebody, in a browser for one


def token_for(url: str, profile: Profile) -> Token | None:
    """The token for a command to this URL; None: what the environment gives, if anything."""
    from basalt.client import credential

    if credential.VARIABLE in os.environ or credential.FILE_VARIABLE in os.environ or not _is_of(url, profile):
        return None
    if profile.token_file is not None:
        return Path(profile.token_file)
    return partial(token_of_command, profile.token_command) if profile.token_command else None


def kerberos_for(url: str, profile: Profile) -> bool:
    """Tell whether a command to this URL proves who calls by a ticket: where the profile says so, and the environment gives no token."""
    from basalt.client import credential

    has_token = credential.VARIABLE in os.environ or credential.FILE_VARIABLE in os.environ
    return profile.kerberos and not has_token and _is_of(url, profile)


def tls_for(url: str, profile: Profile) -> Tls | None:
    """The files for a command to this URL; None: those that the environment names, if any."""
    from basalt.client import Tls, tls

    if not _is_of(url, profile) or any(variable in os.environ for variable in tls.VARIABLES.values()):
        return None
    files = Tls(profile.ca_file, profile.cert_file, profile.key_file)
    return None if files == Tls() else files


def token_of_command(arguments: Sequence[str]) -> BearerToken:
    """The token that a program prints, alone or as JSON `{"token": …, "expiresAt": …}`.

    `UnauthenticatedError` when there is none; what the program printed is not repeated, but what it says on standard error is seen.
    """
    from basalt.client import BearerToken
    from basalt.client.credential import Hidden, checked

    shown, hint = (
        f"token command {arguments[0]}",
        "Run it by hand; it prints a token alone, or {token, expiresAt} as JSON.",
    )
    try:
        # No shell, and no input: what the command line reads on its own standard input is not meant for it.
        ran = subprocess.run(  # noqa: S603
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=COMMAND_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnauthenticatedError(f"{shown} took more than {COMMAND_S_MAX} s", field="token", hint=hint) from None
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "it is no command"
        raise UnauthenticatedError(f"{shown} cannot be run: {reason}", field="token", hint=hint) from None
    if ran.returncode:
        raise UnauthenticatedError(f"{shown} ended with exit code {ran.returncode}", field="token", hint=hint)
    printed = Hidden(ran.stdout.decode("utf-8", "replace").strip())
    try:
        token = _of_json(printed) if printed.startswith("{") else BearerToken(printed)
        checked(Hidden(token.value), f"what {shown} printed")
    except InputError as error:
        raise UnauthenticatedError(error.message, field="token", hint=hint) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnauthenticatedError(f"{shown} printed JSON that has no token in it", field="token", hint=hint) from None
    return token


def _of_json(text: str) -> BearerToken:
    from basalt.client import BearerToken

    found = json.loads(text)
    token, expires = found["token"], found.get("expiresAt")
    if not isinstance(token, str) or isinstance(expires, bool):
        raise TypeError
    if isinstance(expires, str):
        moment = datetime.fromisoformat(expires)
        if moment.tzinfo is None:
            raise ValueError
        expires = moment.timestamp() * 1_000
    return BearerToken(token, None if expires is None else int(expires))


def _is_of(url: str, profile: Profile) -> bool:
    """Tell whether each server of the URL is one of the profile's."""
    from basalt.client.servers import parse_urls

    if profile.url is None:
        return False
    if url == profile.url:
        return True
    try:
        return set(parse_urls(url)) <= set(parse_urls(profile.url))
    except InputError:
        return False
