"""What a group's bodies may mean: the options that a group may have, and what a call may name."""

from __future__ import annotations

from typing import Any

import pytest

from basalt.api.bodies import groups, json
from basalt.api.bodies.groups import (
    ATTEMPTS_MAX,
    BY_CHARS_MAX,
    DELAY_MS_MAX,
    MEMBER_MS_MAX,
    AcknowledgeRequest,
    GroupOptions,
    MemberRequest,
    PositionRequest,
    ReleaseRequest,
    UnparkRequest,
)
from basalt.api.bodies.json import HexMessageId
from basalt.api.bodies.messages import REASON_CHARS_MAX, WorkAcknowledge
from basalt.errors import InputError

ID = HexMessageId(bytes(range(20)))


def refusal_of(check: Any, *arguments: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        check(*arguments)
    return caught.value


def options_refused(**changed: Any) -> str | None:
    return refusal_of(groups.check_options, GroupOptions(**changed), 100_000, 43_200_000).field


def test_default_options_are_fine() -> None:
    groups.check_options(groups.DEFAULT_OPTIONS, 100_000, 43_200_000)
    groups.check_options(GroupOptions(key="header:page", attempts_max=0, retry_delay_ms=0), 100_000, 43_200_000)


def test_options_out_of_their_bounds_are_refused_by_name() -> None:
    assert options_refused(key="value") == options_refused(key="header:") == options_refused(key="header:a\n") == "key"
    assert options_refused(member_ms=999) == options_refused(member_ms=MEMBER_MS_MAX + 1) == "memberMs"
    assert options_refused(claim_ms=999) == options_refused(claim_ms=43_200_001) == "claimMs"
    assert options_refused(unacked_max=0) == options_refused(unacked_max=100_001) == "unackedMax"
    assert options_refused(attempts_max=-1) == options_refused(attempts_max=ATTEMPTS_MAX + 1) == "attemptsMax"
    assert options_refused(retry_delay_ms=-1) == options_refused(retry_delay_ms=DELAY_MS_MAX + 1) == "retryDelayMs"
    assert options_refused(retry_delay_ms=5, retry_delay_ms_max=4) == "retryDelayMsMax"
    assert options_refused(expire_ms=-1) == "expireMs"


def test_an_acknowledgement_is_what_a_work_would_have() -> None:
    asked = AcknowledgeRequest(claims=(5,), except_ids=(ID,), member="w1", epoch=3, round=1)
    expected = WorkAcknowledge("n", "t", "g", (), None, "w1", 3, 1, (5,), (ID,))
    assert groups.acknowledge_of("n", "t", "g", asked) == expected
    assert refusal_of(groups.acknowledge_of, "n", "t", "g", AcknowledgeRequest()).field == "ids"
    assert refusal_of(groups.acknowledge_of, "n", "t", "g", AcknowledgeRequest((ID,), epoch=1)).field == "epoch"
    many = AcknowledgeRequest(ids=(ID,) * 65_537)
    assert refusal_of(groups.acknowledge_of, "n", "t", "g", many).code == "too_large"


def test_a_call_names_a_thousand_claims_at_most_and_says_so() -> None:
    most = tuple(range(1, 1_001))
    groups.acknowledge_of("n", "t", "g", AcknowledgeRequest(ids=(ID,), claims=most))
    groups.check_release(ReleaseRequest(claims=most))
    for refused in (
        refusal_of(groups.acknowledge_of, "n", "t", "g", AcknowledgeRequest(claims=(*most, 1_001))),
        refusal_of(groups.check_release, ReleaseRequest(claims=(*most, 1_001))),
    ):
        assert (refused.code, refused.field) == ("too_large", "claims")
        assert str(refused).startswith("claims has 1001 items; one call may carry 1000")


def test_a_body_names_ids_in_hex_and_what_it_leaves_out_as_except() -> None:
    body = json.encode(AcknowledgeRequest(ids=(ID,), except_ids=(ID,), up_to=ID))
    assert body == b'{"ids":["%b"],"upTo":"%b","except":["%b"]}' % ((ID.hex().encode(),) * 3)
    assert json.decode(body, AcknowledgeRequest) == AcknowledgeRequest(ids=(ID,), except_ids=(ID,), up_to=ID)


def test_a_release_waits_as_long_as_a_group_may() -> None:
    groups.check_release(ReleaseRequest(claims=(1,), delay_ms=DELAY_MS_MAX, reason="r" * REASON_CHARS_MAX))
    assert refusal_of(groups.check_release, ReleaseRequest(claims=(1,), delay_ms=DELAY_MS_MAX + 1)).field == "delayMs"
    assert refusal_of(groups.check_release, ReleaseRequest(claims=(1,), delay_ms=-1)).field == "delayMs"
    groups.check_release(ReleaseRequest(claims=(1,), counts=False))
    assert refusal_of(groups.check_release, ReleaseRequest(claims=(1,), delay_ms=0, counts=False)).field == "delayMs"
    assert (
        refusal_of(groups.check_release, ReleaseRequest((ID,), reason="r" * (REASON_CHARS_MAX + 1))).field == "reason"
    )
    assert refusal_of(groups.check_release, ReleaseRequest()).field == "ids"


def test_a_sign_of_life_is_of_a_member() -> None:
    groups.check_member_request("w 1", MemberRequest(5, (1, 2)))
    for name in ("", "a/b", "..", "a\nb", "m" * 256):
        assert refusal_of(groups.check_member_request, name, MemberRequest()).code == "invalid_name"
    assert refusal_of(groups.check_member_request, "w1", MemberRequest(-1)).field == "epoch"
    assert refusal_of(groups.check_member_request, "w1", MemberRequest(1, (0,))).field == "extend"


def test_unparking_names_some_messages_or_all() -> None:
    groups.check_unpark(UnparkRequest((ID,)))
    groups.check_unpark(UnparkRequest(all=True))
    assert refusal_of(groups.check_unpark, UnparkRequest()).field == "ids"
    assert refusal_of(groups.check_unpark, UnparkRequest((ID,), all=True)).field == "ids"


def test_who_reports_a_position_can_be_shown() -> None:
    groups.check_position(PositionRequest(ID, "q" * BY_CHARS_MAX))
    assert refusal_of(groups.check_position, PositionRequest(ID, "q" * (BY_CHARS_MAX + 1))).field == "by"
    assert refusal_of(groups.check_position, PositionRequest(ID, "a\nb")).field == "by"
