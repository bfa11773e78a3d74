"""Plans about who the caller is to the server, and what they may do. Routes: docs/reference/rights.md."""

from __future__ import annotations

from basalt.api.bodies.access import Identity, RightAnswer, RightRequest
from basalt.client.plans import ClientScope, Effect, Steps, get_json, json_of, send_json

AUTH = "/v1/auth"


def whoami(scope: ClientScope) -> Steps[Identity]:
    """Who this client is to the server."""
    return get_json(Identity, "ask who calls", f"{AUTH}/whoami")


def check(scope: ClientScope, verb: str, resource: str) -> Steps[RightAnswer]:
    """Ask whether this client has a right, `write` on `topic:shop:orders` for example, and by which grants; or what is missing."""
    what = f"check {verb} on {resource}"
    return send_json("POST", what, f"{AUTH}/check", json_of(RightAnswer), Effect.NONE, RightRequest(verb, resource))
