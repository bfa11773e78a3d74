"""The command line of the standalone HBase: `python -m deploy.hbase start|stop|status|wait|run [DIRECTORY]`."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import NoReturn

from deploy.hbase.runtime import ROOT, MavenError, RuntimeMissingError
from deploy.hbase.standalone import HEAP_MB, ROLES, START_TIMEOUT_S, Gateways, Standalone, StandaloneError

NOT_RUNNING = 3  # the exit code of `status`, as that of init scripts
# A look reads the command lines of all processes of the machine: twice a second it takes a hundredth of a core.
WATCH_S = 2.0


def main() -> int:
    """Run one command; the exit code."""
    arguments = _parser().parse_args()
    hbase = Standalone(arguments.directory)
    signal.signal(signal.SIGTERM, _leave)
    try:
        code: int = arguments.command(hbase, arguments)
    except (StandaloneError, RuntimeMissingError, MavenError) as error:
        print(error, file=sys.stderr)
        return 1
    return code


def _start(hbase: Standalone, arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    if arguments.fresh:
        hbase.remove_data()
    gateways = hbase.start(_settings(arguments), heap_mb=arguments.heap_mb, timeout_s=arguments.timeout)
    print(f"HBase runs in {hbase.directory} ({time.monotonic() - began:.1f} s)\n{_addresses(gateways)}")
    return 0


def _stop(hbase: Standalone, _: argparse.Namespace) -> int:
    running = hbase.pids()
    hbase.stop()
    if left := hbase.pids():
        print(f"still running: {left}", file=sys.stderr)
        return 1
    print(f"HBase in {hbase.directory} {'is stopped' if running else 'was not running'}")
    return 0


def _status(hbase: Standalone, _: argparse.Namespace) -> int:
    gateways, pids = hbase.gateways, hbase.pids()
    for role in ROLES:
        print(f"{role:8} {f'runs, process {pids[role]}' if role in pids else 'does not run'}")
    if gateways is None or not pids:
        return NOT_RUNNING
    ready = gateways.answer()
    print(f"{'ready' if ready else 'not ready'}\n{_addresses(gateways)}")
    return 0 if ready else 1


def _wait(hbase: Standalone, arguments: argparse.Namespace) -> int:
    print(_addresses(hbase.wait(arguments.timeout)))
    return 0


def _run(hbase: Standalone, arguments: argparse.Namespace) -> int:
    """Run it until asked to end, or until one of its processes has ended by itself."""
    if arguments.fresh:
        hbase.remove_data()
    try:
        gateways = hbase.start(_settings(arguments), heap_mb=arguments.heap_mb, timeout_s=arguments.timeout)
        print(json.dumps(asdict(gateways)), flush=True)
        while len(hbase.pids()) == len(ROLES):
            if arguments.until_stdin_closes:
                readable, _, _ = select.select([sys.stdin], [], [], WATCH_S)
                if readable and not os.read(sys.stdin.fileno(), 1):
                    return 0
            else:
                time.sleep(WATCH_S)
        print(f"only these still run: {hbase.pids()}; see {hbase.directory / 'logs'}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        hbase.stop()


def _settings(arguments: argparse.Namespace) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in arguments.set]
    return {name: value for name, _, value in pairs}


def _addresses(gateways: Gateways) -> str:
    return f"Thrift 1 {gateways.thrift}\nThrift 2 {gateways.thrift2}\nZooKeeper 127.0.0.1:{gateways.zookeeper_port}"


def _leave(number: int, _: FrameType | None) -> NoReturn:
    """SIGTERM becomes an exception, so that a start which is not done yet leaves nothing running."""
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.hbase", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, function, text in (
        ("start", _start, "start it in the background, and wait until both gateways answer calls"),
        ("stop", _stop, "stop it; the tables stay"),
        ("status", _status, "which processes run, and where; exit code 0 ready, 1 not ready, 3 not running"),
        ("wait", _wait, "wait until both gateways answer calls"),
        ("run", _run, "start it, say where as a line of JSON, and stop it at SIGTERM or Ctrl-C"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(command=function)
        command.add_argument(
            "directory", nargs="?", type=Path, default=ROOT / "build" / "hbase", help="default: build/hbase"
        )
        if function in {_start, _run}:
            command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of HBase")
            command.add_argument("--fresh", action="store_true", help="drop the tables of earlier runs first")
            command.add_argument(
                "--heap-mb", type=int, default=HEAP_MB, help="of master and region server (%(default)s)"
            )
        if function in {_start, _run, _wait}:
            command.add_argument(
                "--timeout", type=float, default=START_TIMEOUT_S, metavar="SECONDS", help="(%(default)s)"
            )
        if function is _run:
            command.add_argument(
                "--until-stdin-closes", action="store_true", help="stop it when standard input ends, too"
            )
    return parser


if __name__ == "__main__":
    sys.exit(main())
