"""`basalt auth`: who one is to a server, and what one may do there."""

from __future__ import annotations

import click

from basalt.cli.failures import EXIT_AUTH, EXIT_OK
from basalt.cli.options import Invocation
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
