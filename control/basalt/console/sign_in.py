"""Signing in: a credential is turned into a login, whose token is in a cookie that no script reads and no other site sends.

The token that was given is not kept. Signing out ends the login at the server, too.
"""

from __future__ import annotations

from basalt.access.needs import PUBLIC
from basalt.api.bodies.access import LoginRequest, NewToken, TokenInfo
from basalt.console.call import Call
from basalt.console.forms import FORM, form_of
from basalt.console.page import CONSOLE_PATH, LOGIN_PATH, Visit, inside_console, redirect
from basalt.errors import BasaltError
from basalt.http.asgi.requests import Headers
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable, text_query

LOGIN_MS = 12 * 3_600_000

route = RouteTable("console")

_NEXT = text_query("next", "the page to go on to")


@route("GET", LOGIN_PATH, PUBLIC, query=(_NEXT,))
async def ask(request: Request) -> Response:
    """Ask who is there."""
    return _form(Visit(request), request.text("next") or CONSOLE_PATH)


@route("POST", LOGIN_PATH, PUBLIC, body={FORM: {"type": "object"}})
async def sign_in(request: Request) -> Response:
    """Turn a token into a login."""
    visit, fields = Visit(request), await form_of(request)
    following = inside_console(fields.get("next", ""))
    authentication = request.services.authentication
    if authentication is None:
        return redirect(following)
    try:
        given = {b"authorization": f"Bearer {fields.get('token', '').strip()}".encode()}
        found = authentication.identify(given, request.exchange.client, authentication.now_ms())
        request.caller = found.caller
        answer = await visit.ask(Call("POST", "/v1/auth/logins", NewToken, body=LoginRequest(LOGIN_MS)))
    except BasaltError as error:
        return _form(visit, following, error.message, 401)
    if answer.problem is not None:
        return _form(visit, following, answer.problem.detail, 401)
    return redirect(following, _cookie(request, answer.value.token, LOGIN_MS // 1_000))


@route("POST", f"{CONSOLE_PATH}/logout", PUBLIC, body={FORM: {"type": "object"}})
async def sign_out(request: Request) -> Response:
    """End the login."""
    await Visit(request).ask(Call("DELETE", "/v1/auth/logins", TokenInfo))  # if there is none, there is nothing to end
    return redirect(LOGIN_PATH, _cookie(request, "", 0))


def _form(visit: Visit, following: str, problem: str = "", status: int = 200) -> Response:
    return visit.html("login.html", status, title="Sign in", next=inside_console(following), problem=problem)


def _cookie(request: Request, value: str, lasts_s: int) -> Headers:
    """The cookie of a login. Its name's prefix has browsers refuse one that was set without TLS, or for other hosts."""
    secure = request.exchange.scheme == "https"
    name = "__Host-basalt" if secure else "basalt"
    flags = "; Secure" if secure else ""
    return [
        (b"set-cookie", f"{name}={value}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Strict{flags}".encode("ascii"))
    ]
