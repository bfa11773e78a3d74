"""Answers: how they are sent, how an error is told, and the line that the access log keeps of each.

An answer is sent as one body with its length, or in parts as they are made; coded when that pays. Every one carries
`Basalt-Request-Id`. One that breaks off half-way is never ended properly, so that no reader takes it for whole. Errors are
told as problem documents (RFC 9457), described in docs/reference/errors.md.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from html import escape

from basalt import errors
from basalt.api.bodies import json
from basalt.api.bodies.messages import Buffer
from basalt.api.bodies.operations import Problem
from basalt.http.asgi import content_encoding
from basalt.http.asgi.requests import JSON, Headers, Parts, RequestHead, weights, without_secrets

PROBLEM = b"application/problem+json"

CODED_AT_ONCE_BYTES_MAX = 1024 * 1024  # a larger answer is coded while it is sent, so that others go in between
DETAIL_CHARS_MAX = 2_000  # a detail quotes input; it is for people, and no input is worth more of their screen
ERROR_STATUS_MIN = 400
TARGET_BYTES_MAX = 2_000  # of a request's target in the log
PAGES_PATH = "/console"  # and what is below it
WAITING = "?waitMs"  # behind the route of a call that waits for messages

# A class without a line of its own has its parent's status.
STATUS: dict[type[errors.BasaltError], int] = {
    errors.BasaltError: 500,
    errors.InputError: 400,
    errors.UnauthenticatedError: 401,
    errors.CrossOriginError: 403,
    errors.ForbiddenError: 403,
    errors.NotFoundError: 404,
    errors.MethodNotAllowedError: 405,
    errors.RequestTimeoutError: 408,
    errors.ConflictError: 409,
    errors.TopicChangedError: 412,
    errors.TooLargeError: 413,
    errors.UriTooLongError: 414,
    errors.UnsupportedMediaTypeError: 415,
    errors.WrongHostError: 421,
    errors.ThrottledError: 429,
    errors.ProtocolError: 502,
    errors.RetryError: 503,
    errors.DiskFullError: 507,
}

# A browser must not take what messages hold for a page or a script, nor keep what only who asked may see.
EVERY_ANSWER: Headers = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]

Body = bytes | Sequence[Buffer] | Iterator[Buffer] | AsyncIterator[Buffer]

HTML = b"text/html; charset=utf-8"
# Nothing is loaded but for this style, which the policy knows by its hash.
_PROBLEM_STYLE = (
    ":root{color-scheme:light dark}body{background:Canvas;color:CanvasText;font-family:system-ui,sans-serif}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_PROBLEM_STYLE.encode()).digest()).decode()
PROBLEM_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PROBLEM_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style>
<title>{title} · Basalt</title>
</head>
<body>
<main>
<h1>{title}</h1>
{parts}<p><a href="/console">Overview</a></p>
<p>Status {status}, request {request_id}</p>
</main>
</body>
</html>
"""

_ACCESS_LOG = logging.getLogger("basalt.access")
_SLOW_LOG = logging.getLogger("basalt.slow")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in any locale


class Response:
    """A status, a body and its content type (None: no body).

    A body is one piece, or a list of pieces, or pieces that are made while they are sent; or a stream of them, each sent when it comes.
    """

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self, status: int = 200, body: Body = b"", content_type: bytes | None = None, headers: Headers | None = None
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers


def json_response(value: object, status: int = 200, headers: Headers | None = None) -> Response:
    """An answer of any value that msgspec writes as JSON."""
    return Response(status, json.encode(value), JSON, headers)


def next_header(message_id: bytes | None) -> Headers:
    """The header that says where a reader goes on; none at the end."""
    return [] if message_id is None else [(b"basalt-next", message_id.hex().encode("ascii"))]


def send_response(request: RequestHead, answer: Response) -> Awaitable[None]:
    """Send the answer; the request learns its status and size, for the log and the figures."""
    return request.exchange.send(request, answer.status, *encoded(request, answer))


def encoded(request: RequestHead, answer: Response) -> tuple[Headers, Parts]:
    """The headers and the body of an answer as this request's client takes it; the request learns the status."""
    headers: Headers = [(b"basalt-request-id", request.id.encode("ascii"))]
    if answer.content_type is not None:
        headers.append((b"content-type", answer.content_type))
    if answer.headers:
        headers += answer.headers
    if request.head.cors:
        headers += request.head.cors
    if request.head.proving:
        headers += request.head.proving
    body = answer.body
    if isinstance(body, AsyncIterator):  # as it is: a coder would keep back what is to be seen now
        request.status = answer.status
        return headers, [b""] if request.is_head else body
    parts: list[Buffer] | Iterator[Buffer] = (
        [body] if isinstance(body, bytes) else body if isinstance(body, Iterator) else list(body)
    )
    accepted = request.headers.get(b"accept-encoding")
    if accepted is not None:
        parts = _coded(accepted, parts, headers)
    if isinstance(parts, list) and answer.status != 204:
        headers.append((b"content-length", b"%d" % sum(map(len, parts))))
    request.status = answer.status
    return headers, [b""] if request.is_head else parts


