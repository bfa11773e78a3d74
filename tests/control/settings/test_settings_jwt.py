"""Settings of an identity provider: given whole or not at all, and keys from where nobody on the way can change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from basalt.errors import InvalidSettingError
from basalt.settings import load_settings, read_settings
from basalt.settings.tree import keys

WHOLE = {
    "issuer": "https://idp.example/realms/data",
    "audience": "basalt",
    "jwks": "https://idp.example/realms/data/protocol/openid-connect/certs",
}


def flags(**changed: str) -> list[str]:
    given = {name: value for name, value in {**WHOLE, **changed}.items() if value is not None}
    return ["auth.kinds=jwt", *(f"auth.jwt.{name}={value}" for name, value in given.items())]


def test_three_things_are_enough():
    jwt = load_settings(flags()).auth.jwt
    assert (jwt.issuer, jwt.audience, jwt.jwks) == tuple(WHOLE.values())
    assert jwt.algorithms == ("RS256", "PS256", "ES256", "EdDSA")
    assert (jwt.principal_claim, jwt.groups_claim, jwt.leeway_ms, jwt.ca) == ("sub", None, 30_000, None)


@pytest.mark.parametrize("missing", WHOLE)
@pytest.mark.parametrize("how", [None, "off"])
def test_a_provider_that_is_half_given_is_no_start_and_the_key_is_named(missing: str, how: str | None):
    with pytest.raises(InvalidSettingError, match=rf"setting auth\.jwt\.{missing} is not given") as raised:
        load_settings(flags(**{missing: how}))
    assert raised.value.field == f"auth.jwt.{missing}"


def test_all_that_is_missing_is_told_at_once():
    problems = read_settings(["auth.kinds=token,jwt"]).problems
    assert [problem.field for problem in problems] == ["auth.jwt.issuer", "auth.jwt.audience", "auth.jwt.jwks"]


def test_no_algorithm_is_not_any():
    with pytest.raises(InvalidSettingError, match=r"auth\.jwt\.algorithms is not given"):
        load_settings(flags(algorithms="[]"))


@pytest.mark.parametrize("algorithm", ["HS256", "none", "RS384", "rs256", "RS256,HS256", ""])
def test_only_algorithms_of_key_pairs_may_be_named(algorithm: str):
    with pytest.raises(InvalidSettingError, match=r"auth\.jwt\.algorithms"):
        load_settings(flags(algorithms=algorithm))


def test_a_provider_that_is_not_asked_need_not_be_whole():
    assert load_settings(["auth.kinds=none", "auth.jwt.issuer=https://idp.example"]).auth.jwt.audience is None


@pytest.mark.parametrize("issuer", ["https://idp.example/", "https://idp.example", "accounts.example", "urn:idp"])
def test_an_issuer_stays_as_it_is_written(issuer: str):
    assert load_settings(flags(issuer=issuer)).auth.jwt.issuer == issuer


@pytest.mark.parametrize("name", ["issuer", "audience", "principal_claim", "groups_claim"])
@pytest.mark.parametrize("text", ["two words", "a\u202eb", "a" * 256, "", "a\tb"])
def test_what_another_system_calls_something_is_one_word(name: str, text: str):
    with pytest.raises(InvalidSettingError, match=rf"auth\.jwt\.{name}"):
        load_settings(flags(**{name: text}))


def test_there_is_always_a_claim_that_names_the_principal():
    assert load_settings(flags(principal_claim="off")).auth.jwt.principal_claim == "off"  # a claim may be called so
    assert load_settings(flags(groups_claim="off")).auth.jwt.groups_claim is None


GOOD_SOURCES = [
    "https://idp.example/keys", "https://idp.example:8443/keys?appid=17&v=2", "https://[2001:db8::1]/keys", "https://idp.example/a%20b",
    "http://127.0.0.1:8080/keys", "http://127.9.9.9/keys", "http://[::1]:8080/keys", "/etc/basalt/keys.json", "keys.json",
]  # fmt: skip
BAD_SOURCES = [
    "http://idp.example/keys", "http://localhost/keys", "http://10.0.0.1/keys", "http://0.0.0.0/keys", "http://127.0.0.1.evil.example/keys",
    "http://127.0.0.1@evil.example/keys", "https://user:hunter2@idp.example/keys", "https://idp.example/keys#part", "https://idp.example:99999/",
    "https:///keys", "https://", "ftp://idp.example/keys", "file:///etc/keys", "HTTPS://idp.example", "https://idp.example\\@evil.example/",
    "https://idp.example /keys", "https://[::1/keys", "http://[2001:db8::1]/keys", "http://2130706433/keys", "http://0x7f.1/keys",
]  # fmt: skip


@pytest.mark.parametrize("source", GOOD_SOURCES)
def test_keys_come_by_https_from_this_machine_or_from_a_file(source: str):
    assert load_settings(flags(jwks=source)).auth.jwt.jwks == source


@pytest.mark.parametrize("source", BAD_SOURCES)
def test_keys_come_from_nowhere_where_somebody_could_put_in_their_own(source: str):
    with pytest.raises(InvalidSettingError, match=r"auth\.jwt\.jwks") as raised:
        load_settings(flags(jwks=source))
    assert "hunter2" not in str(raised.value)


def test_a_file_of_settings_has_them_in_a_section_of_their_own(tmp_path: Path):
    file = tmp_path / "basalt.toml"
    lines = "\n".join(f'{name} = "{value}"' for name, value in WHOLE.items())
    file.write_text(f'[auth]\nkinds = ["jwt"]\n[auth.jwt]\n{lines}\nalgorithms = ["ES256"]\nleeway_ms = "5s"\n')
    jwt = load_settings([], {}, file).auth.jwt
    assert (jwt.issuer, jwt.algorithms, jwt.leeway_ms) == (WHOLE["issuer"], ("ES256",), 5_000)
    assert load_settings([], {"BASALT__AUTH__JWT__ISSUER": "x"}, file).auth.jwt.issuer == "x"


def test_no_setting_of_it_changes_while_a_server_runs():
    assert not [key.name for key in keys().values() if key.name.startswith("auth.jwt.") and key.live]
