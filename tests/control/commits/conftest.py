"""A commit is seen through messages and through the rules: the fixtures of both are at hand."""

from __future__ import annotations

from tests.control.messaging.conftest import anyio_backend, memory, shop
from tests.control.transactions.conftest import scene, scene_with

__all__ = ["anyio_backend", "memory", "scene", "scene_with", "shop"]
