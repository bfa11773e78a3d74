"""docs/reference/cli.md: a hand-written head, and a section for every command of the real tree."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from basalt.cli.options import CommonOption
from basalt.cli.root import root

_HEAD = """\
# The command line

`basalt COMMAND --help` says what is here too. Every command is a call or a few of the client; whatever it does, the HTTP
API does as well. `basalt hbase` alone talks to HBase, for a server cannot start before its tables are there.

## Which server

`--url` names it, then `BASALT_URL`, then the profile (`--profile`, then `BASALT_PROFILE`, then the one in use), then
`http://127.0.0.1:4780`. The namespace likewise: `--namespace`, `BASALT_NAMESPACE`, the profile, `default`. Options may stand
before the command as well as after it; the later one wins. `embedded:DIR` in place of a URL opens a data directory without
a server.

## Who calls

A server may ask [who calls](../operations/security.md). No option takes a secret, for arguments are in the shell's history and in the list of processes.
First to last:

1. `BASALT_TOKEN`, the token itself, or `BASALT_TOKEN_FILE`, a file that holds it;
2. a login: `basalt auth login` turns what else proves who you are into a token that ends within 12 hours, in `logins.json` beside the profiles, and
   sends it to that server from then on. `basalt auth logout` ends it there and forgets it here;
3. `token_file` or `token_command` of the profile.

`basalt profile add prod --url https://basalt.example --token-command "vault read -field=token secret/basalt"` keeps where a token is, and no token. The
command is run without a shell and without input when a token is needed, at most 120 s; what it says on standard error is seen. It prints the token
alone, or JSON: `{"token": "…", "expiresAt": "2026-01-31T10:00:00Z"}` (or milliseconds since 1970). It is asked again when the token is about to expire
or is refused, so `basalt consume --follow` goes on. Completion by Tab runs no such command.

`--ca-file`, `--cert-file` and `--key-file` of a profile name PEM files for https: whom to trust, and what to show. `BASALT_CA_FILE`,
`BASALT_CERT_FILE` and `BASALT_KEY_FILE` go before all three.

`basalt token create` and `rotate` print a token alone on standard output, this once, and the rest on standard error; `--to-file` writes it to a file of
your own instead, which `rotate` replaces as a whole. [A guide](../guides/credentials.md) has all of it.

What a profile names goes to the servers of its own URL: with another `--url`, or another one in `BASALT_URL`, nothing of it is sent. Only the
environment's token goes to whatever server is named.

## Output

`-o table` (the default) is for people: columns, times in UTC, sizes in KiB. On a terminal it has some style; elsewhere it is
plain text. `-o json` is one document, `-o jsonl` one line for each result, `-o yaml` a document. Programs get times as
milliseconds since 1970 in keys that end in `_ms`. A payload is under `payload` if it is UTF-8, else under
`payload_base64`. Control and bidirectional characters are written as escapes in every format; `consume --format raw`
alone writes bytes as they are.

Results are on standard output, everything else on standard error: a progress bar where a terminal watches, and one line
for an error, which says what to do next.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | refused or failed |
| 2 | the command line or a setting is wrong; nothing was done |
| 3 | a topic, message, transaction, job or profile does not exist |
| 4 | conflict: it exists already, a transaction has ended, another one won |
| 5 | nobody knows who calls, or they may not do this (401, 403) |
| 6 | the server cannot be reached, is busy or stopping, was asked too much (429), or its answer was lost |
| 7 | a command that looks for trouble found some |
| 130 | Ctrl-C |
| 141 | whoever read the output closed it |

Writes take `--dry-run`, which checks and tells but changes nothing. What destroys something asks first on a terminal, and
elsewhere wants `--yes`.

## Positions

Wherever a position is taken (`--from`, `--to`, and `from=` of the HTTP API, where a plus sign is `%2B`) it is written as
one of these:

| SPEC | position |
|---|---|
| `start` | before the oldest message |
| `end` | behind the newest message there is when the command starts |
| `now` | the present time |
| 40 hex digits | the message of this id, or where it would be |
| `@1767225600000` | milliseconds since 1970 |
| `@2026-01-01T00:00:00Z` | an RFC 3339 date-time; its offset is not optional |
| `-1h`, `-1h30m`, `+10m` | from now, in ms, s, m, h, d and w |

A range starts at `--from`, which is in it, and stops before `--to`, which is not.

## Templates

`basalt consume --template '{published} {key}: {value}'` writes of each message what the template says. A field that a message
does not have is empty.

| field | what it is |
|---|---|
| `{id}` | its id, 40 hex digits |
| `{value}` | its payload |
| `{key}` | its key |
| `{headers}` | all headers, as `name=value`, with spaces between them |
| `{header.NAME}` | the first header of this name |
| `{published}`, `{published_ms}` | when it was published: RFC 3339 in UTC; milliseconds since 1970 |
| `{event_time}`, `{event_time_ms}` | its event time, likewise |
| `{ttl_ms}` | a time to live of its own, in milliseconds |

`{{` and `}}` are braces. Escapes are `\\n`, `\\t`, `\\r`, `\\0`, `\\\\` and `\\xHH`; they work in `--key-separator`, too. A line end
follows, unless the template itself ends in `\\n` or `\\0`. `--format` says how keys, headers' values and payloads are written;
only `raw` writes them as they are.

<!-- From here on written by `make reference`, as is all of this page; a test compares. -->
"""


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command below this one that does something by itself: its path, the command, and a context for it."""
    if not isinstance(command, click.Group):
        yield context.command_path, command, context
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from commands(child, click.Context(child, info_name=name, parent=context))


def page() -> str:
    sections = [_section(*found) for found in commands(root, click.Context(root, info_name="basalt"))]
    return "\n".join([_HEAD, "## Commands\n", _common_options(), *sections])


def _common_options() -> str:
    options = [param for param in root.params if isinstance(param, CommonOption)]
    return "Common options, which most commands take:\n\n" + _table(options, click.Context(root, info_name="basalt"))


def _section(path: str, command: click.Command, context: click.Context) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    own = [param for param in command.params if isinstance(param, click.Option) and not isinstance(param, CommonOption)]
    lines = [f"### {path}", "", f"`{path} {usage}`", "", *_prose(inspect.cleandoc(command.help or "")), ""]
    return "\n".join(lines) + ("\n" + _table(own, context) if own else "")


def _prose(text: str) -> list[str]:
    """Help text as Markdown: a paragraph that click must not wrap becomes a code block."""
    lines: list[str] = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("\b\n"):
            lines += ["```", *paragraph.removeprefix("\b\n").splitlines(), "```", ""]
        else:
            lines += [*paragraph.splitlines(), ""]
    return lines[:-1]


def _table(options: list[click.Option] | list[CommonOption], context: click.Context) -> str:
    rows = ["| option | meaning |", "|---|---|"]
    for option in options:
        record = option.get_help_record(context)
        if record is not None:
            rows.append(f"| `{_cell(record[0])}` | {_cell(record[1])} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
