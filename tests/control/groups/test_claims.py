"""Claims against a model: which message is whose, as a dictionary says it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basalt.groups import claims as claims_module
from basalt.groups.claims import (
    ENDED_MAX,
    REMEMBERED_MEMBERS_MAX,
    Caller,
    Claim,
    ClaimEnd,
    ClaimPart,
    Claims,
    parts_of,
)
from basalt_engine.spans.spans import Spans


def place(number: int) -> bytes:
    return number.to_bytes(20, "big")


def claim(number: int, *pairs: tuple[int, int], **given: object) -> Claim:
    spans = Spans([(place(after), place(through)) for after, through in pairs])
    return Claim(number, spans, sum(b - a for a, b in pairs), **({"since_ms": 0, "until_ms": 100} | given))  # type: ignore[arg-type]


def _width(span: tuple[bytes, bytes]) -> int:
    return int.from_bytes(span[1]) - int.from_bytes(span[0])


def cut(
    claims: Claims, after: int, through: int, *, acknowledged: bool = True, messages: int | None = None
) -> list[int]:
    parts = parts_of(claims.common(Spans([(place(after), place(through))])))
    told = [part._replace(messages=min(messages or 0, sum(map(_width, part.spans)))) for part in parts]
    ended = claims.take(told, acknowledged=acknowledged)
    return [each.number for each in ended]


def end(claims: Claims, ended: Claim | None, *, acknowledged: bool = False) -> None:
    assert ended is not None
    claims.take([ClaimPart.whole(ended)], acknowledged=acknowledged)


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "acknowledge", "give back", "end"]), st.integers(0, 30), st.integers(1, 6)),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_claims_know_whose_each_message_is(steps: list[tuple[str, int, int]]) -> None:
    know_whose_each_message_is(steps)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_claims_of_many_spans_know_it_when_somebody_asks(steps: list[tuple[str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims_module, "MANY_SPANS", 1)
        know_whose_each_message_is(steps)


def know_whose_each_message_is(steps: list[tuple[str, int, int]]) -> None:
    claims, holder, number = Claims(), dict[int, int](), 0
    for what, start, length in steps:
        meant = range(start + 1, start + length + 1)
        if what == "add":
            if any(each in holder for each in meant):
                continue
            number += 1
            claims.add(claim(number, (start, start + length)))
            holder |= dict.fromkeys(meant, number)
        elif what == "end":
            owner = claims.holder(place(start + 1))
            if owner is not None:
                end(claims, owner)
                holder = {each: held for each, held in holder.items() if held != owner.number}
        else:
            mine = len([each for each in meant if each in holder])
            cut(claims, start, start + length, acknowledged=what == "acknowledge", messages=mine)
            holder = {each: held for each, held in holder.items() if each not in meant}
        for each in range(40):
            found = claims.holder(place(each))
            assert (None if found is None else found.number) == holder.get(each)
            assert claims.taken.covers(place(each)) == (each in holder)
        assert {each.number for each in claims} == set(holder.values())
        parts = list(claims.holders(place(0), place(40)))
        assert sum(int.from_bytes(b, "big") - int.from_bytes(a, "big") for a, b, _ in parts) == len(holder)


def test_a_claim_that_was_acknowledged_is_remembered_and_one_that_was_lost_is_known_as_that() -> None:
    claims = Claims()
    claims.add(claim(1, (0, 3), member="mary"))
    claims.add(claim(2, (3, 6), member="mary"))
    assert cut(claims, 0, 2) == []
    assert cut(claims, 2, 3) == [1]
    end(claims, claims.find(2, "mary"))
    assert claims.find(1, "mary").end is ClaimEnd.ACKNOWLEDGED  # type: ignore[union-attr]
    assert claims.find(1).end is ClaimEnd.ACKNOWLEDGED  # type: ignore[union-attr]
    assert claims.find(2, "mary").end is ClaimEnd.LOST  # type: ignore[union-attr]
    claims.forget_acknowledged(Spans([(place(1), place(2))]))
    assert claims.find(1, "mary").end is ClaimEnd.LOST  # type: ignore[union-attr]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sets(st.integers(0, 3)), st.booleans()), max_size=12),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=30),
)
def test_an_acknowledgement_that_came_to_nothing_is_found_in_every_claim_that_had_a_part_of_it(
    claimed: list[tuple[int, set[int], bool]], undone: list[tuple[int, int]]
) -> None:
    """Against the slow way: each message of each claim is looked for."""
    claims, made, start = Claims(), list[tuple[Claim, set[int]]](), 0
    for number, (length, done, whole) in enumerate(claimed, 1):
        each = claim(number, (start, start + length), member="mary")
        claims.add(each)
        acknowledged = {start + index + 1 for index in range(length) if whole or index in done}
        for message in acknowledged:
            cut(claims, message - 1, message, messages=1)
        made.append((each, acknowledged))
        start += length
    gone = {message for begin, length in undone for message in range(begin + 1, begin + length + 1)}
    claims.forget_acknowledged(Spans([(place(message - 1), place(message)) for message in sorted(gone)]))
    for each, acknowledged in made:
        if len(acknowledged) == each.messages:
            assert (each.end is ClaimEnd.LOST) == bool(acknowledged & gone)
        elif acknowledged & gone:
            assert each.torn


def test_so_many_claims_that_ended_are_remembered_of_each_member_and_of_so_many_members() -> None:
    claims = Claims()
    for number in range(1, ENDED_MAX + 2):
        claims.add(claim(number, (number, number + 1), member="mary"))
        cut(claims, number, number + 1)
    assert claims.find(1, "mary") is None
    assert claims.find(2, "mary") is not None
    for number in range(REMEMBERED_MEMBERS_MAX):
        claims.add(claim(1_000 + number, (number, number + 1), member=f"member {number}"))
        cut(claims, number, number + 1)
    assert claims.find(2, "mary") is None


def test_claims_of_many_spans_are_remembered_in_smaller_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a keyed group would keep a span of each message that was handled of late."""
    monkeypatch.setattr(claims_module, "ENDED_SPANS_MAX", 10)
    claims = Claims()
    pairs = [(2 * each, 2 * each + 1) for each in range(40)]
    for number, own in enumerate((pairs[:4], pairs[4:8], pairs[8:12], pairs[12:]), 1):
        added = claim(number, *own, member="mary")
        claims.add(added)
        end(claims, added, acknowledged=True)
        remembered = [each for each in range(1, number + 1) if claims.find(each, "mary") is not None]
        assert remembered == {1: [1], 2: [1, 2], 3: [2, 3], 4: [4]}[number]


