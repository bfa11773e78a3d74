"""Who was seen, and when: one entry a principal, the longest unseen goes."""

from __future__ import annotations

from basalt.access import sightings
from basalt.access.policy import Caller, Policy
from basalt.access.principal import parse_principal
from basalt.access.records import TokenUse
from basalt.access.sightings import SEEN_MAX, Sightings
from basalt_engine.clock import ManualClock


def caller(name: str, credential: str = "") -> Caller:
    return Caller(parse_principal(name), Policy(), credential=credential)


def test_a_principal_is_seen_first_and_last_with_its_newest_credential():
    clock = ManualClock()
    seen, began_ms = Sightings(clock), clock.now_ms()
    seen.note(caller("token:a", "token 11"), "192.0.2.1", 0.0)
    seen.note(caller("token:b", "cert 7 of CN=ca"), None, 0.0)
    clock.advance(5_000)
    seen.note(caller("token:a", "login 22"), "192.0.2.2", 5_000.0)
    first, second = seen.newest(10)
    assert (first.principal, first.credential, first.address) == ("token:a", "login 22", "192.0.2.2")
    assert (first.first_ms, first.last_ms) == (began_ms, began_ms + 5_000)
    assert (second.principal, second.address) == ("token:b", "")
    assert seen.newest(1) == [first]


def test_uses_of_tokens_and_logins_are_taken_once():
    clock = ManualClock()
    seen = Sightings(clock)
    seen.note(caller("token:a", "token 11"), "192.0.2.1", 0.0)
    seen.note(caller("krb:b@C", "kerberos HTTP/x"), "192.0.2.1", 0.0)
    assert seen.take_tokens() == {"11": TokenUse(clock.now_ms(), "192.0.2.1")}
    assert seen.take_tokens() == {}


def test_the_longest_unseen_goes_when_there_are_too_many(monkeypatch):
    assert SEEN_MAX == 10_000
    monkeypatch.setattr(sightings, "SEEN_MAX", 2)
    seen = Sightings(ManualClock())
    for name in ("token:a", "token:b", "token:a", "token:c"):
        seen.note(caller(name), None, 0.0)
    assert [each.principal for each in seen.newest(9)] == ["token:c", "token:a"]
