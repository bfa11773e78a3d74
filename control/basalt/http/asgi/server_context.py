"""The context of TLS handshakes: ssl's own, with what a connection must know of the certificate that it was made with.

A context is never changed once it is in use. When the files have changed, new connections are made with a new one, and the old one is
`retired`: who was let in by it must show a certificate anew. `end_point_hash` is what ties a Kerberos ticket to the connection
that it is sent over (`tls-server-end-point`, RFC 5929).
"""

from __future__ import annotations

import functools
import ssl

from basalt.channel_binding import end_point_hash


class ServerContext(ssl.SSLContext):
    """A context, and the certificate that it shows."""

    certificate_der: bytes = b""
    not_after_ms: int = 0  # of the certificate, since 1970
    retired: bool = False  # another context has taken its place

    @functools.cached_property
    def end_point_hash(self) -> bytes | None:
        """The hash of the certificate by RFC 5929; None where its signature has none (Ed25519), for which nothing is defined."""
        return end_point_hash(self.certificate_der)