def _coded(
    accept_encoding: bytes, parts: list[Buffer] | Iterator[Buffer], headers: Headers
) -> list[Buffer] | Iterator[Buffer]:
    """The parts in the content coding that the client likes best, if that pays; and the headers that say so."""
    size_bytes = sum(map(len, parts)) if isinstance(parts, list) else None
    if size_bytes is not None and size_bytes < content_encoding.CODED_BYTES_MIN:
        return parts
    headers.append((b"vary", b"accept-encoding"))
    coding = content_encoding.choose(weights(accept_encoding))
    if coding is None:
        return parts
    headers.append((b"content-encoding", coding.encode("ascii")))
    coded = content_encoding.encode(coding, parts)
    return coded if size_bytes is None or size_bytes > CODED_AT_ONCE_BYTES_MAX else list(coded)


def status_of(error_class: type[errors.BasaltError]) -> int:
    """The HTTP status of an error class: its own, or that of its nearest ancestor that has one."""
    return next(STATUS[ancestor] for ancestor in error_class.__mro__ if ancestor in STATUS)


def problem_response(error: errors.BasaltError, request_id: str) -> Response:
    """The answer that tells this error to the caller."""
    status = status_of(type(error))
    retry_after_ms = None
    if isinstance(error, errors.RetryError) and not isinstance(error, errors.UnknownOutcomeError):
        retry_after_ms = error.retry_after_ms  # what may have taken effect is not to be sent again at once
    leader = error.leader_url if isinstance(error, errors.NotLeaderError | errors.NotOwnerError) else None
    owner, member = (error.owner_url, error.member) if isinstance(error, errors.NotOwnerError) else (None, None)
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
        owner=owner,
        member=member,
    )
    headers: Headers = []
    if retry_after_ms is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after_ms / 1_000))))
    if leader is not None:
        headers.append((b"basalt-leader", leader.encode("ascii")))
    if owner is not None:
        headers.append((b"basalt-owner", owner.encode("ascii", "replace")))
    if isinstance(error, errors.UnauthenticatedError):
        headers += [(b"www-authenticate", each.encode("ascii")) for each in error.challenges]
    if isinstance(error, errors.MethodNotAllowedError):
        headers.append((b"allow", ", ".join(error.allowed).encode("ascii")))
    if isinstance(error, errors.UnsupportedMediaTypeError) and error.field == "Content-Encoding":
        headers.append((b"accept-encoding", content_encoding.ACCEPTED))
    return Response(status, json.encode(document), PROBLEM, headers)


def problem_page(error: errors.BasaltError, request: RequestHead) -> Response:
    """The same answer as a page, for a browser that asked for one: it needs nothing that may be what is not in order."""
    told = problem_response(error, request.id)
    parts = [_text(error.message), *([_text(error.hint)] if error.hint else [])]
    head = request.head
    if head.method == "GET":
        again = escape(head.raw_path.decode("latin-1") + ("?" + head.query_string.decode("latin-1")).rstrip("?"))
        parts.append(f'<a href="{again}">Try again</a>')
    title = error.code.replace("_", " ").capitalize()
    body = _PROBLEM_PAGE.format(
        style=_PROBLEM_STYLE,
        title=title,
        parts=f"<p data-told>{parts[0]}</p>\n" + "".join(f"<p>{part}</p>\n" for part in parts[1:]),
        status=told.status,
        request_id=request.id,
    )
    headers = [(name, value) for name, value in told.headers or () if name != b"www-authenticate"]
    return Response(told.status, body.encode(), HTML, [*headers, (b"content-security-policy", PROBLEM_POLICY.encode())])


def is_page(request: RequestHead) -> bool:
    """Tell whether it is a page of the console that is asked for, where the server has one."""
    path = request.head.path
    return path == PAGES_PATH or path.startswith(f"{PAGES_PATH}/")