def test_claims_run_out_in_their_time_unless_they_are_renewed() -> None:
    claims = Claims()
    claims.add(claim(1, (0, 1), until_ms=10))
    claims.add(claim(2, (1, 2), until_ms=20))
    claims.renew(claims.find(1), 30)  # type: ignore[arg-type]
    assert claims.due_ms() == 20
    assert [each.number for each in claims.run_out(20)] == [2]
    end(claims, claims.find(2))
    assert claims.due_ms() == 30
    assert claims.run_out(29) == []


@pytest.mark.parametrize(
    ("caller", "owns"),
    [
        (Caller(), False),
        (Caller("mary"), True),
        (Caller("mary", 7), True),
        (Caller("mary", 6), False),
        (Caller("john", 7, frozenset([1])), False),
        (Caller("", 0, frozenset([1])), True),
        (Caller("", 0, frozenset([2])), False),
        (Caller(transaction_id=17), True),
        (Caller(transaction_id=18), False),
    ],
)
def test_a_claim_is_its_members_its_transactions_and_of_who_names_its_number(caller: Caller, owns: bool) -> None:
    assert caller.owns(claim(1, (0, 1), member="mary", epoch=7, transaction_id=17)) is owns


def test_a_claim_without_a_member_is_not_taken_by_another_without_one() -> None:
    nameless = claim(1, (0, 1))
    assert not Caller().owns(nameless)
    assert Caller(claims=frozenset([1])).owns(nameless)


