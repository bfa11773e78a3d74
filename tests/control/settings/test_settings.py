"""Settings: precedence, origins, and a clear refusal for everything that is wrong."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from basalt.errors import InvalidSettingError
from basalt.settings import DayWindow, JobsSettings, Settings, effective, load_settings, read_settings
from basalt.settings.reference import settings_file, settings_page
from basalt.settings.tree import QUOTA_MAX, keys

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "basalt.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_without_any_source_every_setting_has_its_default():
    settings = load_settings()
    assert settings == Settings()
    assert settings.store.kind == "rocks"
    assert settings.messaging.fetch_messages_max == 10_000
    assert settings.transactions.lifetime_ms_max == 90_000_000
    assert settings.thrift.port is None
    assert {row.origin for row in effective(settings)} == {"default"}


def test_a_flag_goes_before_the_environment_the_environment_before_the_file(tmp_path):
    file = written(tmp_path, '[store]\nkind = "memory"\nsync = false\n[log]\nlevel = "error"\nformat = "text"\n')
    environment = {"BASALT__STORE__SYNC": "true", "BASALT__LOG__LEVEL": "warning", "HOME": "/root"}
    settings = load_settings(["log.level=debug"], environment, file)
    assert (settings.store.kind, settings.store.sync, settings.log.level, settings.log.format) == (
        "memory",
        True,
        "debug",
        "text",
    )
    shown = {row.key: (row.value, row.origin) for row in effective(settings)}
    assert shown["store.kind"] == ("memory", f"file {file}")
    assert shown["store.sync"] == ("true", "environment BASALT__STORE__SYNC")
    assert shown["log.level"] == ("debug", "--set")
    assert shown["http.flat_topics"] == ("false", "default")


def test_the_place_of_a_server_is_a_matter_of_settings(tmp_path):
    file = written(tmp_path, '[server]\ndata = "/var/lib/basalt"\nhost = "::1"\nport = 0\n')
    server = load_settings([], {"BASALT__SERVER__HOST": "broker-1.example"}, file).server
    assert (server.data, server.host, server.port) == ("/var/lib/basalt", "broker-1.example", 0)


def test_a_job_name_with_a_dash_is_written_alike_in_flags_and_files_and_with_an_underscore_in_the_environment(tmp_path):
    file = written(tmp_path, '[jobs.log-snapshot]\nwindow = "22:00-04:30"\n')
    environment = {"BASALT__JOBS__LOG_SNAPSHOT__ENABLED": "false"}
    job = load_settings(["jobs.log-snapshot.interval_ms=2h"], environment, file).jobs.log_snapshot
    assert (job.interval_ms, job.enabled, job.window) == (7_200_000, False, DayWindow(22 * 60, 4 * 60 + 30))


def test_every_job_is_found_by_the_name_its_keys_have():
    named = {name.split(".")[1] for name in keys() if name.startswith("jobs.")}
    assert named == {each.name.replace("_", "-") for each in fields(JobsSettings)}


def test_a_list_is_one_in_a_file_and_words_with_commas_elsewhere(tmp_path):
    assert Settings().auth.kinds == ()
    in_a_file = load_settings([], {}, written(tmp_path, '[auth]\nkinds = ["none"]\n'))
    assert in_a_file.auth.kinds == ("none",)
    assert load_settings(["auth.kinds=none"]).auth.kinds == ("none",)
    assert load_settings([], {"BASALT__AUTH__KINDS": "none"}).auth.kinds == ("none",)
    assert load_settings(["auth.kinds=[]"], {"BASALT__AUTH__KINDS": "none"}).auth.kinds == ()
    shown = {row.key: row.value for row in effective(in_a_file)}
    assert shown["auth.kinds"] == "none"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024", 1024), ("64KiB", 65_536), ("10 MiB", 10 * 2**20), ("1GiB", 2**30), ("2048B", 2048)],
)
def test_sizes_take_binary_units(text, value):
    settings = load_settings([f"http.body_bytes_max={text}", "messaging.queue_bytes_max=16GiB"])
    assert settings.http.body_bytes_max == value


@pytest.mark.parametrize(
    ("text", "value"), [("1500", 1500), ("900ms", 900), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000)]
)
def test_durations_take_units_of_time(text, value):
    settings = load_settings([f"transactions.timeout_ms_max={text}", "transactions.timeout_ms_default=100"])
    assert settings.transactions.timeout_ms_max == value


def test_a_window_may_span_midnight():
    late, noon = DayWindow(22 * 60, 2 * 60), DayWindow(11 * 60, 13 * 60)
    hour = 3_600_000
    assert [late.contains(h * hour) for h in (21, 22, 23, 24, 25, 26)] == [False, True, True, True, True, False]
    assert [noon.contains(h * hour) for h in (10, 11, 12, 13, 36)] == [False, True, True, False, True]


def test_a_value_may_be_kept_in_a_file_of_its_own_and_is_then_never_shown(tmp_path):
    secret = tmp_path / "prefix"
    secret.write_text("hush\n")
    settings = load_settings([], {"BASALT__STORE__HBASE__PREFIX_FILE": str(secret)})
    assert settings.store.hbase.prefix == "hush"
    assert not [row for row in effective(settings) if "hush" in row.value + row.origin]
    secret.write_text("hu sh")
    with pytest.raises(InvalidSettingError) as caught:
        load_settings([], {"BASALT__STORE__HBASE__PREFIX_FILE": str(secret)})
    assert "hu sh" not in str(caught.value)


def test_several_names_are_a_list_in_a_file_and_have_commas_between_them_elsewhere(tmp_path):
    lines = '[http]\nhosts = ["Basalt", "basalt.Example.", "basalt"]\ncors_origins = ["https://App.example:443", "http://[::1]:80"]\n'
    from_file = load_settings([], {}, written(tmp_path, lines))
    elsewhere = ["http.cors_origins=https://app.example, http://[::1]"]
    from_elsewhere = load_settings(elsewhere, {"BASALT__HTTP__HOSTS": "basalt,basalt.example"})
    for settings in (from_file, from_elsewhere):
        assert settings.http.hosts == ("basalt", "basalt.example")
        assert settings.http.cors_origins == ("https://app.example", "http://[::1]")
    shown = {row.key: row.value for row in effective(from_file)}
    assert shown["http.hosts"] == "basalt,basalt.example"
    assert load_settings([f"http.hosts={shown['http.hosts']}"]).http.hosts == from_file.http.hosts
    kind = keys()["http.hosts"].kind
    assert kind.read(tomllib.loads(f"a = {kind.toml(from_file.http.hosts)}")["a"]) == from_file.http.hosts
    assert load_settings(["http.hosts=off"], {}, written(tmp_path, "[http]\nhosts = []\n")).http.hosts == ()
    assert {row.key: row.value for row in effective(Settings())}["http.hosts"] == "off"


# flag, what the message must contain
BAD_FLAGS = [
    ("store.kind=", "store.kind"),
    ("store.kind=rock", "not one of memory, rocks, hbase"),
    ("store.kind=ROCKS", "not one of"),
    ("store.knd=rocks", "no setting 'store.knd'"),
    ("kind=rocks", "no setting 'kind'"),
    ("store=rocks", "is a section"),
    ("store.kind", "not KEY=VALUE"),
    ("=rocks", "not KEY=VALUE"),
    ("store.sync=yes", "neither true nor false"),
    ("store.sync=1", "neither true nor false"),
    ("store.sync=null", "neither true nor false"),
    ("store.hbase.buckets=0", "out of range: 1 to 256"),
    ("store.hbase.buckets=257", "out of range"),
    ("store.hbase.buckets=1.5", "not a whole number"),
    ("store.hbase.buckets=16MiB", "takes none"),
    ("store.hbase.thrift=gateway", "host:port"),
    ("server.data=", "a path"),
    ("server.host=", "a host name or address"),
    ("server.host=http://here", "a host name or address"),
    ("server.port=off", "not a whole number"),
    ("leader.url=gateway:4780", "http://host:port"),
    ("leader.url=http://user@gateway:4780", "http://host:port"),
    ("leader.lease_ms=10", "1s to 1m"),
    ("store.hbase.thrift=gateway:0", "port"),
    ("store.hbase.prefix=a b", "letters, digits"),
    ("http.body_bytes_max=10MB", "did you mean 10MiB"),
    ("http.body_bytes_max=10mib", "did you mean 10MiB"),
    ("http.body_bytes_max=-1", "out of range"),
    ("http.body_bytes_max=\uff11\uff10", "not a whole number"),
    ("http.body_bytes_max=1e6", "'1e6' is not a whole number"),
    ("http.body_bytes_max=99999999999999999999", "not a whole number"),
    ("transactions.timeout_ms_default=30sec", "did you mean 30s"),
    ("transactions.timeout_ms_default=0", "out of range"),
    ("transactions.manager=tephra", "builtin, external"),
    ("thrift.port=65536", "0 to 65535, off"),
    ("thrift.port=none", "0 to 65535, off"),
    ("thrift.zookeeper=zk", "is not host:port, several with commas between them"),
    ("thrift.zookeeper=a:1,b:0", "is not host:port, several with commas between them"),
    ("thrift.zookeeper=a:1,,b:2", "is not host:port, several with commas between them"),
    ("thrift.zookeeper=a:1/", "is not host:port, several with commas between them"),
    ("thrift.zookeeper=a:1/x//y", "is not host:port, several with commas between them"),
    ("thrift.zookeeper=a:1/../x", "is not host:port, several with commas between them"),
    ("thrift.advertise=here", "host:port, off"),
    ("http.hosts=", "'' in it, which is not a host name"),
    ("http.hosts=a,,b", "'' in it, which is not a host name"),
    ("http.hosts=*", "'*' in it, which is not a host name"),
    ("http.hosts=*.example.org", "is not a host name"),
    ("http.hosts=.example.org", "is not a host name"),
    ("http.hosts=basalt:4780", "has no scheme, port or *"),
    ("http.hosts=http://basalt", "has no scheme, port or *"),
    ("http.hosts=ba salt", "is not a host name"),
    ("http.hosts=::1", "is not a host name"),
    ("http.cors_origins=*", "'*' in it, which is not http://host:port"),
    ("http.cors_origins=null", "'null' in it"),
    ("http.cors_origins=app.example", "is not http://host:port"),
    ("http.cors_origins=https://app.example/", "has no path, user or *"),
    ("http.cors_origins=https://*.app.example", "has no path, user or *"),
    ("http.cors_origins=https://user@app.example", "has no path, user or *"),
    ("http.cors_origins=https://app.example:65536", "is not http://host:port"),
    ("http.cors_origins=https://[:::]", "is not http://host:port"),
    ("http.cors_origins=ftp://app.example", "is not http://host:port"),
    ("jobs.log_snapshot.enabled=true", "no setting 'jobs.log_snapshot.enabled'"),
    ("jobs.compact.interval_ms=1s", "no setting"),
    ("jobs.stats.interval_ms=1x", "units are ms, s, m, h, d"),
    ("jobs.stats.window=22:00", "HH:MM-HH:MM"),
    ("jobs.stats.window=24:00-25:00", "no clock shows"),
    ("jobs.stats.window=10:00-10:00", "is empty"),
    ("log.level=trace", "debug, info, warning, error"),
    ("auth.kinds=", "has '' in it, which this version does not know"),
    ("auth.kinds=password", "has 'password' in it, which this version does not know"),
    ("auth.kinds=none,password", "has 'password' in it, which this version does not know"),
    ("auth.kinds=None", "has 'None' in it"),
    ("auth.kinds=off", "has 'off' in it"),
    ("auth.kerberos.realms=EXAMPLE.ORG,", "has '' in it, which is not a realm"),
    ("auth.kerberos.realms=*", "'*' in it, which is not a realm"),
    ("auth.kerberos.realms=ada@EXAMPLE.ORG", "is not a realm"),
    ("auth.kerberos.service=HTTP/", "is not HTTP, or a whole principal"),
    ("auth.kerberos.service=HTTP/a.example.org", "is not HTTP, or a whole principal"),
    ("auth.kerberos.service=HTTP@a.example.org", "is not HTTP, or a whole principal"),
    ("auth.kerberos.binding=true", "off, accept, require"),
]


KERBEROS = ("auth.kinds=kerberos", "auth.kerberos.keytab=/etc/basalt/http.keytab", "auth.kerberos.realms=EXAMPLE.ORG")


@pytest.mark.parametrize("missing", ["auth.kerberos.keytab", "auth.kerberos.realms"])
def test_kerberos_takes_a_keytab_and_the_realms_that_count(missing: str):
    settings = load_settings(KERBEROS).auth.kerberos
    assert (settings.keytab, settings.realms) == ("/etc/basalt/http.keytab", ("EXAMPLE.ORG",))
    assert (settings.service, settings.binding) == ("HTTP", "accept")
    with pytest.raises(InvalidSettingError, match=f"setting {missing} is not given, and auth.kinds has kerberos"):
        load_settings([flag for flag in KERBEROS if not flag.startswith(missing)])
    assert load_settings(KERBEROS[1:2]).auth.kerberos.realms == ()  # without the kind nothing is asked for


def test_a_service_may_be_a_whole_principal_and_realms_keep_their_case():
    loaded = load_settings(["auth.kerberos.service=HTTP/a.example.org@EXAMPLE.ORG", "auth.kerberos.realms=A.b, B"])
    assert loaded.auth.kerberos.service == "HTTP/a.example.org@EXAMPLE.ORG"
    assert loaded.auth.kerberos.realms == ("A.b", "B")


@pytest.mark.parametrize(("flag", "expected"), BAD_FLAGS)
def test_a_bad_flag_is_refused_with_key_value_reason_and_origin(flag, expected):
    with pytest.raises(InvalidSettingError) as caught:
        load_settings([flag])
    assert expected in str(caught.value)
    assert "--set" in str(caught.value)
    assert caught.value.hint


# file content, what the message must contain
BAD_FILES = [
    (b"[store]\nkind = 5\n", "'store.kind'"),
    (b'[store]\nkind = ""\n', "store.kind"),
    (b"[store]\nsync = 1\n", "neither true nor false (a number)"),
    (b"[store]\nkind = [1]\n", "a list"),
    (b"[store.kind]\nx = 1\n", "a table"),
    (b"store = 3\n", "is a section"),
    (b"[messaging]\nfetch_messages_max = true\n", "true or false, not a whole number"),
    (b"[messaging]\nfetch_messages_max = 1.0\n", "a fraction"),
    (b"[messaging]\nfetch_messages_max = 2026-01-01\n", "a date or time"),
    (b"[messaging]\nfetch_messages_max = nan\n", "a fraction"),
    (b"[messaging]\nfetch_messages_max = 0x" + b"f" * 5000 + b"\n", "out of range"),
    (b"[http]\nhosts = 1\n", "is a number, not a host name"),
    (b'[http]\nhosts = ["a", 1]\n', "has a number in it, not a host name"),
    (b'[http]\nhosts = [["a"]]\n', "has a list in it, not a host name"),
    (b'[http.hosts]\na = "b"\n', "a table"),
    (b"[messagin]\nfetch_messages_max = 1\n", "no setting 'messagin'"),
    (b'[store]\nkind = "rocks"\nkind = "memory"\n', "set twice"),
    (b"[store]\nsync = true\n[store]\nsync = false\n", "set twice"),
    (b"[store\n", "is not TOML"),
    (b"store: {kind: memory}\n", "is not TOML"),
    (b"[store]\nkind = null\n", "is not TOML"),
    (b"[store]\nkind = '\xff'\n", "not UTF-8: byte 0xff at offset 16"),
    (b"\xff\xfe[\x00", "not UTF-8"),
    (b"a = " + b"[" * 100_000, "Nested too deeply"),
    (b"[auth]\nkinds = [1]\n", "has a number in it, not a word"),
    (b"[auth]\nkinds = true\n", "true or false, not a word"),
    (b"[auth]\nkinds = [['none']]\n", "has a list in it, not a word"),
    (b"#" * (1024 * 1024 + 1), "longer than"),
]


@pytest.mark.parametrize(("content", "expected"), BAD_FILES)
def test_a_bad_file_is_refused_with_its_name_and_the_reason(tmp_path, content, expected):
    path = written(tmp_path, content)
    with pytest.raises(InvalidSettingError) as caught:
        load_settings([], {}, path)
    assert expected.strip("'") in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    for path, reason in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(InvalidSettingError, match=reason):
            load_settings([], {}, path)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"BASALT__STORE__KND": "rocks"}, "BASALT__STORE__KIND"),
        ({"BASALT__STORE__KIND": ""}, "from environment BASALT__STORE__KIND"),
        ({"BASALT__store__kind": "rocks"}, "BASALT__STORE__KIND"),
        ({"BASALT__STORE__KIND": "rocks", "BASALT__STORE__KIND_FILE": "/etc/hostname"}, "by both"),
        ({"BASALT__STORE__KIND_FILE": "/nowhere/at/all"}, "No such file"),
        ({"BASALT__STORE__KIND_FILE": "/"}, "Is a directory"),
    ],
)
def test_a_bad_environment_variable_is_refused(environment, expected):
    with pytest.raises(InvalidSettingError) as caught:
        load_settings([], environment)
    assert expected in f"{caught.value} {caught.value.hint}"


def test_a_key_given_twice_with_flags_is_refused():
    with pytest.raises(InvalidSettingError, match="given twice"):
        load_settings(["store.kind=memory", "store.kind=rocks"])


@pytest.mark.parametrize(
    "flags",
    [
        ["transactions.timeout_ms_default=11m"],
        ["transactions.timeout_ms_max=26h"],
        ["transactions.long_timeout_ms=26h"],
        ["http.body_bytes_max=65MiB"],
        ["store.kind=hbase"],
        ["store.hbase.principal=basalt@EXAMPLE.TEST"],
        ["store.hbase.keytab=/etc/basalt.keytab"],
        ["store.hbase.gateway_host=gateway.example.test"],
        ["store.hbase.sasl=auth-conf", "store.hbase.keytab=/etc/basalt.keytab"],
        ["store.hbase.sasl=auth", "store.hbase.keytab=/nowhere", "store.hbase.principal=basalt@EXAMPLE.TEST"],
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags):
    with pytest.raises(InvalidSettingError):
        load_settings(flags)


def test_every_problem_is_collected_not_just_the_first(tmp_path):
    file = written(tmp_path, "[store]\nkind = 1\nsync = 2\n")
    found = read_settings(["log.level=x"], {"BASALT__A": "b"}, file).problems
    assert [problem.field for problem in found] == ["store.kind", "store.sync", "BASALT__A", "log.level"]


TLS = ("tls.certificate=c.pem", "tls.key=k.pem")


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (("tls.certificate=c.pem",), "tls.key"),
        (("tls.key=k.pem",), "tls.certificate"),
        (("tls.hsts=true",), "tls.certificate"),
        (("tls.client=required", "tls.client_ca=ca.pem"), "tls.certificate"),
        ((*TLS, "tls.client=optional"), "tls.client_ca"),
        ((*TLS, "tls.client_ca=ca.pem"), "tls.client"),
        ((*TLS, "tls.client_crl=crl.pem"), "tls.client"),
        ((*TLS, "auth.kinds=token,cert"), "tls.client_ca"),
        (("auth.kinds=cert",), "tls.client_ca"),
    ],
)
def test_tls_that_is_half_given_is_refused_with_the_key_that_is_missing(flags, field):
    with pytest.raises(InvalidSettingError) as caught:
        load_settings(flags)
    assert caught.value.field == field
    assert f"setting {field} is not given" in caught.value.message
    assert caught.value.hint


def test_tls_that_is_given_as_a_whole_is_read():
    assert load_settings(TLS).tls.client == "off"
    given = load_settings(
        [*TLS, "tls.client=optional", "tls.client_ca=ca.pem", "auth.kinds=cert", "auth.cert.name=uri"]
    )
    assert (given.auth.cert.name, given.tls.client_ca, given.tls.client_crl) == ("uri", "ca.pem", None)


def test_the_file_that_init_writes_is_the_defaults_and_stays_valid_when_uncommented(tmp_path):
    text = settings_file()
    assert tomllib.loads(text).keys() == {
        "server", "auth", "tls", "store", "leader", "cluster", "http", "quota", "messaging", "producers", "transactions", "subscriptions", "thrift", "jobs",
        "log", "console",
    }  # fmt: skip
    assert load_settings([], {}, written(tmp_path, text)) == Settings()
    uncommented = "\n".join(line.removeprefix("# ") if " = " in line else line for line in text.splitlines())
    settings = load_settings([], {}, written(tmp_path, uncommented))
    assert settings == Settings()
    assert set(settings.origins) == set(keys())


def test_the_reference_page_is_written_from_the_table_of_keys():
    assert PAGE.read_text() == settings_page(), "run `make reference`"
    for name, key in keys().items():
        assert f"`{name}`" in PAGE.read_text()
        assert key.kind.help
        assert key.kind.read(key.kind.write(key.default)) == key.default


def test_no_environment_name_stands_for_two_things():
    names = [key.environment for key in keys().values()]
    assert len(set(names)) == len(names)
    assert not set(names) & {f"{name}_FILE" for name in names}


def _secret_file(path, mode=0o600, text="basalt_0011223344556677_secret\n"):
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_secret_comes_from_a_file_of_its_own_whichever_way_that_is_named(tmp_path):
    file = _secret_file(tmp_path / "bootstrap")
    settings_file = tmp_path / "basalt.toml"
    settings_file.write_text(f'[auth]\nbootstrap_token_file = "{file}"\n')
    for settings in (
        load_settings([], {"BASALT__AUTH__BOOTSTRAP_TOKEN_FILE": str(file)}),
        load_settings([f"auth.bootstrap_token_file={file}"]),
        load_settings([], {}, settings_file),
    ):
        assert settings.auth.bootstrap_token == "basalt_0011223344556677_secret"
        shown = {each.key: each for each in effective(settings)}["auth.bootstrap_token"]
        assert shown.value == "(secret)"
        assert str(file) in shown.origin


@pytest.mark.parametrize("flags", [["auth.bootstrap_token=hunter2"], []])
def test_a_secret_that_is_written_down_is_refused_and_not_repeated(tmp_path, flags):
    settings_file = tmp_path / "basalt.toml"
    settings_file.write_text('[auth]\nbootstrap_token = "hunter2"\n')
    with pytest.raises(InvalidSettingError, match="is a secret, and is not written down") as caught:
        load_settings(flags, {}, None if flags else settings_file)
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"
    assert "auth.bootstrap_token_file" in caught.value.hint
    with pytest.raises(InvalidSettingError, match="is a secret"):
        load_settings([], {"BASALT__AUTH__BOOTSTRAP_TOKEN": "hunter2"})


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o666])
def test_a_secret_in_a_file_that_others_can_read_is_refused(tmp_path, mode):
    file = _secret_file(tmp_path / "bootstrap", mode)
    with pytest.raises(InvalidSettingError, match="can be read by every user of this machine"):
        load_settings([f"auth.bootstrap_token_file={file}"])


def test_a_file_of_two_lines_holds_no_secret_and_its_text_is_not_shown(tmp_path):
    file = _secret_file(tmp_path / "bootstrap", text="hunter2\nhunter3\n")
    with pytest.raises(InvalidSettingError, match="more than one line") as caught:
        load_settings([f"auth.bootstrap_token_file={file}"])
    assert "hunter" not in f"{caught.value.message} {caught.value.hint}"


def test_kerberos_towards_hbase_goes_by_a_private_keytab_or_by_the_ticket_cache(tmp_path):
    file = _secret_file(tmp_path / "basalt.keytab")
    given = ["store.hbase.sasl=auth-conf", "store.hbase.principal=basalt/host@EXAMPLE.TEST"]
    settings = load_settings([*given, f"store.hbase.keytab={file}"]).store.hbase
    assert (settings.sasl, settings.principal, settings.keytab) == ("auth-conf", "basalt/host@EXAMPLE.TEST", str(file))
    assert load_settings(given).store.hbase.keytab is None
    assert load_settings(given[:1]).store.hbase.service == "hbase"
    file.chmod(0o644)
    with pytest.raises(InvalidSettingError, match="can be read by every user of this machine") as caught:
        load_settings([*given, f"store.hbase.keytab={file}"])
    assert caught.value.field == "store.hbase.keytab"
    with pytest.raises(InvalidSettingError, match="/nowhere cannot be read: No such file"):
        load_settings([*given, "store.hbase.keytab=/nowhere"])


@pytest.mark.parametrize(
    "flag",
    [
        "principal=",
        "principal=a b@R",
        "principal=a@b@c",
        "principal=/host",
        "service=h b",
        "service=hbase/host",
        "gateway_host=a/b",
    ],
)
def test_names_of_kerberos_have_their_form(flag):
    with pytest.raises(InvalidSettingError, match="is not"):
        load_settings(["store.hbase.sasl=auth", f"store.hbase.{flag}"])


def test_a_quota_is_a_number_or_off_and_none_is_the_default():
    settings = load_settings(["quota.requests_per_s=100", "quota.publish_bytes_per_s=4MiB", "quota.topics=off"]).quota
    assert (settings.requests_per_s, settings.publish_bytes_per_s, settings.topics) == (100, 4 << 20, None)
    assert load_settings([]).quota.requests_per_s is None
    for wrong in ("0", "-1", "none", "1.5", str(QUOTA_MAX + 1)):
        with pytest.raises(InvalidSettingError, match=r"quota\.sessions"):
            load_settings([f"quota.sessions={wrong}"])
