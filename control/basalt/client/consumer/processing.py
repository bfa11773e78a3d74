"""The plan of `process`: handle batch after batch, one request a round, which commits what was handled and claims the next.

The request's id makes it safe to repeat. What is refused because others were faster drops the batch: its messages are theirs, or are
dealt again. What `handle` raises gives the batch back, counted, and is raised here after so many times in a row.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, Unpack

from basalt.api.bodies.messages import PUBLISH_MESSAGES_MAX, Work
from basalt.api.bodies.transactions import TransactionOutcome
from basalt.client.calls import transactions
from basalt.client.calls.payloads import (
    BODY_BYTES_MAX,
    Beside,
    HeadersLike,
    Payloads,
    PublishingOptions,
    Text,
    each_message,
    json_payload,
)
from basalt.client.calls.topics import marked
from basalt.client.calls.transactions import TopicTitle, UnsentWork
from basalt.client.consumer import open_consumer
from basalt.client.consumer.batches import Acknowledgements, Batch, Consumed, ConsumedMessage
from basalt.client.consumer.open_consumer import (
    OpenConsumer,
    as_member,
    check_count,
    give_back,
    is_failure,
    is_lost,
    reason_of,
    settle,
)
from basalt.client.plans import Await, ClientScope, CoroutineRefusedError, Rest, Steps
from basalt.errors import (
    BasaltError,
    ClaimLostError,
    InputError,
    MemberFencedError,
    RetryError,
    TooLargeError,
    UnknownOutcomeError,
)

ROUND_WAIT_MS = 5_000  # of a round for messages: `until` is asked at least this often
ERRORS_MAX = 8  # in a row; by then a message alone has had the attempts of a group's default
REFUSED_REST_MS = 1_000  # after a server that can take no work now, a full disk say

Handle: TypeAlias = Callable[[Batch, "Output"], Any]


class Output:
    """The outcome of handling one batch: `out` of `handle(batch, out)`. Nothing is sent before the round ends.

    All of the batch is acknowledged, but for what `reject` names. After a call of `acknowledge` only what it names is; the rest goes back to
    the group, counted.
    """

    def __init__(self, consumer: OpenConsumer, batch: Batch) -> None:
        self._batch = batch
        self._unsent = UnsentWork(consumer.group.topic.namespace)
        self._told = Acknowledgements()
        self._chosen = False

    @property
    def batch(self) -> Batch:
        """The batch that is handled."""
        return self._batch

    def publish(
        self,
        topic: str,
        messages: Payloads,
        *,
        key: Text | None = None,
        headers: HeadersLike | None = None,
        event_time_ms: int | None = None,
        ttl_ms: int | None = None,
        namespace: str | None = None,
    ) -> None:
        """Publish with the round, in order; what may be given is as with `topic.publish`. `TooLargeError` past one request's limits."""
        unsent = self._unsent
        title = unsent.title(topic, namespace)
        for message in each_message(messages, Beside(key, headers, event_time_ms, ttl_ms)):
            unsent.add(title, message)
            if unsent.messages > PUBLISH_MESSAGES_MAX or unsent.bytes > BODY_BYTES_MAX:
                raise TooLargeError(
                    f"what is published for {self._batch!r} does not fit into one request"
                    f" ({PUBLISH_MESSAGES_MAX} messages, {BODY_BYTES_MAX} bytes)",
                    field="messages",
                    hint="Handle fewer messages at a time: process(handle, limit=...).",
                )

    def publish_json(self, topic: str, content: object, **options: Unpack[PublishingOptions]) -> None:
        """Publish one message with the round: any value as JSON in UTF-8."""
        self.publish(topic, json_payload(content), **options)

    def acknowledge(self, given: Consumed) -> None:
        """Acknowledge these messages and no others of the batch; or a batch of another consumer, with this one."""
        if not (isinstance(given, Batch) and given is not self._batch):
            self._chosen = True
        self._told.acknowledge(given)

    def reject(self, message: ConsumedMessage, reason: str) -> None:
        """Make a message a dead letter: it goes to the group's dead-letter topic with the round, and is acknowledged."""
        self._told.reject(message, reason)

    def watermark(
        self, topic: str, task: str, event_time_ms: int, task_count: int = 1, *, namespace: str | None = None
    ) -> None:
        """Say with the round that a task's event time has come so far; its place is behind the messages of the round."""
        self._unsent.mark(topic, namespace, marked(task, task_count, event_time_ms))

    def end(self, topic: str, task: str, task_count: int = 1, *, namespace: str | None = None) -> None:
        """Say with the round that nothing more comes from a task."""
        self._unsent.mark(topic, namespace, marked(task, task_count))

    def finish(self) -> None:
        """Take what was not told apart for acknowledged, unless `handle` has decided the batch in a transaction of its own."""
        if not (self._chosen or self._batch.decided or self._batch.held):
            self._told.acknowledge(self._batch)

    def work(self, *, by_ids: bool) -> Work | None:
        """The work of the round."""
        return self._unsent.work(self._told.entries(by_ids=by_ids))

    def decide(self) -> None:
        """Note that it is done."""
        self._told.decide()

    def conflict(self) -> None:
        """Note that others were faster: what goes back was no attempt."""
        for batch in (self._batch, *self._told.batches):
            batch.blameless = True


