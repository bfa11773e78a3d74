"""The sources of settings: flags over environment over a TOML file over defaults, each value with its origin.

Everything that is wrong is found before anything is used: `problems` lists it all, `load_settings` raises the first.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from basalt.errors import InvalidSettingError, SettingNeedsStartError
from basalt.redaction import address_without_password
from basalt.settings.kinds import SHOWN_CHARS_MAX
from basalt.settings.tree import (
    DEFAULT,
    ENVIRONMENT_PREFIX,
    FILE_SUFFIX,
    Key,
    Origin,
    Settings,
    build,
    keys,
    sections,
    value_of,
)

FILE_BYTES_MAX = 1024 * 1024  # a settings file has some 60 keys; more than this is another file
SECRET_BYTES_MAX = 64 * 1024
NAMING_FILE = "_file"  # behind a secret's name in a settings file or a flag: the path of the file that holds it
RUNNING = Origin("config set")
_SHOWN_NUMBER_BOUND = 10**100  # Python itself refuses to write out numbers of some thousand digits


@dataclass(slots=True)
class Loaded:
    """The settings as far as they could be read, and everything that was wrong."""

    settings: Settings = field(default_factory=Settings)
    problems: list[InvalidSettingError] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Given:
    name: str
    value: object
    origin: Origin


def load_settings(
    flags: Sequence[str] = (), environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Settings:
    """Settings from `KEY=VALUE` flags, environment variables and a TOML file, each optional.

    `InvalidSettingError` names the key, the value, the reason and the origin of the first thing that is wrong.
    """
    loaded = read_settings(flags, environment, file)
    if loaded.problems:
        raise loaded.problems[0]
    return loaded.settings


def read_settings(
    flags: Sequence[str] = (), environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Loaded:
    """As `load_settings`, but collects every problem instead of raising the first."""
    loaded = Loaded()
    values: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    for source in (_from_file(file), _from_environment(environment or {}), _from_flags(flags)):
        for given in source:
            if isinstance(given, InvalidSettingError):
                loaded.problems.append(given)
                continue
            try:
                values[given.name] = _value(given)
                origins[given.name] = given.origin
            except InvalidSettingError as problem:
                loaded.problems.append(problem)
    loaded.settings = replace(build(values), origins=origins)
    if not loaded.problems:
        loaded.problems.extend(_contradictions(loaded.settings))
    return loaded


def changed_settings(settings: Settings, asked: Mapping[str, object]) -> Settings:
    """The settings of a running server with these values in place of theirs: all of them, or an error and none.

    `InvalidSettingError` as `load_settings` has it, `SettingNeedsStartError` for one that is read only at the start.
    """
    values = {name: _value(_Given(name, value, RUNNING)) for name, value in asked.items()}
    for key in (keys()[name] for name in values):
        if not key.live:
            section, _, last = key.name.rpartition(".")
            raise SettingNeedsStartError(
                f"setting {key.name} is read only when the server starts; nothing was changed",
                field=key.name,
                hint=f"write {last} = {key.kind.toml(values[key.name])} under [{section}] in its settings file, and start it anew",
            )
    kept = {key.name: value_of(settings, key) for key in keys().values()}
    changed = replace(build(kept | values), origins={**settings.origins, **dict.fromkeys(values, RUNNING)})
    for problem in _contradictions(changed):
        raise problem
    return changed


def _value(given: _Given) -> object:
    key = keys().get(given.name)
    if key is None:
        raise _unknown(given)
    if key.is_secret and not given.origin.secret and given.value != "off":
        raise InvalidSettingError(
            f"setting {key.name} is a secret, and is not written down (from {given.origin.text})",
            field=key.name,
            hint=f"write it to a file that only its owner can read, and name that: {key.name}_file, or {key.environment}{FILE_SUFFIX}",
        )
    try:
        return key.kind.read(given.value)
    except ValueError as error:
        shown = "the secret" if given.origin.secret else f"{_shown(given.value)}"
        message = f"setting {key.name}: {shown} {error} (from {given.origin.text})"
        raise InvalidSettingError(message, field=key.name, hint=f"it takes {key.kind.describe()}") from None


def _unknown(given: _Given) -> InvalidSettingError:
    if given.name in sections():
        inner = [name for name in keys() if name.startswith(given.name + ".")]
        message = f"setting {given.name} is a section, and {_shown(given.value)} is no table (from {given.origin.text})"
        return InvalidSettingError(message, field=given.name, hint=f"it has the keys {', '.join(inner)}")
    nearest = difflib.get_close_matches(given.name, [*keys(), *sections()], n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else "`basalt config show` lists them all"
    return InvalidSettingError(
        f"there is no setting {_shown(given.name)} (from {given.origin.text})", field=given.name, hint=hint
    )


def _from_flags(flags: Sequence[str]) -> Iterator[_Given | InvalidSettingError]:
    seen: set[str] = set()
    for flag in flags:
        name, equals, value = flag.partition("=")
        name = name.strip()
        if not equals or not name:
            yield InvalidSettingError(
                f"--set {_shown(flag)} is not KEY=VALUE",
                field="--set",
                hint="write for example --set store.kind=memory",
            )
        elif name in seen:
            yield InvalidSettingError(f"setting {name} is given twice", field=name, hint="leave one out")
        else:
            seen.add(name)
            origin = Origin("--set")
            if name not in keys() and name.endswith(NAMING_FILE) and _is_secret(name.removesuffix(NAMING_FILE)):
                yield _secret_named(name, value.strip(), origin)
            else:
                yield _Given(name, value.strip(), origin)


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Given | InvalidSettingError]:
    by_variable = {key.environment: key for key in keys().values()}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        origin = Origin(f"environment {variable}")
        key = by_variable.get(variable)
        owner = by_variable.get(variable.removesuffix(FILE_SUFFIX))
        if key is not None:
            yield _Given(key.name, environment[variable], origin)
        elif owner is None:
            nearest = difflib.get_close_matches(variable.upper(), by_variable, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else "`basalt config show` lists them all"
            yield InvalidSettingError(
                f"environment variable {_shown(variable)} names no setting", field=variable, hint=hint
            )
        elif owner.environment in environment:
            message = f"setting {owner.name} is given by both {owner.environment} and {variable}"
            yield InvalidSettingError(message, field=owner.name, hint="unset one of them")
        else:
            yield _secret(owner, Path(environment[variable]), origin)


def _secret(key: Key, path: Path, origin: Origin) -> _Given | InvalidSettingError:
    """The value from a file of its own, as container platforms hand out secrets; one line end at its end is not part of it."""
    try:
        text = _text(path, SECRET_BYTES_MAX)
        if key.is_secret:
            _check_private(path)
    except ValueError as error:
        message = f"setting {key.name}: {path} {error} (from {origin.text})"
        return InvalidSettingError(message, field=key.name, hint="name a readable file that holds just the value")
    return _Given(key.name, text.removesuffix("\n").removesuffix("\r"), Origin(f"{origin.text} ({path})", secret=True))


def _check_private(path: Path) -> None:
    """`ValueError` for a file that this process cannot read, or everybody can."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise ValueError(f"cannot be read: {reason}") from None
    if mode & stat.S_IROTH:
        raise ValueError("can be read by every user of this machine, and is to hold a secret (chmod o-r)")


