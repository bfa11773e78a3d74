"""The services as retention's tests have them, and behind HTTP."""

from __future__ import annotations

from tests.control.http.conftest import client, connect, runner, settings
from tests.control.retention.conftest import anyio_backend, shop

__all__ = ["anyio_backend", "client", "connect", "runner", "settings", "shop"]
