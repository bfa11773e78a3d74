"""Declares every setting: its name, environment variable, type, default, range and one line of help.

A key's name is the path of its fields, with dashes in a section's name: `jobs.log-snapshot.interval_ms`. The table of keys,
the reference (docs/reference/settings.md), the commented file that `basalt init` writes and the environment's names all
follow from here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from basalt.settings.auth import AuthSettings, TlsSettings
from basalt.settings.cluster import ClusterSettings, LeaderSettings
from basalt.settings.kinds import (
    DAY_MS,
    GIB,
    HOUR_MS,
    KIB,
    LOG_LEVELS,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    Address,
    Choice,
    DayWindow,
    Duration,
    DurationLimit,
    Ensemble,
    FilePath,
    Flag,
    Host,
    HostNames,
    KerberosPrincipal,
    Limit,
    LogLevels,
    NamePrefix,
    Networks,
    Origins,
    Port,
    PrincipalPart,
    Secret,
    ServiceHost,
    SettingKind,
    Size,
    SizeLimit,
    ThriftPrincipal,
    Whole,
    Window,
)
from basalt_engine.stores.hbase.kerberos import Kerberos

TIMEOUT_MS_MAX = 30 * DAY_MS  # a transaction open for longer than a month would pin every older row
QUOTA_MAX = 1 << 40  # of anything, a second or at a time: more is no limit
INTERVAL_MS_MIN = 100  # a job that runs more often does nothing else
INTERVAL_MS_MAX = 30 * DAY_MS
ENVIRONMENT_PREFIX = "BASALT__"
FILE_SUFFIX = "_FILE"
_HIDDEN = "(secret)"
# Marks a setting that can change while the server runs; `operations.live_settings` puts it in force, and a test tries each.
LIVE = "live"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value: `text` is for people; a `secret` value was read from a file of its own and is not shown."""

    text: str
    secret: bool = False


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The place of the server: what `--data`, `--host` and `--port` say, too."""

    data: Annotated[str | None, FilePath("data directory of the rocks store; made if it is not there")] = None
    host: Annotated[str, Host("address to listen on; beyond 127.0.0.1 only where auth.kinds is given")] = "127.0.0.1"
    port: Annotated[int, Whole("port to listen on; 0 picks a free one", 0, 65_535)] = 4780


@dataclass(frozen=True, slots=True, kw_only=True)
class HBaseSettings:
    """The address of HBase and the layout of its tables; read only when store.kind is hbase."""

    thrift: Annotated[str | None, Address("HBase's first Thrift gateway, for the major compactions of pruning")] = None
    thrift2: Annotated[str | None, Address("HBase's Thrift 2 gateway, through which rows are read and written")] = None
    prefix: Annotated[str, NamePrefix("what the names of Basalt's tables start with")] = "basalt"
    buckets: Annotated[
        int, Whole("salt buckets that spread topics over regions; fixed when the tables are made", 1, 256)
    ] = 16
    # A major compaction writes a whole region anew: two at a time leave a cluster its disks.
    prune_compactions: Annotated[
        int, Whole("most regions that one run of the job prune has compacted; 0: none", 0, 1_000)
    ] = 2
    sasl: Annotated[
        Literal["off", "auth", "auth-int", "auth-conf"],
        Choice(
            "Kerberos towards the gateways: who is there is proved (auth), each byte signed (auth-int) or encrypted too (auth-conf)",
            ("off", "auth", "auth-int", "auth-conf"),
        ),
    ] = "off"
    principal: Annotated[
        str | None, KerberosPrincipal("Kerberos principal that Basalt is for HBase; off: whose the ticket cache is")
    ] = None
    keytab: Annotated[
        str | None, FilePath("file with the principal's key; off: tickets come from the ticket cache (KRB5CCNAME)")
    ] = None
    service: Annotated[str, PrincipalPart("first part of the gateways' own principal, hbase in hbase/host@REALM")] = (
        "hbase"
    )
    gateway_host: Annotated[
        str | None, ServiceHost("host in the gateways' own principal; off: the host of their addresses")
    ] = None

    @property
    def kerberos(self) -> Kerberos | None:
        """Basalt's identity for the gateways; None where they ask for none."""
        if self.sasl == "off":
            return None
        return Kerberos(self.sasl, self.principal, self.keytab, self.service, self.gateway_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The store that keeps the tables."""

    kind: Annotated[
        Literal["memory", "rocks", "hbase"],
        Choice("memory (lost at exit), rocks (embedded, in the data directory) or hbase", ("memory", "rocks", "hbase")),
    ] = "rocks"
    sync: Annotated[bool, Flag("rocks: sync the log to the disk before answering; false risks the last writes")] = True
    hbase: HBaseSettings = HBaseSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The HTTP face."""

    body_bytes_max: Annotated[int, Size("largest request body, before and after decompression", KIB, GIB)] = 10 * MIB
    hosts: Annotated[
        tuple[str, ...],
        HostNames("names that clients may call this server by, beside localhost, its machine's and its addresses"),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...], Origins("origins whose web pages may call this server from a browser")
    ] = ()
    # Each takes some KB, and a file; a client has a few. Many more would be an attack, or a client that forgets to close them.
    connections_max: Annotated[int, Whole("most connections at a time; one more is closed at once", 1, 1_000_000)] = (
        4_096
    )
    # An eighth of them: so many from one address are a proxy, or a fault.
    connections_per_address_max: Annotated[
        int,
        Whole("most of them from one address (of IPv6: one network of 64 bits), which may be a proxy", 1, 1_000_000),
    ] = 512
    tls_elsewhere: Annotated[
        bool, Flag("a proxy or a mesh before this server speaks TLS: tokens and tickets come to it without")
    ] = False
    forwarders: Annotated[
        tuple[str, ...],
        Networks("proxies whose X-Forwarded-For says, in logs and the audit, where a request came from"),
    ] = ()
    flat_topics: Annotated[bool, Flag("answer a topic as a flat property map, for older clients of this API"), LIVE] = (
        False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings:
    """Limits of one principal; `basalt quota set` has others for one, a group, a role or everyone."""

    requests_per_s: Annotated[int | None, Limit("requests a second of one principal", 1, QUOTA_MAX)] = None
    publish_bytes_per_s: Annotated[
        int | None, SizeLimit("bytes a second that one principal publishes", 1, QUOTA_MAX)
    ] = None
    fetch_bytes_per_s: Annotated[int | None, SizeLimit("bytes a second that one principal reads", 1, QUOTA_MAX)] = None
    open_transactions: Annotated[int | None, Limit("most open transactions of one principal", 1, QUOTA_MAX)] = None
    sessions: Annotated[int | None, Limit("most named sessions of one principal", 1, QUOTA_MAX)] = None
    topics: Annotated[int | None, Limit("most topics that one principal created", 1, QUOTA_MAX)] = None
    waiting_fetches: Annotated[int | None, Limit("most fetches of one principal that wait at a time", 1, QUOTA_MAX)] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagingSettings:
    """Publishing and fetching."""

    fetch_messages_max: Annotated[int, Whole("most messages that one fetch answers", 1, 1_000_000), LIVE] = 10_000
    fetch_bytes_max: Annotated[
        int, Size("most payload bytes that one fetch answers, but for a first message", KIB, GIB), LIVE
    ] = 10 * MIB
    cache_bytes_max: Annotated[
        int, Size("memory for the newest messages of all topics together; 0: none", 0, 1024 * GIB)
    ] = 256 * MIB
    answers_bytes_max: Annotated[
        int, Size("memory for messages as they were answered, for others who read the same; 0: none", 0, 1024 * GIB)
    ] = 32 * MIB
    queue_bytes_max: Annotated[
        int, Size("payloads waiting to be written, before publishers get 503", KIB, 16 * GIB)
    ] = 64 * MIB
    topic_lanes: Annotated[
        int,
        Whole(
            "on HBase, writers among which topics are shared out, so that a region that hangs holds up one of them only",
            1,
            8,
        ),
    ] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """The memory of producers, so that a publish that is sent again is there once."""

    per_topic_max: Annotated[int, Whole("most producers that one topic remembers", 1, 1_000_000)] = 10_000
    memory_max: Annotated[
        int, Whole("most producers of all topics that the server has in memory, some 250 bytes each", 1, 100_000_000)
    ] = 1_000_000
    idle_ms: Annotated[
        int, Duration("how long after its last message a producer is remembered", MINUTE_MS, 30 * DAY_MS)
    ] = 10 * MINUTE_MS
    named_idle_ms: Annotated[
        int, Duration("how long after its last message a named producer is remembered", MINUTE_MS, 365 * DAY_MS)
    ] = 7 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The transaction manager."""

    manager: Annotated[
        Literal["builtin", "external"],
        Choice("builtin, or external: clients bring write pointers of a manager of their own", ("builtin", "external")),
    ] = "builtin"
    timeout_ms_default: Annotated[
        int, Duration("time-out of a short transaction that asks for none", SECOND_MS // 10, TIMEOUT_MS_MAX)
    ] = 30 * SECOND_MS
    timeout_ms_max: Annotated[
        int, Duration("longest time-out that a short transaction may ask for", SECOND_MS // 10, TIMEOUT_MS_MAX)
    ] = 10 * MINUTE_MS
    long_timeout_ms: Annotated[
        int, Duration("time-out of a long transaction that asks for none", SECOND_MS, TIMEOUT_MS_MAX)
    ] = DAY_MS
    lifetime_ms_max: Annotated[
        int,
        Duration(
            "longest life of any transaction; payloads stored ahead are kept as much longer", SECOND_MS, TIMEOUT_MS_MAX
        ),
    ] = 25 * HOUR_MS
    changes_max: Annotated[int, Whole("most entries in one transaction's change set", 1, 10_000_000)] = 50_000
    change_bytes_max: Annotated[int, Size("most bytes in one transaction's change set", KIB, GIB)] = 10 * MIB
    expiry_interval_ms: Annotated[
        int, Duration("how often transactions past their deadline are ended", INTERVAL_MS_MIN, MINUTE_MS)
    ] = SECOND_MS
    sessions_max: Annotated[int, Whole("most named sessions that are remembered", 1, 1_000_000)] = 10_000
    session_ms_max: Annotated[
        int,
        Duration(
            "how long a named session is remembered that nobody uses and that counts for no counter owner",
            HOUR_MS,
            366 * DAY_MS,
        ),
    ] = 7 * DAY_MS
    prune_external_writers: Annotated[
        bool, Flag("pruning forgets failed writers that also wrote outside Basalt, where it does not look")
    ] = False
    allow_reset: Annotated[bool, Flag("let a client forget every transaction; for test servers only")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings:
    """Consumer groups."""

    groups_max: Annotated[int, Whole("most consumer groups, of all topics together", 1, 1_000_000)] = 10_000
    members_max: Annotated[int, Whole("most members of one group", 1, 100_000)] = 1_000
    unacked_max: Annotated[
        int, Whole("highest unackedMax of a group: messages that are dealt and not acknowledged", 1, 10_000_000)
    ] = 100_000
    spans_max: Annotated[
        int,
        Whole(
            "most spans of acknowledged messages with gaps between them, of all groups together; beyond it groups of over 1,000 fill their gaps first",
            1_000,
            100_000_000,
        ),
    ] = 1_000_000
    window_bytes_max: Annotated[
        int, Size("memory for the messages that one keyed group has read ahead of its members", MIB, 16 * GIB)
    ] = 64 * MIB
    claim_ms_max: Annotated[
        int, Duration("longest time that a claim may last without being renewed", SECOND_MS, 7 * DAY_MS)
    ] = 12 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ThriftSettings:
    """The Tephra-compatible face."""

    port: Annotated[int | None, Port("port of the Thrift transaction service; 0 picks a free one")] = None
    zookeeper: Annotated[
        str | None, Ensemble("ZooKeeper in which clients of Tephra look for the service: host:port,host:port/path")
    ] = None
    advertise: Annotated[
        str | None,
        Address("what they are told there; off: this machine's name, or the address it listens on, and the port"),
    ] = None
    principal: Annotated[
        str | None,
        ThriftPrincipal(
            "who clients of Tephra count as, for they cannot prove who they are; needed with authentication"
        ),
    ] = None
    networks: Annotated[
        tuple[str, ...], Networks("where clients of Tephra may connect from; others are turned out at once")
    ] = ("127.0.0.0/8", "::1/128")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The times of one scheduled job."""

    interval_ms: Annotated[int, Duration("time from one start to the next", INTERVAL_MS_MIN, INTERVAL_MS_MAX), LIVE]
    window: Annotated[DayWindow | None, Window("time of day in which it may start"), LIVE] = None
    enabled: Annotated[bool, Flag("whether it runs by itself; by hand it always can"), LIVE] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettings:
    """The scheduled jobs."""

    # Expired messages are never returned in any case; this is only about giving the space back.
    retention: JobSettings = JobSettings(interval_ms=MINUTE_MS)
    # Retention and coprocessors drop invalid writers by this snapshot: as old as it is, so late they are.
    snapshot: JobSettings = JobSettings(interval_ms=10 * SECOND_MS)
    prune: JobSettings = JobSettings(interval_ms=10 * MINUTE_MS)
    # Bounds how much log a restart replays.
    log_snapshot: JobSettings = JobSettings(interval_ms=5 * MINUTE_MS)
    stats: JobSettings = JobSettings(interval_ms=15 * SECOND_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The server's log."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Choice("least severity that is logged", LOG_LEVELS),
        LIVE,
    ] = "info"
    format: Annotated[
        Literal["auto", "json", "text"],
        Choice("JSON lines, text, or auto: text on a terminal", ("auto", "json", "text")),
    ] = "auto"
    access: Annotated[
        Literal["off", "errors", "all"],
        Choice("requests that are logged: none, those answered with 400 or above, or all", ("off", "errors", "all")),
        LIVE,
    ] = "errors"
    slow_ms: Annotated[
        int | None,
        DurationLimit("requests that take as long are logged with what they waited for; off: none", 1, HOUR_MS),
        LIVE,
    ] = SECOND_MS
    levels: Annotated[
        tuple[str, ...],
        LogLevels("least severity of some loggers, such as basalt.store=debug; the others have log.level"),
        LIVE,
    ] = ()
    file: Annotated[str | None, FilePath("file to log to, opened anew when it was moved away; off: standard error")] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """The web console, at /console."""

    enabled: Annotated[bool, Flag("answer the pages of the console")] = True
    read_only: Annotated[bool, Flag("let nobody do anything from its pages")] = False
    refresh_ms: Annotated[int, Duration("how often an open page renews what changes; 0: never", 0, HOUR_MS)] = (
        5 * SECOND_MS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, read once when the process starts; plain values, so tests may construct any part of it."""

    server: ServerSettings = ServerSettings()
    auth: AuthSettings = field(default_factory=AuthSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    store: StoreSettings = StoreSettings()
    leader: LeaderSettings = field(default_factory=LeaderSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    http: HttpSettings = HttpSettings()
    quota: QuotaSettings = QuotaSettings()
    messaging: MessagingSettings = MessagingSettings()
    producers: ProducerSettings = ProducerSettings()
    transactions: TransactionSettings = TransactionSettings()
    subscriptions: SubscriptionSettings = SubscriptionSettings()
    thrift: ThriftSettings = ThriftSettings()
    jobs: JobsSettings = JobsSettings()
    log: LogSettings = LogSettings()
    console: ConsoleSettings = ConsoleSettings()
    # Where each value came from, by key; absent for a default. Not a setting itself.
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: its dotted name, where it is in the tree, what it may be and is by default, whether it can change live."""

    name: str
    path: tuple[str, ...]
    kind: SettingKind
    default: object
    live: bool

    @property
    def is_secret(self) -> bool:
        """True when its value comes from a file of its own alone, and is shown nowhere."""
        return isinstance(self.kind, Secret)

    @property
    def environment(self) -> str:
        """The name of its environment variable."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "__").replace("-", "_").upper()

    @property
    def unit(self) -> str:
        """The unit of a bare number, after the key's last word but `max` and `default`: bytes, ms, or nothing."""
        words = [word for word in self.path[-1].split("_") if word not in ("max", "default")]
        return words[-1] if words[-1] in ("bytes", "ms") else ""


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One setting as people see it: its value as in the settings file, its origin, whether it can change live, and what it means."""

    key: str
    value: str
    origin: str
    live: bool
    meaning: str
    default: str
    values: str


@functools.cache
def keys() -> Mapping[str, Key]:
    """Every key by name, in the tree's order."""
    return {key.name: key for key in _walk(Settings(), ())}


@functools.cache
def sections() -> frozenset[str]:
    """The names that have keys below them: `store`, `store.hbase`, `jobs.retention`, ..."""
    return frozenset(name.rsplit(".", depth)[0] for name in keys() for depth in range(1, name.count(".") + 1))


def value_of(settings: Settings, key: Key) -> object:
    value: object = functools.reduce(getattr, key.path, settings)
    return value


def build(values: Mapping[str, object]) -> Settings:
    """The tree with these values (already read by their kinds) in place of defaults."""
    tree: Settings = _build(Settings(), (), {keys()[name].path: value for name, value in values.items()})
    return tree


def effective(settings: Settings) -> list[EffectiveSetting]:
    """Every setting in force, for people: secrets are not shown."""
    shown = []
    for key in keys().values():
        origin = settings.origins.get(key.name, DEFAULT)
        value = value_of(settings, key)
        hidden = origin.secret or (key.is_secret and value is not None)
        text = _HIDDEN if hidden else key.kind.write(value)
        values = key.kind.describe() + (f" ({key.unit})" if key.unit else "")
        default = key.kind.write(key.default)
        shown.append(EffectiveSetting(key.name, text, origin.text, key.live, key.kind.help, default, values))
    return shown


def _walk(tree: Any, path: tuple[str, ...]) -> Iterator[Key]:
    hints = get_type_hints(type(tree), include_extras=True)
    for each in fields(tree):
        value, hint, inner = getattr(tree, each.name), hints[each.name], (*path, each.name)
        if get_origin(hint) is Annotated:
            name = ".".join((*(section.replace("_", "-") for section in path), each.name))
            yield Key(name, inner, get_args(hint)[1], value, LIVE in get_args(hint)[2:])
        elif is_dataclass(value):
            yield from _walk(value, inner)


def _build(tree: Any, path: tuple[str, ...], values: Mapping[tuple[str, ...], object]) -> Any:
    changed: dict[str, object] = {}
    for each in fields(tree):
        inner, value = (*path, each.name), getattr(tree, each.name)
        if inner in values:
            changed[each.name] = values[inner]
        elif is_dataclass(value):
            changed[each.name] = _build(value, inner, values)
    return replace(tree, **changed)
