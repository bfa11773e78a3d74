"""One run of the command line: the options that commands share, and which server, namespace and output format they mean.

First to last: an option, an environment variable (BASALT_URL, BASALT_NAMESPACE, BASALT_PROFILE), the profile named by
either, the profile in use, and at last a server on this machine. What proves who calls is the business of `credentials`.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from basalt.cli.failures import Usage, uncapitalized
from basalt.cli.profiles import Profile, read_profiles
from basalt.errors import InputError

if TYPE_CHECKING:
    import logging

    from click.shell_completion import CompletionItem
    from msgspec import Struct

    from basalt.api.positions import Position
    from basalt.cli.output import Column, Output
    from basalt.client import Client
    from basalt.client.credential import Token

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:4780"
DEFAULT_NAMESPACE = "default"
TIMEOUT_MS_DEFAULT = 30_000
ATTEMPTS_MAX = (
    5  # where nothing listens, half a second of trying: a user at a terminal wants to know that no server is there
)
OUTPUT_FORMATS = ("table", "json", "jsonl", "yaml")
NAME_CHARS_MAX = 255  # of a topic, namespace or owner; the server decides, this only keeps an error message short
_TRANSACTION_ID = re.compile(r"[0-9a-f]{32}|[1-9][0-9]{0,18}")
COMPLETION_MS_MAX = 1_000  # for the answer: whoever has pressed Tab waits; the names of 30,000 topics take half of it
COMPLETIONS_MAX = 1_000  # nobody reads more of them, and a shell would take long to lay them out

Known = Iterable[tuple[str, str | None]]  # what a shell may complete: a name, and what to say of it


class Target(NamedTuple):
    """A server and the namespace that topic names are in; and the profile that may say how to prove who calls it."""

    url: str
    namespace: str
    profile: Profile = Profile()


@dataclass(slots=True)
class Invocation:
    """One run of the command line, as the common options say it; None where they say nothing."""

    url: str | None = None
    namespace: str | None = None
    profile: str | None = None
    output: str | None = None
    timeout_ms: int | None = None

    def target(self) -> Target:
        """The server and namespace to use."""
        profiles = read_profiles()
        wanted = self.profile or os.environ.get("BASALT_PROFILE") or profiles.current
        profile = profiles.get(wanted) if wanted else Profile()
        url = self.url or os.environ.get("BASALT_URL") or profile.url or DEFAULT_URL
        namespace = self.namespace or os.environ.get("BASALT_NAMESPACE") or profile.namespace or DEFAULT_NAMESPACE
        return Target(url, namespace, profile)

    def client(self, *, wait: bool = True, token: Token | None = None, use_login: bool = True) -> Client:
        """A client for the target; use it in a `with` block. Waits for a server of this machine that is starting.

        `token` goes before all that else proves who calls; without `use_login` that of a login is not sent.
        """
        import logging

        import basalt
        from basalt.cli.credentials import kerberos_for, tls_for, token_for
        from basalt.cli.local_server import START_MS_MAX, wait_for_start

        logging.getLogger("basalt.client").handlers = [_said()]
        target = self.target()
        timeout_ms = TIMEOUT_MS_DEFAULT if self.timeout_ms is None else self.timeout_ms
        attempts_max = None  # the time alone decides, through a restart of the server too
        try:
            proof = token or token_for(target.url, target.profile, use_login=use_login)
            tls = tls_for(target.url, target.profile)
            if not target.url.startswith("embedded:"):
                listens = wait_for_start(target.url, min(START_MS_MAX, timeout_ms) if wait else 0)
                if not listens and self.timeout_ms is None:
                    attempts_max = ATTEMPTS_MAX
            return basalt.connect(
                target.url,
                namespace=target.namespace,
                timeout_ms=timeout_ms,
                attempts_max=attempts_max,
                token=proof,
                tls=tls,
                kerberos=proof is None and kerberos_for(target.url, target.profile),
            )
        except InputError as error:
            if error.field != "url":
                raise
            raise Usage(error.message, hint=error.hint) from None

    @property
    def out(self) -> Output:
        """The writer of results."""
        from basalt.cli.output import Output

        return Output(self.output or "table")

    def show_all(self, columns: Sequence[Column], call: Callable[[Client], Iterable[Struct]]) -> None:
        """Show a list of bodies that a call of the client answers."""
        from basalt.cli.output import row

        with self.client() as client:
            rows = [row(found) for found in call(client)]
        self.out.rows(columns, rows)


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


class CommonOption(click.Option):
    """An option of every invocation (server, namespace, output), listed apart in help and not passed to the command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, expose_value=False, callback=_remember, **kwargs)