def told(error: errors.BasaltError, request: RequestHead, *, has_pages: bool) -> Response:
    """The answer that tells the error: as a page to a browser that asks for one of the console, rather than to a program."""
    if has_pages and is_page(request) and b"text/html" in request.headers.get(b"accept", b""):
        return problem_page(error, request)
    return problem_response(error, request.id)


def internal_error() -> errors.InternalError:
    """The error that stands for a bug of ours; it tells nothing that the bug's own error could contain."""
    return errors.InternalError(
        "the server made a mistake; whether the call took effect is unknown",
        hint="Report it with the request id, under which the server's log has the details.",
    )


def method_not_allowed(request: RequestHead, allowed: Sequence[str]) -> errors.MethodNotAllowedError:
    """The refusal of a method that the request's route does not have."""
    error = errors.MethodNotAllowedError(
        f"{request.head.method[:20]} is not a method of {request.route}", hint=f"Use one of: {', '.join(allowed)}."
    )
    error.allowed = tuple(allowed)
    return error


def log_access(
    request: RequestHead,
    duration_ms: float,
    now_ms: int,
    wanted: str,
    principal: object = "",
    client: str | None = None,
    trace_id: str = "",
) -> None:
    """Log one request that was answered (or given up: status 499), never a payload, if `log.access` wants it.

    That a server is not ready is an answer to who asks for it, and no error.

    The message is in Common Log Format with the referrer and the agent left out, which every log tool reads; the same as
    named values is in the record's `fields`, for handlers that write JSON lines.
    """
    if wanted != "all" and (wanted == "off" or request.status < ERROR_STATUS_MIN or request.route == "/readyz"):
        return
    if not _ACCESS_LOG.isEnabledFor(logging.INFO):
        return
    fields = _facts(request, duration_ms, principal, client, trace_id)
    line = f'{fields["client"]} - {fields["principal"]} [{common_log_time(now_ms)}] "{fields["method"]} {fields["target"]} HTTP/1.1"'
    _ACCESS_LOG.info("%s %d %d", line, request.status, request.sent_bytes, extra={"fields": fields})


def log_slow(
    request: RequestHead,
    duration_ms: float,
    principal: object = "",
    client: str | None = None,
    trace_id: str = "",
) -> None:
    """Log a request that took long, with what it waited for. A call that waits for messages is not a slow call."""
    if request.route.endswith(WAITING):
        return
    fields = _facts(request, duration_ms, principal, client, trace_id)
    fields["stages"] = [{"name": each.name, "ms": round(each.duration_ms, 3)} for each in request.stages.found]
    told = request.stages.told() or "it waited for nothing that is measured"
    line = f"{fields['method']} {fields['target']}"
    _SLOW_LOG.warning(
        "%s was answered with %d after %.0f ms: %s", line, request.status, duration_ms, told, extra={"fields": fields}
    )


def _facts(
    request: RequestHead, duration_ms: float, principal: object, client: str | None, trace_id: str
) -> dict[str, object]:
    """The facts of a request as a line of the log names them."""
    head = request.head
    fields: dict[str, object] = {
        "client": client or request.exchange.client or "-",
        "principal": _visible(str(principal).encode()) or "-",
        "method": head.method,
        "target": _target(head.raw_path, head.query_string),
        "route": request.route,
        "status": request.status,
        "sentBytes": request.sent_bytes,
        "durationMs": round(duration_ms, 3),
        "requestId": request.id,
    }
    if trace_id:
        fields["traceId"] = trace_id
    return fields


def common_log_time(now_ms: int) -> str:
    """A time as such logs write it, in UTC: 21/Nov/2026:22:32:15 +0000."""
    moment = time.gmtime(now_ms // 1_000)
    return time.strftime(f"%d/{_MONTHS[moment.tm_mon - 1]}/%Y:%H:%M:%S +0000", moment)


def _target(raw_path: bytes, query_string: bytes) -> str:
    """Path and query as sent, with what could break a line of the log escaped, and without secrets."""
    shown = _visible((raw_path + (b"?" + query_string if query_string else b""))[:TARGET_BYTES_MAX])
    return without_secrets(shown) if "=" in shown or "%" in shown else shown


def _visible(raw: bytes) -> str:
    return "".join(chr(byte) if 33 <= byte <= 126 and byte != 34 else f"%{byte:02X}" for byte in raw)


def _text(text: str) -> str:
    """Text of a page: markup escaped, and what is not printable shown as such."""
    return escape("".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text[:DETAIL_CHARS_MAX]))


def _shown(text: str) -> str:
    clipped = text if len(text) <= DETAIL_CHARS_MAX else text[:DETAIL_CHARS_MAX] + "…"
    return clipped.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written as JSON
