"""One server of `--processes`, in its own process: what its supervisor told it, and what it tells the supervisor.

Standard input brings an order, and then a line whenever another server has died. Its end means that the supervisor is gone, however it went: nobody
else has the other end. The server then stops as SIGTERM stops it. A server that is paused at that moment reads so when it wakes.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from basalt.server.background import leave_terminal
from basalt.settings import Settings

LOOK = b"look\n"
ANSWERS = b"answers\n"


class Order(NamedTuple):
    """The part of one server. The files are numbers of descriptors that it inherits; a server in the background has a log file."""

    number: int
    run: str
    settings: Settings
    listener: int
    tells: int
    log_file: str | None

    def encode(self) -> bytes:
        """The bytes for the server's standard input. It is the same program, started by the same user: nothing else writes there."""
        return pickle.dumps(self)


class Supervised:
    """This process as one of several servers: its number, the name of its run, the socket that it shares, and its supervisor."""

    def __init__(self, order: Order, told: BinaryIO) -> None:
        self.settings = order.settings
        self.number = order.number
        self.run = order.run
        self.listener = socket.socket(fileno=order.listener)
        self._tells = order.tells
        self._log_file = order.log_file
        self._told = told
        self._look: Callable[[], None] | None = None

    @classmethod
    def read(cls) -> Supervised:
        """Read the order, and heed the supervisor from now on."""
        told = os.fdopen(os.dup(0), "rb")  # of which nothing else knows: standard input may be replaced
        order: Order = pickle.load(told)  # noqa: S301  # of the process that started this one
        supervised = cls(order, told)
        threading.Thread(target=supervised.heed, name="basalt-supervised", daemon=True).start()
        return supervised

    def look_by(self, look: Callable[[], None]) -> None:
        """Call this from now on when another server has died. It is called on a thread."""
        self._look = look

    def answers(self, _url: str) -> None:
        """Tell that this server answers, and leave the terminal if it is to run in the background."""
        if self._log_file is not None:
            leave_terminal(self._log_file)
        with suppress(BrokenPipeError):  # the supervisor is gone, which `heed` notices
            os.write(self._tells, ANSWERS)

    def heed(self) -> None:
        """Do what the supervisor says, until it is gone."""
        for line in iter(self._told.readline, b""):
            if line == LOOK and self._look is not None:
                self._look()
        os.kill(os.getpid(), signal.SIGTERM)
