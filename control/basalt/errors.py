"""The control plane's leaves of the error tree: one class per stable code, shared by server, client and CLI.

Which HTTP status a class gets is decided in `basalt.http.asgi.responses` alone; the client finds the class again by its code.
The codes are listed in docs/reference/errors.md.
"""

from __future__ import annotations

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

# Modules of the libraries of the extra `server`; whoever installs the client alone has none of them.
SERVER_MODULES = frozenset(
    {
        "apscheduler", "crc32c", "httptools", "jinja2", "markupsafe", "prometheus_client", "rich", "rocksdict", "sortedcontainers", "starlette",
        "uvicorn", "uvloop", "zstandard",
    }
)  # fmt: skip


def not_installed(error: ModuleNotFoundError) -> Exception:
    """The error with what to install; the same error when no library of the extra `server` is missing."""
    if (error.name or "").partition(".")[0] not in SERVER_MODULES:
        return error
    return InputError(
        f"this installation of Basalt is the client alone: a server, an embedded store or this command needs {error.name}",
        hint="install it with its extra: pip install 'basalt-mq[server]'",
    )


class InvalidNameError(InputError, code="invalid_name"):
    """A namespace, topic, job or owner name has characters or a length that names may not have."""


class InvalidPropertyError(InputError, code="invalid_property"):
    """A topic property has a value that it may not have."""


class InvalidSettingError(InputError, code="invalid_setting"):
    """A setting is unknown, or has a value that it may not have."""


class MalformedBodyError(InputError, code="malformed_body"):
    """A request body is not what its content type says, or lacks a part, or has one too many."""


class TooLargeError(InputError, code="too_large"):
    """A body, or the number of messages in it, is over a limit that the message names."""


class UnsupportedMediaTypeError(InputError, code="unsupported_media_type"):
    """The content type or content encoding of a body is not one that this route reads."""


class NotFoundError(InputError, code="not_found"):
    """The thing that the call names does not exist."""


class TopicNotFoundError(NotFoundError, code="topic_not_found"):
    """No such topic in this namespace, or it was deleted."""


class TableNotFoundError(NotFoundError, code="table_not_found"):
    """No such table in this namespace, or it was deleted."""


class TransactionNotFoundError(NotFoundError, code="transaction_not_found"):
    """No transaction of this id is open, and none that ended is still remembered."""


class SessionNotFoundError(NotFoundError, code="session_not_found"):
    """No such session, or not at this epoch (yet, or any more): open it, then begin at the epoch that it tells."""


class GroupNotFoundError(NotFoundError, code="group_not_found"):
    """No consumer group of this name reads the topic, or it was deleted."""


class ProducerNotFoundError(NotFoundError, code="producer_not_found"):
    """The topic knows no producer of this name."""


class MessageNotFoundError(NotFoundError, code="message_not_found"):
    """No message of this id is in the topic (any more)."""


class JobNotFoundError(NotFoundError, code="job_not_found"):
    """The scheduler has no job of this name."""


class SeriesNotFoundError(NotFoundError, code="series_not_found"):
    """No history of this figure is kept, or the group has no place among those whose lag is."""


class BackupNotFoundError(NotFoundError, code="backup_not_found"):
    """The server has no backup of this name."""


class RouteNotFoundError(NotFoundError, code="route_not_found"):
    """No call of the API has this path."""


class CrossOriginError(InputError, code="cross_origin"):
    """A web page of another origin asks for something that may change something."""


class WrongHostError(InputError, code="wrong_host"):
    """The request is for a host that this server is not: it goes by another name, or its setting `http.hosts` lacks this one."""


class MethodNotAllowedError(InputError, code="method_not_allowed"):
    """The path exists, but not with this method; `allowed` lists the methods that it has."""

    allowed: tuple[str, ...] = ()


class UriTooLongError(InputError, code="uri_too_long"):
    """The path and query of a request are longer than the server reads."""


