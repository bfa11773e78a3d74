"""Judges replies and repeats calls: a reply means a result, an error, or that the call may be sent again after a pause.

A driver sends what `run_plan` yields, sleeps when told to, and hands back the reply. It throws in here whatever else happens
meanwhile, an interrupt for one, because a plan may have something to undo. No input or output.

The calls that may be sent again, and why: docs/reference/client.md, "Retries". The class of an error is found by the `code` of
the problem document: docs/reference/errors.md. An answer that is no problem document did not come from Basalt.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlencode

from msgspec import MsgspecError

from basalt.api.bodies import json
from basalt.api.bodies.operations import Problem
from basalt.client.plans import (
    Answer,
    AnswerLost,
    Await,
    Call,
    Effect,
    LeaderRefused,
    NoCredential,
    NotHttp,
    NotSent,
    Reply,
    Rest,
    Steps,
)
from basalt.errors import (
    BY_CODE,
    AuthenticationUnavailableError,
    BasaltError,
    BusyError,
    ConflictError,
    DiskFullError,
    ForbiddenError,
    InputError,
    InternalError,
    MalformedBodyError,
    NotFoundError,
    NotLeaderError,
    NotOwnerError,
    ProtocolError,
    RetryError,
    StoppingError,
    StoreError,
    ThrottledError,
    UnauthenticatedError,
    UnavailableError,
    UnknownOutcomeError,
)

T = TypeVar("T")

TIMEOUT_MS_DEFAULT = 30_000  # longer than a server takes to restart, shorter than anyone waits without a word
BACKOFF_MS_BASE = 50  # about one restart of a connection; doubles with each attempt
BACKOFF_MS_MAX = 5_000  # all clients of a busy server come back within this
BACKOFF_DOUBLINGS_MAX = 30  # beyond any bound; a call that never gives up must not count to numbers without end
SAID_AFTER_MS = 1_000  # of waiting: a restart that takes no longer is nobody's concern

# The server says with these that it did nothing, so that any call may be sent again.
_NOTHING_HAPPENED = (
    AuthenticationUnavailableError,
    BusyError,
    NotLeaderError,
    NotOwnerError,
    StoppingError,
    StoreError,
    ThrottledError,
    UnavailableError,
)

REQUEST_ID_HEADER = "basalt-request-id"
SHOWN_CHARS_MAX = 200  # of a foreign answer: enough to recognise a proxy's page, too little to flood a log
GATEWAY_STATUSES = frozenset({502, 503, 504})  # a proxy's: the server behind it may have got the call
# A newer server may have codes that this client does not know; the status then says what kind they are.
_BY_STATUS: dict[int, type[BasaltError]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    429: BusyError,
    503: RetryError,
}
# The server's own hint is in the words of HTTP.
_NOBODY_HINT = (
    "Give a token: token= of connect, BASALT_TOKEN_FILE, a profile of the command line, or `basalt auth login`."
)
_CERTIFICATE_HINT = (
    "Name the certificates of its authority: tls=basalt.Tls(ca_file=…), BASALT_CA_FILE, or ca_file of a profile."
)
# A proxy that lets nobody through without a credential of its own says so in its own words.
_REFUSED_BETWEEN: dict[int, type[BasaltError]] = {401: UnauthenticatedError, 403: ForbiddenError}


@dataclass(frozen=True, slots=True)
class Send:
    """Send this request and hand back a `Reply` after `timeout_ms` at most."""

    method: str
    target: str  # path and query
    headers: dict[str, str]
    body: bytes = field(repr=False)
    timeout_ms: float
    spread: int | None = None  # the number by which one of several servers is chosen that answer alike
    topics: tuple[str, ...] = ()  # that it brings messages for, where their owner is to prepare it


@dataclass(frozen=True, slots=True)
class Pause:
    """Sleep."""

    duration_ms: float


@dataclass(frozen=True, slots=True)
class Say:
    """Log this line, for whoever wonders why nothing happens."""

    line: str


Running: TypeAlias = Generator[Send | Pause | Say | Await, Any, T]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The time and number of attempts. `timeout_ms` is a call's deadline, to which a long poll's wait is added; within it at most
    `attempts_max` are made (None: as many as fit).

    `InputError` for a time or a number below 1.
    """

    timeout_ms: int = TIMEOUT_MS_DEFAULT
    attempts_max: int | None = None
    backoff_ms_base: int = BACKOFF_MS_BASE
    backoff_ms_max: int = BACKOFF_MS_MAX

    def __post_init__(self) -> None:
        for name, value in (("timeout_ms", self.timeout_ms), ("attempts_max", self.attempts_max)):
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; it must be 1 or more", field=name)

    def pause_ms(self, attempts: int, chance: float, retry_after_ms: int) -> float:
        """The pause after so many attempts: full jitter (`chance` is 0 to 1), on top of what the server asked for."""
        doublings = min(attempts - 1, BACKOFF_DOUBLINGS_MAX)
        return retry_after_ms + chance * min(self.backoff_ms_max, self.backoff_ms_base << doublings)

    def pause_within_ms(self, left_ms: float, attempts: int, chance: float, retry_after_ms: int) -> float | None:
        """The pause, made shorter where another attempt would not fit behind it; None where none is left."""
        if self.attempts_max is not None and attempts >= self.attempts_max:
            return None
        room_ms = left_ms - retry_after_ms
        if room_ms <= self.backoff_ms_base:
            return None
        return min(self.pause_ms(attempts, chance, retry_after_ms), retry_after_ms + room_ms / 2)


