"""Starts the Thrift face where the settings ask for it, and says what is missing where it cannot be had."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from basalt.errors import InvalidSettingError
from basalt.services import Services
from basalt.settings import Settings

if TYPE_CHECKING:
    from basalt.tephra.server import TephraServer


def check_thrift(settings: Settings) -> None:
    """`InvalidSettingError` when the settings ask for a face that this installation cannot have."""
    if settings.thrift.port is None:
        return
    if settings.transactions.manager != "builtin":
        raise InvalidSettingError(
            "thrift.port serves the transactions of Basalt's own manager, and transactions.manager is external",
            field="thrift.port",
            hint="leave thrift.port off: clients of the other manager have a service already",
        )
    if importlib.util.find_spec("thriftpy2") is None:
        raise InvalidSettingError(
            "thrift.port needs a library that is not here: thriftpy2",
            field="thrift.port",
            hint="install it with `pip install basalt-mq[tephra]`",
        )


class ThriftFace:
    """The Thrift face, if there is one: start it after the services, stop it before them."""

    def __init__(self, server: TephraServer | None) -> None:
        self._server = server

    @classmethod
    async def start(cls, services: Services, host: str) -> ThriftFace:
        """Listen where the settings say; a face that does nothing where they say nothing."""
        check_thrift(services.settings)
        port = services.settings.thrift.port
        if port is None:
            return cls(None)
        from basalt.tephra.server import TephraServer  # the library is wanted only here

        server = TephraServer(services)
        await server.start(host, port)
        return cls(server)

    @property
    def port(self) -> int | None:
        """Where it listens."""
        return None if self._server is None else self._server.port

    async def stop(self) -> None:
        """Take no more calls, and answer those under way."""
        if self._server is not None:
            await self._server.stop()