class UnauthenticatedError(InputError, code="unauthenticated"):
    """The call does not prove who makes it, or by a credential that does not count (any more). Nothing was done."""

    challenges: tuple[str, ...] = ()  # the ways to prove it, as the header WWW-Authenticate has them
    held_ms: int = 0  # for which a server keeps the answer back, where very many such calls come from one address


class ForbiddenError(InputError, code="forbidden"):
    """The caller has no right to do this; it is refused whether what the call names exists or not."""


class RequestTimeoutError(RetryError, code="request_timeout"):
    """A request's body did not arrive in time; nothing was done."""


class ConflictError(InputError, code="conflict"):
    """The call does not fit the present state of what it names; the message says which state that is."""


class NoRegionsError(ConflictError, code="no_regions"):
    """The store has no region servers, so there are no regions, and nothing that is asked of them."""


class SettingNeedsStartError(ConflictError, code="setting_needs_start"):
    """A setting is read only when the server starts; a running one does not change it."""


class TopicExistsError(ConflictError, code="topic_exists"):
    """A topic of this name exists already."""


class GenerationError(ConflictError, code="topic_generation"):
    """The topic is of another generation than the caller expects: it was deleted and created again; the message says which."""


class TopicChangedError(ConflictError, code="topic_changed"):
    """A topic's properties are not those that the caller has read: they were changed since. Nothing was done."""


class TableExistsError(ConflictError, code="table_exists"):
    """A table of this name exists already."""


class GroupExistsError(ConflictError, code="group_exists"):
    """A consumer group of this name reads the topic, with other options; the message tells which."""


class ClaimLostError(ConflictError, code="claim_lost"):
    """The claim is over, or another member holds the message. Whoever was dealt it again will handle it."""


class MemberFencedError(ConflictError, code="member_fenced"):
    """A newer process is this member of the group now, or its lease ran out; this one must stop."""


class AcknowledgeConflictError(ConflictError, code="acknowledge_conflict"):
    """An open transaction acknowledges the message; whether it is acknowledged is decided when that ends."""


class AcknowledgeOrderError(ConflictError, code="acknowledge_order"):
    """An earlier message of the same lane is not acknowledged; the message names it and who holds it."""


class MarkerRefusedError(ConflictError, code="marker_refused"):
    """A marker does not fit what its topic knows of its tasks; the message names the task."""


class TopicEndedError(ConflictError, code="topic_ended"):
    """Every task of the topic has said that nothing more comes; a message behind that would reach nobody who follows it."""


class TransactionEndedError(ConflictError, code="transaction_ended"):
    """The transaction ended, or ended the other way; the message tells its outcome."""


class TransactionConflictError(ConflictError, code="transaction_conflict"):
    """Another transaction changed the same thing and committed first; begin again."""


class ChangesLostError(ConflictError, code="changes_lost"):
    """The server lost the change set that a client of the Thrift face had told, or may have; tell it again, or abort."""


class SessionFencedError(ConflictError, code="session_fenced"):
    """Another run holds the session now; this one must stop. The message names that run."""


class SequenceGapError(ConflictError, code="sequence_gap"):
    """The messages do not follow the producer's last number, which the error tells; nothing was written."""


class ProducerUnknownError(ConflictError, code="producer_unknown"):
    """The topic does not know the producer (any more), and the messages are not its first; nothing was written."""


class ProducerFencedError(ConflictError, code="producer_fenced"):
    """Another run sends as this named producer now; this one must stop."""


class SessionForeignError(ConflictError, code="session_foreign"):
    """The session's versions are those of another counter owner: taken for one's own they would be skipped in silence."""


class ExternalWritesError(ConflictError, code="external_writes"):
    """An operator's abort would promise that writes outside Basalt are undone; invalidate instead."""


class RequestReusedError(ConflictError, code="request_reused"):
    """A request id was used before for another kind of call."""


class BusyError(RetryError, code="busy"):
    """A bounded queue is full; wait for `retry_after_ms` and send the same call again."""


