"""The command that makes a call, by the call's method and path: shown on every panel, to be copied.

A word in braces stands for a name in the path, a query parameter or a member of the body, of a list for each of its words; with ., behind it for all
of them with commas between; with .+ its part in brackets is there once for each; with .1 or .2 for what is before or behind its colon; with .~ for a
subject as people write it; with a colon behind it for nothing: it is the condition of
an option without a value; with an exclamation mark, too, where the option is there without the word, and with an equals sign where the word is
just that. A part in brackets is there where its words are.
A test runs each line that a page shows, and compares what it answers with the page.
"""

from __future__ import annotations

import re
import shlex
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import msgspec

from basalt.api.bodies.access import Rights

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
    ("GET", "/v1/admin/audit"): (
        "audit list [--from @{from}] [--to @{to}] [--act {act}] [--principal {principal}] [--target {target}] [--after {after}]"
        " [--limit {limit}]"
    ),
    ("GET", "/v1/admin/settings"): "config show --server --origin",
    ("POST", "/v1/auth/check"): "auth check {verb} {resource} [--principal {principal}]",
    ("GET", "/v1/admin/principals"): "auth principals [--limit {limit}]",
    ("GET", "/v1/admin/refusals"): "auth would-refuse [--limit {limit}]",
    ("GET", "/v1/admin/tokens"): (
        "token list [--all{active!}] [--principal {principal}] [--after {after}] [--limit {limit}]"
    ),
    ("POST", "/v1/admin/tokens"): (
        "token create {name} [--ttl {ttlMs}ms] [--ttl never{ttlMs!}] [--only {only.+}] [--network {networks.+}] [--note {note}]"
        " [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("GET", "/v1/admin/tokens/{token}"): "token show {token}",
    ("DELETE", "/v1/admin/tokens/{token}"): "token revoke {token} [--reason {reason}] [--dry-run{dryRun:}]",
    ("POST", "/v1/admin/tokens/{token}/rotate"): (
        "token rotate {token} [--overlap {overlapMs}ms] [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("GET", "/v1/admin/grants"): (
        "grant list [--subject {subject}] [--unused-days {unusedDays}] [--after {after}] [--limit {limit}]"
    ),
    ("POST", "/v1/admin/grants"): "grant add {subject} {verbs.,} {resource} [--reason {reason}] [--dry-run{dryRun:}]",
    ("DELETE", "/v1/admin/grants/{grant}"): "grant remove {grant} [--reason {reason}] [--dry-run{dryRun:}]",
    ("GET", "/v1/admin/roles"): "role list",
    ("GET", "/v1/admin/roles/{role}"): "role show {role}",
    (
        "PUT",
        "/v1/admin/roles/{role}",
    ): "role set {role} [{members}] [--no-members{members!}] [--reason {reason}] [--dry-run{dryRun:}]",
    ("DELETE", "/v1/admin/roles/{role}"): "role remove {role} [--reason {reason}] [--dry-run{dryRun:}]",
    ("GET", "/v1/admin/quotas"): "quota list",
    ("GET", "/v1/admin/quotas/{subject}"): "quota show {subject.~}",
    ("PUT", "/v1/admin/quotas/{subject}"): (
        "quota set {subject.~} [--requests-per-s {requestsPerS}] [--publish-bytes-per-s {publishBytesPerS}]"
        " [--fetch-bytes-per-s {fetchBytesPerS}] [--open-transactions {openTransactions}] [--sessions {sessions}]"
        " [--topics {topics}] [--waiting-fetches {waitingFetches}] [--reason {reason}] [--dry-run{dryRun:}]"
    ),
    ("DELETE", "/v1/admin/quotas/{subject}"): "quota remove {subject.~} [--reason {reason}] [--dry-run{dryRun:}]",
    ("GET", "/openapi.json"): None,
    ("GET", "/v1/admin/jobs/{job}"): "job show {job}",
    ("GET", "/v1/admin/jobs/{job}/history"): "job history {job} [--limit {limit}]",
    ("POST", "/v1/admin/jobs/{job}/run"): "job run {job} [--reason {reason}] [--dry-run{dryRun:}]",
    ("POST", "/v1/admin/jobs/{job}/pause"): "job pause {job} [--reason {reason}] [--dry-run{dryRun:}]",
    ("POST", "/v1/admin/jobs/{job}/resume"): "job resume {job} [--reason {reason}] [--dry-run{dryRun:}]",
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
    ("GET", "/v1/cluster"): "cluster members",
    ("GET", "/v1/admin/cluster/shards"): "cluster shards",
    ("GET", "/v1/cluster/owners/{namespace}/{topic}"): "cluster owner {topic} --namespace {namespace}",
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
    ): "prune restore --since @{sinceMs} --yes [--reason {reason}] [--dry-run{dryRun:}]",
    ("GET", "/v1/admin/alerts"): "alerts [--all{all:}]",
    ("GET", "/v1/admin/process"): "process",
    ("GET", "/v1/auth/whoami"): "auth whoami",
}

