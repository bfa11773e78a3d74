"""Everything that is wrong with a command line: exit code 2, one line that says what, nothing on standard output."""

from __future__ import annotations

import pytest

ID = "00" * 20
MANY = "x" * 5_000

# arguments, a part of what is said
BAD = [
    (["topc", "list"], "did you mean `basalt topic`?"),
    (["topic", "crate", "orders"], "did you mean `basalt topic create`?"),
    (["zzzzzz"], "see `basalt --help`"),
    (["--ulr", "http://x", "topic", "list"], "did you mean --url?"),
    (["topic", "list", "--nmaespace", "x"], "or --namespace?"),
    (["consume", "orders", "--form", "hex"], "--format or --from"),
    (["consume", "orders", "--limit"], "'--limit' requires an argument"),
    (["consume", "orders", "--limit", "0"], "0 is not in the range"),
    (["consume", "orders", "--limit", "ten"], "'ten' is not a valid integer"),
    (["consume", "orders", "--limit", "1", "--limit", "2"], "option --limit is given 2 times"),
    (["topic", "list", "--url", "http://a:1", "--url", "http://b:1"], "option --url is given 2 times"),
    (["consume", "orders", "-o", "xml"], "'xml' is not one of"),
    (["consume", "orders", "--isolation", "snapshot"], "'snapshot' is not one of"),
    (["consume", "orders", "--from", "yesterday"], "'yesterday' is not a position"),
    (["consume", "orders", "--from", ""], "is empty"),
    (["consume", "orders", "--from", "-1"], "has no unit"),
    (["consume", "orders", "--from", "@2026-02-30T00:00:00Z"], "is no date"),
    (["consume", "orders", "--from", "@2026-01-01"], "without a time of day"),
    (["consume", "orders", "--from", ID[:-1]], "39 hex digits"),
    (["consume", "orders", "--from", MANY], "longer than 100 characters"),
    (["consume", "orders", "--from", "\x1b[31m"], "is not a position"),
    (["consume", "orders", "--after", "12"], "40 hex digits"),
    (["consume", "orders", "--after", ID, "--from", "start"], "--from and --after"),
    (["consume", "orders", "--from", "now", "--to", "-1h"], "is not before"),
    (["consume", "orders", "--from", "end", "--to", "start"], "is not before"),
    (["consume", "orders", "--format", "raw", "-o", "json"], "--format raw"),
    (["consume"], "missing argument 'TOPIC'"),
    (["consume", ""], "the name is empty"),
    (["group", "create", "orders", ""], "the name is empty"),
    (["consume", "orders", "--group", ""], "the name is empty"),
    (["topic", "list", "--namespace", ""], "the name is empty"),
    (["consume", "orders", "invoices"], "unexpected extra argument"),
    (["publish", "orders"], "no message to publish"),
    (["publish", "orders", "a", "--file", "b"], "both as arguments and with --file"),
    (["publish", "orders", "a", "--lines"], "--lines needs --file"),
    (["publish", "orders", "a", "--batch", "65537"], "65537 is not in the range"),
    (["publish", "orders", "a", "--header", "novalue"], "is not NAME=VALUE"),
    (["publish", "orders", "a", "--header", "=x"], "is not NAME=VALUE"),
    (["publish", "orders", "a", "--ttl", "5"], "'5' is not a duration"),
    (["publish", "orders", "a", "--ttl", "0s"], "shorter or longer"),
    (["publish", "orders", "a", "--ttl", "999999999999999999w"], "shorter or longer"),
    (["publish", "orders", "a", "--tx", "one"], "not the id of a transaction"),
    (["topic", "create", "orders", "--ttl", "1500ms"], "whole seconds"),
    (["topic", "create", "orders", "--spread", "-1"], "'-1' is not a whole number from 1 to 256"),
    (["topic", "create", "orders", "--on-invalid", "keep"], "'keep' is not one of"),
    (["topic", "create", "orders", "--ttl", "1h", "--property", "ttl=5"], "property ttl is given 2 times"),
    (["topic", "create", "orders", "--property", "namespace=x"], "namespace is not a property"),
    (["topic", "create", "orders", "--property", "ttll=5"], "ttll is no property of topics; did you mean ttl?"),
    (["topic", "create", "orders", "--property", "owner=x", "--dry-run"], "as in label.owner"),
    (["topic", "create", "orders", "--ttl", "1 day"], "'1 day' is not whole seconds from 1 to 3155760000, a duration"),
    (["topic", "update", "orders"], "nothing to change"),
    (["topic", "update", "orders", "--ttl", "1h", "--unset", "ttl"], "both given and unset"),
    (["tx", "show", "0"], "not the id of a transaction"),
    (["tx", "show", "-5"], "no such option -5"),
    (["tx", "commit", "1" * 20], "not the id of a transaction"),
    (["tx", "abort", "17"], "add --yes"),
    (["tx", "invalidate", "17"], "add --yes"),
    (["tx", "begin", "--expires", "30"], "not a duration"),
    (["message", "show", "orders", "zz" * 20], "40 hex digits"),
    (["message", "peek", "orders", "--limit", "1001"], "not in the range"),
    (["job", "history", "retention", "--limit", "0"], "not in the range"),
    (["bench", "--messages", "0"], "not in the range"),
    (["bench", "--seconds", "nan"], "'nan' is not a valid integer"),
    (["serve"], "--data is missing"),
    (["serve", "--data", "/nowhere/at/all", "--port", "65536"], "not in the range"),
    (["serve", "--data", "/nowhere/at/all", "--set", "server.data=/nowhere/else"], "server.data is given twice"),
    (["serve", "--data", "/nowhere/at/all", "--host", "a b"], "not a host name or address"),
    (["serve", "--data", "/nowhere/at/all", "--set", "store.kind=rock"], "not one of memory, rocks, hbase"),
    (["serve", "--data", "/nowhere/at/all", "--set", "storekind=rocks"], "did you mean store.kind?"),
    (["serve", "--data", "/nowhere/at/all", "--config", "/nowhere/basalt.toml"], "No such file"),
    (["config", "show", "--server", "--set", "store.kind=memory"], "does not go with"),
    (["config", "check", "/nowhere/basalt.toml"], "No such file"),
    (["config", "check", "/etc/hostname", "--config", "/etc/hostname"], "give one of them"),
    (["doctor", "--no-server"], "nothing to check"),
    (["completion", "csh"], "'csh' is not one of"),
    (["profile", "add", "a b", "--url", "http://x"], "letters, digits"),
    (["profile", "add", "dev", "--url", "ftp://x"], "is not http://HOST:PORT"),
    (["profile", "add", "dev", "--url", "http://u:p@x"], "keeps no passwords"),
    (["profile", "add", "dev", "--url", "http://x\x1b[0m"], "is not http://HOST:PORT"),
    (["profile", "add", "dev"], "missing option '--url'"),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD, ids=[" ".join(arguments)[:60] for arguments, _ in BAD])
def test_a_wrong_command_line_is_told_on_one_line_with_exit_code_2(run, arguments, expected):
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err
    assert ran.err.startswith("basalt: ")
    assert ran.err.endswith("\n")
    assert ran.err[:-1].isprintable()
    assert len(ran.err) < 1_000


def test_no_arguments_are_answered_with_help_on_standard_error(run):
    for arguments in ([], ["topic"], ["explain"]):
        ran = run(*arguments)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("Usage: basalt")
