"""The calls on ranges of a topic: its stable end, how far a reader may go, and a range in parts."""

from __future__ import annotations

from dataclasses import replace

from basalt.api.bodies.json import MessageId, message_id
from basalt.api.bodies.markers import TaskInfo
from basalt.api.bodies.ranges import Advance, Split, Splits, StableEnd
from basalt.api.bodies.work import LONG_MAX
from basalt.errors import ConflictError, InputError, InvalidNameError, TopicNotFoundError
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.operations import Operation, Query, choice, integer
from basalt.http.routes.topics import TOPIC_PATH, named_topic
from basalt.messaging.ranges.ranges import SPLITS_MAX
from basalt_engine.keys import MESSAGE_ID_BYTES

ISOLATION = choice(
    "isolation", ("committed", "uncommitted"), "what counts: what committed readers see (the default), or everything"
)


async def stable_end(request: Request) -> Answer:
    """Up to where the topic reads the same for ever."""
    found = await request.services.ranges.stable_end(named_topic(request), is_committed(request))
    return json_answer(StableEnd(message_id(found.id), found.generation))


async def advance(request: Request) -> Answer:
    """The longest run within the limits."""
    title = named_topic(request)
    after, through = range_id(request, "after"), range_id(request, "through")
    if through is not None and after is not None and after > through:
        raise backwards(after, through)
    found = await request.services.ranges.advance(
        title, after, through=through, messages_max=request.integer("messagesMax"), bytes_max=request.integer("bytesMax"),
        committed=is_committed(request),
    )  # fmt: skip
    tasks = tuple(TaskInfo(name, *task) for name, task in sorted(found.said.tasks.items()))
    shown = Advance(
        message_id(found.through), found.messages, found.payload_bytes, found.at_end, found.generation, found.expired,
        found.said.task_count, found.tasks_property, tasks,
    )  # fmt: skip
    return json_answer(shown)


async def splits(request: Request) -> Answer:
    """A range in parts."""
    title = named_topic(request)
    after, through, count = range_id(request, "after"), range_id(request, "through"), request.integer("n")
    if through is None or count is None:
        field = "through" if through is None else "n"
        raise InputError(f"the query parameter {field} is missing", field=field, hint="give `through`, an id, and `n`")
    if after is not None and after > through:
        raise backwards(after, through)
    found = await request.services.ranges.splits(title, after, through, count, committed=is_committed(request))
    parts = [
        Split(message_id(each.after), MessageId(each.through), each.messages, each.payload_bytes)
        for each in found.splits
    ]
    return json_answer(Splits(parts, found.generation))


def is_committed(request: Request) -> bool:
    """Whether only what committed readers see counts."""
    return request.text("isolation") != "uncommitted"


def range_id(request: Request, name: str) -> bytes | None:
    """The id in a query parameter that `id_parameter` declares."""
    text = request.text(name)
    return None if text is None else bytes.fromhex(text)


def id_parameter(name: str, meaning: str, *, required: bool = False) -> Query:
    """A query parameter that is an id, whether or not a message has it."""
    digits = 2 * MESSAGE_ID_BYTES

    def read(text: str) -> str:
        if len(text) != digits or not all(char in "0123456789abcdefABCDEF" for char in text):
            raise ValueError(f"must be an id: {digits} hex digits")
        return text

    schema = {"type": "string", "pattern": f"^[0-9a-fA-F]{{{digits}}}$"}
    return Query(name, read, schema, meaning, required)


def backwards(after: bytes, through: bytes) -> InputError:
    """Why a range cannot be."""
    return InputError(
        f"the range ends at {through.hex()}, before it begins at {after.hex()}",
        field="through",
        hint="give an id that is not before `after`",
    )


AFTER = id_parameter("after", "where the range begins, exclusively; without it at the oldest message")
_TOPIC = (InvalidNameError, TopicNotFoundError)

OPERATIONS = (
    Operation(
        method="GET",
        path=TOPIC_PATH + "/stable-end",
        handler=stable_end,
        summary="Up to where the topic reads the same for ever",
        tag="ranges",
        query=(ISOLATION,),
        answers={200: {JSON: StableEnd}},
        errors=_TOPIC,
    ),
    Operation(
        method="GET",
        path=TOPIC_PATH + "/advance",
        handler=advance,
        summary="How far a reader may go within limits, and what the markers on the way say",
        tag="ranges",
        query=(
            AFTER,
            id_parameter("through", "go no further than this id"),
            integer("messagesMax", 1, LONG_MAX, "most messages; without it as many as there are"),
            integer("bytesMax", 1, LONG_MAX, "most bytes of payloads, but for a first message that is larger"),
            ISOLATION,
        ),
        answers={200: {JSON: Advance}},
        errors=_TOPIC,
    ),
    Operation(
        method="GET",
        path=TOPIC_PATH + "/splits",
        handler=splits,
        summary="A range in parts of about the same size",
        tag="ranges",
        query=(
            AFTER,
            id_parameter("through", "where the range ends, inclusively", required=True),
            replace(integer("n", 1, SPLITS_MAX, "most parts"), required=True),
            ISOLATION,
        ),
        answers={200: {JSON: Splits}},
        errors=(*_TOPIC, ConflictError),
    ),
)