class ThrottledError(RetryError, code="throttled"):
    """The caller has used up a quota; wait for `retry_after_ms` and send the same call again. Nothing was done.

    A server keeps the answer back for `held_ms` first, where the caller was told to wait and did not.
    """

    held_ms: int = 0


class AuthenticationUnavailableError(RetryError, code="authentication_unavailable"):
    """The server cannot find out who calls, or what they may do: keys or grants could not be read of late. Nothing was done."""


class StoppingError(RetryError, code="stopping"):
    """The server is shutting down and takes no new work."""


class UnavailableError(RetryError, code="unavailable"):
    """The server (or the part of it that the call needs) cannot be reached now."""


class CoordinatorUnavailableError(UnavailableError, code="coordinator_unavailable"):
    """The log of transactions cannot be read or written now, so nothing about transactions is decided. All else goes on."""


class ShardMovingError(UnavailableError, code="shard_moving"):
    """The topic or table is in a shard that moves between servers at this moment. Nothing was done."""


class ShardElsewhereError(ShardMovingError):
    """Another server has the shard by now. Whoever took the call passes it on, where it can."""


class NotHereError(Exception):
    """The server that leads is to carry out this call; nothing was done. Never an answer: whoever took the call passes it on."""


class NotLeaderError(RetryError, code="not_leader"):
    """Another server leads the store; nothing was done. `leader_url` is where to send the call, if that is known."""

    leader_url: str | None = None


class NotOwnerError(RetryError, code="not_owner"):
    """Another server owns the topic or table; nothing was done. `owner_url` is where to send the call, `member` that server's run."""

    owner_url: str | None = None
    member: str | None = None
    leader_url: str | None = None


class InternalError(BasaltError, code="internal"):
    """A fault of the server's own; its log has the details under the request id."""


class ProtocolError(BasaltError, code="protocol"):
    """The other side answered with something that is not Basalt's API (a proxy's page, another server)."""


class NotTextError(InputError, code="not_text"):
    """A message is read as text, and its payload is no UTF-8."""


def _leaves(base: type[BasaltError]) -> dict[str, type[BasaltError]]:
    found = {base.code: base}
    for child in base.__subclasses__():
        if child.__module__ not in (__name__, BasaltError.__module__):
            continue  # one that a store or a client keeps to itself, which may be loaded or not
        found |= _leaves(child)  # a subclass that keeps its parent's code is what the code means
    return found


BY_CODE: dict[str, type[BasaltError]] = _leaves(BasaltError)

__all__ = [
    "BY_CODE", "AcknowledgeConflictError", "AcknowledgeOrderError", "AuthenticationUnavailableError", "BackupNotFoundError", "BasaltError", "BusyError",
    "ChangesLostError", "ClaimLostError", "ConflictError", "CoordinatorUnavailableError", "CorruptionError", "CrossOriginError", "DataDirectoryError", "DiskFullError",
    "ExternalWritesError", "ForbiddenError", "GenerationError", "GroupExistsError", "GroupNotFoundError", "InputError", "InternalError",
    "InvalidNameError", "InvalidPropertyError", "InvalidSettingError", "JobNotFoundError", "MalformedBodyError",
    "MarkerRefusedError", "MemberFencedError", "MessageNotFoundError", "MethodNotAllowedError", "NotFoundError",
    "NotLeaderError", "NotOwnerError", "ProtocolError", "RequestReusedError", "RequestTimeoutError", "RetryError",
    "RouteNotFoundError", "SessionFencedError", "SessionForeignError", "SessionNotFoundError",
    "SettingNeedsStartError", "StoppingError", "StoreError", "TableExistsError", "TableNotFoundError",
    "ThrottledError", "TooLargeError", "TopicChangedError", "TopicEndedError", "TopicExistsError", "TopicNotFoundError",
    "TransactionConflictError", "TransactionEndedError", "TransactionNotFoundError", "UnauthenticatedError", "UnavailableError",
    "UnknownOutcomeError", "UnsupportedMediaTypeError", "UriTooLongError", "WrongHostError",
]  # fmt: skip
