"""Writes what docs/reference says of the code: `make reference`. Tests compare, and say so where a page lags behind.

Settings, the command line, and the tables of topics' properties and of rights are written whole. In the other pages people write, and here only what is missing or gone is mended: a row for
each error code, metric, call and query parameter that no page tells, in the words of the code, to be put into better ones; the status of
an error as it is; and no row of a code that is gone.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from prometheus_client.metrics_core import Metric

from basalt.access.needs import Needs
from basalt.access.resources import KINDS, VERBS, shape
from basalt.api.topic_properties import PROPERTIES, TopicProperty
from basalt.cli import reference as command_line
from basalt.cluster.leader import Leadership
from basalt.cluster.lease import Candidate
from basalt.cluster.membership import Membership
from basalt.errors import BY_CODE, BasaltError
from basalt.http.app import OPERATIONS
from basalt.http.asgi.handshake import Handshakes
from basalt.http.asgi.responses import status_of
from basalt.http.asgi.server_context import ServerContext
from basalt.http.collectors import LeaderMetrics, MemberMetrics, TlsMetrics
from basalt.http.metrics import Metrics
from basalt.http.routes.route_table import Operation
from basalt.server.wiring import open_services
from basalt.settings import Settings, reference
from basalt_engine.clock import SystemClock
from basalt_engine.stores.memory import MemoryStore

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
MEND = "run `make reference`, and look at what it changes"

_ERROR_ROW = re.compile(r"^\| `(?P<code>\w+)` \| (?P<status>\d{3}|\W) \|.*\n", re.MULTILINE)
_PROPERTIES_HEAD = "| property | default | |\n|---|---|---|\n"
_PROPERTIES_END = "| `generation` |"  # which nobody sets
_VERBS_HEAD = "| verb | allows | on |\n|---|---|---|\n"
_RIGHTS_HEAD = "| call | rights | of what the query or the body names |\n|---|---|---|\n"
_ROWS = re.compile(r"^(?:\|.*\n)*")
_METRICS_END = "| `process_*`"
_CALLS_END = "\nCalls without a body take none, or `{}`.\n"  # behind the first table of operators' calls


def documentation(root: Path = ROOT) -> str:
    """All that a user may read: README and docs/, as one text; but for the page that names every call by itself, and tells none."""
    pages = (path for path in sorted((root / "docs").rglob("*.md")) if path.name != "rights.md")
    return "\n".join(path.read_text() for path in (root / "README.md", *pages))


def pages() -> dict[Path, str]:
    """The pages of which something is written here, each as it should be."""
    told = documentation()
    errors, metrics, calls, rights = (REFERENCE / f"{name}.md" for name in ("errors", "metrics", "http-api", "rights"))
    return {
        REFERENCE / "settings.md": reference.settings_page(),
        REFERENCE / "cli.md": command_line.page(),
        errors: errors_page(errors.read_text(), BY_CODE),
        metrics: metrics_page(metrics.read_text(), asyncio.run(metrics_of_a_server())),
        rights: rights_page(rights.read_text(), OPERATIONS),
        calls: properties_page(calls_page(calls.read_text(), told, OPERATIONS), PROPERTIES),
    }


def errors_page(text: str, by_code: Mapping[str, type[BasaltError]]) -> str:
    """The page with one row for each code, under its status; words that are there stay."""

    def as_is(row: re.Match[str]) -> str:
        if row["code"] not in by_code:
            return ""
        status = row["status"] if not row["status"].isdigit() else str(status_of(by_code[row["code"]]))
        return row[0].replace(f"| {row['status']} |", f"| {status} |", 1)

    text = _ERROR_ROW.sub(as_is, text)
    for code, error in by_code.items():
        if f"`{code}`" not in text:
            row = f"| `{code}` | {status_of(error)} | {_words(error.__doc__)} |\n"
            above = [found for found in _ERROR_ROW.finditer(text) if _number(found["status"]) <= status_of(error)]
            place = above[-1].end() if above else _ERROR_ROW.search(text).start()  # type: ignore[union-attr]
            text = text[:place] + row + text[place:]
    return text


def metrics_page(text: str, metrics: list[Metric]) -> str:
    """The page with a row for each series that it does not name yet."""
    rows = ""
    for metric in metrics:
        name = exposed_name(metric)
        if f"`{name}`" not in text:
            labels = ", ".join(f"`{label}`" for label in getattr(metric, "_labelnames", ()))
            rows += f"| `{name}` | {metric.type}{'; ' if labels else ''}{labels} | {_words(metric.documentation)} |\n"
    return text.replace(_METRICS_END, rows + _METRICS_END, 1)


def calls_page(text: str, told: str, operations: Sequence[Operation]) -> str:
    """The page with a row for each call that no page tells, and a note of each parameter that none names."""
    rows = ""
    for operation in operations:
        untold = [query for query in operation.query if not re.search(rf"\b{query.name}\b", told)]
        notes = "".join(f" `{query.name}`: {_words(query.meaning)}." for query in untold)
        if not tells(told, operation):
            rows += f"| `{operation.method} {operation.path}` | {_words(operation.summary)}.{notes} |\n"
        elif notes:
            text = re.sub(rf"^(\|.*{_call(operation)}.*) \|$", rf"\1.{notes} |", text, count=1, flags=re.MULTILINE)
        told += notes  # once is enough
    return text.replace(_CALLS_END, rows + _CALLS_END, 1)


def properties_page(text: str, properties: Sequence[TopicProperty]) -> str:
    """The page with the table of properties as the code has it."""
    head, rest = text.split(_PROPERTIES_HEAD, 1)
    rows = "".join(
        f"| `{each.name}` | {each.default_text} | {each.effect}. {each.kind.values} |\n" for each in properties
    )
    return f"{head}{_PROPERTIES_HEAD}{rows}{rest[rest.index(_PROPERTIES_END) :]}"


def rights_page(text: str, operations: Sequence[Operation]) -> str:
    """The page with the tables of verbs and of the rights of each call as the code has them."""
    verbs = "".join(
        f"| `{verb}` | {meaning} | {', '.join(f'`{shape(kind)}`' for kind, each in KINDS.items() if verb in each.verbs)} |\n"
        for verb, meaning in VERBS.items()
    )
    calls = "".join(
        f"| `{each.method} {each.path}` | {_rights(each.needs)} | {_listed(each.needs.in_body)} |\n"
        for each in sorted(operations, key=lambda operation: (operation.path, operation.method))
    )
    return _with_rows(_with_rows(text, _VERBS_HEAD, verbs), _RIGHTS_HEAD, calls)


def _rights(needs: Needs) -> str:
    """The rights of a call that it takes by its path, and without which a list is shorter."""
    if needs.is_public:
        return "none: it is public"
    shown = _listed(needs.shown)
    if needs.filters:
        shown += f"{'; ' if shown else ''}shows what `{needs.filters}` is granted on"
    return shown or ("by its body" if needs.in_body else "none: it is about who asks")


def _listed(rights: Iterable[str]) -> str:
    return ", ".join(f"`{right}`" for right in rights)


def _with_rows(text: str, head: str, rows: str) -> str:
    """The text with these rows in place of those under a table's head."""
    before, rest = text.split(head, 1)
    behind = _ROWS.sub("", rest, count=1)
    return f"{before}{head}{rows}{behind}"