_request_id = partial(secrets.token_hex, 16)


@dataclass(frozen=True, slots=True)
class Environment:
    """The clock, chance and policy that running a plan needs. `monotonic_ms` never goes back; `chance` returns 0 to 1."""

    policy: RetryPolicy
    url: str  # for error messages
    monotonic_ms: Callable[[], float]
    chance: Callable[[], float] = random.random
    new_request_id: Callable[[], str] = _request_id


def run_plan(steps: Steps[T], environment: Environment) -> Running[T]:
    """Run a plan: try each of its calls until it has a result, or fails for good."""
    try:
        step = next(steps)
        while True:
            try:
                result = yield from _taken(step, environment)
            except GeneratorExit:
                raise  # nobody runs this any more
            except BaseException as error:  # noqa: BLE001  # a plan may clean up, or say how far it got
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


def _taken(step: Call[Any] | Await | Rest, environment: Environment) -> Running[Any]:
    if isinstance(step, Await):
        return (yield step)
    if isinstance(step, Rest):
        if step.line is not None:
            yield Say(step.line)
        if step.duration_ms:
            yield Pause(step.duration_ms)
        return None
    return (yield from _attempts(step, environment))


def _attempts(call: Call[Any], environment: Environment) -> Running[Any]:
    policy, monotonic_ms = environment.policy, environment.monotonic_ms
    timeout_ms, began_ms = min(policy.timeout_ms, call.timeout_ms_max or policy.timeout_ms), monotonic_ms()
    timeout_ms += call.wait_ms
    deadline_ms = began_ms + timeout_ms
    request_id = environment.new_request_id()  # the same for every attempt: by it the server recognises a second one
    attempts = 0
    unknown: UnknownOutcomeError | None = None
    outage = _Outage(call)
    while True:
        left_ms = timeout_ms if call.patient else deadline_ms - monotonic_ms()
        outage.begin_attempt(monotonic_ms())
        reply: Reply = yield _request(call, request_id, left_ms, policy)
        attempts += 1
        try:
            verdict = judge(call, reply, environment.url)
        except BasaltError as final:
            final.request_id = final.request_id or request_id
            if unknown is not None and call.effect is Effect.NUMBERED:
                unknown.request_id = final.request_id
                raise unknown from final  # refused it was, but an attempt before may have taken effect
            raise
        if not isinstance(verdict, Again):
            yield from outage.end()
            return verdict
        if isinstance(verdict.error, UnknownOutcomeError):
            unknown = verdict.error
        chance, retry_after_ms = environment.chance(), verdict.retry_after_ms
        if call.patient:
            yield from outage.go_on(verdict.error, monotonic_ms())
            yield Pause(policy.pause_ms(attempts, chance, retry_after_ms))
            continue
        pause_ms = policy.pause_within_ms(deadline_ms - monotonic_ms(), attempts, chance, retry_after_ms)
        if pause_ms is None or (unknown is not None and _too_late(call, monotonic_ms() + pause_ms - began_ms)):
            # An earlier attempt may have taken effect, even if the last one reached nobody.
            error = unknown or verdict.error
            error.request_id = error.request_id or request_id
            error.add_note(f"gave up after {attempts} attempts; the deadline was {timeout_ms} ms")
            raise error
        yield Pause(pause_ms)


