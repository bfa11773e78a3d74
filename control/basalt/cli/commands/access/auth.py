"""`basalt auth`: who one is to a server, and what one may do there."""

from __future__ import annotations

from pathlib import Path

import click

from basalt.cli.failures import EXIT_AUTH, EXIT_OK
from basalt.cli.options import DurationMs, Invocation, output_option
from basalt.cli.output import row
from basalt.cli.root import group

auth = group("auth", "Show who one is to a server, and what one may do there.")


@auth.call("whoami")
def whoami(invocation: Invocation) -> None:
    """Show who one is to the server."""
    with invocation.client() as client:
        found = client.auth.whoami()
    invocation.out.record(row(found))


@auth.call("check")
@click.argument("verb")
@click.argument("resource")
def check(invocation: Invocation, verb: str, resource: str) -> int:
    """Tell whether one has a right, and by which grants; exit code 5 if one has not.

    \b
    basalt auth check write topic:default:orders
    basalt auth check operate cluster
    """
    with invocation.client() as client:
        found = client.auth.check(verb, resource)
    may = "may" if found.allowed else "may not"
    grants = "; ".join(f"{each.subject} has {', '.join(each.verbs)} on {each.resource}" for each in found.grants)
    by = f" ({grants})" if grants else ""
    invocation.out.done(f"{found.principal} {may} {verb} {resource}: {found.because}{by}", row(found))
    return EXIT_OK if found.allowed else EXIT_AUTH


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
    from basalt_engine.clock import SystemClock
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