class Processing:
    """The state of one call of `process`."""

    def __init__(
        self,
        consumer: OpenConsumer,
        handle: Handle,
        until: Callable[[], object],
        limit: int | None,
        errors_max: int,
    ) -> None:
        self._consumer = consumer
        self._handle = handle
        self._until = until
        self._limit = limit
        self._errors_max = errors_max
        self._errors = 0

    def run(self) -> Steps[None]:
        """Go round until it is told to stop, and leave nothing undecided."""
        consumer = self._consumer
        yield from settle(consumer, counts=True, reason="it was not acknowledged")
        output: Output | None = None
        while True:
            stops = consumer.closing or (yield from self._is_told_to_stop())
            if output is not None:
                batch = yield from self._round(output, stops)
            elif stops:
                return
            else:
                batch = yield from self._next(None, by_ids=False)
            output = None
            if batch is not None:
                output = yield from self._handled(batch)
            elif stops:
                return

    def _is_told_to_stop(self) -> Steps[bool]:
        answer = self._until()
        if inspect.isawaitable(answer):
            answer = yield Await(answer, "until")
        return bool(answer)

    def _round(self, output: Output, stops: bool) -> Steps[Batch | None]:
        """Do what came of a batch, and claim the next one unless it stops."""
        do = self._last if stops else self._next
        output.batch.blameless = True  # an interrupt is no attempt here either
        try:
            try:
                batch = yield from do(output, by_ids=False)
            except ClaimLostError:  # a restart of the server, or a seek: the ids tell which
                batch = yield from do(output, by_ids=True)
        except BasaltError as refused:
            output.batch.blameless = not is_failure(refused)
            yield from self._refused(output, refused)
            return None
        output.batch.blameless = False
        self._errors = 0
        output.decide()
        # What `handle` left out goes back only now: a refusal has given back all of it.
        yield from self._give_back(output.batch, counts=True, reason="it was not acknowledged")
        return batch

    def _next(self, output: Output | None, *, by_ids: bool) -> Steps[Batch | None]:
        consumer = self._consumer

        def work() -> Work | None:
            return None if output is None else output.work(by_ids=by_ids)

        batch = yield from open_consumer.fetch(consumer, limit=self._limit, wait_ms=ROUND_WAIT_MS, work=work)
        if batch is None:
            if output is not None:
                output.decide()  # before what the answer says of the fetch: the work is done
            yield from open_consumer.rest(consumer)
        return batch

    def _last(self, output: Output, *, by_ids: bool) -> Steps[Batch | None]:
        consumer = self._consumer

        def ask(_epoch: int) -> Steps[None]:
            work = output.work(by_ids=by_ids)
            if work is not None:
                yield from transactions.one_shot(work, f"end a round of group {consumer.group}")

        yield from as_member(consumer, ask)
        return None

    def _handled(self, batch: Batch) -> Steps[Output | None]:
        """Have the batch handled; None where that failed, and it was given back."""
        output = Output(self._consumer, batch)
        batch.blameless = True  # an interrupt is no attempt, whoever gives the batch back then
        try:
            answer = self._handle(batch, output)
            if inspect.isawaitable(answer):
                yield Await(answer, "handle")
            output.finish()
        except (MemberFencedError, CoroutineRefusedError):
            yield from self._give_back(batch, counts=False)
            raise
        except Exception as error:  # noqa: BLE001  # whatever is wrong with a message
            batch.blameless = not is_failure(error)
            yield from self._failed(batch, error, counts=not batch.blameless)
            if isinstance(error, RetryError):
                yield Rest(REFUSED_REST_MS)
            return None
        batch.blameless = False
        return output

    def _refused(self, output: Output, error: BasaltError) -> Steps[None]:
        """Give up a batch whose work was refused, or raise what no other batch would change."""
        batch = output.batch
        if isinstance(error, MemberFencedError | UnknownOutcomeError):
            raise error
        if is_lost(error):
            output.conflict()
            yield from self._give_back(batch, counts=False)
            yield Rest(0, f"{batch!r} is dropped: {error.message}")
        elif isinstance(error, RetryError):
            yield from self._failed(batch, error, counts=False)
            yield Rest(REFUSED_REST_MS)
        elif isinstance(error, InputError):
            yield from self._failed(batch, error, counts=True)
        else:
            yield from self._give_back(batch, counts=False)
            raise error

    def _failed(self, batch: Batch, error: Exception, *, counts: bool) -> Steps[None]:
        self._errors += 1
        yield from self._give_back(batch, counts=counts, reason=reason_of(error))
        if self._errors >= self._errors_max:
            error.add_note(f"raised by process after {self._errors} errors in a row, the last of them with {batch!r}")
            raise error
        told = "".join(traceback.format_exception(error)).rstrip()
        yield Rest(0, f"{batch!r} failed, error {self._errors} of {self._errors_max} in a row: {told}")

    def _give_back(self, batch: Batch, *, counts: bool, reason: str = "") -> Steps[None]:
        if self._consumer.current is batch:
            self._consumer.current = None
        if not batch.held:
            yield from give_back(batch, counts=counts, reason=reason)


