"""The operator's config file, and the port that reads it."""

import typing
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from lucius.core.model.statuses import Mode
from lucius.ports.errors import ProtocolError

KeyScope = Literal["submit", "read", "operate", "approve", "admin", "serve"]
Inflight = Annotated[int, Meta(ge=0, le=10**9)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
SecretName = Annotated[str, Meta(pattern=r"^([A-Z][A-Z0-9_]{0,127}|derived)(?!\n)$")]
Schemes = Annotated[tuple[Name, ...], Meta(min_length=1)]
Prefix = Annotated[str, Meta(min_length=1, max_length=1024)]
ANY = "*"
DERIVED = "derived"
MIN_API_KEY_CHARS = 20
EXAMPLE_KEYS = frozenset(
    {
        "0c28d6922e5b43cf27398eb37d4a94d6664956b895ad43bc1e0574966620e566",
        "7f4bc4a78d3565285f36a0673701cfc30961d312450b9ef5f313710ef3fa07f4",
        "db0ac261bb5da7ee8e64a4689bc76799b42fa73a6528ac49a3c96c64f30244b0",
    }
)
"""SHA-256 of the published keys in examples/lucius.yaml."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Maximum jobs in flight. Absent means the deployment's default, or no limit where there is no default."""

    max_inflight: Inflight | None = None
    tenant_max_inflight: Inflight | None = None
    modes: dict[Mode, Inflight] = field(default_factory=dict)
    protocols: dict[str, Inflight] = field(default_factory=dict)


class RefPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Allowed targets of refs. None means the default for schemes, and no restriction for the rest.

    `schemes` applies to inputs and outputs, unless `input_schemes` or `output_schemes` is set. In a prefix `{tenant}`
    stands for the tenant's id.
    """

    schemes: Schemes | None = None
    input_schemes: Schemes | None = None
    output_schemes: Schemes | None = None
    hosts: tuple[Name, ...] | None = None
    containers: tuple[Name, ...] | None = None
    prefixes: tuple[Prefix, ...] | None = None


class TenantRefPolicy(RefPolicy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Narrows the deployment's policy for one tenant. `callback_hosts` limits `callback_urls`; None means `hosts`."""

    callback_hosts: tuple[Name, ...] | None = None


class TenantPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Mode | None = None
    allow_burst: bool = False
    max_inflight: Inflight | None = None
    webhook_secrets: tuple[SecretName, ...] = ()
    """Names of LUCIUS_WEBHOOK_SECRET_<NAME>, newest first; `derived` is the secret that is derived for the tenant."""
    refs: TenantRefPolicy | None = None


class CallbackPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hosts that a client may name in `callback_urls.ack` and `.result`, where they receive our callback tokens.

    `job_hosts` limits `callback_urls.job`. None means any host, over https and with public addresses.
    """

    hosts: tuple[Name, ...] = ()
    job_hosts: tuple[Name, ...] | None = None
    allow_loopback: bool = False
    """Allow `callback_urls.job` on this machine, over http too. Set by `lucius dev`; a deployment should not set it."""


class CallPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hosts that outbound calls may connect to. Without hosts, none; an entry without a port allows every port."""

    hosts: tuple[Name, ...] = ()
    allow_http: bool = False
    allow_private: bool = False
    per_host: Annotated[int, Meta(ge=1, le=1000)] = 8


class ApiKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key, stored only as its SHA-256. `tenants` holds tenant ids, or "*" for all of them.

    `groups` are the approver groups of a protocol for which the key may vote, or "*".
    """

    name: Name
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")]
    scopes: Annotated[tuple[KeyScope, ...], Meta(min_length=1)]
    tenants: tuple[Name, ...] = ()
    service: Name | None = None
    groups: tuple[Name, ...] = ()


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The config file. If `tenants` is present, even if empty, it governs which tenants may use BURST."""

    default_mode: Mode = Mode.DEFAULT
    tenants: dict[str, TenantPolicy] | None = None
    limits: Limits = Limits()
    refs: RefPolicy = RefPolicy()
    callbacks: CallbackPolicy = CallbackPolicy()
    calls: CallPolicy = CallPolicy()
    api_keys: tuple[ApiKey, ...] = ()


class ConfigSource(typing.Protocol):
    def current(self) -> Config:
        """Return the config in force."""

    def refresh(self) -> bool:
        """Apply a change of the source; return True if another config is in force now. Cheap when nothing changed."""

    def problems(self) -> tuple[ProtocolError, ...]:
        """Return why the newest version of the file is not in force."""
