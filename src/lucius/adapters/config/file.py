"""The config file: read once at the start, and again whenever it changes.

At the start a bad file is an error, because running without the limits and keys that the operator wrote would be worse
than not running. Later a bad version is refused, listed as a problem, and the previous one stays in force. A bad
version grants no key, but revokes API keys that it lacks or changes: a typo elsewhere must not keep a leaked key alive.
A file that was cut off, or that can't be read and has no known key, revokes none.

A list that is null, as YAML reads `api_keys:` without entries, is empty. So is a section if it then permits less; in
other sections null is a fault. A version may be half-written, and then permit more than the whole one, as a `serve` key
without its tenants does. So it takes effect if the next look finds it unchanged.
"""

import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from lucius.adapters import yaml_with_lines
from lucius.adapters.yaml_with_lines import Marked
from lucius.core.model.routing import normalise_tenant
from lucius.core.model.statuses import Mode
from lucius.ports.config import ANY, DERIVED, EXAMPLE_KEYS, ApiKey, Config, RefPolicy, TenantPolicy
from lucius.ports.errors import ProtocolError

Signature = tuple[int, int, int, int]
Where = tuple[str | int, ...]

MAX_LOOK_SECONDS = 2.0

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_CONTAINER = re.compile(r"[A-Za-z0-9$][A-Za-z0-9_.-]*")
_CALL_HOST = re.compile(r"((\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_CONFIG = inspect.type_info(Config)
_API_KEYS = inspect.type_info(tuple[ApiKey, ...])
_SECTIONS = (inspect.StructType, inspect.DictType, inspect.VarTupleType)
_MAY_BE_NULL = (("tenants",), ("calls",))
"""Sections that permit less when they are empty. To empty another one lifts limits or isolation."""


class _Version(NamedTuple):
    config: Config
    text: str


class ConfigFile:
    """A ConfigSource over one file, or without a file the defaults for development.

    `refresh` can run in a thread, one call at a time: until it returns, the other methods answer as before it.
    """

    def __init__(self, path: Path | None, dev: bool = False, steady: Callable[[], float] = time.monotonic) -> None:
        """Read the file, if there is a path. Raises ProtocolError if it is no valid config.

        In `dev`, published example keys are accepted, and webhooks may go to this host.
        """
        self._path = path
        self._dev = dev
        self._steady = steady
        self._problem: ProtocolError | None = None
        self._looking_since: float | None = None
        self._seen = _signature(path) if path else None
        self._awaited: bytes | None = None
        """The newest version, which is applied if it is unchanged at the next look."""
        version = _read_version(path, dev) if path else _Version(Config(), "")
        self._in_force = version
        self._config = self._opened(version.config)

    def current(self) -> Config:
        return self._config

    def problems(self) -> tuple[ProtocolError, ...]:
        problem, since = self._problem, self._looking_since  # read once: a look in a thread may change them meanwhile
        if since is not None and self._steady() - since > MAX_LOOK_SECONDS:
            problem = ProtocolError("can't be read: its file system does not answer", file=str(self._path))
        return (problem,) if problem else ()

    def refresh(self) -> bool:
        if self._path is None:
            return False
        self._looking_since = self._steady()
        try:
            return self._look(self._path)
        finally:
            self._looking_since = None

    def _look(self, path: Path) -> bool:
        seen = _signature(path)
        is_same_file = seen == self._seen
        if is_same_file and self._awaited is None:
            return False
        awaited, self._awaited, self._seen = self._awaited, None, seen
        try:
            content = yaml_with_lines.read_bytes(path)
        except ProtocolError as problem:
            self._report(problem)
            self._seen = None  # look again, even if only the reading failed
            return False
        return self._apply(path, content, is_settled=content == awaited)

    def _apply(self, path: Path, content: bytes, *, is_settled: bool) -> bool:
        try:
            version = _parse_version(path, content, self._dev)
        except ProtocolError as problem:
            self._report(problem)
            missing = self._find_missing_keys(path, content)
            if missing and not is_settled:
                self._awaited = content
                return False
            return self._revoke(missing)
        if not is_settled and version.config != self._in_force.config:
            self._awaited = content
            return False
        return self._put_in_force(version)

    def _report(self, problem: ProtocolError) -> None:
        if str(problem) != str(self._problem):
            self._problem = problem

    def _put_in_force(self, version: _Version) -> bool:
        config = self._opened(version.config)
        changed = config != self._config
        self._config, self._in_force, self._problem = config, version, None
        return changed

    def _is_cut_off(self, text: str) -> bool:
        """Return whether a version is only the beginning of the one in force."""
        beginning, whole = text.rstrip(), self._in_force.text.rstrip()
        return len(beginning) < len(whole) and whole.startswith(beginning)

    def _opened(self, config: Config) -> Config:
        """In `dev`, allow webhooks to this host, unless the file lists receivers."""
        if not self._dev or config.callbacks.job_hosts is not None:
            return config
        callbacks = msgspec.structs.replace(config.callbacks, allow_loopback=True)
        return msgspec.structs.replace(config, callbacks=callbacks)

    def _find_missing_keys(self, path: Path, content: bytes) -> set[ApiKey]:
        """Return the keys that a bad version omits or changes; none for one that is only cut off.

        If its list of keys is unreadable, a key whose hash does not occur is missing. A file without any known hash is
        damaged rather than edited, and misses none.
        """
        text, in_force = _decode(content), set(self._config.api_keys)
        if self._is_cut_off(text):
            return set()
        readable = _readable_keys(path, content)
        if readable is not None:
            return in_force.difference(readable)
        text = _without_comments(text)
        missing = {key for key in in_force if key.sha256 not in text}
        return missing if missing != in_force else set()

    def _revoke(self, revoked: Collection[ApiKey]) -> bool:
        left = tuple(key for key in self._config.api_keys if key not in revoked)
        self._config = msgspec.structs.replace(self._config, api_keys=left)
        return bool(revoked)


def _signature(path: Path) -> Signature | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return (info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino)


def _readable_keys(path: Path, content: bytes) -> list[ApiKey] | None:
    """Return the valid entries of `api_keys`, even if the rest of the file is invalid; None without such a list.

    Null is an empty list.
    """
    try:
        source = yaml_with_lines.parse(path, content)
    except ProtocolError:
        return None
    if not isinstance(source.value, dict) or "api_keys" not in source.value:
        return None
    entries = _fill_nulls(source, source.value["api_keys"], _API_KEYS, ("api_keys",))
    if not isinstance(entries, list):
        return None
    keys: list[ApiKey] = []
    for entry in entries:
        with suppress(msgspec.ValidationError):
            key = msgspec.convert(entry, ApiKey)
            if not _lists_no_tenant(entry):
                keys.append(key)
    return keys


def _lists_no_tenant(entry: dict[str, Any]) -> bool:
    """Return whether the list of a key's tenants is empty: without a list, a key to serve is good for every tenant."""
    return "tenants" in entry and not entry["tenants"]


def _decode(content: bytes) -> str:
    return content.decode(errors="replace")


def _without_comments(text: str) -> str:
    return re.sub(r"(^|\s)#[^\r\n]*", "", text)


def read_config(path: Path, dev: bool = False) -> Config:
    """Read one config file. Raises ProtocolError with file, line and reason."""
    return _read_version(path, dev).config


def _read_version(path: Path, dev: bool) -> _Version:
    return _parse_version(path, yaml_with_lines.read_bytes(path), dev)


def _parse_version(path: Path, content: bytes, dev: bool) -> _Version:
    written = yaml_with_lines.parse(path, content)
    value = _fill_nulls(written, written.value, _CONFIG, ())
    config = _checked(Marked(written.file, value, written.lines), dev)
    return _Version(config, _decode(content))


def _fill_nulls(source: Marked, value: Any, kind: inspect.Type, where: Where) -> Any:
    """Replace null by an empty section or list, but not in place of an item of a list, nor of the whole file.

    Raises ProtocolError for sections that must not be null.
    """
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    section = next((kind for kind in kinds if isinstance(kind, _SECTIONS)), None)
    if isinstance(section, inspect.VarTupleType):
        items = [] if value is None else value
        if isinstance(items, list):
            return [
                item if item is None else _fill_nulls(source, item, section.item_type, (*where, index))
                for index, item in enumerate(items)
            ]
    elif section is not None:
        if value is None and where and where not in _MAY_BE_NULL:
            raise source.error(f"{'.'.join(map(str, where))} is null: write `{{}}` for none", where)
        members = {} if value is None and where else value
        if isinstance(members, dict):
            return {
                name: _fill_nulls(source, member, _kind_of(section, name), (*where, name))
                for name, member in members.items()
            }
    return value


def _kind_of(section: inspect.DictType | inspect.StructType, name: str) -> inspect.Type:
    if isinstance(section, inspect.DictType):
        return section.value_type
    return next((field.type for field in section.fields if field.encode_name == name), inspect.AnyType())


def _checked(source: Marked, dev: bool) -> Config:
    for tenant in _tenants(source.value):  # one by one, to know a fault's line
        source.convert(TenantPolicy, ("tenants", tenant))
    config = source.convert(Config)
    _check_names(source, config)
    _check_modes(source, config)
    _check_webhook_secrets(source, config)
    for index, key in enumerate(config.api_keys):
        _check_key(source, key, ("api_keys", index), config.api_keys[:index])
        if _lists_no_tenant(source.value["api_keys"][index]):
            reason = "name at least one tenant, or leave `tenants` out for every tenant"
            raise source.error(reason, ("api_keys", index, "tenants"))
        if key.sha256 in EXAMPLE_KEYS and not dev:
            reason = f"{key.name} is the published key of an example: make your own with `openssl rand -hex 24`"
            raise source.error(reason, ("api_keys", index, "sha256"))
    return config


def _tenants(value: Any) -> list[str]:
    tenants = value.get("tenants") if isinstance(value, dict) else None
    return list(tenants) if isinstance(tenants, dict) else []


def _check_names(source: Marked, config: Config) -> None:
    for tenant in config.tenants or {}:
        if tenant != ANY and normalise_tenant(tenant) != tenant:
            raise source.error(f"{tenant!r} is not a tenant id: write it in lower case", ("tenants", tenant))
    for mode in config.limits.modes:
        if mode is Mode.SAFE:
            raise source.error("SAFE counts as DEFAULT: give the limit for DEFAULT", ("limits", "modes", mode))
    _check_refs(source, config.refs, ("refs",))
    for tenant, policy in (config.tenants or {}).items():
        if policy.refs is not None:
            _check_refs(source, policy.refs, ("tenants", tenant, "refs"))
            _check_hosts(source, policy.refs.callback_hosts, ("tenants", tenant, "refs", "callback_hosts"))
    _check_hosts(source, config.callbacks.hosts, ("callbacks", "hosts"))
    _check_hosts_and_ports(source, config.callbacks.job_hosts, ("callbacks", "job_hosts"))
    _check_hosts_and_ports(source, config.calls.hosts, ("calls", "hosts"))


def _check_webhook_secrets(source: Marked, config: Config) -> None:
    """Refuse a secret shared by tenants: one could then sign webhooks that another accepts."""
    owners: dict[str, str] = {}
    for tenant, policy in (config.tenants or {}).items():
        for name in policy.webhook_secrets:
            where = ("tenants", tenant, "webhook_secrets")
            if tenant == ANY or name == "DEFAULT":
                raise source.error(f"{name} would be the webhook secret of several tenants: name one for each", where)
            if name != DERIVED and owners.setdefault(name, tenant) != tenant:
                raise source.error(f"{tenant} and {owners[name]} must not share the webhook secret {name}", where)


def _check_refs(source: Marked, refs: RefPolicy, where: Where) -> None:
    for name in ("schemes", "input_schemes", "output_schemes"):
        for index, scheme in enumerate(getattr(refs, name) or ()):
            if scheme != scheme.lower():
                raise source.error(f"write the scheme {scheme} in lower case", (*where, name, index))
            if not _SCHEME.fullmatch(scheme):
                raise source.error(f"{scheme!r} is not a scheme: write its name, as in blob", (*where, name, index))
    _check_hosts_and_ports(source, refs.hosts, (*where, "hosts"))
    for index, container in enumerate(refs.containers or ()):
        if not _CONTAINER.fullmatch(container):
            reason = f"{container!r} is not a container: write its name only; prefixes are for paths and {{tenant}}"
            raise source.error(reason, (*where, "containers", index))
    for index, prefix in enumerate(refs.prefixes or ()):
        _check_prefix(source, prefix, (*where, "prefixes", index))


def _check_hosts(source: Marked, hosts: tuple[str, ...] | None, where: Where) -> None:
    for index, host in enumerate(hosts or ()):
        if host != host.lower() or "/" in host or ":" in host or "*" in host[1:]:
            raise source.error(f"{host!r} is not a host: write a name in lower case, or *.name", (*where, index))


def _check_hosts_and_ports(source: Marked, hosts: tuple[str, ...] | None, where: Where) -> None:
    for index, host in enumerate(hosts or ()):
        if not _CALL_HOST.fullmatch(host):
            reason = f"{host!r} is not a host: write a name in lower case, or *.name, with or without a port"
            raise source.error(reason, (*where, index))


def _check_prefix(source: Marked, prefix: str, where: Where) -> None:
    """Refuse a prefix that no ref can have, or with an unknown name in braces: it would silently lock tenants out."""
    path = prefix.partition("://")[2] if "://" in prefix else prefix
    segments = path.strip("/").split("/")
    if not {"", ".", ".."}.isdisjoint(segments) or "%" in path or "\\" in path:
        reason = f"{prefix!r} is not a prefix: write container/path, without dots, empty parts and percent-encoding"
        raise source.error(reason, where)
    if re.search(r"[{}]", path.replace("{tenant}", "")):
        raise source.error(f"{prefix!r}: the only name in braces is {{tenant}}", where)


def _check_modes(source: Marked, config: Config) -> None:
    """Refuse a config that gives a tenant a mode which it forbids to that tenant."""
    if config.tenants is None:
        return
    if config.default_mode is Mode.BURST and ANY not in config.tenants:
        reason = "default_mode is BURST, which tenants that are not listed may not use"
        raise source.error(reason, ("default_mode",))
    for tenant, policy in config.tenants.items():
        if (policy.mode or config.default_mode) is Mode.BURST and not policy.allow_burst:
            raise source.error(f"{tenant} gets BURST but may not use it: set allow_burst or mode", ("tenants", tenant))


def _check_key(source: Marked, key: ApiKey, where: tuple[str | int, ...], before: tuple[ApiKey, ...]) -> None:
    if any(other.name == key.name for other in before):
        raise source.error(f"the key name {key.name} is used twice", (*where, "name"))
    if any(other.sha256 == key.sha256 for other in before):
        raise source.error(f"{key.name} is the same key as another", (*where, "sha256"))
    if ("serve" in key.scopes) != (key.service is not None):
        raise source.error("a key has a service if and only if it has the scope serve", (*where, "scopes"))
    if set(key.scopes) - {"serve"} and not key.tenants:
        raise source.error('a key needs tenants: list them, or "*" for all', where)
    for index, tenant in enumerate(key.tenants):
        if tenant != ANY and normalise_tenant(tenant) != tenant:
            raise source.error(f"{tenant!r} is not a tenant id: write it in lower case", (*where, "tenants", index))
