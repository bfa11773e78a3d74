"""`basalt profile` and `completion`: what a user sets up on this machine."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import click

from basalt.cli.options import (
    PROFILE,
    PROFILE_NAME,
    Command,
    Invocation,
    Profile,
    dry_run_option,
    output_option,
    profiles_path,
    read_profiles,
    write_profiles,
)
from basalt.cli.output import columns
from basalt.cli.root import group
from basalt.redaction import address_without_password

profile = group("profile", "Keep servers' addresses under names.")


def _profile_name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not PROFILE_NAME.fullmatch(value):
        raise click.BadParameter(f"{value[:80]!r} is not 1 to 64 letters, digits, _ or -")
    return value


def _server_url(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    from basalt.client.servers import http_url

    if not value.startswith("embedded:"):
        value = ",".join(map(http_url, value.split(",")))
    try:
        servers = [urlsplit(server) for server in value.split(",")]
        known = servers[0].scheme == "embedded" or all(
            parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 for parts in servers
        )
    except ValueError:
        known = False
    if not known or not value.isprintable():
        shown = address_without_password(value)[:200]
        raise click.BadParameter(f"{shown!r} is not http://HOST:PORT, https://HOST:PORT or embedded:DIR")
    if any(
        "@" in parts.netloc or (parts.scheme != "embedded" and (parts.query or parts.fragment)) for parts in servers
    ):
        raise click.BadParameter("a profile keeps no passwords; leave user, query and fragment out of the URL")
    return value


@profile.call("add", output_option)
@click.argument("name", callback=_profile_name)
@click.option("--url", required=True, callback=_server_url, help="The server, or embedded:DIR.")
@click.option("--namespace", help="Namespace of topics that are named without one.")
@click.option("--use", is_flag=True, help="Use it from now on where no other is named.")
@dry_run_option
def add(invocation: Invocation, name: str, url: str, namespace: str | None, use: bool, dry_run: bool) -> None:
    """Add a profile, or replace the one of this name. The first one is used at once."""
    profiles = read_profiles()
    used = use or not profiles.by_name
    changed = profiles.with_profile(name, Profile(url, namespace))
    _write(invocation, changed.using(name) if used else changed, dry_run, name, "use" if used else "add")


@profile.call("list", output_option)
def list_profiles(invocation: Invocation) -> None:
    """List profiles; the one in use has a yes."""
    profiles = read_profiles()
    rows = [
        {"name": name, "url": profile.url, "namespace": profile.namespace, "used": name == profiles.current}
        for name, profile in profiles.by_name.items()
    ]
    invocation.out.rows(columns("name url namespace used"), rows)


@profile.call("use", output_option)
@click.argument("name", type=PROFILE, callback=_profile_name)
@dry_run_option
def use(invocation: Invocation, name: str, dry_run: bool) -> None:
    """Use a profile from now on where no other is named."""
    profiles = read_profiles()
    profiles.get(name)
    _write(invocation, profiles.using(name), dry_run, name, "use")


@profile.call("remove", output_option)
@click.argument("name", type=PROFILE, callback=_profile_name)
@dry_run_option
def remove(invocation: Invocation, name: str, dry_run: bool) -> None:
    """Remove a profile."""
    profiles = read_profiles()
    profiles.get(name)
    _write(invocation, profiles.without(name), dry_run, name, "remove")


def _write(invocation: Invocation, changed: Any, dry_run: bool, name: str, what: str) -> None:
    if not dry_run:
        write_profiles(changed)
    done = {"add": "added", "use": "using", "remove": "removed"}[what]
    sentence = f"would {what} profile {name}" if dry_run else f"{done} profile {name} ({profiles_path()})"
    invocation.out.done(sentence, {"profile": name, "action": what, "file": str(profiles_path()), "dry_run": dry_run})


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell's completion script.

    It completes commands, options, and the names of topics, tables, jobs and more, which it asks the server that the
    command line names. Without an answer within a second there are none.

    \b
    bash: basalt completion bash > ~/.local/share/bash-completion/completions/basalt
    zsh:  basalt completion zsh > ~/.zfunc/_basalt     (with ~/.zfunc in fpath)
    fish: basalt completion fish > ~/.config/fish/completions/basalt.fish
    """
    from click.shell_completion import get_completion_class

    from basalt.cli.main import COMPLETION_VARIABLE, PROGRAM

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, PROGRAM, COMPLETION_VARIABLE).source())
