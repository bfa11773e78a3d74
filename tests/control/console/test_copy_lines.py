"""The commands that pages show are commands: each is one that the command line takes as it is written."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from basalt.api.bodies.access import GrantRequest, QuotaRule, Rights, RoleRequest, TokenRequest
from basalt.api.bodies.operations import CompactionRequest
from basalt.cli.root import root
from basalt.console.copy_lines import COMMANDS, command_of
from basalt.http.app import OPERATIONS

ID = "0123456789abcdef0123456789abcdef"
VALUES = {
    "transaction": ID, "session": "import", "namespace": "shop", "table": "stock", "state": "open", "owner": "a b", "topic": "shop:orders",
    "olderThanMs": "5", "after": ID, "limit": "7", "reason": "it's gone", "dryRun": "true", "start": b"\xff\x00",
    "group": "billing", "mode": "keyed", "key": "header:page",
    "memberMs": 30_000, "claimMs": 60_000, "unackedMax": 10, "attemptsMax": 0, "retryDelayMs": 1_000, "retryDelayMsMax": 5_000,
    "deadLetterTopic": "orders-dead", "expireMs": 60_000,
    "contains": "or'd", "deleted": "true", "sort": "rate", "descending": "true", "figures": "true", "message": "ab" * 20, "from": "-1h",
    "back": "9", "isolation": "uncommitted",
    "job": "stats", "region": "1588230740", "regions": ("a1", "b2"), "cause": "no report", "show": "idle",
    "writePointer": "17", "sinceMs": 17,
    "to": "2", "act": "grant", "principal": "token:a", "target": "x y", "verb": "read", "resource": "topic:shop:*", "active": "true",
    "name": "etl", "ttlMs": "86400000", "only": (Rights(("read", "write"), "topic:shop:*"),), "networks": ("10.0.0.0/8", "::1"), "note": "a;b",
    "token": ID[:16], "overlapMs": "0", "subject": "token:a~1b", "unusedDays": "30", "verbs": ("observe", "read"), "grant": ID[:16],
    "role": "billing", "members": ("token:a", "jwt-group:b c"), "requestsPerS": "5", "topics": "off",
}  # fmt: skip
POINTED = {**VALUES, "after": "17"}  # where a page begins behind a write pointer
TIMED = {**VALUES, "from": "1"}  # where it is a time and no position

BODIES = {"/v1/admin/backups": ("name",), "/v1/admin/prune/restore": ("sinceMs",)}  # what a call never goes without


def taken(line: str) -> dict[str, object]:
    """The arguments of the command that the line runs; a usage error where it is none."""
    program, *arguments = shlex.split(line)
    assert program == "basalt"
    command: click.Command = root
    context = command.make_context(program, arguments)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert name is not None
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)
    return context.params


@pytest.mark.parametrize(("method", "path"), [key for key, template in COMMANDS.items() if template])
@pytest.mark.parametrize("given", [{}, VALUES])
def test_every_line_is_a_command(method, path, given):
    given = POINTED if given and path.startswith("/v1/admin/prune") else given
    given = TIMED if given and path == "/v1/admin/audit" else given
    always = re.sub(r"\[[^\]]*\]", "", COMMANDS[method, path] or "")
    names = {name: VALUES[name] for name in VALUES if f"{{{name}}}" in path or re.search(rf"\{{{name}\b", always)}
    if path.endswith("/groups/{group}/messages"):
        given = {**given, "state": "parked"}
    if path.endswith("/seek"):
        given = {**given, "to": "-1h"}
    if path.endswith("/invalid"):
        given = {**given, "after": "17"}
    if given and path == "/v1/admin/groups":
        given = {**given, "sort": "lag"}
    line = command_of(method, path, names, given, None)
    assert line is not None
    taken(line)


def test_every_line_belongs_to_a_call():
    assert set(COMMANDS) <= {(operation.method, operation.path) for operation in OPERATIONS}


def test_a_line_has_what_was_asked_and_nothing_else():
    path = "/v1/admin/transactions"
    line = command_of("GET", path, {}, {"owner": "a b", "topic": "shop:orders", "olderThanMs": "5"}, None)
    assert line == "basalt tx list --owner 'a b' --namespace shop --topic orders --older-than 5ms"
    assert command_of("GET", path, {}, {}, None) == "basalt tx list"
    assert command_of("GET", "/v1/admin/tables", {}, {}, None) == "basalt table list --all-namespaces"
    assert command_of("GET", "/v1/admin/tables", {}, {"namespace": "a"}, None) == "basalt table list --namespace a"


TOPIC = "/v1/namespaces/{namespace}/topics/{topic}"
NAMES = {"namespace": "shop", "topic": "orders"}


def test_properties_are_options_and_those_that_go_back_to_their_defaults_are_unset():
    line = command_of(
        "PATCH", f"{TOPIC}/properties", NAMES, {}, {"ttl": "60", "label.a": "{namespace} x", "tasks": None}
    )
    assert line is not None
    assert line.endswith("--property ttl=60 --property 'label.a={namespace} x' --unset tasks")
    taken(line)


def test_a_record_that_is_published_is_in_the_line_whatever_its_bytes():
    record = {"payloadBase64": "LWIAYQ==", "key": "-k", "headers": [{"name": "a", "value": "b c"}], "ttlMs": 5}
    line = command_of("POST", f"{TOPIC}/records", NAMES, {}, {"records": [record]})
    assert line == "basalt publish orders --namespace shop --key -k --header 'a=b c' --ttl 5ms -- '-b\0a'"
    record = {"payloadBase64": "/wA="}
    line = command_of("POST", f"{TOPIC}/records", NAMES, {}, {"records": [record]})
    assert line == r"basalt publish orders --namespace shop -- $'\xff\x00'"


def test_several_words_and_words_of_one_value_are_written_as_such():
    path = "/v1/admin/prune/compact"
    assert command_of("POST", path, {}, {}, CompactionRequest(("a1", "b 2"))) == "basalt prune compact a1 'b 2'"
    assert command_of("POST", path, {}, {}, CompactionRequest()) == "basalt prune compact"
    path = "/v1/admin/prune/regions"
    shown = [command_of("GET", path, {}, {"show": show}, None) for show in ("idle", "blocking", "all")]
    assert shown == ["basalt prune regions --idle", "basalt prune regions --blocking", "basalt prune regions"]


def test_hostile_words_stay_one_word():
    names = {"session": "a; rm -rf ~ 'b' $(c) \n"}
    line = command_of("GET", "/v1/transactions/sessions/{session}", names, {}, None)
    assert line is not None
    assert shlex.split(line)[-1] == names["session"]


def test_the_members_of_a_body_are_words_of_the_line():
    only = (Rights(("observe", "read"), "topic:shop:a b"),)
    asked = TokenRequest("etl", None, only, ("10.0.0.0/8", "::1"), "it's")
    line = command_of("POST", "/v1/admin/tokens", {}, {}, asked)
    assert line is not None
    assert shlex.split(line)[1:] == [
        *("token", "create", "etl", "--ttl", "never", "--only", "observe,read topic:shop:a b"),
        *("--network", "10.0.0.0/8", "--network", "::1", "--note", "it's"),
    ]
    grant = command_of("POST", "/v1/admin/grants", {}, {}, GrantRequest("token:a", ("read", "write"), "topic:shop:*"))
    assert grant == "basalt grant add token:a read,write 'topic:shop:*'"
    role = command_of("PUT", "/v1/admin/roles/{role}", {"role": "b"}, {}, RoleRequest(("token:a", "jwt-group:b c")))
    assert role == "basalt role set b token:a 'jwt-group:b c'"
    emptied = command_of("PUT", "/v1/admin/roles/{role}", {"role": "b"}, {}, RoleRequest(()))
    assert emptied == "basalt role set b --no-members"
    rule = QuotaRule(requests_per_s=5, topics="off")
    quota = command_of("PUT", "/v1/admin/quotas/{subject}", {"subject": "krb:a~1b~0"}, {"dryRun": "true"}, rule)
    assert quota == "basalt quota set 'krb:a/b~' --requests-per-s 5 --topics off --dry-run"


def test_a_value_that_looks_like_a_word_of_the_template_is_put_in_as_it_is():
    hostile = "{note}[--reason {reason}]{name}"
    asked = TokenRequest("etl", 1_000, (Rights(("read",), hostile),), (), "'; id #")
    line = command_of("POST", "/v1/admin/tokens", {}, {"reason": hostile}, asked)
    assert line is not None
    assert shlex.split(line)[6:] == ["--only", f"read {hostile}", "--note", "'; id #", "--reason", hostile]
