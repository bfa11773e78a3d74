"""What may be sent again: every kind of reply to every kind of call, and the conversation around it, without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from basalt import errors
from basalt.client.attempts import (
    BACKOFF_DOUBLINGS_MAX,
    Again,
    Environment,
    Pause,
    RetryPolicy,
    Say,
    Send,
    judge,
    run_plan,
)
from basalt.client.calls import tables, topics, transactions
from basalt.client.consumer import processing
from basalt.client.plans import (
    Answer,
    AnswerLost,
    Call,
    Effect,
    LeaderRefused,
    NoCredential,
    NotHttp,
    NotSent,
    Reply,
    Rest,
    Steps,
    TableScope,
    ask,
)
from basalt_engine.clock import ManualClock

NONE, REPEATABLE, NUMBERED, ONCE = Effect.NONE, Effect.REPEATABLE, Effect.NUMBERED, Effect.ONCE


def call(effect: Effect = ONCE, wait_ms: int = 0, *, patient: bool = False) -> Call[bytes]:
    return Call("try it", "POST", "/v1/it", lambda answer: answer.body, effect, wait_ms=wait_ms, patient=patient)


def told(status: int, code: str, **fields: object) -> Answer:
    return Answer(status, {}, msgspec.json.encode({"code": code, "detail": f"it is {code}", **fields}))


def page(status: int) -> Answer:
    return Answer(status, {"content-type": "text/html"}, b"<html>")


# reply, then for NONE, REPEATABLE (and NUMBERED), ONCE: the error's class, and whether another attempt is made
TABLE: list[tuple[Any, ...]] = [
    (NotSent("refused"), *[(errors.UnavailableError, True)] * 3),
    (
        AnswerLost("cut"),
        (errors.UnavailableError, True),
        (errors.UnknownOutcomeError, True),
        (errors.UnknownOutcomeError, False),
    ),
    (NotHttp("SSH"), *[(errors.ProtocolError, False)] * 3),
    (NoCredential("away"), *[(errors.AuthenticationUnavailableError, True)] * 3),
    (LeaderRefused("http://c:4780"), *[(errors.NotLeaderError, True)] * 3),
    (told(429, "throttled"), *[(errors.ThrottledError, True)] * 3),
    (told(503, "authentication_unavailable"), *[(errors.AuthenticationUnavailableError, True)] * 3),
    (told(503, "not_leader"), *[(errors.NotLeaderError, True)] * 3),
    (told(503, "not_owner"), *[(errors.NotOwnerError, True)] * 3),
    (told(401, "unauthenticated"), *[(errors.UnauthenticatedError, False)] * 3),
    (told(401, "a_code_of_a_newer_server"), *[(errors.UnauthenticatedError, False)] * 3),
    (told(403, "forbidden"), *[(errors.ForbiddenError, False)] * 3),
    (told(403, "a_code_of_a_newer_server"), *[(errors.ForbiddenError, False)] * 3),
    (page(401), *[(errors.UnauthenticatedError, False)] * 3),
    (page(403), *[(errors.ForbiddenError, False)] * 3),
    (told(429, "busy"), *[(errors.BusyError, True)] * 3),
    (told(503, "stopping"), *[(errors.StoppingError, True)] * 3),
    (told(503, "unavailable"), *[(errors.UnavailableError, True)] * 3),
    (told(503, "store_unavailable"), *[(errors.StoreError, True)] * 3),
    (told(507, "disk_full"), *[(errors.DiskFullError, False)] * 3),
    (
        told(503, "outcome_unknown"),
        (errors.UnknownOutcomeError, True),
        (errors.UnknownOutcomeError, True),
        (errors.UnknownOutcomeError, False),
    ),
    (told(500, "internal"), *[(errors.InternalError, False)] * 3),
    (told(500, "corruption"), *[(errors.CorruptionError, False)] * 3),
    (told(400, "malformed_body"), *[(errors.MalformedBodyError, False)] * 3),
    (told(404, "topic_not_found"), *[(errors.TopicNotFoundError, False)] * 3),
    (told(409, "transaction_conflict"), *[(errors.TransactionConflictError, False)] * 3),
    (told(409, "a_code_of_a_newer_server"), *[(errors.ConflictError, False)] * 3),
    (told(422, "a_code_of_a_newer_server"), *[(errors.InputError, False)] * 3),
    (told(503, "a_code_of_a_newer_server"), *[(errors.RetryError, False)] * 3),
    (told(500, "a_code_of_a_newer_server"), *[(errors.InternalError, False)] * 3),
    (
        page(502),
        (errors.ProtocolError, True),
        (errors.UnknownOutcomeError, True),
        (errors.UnknownOutcomeError, False),
    ),
    (page(404), *[(errors.ProtocolError, False)] * 3),
    (page(301), *[(errors.ProtocolError, False)] * 3),
]


def rows() -> Iterator[object]:
    for reply, *outcomes in TABLE:
        of_each = zip((NONE, REPEATABLE, NUMBERED, ONCE), (*outcomes[:2], *outcomes[1:]), strict=True)
        for effect, (error, again) in of_each:
            name = reply.body[:30].decode() if isinstance(reply, Answer) else type(reply).__name__
            yield pytest.param(reply, effect, error, again, id=f"{effect.value} {name}")


@pytest.mark.parametrize(("reply", "effect", "error", "again"), list(rows()))
def test_every_reply_to_every_kind_of_call(reply, effect, error, again):
    try:
        verdict = judge(call(effect), reply, "http://there")
    except errors.BasaltError as raised:
        assert (type(raised), False) == (error, again)
    else:
        assert isinstance(verdict, Again)
        assert (type(verdict.error), True) == (error, again)


WHAT_NEXT = [
    (transactions.commit, ("42",), "Ask client.transactions.get('42').state before doing the work again."),
    (transactions.begin, (), "Begin again; one that has begun unheard is ended by its time-out."),
    (
        processing.publish_atomically,
        ({"orders": ["1"]},),
        "Poll to see whether the messages came before publishing them again.",
    ),
    (tables.write, (TableScope("shop", "t"), "42", {}), "Call it again: done twice, it does no harm."),
    (tables.delete, ("t",), "Ask for it by its name: when it is not found, it is deleted."),
    (transactions.delete_session, ("billing",), "Ask for it by its name: when it is not found, it is deleted."),
    (topics.create, ("orders",), "Look whether it did before calling it again, which may do it twice."),
]


@pytest.mark.parametrize(
    "reply", [AnswerLost("cut"), page(502), told(503, "outcome_unknown", hint="the server's")], ids=str
)
@pytest.mark.parametrize(("plan", "arguments", "hint"), WHAT_NEXT, ids=[row[2] for row in WHAT_NEXT])
def test_whoever_does_not_know_the_outcome_is_told_what_to_do_next(scope, plan, arguments, hint, reply):
    steps = plan(*arguments) if plan is tables.write else plan(scope, *arguments)
    sent = next(steps)
    try:
        error = judge(sent, reply, "http://there").error
    except errors.UnknownOutcomeError as raised:
        error = raised
    assert error.hint == hint


def test_an_answer_that_cannot_be_read_is_a_protocol_error():
    def refuse(_answer: Answer) -> bytes:
        raise ValueError("not what it should be")

    with pytest.raises(errors.ProtocolError, match="not what it should be"):
        judge(replace(call(), parse=refuse), Answer(200, {}, b""), "http://there")


def test_an_accepted_status_is_read_like_a_success():
    not_ready = replace(call(), accepted=(503,))
    assert judge(not_ready, Answer(503, {}, b"no"), "http://there") == b"no"


@pytest.mark.parametrize(
    ("headers", "document", "expected_ms"),
    [
        ({"retry-after": "3"}, {}, 3_000),
        ({"retry-after": "3"}, {"retryAfterMs": 250}, 250),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, 0),
        ({"retry-after": "-5"}, {}, 0),
        ({"retry-after": "٣"}, {}, 0),
        ({}, {"retryAfterMs": -5}, 0),
        ({}, {}, 0),
    ],
)
def test_what_the_server_asks_to_wait(headers, document, expected_ms):
    reply = Answer(429, headers, msgspec.json.encode({"code": "busy", **document}))
    verdict = judge(call(), reply, "http://there")
    assert verdict.retry_after_ms == expected_ms


class Rehearsal:
    """A conversation led by hand, on a clock that its pauses move."""

    def __init__(self, what: Call[bytes], policy: RetryPolicy, chance: float = 1.0) -> None:
        self.clock = ManualClock()
        self.sent: list[Send] = []
        self.pauses: list[float] = []
        self.said: list[str] = []
        ids = iter(f"id-{number}" for number in range(100))
        around = Environment(policy, "http://there", self.clock.monotonic_ms, lambda: chance, lambda: next(ids))
        self._conversation = run_plan(ask(what), around)

    def play(self, *replies: Reply, each_takes_ms: int = 0) -> bytes:
        """Give these replies one by one; the result, or what is raised."""
        left = list(replies)
        reply: Reply | None = None
        try:
            while True:
                step = self._conversation.send(reply)
                reply = None
                if isinstance(step, Pause):
                    self.pauses.append(step.duration_ms)
                    self.clock.advance(int(step.duration_ms))
                elif isinstance(step, Say):
                    self.said.append(step.line)
                else:
                    self.sent.append(step)
                    self.clock.advance(each_takes_ms)
                    reply = left.pop(0)
        except StopIteration as stop:
            assert not left
            return stop.value


POLICY = RetryPolicy(timeout_ms=10_000, attempts_max=5, backoff_ms_base=100, backoff_ms_max=300)
DONE = Answer(200, {}, b"done")


def test_pauses_double_up_to_their_bound():
    rehearsal = Rehearsal(call(), POLICY)
    assert rehearsal.play(*[NotSent("refused")] * 4, DONE) == b"done"
    assert rehearsal.pauses == [100, 200, 300, 300]


def test_a_pause_is_anything_between_nothing_and_its_bound():
    rehearsal = Rehearsal(call(), POLICY, chance=0.0)
    rehearsal.play(*[NotSent("refused")] * 2, DONE)
    assert rehearsal.pauses == [0, 0]


def test_what_the_server_asks_for_comes_on_top():
    rehearsal = Rehearsal(call(), POLICY)
    rehearsal.play(told(429, "busy", retryAfterMs=2_000), DONE)
    assert rehearsal.pauses == [2_100]


def test_a_pause_past_the_deadline_is_not_begun():
    rehearsal = Rehearsal(call(), POLICY)
    with pytest.raises(errors.BusyError):
        rehearsal.play(told(429, "busy", retryAfterMs=60_000))
    assert rehearsal.pauses == []


def test_attempts_are_counted():
    rehearsal = Rehearsal(call(NONE), POLICY)
    with pytest.raises(errors.UnavailableError) as raised:
        rehearsal.play(*[AnswerLost("cut")] * 5)
    assert len(rehearsal.sent) == 5
    assert "gave up after 5 attempts" in raised.value.__notes__[0]


def test_every_attempt_gets_what_is_left_of_the_deadline():
    rehearsal = Rehearsal(call(NONE), POLICY)
    rehearsal.play(AnswerLost("cut"), AnswerLost("cut"), DONE, each_takes_ms=3_000)
    assert [send.timeout_ms for send in rehearsal.sent] == [10_000, 6_900, 3_700]


def test_a_call_of_less_time_than_the_clients_ends_sooner():
    rehearsal = Rehearsal(replace(call(REPEATABLE), timeout_ms_max=5_000), POLICY)
    with pytest.raises(errors.UnavailableError) as raised:
        rehearsal.play(*[NotSent("refused")] * 2, each_takes_ms=4_950)
    assert [send.timeout_ms for send in rehearsal.sent] == [5_000]
    assert "the deadline was 5000 ms" in raised.value.__notes__[0]
    long = Rehearsal(replace(call(NONE), timeout_ms_max=99_000), POLICY)
    long.play(DONE)
    assert long.sent[0].timeout_ms == POLICY.timeout_ms


def test_a_long_poll_waits_less_at_its_second_attempt():
    rehearsal = Rehearsal(call(NONE, wait_ms=60_000), POLICY)
    rehearsal.play(AnswerLost("cut"), AnswerLost("cut"), DONE, each_takes_ms=30_000)
    assert [send.target for send in rehearsal.sent] == [
        "/v1/it?waitMs=60000",
        "/v1/it?waitMs=34900",
        "/v1/it?waitMs=4700",
    ]
    assert [send.timeout_ms for send in rehearsal.sent] == [70_000, 39_900, 9_700]


def test_all_attempts_have_one_request_id_and_the_error_has_it_too():
    rehearsal = Rehearsal(call(REPEATABLE), POLICY)
    with pytest.raises(errors.UnknownOutcomeError) as raised:
        rehearsal.play(*[AnswerLost("cut")] * 5)
    assert {send.headers["basalt-request-id"] for send in rehearsal.sent} == {"id-0"}
    assert raised.value.request_id == "id-0"


def test_an_attempt_that_reached_nobody_does_not_undo_one_that_may_have():
    rehearsal = Rehearsal(call(REPEATABLE), POLICY)
    with pytest.raises(errors.UnknownOutcomeError):
        rehearsal.play(AnswerLost("cut"), *[NotSent("refused")] * 4)


def test_a_definite_answer_counts_whatever_came_before():
    rehearsal = Rehearsal(call(REPEATABLE), POLICY)
    with pytest.raises(errors.TransactionConflictError):
        rehearsal.play(AnswerLost("cut"), told(409, "transaction_conflict"))


NUMBERED_CALL = replace(call(NUMBERED), headers={"basalt-producer": "p", "basalt-sequence": "7"})


def test_a_numbered_call_has_the_same_numbers_in_every_attempt():
    rehearsal = Rehearsal(NUMBERED_CALL, POLICY)
    assert rehearsal.play(AnswerLost("cut"), told(503, "outcome_unknown"), told(429, "busy"), DONE) == b"done"
    assert [(send.headers["basalt-producer"], send.headers["basalt-sequence"]) for send in rehearsal.sent] == [
        ("p", "7")
    ] * 4


@pytest.mark.parametrize(
    "refusal", [told(409, "producer_unknown"), told(507, "disk_full"), told(500, "internal")], ids=str
)
def test_a_refused_repetition_of_a_numbered_call_says_nothing_of_the_attempt_that_was_lost(refusal):
    rehearsal = Rehearsal(NUMBERED_CALL, POLICY)
    with pytest.raises(errors.UnknownOutcomeError, match="lost") as raised:
        rehearsal.play(AnswerLost("cut"), refusal)
    assert raised.value.__cause__ is not None


def test_a_numbered_call_that_was_refused_without_a_lost_answer_is_just_refused():
    rehearsal = Rehearsal(NUMBERED_CALL, POLICY)
    with pytest.raises(errors.DiskFullError):
        rehearsal.play(told(429, "busy"), NotSent("refused"), told(507, "disk_full"))


def test_what_may_be_forgotten_is_not_sent_again_once_that_may_have_happened():
    slow = RetryPolicy(timeout_ms=600_000, backoff_ms_base=100, backoff_ms_max=300)
    rehearsal = Rehearsal(replace(NUMBERED_CALL, repeat_ms_max=50_000), slow)
    with pytest.raises(errors.UnknownOutcomeError):
        rehearsal.play(AnswerLost("cut"), AnswerLost("cut"), AnswerLost("cut"), each_takes_ms=20_000)
    rehearsal = Rehearsal(replace(NUMBERED_CALL, repeat_ms_max=50_000), slow)
    assert rehearsal.play(*[NotSent("refused")] * 5, DONE, each_takes_ms=20_000) == b"done"


@pytest.mark.parametrize("effect", [NONE, REPEATABLE, NUMBERED, ONCE])
@pytest.mark.parametrize("reply", [NotSent("refused"), told(503, "stopping")], ids=["no connection", "stopping"])
def test_while_nothing_was_done_the_deadline_alone_decides(effect, reply):
    rehearsal = Rehearsal(call(effect), RetryPolicy(timeout_ms=30_000))
    assert rehearsal.play(*[reply] * 10, DONE) == b"done"


@pytest.mark.parametrize("chance", [0.5, 1.0])
def test_the_last_attempt_is_made_shortly_before_the_deadline(chance):
    rehearsal = Rehearsal(call(NONE), RetryPolicy(timeout_ms=30_000), chance)
    with pytest.raises(errors.UnavailableError, match="refused"):
        rehearsal.play(*[NotSent("refused")] * 1_000)
    assert 29_900 < rehearsal.clock.monotonic_ms() < 30_000
    assert len(rehearsal.sent) < 40


def test_a_server_that_asks_for_time_is_not_asked_sooner_for_the_deadlines_sake():
    rehearsal = Rehearsal(call(), RetryPolicy(timeout_ms=10_000))
    assert rehearsal.play(told(429, "busy", retryAfterMs=9_900), DONE) == b"done"
    assert 9_900 <= rehearsal.pauses[0] < 10_000


PATIENT = call(NONE, wait_ms=20_000, patient=True)


@pytest.mark.parametrize("reply", [NotSent("refused"), AnswerLost("cut"), told(503, "stopping"), page(502)], ids=str)
def test_a_patient_call_goes_on_without_end_and_with_its_whole_wait(reply):
    rehearsal = Rehearsal(PATIENT, POLICY)
    assert rehearsal.play(*[reply] * 2_000, DONE) == b"done"
    assert {send.target for send in rehearsal.sent} == {"/v1/it?waitMs=20000"}
    assert {send.timeout_ms for send in rehearsal.sent} == {30_000}
    assert max(rehearsal.pauses) == 300


def test_after_any_number_of_attempts_a_pause_costs_no_more_to_reckon():
    policy = RetryPolicy(backoff_ms_base=1, backoff_ms_max=1 << 60)
    assert [policy.pause_ms(1 + doublings, 1.0, 0) for doublings in (0, 1, BACKOFF_DOUBLINGS_MAX)] == [1, 2, 1 << 30]
    assert policy.pause_ms(10**9, 1.0, 0) == 1 << BACKOFF_DOUBLINGS_MAX


def test_a_patient_call_says_once_that_it_waits_and_once_that_it_goes_on():
    rehearsal = Rehearsal(PATIENT, POLICY)
    rehearsal.play(*[NotSent("refused")] * 100, DONE)
    assert rehearsal.said == [
        "try it: no server can be reached at http://there (refused); nothing was sent; waiting until it is back",
        "try it: goes on",
    ]


def test_a_patient_call_says_nothing_of_a_moment():
    rehearsal = Rehearsal(PATIENT, POLICY)
    rehearsal.play(AnswerLost("cut"), AnswerLost("cut"), DONE)
    assert rehearsal.said == []


def test_a_patient_call_says_at_once_that_an_answer_never_came():
    rehearsal = Rehearsal(PATIENT, POLICY)
    rehearsal.play(AnswerLost("no answer in time"), DONE, each_takes_ms=30_000)
    assert [line.partition(";")[2] for line in rehearsal.said] == [" waiting until it is back", ""]


def test_a_patient_call_ends_where_no_server_would_answer_differently():
    rehearsal = Rehearsal(PATIENT, POLICY)
    with pytest.raises(errors.TopicNotFoundError):
        rehearsal.play(NotSent("refused"), told(404, "topic_not_found"))


def test_a_rest_is_a_pause_whose_reason_is_said():
    def resting() -> Steps[str]:
        yield Rest(250, "the batch is dropped")
        yield Rest(0, "and another")
        yield Rest(5)
        return "done"

    around = Environment(POLICY, "http://there", ManualClock().monotonic_ms)
    running = run_plan(resting(), around)
    steps = []
    with pytest.raises(StopIteration) as ended:
        while True:
            steps.append(next(running))
    assert steps == [Say("the batch is dropped"), Pause(250), Say("and another"), Pause(5)]
    assert ended.value.value == "done"


def test_a_patient_call_with_an_effect_is_repeated_under_the_id_that_it_began_with():
    rehearsal = Rehearsal(call(REPEATABLE, patient=True), POLICY)
    assert rehearsal.play(*[AnswerLost("cut"), NotSent("refused"), told(503, "stopping")] * 20, DONE) == b"done"
    assert {send.headers["basalt-request-id"] for send in rehearsal.sent} == {"id-0"}