def test_a_repeated_request_finds_its_claim_until_it_ends() -> None:
    claims = Claims()
    claims.add(claim(1, (0, 2), request_id="r"))
    assert claims.of_request("r") is claims.find(1)
    assert claims.of_request(None) is None
    cut(claims, 0, 2)
    assert claims.of_request("r") is None


def test_a_seek_ends_all_claims_and_forgets_those_that_had_ended() -> None:
    claims = Claims()
    claims.add(claim(1, (0, 2), member="mary"))
    claims.add(claim(2, (2, 4), member="john"))
    cut(claims, 0, 2)
    assert [each.number for each in claims.revoke_all()] == [2]
    assert (len(claims), claims.messages, list(claims.taken), claims.find(1, "mary")) == (0, 0, [], None)


def test_one_long_claim_keeps_no_times_of_those_that_ended() -> None:
    claims = Claims()
    claims.add(claim(1, (0, 1), until_ms=50))
    for number in range(2, 1_000):
        claims.add(claim(number, (number, number + 1)))
        cut(claims, number, number + 1)
        claims.renew(claims.of_member("")[0], 50 + number)
    assert len(claims._due) < 100
    assert (claims.due_ms(), [each.number for each in claims.run_out(1_049)]) == (1_049, [1])


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_claim_ends_with_its_last_message_whatever_gaps_it_has(acknowledged: bool) -> None:
    """Of rows that nobody sees: what is acknowledged by ids begins behind them."""
    claims = Claims()
    two = Claim(1, Spans([(place(0), place(20))]), 2, since_ms=0, until_ms=100)
    claims.add(two)
    assert cut(claims, 5, 10, acknowledged=acknowledged, messages=1) == []
    assert cut(claims, 3, 10, acknowledged=acknowledged) == [], "no message lies there"
    assert (claims.messages, two.messages_left) == (1, 1)
    assert cut(claims, 15, 20, acknowledged=acknowledged, messages=1) == [1]
    assert (len(claims), claims.messages, bool(claims.taken)) == (0, 0, False)
    assert list(two.left) == [(place(0), place(3)), (place(10), place(15))], "nobody's"
    if acknowledged:
        assert list(two.spans) == [(place(3), place(10)), (place(15), place(20))], "these it stands for from now on"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "acknowledge", "give back", "cut", "end"]), st.integers(0, 5), st.integers(0, 3)
        ),
        max_size=40,
    )
)
def test_the_claims_of_a_member_and_of_a_transaction_are_those_that_a_look_at_each_finds(
    steps: list[tuple[str, int, int]],
) -> None:
    claims = Claims()
    for number, (step, which, whose) in enumerate(steps):
        known = list(claims)
        if step == "add":
            member, transaction_id = ("", "a", "b", "b")[whose], (None, 17, 18, None)[whose]
            claims.add(
                claim(number, (9 * number, 9 * number + 4), (9 * number + 5, 9 * number + 8), member=member, epoch=which % 2, transaction_id=transaction_id)
            )  # fmt: skip
        elif known:
            chosen = known[which % len(known)]
            if step == "acknowledge":
                end(claims, chosen, acknowledged=True)
            elif step == "end":
                end(claims, chosen)
            else:
                after, through = next(iter(chosen.left))
                claims.take([ClaimPart(chosen, Spans([(after, through)]), 4)], acknowledged=step == "cut")
        open_ = list(claims)
        for name in ("", "a", "b"):
            assert claims.of_member(name) == [each for each in open_ if each.member == name]
            assert claims.of_member(name, 1) == [each for each in open_ if (each.member, each.epoch) == (name, 1)]
        for transaction_id in (17, 18):
            assert claims.of_transaction(transaction_id) == [
                each for each in open_ if each.transaction_id == transaction_id
            ]
        held = {name: sum(each.messages_left for each in open_ if each.member == name) for name in ("", "a", "b")}
        assert sum(held.values()) == claims.messages
        assert held.get(claims.most(), 0) == max(held.values())
        assert claims.taken == Spans([pair for each in open_ for pair in each.left])
        for each in open_:
            assert all(claims.holder(through) is each for _, through in each.left)


