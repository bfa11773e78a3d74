"""`make demo`: starts a server, publishes an access log in transactions through two SIGKILLs, reads it back, and checks; then
has a group of workers count the log's visits while they and the server are killed, and checks again. In the end it names the
console's address; with `--open` (`make demo OPEN=1`) the server goes on, with a transaction that hangs, for its pages to be looked at.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import basalt
from demo.counting import Act, shares, visits_of
from demo.counting import differences as differences_of_counts
from demo.own_log import access_lines, make_requests
from demo.pages import print_console, print_next_steps, print_views
from demo.producer import ABORTED_MARK, LINES_TOPIC, read_lines
from demo.report import Views, differences
from demo.server_pair import ServerPair
from demo.server_process import ServerProcess
from demo.story import Story

HANGS_MS = 300_000  # as long as a transaction may; the server ends it by itself then


def main(words: Sequence[str] | None = None, first_step: str | None = None) -> int:
    """Run the demo with these arguments; 1 when anything that was read is not what was published.

    `first_step` is what whoever goes on by hand must do before the server can start again.
    """
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("log", nargs="?", type=Path, help="an access log; without one, the demo server's own requests")
    parser.add_argument("--folder", type=Path, help="an empty folder to work in; without one, a new temporary folder")
    parser.add_argument("--open", action="store_true", help="leave the server running in the end, for its console")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting for the server")
    parser.add_argument(
        "--two", action="store_true", help="two servers that share a store, of which the leader is killed"
    )
    arguments = parser.parse_args(words)
    if arguments.log is not None and not arguments.log.is_file():
        parser.error(f"{arguments.log} is not a file")
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="basalt-demo-"))
    server: ServerProcess | ServerPair
    server = (
        ServerPair(folder, arguments.set)
        if arguments.two
        else ServerProcess(folder, arguments.set, stays=arguments.open)
    )
    stays = False
    try:
        server.start()
        code = run(server, arguments.log)
        if code == 0 and arguments.open:
            leave_open(server)
            stays = True
        elif code == 0:
            print_next_steps(server.data, server.settings, first_step)
        return code
    except BaseException:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        if not stays:
            server.stop()


def run(server: ServerProcess | ServerPair, log: Path | None) -> int:
    """Publish, kill, read and check on this server; the exit code."""
    if log is None:
        sent = make_requests(server.url.partition(",")[0])
        print(f"No LOG given: {sent:,} requests to the demo's own server make a log of real lines")
        lines = access_lines(server.log, sent)
    else:
        lines = log.read_bytes().splitlines()
    if not lines:
        print(f"{log} is empty: there is nothing to publish", file=sys.stderr)
        return 1
    print(f"Publishing {len(lines):,} lines of {log.name if log else 'that log'} in transactions, some of them aborted")
    story = Story(server, lines, print)
    story.play()

    began = time.monotonic()
    with basalt.connect(server.url) as client:
        read = read_lines(client)
    reading_s = time.monotonic() - began

    seen, counted = Views.of(read), Views.of(lines)
    print_views(seen)
    wrong = differences(lines, read, [ABORTED_MARK])
    if seen != counted and not wrong:
        wrong = ["the table differs from a direct count of the file"]
    figures = story.figures
    print(
        f"{figures.transactions} transactions committed, {figures.aborted} aborted and published anew,"
        f" {figures.kills} SIGKILLs ({figures.restarting_s:.1f} s to be back)\n"
        f"{len(lines) / figures.publishing_s:,.0f} lines/s published, {len(read) / reading_s:,.0f} lines/s read"
    )
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr)
    if wrong:
        return 1
    print(
        f"Checked against a direct count of the file: {counted.total:,} page views, {len(counted.clients):,} clients,"
        f" {len(counted.paths):,} paths.\nNone lost, none twice, in order, nothing aborted seen."
    )
    wrong = second_act(server, lines)
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr)
    if wrong:
        return 1
    return 0


def leave_open(server: ServerProcess | ServerPair) -> None:
    """Begin a transaction at which readers wait, and say where all of it is to be seen."""
    with basalt.connect(server.url) as client:
        hanging = client.transactions.begin(timeout_ms=HANGS_MS, owner="demo, on purpose")
        client.topic(LINES_TOPIC).publish(
            "this line is in a transaction that hangs", write_pointer=hanging.write_pointer
        )
        client.topic(LINES_TOPIC).publish("this one waits behind it")
    print_console(server.url, server.process_id, hanging.id)


def second_act(server: ServerProcess | ServerPair, lines: Sequence[bytes]) -> list[str]:
    """Have workers count the visits of each client, through SIGKILLs of them and of the server; the faults of their counts."""
    visits = visits_of(lines)
    if not visits:
        return []
    clients = len({visit.client for visit in visits})
    print(
        f"\nSecond act: workers of a consumer group count the visits of each client, {clients:,} of them. What a batch adds to\n"
        "the counts and that it is done are one commit, so nothing needs to be mended, whatever is killed."
    )
    began = time.monotonic()
    act = Act(server, visits, print)
    act.play()
    for line in shares(act.counts):
        print(line)
    wrong = differences_of_counts(visits, act.counts)
    if not wrong:
        print(
            f"{len(visits):,} visits counted in {time.monotonic() - began:.1f} s and {len(act.counts):,} messages of topic"
            f" visit-counts, through {act.kills} SIGKILLs.\nChecked against a direct count: each visit once, and those of each client in order."
        )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