def _too_late(call: Call[Any], passed_ms: float) -> bool:
    return call.repeat_ms_max is not None and passed_ms > call.repeat_ms_max


class _Outage:
    """The time in which a call that never gives up gets no answer. It is said once, and once that it is over."""

    def __init__(self, call: Call[Any]) -> None:
        self._call = call
        self._overdue_ms: float | None = None  # since when an answer should have been there
        self._attempt_ms = 0.0
        self._said = False

    def begin_attempt(self, now_ms: float) -> None:
        self._attempt_ms = now_ms

    def go_on(self, error: BasaltError, now_ms: float) -> Running[None]:
        if self._overdue_ms is None:
            self._overdue_ms = min(now_ms, self._attempt_ms + self._call.wait_ms)
        if not self._said and now_ms - self._overdue_ms >= SAID_AFTER_MS:
            self._said = True
            yield Say(f"{error.message}; waiting until it is back")

    def end(self) -> Running[None]:
        if self._said:
            yield Say(f"{self._call.what}: goes on")


def _request(call: Call[Any], request_id: str, left_ms: float, policy: RetryPolicy) -> Send:
    query = call.query
    if call.wait_ms:
        # A second attempt has less time than the first, and the server must still answer before the deadline.
        wait_ms = int(min(call.wait_ms, max(0, left_ms - policy.timeout_ms / 2)))
        query = (*query, ("waitMs", str(wait_ms)))
    headers = {"Accept": call.accept, REQUEST_ID_HEADER: request_id, **call.headers}
    if call.content_type is not None:
        headers["Content-Type"] = call.content_type
    if call.if_match is not None:
        headers["If-Match"] = call.if_match
    target = f"{call.path}?{urlencode(query)}" if query else call.path
    return Send(call.method, target, headers, call.body, left_ms, call.spread, call.topics)


@dataclass(frozen=True, slots=True)
class Again:
    """This attempt failed with `error`, and another is safe, after `retry_after_ms` if the server asked for that."""

    error: BasaltError
    retry_after_ms: int = 0


def judge(call: Call[Any], reply: Reply, url: str) -> Any:
    """The call's result, or `Again` when another attempt is safe; raises what no further attempt would change."""
    if isinstance(reply, Answer):
        return _judge_answer(call, reply)
    if isinstance(reply, NotSent):
        return Again(
            UnavailableError(
                f"{call.what}: no server can be reached at {url} ({reply.reason}); nothing was sent",
                hint=_CERTIFICATE_HINT
                if "CERTIFICATE_VERIFY_FAILED" in reply.reason
                else "Check that the server runs (basalt serve) and that the URL is right.",
            )
        )
    if isinstance(reply, NoCredential):
        return Again(
            AuthenticationUnavailableError(
                f"{call.what}: there is no token to send now ({reply.reason}); nothing was sent"
            )
        )
    if isinstance(reply, LeaderRefused):
        return _judge_leader_refused(call, reply, url)
    if isinstance(reply, NotHttp):
        raise ProtocolError(
            f"{call.what}: what answers at {url} does not speak HTTP ({reply.reason})", hint="Check the URL."
        )
    return _judge_lost(call, reply, url)


def _judge_leader_refused(call: Call[Any], reply: LeaderRefused, url: str) -> Again:
    error = NotLeaderError(
        f"{call.what}: a server at {url} says that {reply.reason} is to be asked, to which this client sends no credential:"
        " it was not given that server, or has spoken over TLS and would not there; nothing was done",
        hint="Name every server in the URL, as leader.url in its settings has it, or use https for all of them.",
    )
    error.leader_url = reply.reason
    return Again(error, error.retry_after_ms)  # another one may lead soon


def _judge_lost(call: Call[Any], reply: AnswerLost, url: str) -> Again:
    if call.effect is Effect.NONE:
        return Again(UnavailableError(f"{call.what}: the answer from {url} was lost ({reply.reason})"))
    error = UnknownOutcomeError(
        f"{call.what}: the answer from {url} was lost ({reply.reason}), so whether it took effect is unknown",
        hint=lost_hint(call),
    )
    if call.effect is Effect.ONCE:
        raise error
    return Again(error)


