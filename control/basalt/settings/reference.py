"""Settings written out for people: the commented file of `basalt init`, and docs/reference/settings.md."""

from __future__ import annotations

import sys

from basalt.settings.tree import keys

_FILE_HEAD = """\
# Settings of a Basalt server, for `basalt serve --config basalt.toml`, which needs no flag beside it once server.data is set.
# Every key is here with its default; take away the # to set it. Flags (--set KEY=VALUE) and environment variables
# (BASALT__STORE__KIND) go before this file. Sizes may be written as "10MiB" and durations as "30s".
"""

_PAGE_HEAD = """\
# Settings

`basalt serve` reads its settings when it starts. A value comes from, first to last:

1. a flag: `--set store.kind=memory`; `--data`, `--host` and `--port` are short for `server.data`, `server.host` and `server.port`
2. an environment variable: `BASALT__STORE__KIND=memory`; sections are joined by two underscores; a dash becomes one underscore
   (`BASALT__JOBS__LOG_SNAPSHOT__INTERVAL_MS`)
3. a file: `--config basalt.toml` or `BASALT_CONFIG`; `basalt init` writes one with every key in it
4. the default

`basalt config show --origin` tells what is in force and where it came from, `basalt config check` what is wrong.
Any variable may name a file instead and end in `_FILE`: the value is then the content of that file (one line end at
its end is not part of it), and `basalt config show` and `GET /v1/admin/settings` tell the file instead of it.

Keys that end in `_bytes_max` take a number of bytes or a size with KiB, MiB or GiB ("10MiB"); keys with `_ms` take
milliseconds or a duration with ms, s, m, h or d ("30s"). An unknown key, a value of the wrong type or out of range, a key
that is set twice and a file that is not TOML in UTF-8 stop the server before it opens anything, with exit code 2.

What is marked **live** below can change in a running server: `basalt config set log.level=debug`. That holds until the server
stops, is in the audit, and is lost with a restart or a take-over: a standby has its own settings. Everything else needs a start.

<!-- Written by `make reference`; a test compares. -->
"""


def settings_file() -> str:
    """A TOML file with every key commented out at its default."""
    lines = [_FILE_HEAD]
    section = None
    for key in keys().values():
        head, _, name = key.name.rpartition(".")
        if head != section:
            lines.append(f"\n[{head}]")
            section = head
        unit = f", in {key.unit}" if key.unit else ""
        lines.append(
            f"# {key.kind.help}. Values: {key.kind.describe()}{unit}.\n# {name} = {key.kind.toml(key.default)}"
        )
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """The reference page: one table for each top section."""
    lines = [_PAGE_HEAD]
    section = None
    for key in keys().values():
        top = key.name.partition(".")[0]
        if top != section:
            lines.append(f"{'' if section is None else chr(10)}## {top}\n")
            lines.append("| key | default | values | meaning |\n|---|---|---|---|")
            section = top
        values = key.kind.describe() + (f" ({key.unit})" if key.unit else "")
        live = "; **live**" if key.live else ""
        lines.append(f"| `{key.name}` | {key.kind.write(key.default)} | {values} | {key.kind.help}{live} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(settings_page())