_OPTIONAL = re.compile(r" ?\[([^\]]*)\]")
_WORD = re.compile(r"\{(\w+)(\.1|\.2|\.,|\.\+|\.~|:|!|=\w+)?\}")
_ESCAPED = re.compile(r"~([012])")
_ESCAPES = {"0": "~", "1": "/", "2": "\\"}  # of subjects in a path


def command_of(method: str, path: str, names: Mapping[str, str], query: Mapping[str, str], body: Any) -> str | None:
    """The command line that makes the call; None where there is none."""
    template = COMMANDS.get((method, path))
    if template is None:
        return None
    given = {**names, **query, **_members(body), **_lists(method, path, body)}
    pieces, at = ["basalt "], 0
    # Each part is filled once: a value that was put in may look like a word in braces.
    for match in _OPTIONAL.finditer(template):
        pieces += (_filled(template[at : match.start()], given), _option(match[1], given))
        at = match.end()
    return "".join((*pieces, _filled(template[at:], given)))


def form_of(method: str, path: str) -> str:
    """The command of a call with its words in braces, for people to fill in; empty where there is none."""
    template = COMMANDS.get((method, path)) or ""
    return _WORD.sub(lambda match: "" if (match[2] or "")[:1] in (":", "!", "=") else f"{{{match[1]}}}", template)


def _option(part: str, given: Mapping[str, Any]) -> str:
    """A part in brackets: once, not at all, or once for each of a list."""
    words = _WORD.findall(part)
    each = next((word for word, how in words if how == ".+"), None)
    if each is not None:
        return "".join(f" {_filled(part, {each: item})}" for item in given.get(each, ()))
    return f" {_filled(part, given)}" if all(_holds(given, *word) for word in words) else ""


def _filled(part: str, given: Mapping[str, Any]) -> str:
    """A part with its words."""

    def value(match: re.Match[str]) -> str:
        word, how = match[1], match[2]
        if how in (":", "!") or (how or "").startswith("="):
            return ""
        found = given.get(word, "")  # what the visitor left empty, and the call refuses
        if how in (".1", ".2"):
            found = str(found).partition(":")[0 if how == ".1" else 2]
        elif how == ".~":
            found = _ESCAPED.sub(lambda each: _ESCAPES[each[1]], str(found))
        elif how == ".,":
            found = ",".join(found)
        return _quoted(found)

    return _WORD.sub(value, part)


def _holds(given: Mapping[str, Any], word: str, part: str) -> bool:
    """Tell whether an optional part is there, by one of its words."""
    if part.startswith("="):
        return given.get(word) == part[1:]
    return (word in given) != (part == "!")


def _members(body: Any) -> Mapping[str, Any]:
    """The members of a body that say something, under the names that they are sent by."""
    if isinstance(body, msgspec.Struct):
        body = {
            name: getattr(body, each)
            for each, name in zip(body.__struct_fields__, body.__struct_encode_fields__, strict=True)
        }
    return (
        {name: value for name, value in body.items() if value not in (None, b"", "", (), [])}
        if isinstance(body, dict)
        else {}
    )


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
    if isinstance(value, Rights):
        value = f"{','.join(value.verbs)} {value.resource}"
    if isinstance(value, tuple | list):
        return " ".join(map(_quoted, value))
    if isinstance(value, bytes):
        try:
            return shlex.quote(value.decode("utf-8"))
        except UnicodeDecodeError:
            return "$'" + "".join(f"\\x{byte:02x}" for byte in value) + "'"
    return shlex.quote(str(value))
