"""The credential of a client: a bearer token, where it comes from, and when it is asked for again.

The drivers in `asynchronous` ask; what they keep and when they ask again is decided here. Nothing that is kept shows the token in its `repr`:
errors, logs and what debuggers print of a frame have stars instead. Reference: docs/reference/client.md, "Credentials".
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from basalt.client.plans import CoroutineRefusedError
from basalt.errors import InputError, UnauthenticatedError
from basalt.redaction import HIDDEN

TOKEN_CHARS_MAX = 8_192  # what a server reads of one: more is no token, but a file that was named by mistake
FILE_KEPT_MS = 10_000  # then it is read again: whoever puts a new token there need not tell anybody
RENEWED_AHEAD_MS = 60_000  # before a token expires: clocks differ, and whoever makes the next one may take a while
ASKED_AGAIN_MS = 5_000  # after an answer that is about to expire as well, or none: not with every call

VARIABLE = "BASALT_TOKEN"
FILE_VARIABLE = "BASALT_TOKEN_FILE"

_PROVING_HEADERS = frozenset({"authorization", "cookie"})
_TOKEN = re.compile(r"[\x21-\x7e]+")
_BASALT_TOKEN_START = re.compile(r"basalt_|eyJ")  # of a token of a server's own, and of a JWT


class Hidden(str):
    """Text that no `repr` shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(HIDDEN)


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token, for a callable that knows when it expires: milliseconds since 1970; None: as it says itself (a JWT), or unknown."""

    value: str
    expires_ms: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", Hidden(self.value))


Given: TypeAlias = str | BearerToken
TokenCallable: TypeAlias = Callable[[], Given] | Callable[[], Awaitable[Given]]
Token: TypeAlias = str | Path | TokenCallable  # what `connect` takes


@dataclass(frozen=True, slots=True)
class TokenSource:
    """The origin of a token. `ask` gives it, or something to await for it; None: it is `fixed` and never another one."""

    ask: Callable[[], Given | Awaitable[Given]] | None
    fixed: str = ""
    kept_ms: float = math.inf


def token_source(token: Token | None) -> TokenSource | None:
    """The source of this token; None given: of the one in the environment, if there is one. `InputError` for what is none."""
    if token is None:
        return _from_environment()
    if isinstance(token, str):
        if token.startswith(("/", "./", "~")):
            raise InputError(
                "the token is text that looks like the path of a file", field="token", hint="Give it as pathlib.Path."
            )
        return TokenSource(None, checked(Hidden(token.strip()), "the token"))
    if isinstance(token, Path):
        return TokenSource(partial(read_token, token), kept_ms=FILE_KEPT_MS)
    if callable(token):
        return TokenSource(token)
    raise TypeError(f"a token is text, a pathlib.Path or a callable, not {type(token).__name__}")


def credential_of(
    token: Token | None, headers: Mapping[str, str], *, kerberos: bool = False
) -> tuple[TokenSource | None, dict[str, str]]:
    """The source of a client's token, and the headers that go with each of its requests; no `repr` shows the values of these."""
    always: dict[str, str] = {name: Hidden(value) for name, value in headers.items()}
    for name, value in always.items():
        # Here, for the library below would repeat the value.
        if not (name.isascii() and name.isprintable() and value.isprintable() and value.isascii()):
            raise InputError(f"header {name!r} has characters that headers do not have", field="headers")
    has_own = any(name.lower() == "authorization" for name in always)
    if kerberos:
        if has_own or token is not None:
            raise InputError(
                "both kerberos and another credential are given", field="kerberos", hint="Leave one of them out."
            )
        return None, always
    if not has_own:
        return token_source(token), always
    if token is not None:
        raise InputError(
            "both token and a header Authorization are given", field="token", hint="Leave one of them out."
        )
    return None, always  # a token in the environment is for clients that are told nothing else


def proves(source: TokenSource | None, headers: Mapping[str, str]) -> bool:
    """Tell whether a client sends what proves who calls. Other headers may be secret as well, but most are not."""
    return source is not None or any(name.lower() in _PROVING_HEADERS for name in headers)


def _from_environment() -> TokenSource | None:
    # Looked up where they are used: a variable that held the environment would be shown with the token in it.
    if VARIABLE in os.environ and FILE_VARIABLE in os.environ:
        raise InputError(f"{VARIABLE} and {FILE_VARIABLE} are both set", field="token", hint="Unset one of them.")
    if VARIABLE in os.environ:
        return TokenSource(None, checked(Hidden(os.environ[VARIABLE].strip()), f"environment variable {VARIABLE}"))
    if FILE_VARIABLE in os.environ:
        return token_source(Path(os.environ[FILE_VARIABLE]))
    return None


