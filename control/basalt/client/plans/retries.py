"""When a call may be sent again, and after which pause: pure rules.

What may be sent again, and why: docs/reference/client.md, "Retries".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import MsgspecError

from basalt.client.plans.calls import Answer, Call, Effect, Lost, NotHttp, NotSent, Reply
from basalt.client.plans.problems import GATEWAY_STATUSES, error_of, lost_hint, not_basalt
from basalt.errors import (
    BasaltError,
    BusyError,
    DiskFullError,
    MalformedBodyError,
    NotLeaderError,
    ProtocolError,
    StoppingError,
    StoreError,
    UnavailableError,
    UnknownOutcomeError,
)

TIMEOUT_MS_DEFAULT = 30_000  # longer than a server takes to restart, shorter than anyone waits without a word
ATTEMPTS_MAX = 10  # with the pauses below some ten seconds of trying; a server that is back answers the first of them
BACKOFF_MS_BASE = 50  # about one restart of a connection; doubles with each attempt
BACKOFF_MS_MAX = 5_000  # all clients of a busy server come back within this

# The server says with these that it did nothing, so that any call may be sent again.
_NOTHING_HAPPENED = (BusyError, StoppingError, UnavailableError, StoreError, NotLeaderError)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often to try. `timeout_ms` is the deadline of a call, to which a long poll's wait is added."""

    timeout_ms: int = TIMEOUT_MS_DEFAULT
    attempts_max: int = ATTEMPTS_MAX
    backoff_ms_base: int = BACKOFF_MS_BASE
    backoff_ms_max: int = BACKOFF_MS_MAX

    def pause_ms(self, attempts: int, chance: float, retry_after_ms: int) -> float:
        """The pause after so many attempts: full jitter (`chance` is 0 to 1), on top of what the server asked for."""
        return retry_after_ms + chance * min(self.backoff_ms_max, self.backoff_ms_base << (attempts - 1))


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
                hint="Check that the server runs (basalt serve) and that the URL is right.",
            )
        )
    if isinstance(reply, NotHttp):
        raise ProtocolError(
            f"{call.what}: what answers at {url} does not speak HTTP ({reply.reason})", hint="Check the URL."
        )
    return _judge_lost(call, reply, url)


def _judge_lost(call: Call[Any], reply: Lost, url: str) -> Again:
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
