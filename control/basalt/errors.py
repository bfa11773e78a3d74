"""The control plane's leaves of the error tree: one class per stable code, shared by server, client and CLI.

Which HTTP status a class gets is decided in `basalt.http.asgi.responses` alone; the client finds the class again by its code.
The codes are listed in docs/reference/errors.md.
"""

from __future__ import annotations

from typing import ClassVar

from basalt_engine.errors import (
    BasaltError,
    CorruptionError,
    DataDirectoryError,
    DiskFullError,
    InputError,
    RetryError,
    StoreError,
    UnknownOutcomeError,
)


class InvalidNameError(InputError):
    """A namespace, topic, job or owner name has characters or a length that names may not have."""

    code: ClassVar[str] = "invalid_name"


class InvalidPropertyError(InputError):
    """A topic property has a value that it may not have."""

    code: ClassVar[str] = "invalid_property"


class InvalidSettingError(InputError):
    """A setting is unknown, or has a value that it may not have."""

    code: ClassVar[str] = "invalid_setting"


class MalformedBodyError(InputError):
    """A request body is not what its content type says, or lacks a part, or has one too many."""

    code: ClassVar[str] = "malformed_body"


class TooLargeError(InputError):
    """A body, or the number of messages in it, is over a limit that the message names."""

    code: ClassVar[str] = "too_large"


class UnsupportedMediaTypeError(InputError):
    """The content type or content encoding of a body is not one that this route reads."""

    code: ClassVar[str] = "unsupported_media_type"


class NotFoundError(InputError):
    """The thing that the call names does not exist."""

    code: ClassVar[str] = "not_found"


class TopicNotFoundError(NotFoundError):
    """No such topic in this namespace, or it was deleted."""

    code: ClassVar[str] = "topic_not_found"


class TableNotFoundError(NotFoundError):
    """No such table in this namespace, or it was deleted."""

    code: ClassVar[str] = "table_not_found"


class TransactionNotFoundError(NotFoundError):
    """No transaction of this id is open, and none that ended is still remembered."""

    code: ClassVar[str] = "transaction_not_found"


class SessionNotFoundError(NotFoundError):
    """No such session, or not at this epoch (yet, or any more): open it, then begin at the epoch that it tells."""

    code: ClassVar[str] = "session_not_found"


class MessageNotFoundError(NotFoundError):
    """No message of this id is in the topic (any more)."""

    code: ClassVar[str] = "message_not_found"


class JobNotFoundError(NotFoundError):
    """The scheduler has no job of this name."""

    code: ClassVar[str] = "job_not_found"


class RouteNotFoundError(NotFoundError):
    """No call of the API has this path."""

    code: ClassVar[str] = "route_not_found"


class MethodNotAllowedError(InputError):
    """The path exists, but not with this method; `allowed` lists the methods that it has."""

    code: ClassVar[str] = "method_not_allowed"
    allowed: tuple[str, ...] = ()


class UriTooLongError(InputError):
    """The path and query of a request are longer than the server reads."""

    code: ClassVar[str] = "uri_too_long"


class RequestTimeoutError(RetryError):
    """A request's body did not arrive in time; nothing was done."""

    code: ClassVar[str] = "request_timeout"


class ConflictError(InputError):
    """The call does not fit the present state of what it names; the message says which state that is."""

    code: ClassVar[str] = "conflict"


class TopicExistsError(ConflictError):
    """A topic of this name exists already."""

    code: ClassVar[str] = "topic_exists"


class GenerationError(ConflictError):
    """The topic is of another generation than the caller expects: it was deleted and created again; the message says which."""

    code: ClassVar[str] = "topic_generation"


class TopicChangedError(ConflictError):
    """A topic's properties are not those that the caller has read: they were changed since. Nothing was done."""

    code: ClassVar[str] = "topic_changed"


class TableExistsError(ConflictError):
    """A table of this name exists already."""

    code: ClassVar[str] = "table_exists"


