"""Fixtures of several folders: an authority that signs certificates, and a server that speaks TLS by script."""

from __future__ import annotations

from tests.control.client.secure_server import authority, secure

__all__ = ["authority", "secure"]
