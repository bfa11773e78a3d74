"""A server by script that speaks TLS, and the authority that signs for it and for its clients."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.control.client.scripted import ScriptedServer


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority of this test's own."""
    return Authority(tmp_path)


@pytest.fixture
def secure(authority: Authority) -> Iterator[ScriptedServer]:
    """A server that speaks TLS alone, and wants a certificate of the authority's from its clients."""
    own = authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    server = ScriptedServer(context)
    yield server
    server.close()
