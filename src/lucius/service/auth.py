"""Who calls, and what they may do. Keys are kept as hashes; a key is looked up, never compared one by one."""

import hashlib

from msgspec import Struct

from lucius.ports.config import ANY, ApiKey, Config, Scope
from lucius.service.errors import RejectCode, Rejected

ALL_SCOPES: tuple[Scope, ...] = ("submit", "read", "operate", "approve", "admin", "serve")


class Principal(Struct, frozen=True):
    name: str
    scopes: frozenset[str]
    tenants: frozenset[str]
    service: str | None = None
    groups: frozenset[str] = frozenset()

    @property
    def every_tenant(self) -> bool:
        return ANY in self.tenants

    def require(self, scope: str) -> None:
        if scope not in self.scopes:
            raise Rejected(RejectCode.FORBIDDEN_SCOPE, f"this needs a key with the scope {scope}")

    def require_tenant(self, tenant_id: str) -> None:
        if not self.sees(tenant_id):
            raise Rejected(RejectCode.FORBIDDEN_TENANT, f"this key is not good for tenant {tenant_id}")

    def require_every_tenant(self, why: str) -> None:
        if not self.every_tenant:
            message = f'{why}: this needs a key that is good for every tenant (tenants: ["{ANY}"])'
            raise Rejected(RejectCode.FORBIDDEN_TENANT, message)

    def sees(self, tenant_id: str) -> bool:
        return self.every_tenant or tenant_id in self.tenants

    def require_service(self, service: str) -> None:
        self.require("serve")
        if self.service not in (None, ANY, service):
            raise Rejected(RejectCode.FORBIDDEN_SCOPE, f"this key serves {self.service}, not {service}")


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def dev_key(key: str) -> ApiKey:
    """The key `lucius dev` starts with: every scope, every tenant, every service, every group."""
    return ApiKey(name="dev", sha256=hash_key(key), scopes=ALL_SCOPES, tenants=(ANY,), service=ANY, groups=(ANY,))


class Authenticator:
    """Knows the keys of the config in force, and those the process was started with."""

    def __init__(self, started_with: tuple[ApiKey, ...] = ()) -> None:
        self._started_with = started_with
        self._principals: dict[str, Principal] = {}

    def use(self, config: Config) -> None:
        keys = (*config.api_keys, *self._started_with)
        self._principals = {key.sha256: _principal(key) for key in keys}

    def authenticate(self, key: str | None) -> Principal:
        if not key:
            raise Rejected(RejectCode.UNAUTHENTICATED, "send an API key as `Authorization: Bearer <key>`")
        principal = self._principals.get(hash_key(key))
        if principal is None:
            raise Rejected(RejectCode.UNAUTHENTICATED, "this API key is not known")
        return principal


def _principal(key: ApiKey) -> Principal:
    return Principal(key.name, frozenset(key.scopes), frozenset(key.tenants), key.service, frozenset(key.groups))
