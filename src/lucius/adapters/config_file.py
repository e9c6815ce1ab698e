"""The config file: read once at the start, and again whenever it changes.

At the start a bad file is an error, because running without the limits and keys that the operator wrote would be
worse than not running. Later a bad version is refused, listed as a problem, and the one before stays in force.
"""

import os
import re
from pathlib import Path
from typing import Any

from lucius.adapters import marked
from lucius.adapters.marked import Marked
from lucius.core.model import Mode
from lucius.core.routing import normalise_tenant
from lucius.ports.config import ANY, ApiKey, Config, TenantPolicy
from lucius.ports.errors import ProtocolError

Signature = tuple[int, int, int, int]

_CALL_HOST = re.compile(r"((\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


class ConfigFile:
    """A ConfigSource over one file, or without a file the defaults for development."""

    def __init__(self, path: Path | None) -> None:
        """Raises ProtocolError if there is a path and what is there is no good config."""
        self._path = path
        self._problem: ProtocolError | None = None
        self._seen = _signature(path) if path else None
        self._config = read_config(path) if path else Config()

    def current(self) -> Config:
        return self._config

    def problems(self) -> tuple[ProtocolError, ...]:
        return (self._problem,) if self._problem else ()

    def refresh(self) -> bool:
        if self._path is None or (seen := _signature(self._path)) == self._seen:
            return False
        self._seen = seen
        try:
            config = read_config(self._path)
        except ProtocolError as problem:
            self._problem = problem
            return False
        self._problem = None
        changed = config != self._config
        self._config = config
        return changed


def _signature(path: Path) -> Signature | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return (info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino)


def read_config(path: Path) -> Config:
    """One file as a config. Raises ProtocolError with file, line and reason."""
    source = marked.read(path)
    for tenant in _tenants(source.value):  # one by one, because only so a fault's line is known
        source.convert(TenantPolicy, ("tenants", tenant))
    config = source.convert(Config)
    _check_names(source, config)
    _check_modes(source, config)
    for index, key in enumerate(config.api_keys):
        _check_key(source, key, ("api_keys", index), config.api_keys[:index])
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
    for index, scheme in enumerate(config.refs.schemes):
        if scheme != scheme.lower():
            raise source.error(f"write the scheme {scheme} in lower case", ("refs", "schemes", index))
    for section, hosts in (("refs", config.refs.hosts), ("callbacks", config.callbacks.hosts)):
        for index, host in enumerate(hosts or ()):
            if host != host.lower() or "/" in host or ":" in host or "*" in host[1:]:
                reason = f"{host!r} is not a host: write a name in lower case, or *.name"
                raise source.error(reason, (section, "hosts", index))
    for index, host in enumerate(config.calls.hosts):
        if not _CALL_HOST.fullmatch(host):
            reason = f"{host!r} is not a host: write a name in lower case, or *.name, with or without a port"
            raise source.error(reason, ("calls", "hosts", index))


def _check_modes(source: Marked, config: Config) -> None:
    """A tenant must not be led by the config into a mode that the same config forbids it."""
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
