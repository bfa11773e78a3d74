"""`basalt profile` and `completion`: what a user sets up on this machine."""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from basalt.cli.failures import Usage
from basalt.cli.options import PROFILE, Command, Invocation, dry_run_option, output_option, stacked
from basalt.cli.output import columns
from basalt.cli.profiles import PROFILE_NAME, Profile, profiles_path, read_profiles, write_profiles
from basalt.cli.root import group
from basalt.redaction import address_without_password

_TOKEN = re.compile(r"basalt_[0-9a-f]{16}_|eyJ[A-Za-z0-9_-]{8,}\.")  # of a server's own, and a JWT

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


def _path(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """A path from anywhere: commands run in other folders than this one."""
    if value is None:
        return None
    _refuse_token(value)
    return str(Path(value).expanduser().absolute())


def _words(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    if value is None:
        return ()
    try:
        words = shlex.split(value)
    except ValueError:
        words = []
    if not words:
        raise click.BadParameter("it is no command: quote it as a shell would need it")
    for word in words:
        _refuse_token(word)
    # In another folder there may be another program of this name.
    program = str(Path(words[0]).expanduser().absolute()) if "/" in words[0] else words[0]
    return (program, *words[1:])


def _refuse_token(value: str) -> None:
    if _TOKEN.search(value):
        raise click.BadParameter(
            "a token itself is given; a profile says where one is, and your shell may have kept this one"
        )


_credentials = stacked(
    click.option("--token-file", metavar="PATH", callback=_path, help="File that holds the token to send."),
    click.option(
        "--token-command", metavar="COMMAND", callback=_words,
        help='Command that prints the token, or JSON {"token", "expiresAt"}; run without a shell, when a token is needed.',
    ),
    click.option("--kerberos", is_flag=True, help="Prove who calls by a Kerberos ticket (kinit)."),
    click.option("--ca-file", metavar="PATH", callback=_path, help="Authorities to trust, in place of the system's (PEM)."),
    click.option("--cert-file", metavar="PATH", callback=_path, help="Certificate to show, with its chain (PEM)."),
    click.option("--key-file", metavar="PATH", callback=_path, help="Its key, if it is not in the same file."),
)  # fmt: skip


@profile.call("add", output_option)
@click.argument("name", callback=_profile_name)
@click.option("--url", required=True, callback=_server_url, help="The server, or embedded:DIR.")
@click.option("--namespace", help="Namespace of topics that are named without one.")
@_credentials
@click.option("--use", is_flag=True, help="Use it from now on where no other is named.")
@dry_run_option
def add(
    invocation: Invocation, name: str, url: str, namespace: str | None, use: bool, dry_run: bool, **credentials: Any
) -> None:
    """Add a profile, or replace the one of this name. The first one is used at once.

    A profile holds no secret: it says where a token is, or by which program it is had.
    """
    profiles = read_profiles()
    used = use or not profiles.by_name
    if any(credentials.values()) and url.startswith("embedded:"):
        raise Usage("an embedded store asks for no credential", hint="leave the files and the command out")
    if any(credentials[name] for name in ("ca_file", "cert_file", "key_file")) and not url.startswith("https:"):
        raise Usage("certificates are for https, and the URL is without it", hint="write https://, or leave them out")
    try:
        made = Profile(url, namespace, **credentials)
    except ValueError as error:
        raise Usage(str(error), hint="see `basalt profile add --help`") from None
    changed = profiles.with_profile(name, made)
    _write(invocation, changed.using(name) if used else changed, dry_run, name, "use" if used else "add")


@profile.call("list", output_option)
def list_profiles(invocation: Invocation) -> None:
    """List profiles; the one in use has a yes."""
    profiles = read_profiles()
    rows = [
        {
            "name": name,
            **asdict(profile),
            "token_command": list(profile.token_command),
            "used": name == profiles.current,
        }
        for name, profile in profiles.by_name.items()
    ]
    invocation.out.rows(columns("name url namespace token_file token_command kerberos cert_file used"), rows)


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
