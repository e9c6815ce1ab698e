"""What an operator decides in the config file, and where it comes from."""

import typing
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from lucius.core.model import Mode
from lucius.ports.errors import ProtocolError

Scope = Literal["submit", "read", "operate", "approve", "admin", "serve"]
Inflight = Annotated[int, Meta(ge=0, le=10**9)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
ANY = "*"


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that may be in flight at once. Absent means the deployment's default, or none where there is no default."""

    max_inflight: Inflight | None = None
    tenant_max_inflight: Inflight | None = None
    modes: dict[Mode, Inflight] = field(default_factory=dict)
    protocols: dict[str, Inflight] = field(default_factory=dict)


class TenantPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Mode | None = None
    allow_burst: bool = False
    max_inflight: Inflight | None = None


class RefPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where references may point. None means anywhere."""

    schemes: Annotated[tuple[Name, ...], Meta(min_length=1)] = ("blob", "https", "file")
    hosts: tuple[Name, ...] | None = None
    containers: tuple[Name, ...] | None = None


class CallbackPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hosts that a client may name in `callback_urls.ack` and `.result`, and so hand our tokens to.

    `job_hosts` are those for `callback_urls.job`. None means any, by https and with public addresses.
    """

    hosts: tuple[Name, ...] = ()
    job_hosts: tuple[Name, ...] | None = None


class CallPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where steps that call out may connect to. Without hosts, nowhere; an entry without a port means every port."""

    hosts: tuple[Name, ...] = ()
    allow_http: bool = False
    allow_private: bool = False
    per_host: Annotated[int, Meta(ge=1, le=1000)] = 8


class ApiKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key is kept as its SHA-256 only. `tenants` holds tenant ids, or "*" for all of them.

    `groups` are those in whose name its holder may approve: as a protocol's approvers name them, or "*".
    """

    name: Name
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")]
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1)]
    tenants: tuple[Name, ...] = ()
    service: Name | None = None
    groups: tuple[Name, ...] = ()


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The config file. `tenants` being there at all means that the file governs who may use BURST."""

    default_mode: Mode = Mode.DEFAULT
    tenants: dict[str, TenantPolicy] | None = None
    limits: Limits = Limits()
    refs: RefPolicy = RefPolicy()
    callbacks: CallbackPolicy = CallbackPolicy()
    calls: CallPolicy = CallPolicy()
    api_keys: tuple[ApiKey, ...] = ()


class ConfigSource(typing.Protocol):
    def current(self) -> Config:
        """The config in force."""

    def refresh(self) -> bool:
        """Look for a change and take it over; True if another config is in force now. Cheap when nothing changed."""

    def problems(self) -> tuple[ProtocolError, ...]:
        """Why the newest version of the file is not in force."""