def read_token(path: Path) -> str:
    """The token that a file holds, without space around it. `UnauthenticatedError` says why there is none."""
    shown = "that was named is a token itself, and" if _BASALT_TOKEN_START.match(path.name) else str(path)
    hint = "Name a readable file that holds just the token."
    try:
        with path.expanduser().open("rb") as file:
            content = Hidden(file.read(TOKEN_CHARS_MAX + 1).decode("latin-1").strip())
    except (OSError, ValueError, RuntimeError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "it is no path"
        raise UnauthenticatedError(f"token file {shown} cannot be read: {reason}", field="token", hint=hint) from None
    try:
        return checked(content, f"token file {shown}")
    except InputError as error:
        raise UnauthenticatedError(error.message, field="token", hint=hint) from None


class KeptToken:
    """The token of a client as it was given last."""

    def __init__(self, source: TokenSource) -> None:
        self.source = source
        self.header: Hidden | None = Hidden(f"Bearer {source.fixed}") if source.ask is None else None
        self.expires_ms = math.inf
        self.ask_at_ms = math.inf if source.ask is None else -math.inf

    def may_wait(self, now_ms: float) -> bool:
        """True where the one that is kept still counts, though it is time to ask for another one."""
        return self.header is not None and now_ms < self.expires_ms

    def take(self, given: object, now_ms: float) -> None:
        """Keep what the source has given. `InputError` when it is no token."""
        expires_ms: float | None = None
        if isinstance(given, BearerToken):
            expires_ms, given = given.expires_ms, given.value
        if not isinstance(given, str):
            raise TypeError(f"the callable of the token returned {type(given).__name__}, not text")
        token = checked(Hidden(given.strip()), "what the callable of the token returned")
        if expires_ms is None:
            expires_ms = jwt_expires_ms(token)
        self.expires_ms = math.inf if expires_ms is None else expires_ms
        soonest_ms = now_ms + ASKED_AGAIN_MS
        self.ask_at_ms = max(soonest_ms, min(now_ms + self.source.kept_ms, self.expires_ms - RENEWED_AHEAD_MS))
        self.header = Hidden(f"Bearer {token}")

    def keep_on(self, now_ms: float) -> None:
        """Go on with the one there is: another one could not be had."""
        self.ask_at_ms = now_ms + ASKED_AGAIN_MS


def hidden(token: Token | None) -> Token | None:
    """The same, as text that no `repr` shows if it is text: so that no local variable on its way does."""
    return Hidden(token) if isinstance(token, str) else token


class TokenAwayError(Exception):
    """A token cannot be had now: what gives it could not be reached. The text of that error is left out, for it may hold secrets."""


async def asked_aside(ask: Callable[[], Given | Awaitable[Given]]) -> object:
    """The token that a callable gives, which may take long: called on a thread of its own, and awaited if it is a coroutine function."""
    from asyncio import to_thread  # the blocking client does without it

    given = await to_thread(ask)
    return _hidden(await given if isinstance(given, Awaitable) else given)


def asked_here(ask: Callable[[], Given | Awaitable[Given]]) -> object:
    """The same for a client that cannot await, which waits for the callable."""
    given = ask()
    if isinstance(given, Awaitable):
        close = getattr(given, "close", None)
        if close is not None:
            close()  # it was never begun: without this Python warns of that
        raise CoroutineRefusedError(
            "the callable of the token is a coroutine function, which only the async client awaits"
        )
    return _hidden(given)


def _hidden(given: object) -> object:
    return Hidden(given) if isinstance(given, str) else given


def jwt_expires_ms(token: str) -> float | None:
    """The time at which a JWT says that it expires; None for what is no JWT, or says nothing. Nothing of it is checked: the server does that."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires = claims.get("exp") if isinstance(claims, dict) else None
        if isinstance(expires, bool) or not isinstance(expires, int | float) or not math.isfinite(expires):
            return None
        return expires * 1_000.0
    except (binascii.Error, ValueError, RecursionError, OverflowError):
        return None


def checked(token: Hidden, what: str) -> Hidden:
    """The same token. `InputError` says of what is none where it came from, and does not repeat it."""
    if not token:
        raise InputError(f"{what} is empty", field="token")
    if len(token) > TOKEN_CHARS_MAX:
        raise InputError(f"{what} has more than {TOKEN_CHARS_MAX} characters, so it is no token", field="token")
    if _TOKEN.fullmatch(token) is None:
        raise InputError(f"{what} has characters that no token has: spaces, line ends or others", field="token")
    return token
