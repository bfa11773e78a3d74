"""Restores a backup, and dies without a word before the call to the operating system of the number that it is given;
of number 0 there is none, and it prints how many there were.

Usage: dying_restore.py BACKUP PLACE NUMBER
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from basalt_engine.clock import ManualClock
from basalt_engine.stores.rocks import replacement
from basalt_engine.stores.rocks.restore import Restore

backup, place, deadly = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
calls = 0


def counted(call: Any) -> Any:
    def count(*arguments: Any, **keywords: Any) -> Any:
        global calls
        calls += 1
        if calls == deadly:
            os._exit(9)
        return call(*arguments, **keywords)

    return count


for owner, names in (
    (os, ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "chown")),
    (shutil, ("copyfile",)),
    (replacement, ("_exchange",)),
):
    for name in names:
        setattr(owner, name, counted(getattr(owner, name)))

Restore(backup, place).run(ManualClock(), put_aside=True)
print(calls)
