"""Acts: what an operator does from a page, in two steps that need no script.

The first step shows the plan: what the call itself answers when it is tried dry. The second one is a form with a reason, and where
something is destroyed its name, typed; it carries a digest of the plan. Where the plan would be another by then, it is shown anew
(409), and nothing is done. Who may do it is the API's to say, in both steps; a page only says beforehand what it would answer.
"""

from __future__ import annotations

import hashlib
import hmac
import json as plain_json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from basalt.access.resources import Resource
from basalt.api.bodies.operations import AuditLine
from basalt.console.call import Answer, Call
from basalt.console.forms import FORM, form_of
from basalt.console.page import Visit, redirect, sign_in_path
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import REASON, choice
from basalt.http.routes.schemas import Content

AUDIT_LINES_MAX = 50  # that are looked through for the act's own: others may act in the same moment
DIGEST_CHARS = 32  # 128 bits

STEP = choice("step", ("plan",), "show what would be done, and do nothing")
ACT_BODY: Content = {FORM: {"type": "object"}}
REASON_CHARS_MAX = int(str(REASON.schema["maxLength"]))
READ_ONLY = "This console only shows: console.read_only is true."


@dataclass(frozen=True, slots=True)
class Act:
    """Something that an operator does.

    `call` is made with `dryRun` for the plan, and with a reason for the act. `page` is the path of what it is done to; the act has a
    path below it. `effect` tells in a sentence what it does, and whether something undoes it. `typed` is the name that is to be
    typed, where it destroys something. `plan` is the template that shows what the call answers, before it and behind it.

    `inputs` are what the visitor has filled in, by the names of the form's fields: they come along to the second step. `moving` are members of
    the answer that say something else each time, as the present moment does, and are no other plan. `sent_to` is the path of the forms, where
    it is not below the page. `below` names, as the path has it, what it is done to where that has no page of its own.
    """

    name: str
    title: str
    page: str
    call: Call
    verb: str
    resource: Resource
    effect: str
    plan: str
    typed: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    moving: frozenset[str] = frozenset()
    sent_to: str = ""
    below: str = ""

    @property
    def path(self) -> str:
        """The path that its forms are sent to."""
        return self.sent_to or "/".join(filter(None, (self.page, self.below, self.name)))

    @property
    def planned(self) -> Call:
        """The call that tells what would be done."""
        return replace(self.call, query={**self.call.query, "dryRun": "true"})

    def done_for(self, reason: str) -> Call:
        """The call that does it."""
        return replace(self.call, query={**self.call.query, "reason": reason})


@dataclass(frozen=True, slots=True)
class Offer:
    """An act as a page offers it; `missing` says why it is not to be had, and `grant` is the command that would change that."""

    act: Act
    missing: str = ""
    grant: str = ""


def offer(visit: Visit, act: Act) -> Offer:
    """The act, for this visitor."""
    if visit.settings.console.read_only:
        return Offer(act, READ_ONLY)
    if visit.may(act.verb, act.resource):
        return Offer(act)
    principal = str(visit.request.caller.principal)
    command = shlex.join(("basalt", "grant", "add", principal, act.verb, str(act.resource)))
    return Offer(act, f"{principal} has no right to {act.verb} on {act.resource}.", command)


def offers(visit: Visit, acts: Iterable[Act]) -> tuple[Offer, ...]:
    """The acts, for this visitor."""
    return tuple(offer(visit, act) for act in acts)


async def respond(visit: Visit, act: Act, given: Mapping[str, str] | None = None) -> Response:
    """Answer a form: with the plan, with what was done, or with why it was not. `given` are its fields, where the act was made of them."""
    if visit.must_sign_in:
        return redirect(sign_in_path(act.page))
    offered = offer(visit, act)
    if visit.settings.console.read_only:
        return visit.html("act_refused.html", 403, title=act.title, offer=offered, answer=None)
    is_plan = visit.request.text("step") == "plan"
    fields: Mapping[str, str] = {} if is_plan else await form_of(visit.request) if given is None else given
    planned = await visit.ask(act.planned)
    if not planned.ok:
        return visit.html("act_refused.html", planned.status, title=act.title, offer=offered, answer=planned)
    digest = digest_of(visit, planned, act.moving)
    status, problem = (200, "") if is_plan else _fault(act, fields, digest)
    if is_plan or problem:
        return visit.html(
            "act.html", status, title=act.title, act=act, answer=planned, digest=digest, problem=problem,
            reason=fields.get("reason", ""), reason_chars_max=REASON_CHARS_MAX,
        )  # fmt: skip
    done = await visit.ask(act.done_for(fields["reason"].strip()))
    if not done.ok:
        return visit.html("act_refused.html", done.status, title=act.title, offer=offered, answer=done)
    return visit.html(
        "act_done.html",
        title=act.title,
        act=act,
        answer=done,
        audit=await visit.ask(_AUDIT),
        request_id=done.request_id,
    )


def digest_of(visit: Visit, planned: Answer, moving: frozenset[str] = frozenset()) -> str:
    """The digest of a plan: of the call, of what it would do but for what moves, and of who looks at it."""
    call = planned.call
    parts = (call.method, call.target, str(visit.request.caller.principal))
    told = plain_json.dumps(_still(planned.plain(), moving)).encode() if moving else planned.raw
    content = b"\n".join((*(part.encode() for part in parts), call.sent, told))
    return hashlib.sha256(content).hexdigest()[:DIGEST_CHARS]


def _still(value: Any, moving: frozenset[str]) -> Any:
    """An answer without what moves, however deep that lies."""
    if isinstance(value, dict):
        return {name: _still(each, moving) for name, each in value.items() if name not in moving}
    return [_still(each, moving) for each in value] if isinstance(value, list) else value


def _fault(act: Act, fields: Mapping[str, str], digest: str) -> tuple[int, str]:
    """The status and the words for what is wrong with a form; no words where it is in order."""
    if not hmac.compare_digest(fields.get("digest", "").encode(), digest.encode()):
        return (
            409,
            "What would be done is not what you have seen: it has changed meanwhile. Nothing was done. This is the plan now.",
        )
    reason = fields.get("reason", "").strip()
    try:
        REASON.read(reason)
    except ValueError:
        reason = ""
    if not reason:
        return (
            400,
            f"Say why, in one line of up to {REASON_CHARS_MAX} characters: the audit keeps it. Nothing was done.",
        )
    if act.typed and fields.get("typed", "").strip() != act.typed:
        return 400, "The name that you typed is another one. Nothing was done."
    return 200, ""


_AUDIT = Call("GET", "/v1/admin/audit", list[AuditLine], query={"limit": str(AUDIT_LINES_MAX)})
