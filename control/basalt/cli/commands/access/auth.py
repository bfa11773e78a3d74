"""`basalt auth`: who one is to a server, and what one may do there; logins; what was refused."""

from __future__ import annotations

from pathlib import Path

import click

from basalt.cli.credentials import login_at, shown_url, token_variable
from basalt.cli.failures import EXIT_AUTH, EXIT_NOT_FOUND, EXIT_OK, CommandFailure, Usage
from basalt.cli.logins import Login, logins_path, read_logins, write_logins
from basalt.cli.options import DurationMs, Invocation, limit_option, output_option
from basalt.cli.output import columns, row, time_text
from basalt.cli.root import group
from basalt.errors import BasaltError, UnauthenticatedError
from basalt_engine.clock import SystemClock

auth = group("auth", "Show who one is to a server, and what one may do there; log in and out.")

_IDENTITY = columns("principal groups roles superuser judged credential expires_ms only via", expires_ms="expires")
_SEEN = columns("principal last_ms credential via address first_ms", last_ms="last seen", first_ms="first seen")
_REFUSALS = columns("count principal verb resource first_ms last_ms")


@auth.call("whoami")
def whoami(invocation: Invocation) -> None:
    """Show who one is to the server."""
    with invocation.client() as client:
        found = client.auth.whoami()
    invocation.out.record(row(found), _IDENTITY if invocation.out.for_people else ())


@auth.call("check")
@click.argument("verb")
@click.argument("resource")
@click.option("--principal", default="", metavar="PRINCIPAL", help="Whether this one has it, without its groups.")
def check(invocation: Invocation, verb: str, resource: str, principal: str) -> int:
    """Tell whether one has a right, and by which grants; exit code 5 if one has not.

    \b
    basalt auth check write topic:default:orders
    basalt auth check operate cluster
    """
    with invocation.client() as client:
        found = client.auth.check(verb, resource, principal=principal)
    may = "may" if found.allowed else "may not"
    grants = "; ".join(f"{each.subject} has {', '.join(each.verbs)} on {each.resource}" for each in found.grants)
    by = f" ({grants})" if grants else ""
    invocation.out.done(f"{found.principal} {may} {verb} {resource}: {found.because}{by}", row(found))
    return EXIT_OK if found.allowed else EXIT_AUTH


@auth.call("login")
@click.option(
    "--ttl", "ttl_ms", type=DurationMs(minimum_ms=1_000), default="8h", metavar="DURATION",
    help="How long it lasts, at most 12h. [default: 8h]",
)  # fmt: skip
def login(invocation: Invocation, ttl_ms: int) -> None:
    """Turn what proves who one is into a short token, which commands to this server send until it ends.

    It is kept in a file beside the profiles that only you can read. `basalt auth logout` ends it.
    """
    target = invocation.target()
    _refuse_embedded(target.url)
    with invocation.client(use_login=False) as client:
        made = client.auth.login(ttl_ms=ttl_ms)
    ends_ms = made.info.expires_ms
    assert made.token is not None
    assert ends_ms is not None
    now_ms = SystemClock().now_ms()
    kept = {at: each for at, each in read_logins().items() if now_ms < each.expires_ms}
    write_logins({**kept, shown_url(target.url): Login(made.token, made.info.principal, ends_ms)})
    invocation.out.done(
        f"logged in as {made.info.principal} until {time_text(ends_ms)} ({logins_path()})",
        {**row(made.info), "url": shown_url(target.url), "file": str(logins_path())},
    )
    if token_variable() is not None:
        click.echo(f"basalt: {token_variable()} is set, and goes before this login", err=True)


@auth.call("logout")
def logout(invocation: Invocation) -> None:
    """End the login at this server, there and here."""
    target = invocation.target()
    _refuse_embedded(target.url)
    found = login_at(target.url)
    if found is None:
        raise CommandFailure(
            f"there is no login at {target.url}", hint="nothing is to be done", exit_code=EXIT_NOT_FOUND
        )
    # Here first: what cannot be ended there, for nobody answers, is then at least nowhere else any more.
    write_logins({at: each for at, each in read_logins().items() if each != found})
    try:
        with invocation.client(token=found.token) as client:
            client.auth.logout()
    except UnauthenticatedError:
        pass  # it was over before
    except BasaltError as error:
        error.add_note(f"the login is forgotten here, and counts there until {time_text(found.expires_ms)}")
        raise
    invocation.out.done(f"logged out {found.principal}", {"principal": found.principal, "url": shown_url(target.url)})


@auth.call("would-refuse")
@limit_option(100, 10_000, "")
def would_refuse(invocation: Invocation, limit: int) -> None:
    """List what callers had no right to since the server started, newest first.

    With auth.enforce = false it was let through, and would be refused: grant it, or have it stop, and then enforce.
    """
    with invocation.client() as client:
        found = client.auth.refusals(limit=limit)
    invocation.out.rows(_REFUSALS, [row(each) for each in found])
    if invocation.out.for_people:
        enforced = [each.enforced for each in found]
        if enforced and enforced[0]:
            click.echo("basalt: these were refused: auth.enforce is true", err=True)


@auth.call("principals")
@limit_option(100, 10_000, "")
def list_principals(invocation: Invocation, limit: int) -> None:
    """List who called since the server started, those that called last first."""
    invocation.show_all(_SEEN, lambda client: client.auth.principals(limit=limit))


def _refuse_embedded(url: str) -> None:
    if url.startswith("embedded:"):
        raise Usage("an embedded store asks for no credential", hint="name a server with --url")


@auth.call("reset", output_option)
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="Data directory."
)
@click.option(
    "--ttl",
    "ttl_ms",
    type=DurationMs(minimum_ms=1_000),
    default="1d",
    metavar="DURATION",
    help="How long it lasts. [default: 1d]",
)
def reset(invocation: Invocation, data: Path, ttl_ms: int) -> None:
    """Make a token of token:bootstrap, who may do everything, in a data directory that no server has open.

    For an operator who has lost every other way in: who may write the data directory owns what is in it. The token is printed once; the server
    needs `token` in auth.kinds to take it.
    """
    import asyncio

    from basalt.access.directory import Directory
    from basalt.access.proofs.token import BOOTSTRAP, draw_token
    from basalt.access.records import TokenRow
    from basalt_engine.stores.rocks import RocksStore

    new, clock = draw_token(), SystemClock()
    now_ms = clock.now_ms()
    row = TokenRow(
        BOOTSTRAP, new.digest, now_ms, now_ms + ttl_ms, note="basalt auth reset", made_by="basalt auth reset"
    )

    async def add() -> None:
        store = RocksStore.open(data)
        try:
            directory = Directory(store, clock, (BOOTSTRAP,))
            await directory.read()
            await directory.add_token(new.id, row)
        finally:
            store.close()

    asyncio.run(add())
    invocation.out.done(new.text, {"token": new.text, "id": new.id, "principal": BOOTSTRAP, "expiresMs": row.expire_ms})
