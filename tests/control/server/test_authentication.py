"""Authentication as the settings ask for it: half of it is no start, and somebody must have a way in."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from basalt.access.records import TOKENS, TokenRow
from basalt.errors import InvalidSettingError
from basalt.server.authentication import check_authentication, open_access
from basalt.settings import load_settings
from basalt_engine.clock import ManualClock
from basalt_engine.stores.memory import MemoryStore
from basalt_engine.system import SystemTable

JWT = [
    "auth.kinds=jwt", "auth.jwt.issuer=https://idp.example", "auth.jwt.audience=basalt", "auth.jwt.jwks=https://idp.example/keys",
]  # fmt: skip
BAD = [
    ([*JWT, "auth.superusers=jwt-group:admins"], "auth.jwt.groups_claim", "nobody is in that group"),
    ([*JWT, "auth.jwt.ca=/none"], "auth.jwt.ca", "cannot be used"),
    (["auth.kinds=none,token"], "auth.kinds", "says none and another kind"),
    (["auth.kinds=token", "auth.superusers=proxy:alice"], "auth.superusers", "a proxy's word is not enough"),
    (["auth.kinds=token", "auth.superusers=role:admins"], "auth.superusers", "has a wrong name in it"),
    (["auth.kinds=token", "auth.superusers=mail:a@b"], "auth.superusers", "has a wrong name in it"),
    (["auth.kinds=token", "auth.superusers=internal:jobs"], "auth.superusers", "nobody can prove"),
    (["auth.kinds=token,proxy", "auth.proxy.principals=thrift:default"], "auth.proxy.principals", "cannot prove that"),
    (["auth.kinds=token,proxy"], "auth.proxy.principals", "is empty"),
    (["auth.kinds=token", "auth.proxy.principals=token:gateway"], "auth.proxy.principals", "does not say proxy"),
    (["auth.kinds=token,proxy", "auth.proxy.principals=cert:CN=gateway"], "auth.proxy.principals", "cannot prove that"),
    (["auth.kinds=token,proxy", "auth.proxy.principals=proxy:other"], "auth.proxy.principals", "cannot prove that"),
]


@pytest.mark.parametrize(("flags", "key", "reason"), BAD)
def test_settings_that_do_not_go_together_are_no_start(flags, key, reason):
    with pytest.raises(InvalidSettingError, match=reason) as caught:
        check_authentication(load_settings(flags))
    assert caught.value.field == key
    assert caught.value.hint


@pytest.mark.parametrize("library", ["jwt", "cryptography"])
def test_tokens_of_a_provider_are_no_start_without_the_library_for_them(monkeypatch, library):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == library else find(name))
    with pytest.raises(InvalidSettingError, match=library) as caught:
        check_authentication(load_settings(JWT))
    assert (caught.value.field, caught.value.hint) == ("auth.kinds", "install it with `pip install 'basalt-mq[jwt]'`")
    check_authentication(load_settings(["auth.kinds=token"]))


def test_a_superuser_of_the_provider_is_a_way_in_whether_it_is_there_or_not():
    assert opened([*JWT, "auth.superusers=jwt:alice"]) is not None
    assert opened([*JWT, "auth.superusers=jwt-group:admins", "auth.jwt.groups_claim=groups"]) is not None
    with pytest.raises(InvalidSettingError, match="no superuser has a way to come in"):
        opened([*JWT, "auth.superusers=token:root"])


def test_a_bootstrap_token_that_could_be_guessed_is_no_start(tmp_path):
    file = tmp_path / "token"
    file.write_text("short\n")
    file.chmod(0o600)
    with pytest.raises(InvalidSettingError, match="fewer than 32 characters") as caught:
        check_authentication(load_settings(["auth.kinds=token", f"auth.bootstrap_token_file={file}"]))
    assert "short" not in str(caught.value)


def opened(flags: list[str], store=None):
    return asyncio.run(_opened(flags, store or MemoryStore()))


async def _opened(flags, store):
    directory, _, authentication = await open_access(load_settings(flags), store, ManualClock())
    await directory.close()
    if authentication is not None:
        await authentication.close()
    return authentication


def test_where_nobody_is_asked_there_is_nothing_that_asks():
    assert opened([]) is None
    assert opened(["auth.kinds=none"]) is None


def test_a_server_that_nobody_could_ever_give_a_right_on_does_not_start():
    for flags in (["auth.kinds=token"], ["auth.kinds=token", "auth.superusers=token:root,jwt:alice"]):
        with pytest.raises(InvalidSettingError, match="no superuser has a way to come in") as caught:
            opened(flags)
        assert caught.value.field == "auth.bootstrap_token"


def test_a_superusers_token_in_the_store_is_a_way_in():
    store = MemoryStore()
    system = SystemTable(store.table("system"))
    TOKENS.write(system, TokenRow("token:root", "0" * 64, 0, None), "0" * 16)
    flags = ["auth.kinds=token", "auth.superusers=token:root"]
    assert opened(flags, store) is not None
    TOKENS.write(system, TokenRow("token:root", "0" * 64, 0, None, revoked_ms=1), "0" * 16)
    with pytest.raises(InvalidSettingError):
        opened(flags, store)


def test_a_principal_of_the_thrift_face_may_be_a_superuser_and_is_no_way_to_come_in():
    with pytest.raises(InvalidSettingError, match="no superuser has a way to come in"):
        opened(["auth.kinds=token", "auth.superusers=thrift:default"])


def test_a_superusers_token_from_before_all_that_may_count_is_no_way_in():
    store = MemoryStore()
    TOKENS.write(SystemTable(store.table("system")), TokenRow("token:root", "0" * 64, 0, None), "0" * 16)
    with pytest.raises(InvalidSettingError, match="no superuser has a way to come in"):
        opened(["auth.kinds=token", "auth.superusers=token:root", "auth.not_before=2026-01-01T00:00:00Z"], store)