class Command(click.Command):
    """A command that refuses an option with a value when it comes twice, and lists common options after its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            counts = Counter(param for param in order if isinstance(param, click.Option))
            for param, count in counts.items():
                if count > 1 and not param.multiple and not param.is_flag:
                    raise Usage(f"option {param.opts[-1]} is given {count} times", hint="leave all but one out")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                (common if isinstance(param, CommonOption) else own).append(record)
        for title, records in (("Options", own), ("Common options", common)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and param.name is not None:
        setattr(ctx.ensure_object(Invocation), param.name, value)


class Bytes(click.ParamType[bytes]):
    """An argument as the bytes that the shell gave: UTF-8 or not."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        return value if isinstance(value, bytes) else os.fsencode(value)


class Pair(click.ParamType[tuple[str, str]]):
    """NAME=VALUE, with a name."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, content = str(value).partition("=")
        if not equals or not name:
            self.fail(f"{_short(value)} is not NAME=VALUE", param, ctx)
        return name, content


class TransactionId(click.ParamType[str]):
    """A transaction's id: 32 hex digits; or its write pointer, a decimal number of up to 19 digits."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).lower()
        if _TRANSACTION_ID.fullmatch(text) is None:
            self.fail(f"{_short(text)} is not the id of a transaction; `basalt tx list` shows those", param, ctx)
        return text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _completed(lambda: _asked(ctx, _open_transactions), incomplete)


class MessageIdText(click.ParamType[bytes]):
    """An id of 40 hex digits, whether or not a message has it; `wanted` says in an error what it should be."""

    name = "id"

    def __init__(self, wanted: str = "a message id, which has 40 hex digits") -> None:
        self.wanted = wanted

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        if re.fullmatch(r"[0-9a-fA-F]{40}", str(value)) is None:
            self.fail(f"{_short(value)} is not {self.wanted}", param, ctx)
        return bytes.fromhex(str(value))


class DurationMs(click.ParamType[int]):
    """A duration such as 500ms, 30s, 5m, 2h or 7d, in milliseconds."""

    name = "duration"

    def __init__(self, *, minimum_ms: int = 1) -> None:
        self.minimum_ms = minimum_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        from basalt.api.positions import TIME_MS_MAX, UNIT_MS

        match = re.fullmatch(r"([0-9]{1,18})(ms|s|m|h|d|w)", str(value))
        if match is None:
            self.fail(f"{_short(value)} is not a duration such as 500ms, 30s, 5m, 2h or 7d", param, ctx)
        duration_ms = int(match[1]) * UNIT_MS[match[2]]
        if not self.minimum_ms <= duration_ms <= TIME_MS_MAX:
            self.fail(f"{_short(value)} is shorter or longer than any duration can be", param, ctx)
        return duration_ms


class PositionText(click.ParamType["Position"]):
    """A SPEC of a position, read against the time of day at which the command started."""

    name = "spec"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Position:
        from basalt.api.positions import Position, parse_position
        from basalt_engine.clock import SystemClock

        if isinstance(value, Position):
            return value
        try:
            return parse_position(str(value), SystemClock().now_ms(), field="position")
        except InputError as error:
            self.fail(f"{error.message}; {error.hint}", param, ctx)


def _said() -> logging.Handler:
    """Make the handler that shows what the client logs (that it waits for a server, say) as errors are shown."""
    import logging

    from basalt.cli.output import printable

    class _Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            click.echo(f"basalt: {printable(record.getMessage())}", err=True)

    return _Said()


