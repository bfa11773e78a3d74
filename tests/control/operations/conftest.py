"""The services as retention's tests have them."""

from __future__ import annotations

from tests.control.retention.conftest import anyio_backend, shop

__all__ = ["anyio_backend", "shop"]
