"""Kerberos as a client's credential: for each request a token of its own, by the ticket of whoever runs this process.

The ticket is where Kerberos keeps it (`kinit`; KRB5CCNAME and KRB5_CLIENT_KTNAME name other places), and one for the server is had from the realm when
it is first needed. Over TLS a token is bound to the certificate that the server showed (RFC 5929). Nothing is delegated.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TypeAlias

from basalt.channel_binding import binding, end_point_hash
from basalt.client.credential import Hidden, TokenAwayError
from basalt.errors import InputError, UnauthenticatedError

REASON_CHARS_MAX = 300  # of the library's words, in an error
SPNEGO = "1.3.6.1.5.5.2"

# Makes what is sent as Authorization to the server of a name, which has shown this certificate (DER; None without TLS).
Sign: TypeAlias = Callable[[str, bytes | None], Hidden]


def check_library() -> None:
    """`InputError` where the library that speaks Kerberos is not installed."""
    try:
        import gssapi  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"Kerberos needs a library that is not here: {error}",
            field="kerberos",
            hint="Install it: pip install 'basalt-mq[kerberos]' (it is compiled, which takes libkrb5-dev and gcc).",
        ) from None


def negotiate(host: str, certificate: bytes | None) -> Hidden:
    """Make a token for the service `HTTP/host`. It may have to ask the realm for a ticket first, and wait for that.

    `UnauthenticatedError` without a ticket; `TokenAwayError` when the realm cannot be reached.
    """
    from gssapi import raw

    end_point = None if certificate is None else end_point_hash(certificate)
    bound = None if end_point is None else raw.ChannelBindings(application_data=binding(end_point))
    try:
        made = raw.init_sec_context(
            raw.import_name(f"HTTP@{host}".encode(), raw.NameType.hostbased_service),
            mech=raw.OID.from_int_seq(SPNEGO),
            flags=raw.RequirementFlag.mutual_authentication,
            channel_bindings=bound,
        )
    except raw.GSSError as error:
        words = str(error).rpartition("): ")[2][:REASON_CHARS_MAX]
        if "Cannot contact any KDC" in words:
            raise TokenAwayError("the realm's servers cannot be reached") from None
        raise UnauthenticatedError(
            f"there is no Kerberos ticket for HTTP/{host}: {words}",
            field="kerberos",
            hint="Log in (`kinit`), and name the server in the URL as its key is named; `klist` shows the tickets.",
        ) from None
    return Hidden("Negotiate " + base64.b64encode(made.token or b"").decode("ascii"))
