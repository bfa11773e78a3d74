"""Lists of tokens, grants and callers by page and filter; what a change would do, before it is made; when a token was used."""

from __future__ import annotations

import pytest

from basalt.access.sightings import SEEN_MAX
from basalt.http.routes.access.rights import LIST_MAX
from tests.control.http.asker import ASKED, BOOTSTRAP, Asker


@pytest.fixture
def client(connect):
    return connect(ASKED)


@pytest.fixture
def root(client):
    return Asker(client, BOOTSTRAP)


def token(root: Asker, name: str) -> tuple[str, str]:
    made = root("POST", "/v1/admin/tokens", {"name": name}).json()
    return made["info"]["id"], made["token"]


def grant(root: Asker, subject: str, verbs: list[str], resource: str, query: str = "") -> dict:
    return root("POST", f"/v1/admin/grants{query}", {"subject": subject, "verbs": verbs, "resource": resource}).json()


def test_tokens_come_by_id_page_by_page_and_by_filter(client, root):
    ids = sorted(token(root, f"etl-{number}")[0] for number in range(5))
    first = root("GET", "/v1/admin/tokens?limit=3").json()
    assert [each["id"] for each in first] == ids[:3]
    rest = root("GET", f"/v1/admin/tokens?limit={LIST_MAX}&after={ids[2]}").json()
    assert [each["id"] for each in rest] == ids[3:]
    assert [each["principal"] for each in root("GET", "/v1/admin/tokens?principal=token:etl-3").json()] == [
        "token:etl-3"
    ]
    root("DELETE", f"/v1/admin/tokens/{ids[0]}")
    assert [each["id"] for each in root("GET", "/v1/admin/tokens?active=true").json()] == ids[1:]
    assert root("GET", f"/v1/admin/tokens?limit={LIST_MAX + 1}").status == 400
    assert root("GET", "/v1/admin/tokens?after=x").status == 400


def test_a_token_says_when_it_was_used_and_from_where_and_the_last_callers_come_first(client, root):
    token_id, text = token(root, "etl")
    assert root("GET", f"/v1/admin/tokens/{token_id}").json()["usedMs"] is None
    client.clock.advance(5_000)
    Asker(client, text)("GET", "/v1/auth/whoami")
    used = root("GET", f"/v1/admin/tokens/{token_id}").json()
    assert (used["usedMs"], used["usedFrom"]) == (client.clock.now_ms(), "192.0.2.7")
    client.clock.advance(500)
    Asker(client, text)("GET", "/v1/auth/whoami")
    assert root("GET", f"/v1/admin/tokens/{token_id}").json()["usedMs"] == used["usedMs"]  # about to the second
    client.clock.advance(500)
    Asker(client, text)("GET", "/v1/auth/whoami")
    assert root("GET", f"/v1/admin/tokens/{token_id}").json()["usedMs"] == used["usedMs"] + 1_000
    client.clock.advance(1_000)
    seen = root("GET", "/v1/admin/principals").json()
    assert [each["principal"] for each in seen] == ["token:bootstrap", "token:etl"]
    assert (seen[1]["credential"], seen[1]["address"]) == (f"token {token_id}", "192.0.2.7")
    assert root("GET", "/v1/admin/principals?limit=1").json()[0]["principal"] == "token:bootstrap"
    assert root("GET", f"/v1/admin/principals?limit={SEEN_MAX + 1}").status == 400


def test_who_sends_nothing_or_a_bad_credential_is_nobody_who_was_seen(client, root):
    Asker(client, None)("GET", "/livez")
    Asker(client, "wrong")("GET", "/v1/auth/whoami")
    assert [each["principal"] for each in root("GET", "/v1/admin/principals").json()] == ["token:bootstrap"]


def test_the_use_of_a_token_outlives_a_restart_and_goes_with_it(client, root):
    token_id, text = token(root, "etl")
    Asker(client, text)("GET", "/v1/auth/whoami")
    used_ms = root("GET", f"/v1/admin/tokens/{token_id}").json()["usedMs"]
    directory = client.services.directory
    client.run(directory.close())
    client.run(directory.start())
    directory._token_uses.clear()
    directory._uses_are_read = False
    assert root("GET", f"/v1/admin/tokens/{token_id}").json()["usedMs"] == used_ms