def tells(told: str, operation: Operation) -> bool:
    """Whether a text names this call, with its method and in one line."""
    return re.search(_call(operation), told) is not None


def _call(operation: Operation) -> str:
    path = re.sub(r"\\\{[^}]*\\\}", r"\\{\\w+\\}", re.escape(operation.path))
    return rf"\b{operation.method}\b[^\n]*{path}(?![\w/{{-])"


async def metrics_of_a_server() -> list[Metric]:
    """Every series of a server that could lead others; those of the Thrift face and of HBase are not among them."""
    services = await open_services(Settings(), None, store=MemoryStore())
    try:
        candidate = Candidate("here:1", "http://here:4780", "0", 6_000)
        leadership = Leadership(MemoryStore(), SystemClock(), candidate, on_term=lambda _: None)
        port = TlsMetrics(Handshakes(ServerContext(ssl.PROTOCOL_TLS_SERVER)))
        families = [each async for each in Metrics(services).families()]
        membership = Membership(MemoryStore(), SystemClock(), candidate, leadership)
        membership.step()
        members = MemberMetrics(membership, SystemClock(), Settings().cluster.servers_min)
        return [*families, *LeaderMetrics(leadership).collect(), *members.collect(), *port.collect()]
    finally:
        await services.close()


def exposed_name(metric: Metric) -> str:
    """The name that Prometheus sees: the exposition adds an ending to some types."""
    ending = {"counter": "_total", "info": "_info"}.get(metric.type, "")
    return f"{metric.name}{ending}"


def _number(status: str) -> int:
    return int(status) if status.isdigit() else 999  # no status: at the end of the table


def _words(text: str | None) -> str:
    """The first sentence of a docstring or help text, as the cells of a table have it."""
    first = " ".join((text or "").partition("\n\n")[0].split()).rstrip(".").replace("|", "\\|")
    return first[:1].lower() + first[1:]


def main(arguments: list[str]) -> int:
    """Write the pages; with `--check` only name those that lag behind, and return 1 if there are some."""
    lagging = {path: wanted for path, wanted in pages().items() if path.read_text() != wanted}
    for path, wanted in lagging.items():
        print(path.relative_to(ROOT))
        if arguments != ["--check"]:
            path.write_text(wanted)
    if lagging and arguments == ["--check"]:
        print(f"These pages lag behind the code: {MEND}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
