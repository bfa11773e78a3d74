"""`basalt completion`: completion scripts for shells."""

from __future__ import annotations

import click

from basalt.cli.options.options import Command


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell's completion script.

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
