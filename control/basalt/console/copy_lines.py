"""The command that makes a call, by the call's method and path: shown on every panel, to be copied.

A word in braces stands for a name in the path, a query parameter or a member of the body; with .1 or .2 behind it for what is before or behind
its colon; with a colon behind it for nothing: it is the condition of
an option without a value; with an exclamation mark, too, where the option is there without the word, and with an equals sign where the word is
just that; with .+ its part in brackets is there once for each word of a list. A part in brackets is there where its words are.
A test runs each line that a page shows, and compares what it answers with the page.
"""

from __future__ import annotations

import re
import shlex
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import msgspec

NO_COMMAND = "there is no command for this call"
TOPIC = "/v1/namespaces/{namespace}/topics/{topic}"

GROUP = "/v1/namespaces/{namespace}/topics/{topic}/groups/{group}"

# In the order of the routes. None: the command line has nothing for it, and the panel says so.
COMMANDS: Mapping[tuple[str, str], str | None] = {
    ("GET", "/readyz"): "doctor",
    ("GET", "/v1/admin/topics"): (
        "topic list [--all-namespaces{namespace!}] [--namespace {namespace}] [--contains {contains}] [--deleted{deleted:}] [--sort {sort}]"
        " [--descending{descending:}] [--figures{figures:}] [--after {after}] [--limit {limit}]"
    ),
    ("GET", "/v1/namespaces/{namespace}/topics"): "topic list --namespace {namespace}",
    ("GET", "/v1/admin/namespaces/{namespace}/topics/{topic}"): "topic show {topic} --namespace {namespace}",
    ("PUT", TOPIC): (
        "topic create {topic} --namespace {namespace} [--property {property.+}] [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("PATCH", f"{TOPIC}/properties"): (
        "topic update {topic} --namespace {namespace} [--property {property.+}] [--unset {unset.+}] [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("DELETE", TOPIC): "topic delete {topic} --namespace {namespace} [--reason {reason}] [--dry-run{dryRun:}]",
    ("POST", f"{TOPIC}/truncate"): (
        "topic truncate {topic} --namespace {namespace} [--before @{beforeMs}] [--before now{beforeMs!}] [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("GET", f"{TOPIC}/stats"): "topic show {topic} --namespace {namespace}",
    ("GET", f"{TOPIC}/markers"): "topic markers {topic} --namespace {namespace}",
    ("GET", f"{TOPIC}/holder"): "explain poll {topic} --namespace {namespace}",
    ("GET", f"{TOPIC}/groups"): "group list {topic} --namespace {namespace}",
    ("GET", f"{TOPIC}/records"): (
        "consume {topic} --namespace {namespace} [--from {from}] [--back {back}] [--isolation {isolation}] [--limit {limit}]"
    ),
    ("POST", f"{TOPIC}/records"): (
        "publish {topic} --namespace {namespace} [--key {key}] [--header {header.+}] [--ttl {ttlMs}ms] [-- {payload}]"
    ),
    ("GET", f"{TOPIC}/messages"): (
        "message peek {topic} --namespace {namespace} [--from {from}] [--back {back}] [--limit {limit}]"
    ),
    ("GET", f"{TOPIC}/messages/{{message}}"): "message show {topic} {message} --namespace {namespace}",
    ("GET", "/v1/admin/jobs"): "job list",
    ("GET", "/v1/admin/jobs/{job}"): "job show {job}",
    ("GET", "/v1/admin/jobs/{job}/history"): "job history {job} [--limit {limit}]",
    ("POST", "/v1/admin/jobs/{job}/run"): "job run {job} [--reason {reason}] [--dry-run{dryRun:}]",
    ("POST", "/v1/admin/jobs/{job}/pause"): "job pause {job} [--reason {reason}] [--dry-run{dryRun:}]",
    ("POST", "/v1/admin/jobs/{job}/resume"): "job resume {job} [--reason {reason}] [--dry-run{dryRun:}]",
    ("GET", "/v1/admin/audit"): "audit list [--limit {limit}]",
    ("GET", "/v1/transactions"): "tx list",
    ("GET", "/v1/admin/transactions"): (
        "tx list [--state {state}] [--owner {owner}] [--principal {principal}] [--namespace {topic.1} --topic {topic.2}] [--older-than {olderThanMs}ms]"
        " [--after {after}] [--limit {limit}]"
    ),
    ("GET", "/v1/admin/transactions/hanging"): "tx find-hanging [--limit {limit}] [--rows {rows}]",
    ("GET", "/v1/admin/transactions/invalid"): "tx list-invalid [--after {after}] [--limit {limit}]",
    ("GET", "/v1/admin/transactions/{transaction}"): "tx describe {transaction}",
    ("GET", "/v1/transactions/{transaction}/timeline"): "tx timeline {transaction}",
    (
        "POST",
        "/v1/admin/transactions/{transaction}/abort",
    ): "tx abort {transaction} [--reason {reason}] [--dry-run{dryRun:}]",
    ("POST", "/v1/admin/transactions/{transaction}/invalidate"): (
        "tx invalidate {transaction} [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("GET", "/v1/transactions/sessions"): "tx sessions list [--after {after}] [--limit {limit}]",
    ("GET", "/v1/transactions/sessions/{session}"): "tx sessions show {session}",
    (
        "DELETE",
        "/v1/transactions/sessions/{session}",
    ): "tx sessions delete {session} [--reason {reason}] [--dry-run{dryRun:}]",
    ("GET", "/v1/admin/tables"): (
        "table list [--all-namespaces{namespace!}] [--namespace {namespace}] [--after {after}] [--limit {limit}]"
    ),
    ("GET", "/v1/namespaces/{namespace}/tables/{table}"): "table show {table} --namespace {namespace}",
    (
        "POST",
        "/v1/namespaces/{namespace}/tables/{table}/scan",
    ): "table scan {table} --namespace {namespace} [--from {start}]",
    ("GET", "/v1/admin/groups"): (
        "group list [{topic.2} --namespace {topic.1}] [--all-namespaces{namespace!}{topic!}] [--namespace {namespace}{topic!}] [--mode {mode}]"
        " [--paused{paused:}] [--contains {contains}] [--sort {sort}] [--after {after}] [--limit {limit}]"
    ),
    ("GET", "/v1/admin/pipelines"): "pipelines [--after {after}] [--limit {limit}]",
    ("GET", GROUP): "group show {topic} {group} --namespace {namespace}",
    ("DELETE", GROUP): "group delete {topic} {group} --namespace {namespace} [--reason {reason}] [--dry-run{dryRun:}]",
    ("PUT", f"{GROUP}/options"): (
        "group change {topic} {group} --namespace {namespace} [--mode {mode}] [--key {key}] [--lease {memberMs}ms]"
        " [--claim-time {claimMs}ms] [--unacked-max {unackedMax}] [--attempts-max {attemptsMax}] [--retry-delay {retryDelayMs}ms]"
        " [--retry-delay-max {retryDelayMsMax}ms] [--dead-letter-topic {deadLetterTopic}] [--expire {expireMs}ms]"
        " [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("POST", f"{GROUP}/seek"): (
        "group seek {topic} {group} --namespace {namespace} [--to {to}] [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("POST", f"{GROUP}/pause"): (
        "group pause {topic} {group} --namespace {namespace} [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("POST", f"{GROUP}/resume"): (
        "group resume {topic} {group} --namespace {namespace} [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("POST", f"{GROUP}/unpark"): (
        "group unpark {topic} {group} --namespace {namespace} --all [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("GET", f"{GROUP}/members"): "group members {topic} {group} --namespace {namespace}",
    ("GET", f"{GROUP}/slots"): "group slots {topic} {group} --namespace {namespace} [--limit {limit}]",
    ("GET", f"{GROUP}/claims"): "group claims {topic} {group} --namespace {namespace} [--limit {limit}]",
    ("GET", f"{GROUP}/messages"): (
        "group messages {topic} {group} --namespace {namespace} [--state {state}] [--limit {limit}]"
    ),
    ("GET", f"{GROUP}/messages/{{message}}"): "explain group {topic} {group} {message} --namespace {namespace}",
    ("GET", "/v1/admin/snapshot"): "snapshot show",
    ("GET", "/v1/admin/series"): "series [{names}] [--from={from}] [--to={to}] [--step {step}]",
    ("GET", "/v1/admin/store"): None,
    ("GET", "/v1/admin/cluster"): "cluster show",
    ("GET", "/v1/admin/backups"): "backup list",
    ("POST", "/v1/admin/backups"): "backup create {name} [--reason {reason}] [--dry-run{dryRun:}]",
    ("GET", "/v1/admin/prune"): "prune status",
    ("GET", "/v1/admin/prune/invalid"): "prune list [--cause {cause}] [--after {after}] [--limit {limit}]",
    ("GET", "/v1/admin/prune/explain"): "prune explain [{writePointer}] [--limit {limit}]",
    ("GET", "/v1/admin/prune/history"): "prune history [--limit {limit}]",
    ("GET", "/v1/admin/prune/regions"): "prune regions [--blocking{show=blocking}] [--idle{show=idle}]",
    ("GET", "/v1/admin/prune/regions/{region}"): "prune info {region}",
    ("POST", "/v1/admin/prune/run"): "prune run [--reason {reason}] [--dry-run{dryRun:}]",
    ("POST", "/v1/admin/prune/compact"): "prune compact [{regions}] [--reason {reason}] [--dry-run{dryRun:}]",
    (
        "POST",
        "/v1/admin/prune/restore",
    ): "prune restore --since @{since_ms} --yes [--reason {reason}] [--dry-run{dryRun:}]",
    ("GET", "/v1/admin/alerts"): "alerts [--all{all:}]",
    ("GET", "/v1/admin/process"): "process",
    ("GET", "/v1/auth/whoami"): "auth whoami",
}

_WORD = re.compile(r"\{(\w+)(\.1|\.2|\.\+|:|!|=\w+)?\}")
_PART = re.compile(r" ?\[([^\]]*)\]|\{[^}]*\}")


def command_of(method: str, path: str, names: Mapping[str, str], query: Mapping[str, str], body: Any) -> str | None:
    """The command line that makes the call; None where there is none."""
    template = COMMANDS.get((method, path))
    if template is None:
        return None
    given = {**names, **query, **_members(body), **_lists(method, path, body)}

    def part(match: re.Match[str]) -> str:
        """Of a template: a word, or what is in brackets, which is there where its words are. Values are put in once: none is taken for a word."""
        inner = match[1]
        if inner is None:
            return _WORD.sub(lambda word: _value(given, word), match[0])
        each = next((word for word, how in _WORD.findall(inner) if how == ".+"), None)
        if each is not None:
            return "".join(f" {_WORD.sub(lambda _, item=item: _quoted(item), inner)}" for item in given.get(each, ()))
        if not all(_holds(given, *word) for word in _WORD.findall(inner)):
            return ""
        return " " + _WORD.sub(lambda word: _value(given, word), inner)

    return "basalt " + _PART.sub(part, template)


def _value(given: Mapping[str, Any], match: re.Match[str]) -> str:
    name, how = match.groups()
    if how in (":", "!") or (how or "").startswith("="):
        return ""
    return _quoted(given[name] if how is None else str(given[name]).partition(":")[0 if how == ".1" else 2])


def _holds(given: Mapping[str, Any], word: str, part: str) -> bool:
    """Tell whether an optional part is there, by one of its words."""
    if part.startswith("="):
        return given.get(word) == part[1:]
    return (word in given) != (part == "!")


def _members(body: Any) -> Mapping[str, Any]:
    if isinstance(body, msgspec.Struct):
        body = msgspec.structs.asdict(body)
    return {name: value for name, value in body.items() if value not in (None, b"")} if isinstance(body, dict) else {}


def _lists(method: str, path: str, body: Any) -> Mapping[str, Any]:
    """Words that a body has in other forms than a command: properties of topics, and the one record of a publish."""
    if not isinstance(body, dict):
        return {}
    if path.startswith(TOPIC) and method in ("PUT", "PATCH"):
        return {
            "property": [f"{name}={value}" for name, value in body.items() if value is not None],
            "unset": [name for name, value in body.items() if value is None],
        }
    if path == f"{TOPIC}/records" and len(body.get("records", ())) == 1:
        (record,) = body["records"]
        found = {name: value for name, value in record.items() if name in ("payload", "key", "ttlMs")}
        if "payloadBase64" in record:
            found["payload"] = b64decode(record["payloadBase64"])
        return {**found, "header": [f"{each['name']}={each['value']}" for each in record.get("headers", ())]}
    return {}


def _quoted(value: object) -> str:
    """A word of a command line, or several; bytes that are no text in the quotes that shells have for them."""
    if isinstance(value, tuple):
        return " ".join(map(_quoted, value))
    if isinstance(value, bytes):
        try:
            return shlex.quote(value.decode("utf-8"))
        except UnicodeDecodeError:
            return "$'" + "".join(f"\\x{byte:02x}" for byte in value) + "'"
    return shlex.quote(str(value))