class MarkerRefusedError(ConflictError):
    """A marker does not fit what its topic knows of its tasks; the message names the task."""

    code: ClassVar[str] = "marker_refused"


class TransactionEndedError(ConflictError):
    """The transaction ended, or ended the other way; the message tells its outcome."""

    code: ClassVar[str] = "transaction_ended"


class TransactionConflictError(ConflictError):
    """Another transaction changed the same thing and committed first; begin again."""

    code: ClassVar[str] = "transaction_conflict"


class ChangesLostError(ConflictError):
    """The server lost the change set that a client of the Thrift face had told, or may have; tell it again, or abort."""

    code: ClassVar[str] = "changes_lost"


class SessionFencedError(ConflictError):
    """Another run holds the session now; this one must stop. The message names that run."""

    code: ClassVar[str] = "session_fenced"


class SessionForeignError(ConflictError):
    """The session's versions are those of another ledger: taken for one's own they would be skipped in silence."""

    code: ClassVar[str] = "session_foreign"


class OutsideWritesError(ConflictError):
    """An operator's abort would promise that writes outside Basalt are undone; invalidate instead."""

    code: ClassVar[str] = "outside_writes"


class RequestReusedError(ConflictError):
    """A request id was used before for another kind of call."""

    code: ClassVar[str] = "request_reused"


class BusyError(RetryError):
    """A bounded queue is full; wait for `retry_after_ms` and send the same call again."""

    code: ClassVar[str] = "busy"


class StoppingError(RetryError):
    """The server is shutting down and takes no new work."""

    code: ClassVar[str] = "stopping"


class UnavailableError(RetryError):
    """The server (or the part of it that the call needs) cannot be reached now."""

    code: ClassVar[str] = "unavailable"


class NotLeaderError(RetryError):
    """Another server leads the store; nothing was done. `leader_url` is where to send the call, if that is known."""

    code: ClassVar[str] = "not_leader"
    leader_url: str | None = None


class InternalError(BasaltError):
    """A fault of the server's own; its log has the details under the request id."""

    code: ClassVar[str] = "internal"


class ProtocolError(BasaltError):
    """The other side answered with something that is not Basalt's API (a proxy's page, another server)."""

    code: ClassVar[str] = "protocol"


def _leaves(base: type[BasaltError]) -> dict[str, type[BasaltError]]:
    found = {base.code: base}
    for child in base.__subclasses__():
        if child.__module__ not in (__name__, BasaltError.__module__):
            continue  # one that a store or a client keeps to itself, which may be loaded or not
        found |= _leaves(child)  # a subclass that keeps its parent's code is what the code means
    return found


BY_CODE: dict[str, type[BasaltError]] = _leaves(BasaltError)

__all__ = [
    "BY_CODE",
    "BasaltError",
    "BusyError",
    "ChangesLostError",
    "ConflictError",
    "CorruptionError",
    "DataDirectoryError",
    "DiskFullError",
    "GenerationError",
    "InputError",
    "InternalError",
    "InvalidNameError",
    "InvalidPropertyError",
    "InvalidSettingError",
    "JobNotFoundError",
    "MalformedBodyError",
    "MessageNotFoundError",
    "MethodNotAllowedError",
    "NotFoundError",
    "NotLeaderError",
    "OutsideWritesError",
    "ProtocolError",
    "RequestReusedError",
    "RequestTimeoutError",
    "RetryError",
    "RouteNotFoundError",
    "SessionFencedError",
    "SessionForeignError",
    "SessionNotFoundError",
    "StoppingError",
    "StoreError",
    "TableExistsError",
    "TableNotFoundError",
    "TooLargeError",
    "TopicChangedError",
    "TopicExistsError",
    "TopicNotFoundError",
    "TransactionConflictError",
    "TransactionEndedError",
    "TransactionNotFoundError",
    "UnavailableError",
    "UnknownOutcomeError",
    "UnsupportedMediaTypeError",
    "UriTooLongError",
]
