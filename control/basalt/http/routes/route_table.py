"""An operation: method and path of a call, its handler, what it takes and answers. The OpenAPI document is made of them.

What every handler would have to do is done here: the rights that a call needs are declared, and judged before anything else;
query parameters are declared, so that an unknown, doubled or malformed one is refused by name; a JSON body is read as the type
of the handler's second argument; what the handler returns is sent as JSON, as its annotation says it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from types import NoneType, UnionType
from typing import Any, TypeAlias, get_args, get_type_hints

from basalt.access import ownership, resources
from basalt.access.needs import Needs
from basalt.access.policy import Caller
from basalt.access.quotas import FETCH_BYTES, PUBLISH_BYTES, Account, Quota
from basalt.api.bodies.messages import Work
from basalt.api.codecs.json_bodies import parse_json
from basalt.catalog.topics import TopicName
from basalt.errors import (
    BasaltError,
    InputError,
    InvalidNameError,
    NotHereError,
    TopicNotFoundError,
    TransactionNotFoundError,
)
from basalt.http.asgi.inside import InsideCall, Reply
from basalt.http.asgi.requests import (
    JSON,
    BodyBudget,
    Exchange,
    Head,
    RequestHead,
    Value,
    convert_json,
    unquoted,
    without_secrets,
)
from basalt.http.asgi.responses import Response
from basalt.http.metrics import Metrics
from basalt.http.routes.schemas import EMPTY_BODY, Content, Schema, Shape
from basalt.http.services import Services
from basalt.operations.audit import TEXT_CHARS_MAX, Author, By, is_line
from basalt.runtime.group_commit import Waiter
from basalt.transactions.codec import SnapshotBytes
from basalt.transactions.rules.transaction import Belonging
from basalt_engine.keys import NAME_EXPRESSION as _NAME

EMBEDDED = "embedded"  # the address of calls that come over no socket
MS_MAX = (1 << 53) - 1  # what JavaScript still counts exactly
ADMIN_PATH = "/v1/admin"
TOPICS_PATH = "/v1/namespaces/{namespace}/topics"
TOPIC_PATH = TOPICS_PATH + "/{topic}"
RECORDS_PATH = TOPIC_PATH + "/records"
TOPIC = "topic:{namespace}:{topic}"  # the resource of calls below `TOPIC_PATH`
CLUSTER = "cluster"
WORK_NEEDS = ("write topic", "read group", "read topic")  # for what a Work names: `Request.must_do`
EXISTING = (InvalidNameError, TopicNotFoundError)  # errors of calls on a topic that must be there
NOT_ASKED = (0, "")
NOT_SCOPED = ("", "")


_WHOLE = re.compile(r"-?[0-9]{1,19}")
_PARAMETER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Query:
    """One query parameter: its name, how its text is read (`ValueError` says what it must be), its JSON schema."""

    name: str
    read: Callable[[str], Value]
    schema: Schema
    meaning: str
    required: bool = False
    is_field: bool = False  # of a form, which a browser without scripts sends empty where nothing was filled in: as if it were not there


@dataclass(frozen=True, slots=True)
class Header:
    """A header that a call reads for itself, as the OpenAPI document has it."""

    name: str
    schema: Schema
    meaning: str


Ask: TypeAlias = Callable[[Caller, InsideCall], Awaitable[Reply]]


class Request(RequestHead):
    """A request to a server that serves, with what its handler needs; `caller` is who makes it, and may do what.

    `account` is what it is charged to, where a quota limits its caller; `meters` are the quotas that count its bytes. `received_bytes` are those of its body.
    """

    __slots__ = (
        "account", "ask", "asked_id", "caller", "meters", "metrics", "own_id", "received_bytes", "services", "snapshots", "traceparents", "work",
        "writer",
    )  # fmt: skip

    def __init__(
        self, services: Services, metrics: Metrics, snapshots: SnapshotBytes, bodies: BodyBudget, caller: Caller,
        head: Head, exchange: Exchange, started_ms: float, client_id: str | None, ask: Ask,
    ) -> None:  # fmt: skip
        super().__init__(head, exchange, started_ms, bodies, client_id)
        self.ask = ask  # makes a call from within the process: a page is a list of such
        self.caller = caller
        self.services = services
        self.metrics = metrics
        self.snapshots = snapshots
        # The write pointer of the transaction that is asked for, and its id as the caller wrote it.
        self.asked_id = NOT_ASKED
        self.own_id = NOT_SCOPED
        self.account: Account | None = None
        self.meters: tuple[Quota, ...] = ()
        self.received_bytes = 0
        self.writer = 0  # the write pointer that it begins or writes under; 0: none
        self.work: Work | None = None  # its body, where that was read before the handler
        self.traceparents: Sequence[bytes] = ()  # of its answer's messages

    async def body(self) -> bytes:
        """The whole body; where its bytes count for a quota they are charged now, before what it asks for is done."""
        body = await super().body()
        self.charge_body(len(body))
        return body

    def charge_body(self, size_bytes: int) -> None:
        """Charge what the caller publishes."""
        self.received_bytes = size_bytes
        if self.account is not None and PUBLISH_BYTES in self.meters:
            self.account.charge(PUBLISH_BYTES, size_bytes, self.services.clock.monotonic_ms())

    def charge_answer(self, now_ms: float) -> None:
        """Charge what the caller was sent."""
        if self.account is not None and FETCH_BYTES in self.meters:
            self.account.charge(FETCH_BYTES, self.sent_bytes, now_ms)

    def limits(self, quota: Quota) -> bool:
        """Tell whether this quota limits the caller, so that what is there has to be counted."""
        return self.account is not None and self.account.rulings[quota.place].limit is not None

    def one_more(self, quota: Quota, there: int = 0) -> AbstractContextManager[None]:
        """Hold a place of what a quota counts, beside those that are there; `ThrottledError`."""
        return self.services.quotas.one_more(self.account, quota, self.services.clock.monotonic_ms(), there)

    @property
    def topic(self) -> TopicName:
        """The topic that the path names; `InvalidNameError` when a name is none."""
        return self.services.topics.title(self.path["namespace"], self.path["topic"])

    @property
    def transaction_id(self) -> int:
        """The transaction that the path names; `InputError` for no id, `TransactionNotFoundError` for one not of here."""
        return self.write_pointer_of(self.path["transaction"], "id")

    @property
    def plain_type(self) -> bytes | None:
        """The content type as it was sent, where neither a coding nor a query changes how the body is read; else None."""
        headers = self.headers
        return headers.get(b"content-type") if b"content-encoding" not in headers and not self.query else None

    @property
    def principal(self) -> str:
        """The principal to which what this call begins belongs; empty where nobody has to prove who they are."""
        return "" if self.caller.policy is None else ownership.principal_of(self.caller)

    @property
    def once_id(self) -> str | None:
        """The request id that makes a call done once, as the rules below know it: each principal has ids of its own."""
        return self.client_id if self.caller.policy is None else self.own(self.client_id)

    def own(self, request_id: str | None) -> str | None:
        """A request id of the client's, as one of its principal's own."""
        scoped = ownership.own_request_id(self.caller, request_id)
        if scoped != request_id and scoped is not None and request_id is not None:
            self.own_id = (scoped, request_id)
        return scoped

    def write_pointer_of(self, text: str, field: str) -> int:
        """The write pointer in a transaction's id; errors as `transaction_id` has them."""
        write_pointer = self.services.ids.parse(text, field)
        self.asked_id = (write_pointer, text)
        return write_pointer

    async def transaction_of(self, text: str, field: str) -> int:
        """The write pointer in the id of a transaction that the query or the body names, for who may act on it."""
        if self.caller.policy is not None:
            with suppress(TransactionNotFoundError):  # an id of another installation
                await self._hear_of(self.services.ids.parse(text, field))
            self.must_act("transact", text, field)
        return self.write_pointer_of(text, field)

    async def _hear_of(self, write_pointer: int) -> None:
        """Return once it is known whose the transaction is, if anybody's: one that has just begun at the coordinator must be asked for there."""
        manager = self.services.transactions.manager
        await manager.ensure_known()
        if manager.follows and manager.state.belonging(write_pointer) is None:
            await manager.ask()

    def check_is_known(self, text: str) -> None:
        """Raise `NotHereError` where it is not known whose transaction this is, and another server coordinates them: that one tells."""
        if self.caller.policy is None:
            return
        manager = self.services.transactions.manager
        if not manager.follows:
            return
        with suppress(TransactionNotFoundError):
            if not manager.is_known or manager.state.belonging(self.services.ids.parse(text, "id")) is None:
                raise NotHereError

    def must_act(self, verb: str, text: str, field: str) -> None:
        """Refuse with `ForbiddenError` who may not act on the transaction of this id, whether there is one or not.

        `UnavailableError` while the log is being read: whose transactions are, that tells.
        """
        if self.caller.policy is None:
            return
        try:
            whose = self.services.transactions.state.belonging(self.services.ids.parse(text, field))
        except TransactionNotFoundError:  # an id of another installation
            whose = None
        ownership.must_act(self.caller, verb, whose, text)

    async def must_write_under(self, write_pointer: int, title: TopicName) -> None:
        """Refuse with `ForbiddenError` who may not write to the topic under this pointer.

        Where transactions are managed elsewhere nobody knows whose it is, so that takes a right on the topic.
        """
        self.writer = write_pointer
        caller = self.caller
        if caller.policy is None:
            return
        if self.services.settings.transactions.manager == "external":
            caller.must("transact", resources.topic(*title))
            return
        transactions = self.services.transactions
        await self._hear_of(write_pointer)
        ownership.must_act(caller, "transact", transactions.state.belonging(write_pointer), str(write_pointer))

    def sees(self, whose: Belonging | None) -> bool:
        """Tell whether the caller may look at a transaction; otherwise its id is all that it is told."""
        return ownership.may_act(self.caller, "observe", whose)

    def must_do(self, work: Work) -> None:
        """Refuse with `ForbiddenError` who may not do all of this work, whatever there is of what it names."""
        caller = self.caller
        if caller.policy is None:
            return
        written = {(each.namespace, each.topic) for each in work.publish}
        written.update((each.namespace, each.topic) for each in work.markers)
        for title in sorted(written):
            caller.must("write", resources.topic(*title))
        for entry in work.acknowledge:
            caller.must("read", resources.group(entry.namespace, entry.topic, entry.group))
            caller.must("read", resources.topic(entry.namespace, entry.topic))

    def judge_again(self) -> None:
        """Refuse an answer that was made over a time, where the caller's credential or rights are gone by now."""
        found: Any = self.head.found
        found.routes.judge_again(self, found)

    def name_as_asked(self, error: BasaltError) -> None:
        """Name the transaction and the request as the caller did, and nothing of transactions at which it may not look."""
        if error.others:
            error.message = ownership.message_for(self.caller, self.services.transactions.manager, error)
        write_pointer, text = self.asked_id
        if write_pointer:
            error.message = re.sub(rf"\btransaction {write_pointer}\b", f"transaction {text}", error.message)
        scoped, client_id = self.own_id
        if scoped:
            error.message = error.message.replace(scoped, client_id)

    @property
    def act(self) -> By:
        """The author of an operator's act, the reason, and the request: for the audit."""
        agent = self.headers.get(b"user-agent", b"").decode("latin-1")
        caller = self.caller
        via = "" if caller.via is None else str(caller.via)
        client = self.services.forwarders.client_of(self) or EMBEDDED
        author = Author(client, agent, self.text("as") or "", str(caller.principal), caller.credential, via)
        return author, self.text("reason") or "", self.id