def _from_file(path: Path | None) -> Iterator[_Given | InvalidSettingError]:
    if path is None:
        return
    origin = Origin(f"file {path}")
    text = ""
    try:
        text = _text(path, FILE_BYTES_MAX)
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        yield _not_toml(path, text, str(error))
    except RecursionError:
        yield _not_toml(path, text, "Nested too deeply")
    except ValueError as error:
        hint = "name a readable TOML file; `basalt init` writes one"
        yield InvalidSettingError(f"settings file {path} {error}", field="--config", hint=hint)
    else:
        yield from _flatten(tree, "", origin)


def _text(path: Path, bytes_max: int) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise ValueError(f"cannot be read: {reason}") from None
    if len(content) > bytes_max:
        raise ValueError(f"is longer than {bytes_max} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: byte {content[error.start]:#04x} at offset {error.start}") from None


def _not_toml(path: Path, text: str, reason: str) -> InvalidSettingError:
    line = re.search(r"\(at line (\d+)", reason)
    shown = ""
    if line:
        content = text.splitlines()[int(line[1]) - 1 : int(line[1])]
        shown = f": {_shown(content[0].strip())}" if content else ""
    if "Cannot overwrite a value" in reason or "Cannot declare" in reason:
        reason = f"something is set twice; {reason[:1].lower()}{reason[1:]}"
    return InvalidSettingError(
        f"settings file {path} is not TOML: {reason}{shown}", field="--config", hint="mend that line"
    )