def process(
    consumer: OpenConsumer,
    handle: Handle,
    *,
    until: Callable[[], object] = lambda: False,
    limit: int | None = None,
    errors_max: int = ERRORS_MAX,
) -> Steps[None]:
    """Have `handle(batch, out)` handle batch after batch, of `limit` messages at most; each is acknowledged with what it published.

    What `out` was told (`publish`, `reject`, `acknowledge`, `watermark`), and that the batch is done, is one decision, and one request
    with the fetch of the next batch. When `handle` raises, the batch goes back to the group as an attempt, and nothing of `out` is done;
    after `errors_max` such errors in a row it is raised. When others have the messages by now, the batch is dropped and the next one is
    claimed. It returns, with all decided, once `until()` is true or the consumer is closed: within 5 s where no messages come.
    With the async client both may be coroutine functions.
    """
    consumer.joined()
    for name, given in (("handle", handle), ("until", until)):
        if not callable(given):
            raise TypeError(f"{name} is a function, not {given!r}")
    check_count(limit, "limit")
    check_count(errors_max, "errors_max")
    consumer.processing, consumer.waiting_for = True, None  # what was waited for before says nothing of now
    try:
        yield from Processing(consumer, handle, until, limit, errors_max).run()
    finally:
        consumer.processing = False


def publish_atomically(
    scope: ClientScope,
    messages: Mapping[TopicTitle, Payloads],
    *,
    acknowledge: Consumed | None = None,
) -> Steps[TransactionOutcome]:
    """Publish to several topics in one request, all or nothing: a transaction that begins, writes and commits at once.

    `{"orders": [...], ("billing", "invoices"): [...]}`, messages as `publish` takes them. A consumer's batch, messages of one, or
    several batches are acknowledged in the same decision. Safe to repeat, and repeated when its answer is lost. `TooLargeError` when it
    does not fit into one request (65,536 messages, 10 MiB).
    """
    runs = {transactions.title_of(scope, topic): list(each_message(given)) for topic, given in messages.items()}
    told = Acknowledgements()
    if acknowledge is not None:
        told.acknowledge(acknowledge)
    what, hint = "publish atomically", "Poll to see whether the messages came before publishing them again."

    def one_shot(*, by_ids: bool = False) -> Steps[TransactionOutcome]:
        work = transactions.work_of(runs, acknowledge=told.entries(by_ids=by_ids)) or Work()
        return transactions.one_shot(work, what, hint)

    try:
        try:
            outcome = yield from one_shot()
        except ClaimLostError:
            outcome = yield from one_shot(by_ids=True)
    except BasaltError as error:
        for batch in told.batches:
            batch.blameless = not is_failure(error)
        raise
    told.decide()
    return outcome
