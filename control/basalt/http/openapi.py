"""The OpenAPI 3.1 document: made from the table of operations, so that it cannot say anything else than the server does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from basalt import errors
from basalt.access.needs import Needs
from basalt.access.principal import NAME_CHARS_MAX
from basalt.api.bodies import json
from basalt.api.bodies.operations import Problem
from basalt.http.asgi.requests import REQUEST_ID_CHARS_MAX
from basalt.http.asgi.responses import PROBLEM, status_of
from basalt.http.routes.route_table import Operation
from basalt.http.routes.schemas import (
    MEMBER_NAME,
    MESSAGE_ID,
    NAME,
    PRODUCER_NAME,
    SESSION_NAME,
    TRANSACTION_ID,
    Content,
    Schema,
)
from basalt_engine import __version__

_PARAMETER = re.compile(r"\{(\w+)\}")
_REF = "#/components/schemas/{name}"

# What any call may answer: the frame around it refuses, or the server is not able to.
EVERYWHERE: tuple[type[errors.BasaltError], ...] = (
    errors.InputError,
    errors.UriTooLongError,
    errors.WrongHostError,
    errors.UnauthenticatedError,
    errors.ThrottledError,
    errors.AuthenticationUnavailableError,
    errors.InternalError,
    errors.CoordinatorUnavailableError,
    errors.UnavailableError,
)
WITH_A_BODY: tuple[type[errors.BasaltError], ...] = (
    errors.MalformedBodyError,
    errors.RequestTimeoutError,
    errors.TooLargeError,
    errors.UnsupportedMediaTypeError,
)
REQUEST_ID: Schema = {"type": "string", "pattern": f"^[A-Za-z0-9._:-]{{1,{REQUEST_ID_CHARS_MAX}}}$"}

PATH_PARAMETERS: Mapping[str, tuple[Schema, str]] = {
    "namespace": (NAME, "a namespace; it needs no creation"),
    "topic": (NAME, "a topic of the namespace"),
    "group": (NAME, "a consumer group of the topic"),
    "member": (MEMBER_NAME, "a member of the group, by the name that it gives itself"),
    "server": (MEMBER_NAME, "a server that shares the store: its name or its instance, as GET /v1/cluster tells"),
    "table": (NAME, "a transactional table of the namespace"),
    "message": (MESSAGE_ID, "a message id, 40 hex digits"),
    "transaction": (TRANSACTION_ID, "a transaction's id, 32 hex digits; or its first write pointer, in decimal"),
    "producer": (PRODUCER_NAME, "a producer of the topic"),
    "session": (SESSION_NAME, "a named session"),
    "region": ({"type": "string", "pattern": "^[0-9a-f]{1,64}$"}, "a region: the encoded part of its name"),
    "backup": (NAME, "a backup of the store"),
    "token": ({"type": "string", "pattern": "^[0-9a-f]{16}$"}, "a token or login, by its id"),
    "grant": ({"type": "string", "pattern": "^[0-9a-f]{16}$"}, "a grant, by its id"),
    "subject": (
        {"type": "string", "minLength": 1},
        "a principal, a group, role:NAME or everyone; with ~1 for a /, ~2 for a \\, and ~0 for a ~",
    ),
    "role": ({"type": "string", "minLength": 1, "maxLength": NAME_CHARS_MAX}, "a role"),
    "job": ({"type": "string", "pattern": "^[a-z-]{1,64}$"}, "a job of the scheduler"),
}

SECURITY_SCHEMES: Mapping[str, Schema] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "a token of Basalt, or a JWT of the identity provider",
    },
    "negotiate": {"type": "http", "scheme": "negotiate", "description": "Kerberos, by SPNEGO"},
    "certificate": {"type": "mutualTLS", "description": "a client certificate"},
}
# Any of these by the setting auth.kinds; none where that says none.
SECURITY: list[Mapping[str, list[str]]] = [*({name: []} for name in SECURITY_SCHEMES), {}]


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    """The document of these operations."""
    operations = tuple(operations)
    kinds = _kinds(operations)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF, schema_hook=json.schema_of)
    by_kind = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Basalt",
            "version": __version__,
            "description": "Transactional messaging. Described in words in docs/reference/http-api.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SECURITY_SCHEMES},
    }


def _kinds(operations: Iterable[Operation]) -> list[Any]:
    contents = [operation.body for operation in operations]
    contents += [content for operation in operations for content in operation.answers.values()]
    found: dict[Any, None] = {Problem: None}
    for shape in (shape for content in contents for shape in content.values()):
        if not isinstance(shape, Mapping):
            found.update(dict.fromkeys(shape if isinstance(shape, tuple) else (shape,)))
    return list(found)


def _operation(operation: Operation, by_kind: Mapping[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": f"{operation.handler.__module__.rsplit('.', 1)[-1]}.{operation.handler.__name__}",
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": list(_parameters(operation)),
        "responses": _responses(operation, by_kind),
    }
    if operation.description:
        described["description"] = operation.description
    if not operation.needs.is_public:
        described["security"] = SECURITY
        described["x-basalt-rights"] = _rights(operation.needs)
    if operation.body:
        described["requestBody"] = {"required": operation.body_required, "content": _content(operation.body, by_kind)}
    return described


def _rights(needs: Needs) -> dict[str, Any]:
    """The rights that a call takes, as docs/reference/rights.md has them."""
    rights: dict[str, Any] = {"path": list(needs.shown), "body": list(needs.in_body)}
    return rights if needs.filters is None else {**rights, "filters": needs.filters}


def _responses(operation: Operation, by_kind: Mapping[Any, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, content in operation.answers.items():
        responses[str(status)] = {"description": "Done."}
        if content:
            responses[str(status)]["content"] = _content(content, by_kind)
    told: dict[int, list[str]] = {}
    needs = operation.needs
    refusals = (errors.ForbiddenError,) if needs.shown or needs.in_body else ()
    for error in (*EVERYWHERE, *refusals, *operation.errors, *(WITH_A_BODY if operation.body else ())):
        codes = told.setdefault(status_of(error), [])
        if error.code not in codes:
            codes.append(error.code)
    if operation.method != "GET":
        for error in (errors.CrossOriginError, errors.DiskFullError):
            told[status_of(error)] = [error.code]
    problem = {PROBLEM.decode("ascii"): {"schema": by_kind[Problem]}}
    for status, codes in sorted(told.items()):
        if str(status) not in responses:
            responses[str(status)] = {"description": " or ".join(codes), "content": problem}
        else:
            responses[str(status)]["content"] |= problem
    return responses


def _content(content: Content, by_kind: Mapping[Any, Any]) -> dict[str, Any]:
    return {media_type.decode("ascii"): {"schema": _schema(shape, by_kind)} for media_type, shape in content.items()}


def _schema(shape: object, by_kind: Mapping[Any, Any]) -> Any:
    if isinstance(shape, Mapping):
        return shape
    if isinstance(shape, tuple):
        return {"anyOf": [by_kind[kind] for kind in shape]}
    return by_kind[shape]


def _parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for name in _PARAMETER.findall(operation.path):
        yield _parameter("path", name, *PATH_PARAMETERS[name], required=True)
    for query in operation.query:
        yield _parameter("query", query.name, query.schema, query.meaning, required=query.required)
    if operation.if_match:
        text = "ETags, as answers about a topic have them: refused with 412 when the present one is none of these"
        yield _parameter("header", "If-Match", {"type": "string"}, text)
    for header in operation.headers:
        yield _parameter("header", header.name, header.schema, header.meaning)
    if operation.method == "POST":
        text = "names the request in answers and logs; a repeated transaction call is known by it"
        yield _parameter("header", "Basalt-Request-Id", REQUEST_ID, text)


def _parameter(where: str, name: str, schema: Schema, text: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": where, "required": required, "schema": schema, "description": text}