def _flatten(tree: Mapping[str, object], prefix: str, origin: Origin) -> Iterator[_Given | InvalidSettingError]:
    for name, value in tree.items():
        full = f"{prefix}{name}"
        # Only below a known section is a table descended into, so that a misspelt section is named once, not per key.
        if isinstance(value, dict) and full in sections():
            yield from _flatten(value, f"{full}.", origin)
        elif full not in keys() and full.endswith(NAMING_FILE) and _is_secret(full.removesuffix(NAMING_FILE)):
            yield _secret_named(full, value, origin)
        else:
            yield _Given(full, value, origin)


def _is_secret(name: str) -> bool:
    key = keys().get(name)
    return key is not None and key.is_secret


def _secret_named(full: str, value: object, origin: Origin) -> _Given | InvalidSettingError:
    if not isinstance(value, str) or not value:
        message = f"setting {full}: {_shown(value)} is no path (from {origin.text})"
        return InvalidSettingError(message, field=full, hint="name the file that holds the secret")
    return _secret(keys()[full.removesuffix(NAMING_FILE)], Path(value), origin)


def _contradictions(settings: Settings) -> Iterator[InvalidSettingError]:
    """Pairs of settings that are fine alone and not together: the first must not exceed the second."""
    for smaller, larger in (
        ("transactions.timeout_ms_default", "transactions.timeout_ms_max"),
        ("transactions.timeout_ms_max", "transactions.lifetime_ms_max"),
        ("transactions.long_timeout_ms", "transactions.lifetime_ms_max"),
        ("http.body_bytes_max", "messaging.queue_bytes_max"),
    ):
        low, high = keys()[smaller], keys()[larger]
        low_value, high_value = value_of(settings, low), value_of(settings, high)
        assert isinstance(low_value, int)
        assert isinstance(high_value, int)
        if low_value > high_value:
            origin = settings.origins.get(smaller, DEFAULT).text
            message = (
                f"setting {smaller}: {low.kind.write(low_value)} is more than {larger}, which is "
                f"{high.kind.write(high_value)} (from {origin}, and {settings.origins.get(larger, DEFAULT).text})"
            )
            yield InvalidSettingError(message, field=smaller, hint=f"lower {smaller} or raise {larger}")
    yield from _half_given_tls(settings)
    if settings.store.kind == "hbase" and settings.store.hbase.thrift is None:
        origin = settings.origins.get("store.kind", DEFAULT).text
        yield InvalidSettingError(
            f'setting store.hbase.thrift: "off" does not go with store.kind hbase (from {origin})',
            field="store.hbase.thrift",
            hint="set store.hbase.thrift to the host:port of HBase's Thrift gateway",
        )
    yield from _hbase_kerberos_contradictions(settings)
    if "kerberos" in settings.auth.kinds:
        yield from _missing_of_kerberos(settings)
    if "jwt" in settings.auth.kinds:
        yield from _missing_of_jwt(settings)


