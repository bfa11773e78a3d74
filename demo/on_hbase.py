"""`make hbase-demo`: starts a standalone HBase, installs Basalt's tables and coprocessor in it, and runs the demo on it, with two servers:
each SIGKILL of a server is one of the leader, and the other one takes over.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from demo import __main__ as demo
from deploy import coprocessor_jar
from deploy.hbase.companion import running_hbase
from deploy.hbase.runtime import MavenError, RuntimeMissingError
from deploy.hbase.standalone import Gateways, StandaloneError


def main() -> int:
    """Run the demo on HBase; 1 when it fails, or when there is no HBase to run it on."""
    parser = argparse.ArgumentParser(prog="make hbase-demo", description=__doc__)
    parser.add_argument("log", nargs="?", help="an access log; without one, the demo server's own requests")
    parser.add_argument("--folder", type=Path, help="an empty folder to work in; without one, a new temporary folder")
    parser.add_argument(
        "--gateways", help="HOST:PORT,HOST:PORT of an HBase's Thrift 1 and 2, instead of one of its own"
    )
    parser.add_argument("--prefix", default="demo", help="of the tables' names (%(default)s)")
    parser.add_argument("--jar", default="packaged", help="the coprocessor's jar, as HBase finds it (%(default)s)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="basalt-hbase-demo-"))
    work = folder / "demo"
    try:
        with _hbase(folder / "hbase", arguments.gateways) as gateways:
            settings = [
                "store.kind=hbase",
                f"store.hbase.thrift={gateways.thrift}",
                f"store.hbase.thrift2={gateways.thrift2}",
                f"store.hbase.prefix={arguments.prefix}",
            ]
            _install(arguments.jar, settings)
            work.mkdir(parents=True)
            log = [arguments.log] if arguments.log else []
            words = [*log, "--two", "--folder", str(work), *(f"--set={setting}" for setting in settings)]
            first_step = None if arguments.gateways else f"python -m deploy.hbase start {folder / 'hbase'}"
            return demo.main(words, first_step)
    except (StandaloneError, RuntimeMissingError, MavenError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    except BaseException:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _hbase(directory: Path, gateways: str | None) -> Iterator[Gateways]:
    if gateways is not None:
        thrift, thrift2 = gateways.split(",")
        yield Gateways(thrift, thrift2, 0)
        return
    began = time.monotonic()
    print("Starting a standalone HBase with its Thrift gateways (the first time, Maven fetches it: 115 MB)", flush=True)
    with running_hbase(directory) as started:
        print(f"HBase is ready after {time.monotonic() - began:.1f} s; its logs are in {directory / 'logs'}")
        yield started


def _install(jar: str, settings: list[str]) -> None:
    if jar == "packaged":
        coprocessor_jar.build()
    command = [sys.executable, "-m", "basalt.cli.main", "hbase", "install", "--jar", jar]
    subprocess.run([*command, *(f"--set={setting}" for setting in settings)], check=True)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    """SIGTERM becomes an exception, so that nothing is left running."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
