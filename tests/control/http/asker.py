"""Callers with credentials, of a server that asks everybody who they are."""

from __future__ import annotations

from basalt.settings import Settings
from basalt.settings.auth import AuthSettings
from tests.control.http.conftest import Client, Reply

BOOTSTRAP = "b" * 40
ASKED = Settings(auth=AuthSettings(kinds=("token",), bootstrap_token=BOOTSTRAP))


class Asker:
    """A caller with a credential."""

    def __init__(self, client: Client, token: str | None) -> None:
        self.client = client
        self.token = token

    def __call__(self, method: str, target: str, body: object = b"") -> Reply:
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return self.client.call(method, target, body, **headers)


def made(root: Asker, name: str, *grants: tuple[list[str], str], **more: object) -> Asker:
    """Somebody with a token of this name, to whom this is granted."""
    for verbs, resource in grants:
        given = root("POST", "/v1/admin/grants", {"subject": f"token:{name}", "verbs": verbs, "resource": resource})
        assert given.status == 200, given.body
    new = root("POST", "/v1/admin/tokens", {"name": name, **more})
    assert new.status == 200, new.body
    return Asker(root.client, new.json()["token"])


def refused(reply: Reply) -> tuple[int, str]:
    """The status of a refusal, and what it says."""
    return reply.status, reply.json()["detail"]


def id_of(asker: Asker) -> str:
    return asker.token.split("_")[1]
