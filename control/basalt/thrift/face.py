"""Starts the Thrift face where the settings ask for it, and says what is missing where it cannot be had."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from basalt.errors import InvalidSettingError
from basalt.settings import Settings

if TYPE_CHECKING:
    from basalt.thrift.calls import Served
    from basalt.thrift.discovery import Registration
    from basalt.thrift.server import TephraServer

ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  # what a server listens on that listens on all of its addresses


def check_thrift(settings: Settings) -> None:
    """`InvalidSettingError` when the settings ask for a face that this installation cannot have."""
    if settings.thrift.port is None:
        if settings.thrift.zookeeper is not None:
            raise InvalidSettingError(
                "thrift.zookeeper says where to register a Thrift service, and thrift.port is off",
                field="thrift.zookeeper",
                hint="set thrift.port too, or leave thrift.zookeeper off",
            )
        return
    if settings.transactions.manager != "builtin":
        raise InvalidSettingError(
            "thrift.port serves the transactions of Basalt's own manager, and transactions.manager is external",
            field="thrift.port",
            hint="leave thrift.port off: clients of the other manager have a service already",
        )
    if not settings.thrift.networks:
        raise InvalidSettingError(
            "thrift.port opens a service, and thrift.networks lets nobody connect to it",
            field="thrift.networks",
            hint="name the networks of its clients, or leave thrift.port off",
        )
    if settings.thrift.principal is None and not set(settings.auth.kinds) <= {"none"}:
        raise InvalidSettingError(
            "clients of Tephra cannot prove who they are, auth.kinds wants that of everybody, and thrift.principal is off",
            field="thrift.principal",
            hint="say who they count as, such as thrift:default, and grant that one what they are to do; or leave thrift.port off",
        )
    _check_library("thriftpy2", "thrift.port")
    if settings.thrift.zookeeper is not None:
        _check_library("kazoo", "thrift.zookeeper")


def _check_library(name: str, key: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise InvalidSettingError(
            f"{key} needs a library that is not here: {name}",
            field=key,
            hint="install it with `pip install basalt-mq[tephra]`",
        )


class ThriftFace:
    """The Thrift face, if there is one: start it after the services, stop it before them."""

    def __init__(self, server: TephraServer | None, registration: Registration | None = None) -> None:
        self._server = server
        self._registration = registration

    @classmethod
    async def start(cls, settings: Settings, served_by: Callable[[], Served], address: str) -> ThriftFace:
        """Listen on this address where the settings ask for it; a face that does nothing where they do not."""
        check_thrift(settings)
        thrift = settings.thrift
        if thrift.port is None:
            return cls(None)
        from basalt.thrift.server import TephraServer  # the library is wanted only here

        served = served_by()
        server = TephraServer(served, thrift.networks)
        await server.start(address, thrift.port)
        if thrift.zookeeper is None:
            return cls(server)
        from basalt.thrift.discovery import Registration

        told_host, told_port = _advertised(thrift.advertise, settings.server.host, server.port)
        registration = Registration(thrift.zookeeper, told_host, told_port, served.metrics)
        registration.start()
        return cls(server, registration)

    @property
    def port(self) -> int | None:
        return None if self._server is None else self._server.port

    async def stop(self) -> None:
        """Be found no longer, take no more calls, and answer those under way."""
        if self._registration is not None:
            await asyncio.to_thread(self._registration.stop)
        if self._server is not None:
            await self._server.stop()


def _advertised(advertise: str | None, host: str, port: int) -> tuple[str, int]:
    """The host and port that clients are told: `advertise` if set, else the server's own, never a wildcard."""
    if advertise is None:
        return socket.getfqdn() if host in ANYWHERE else host, port
    told_host, _, told_port = advertise.rpartition(":")
    return told_host.strip("[]"), int(told_port)
