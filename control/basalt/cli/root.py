"""The tree of commands. The table below has every command's one line of help, so that help imports no command."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click

import basalt
from basalt.cli.failures import CommandFailure, Usage
from basalt.cli.options import command, common_options

ENTRY_POINTS = "basalt.commands"  # of packages above this one: the command line names them, and never imports them


class Lazy(NamedTuple):
    """The place of a command (module of `basalt.cli.commands`, attribute) and its one line of help.

    One without a module comes from the entry point that the attribute names.
    """

    module: str
    attribute: str
    help: str


SECTIONS: dict[str, dict[str, Lazy]] = {
    "Messages": {
        "topic": Lazy("topic", "topic", "Create, list, show, update and delete topics."),
        "namespace": Lazy("topic", "namespace", "List namespaces."),
        "publish": Lazy("messages", "publish", "Publish messages to a topic."),
        "consume": Lazy("messages", "consume", "Read messages from a topic."),
        "message": Lazy("messages", "message", "Look at single messages, hidden ones too."),
        "group": Lazy("group", "group", "Create, list, show, seek, pause and delete consumer groups."),
        "table": Lazy("table", "table", "Create, list, show and delete tables; get, put and scan their cells."),
        "tx": Lazy("tx", "tx", "Begin, end, list, describe and find transactions."),
        "top": Lazy(
            "top",
            "top",
            "Watch what a server does: its busiest topics, its groups, its transactions, and jobs that are late.",
        ),
        "pipelines": Lazy(
            "diagnosis",
            "pipelines",
            "Show pipelines as the server knows them: event time, jobs that commit by name, and who reads and writes what.",
        ),
        "series": Lazy(
            "top", "series", "Show how a server's figures went: rates, latencies, transactions, lag, memory."
        ),
        "explain": Lazy(
            "diagnosis",
            "explain",
            "Tell why a reader stops, a message of a group waits, and what a transaction holds back.",
        ),
    },
    "Operations": {
        "serve": Lazy("server", "serve", "Run a server."),
        "wait": Lazy("server", "wait", "Wait until a server is ready, and print its address."),
        "init": Lazy("server", "init", "Write a settings file with every key commented."),
        "config": Lazy("server", "config", "Show, check and change settings."),
        "doctor": Lazy("diagnosis", "doctor", "Check a server and a data directory."),
        "alerts": Lazy(
            "operations", "alerts", "Tell which alerts of a server would fire now, and which will if it stays so."
        ),
        "process": Lazy(
            "operations",
            "process",
            "Show a server's process from within: its event loop, queues, caches, connections and threads.",
        ),
        "job": Lazy("operations", "job", "List, run, pause and resume scheduled jobs."),
        "hbase": Lazy("hbase", "hbase", "Install, check, upgrade and remove Basalt's tables in HBase."),
        "cluster": Lazy(
            "operations", "cluster", "Show who leads, who stands by and who owns which topics; move shards."
        ),
        "snapshot": Lazy("operations", "snapshot", "Show and publish the transaction snapshot."),
        "prune": Lazy("operations", "prune", "Forget failed writers once no row of theirs is left."),
        "auth": Lazy("access.auth", "auth", "Show who one is to a server, and what one may do there; log in and out."),
        "token": Lazy("access.token", "token", "Make, list, rotate and revoke tokens."),
        "grant": Lazy("access.grant", "grant", "Give rights, list them and take them back."),
        "role": Lazy(
            "access.role", "role", "Put principals and groups together under a name, for grants to role:NAME."
        ),
        "quota": Lazy("access.quota", "quota", "Show and set how much of a server a principal may use."),
        "access": Lazy(
            "access.access", "access", "Keep roles, grants and quotas in a file: export them, and apply it."
        ),
        "audit": Lazy("operations", "audit", "Show what was done by hand, by whom and why."),
        "backup": Lazy("backup", "backup", "Make, list, verify, delete and restore backups of a store."),
        "repair": Lazy("backup", "repair", "Show what is damaged in a data directory, and mend what can be mended."),
        "spark": Lazy("", "jobs", "Audit, archive, copy and count topics with Spark."),
        "bench": Lazy("bench", "bench", "Measure publish and poll rates of a server."),
    },
    "This machine": {
        "profile": Lazy("profile", "profile", "Keep servers' addresses under names."),
        "completion": Lazy("profile", "completion", "Print a shell's completion script."),
    },
}


class NearestGroup(click.Group):
    """A group that answers an unknown command with the nearest one there is."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            nearest = difflib.get_close_matches(name, self.list_commands(ctx), n=1, cutoff=0.5)
            hint = f"did you mean `{ctx.command_path} {nearest[0]}`?" if nearest else f"see `{ctx.command_path} --help`"
            raise Usage(f"no such command {name!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def call(self, name: str, options: Callable[[Any], Any] = common_options) -> Callable[[Any], click.Command]:
        """Adds a command as `options.command` makes it."""

        def added(function: Callable[..., Any]) -> click.Command:
            made = command(name, options)(function)
            self.add_command(made)
            return made

        return added


class LazyGroup(NearestGroup):
    """The root: loads a command's module when it is called for, and not before."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, Lazy]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections
        self._lazy = {name: lazy for section in sections.values() for name, lazy in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        if not lazy.module:
            return _from_entry_point(cmd_name, lazy.attribute)
        found = getattr(importlib.import_module(f"basalt.cli.commands.{lazy.module}"), lazy.attribute)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, lazy.help) for name, lazy in section.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(n, help=lazy.help) for n, lazy in self._lazy.items() if n.startswith(incomplete)]
        return found or click.Command.shell_complete(self, ctx, incomplete)


def _from_entry_point(command_name: str, name: str) -> click.Command:
    """The command that another package of this distribution brings."""
    from importlib.metadata import entry_points

    found = tuple(entry_points(group=ENTRY_POINTS, name=name))
    if not found:
        raise CommandFailure(
            f"this installation does not say where `basalt {command_name}` is",
            hint="install the package anew: pip install basalt-mq",
        )
    brought = found[0].load()
    assert isinstance(brought, click.Command)
    return brought


def group(name: str, help: str) -> NearestGroup:  # noqa: A002 - click's own word for it
    """A group of sub-commands, such as `basalt topic`."""
    return NearestGroup(name, help=help, no_args_is_help=True)


@click.command(
    cls=LazyGroup,
    sections=SECTIONS,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(basalt.__version__, prog_name="basalt", message="%(prog)s %(version)s")
@common_options
def root() -> None:
    """Basalt: transactional messaging. `basalt COMMAND --help` tells more.

    \b
    basalt serve --data ./data --background
    basalt topic create orders
    basalt publish orders '{"id": 1}'
    basalt consume orders
    """
