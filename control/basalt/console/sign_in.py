"""Signing in: a credential is turned into a login, whose token is in a cookie that no script reads and no other site sends.

A token is given in a form; a ticket of Kerberos or a certificate is sent by the browser when a button asks for it. None is kept. Who comes through
a proxy is vouched for with each request, and has no login that would outlive that. Signing out ends the login at the server, too.
"""

from __future__ import annotations

from basalt.access.authentication import SECURE_COOKIE
from basalt.access.needs import PUBLIC
from basalt.access.policy import Caller
from basalt.api.bodies.access import LoginRequest, NewToken, TokenInfo
from basalt.console.call import Call
from basalt.console.forms import FORM, form_of
from basalt.console.page import CONSOLE_PATH, LOGIN_PATH, Visit, inside_console, redirect
from basalt.errors import BasaltError
from basalt.http.asgi.requests import Headers
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable, flag, text_query
from basalt.http.routes.schemas import Content

LOGIN_MS = 12 * 3_600_000
TICKET_PATH = f"{LOGIN_PATH}/kerberos"
CERTIFICATE_PATH = f"{LOGIN_PATH}/certificate"
NOTHING_SENT = {
    TICKET_PATH: "Your browser sent no ticket. Get one (`kinit`), and have the browser send it to this server: its administrator lists servers.",
    CERTIFICATE_PATH: "Your browser sent no certificate with this connection. Install one, close the browser, and come again.",
}
BAD_CREDENTIAL = (
    "What your browser sent does not count: it is over, or of another realm or authority. The server's log says more."
)

_BODY: Content = {FORM: {"type": "object"}}

route = RouteTable("console")

_NEXT = text_query("next", "the page to go on to")


@route("GET", LOGIN_PATH, PUBLIC, query=(_NEXT, flag("failed", "say that what the browser sent does not count")))
async def ask(request: Request) -> Response:
    """Ask who is there."""
    problem = BAD_CREDENTIAL if request.flag("failed") else ""
    return _form(Visit(request), request.text("next") or CONSOLE_PATH, problem, 401 if problem else 200)


@route("POST", LOGIN_PATH, PUBLIC, body=_BODY)
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
    except BasaltError as error:
        return _form(visit, following, error.message, 401)
    return await _logged_in(visit, found.caller, following)


@route("POST", TICKET_PATH, PUBLIC, body=_BODY)
async def by_ticket(request: Request) -> Response:
    """Turn the ticket of Kerberos that the browser sends into a login; ask it for one first."""
    visit, fields = Visit(request), await form_of(request)
    following = inside_console(fields.get("next", ""))
    if "kerberos" not in _kinds(visit):
        return _form(visit, following, "This server takes no tickets of Kerberos.", 404)
    if not request.headers.get(b"authorization", b"").lower().startswith(b"negotiate "):
        # A browser that has a ticket for this server sends the form again, with it; one that has none shows this page.
        return _form(visit, following, NOTHING_SENT[TICKET_PATH], 401, [(b"www-authenticate", b"Negotiate")])
    return await _logged_in(visit, request.caller, following)  # who that is was found before this


@route("POST", CERTIFICATE_PATH, PUBLIC, body=_BODY)
async def by_certificate(request: Request) -> Response:
    """Turn the certificate of the browser's connection into a login."""
    visit, fields = Visit(request), await form_of(request)
    following, exchange = inside_console(fields.get("next", "")), request.exchange
    authentication = request.services.authentication
    if authentication is None or "cert" not in _kinds(visit):
        return _form(visit, following, "This server takes no certificates.", 404)
    if exchange.certificate is None:
        return _form(visit, following, NOTHING_SENT[CERTIFICATE_PATH], 401)
    try:
        found = authentication.identify({}, exchange.client, authentication.now_ms(), exchange.certificate)
    except BasaltError as error:
        return _form(visit, following, error.message, 401)
    return await _logged_in(visit, found.caller, following)


@route("POST", f"{CONSOLE_PATH}/logout", PUBLIC, body=_BODY)
async def sign_out(request: Request) -> Response:
    """End the login."""
    visit = Visit(request)
    answer = await visit.ask(Call("DELETE", "/v1/auth/logins", TokenInfo))  # if there is none, there is nothing to end
    cookie = _cookie(visit, "", 0)
    if answer.status >= 500:
        told = "This browser has forgotten the login, but the server could not end it: it may count until it ends by itself, within 12 hours."
        return _form(visit, CONSOLE_PATH, told, answer.status, cookie)
    return redirect(LOGIN_PATH, cookie)


async def _logged_in(visit: Visit, caller: Caller, following: str) -> Response:
    """Go on with a login of this caller, always a new one; or say why there is none."""
    visit.request.caller = caller
    answer = await visit.ask(Call("POST", "/v1/auth/logins", NewToken, body=LoginRequest(LOGIN_MS)))
    if answer.problem is not None:
        return _form(visit, following, answer.problem.detail, 401)
    return redirect(following, _cookie(visit, answer.value.token, LOGIN_MS // 1_000))


def _kinds(visit: Visit) -> frozenset[str]:
    return frozenset(visit.settings.auth.kinds)


def _form(
    visit: Visit, following: str, problem: str = "", status: int = 200, headers: Headers | None = None
) -> Response:
    caller, kinds = visit.request.caller, _kinds(visit)
    return visit.html(
        "login.html", status, headers, title="Sign in", next=inside_console(following), problem=problem, kinds=kinds,
        takes_text=bool(kinds & {"token", "jwt"}), paths={"kerberos": TICKET_PATH, "cert": CERTIFICATE_PATH},
        via="" if caller.via is None else str(caller.via),
    )  # fmt: skip


def _cookie(visit: Visit, value: str, lasts_s: int) -> Headers:
    """The cookie of a login. Its name's prefix has browsers refuse one that was set without TLS, or for other hosts."""
    authentication = visit.services.authentication
    assert authentication is not None or not value
    name = SECURE_COOKIE if authentication is None else authentication.cookie(visit.request.exchange.scheme == "https")
    flags = b"; Secure" if name == SECURE_COOKIE else b""
    content = value.encode("ascii")
    return [
        (b"set-cookie", b"%s=%s; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict%s" % (name, content, lasts_s, flags))
    ]
