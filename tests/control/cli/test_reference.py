"""docs/reference/cli.md against the real tree of commands, and the lazy table against the commands."""

from __future__ import annotations

from pathlib import Path

import click

from basalt.cli.options import Command
from basalt.cli.reference import commands, page
from basalt.cli.root import SECTIONS, root

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


def tree() -> list[tuple[str, click.Command]]:
    return [(path, command) for path, command, _ in commands(root, click.Context(root, info_name="basalt"))]


def test_the_reference_page_is_written_from_the_commands():
    assert PAGE.read_text() == page(), "run `make reference`"


def test_every_command_is_in_the_page_and_has_help_for_itself_and_each_option():
    found = tree()
    assert len(found) > 30
    for path, command in found:
        assert f"### {path}\n" in PAGE.read_text()
        assert command.help
        assert isinstance(command, Command), path
        for param in command.params:
            if isinstance(param, click.Option):
                assert param.help, f"{path} {param.name}"


def test_help_works_for_every_command(run):
    for path, _ in tree():
        ran = run(*path.split()[1:], "--help")
        assert ran.code == 0
        assert ran.out.startswith(f"Usage: {path}")


def test_the_lazy_table_says_what_the_commands_say():
    context = click.Context(root, info_name="basalt")
    for section in SECTIONS.values():
        for name, lazy in section.items():
            command = root.get_command(context, name)
            assert command is not None
            assert command.name == name
            assert (command.help or "").split("\n")[0] == lazy.help


def test_every_write_can_be_tried_without_writing():
    reads = {"list", "show", "peek", "poll", "history", "check", "consume", "doctor", "completion", "serve"}
    reads |= {
        "get",
        "scan",
        "status",
        "regions",
        "info",
        "describe",
        "find-hanging",
        "timeline",
        "markers",
        "owner",
        "shards",
    }
    reads |= {
        "prune-audit",
        "invalid-check",
        "verify",
        "statistics",
        "range",
        "top",
        "series",
        "wait",
        "claims",
        "lag",
        "members",
        "messages",
        "slots",
        "list-invalid",
        "pipelines",
        "alerts",
        "process",
        "whoami",
        "principals",
        "would-refuse",
        "unused",
        "export",
        # These make and end a token of one's own: there is nothing of anybody else's to try it on.
        "login",
        "logout",
        "reset",
    }
    for path, command in tree():
        words = set(path.split())
        if not words & reads and "explain" not in words:
            assert any(param.name == "dry_run" for param in command.params), path


def test_what_destroys_asks():
    asking = {path for path, command in tree() if any(param.name == "yes" for param in command.params)}
    assert asking == {
        "basalt access apply",
        "basalt backup delete",
        "basalt grant remove",
        "basalt group delete",
        "basalt group seek",
        "basalt hbase uninstall",
        "basalt prune restore",
        "basalt role remove",
        "basalt table delete",
        "basalt token revoke",
        "basalt topic delete",
        "basalt topic producers delete",
        "basalt topic truncate",
        "basalt tx abort",
        "basalt tx invalidate",
        "basalt tx sessions delete",
        "basalt init",
    }
