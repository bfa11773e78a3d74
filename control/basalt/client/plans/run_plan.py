"""Runs a plan to its result: attempts, pauses and one deadline per call, as a generator without input or output.

A driver sends what this yields, sleeps when told to, and hands back the reply. The rules are in `replies`. The driver throws
in here whatever else happens meanwhile, an interrupt for one, because a plan may have something to undo.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlencode

from basalt.client.plans.calls import Await, Call, Reply, Steps
from basalt.client.plans.replies import REQUEST_ID_HEADER, Again, RetryPolicy, judge
from basalt.errors import BasaltError, UnknownOutcomeError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """Send this request and hand back a `Reply` after `timeout_ms` at most."""

    method: str
    target: str  # path and query
    headers: dict[str, str]
    body: bytes = field(repr=False)
    timeout_ms: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Sleep."""

    duration_ms: float


Running: TypeAlias = Generator[Send | Pause | Await, Any, T]


@dataclass(frozen=True, slots=True)
class Environment:
    """The clock, chance and policy that running a plan needs. `monotonic_ms` never goes back; `chance` returns 0 to 1."""

    policy: RetryPolicy
    url: str  # for error messages
    monotonic_ms: Callable[[], float]
    chance: Callable[[], float]
    new_request_id: Callable[[], str]


def run_plan(steps: Steps[T], environment: Environment) -> Running[T]:
    """Run a plan: try each of its calls until it has a result, or fails for good."""
    try:
        step = next(steps)
        while True:
            try:
                result = (yield step) if isinstance(step, Await) else (yield from _attempts(step, environment))
            except GeneratorExit:
                raise  # nobody runs this any more
            except BaseException as error:  # noqa: BLE001  # a plan may clean up, or say how far it got
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


def _attempts(call: Call[Any], environment: Environment) -> Running[Any]:
    policy = environment.policy
    deadline_ms = environment.monotonic_ms() + policy.timeout_ms + call.wait_ms
    request_id = environment.new_request_id()  # the same for every attempt: by it the server recognises a second one
    attempts = 0
    unknown: UnknownOutcomeError | None = None
    while True:
        left_ms = deadline_ms - environment.monotonic_ms()
        reply: Reply = yield _request(call, request_id, left_ms, policy)
        attempts += 1
        try:
            verdict = judge(call, reply, environment.url)
        except BasaltError as final:
            final.request_id = final.request_id or request_id
            raise
        if not isinstance(verdict, Again):
            return verdict
        if isinstance(verdict.error, UnknownOutcomeError):
            unknown = verdict.error
        pause_ms = policy.pause_ms(attempts, environment.chance(), verdict.retry_after_ms)
        if attempts >= policy.attempts_max or environment.monotonic_ms() + pause_ms >= deadline_ms:
            # An earlier attempt may have taken effect, even if the last one reached nobody.
            error = unknown or verdict.error
            error.request_id = error.request_id or request_id
            error.add_note(f"gave up after {attempts} attempts; the deadline was {policy.timeout_ms + call.wait_ms} ms")
            raise error
        yield Pause(pause_ms)


def _request(call: Call[Any], request_id: str, left_ms: float, policy: RetryPolicy) -> Send:
    query = call.query
    if call.wait_ms:
        # A second attempt has less time than the first, and the server must still answer before the deadline.
        wait_ms = int(min(call.wait_ms, max(0, left_ms - policy.timeout_ms / 2)))
        query = (*query, ("waitMs", str(wait_ms)))
    headers = {"Accept": call.accept, REQUEST_ID_HEADER: request_id}
    if call.content_type is not None:
        headers["Content-Type"] = call.content_type
    target = f"{call.path}?{urlencode(query)}" if query else call.path
    return Send(call.method, target, headers, call.body, left_ms)