def _hbase_kerberos_contradictions(settings: Settings) -> Iterator[InvalidSettingError]:
    """Half of what Kerberos towards HBase needs, or a key that everybody can read."""
    hbase = settings.store.hbase

    def problem(key: str, message: str, hint: str) -> InvalidSettingError:
        origin = settings.origins.get(key, DEFAULT).text
        return InvalidSettingError(f"setting {key}: {message} (from {origin})", field=key, hint=hint)

    if hbase.sasl == "off":
        for name in ("principal", "keytab", "gateway_host"):
            if getattr(hbase, name) is not None:
                hint = "set it to what hbase.thrift.security.qop is at the gateways: auth, auth-int or auth-conf"
                yield problem(f"store.hbase.{name}", "needs store.hbase.sasl, which is off", hint)
    elif hbase.keytab is not None and hbase.principal is None:
        hint = "set store.hbase.principal to whom `klist -k` lists in it"
        yield problem("store.hbase.keytab", "says nothing without store.hbase.principal", hint)
    elif hbase.keytab is not None:
        try:
            _check_private(Path(hbase.keytab))
        except ValueError as error:
            yield problem(
                "store.hbase.keytab", f"{hbase.keytab} {error}", "name a keytab that only the server can read"
            )


def _missing_of_kerberos(settings: Settings) -> Iterator[InvalidSettingError]:
    origin = settings.origins.get("auth.kinds", DEFAULT).text
    for name in ("keytab", "realms"):
        if not getattr(settings.auth.kerberos, name):
            key = keys()[f"auth.kerberos.{name}"]
            yield InvalidSettingError(
                f"setting {key.name} is not given, and auth.kinds has kerberos (from {origin})",
                field=key.name,
                hint=f"it is {key.kind.help}",
            )
    if settings.auth.kerberos.binding == "require" and settings.tls.certificate is None:
        yield InvalidSettingError(
            "setting auth.kerberos.binding: require does not go without tls.certificate, to which tokens would be bound",
            field="auth.kerberos.binding",
            hint="give this server a certificate; where a proxy has it, tokens can be bound to none of this server's",
        )


def _missing_of_jwt(settings: Settings) -> Iterator[InvalidSettingError]:
    origin = settings.origins.get("auth.kinds", DEFAULT).text
    for name in ("issuer", "audience", "jwks", "algorithms"):
        if not getattr(settings.auth.jwt, name):
            key = keys()[f"auth.jwt.{name}"]
            yield InvalidSettingError(
                f"setting {key.name} is not given, and auth.kinds has jwt (from {origin})",
                field=key.name,
                hint=f"it is {key.kind.help}",
            )


def _half_given_tls(settings: Settings) -> Iterator[InvalidSettingError]:
    """Settings of TLS that mean nothing, or less than they seem to, without another one."""
    tls, asks_clients = settings.tls, settings.tls.client != "off"
    for missing, given, why, hint in (
        (
            "tls.key", tls.certificate is not None and tls.key is None, "tls.certificate is of no use without its key",
            "name the file of the certificate's private key",
        ),
        (
            "tls.certificate", tls.certificate is None and (tls.key is not None or asks_clients or tls.hsts),
            "without it there is no TLS, and tls.key, tls.client and tls.hsts would mean nothing",
            "name the file of the server's certificate, or take those out",
        ),
        (
            "tls.client_ca", asks_clients and tls.client_ca is None, f"tls.client is {tls.client}, and no client's certificate would count",
            "name the file of the CAs whose certificates clients may have",
        ),
        (
            "tls.client", not asks_clients and (tls.client_ca is not None or tls.client_crl is not None),
            "tls.client_ca and tls.client_crl are given, and no client is asked for a certificate",
            "set tls.client to optional or required",
        ),
        (
            "tls.client_ca", "cert" in settings.auth.kinds and not asks_clients,
            "auth.kinds has cert, and no client is asked for a certificate",
            "name the CAs of the clients' certificates, and set tls.client to optional or required",
        ),
    ):  # fmt: skip
        if given:
            yield InvalidSettingError(f"setting {missing} is not given: {why}", field=missing, hint=hint)


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) >= _SHOWN_NUMBER_BOUND:
        return "a number of hundreds of digits"
    text = address_without_password(value if isinstance(value, str) else str(value))
    shown = text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…"
    return repr(shown) if isinstance(value, str) else shown
