"""A proof: what a credential said about who sends it. Every kind of credential gives one, and the server needs no more of it."""

from __future__ import annotations

from dataclasses import dataclass

from basalt.access.policy import Grant
from basalt.access.principal import Principal


@dataclass(frozen=True, slots=True)
class Proof:
    """The principal that was proved to call, by which credential, and how long that holds."""

    principal: Principal
    credential: str  # its kind and its id, serial number or issuer, for the audit: never a secret, nor a hash of one
    until_ms: int | None = None  # since 1970; from then on it counts no more
    only: tuple[Grant, ...] | None = None  # the rights that it is limited to; the subjects of these grants mean nothing
    check_again_ms: int | None = (
        None  # since 1970; from then on it is asked for again: who vouched may have taken it back
    )
    via: Principal | None = None  # the proxy that vouches for the principal