def test_grants_come_by_id_page_by_page_and_by_subject(client, root):
    ids = sorted(grant(root, f"token:a{number}", ["read"], "topic:shop:orders")["id"] for number in range(4))
    assert [each["id"] for each in root("GET", "/v1/admin/grants?limit=2").json()] == ids[:2]
    assert [each["id"] for each in root("GET", f"/v1/admin/grants?after={ids[1]}").json()] == ids[2:]
    assert [each["subject"] for each in root("GET", "/v1/admin/grants?subject=token:a2").json()] == ["token:a2"]


def test_a_dry_run_says_who_would_gain_or_lose_what_and_a_list_does_not(client, root):
    wide = grant(root, "token:a", ["read"], "namespace:shop")
    tried = grant(root, "token:a", ["read", "write"], "topic:shop:orders", "?dryRun=true")
    gains = [{"verbs": ["write"], "resource": "topic:shop:orders"}]
    assert tried["changes"] == [{"subject": "token:a", "gains": gains, "loses": []}]
    assert "changes" not in root("GET", "/v1/admin/grants").json()[0]
    lost = root("DELETE", f"/v1/admin/grants/{wide['id']}?dryRun=true").json()["changes"]
    assert lost[0]["loses"] == [{"verbs": ["read"], "resource": "namespace:shop"}]
    grant(root, "role:billing", ["read"], "namespace:shop")
    came = root("PUT", "/v1/admin/roles/billing?dryRun=true", {"members": ["token:a", "token:b"]}).json()["changes"]
    assert [each["subject"] for each in came] == ["token:b"]  # the other one may read it already
    root("PUT", "/v1/admin/roles/billing", {"members": ["token:b"]})
    went = root("DELETE", "/v1/admin/roles/billing?dryRun=true").json()["changes"]
    assert [(each["subject"], len(each["loses"])) for each in went] == [("token:b", 1)]
    more = grant(root, "role:billing", ["write"], "namespace:shop", "?dryRun=true")["changes"]
    assert [(each["subject"], each["gains"][0]["verbs"]) for each in more] == [("token:b", ["write"])]


def test_a_dry_run_names_no_id_and_keeps_nothing(client, root):
    made = root("POST", "/v1/admin/tokens?dryRun=true", {"name": "etl"}).json()
    assert (made["token"], made["info"]["id"]) == (None, "")
    assert root("GET", "/v1/admin/tokens").json() == []


def test_a_login_rotates_a_token_where_its_principal_may_make_tokens(client, root):
    token_id, text = token(root, "etl")
    own = Asker(client, Asker(client, text)("POST", "/v1/auth/logins", {}).json()["token"])
    refused = own("POST", f"/v1/admin/tokens/{token_id}/rotate", {})
    assert (refused.status, "outlive itself" in refused.json()["detail"]) == (403, True)
    operator = Asker(client, root("POST", "/v1/auth/logins", {}).json()["token"])
    assert operator("POST", f"/v1/admin/tokens/{token_id}/rotate", {}).json()["info"]["principal"] == "token:etl"


def test_the_audit_is_filtered_and_paged(client, root):
    for name in ("a", "b", "c"):
        token(root, name)
        client.clock.advance(1_000)
    grant(root, "token:a", ["read"], "topic:shop:orders")
    assert [each["act"] for each in root("GET", "/v1/admin/audit?limit=2").json()] == ["grant", "make token"]
    made = root("GET", "/v1/admin/audit?act=make%20token").json()
    assert [each["what"][-1] for each in made] == ["c", "b", "a"]
    assert root("GET", f"/v1/admin/audit?act=make%20token&after={made[1]['id']}").json() == made[2:]
    assert root("GET", f"/v1/admin/audit?from={made[1]['atMs']}&to={made[0]['atMs']}").json() == made[1:2]
    assert root("GET", "/v1/admin/audit?principal=token:etl").json() == []
    assert len(root("GET", "/v1/admin/audit?target=ORDERS&principal=token:bootstrap").json()) == 1
    assert root("GET", "/v1/admin/audit?after=x").status == 400


def test_a_setting_says_what_it_is_for_and_what_it_is_by_default(client, root):
    found = {each["key"]: each for each in root("GET", "/v1/admin/settings").json()}
    assert found["http.body_bytes_max"]["default"] == found["http.body_bytes_max"]["value"]
    assert "request body" in found["http.body_bytes_max"]["meaning"]
    secret = found["auth.bootstrap_token"]
    assert BOOTSTRAP not in str(secret)
    assert secret["default"] == "off"
