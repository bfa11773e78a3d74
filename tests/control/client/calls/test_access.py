"""Logins, tokens, grants and roles by both clients: an embedded one, which may do everything, and what the calls are."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from basalt.api.bodies.access import NewToken, Rights, TokenInfo
from basalt.client.calls import access
from basalt.client.plans import ClientScope, Effect
from basalt.errors import ConflictError, InputError, NotFoundError

SCOPE = ClientScope("shop", lambda: 0)
DAY_MS = 86_400_000


def test_a_token_is_made_shown_rotated_and_revoked(side, connected):
    tokens = connected.tokens
    made = side.do(
        tokens.create("etl", note="nightly", only={"topic:shop:orders": ["write", "observe"]}, networks=["10.0.0.0/8"])
    )
    assert made.token.startswith(f"basalt_{made.info.id}_")
    assert made.info.principal == "token:etl"
    assert made.info.expires_ms - made.info.created_ms == 90 * DAY_MS
    assert made.info.only == (Rights(("observe", "write"), "topic:shop:orders"),)
    assert (made.info.networks, made.info.note) == (("10.0.0.0/8",), "nightly")
    assert side.do(tokens.get(made.info.id)) == made.info
    after = side.do(tokens.rotate(made.info.id, overlap_ms=0))
    assert (after.info.principal, after.info.only) == ("token:etl", made.info.only)
    assert side.do(tokens.revoke(after.info.id)).state == "revoked"
    assert side.do(tokens.revoke(after.info.id)).state == "revoked"
    states = {each.id: each.state for each in side.do(tokens.list())}
    assert states == {made.info.id: "expired", after.info.id: "revoked"}


def test_a_token_may_last_for_ever_and_a_dry_run_makes_none(side, connected):
    assert side.do(connected.tokens.create("etl", ttl_ms=None, dry_run=True)).token is None
    assert side.do(connected.tokens.list()) == []
    assert side.do(connected.tokens.create("etl", ttl_ms=None)).info.expires_ms is None


def test_rights_are_given_once_and_taken_back(side, connected):
    grants = connected.grants
    made = side.do(grants.add("token:etl", ["write", "observe"], "namespace:shop", reason="ticket 7", by="ada"))
    assert side.do(grants.add("token:etl", ("observe", "write"), "namespace:shop")).id == made.id
    assert (made.subject, made.verbs, made.resource, made.used_ms) == (
        "token:etl",
        ("observe", "write"),
        "namespace:shop",
        None,
    )
    assert [each.id for each in side.do(grants.list())] == [made.id]
    assert side.do(grants.list(unused_days=1)) == []  # it is younger than that
    assert [each.id for each in side.do(grants.list(subject="token:etl", limit=1))] == [made.id]
    assert side.do(grants.list(after=made.id)) == side.do(grants.list(subject="token:none")) == []
    tried = side.do(grants.remove(made.id, dry_run=True))
    assert replace(tried, changes=()) == made
    assert [(each.subject, each.loses[0].verbs) for each in tried.changes] == [("token:etl", ("observe", "write"))]
    assert side.do(grants.remove(made.id)) == made
    with pytest.raises(NotFoundError):
        side.do(grants.remove(made.id))
    with pytest.raises(InputError, match="there is no verb"):
        side.do(grants.add("token:etl", ["fly"], "namespace:shop"))
    assert {act.reason for act in side.do(connected.admin.audit()) if act.act == "grant"} >= {"ticket 7"}


def test_a_role_is_made_changed_and_removed(side, connected):
    roles = connected.roles
    made = side.do(roles.set("billing", ["token:etl", "jwt-group:billing"]))
    assert made.members == ("jwt-group:billing", "token:etl")
    assert side.do(roles.set("billing", {"token:etl"}, dry_run=True)).members == ("token:etl",)
    assert side.do(roles.get("billing")) == made
    assert side.do(roles.list()) == [made]
    assert side.do(roles.remove("billing", dry_run=True)) == made
    side.do(roles.remove("billing"))
    with pytest.raises(NotFoundError):
        side.do(roles.get("billing"))


def test_the_rights_of_another_principal_are_told(side, connected):
    side.do(connected.grants.add("token:etl", ["write"], "topic:shop:orders"))
    check = connected.auth.check
    assert side.do(check("write", "topic:shop:orders", principal="token:etl")).allowed
    assert not side.do(check("read", "topic:shop:orders", principal="token:etl")).allowed
    assert side.do(check("read", "topic:shop:orders")).allowed  # its own


def test_a_client_without_a_credential_has_nothing_to_log_in_with(side, connected):
    with pytest.raises(ConflictError):
        side.do(connected.auth.login(ttl_ms=60_000))
    with pytest.raises(ConflictError):
        side.do(connected.auth.logout())
    assert side.do(connected.auth.refusals(limit=10)) == []


@pytest.mark.parametrize(
    ("steps", "effect"),
    [
        (access.create_token(SCOPE, "etl"), Effect.ONCE),
        (access.rotate_token(SCOPE, "0" * 16), Effect.ONCE),
        (access.revoke_token(SCOPE, "0" * 16), Effect.REPEATABLE),
        (access.add_grant(SCOPE, "token:etl", ["read"], "*"), Effect.REPEATABLE),
        (access.remove_grant(SCOPE, "0" * 16), Effect.ONCE),
        (access.set_role(SCOPE, "billing", ["token:etl"]), Effect.REPEATABLE),
        (access.login(SCOPE), Effect.REPEATABLE),
    ],
    ids=lambda value: value.name if isinstance(value, Effect) else value.__name__,
)  # fmt: skip
def test_a_token_that_may_have_been_made_unheard_is_not_made_again(steps, effect):
    assert next(steps).effect is effect


def test_what_a_lost_answer_may_have_made_can_be_revoked():
    for call in (next(access.create_token(SCOPE, "etl")), next(access.rotate_token(SCOPE, "0" * 16))):
        assert "revoked by its id" in (call.lost_hint or "")


def test_an_id_leads_to_no_other_path():
    assert next(access.get_token(SCOPE, "../grants")).path == "/v1/admin/tokens/..%2Fgrants"


def test_a_new_token_does_not_show_itself():
    info = TokenInfo("0" * 16, "token:etl", "active", 0, None, "token:bootstrap", "", (), None, "")
    made = NewToken("basalt_canary", info)
    assert "canary" not in f"{made!r} {made} {[made]}"
    assert made.token == "basalt_canary"
