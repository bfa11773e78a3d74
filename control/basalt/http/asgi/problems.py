"""Errors as HTTP: the one map from error class to status, and the problem documents (RFC 9457) that tell them.

The documents are described in docs/reference/errors.md. What is not one of our errors is told as `internal`, with
nothing but the request id: its details are in the log.
"""

from __future__ import annotations

import math

import msgspec

from basalt import errors
from basalt.api.bodies.operations import Problem
from basalt.http.asgi import codings
from basalt.http.asgi.responses import PROBLEM, Headers, Response

DETAIL_CHARS_MAX = 2_000  # a detail quotes input; it is for people, and no input is worth more of their screen

# A class without a line of its own has its parent's status.
STATUS: dict[type[errors.BasaltError], int] = {
    errors.BasaltError: 500,
    errors.InputError: 400,
    errors.NotFoundError: 404,
    errors.MethodNotAllowedError: 405,
    errors.RequestTimeoutError: 408,
    errors.ConflictError: 409,
    errors.TopicChangedError: 412,
    errors.TooLargeError: 413,
    errors.UriTooLongError: 414,
    errors.UnsupportedMediaTypeError: 415,
    errors.CorruptionError: 500,
    errors.InternalError: 500,
    errors.ProtocolError: 502,
    errors.RetryError: 503,
    errors.DiskFullError: 507,
}


def status_of(error_class: type[errors.BasaltError]) -> int:
    """The HTTP status of an error class: its own, or that of its nearest ancestor that has one."""
    return next(STATUS[ancestor] for ancestor in error_class.__mro__ if ancestor in STATUS)


def problem_response(error: errors.BasaltError, request_id: str) -> Response:
    """The answer that tells this error to the caller."""
    status = status_of(type(error))
    retry_after_ms = error.retry_after_ms if isinstance(error, errors.RetryError) and retryable(error) else None
    leader = error.leader_url if isinstance(error, errors.NotLeaderError) else None
    document = Problem(
        type=f"urn:basalt:error:{error.code}",
        title=error.code.replace("_", " ").capitalize(),
        status=status,
        code=error.code,
        detail=_shown(error.message),
        request_id=request_id,
        field=error.field,
        hint=error.hint,
        retry_after_ms=retry_after_ms,
        leader=leader,
    )
    headers: Headers = []
    if retry_after_ms is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after_ms / 1_000))))
    if leader is not None:
        headers.append((b"basalt-leader", leader.encode("ascii")))
    if isinstance(error, errors.MethodNotAllowedError):
        headers.append((b"allow", ", ".join(error.allowed).encode("ascii")))
    if isinstance(error, errors.UnsupportedMediaTypeError) and error.field == "Content-Encoding":
        headers.append((b"accept-encoding", codings.ACCEPTED))
    return Response(status, msgspec.json.encode(document), PROBLEM, headers)


def retryable(error: errors.RetryError) -> bool:
    """Tell whether the same may be sent again at once: not when the first may have taken effect."""
    return not isinstance(error, errors.UnknownOutcomeError)


def internal_error() -> errors.InternalError:
    """The error that stands for a bug of ours; it tells nothing that the bug's own error could contain."""
    return errors.InternalError(
        "the server made a mistake; whether the call took effect is unknown",
        hint="Report it with the request id, under which the server's log has the details.",
    )


def _shown(text: str) -> str:
    clipped = text if len(text) <= DETAIL_CHARS_MAX else text[:DETAIL_CHARS_MAX] + "…"
    return clipped.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written as JSON
