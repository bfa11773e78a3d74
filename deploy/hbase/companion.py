"""A standalone HBase that lives as long as the program that needs it: tests, the demo, benches."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.hbase.runtime import ROOT
from deploy.hbase.standalone import HEAP_MB, Gateways, StandaloneError

STOP_TIMEOUT_S = 60.0  # more than `run` takes at most to stop it


@contextmanager
def running_hbase(
    directory: Path, settings: Mapping[str, str] | None = None, *, heap_mb: int = HEAP_MB
) -> Iterator[Gateways]:
    """HBase with these settings, in this directory, while the block runs; `StandaloneError` when it does not start.

    It is stopped when this process ends, however that happens: its standard input ends then.
    """
    command = [sys.executable, "-m", "deploy.hbase", "run", str(directory.resolve()), "--until-stdin-closes"]
    command += ["--heap-mb", str(heap_mb)]
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    directory.mkdir(parents=True, exist_ok=True)
    said = directory / "run.log"
    with said.open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            process.wait()
            raise StandaloneError(said.read_text().strip())
        yield Gateways(**json.loads(line))
    finally:
        process.stdin.close()
        process.wait(STOP_TIMEOUT_S)
        process.stdout.close()
