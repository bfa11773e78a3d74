"""The credentials of the command line: a token out of the environment, of a login, of a profile's file or of a program that a profile names.

What a profile names goes to the profile's own servers and to nobody else, whichever other URL a command is given; and a login to where it was made.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from basalt.cli.logins import read_logins
from basalt.errors import InputError, UnauthenticatedError
from basalt_engine.clock import SystemClock

if TYPE_CHECKING:
    from basalt.cli.logins import Login
    from basalt.cli.profiles import Profile
    from basalt.client import BearerToken, Tls
    from basalt.client.credential import Token

COMMAND_S_MAX = 120  # a program may have to ask somebody, in a browser for one


def token_for(url: str, profile: Profile, *, use_login: bool = True) -> Token | None:
    """The token for a command to this URL; None: what the environment gives, if anything."""
    if token_variable() is not None:
        return None
    if use_login and (login := login_at(url)) is not None:
        return _given_once(login, url)
    if profile.url is None or not is_within(url, profile.url):
        return None
    if profile.token_file is not None:
        return Path(profile.token_file)
    return partial(token_of_command, profile.token_command) if profile.token_command else None


def kerberos_for(url: str, profile: Profile) -> bool:
    """Tell whether a command to this URL, for which there is no token, proves who calls by a ticket: where the profile says so."""
    if token_variable() is not None or profile.url is None:
        return False
    return profile.kerberos and is_within(url, profile.url)


def _given_once(login: Login, url: str) -> Callable[[], str]:
    """The token of a login, for a client that asks for another one when it is refused: that is for the user to get."""
    left = [login.token]

    def ask() -> str:
        if not left:
            raise UnauthenticatedError(
                f"the login at {url} counts no more",
                field="token",
                hint="Log in again (`basalt auth login`), or `basalt auth logout`.",
            )
        return left.pop()

    return ask


def token_variable() -> str | None:
    """The variable of the environment that gives a token; None: there is none."""
    from basalt.client import credential

    return next((name for name in (credential.VARIABLE, credential.FILE_VARIABLE) if name in os.environ), None)


def shown_url(url: str) -> str:
    """The URL under which a login is kept: however its servers are written."""
    from basalt.client.servers import parse_urls, shown

    return shown(parse_urls(url))


def login_at(url: str) -> Login | None:
    """The login at the servers of this URL, if there is one that has not ended."""
    now_ms = SystemClock().now_ms()
    logins = (login for at, login in read_logins().items() if is_within(url, at))
    return next((login for login in logins if now_ms < login.expires_ms), None)


def tls_for(url: str, profile: Profile) -> Tls | None:
    """The files for a command to this URL; None: those that the environment names, if any."""
    from basalt.client import Tls, tls

    if (
        profile.url is None
        or not is_within(url, profile.url)
        or any(variable in os.environ for variable in tls.VARIABLES.values())
    ):
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


def is_within(url: str, others: str) -> bool:
    """Tell whether each server of the URL is one of the others."""
    from basalt.client.servers import parse_urls

    if url == others:
        return True
    try:
        return set(parse_urls(url)) <= set(parse_urls(others))
    except InputError:
        return False