@pytest.mark.parametrize("spans", [1, 3, 40])
def test_many_spans_of_a_claim_come_and_go_as_few_do(spans: int) -> None:
    """A keyed claim has a span for each message: beside few others, all are arranged anew."""
    claims = Claims()
    for number in range(5):
        claims.add(claim(number, *((10 * each + 2 * number, 10 * each + 2 * number + 1) for each in range(spans))))
    end(claims, next(each for each in claims if each.number == 2), acknowledged=True)
    end(claims, next(each for each in claims if each.number == 3))
    owners = {index: claims.holder(place(index)) for index in range(1, 10 * spans + 1)}
    assert {index: each.number for index, each in owners.items() if each is not None} == {
        10 * each + 2 * number + 1: number for each in range(spans) for number in (0, 1, 4)
    }
    assert len(claims.taken) == 3 * spans
    assert all(claims.taken.covers(place(index)) == (each is not None) for index, each in owners.items())


def test_an_abort_of_very_many_spans_searches_for_claims_and_not_for_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """65,536 spans of one transaction beside 1,000 claims: as many searches as there are claims."""
    claims = Claims()
    for number in range(1_000):
        claims.add(claim(number, (100 * number, 100 * number + 1), (100 * number + 3, 100 * number + 4)))
        cut(claims, 100 * number, 100 * number + 1, messages=1)
    searched, overlaps = list[object](), Spans.overlaps

    def counted(self: Spans, after: bytes, through: bytes) -> bool:
        searched.append(after)
        return overlaps(self, after, through)

    monkeypatch.setattr(Spans, "overlaps", counted)
    claims.forget_acknowledged(Spans([(place(2 * number), place(2 * number + 1)) for number in range(65_536)]))
    assert len(searched) <= 2 * 1_000
    assert all(each.torn for each in claims)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=4),
    st.booleans(),
    st.sampled_from([1, 16]),
)
def test_what_is_taken_at_once_is_as_what_is_taken_one_after_the_other(
    dealt: list[list[int]], ranges: list[tuple[int, int]], acknowledged: bool, many_spans: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims_module, "MANY_SPANS", many_spans)
        at_once, by_turns = claims_of(dealt), claims_of(dealt)
        wanted = Spans([(place(start), place(start + length)) for start, length in ranges])
        ended = at_once.take(parts_of(at_once.common(wanted)), acknowledged=acknowledged)
        for each in [each for span in wanted for each in by_turns.common(Spans([span]))]:
            by_turns.take(parts_of([each]), acknowledged=acknowledged)
    assert looks(at_once) == looks(by_turns)
    assert {each.number for each in ended} == {
        each.number for each in (at_once.find(n) for n in range(9)) if each and each.end
    }


def claims_of(dealt: list[list[int]]) -> Claims:
    """Claims of two members, of spans of these lengths, which lie between each other."""
    claims, at, spans = Claims(), 0, dict[int, list[tuple[int, int]]]()
    for turn in range(4):
        for number, lengths in enumerate(dealt):
            if turn < len(lengths):
                spans.setdefault(number, []).append((at, at + lengths[turn]))
                at += lengths[turn] + turn % 2
    for number, pairs in spans.items():
        claims.add(claim(number, *pairs, member="ab"[number % 2], transaction_id=number % 3 or None))
    return claims


def looks(claims: Claims) -> object:
    """All that can be told of claims, and of those that ended."""
    found = [claims.find(number) for number in range(9)]
    told = [(each.number, each.end, each.left, each.spans, each.messages_left) for each in found if each is not None]
    members = {name: [each.number for each in claims.of_member(name)] for name in "ab"}
    transactions = [[each.number for each in claims.of_transaction(number)] for number in range(3)]
    return told, members, transactions, claims.taken, claims.messages, claims.most(), len(claims)


def test_the_times_of_claims_that_ended_are_passed_over_all_at_once() -> None:
    claims = Claims()
    for number in range(100):
        claims.add(claim(number, (9 * number, 9 * number + 4), until_ms=100 + number))
    claims.take([ClaimPart.whole(each) for each in claims if each.number], acknowledged=False)
    assert (claims.due_ms(), len(claims._due)) == (100, 1)
    end(claims, claims.find(0))
    assert claims.due_ms() is None
