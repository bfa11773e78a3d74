"""`basalt` with a start that comes to one stage and stays there: `python -m tests.system.held_start STAGE serve …`.

It says "held" on standard output once it is there.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any

from basalt.cli.main import main

# A stage, and the call that begins it. Those of a class are the class's.
CALLS = {
    "settings": ("basalt.settings", "load_settings"),
    "store": ("basalt_engine.stores.rocks.store", "RocksStore.open"),
    "marks": ("basalt_engine.stores.rocks.store", "SyncedFile.verify"),
    "transactions": ("basalt.commits.coordinator", "Coordinator.recover"),
    "address": ("basalt.server.process", "listen"),
    "jobs": ("basalt.operations.scheduler", "Scheduler.start"),
    "thrift": ("basalt.thrift.face", "ThriftFace.start"),
}
IMPORT = "imports"
STAGES = (IMPORT, *CALLS)


def hold(*_arguments: object, **_named: object) -> None:
    print("held", flush=True)
    while True:
        time.sleep(0.01)  # a test that fails kills this process


class HeldImport(MetaPathFinder):
    """Stays in the import of the server's parts."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "basalt.server.wiring":
            hold()


def at(stage: str) -> None:
    """Have this process stay at the stage."""
    if stage == IMPORT:
        sys.meta_path.insert(0, HeldImport())
        return
    module, name = CALLS[stage]
    owner: Any = importlib.import_module(module)
    *classes, name = name.split(".")
    for each in classes:
        owner = getattr(owner, each)
    held: Callable[..., None] = hold
    setattr(owner, name, held)


if __name__ == "__main__":
    at(sys.argv.pop(1))
    sys.exit(main())
