"""One run of the command line: which server it talks to, whose topics it means and how it writes results.

First to last: an option, an environment variable (BASALT_URL, BASALT_NAMESPACE, BASALT_PROFILE), the profile named by
either, the profile in use, and at last a server on this machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import click

from basalt.cli.output.failures import Usage
from basalt.errors import InputError

if TYPE_CHECKING:
    from basalt.cli.output.output import Output
    from basalt.client import Client

DEFAULT_URL = "http://127.0.0.1:4780"
DEFAULT_NAMESPACE = "default"
TIMEOUT_MS_DEFAULT = 30_000
ATTEMPTS_MAX = 5  # half a second of trying: whoever sits at a terminal wants to know that no server is there
ATTEMPTS_MAX_WITH_TIMEOUT = 10_000  # with --timeout only the time counts
OUTPUT_FORMATS = ("table", "json", "jsonl", "yaml")


class Target(NamedTuple):
    """A server and the namespace that topic names are in."""

    url: str
    namespace: str


@dataclass(slots=True)
class Session:
    """What the common options said; None where they said nothing."""

    url: str | None = None
    namespace: str | None = None
    profile: str | None = None
    output: str | None = None
    timeout_ms: int | None = None

    def target(self) -> Target:
        """The server and namespace to use."""
        url = self.url or os.environ.get("BASALT_URL")
        namespace = self.namespace or os.environ.get("BASALT_NAMESPACE")
        if not (url and namespace):
            from basalt.cli.options.profiles import Profile, read_profiles

            profiles = read_profiles()
            wanted = self.profile or os.environ.get("BASALT_PROFILE") or profiles.current
            profile = profiles.get(wanted) if wanted else Profile()
            url = url or profile.url
            namespace = namespace or profile.namespace
        return Target(url or DEFAULT_URL, namespace or DEFAULT_NAMESPACE)

    def client(self) -> Client:
        """A client for the target; use it in a `with` block."""
        import basalt

        target = self.target()
        timeout_ms, attempts_max = TIMEOUT_MS_DEFAULT, ATTEMPTS_MAX
        if self.timeout_ms is not None:
            timeout_ms, attempts_max = self.timeout_ms, ATTEMPTS_MAX_WITH_TIMEOUT
        try:
            return basalt.connect(
                target.url, namespace=target.namespace, timeout_ms=timeout_ms, attempts_max=attempts_max
            )
        except InputError as error:
            if error.field != "url":
                raise
            raise Usage(error.message, hint=error.hint) from None

    @property
    def out(self) -> Output:
        """Where results go."""
        from basalt.cli.output.output import Output

        return Output(self.output or "table")


pass_session = click.make_pass_decorator(Session, ensure=True)