def _judge_answer(call: Call[Any], answer: Answer) -> Any:
    if 200 <= answer.status < 300 or answer.status in call.accepted:
        try:
            return call.parse(answer)
        except (MsgspecError, MalformedBodyError, ValueError) as unreadable:
            if answer.status in call.accepted:
                raise error_of(call, answer) from None
            raise not_basalt(call, answer, f"the answer cannot be read: {unreadable}") from None
    error = error_of(call, answer)
    if isinstance(error, DiskFullError):
        raise error  # nothing happened, but no second attempt within seconds helps
    if isinstance(error, _NOTHING_HAPPENED):
        return Again(error, error.retry_after_ms)
    unknown = isinstance(error, UnknownOutcomeError) or (
        isinstance(error, ProtocolError) and answer.status in GATEWAY_STATUSES
    )
    if unknown and call.effect is not Effect.ONCE:
        return Again(error)
    raise error


def problem_of(answer: Answer) -> Problem | None:
    """The problem document that an answer is; None when it is none, and so did not come from Basalt."""
    try:
        return json.decode(answer.body, Problem)
    except MsgspecError:
        return None


def error_of(call: Call[Any], answer: Answer) -> BasaltError:
    """Make the exception for an answer that is not 2xx. Its `request_id` is the server's, when it told one."""
    problem = problem_of(answer)
    if problem is None:
        return _foreign(call, answer)
    known = BY_CODE.get(problem.code)
    message = problem.detail or problem.code
    if known is None:
        known = _BY_STATUS.get(answer.status) or (InputError if answer.status < 500 else InternalError)
        message = f"{message} (code {problem.code})"
    unknown = issubclass(known, UnknownOutcomeError) and call.effect is not Effect.NONE
    hint = lost_hint(call) if unknown else problem.hint
    if known is UnauthenticatedError and problem.field == "Authorization":
        hint = _NOBODY_HINT
    error = known(message, field=problem.field, hint=hint)
    error.request_id = problem.request_id or answer.headers.get(REQUEST_ID_HEADER)
    if isinstance(error, NotLeaderError):
        error.leader_url = problem.leader
    if isinstance(error, NotOwnerError):
        error.leader_url, error.owner_url, error.member = problem.leader, problem.owner, problem.member
    if isinstance(error, RetryError):
        error.retry_after_ms = _retry_after_ms(problem, answer)
    return error


def not_basalt(call: Call[Any], answer: Answer, why: str) -> ProtocolError:
    """Make the exception for an answer that cannot be Basalt's."""
    shown = " ".join(answer.body[: 4 * SHOWN_CHARS_MAX].decode("utf-8", "replace").split())[:SHOWN_CHARS_MAX]
    error = ProtocolError(
        f"{call.what}: {why} (status {answer.status}, {answer.headers.get('content-type', 'no content type')}): {shown!r}",
        hint="Check the URL, and what stands between this client and the server.",
    )
    error.request_id = answer.headers.get(REQUEST_ID_HEADER)
    return error


def lost_hint(call: Call[Any]) -> str:
    """Say what to do when it is unknown whether a call took effect. A new call has a new request id: the server does not take it for a repetition."""
    if call.lost_hint is not None:
        return call.lost_hint
    if call.method == "DELETE":
        return "Ask for it by its name: when it is not found, it is deleted."
    if call.effect is Effect.REPEATABLE:
        return "Call it again: done twice, it does no harm."
    return "Look whether it did before calling it again, which may do it twice."


def _foreign(call: Call[Any], answer: Answer) -> BasaltError:
    if answer.status in GATEWAY_STATUSES and call.effect is not Effect.NONE:
        return UnknownOutcomeError(
            f"{call.what}: something in between answered {answer.status} {HTTPStatus(answer.status).phrase},"
            " so whether it took effect is unknown",
            hint=lost_hint(call),
        )
    refused = _REFUSED_BETWEEN.get(answer.status)
    if refused is not None:
        return refused(
            not_basalt(call, answer, "something in between lets nobody through like this").message,
            hint="What stands between this client and the server wants a credential, or another one.",
        )
    return not_basalt(call, answer, "the answer is not Basalt's")


def _retry_after_ms(problem: Problem, answer: Answer) -> int:
    if problem.retry_after_ms is not None:
        return max(0, problem.retry_after_ms)
    header = answer.headers.get("retry-after", "")
    # Only seconds: the date form needs both clocks to agree.
    return int(header) * 1_000 if header.isascii() and header.isdigit() and len(header) < 8 else 0
