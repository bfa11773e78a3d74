"""The call that truncates a topic. What it means: docs/reference/http-api.md, "Truncating a topic"."""

from __future__ import annotations

from basalt.api.bodies.topics import TopicTruncation, TruncateRequest
from basalt.api.bodies.work import LONG_MAX
from basalt.errors import BusyError, ConflictError, GenerationError, InputError, InvalidNameError, TopicNotFoundError
from basalt.http.asgi.json_input import decode_json
from basalt.http.asgi.request_bodies import content_type, read_body
from basalt.http.asgi.requests import Request
from basalt.http.asgi.responses import JSON, Answer, json_answer
from basalt.http.routes.authors import AS, REASON, author_of, reason_of
from basalt.http.routes.operations import Operation, flag
from basalt.http.routes.topics import TOPIC_PATH, named_topic


async def truncate(request: Request) -> Answer:
    """Put a topic's messages before a time out of every reader's reach."""
    content_type(request, (JSON,))
    asked = decode_json(await read_body(request), TruncateRequest)
    if not 0 <= asked.before_ms <= LONG_MAX:
        raise InputError("beforeMs is not a time", field="beforeMs", hint="give milliseconds since 1970")
    title, services = named_topic(request), request.services
    if request.flag("dryRun", False):
        would = await services.truncation.checked(title, asked.before_ms, asked.generation)
        committed = services.settings.transactions.manager == "builtin"
        lost = await services.truncation.lost(title, asked.before_ms, committed=committed)
        return json_answer(
            TopicTruncation(would.before_ms, would.changed, True, lost.messages, lost.payload_bytes, lost.exact)
        )
    done = await services.audit.act(
        "truncate", f"topic {title}", author_of(request), reason_of(request), request.id,
        lambda: services.truncation.truncate(title, asked.before_ms, asked.generation),
        lambda done: f"truncated before {done.before_ms} ms" if done.changed else f"was truncated before {done.before_ms} ms",
    )  # fmt: skip
    return json_answer(TopicTruncation(done.before_ms, done.changed, False))


OPERATIONS = (
    Operation(
        method="POST",
        path=TOPIC_PATH + "/truncate",
        handler=truncate,
        summary="Put a topic's messages before a time out of every reader's reach, for ever",
        tag="topics",
        query=(flag("dryRun", "tell what would go, and do nothing"), REASON, AS),
        body={JSON: TruncateRequest},
        body_required=True,
        answers={200: {JSON: TopicTruncation}},
        errors=(InputError, InvalidNameError, TopicNotFoundError, ConflictError, GenerationError, BusyError),
    ),
)