# A handler answers with a `Response`, with what is to be sent as JSON, or with None: done, and there is nothing to say.
Handler: TypeAlias = Callable[..., Awaitable[object]]


# Makes the waiter that answers with what the given function makes of a stage's result.
WaiterOf: TypeAlias = Callable[[Callable[[Any], Response]], Waiter[Any]]
# Submits a call that is no more than one stage of the group commit, whose body is here as a whole. False, or an error, and
# nothing is done: this one is not of the simple kind, or is refused; the `Handler` is to tell.
Submit: TypeAlias = Callable[[Request, bytes, WaiterOf], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call of the API. `body`, `answers` (by status) and `errors` are for the OpenAPI document.

    `needs` are the rights that it takes: there is no default, so that no call can be without.
    `errors` are the classes that this call may answer beside those that every call may (see `openapi`). `takes` is the
    type of its JSON body, None where the handler reads the body, or takes none. `meters` are the quotas that count the bytes of
    its body and of its answer.
    """

    method: str
    path: str
    handler: Handler
    tag: str
    needs: Needs
    takes: Any = None
    query: tuple[Query, ...] = ()
    body: Content = field(default_factory=dict)
    body_required: bool = False
    answers: Mapping[int, Content] = field(default_factory=lambda: {200: {}})
    errors: tuple[type[BasaltError], ...] = ()
    if_match: bool = False  # whether it reads the header If-Match
    headers: tuple[Header, ...] = ()
    submit: Submit | None = None
    meters: tuple[Quota, ...] = ()

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")

    @property
    def description(self) -> str:
        """The rest of the handler's docstring; empty where it says all in one line."""
        return " ".join((self.handler.__doc__ or "").partition("\n")[2].split())

    @property
    def answer(self) -> Handler:
        """The handler; before it what reads the body, unless that is the handler's business."""
        if self.takes is not None:
            return self._with_json
        if self.body is EMPTY_BODY:
            return functools.partial(self._after, RequestHead.no_members)
        return functools.partial(self._after, RequestHead.no_body) if self.method == "DELETE" else self.handler

    async def _with_json(self, request: Request) -> object:
        if self.body_required:
            request.content_type((JSON,))
        body = await request.body()
        if not body and not self.body_required:  # whatever its type
            return await self.handler(request)  # its second argument has a default
        request.content_type((JSON,))
        return await self.handler(request, convert_json(parse_json(body), self.takes))

    async def _after(self, refuse_body: Callable[[Request], Awaitable[None]], request: Request) -> object:
        await refuse_body(request)
        return await self.handler(request)


class RouteTable:
    """The operations of one module, in the order in which `Routes` tries them."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.operations: list[Operation] = []

    def __call__(
        self, method: str, path: str, needs: Needs, *, answer: Shape | Content | None = None,
        answers: Mapping[int, Content] | None = None, query: tuple[Query, ...] = (), body: Content | None = None,
        body_required: bool = False, errors: tuple[type[BasaltError], ...] = (), tag: str | None = None,
        if_match: bool = False, headers: tuple[Header, ...] = (), submit: Submit | None = None, meters: tuple[Quota, ...] = (),
    ) -> Callable[[Handler], Handler]:  # fmt: skip
        """Declare the decorated handler as an operation.

        Where its second argument is annotated with a type, that is its JSON body, which may only be left out where the
        argument has a default. Where it has none and declares no `body`, a POST takes none. Its answer is what it is
        annotated to return, but for a `Response`: then it is the `answer` given here, a type or contents by media type.
        """
        assert needs.parameters <= set(_PARAMETER.findall(path)), f"{path} has no such names: {needs}"

        def declare(handler: Handler) -> Handler:
            hints = get_type_hints(handler)
            returned, takes = hints.pop("return"), next((hints[name] for name in hints if name != "request"), None)
            content = body if body is not None else EMPTY_BODY if method == "POST" else {}
            operation = Operation(
                method=method,
                path=path,
                handler=handler,
                tag=tag or self._tag,
                needs=needs,
                takes=takes,
                query=query,
                body=content if takes is None else {JSON: takes},
                body_required=body_required if takes is None else not handler.__defaults__,
                answers=answers or {200: _content(answer if returned in (Response, NoneType) else returned)},
                errors=errors,
                if_match=if_match,
                headers=headers,
                submit=submit,
                meters=meters,
            )
            self.operations.append(operation)
            return handler

        return declare


def _content(shape: Shape | Content | None) -> Content:
    if shape is None:
        return {}
    if isinstance(shape, UnionType):
        shape = get_args(shape)
    return shape if isinstance(shape, Mapping) else {JSON: shape}


def query(
    name: str, schema: Schema, meaning: str, fits: Callable[[str], object], wanted: str,
    value: Callable[[str], Value] = str,
) -> Query:  # fmt: skip
    """A parameter whose text `fits`, or else must be what is `wanted`, and then stands for a value."""

    def read(text: str) -> Value:
        if not fits(text):
            raise ValueError(f"must {wanted}")
        return value(text)

    return Query(name, read, schema, meaning)


def integer(name: str, low: int, high: int, meaning: str) -> Query:
    """A whole number from `low` to `high`, both included."""
    schema = {"type": "integer", "minimum": low, "maximum": high}
    wanted = f"be a whole number from {low} to {high}"
    return query(name, schema, meaning, lambda text: _WHOLE.fullmatch(text) and low <= int(text) <= high, wanted, int)


def choice(name: str, values: Sequence[str], meaning: str) -> Query:
    """One of a few words."""
    schema = {"type": "string", "enum": list(values)}
    return query(name, schema, meaning, values.__contains__, f"be {' or '.join(values)}")


def flag(name: str, meaning: str) -> Query:
    """True or false, in those words."""
    words = ("true", "false")
    return query(name, {"type": "boolean"}, meaning, words.__contains__, "be true or false", "true".__eq__)


def words(name: str, pattern: str, meaning: str) -> Query:
    """Text that a pattern describes (of both Python and JSON Schema, so keep it plain)."""
    expression = re.compile(pattern.removeprefix("^").removesuffix("$"))
    return query(name, {"type": "string", "pattern": pattern}, meaning, expression.fullmatch, f"match {pattern}")


def text_query(name: str, meaning: str) -> Query:
    """One line of printable text."""
    schema = {"type": "string", "maxLength": TEXT_CHARS_MAX}
    return query(name, schema, meaning, is_line, f"be printable text of up to {TEXT_CHARS_MAX} characters")


def form_field(of: Query) -> Query:
    """The same as a field of a form."""
    return replace(of, is_field=True)


AS = text_query("as", "who does it, for the audit")
REASON = text_query("reason", "why it is done, for the audit")
AFTER = words("after", f"^{_NAME}:{_NAME}$", "go on behind this one, as namespace:name: `next` of the page before")
DRY_RUN = flag("dryRun", "tell what would be done, and do nothing")


def read_query(query_string: bytes, declared: Mapping[str, Query]) -> dict[str, Value]:
    """The parameters of a query string, each read as declared. `InputError` names the one at fault."""
    values: dict[str, Value] = {}
    for item in query_string.split(b"&"):
        name_bytes, equals, value_bytes = item.partition(b"=")
        name, text = (unquoted(part.replace(b"+", b" "), "query", "it") for part in (name_bytes, value_bytes))
        parameter = declared.get(name)
        if parameter is None:
            known, shown = ", ".join(declared) or "none", without_secrets(name)[:60]
            raise InputError(
                f"query parameter {shown!r} is not one of this call", field=shown, hint=f"It takes: {known}."
            )
        if name in values:
            raise InputError(f"query parameter {name} is given twice", field=name, hint="Give it once.")
        if not equals:
            raise InputError(f"query parameter {name} has no value", field=name, hint=f"Write {name}=VALUE.")
        if parameter.is_field and not text:
            continue
        try:
            values[name] = parameter.read(text)
        except ValueError as error:
            shown = without_secrets(f"{name}={text}").removeprefix(f"{name}=")[:60]
            raise InputError(f"query parameter {name} is {shown!r}; it {error}", field=name) from None
    return values