class Name(click.ParamType[str]):
    """The name of something that the server knows. Any text but none is taken; `known` lists what a shell offers."""

    name = "text"

    def __init__(self, known: Callable[[Client], Known]) -> None:
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:  # as an unset variable of a script makes it
            self.fail("the name is empty", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _completed(lambda: _asked(ctx, self.known), incomplete)


class ProfileName(click.ParamType[str]):
    """The name of a profile."""

    name = "text"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _completed(lambda: ((name, each.url) for name, each in read_profiles().by_name.items()), incomplete)


def _open_transactions(client: Client) -> Known:
    return ((each.id, each.owner or None) for each in client.admin.transactions().transactions)


def _unsaid(names: Iterable[str]) -> Known:
    return ((name, None) for name in names)


TOPIC = Name(lambda client: _unsaid(client.topics.list()))
TABLE = Name(lambda client: _unsaid(client.tables.list()))
NAMESPACE = Name(lambda client: _unsaid(client.admin.namespaces()))
JOB = Name(lambda client: ((job.name, job.help) for job in client.admin.jobs()))
SESSION = Name(lambda client: _unsaid(session.name for session in client.sessions.list()))
BACKUP = Name(lambda client: _unsaid(backup.name for backup in client.admin.backups()))
PROFILE = ProfileName()


class GroupName(Name):
    """The name of a group of the topic that the argument before it names."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        topic = ctx.params.get("topic")
        if not isinstance(topic, str):
            return []
        return _completed(lambda: _asked(ctx, lambda client: _groups(client, topic)), incomplete)


def _groups(client: Client, topic: str) -> Known:
    return ((group.name, group.options.mode) for group in client.topic(topic).groups())


GROUP = GroupName(lambda _client: ())


def _asked(ctx: click.Context, known: Callable[[Client], Known]) -> Known:
    """Ask the server, once. A store that this process would have to open is not asked."""
    import basalt
    from basalt.cli.credentials import kerberos_for, tls_for, token_for

    target = (ctx.find_object(Invocation) or Invocation()).target()
    if target.url.startswith("embedded:"):
        return
    proof = token_for(target.url, replace(target.profile, token_command=()))  # a Tab runs no program
    with basalt.connect(
        target.url,
        namespace=target.namespace,
        timeout_ms=COMPLETION_MS_MAX,
        attempts_max=1,
        token=proof,
        tls=tls_for(target.url, target.profile),
        kerberos=proof is None and kerberos_for(target.url, target.profile),
    ) as client:
        yield from known(client)


def _completed(known: Callable[[], Known], incomplete: str) -> list[CompletionItem]:
    """The names that begin so. A completion neither fails nor says anything: when something is wrong, there are none."""
    from click.shell_completion import CompletionItem

    try:
        found = (CompletionItem(name, help=told) for name, told in known() if name.startswith(incomplete))
        return list(islice(found, COMPLETIONS_MAX))
    except Exception:  # noqa: BLE001  # a message in the middle of a command line helps nobody
        return []


def _short(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= NAME_CHARS_MAX else text[:NAME_CHARS_MAX] + "…")


def stacked(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator, in the order in which help lists them."""

    def decorated(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


output_option = click.option(
    "-o",
    "--output",
    cls=CommonOption,
    type=click.Choice(OUTPUT_FORMATS),
    help="How to write the result. [default: table]",
)
common_options = stacked(
    click.option(
        "--url",
        cls=CommonOption,
        metavar="URL",
        help="Server (HOST:PORT is enough; several with commas between), or embedded:DIR. [env: BASALT_URL]",
    ),
    click.option(
        "--namespace",
        cls=CommonOption,
        metavar="NAME",
        type=NAMESPACE,
        help="Namespace. [env: BASALT_NAMESPACE]",
    ),
    click.option(
        "--profile",
        cls=CommonOption,
        metavar="NAME",
        type=PROFILE,
        help="Profile to use. [env: BASALT_PROFILE]",
    ),
    click.option(
        "--timeout",
        "timeout_ms",
        cls=CommonOption,
        type=DurationMs(),
        metavar="DURATION",
        help="How long one call may take, and be tried again. [default: 30s; 5 attempts where no server listens]",
    ),
    output_option,
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Check and tell what would happen; change nothing.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
# Where a server's settings come from, beside the environment.
settings_options = stacked(
    click.option(
        "--config", type=click.Path(path_type=Path), envvar="BASALT_CONFIG", help="Settings file. [env: BASALT_CONFIG]"
    ),
    click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="One setting; goes before all else. Repeatable."
    ),
)
# What the audit keeps of an operator's act.
author_options = stacked(
    click.option("--reason", default="", metavar="TEXT", help="Why; kept in the audit."),
    click.option(
        "--as", "by", default=lambda: os.environ.get("USER", ""), metavar="NAME", help="Who does it. [default: $USER]"
    ),
)


def command(name: str | None = None, options: Callable[[Any], Any] = common_options) -> Callable[[Any], click.Command]:
    """A command with these common options, whose first argument is the invocation."""

    def made(function: Callable[..., Any]) -> click.Command:
        return click.command(name, cls=Command)(options(pass_invocation(function)))

    return made


def limit_option(default: int, maximum: int | None, what: str, metavar: str | None = "N") -> Callable[[F], F]:
    """--limit: how many results, at most."""
    return click.option(
        "--limit", type=click.IntRange(1, maximum), default=default, show_default=True, metavar=metavar,
        help=f"At most so many{what}.",
    )  # fmt: skip


def payload_format_option(forms: Sequence[str], help_text: str = "How to write payloads.") -> Callable[[F], F]:
    """--format: how bytes are written."""
    return click.option("--format", "form", type=click.Choice(forms), default="text", show_default=True, help=help_text)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; elsewhere insist on --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Usage(f"{uncapitalized(question)} Nobody is there to ask", hint="add --yes to do it")
    if not click.confirm(question, err=True):
        raise Usage("nothing was changed", hint="answer y, or add --yes, to do it")
