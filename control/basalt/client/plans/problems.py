"""Turns answers other than 2xx into exceptions, by the `code` of their problem document.

Codes and documents: docs/reference/errors.md. An answer that is no problem document did not come from Basalt.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from basalt.api.bodies.server import Problem
from basalt.client.plans.calls import Answer, Call, Effect
from basalt.errors import (
    BY_CODE,
    BasaltError,
    BusyError,
    ConflictError,
    InputError,
    InternalError,
    NotFoundError,
    NotLeaderError,
    ProtocolError,
    RetryError,
    UnknownOutcomeError,
)

REQUEST_ID_HEADER = "basalt-request-id"
SHOWN_CHARS_MAX = 200  # of a foreign answer: enough to recognise a proxy's page, too little to flood a log
GATEWAY_STATUSES = frozenset({502, 503, 504})  # a proxy's: the server behind it may have got the call

# A newer server may have codes that this client does not know; the status then says what kind they are.
_BY_STATUS: dict[int, type[BasaltError]] = {
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    429: BusyError,
    503: RetryError,
}


def error_of(call: Call[Any], answer: Answer) -> BasaltError:
    """Make the exception for an answer that is not 2xx. Its `request_id` is the server's, when it told one."""
    try:
        problem = msgspec.json.decode(answer.body, type=Problem)
    except msgspec.MsgspecError:
        return _foreign(call, answer)
    known = BY_CODE.get(problem.code)
    message = problem.detail or problem.code
    if known is None:
        known = _BY_STATUS.get(answer.status) or (InputError if answer.status < 500 else InternalError)
        message = f"{message} (code {problem.code})"
    unknown = issubclass(known, UnknownOutcomeError) and call.effect is not Effect.NONE
    error = known(message, field=problem.field, hint=lost_hint(call) if unknown else problem.hint)
    error.request_id = problem.request_id or answer.headers.get(REQUEST_ID_HEADER)
    if isinstance(error, NotLeaderError):
        error.leader_url = problem.leader
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
            f"{call.what}: something in between answered {answer.status} {_phrase(answer.status)},"
            " so whether it took effect is unknown",
            hint=lost_hint(call),
        )
    return not_basalt(call, answer, "the answer is not Basalt's")


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase


def _retry_after_ms(problem: Problem, answer: Answer) -> int:
    if problem.retry_after_ms is not None:
        return max(0, problem.retry_after_ms)
    header = answer.headers.get("retry-after", "")
    # Only seconds: the date form needs both clocks to agree.
    return int(header) * 1_000 if header.isascii() and header.isdigit() and len(header) < 8 else 0
