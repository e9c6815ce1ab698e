"""Authentication and authorisation by API key. Keys are stored as hashes and looked up by hash, not compared."""

import hashlib
from collections.abc import Callable, Iterator, KeysView
from contextlib import contextmanager

import structlog
from msgspec import Struct

from lucius.ports.config import ANY, MIN_API_KEY_CHARS, ApiKey, Config, KeyScope
from lucius.usecases.errors import RejectCode, Rejected

log = structlog.get_logger(__name__)

ALL_SCOPES: tuple[KeyScope, ...] = ("submit", "read", "operate", "approve", "admin", "serve")


class Principal(Struct, frozen=True):
    """An authenticated caller, and what its key permits."""

    name: str
    scopes: frozenset[str]
    tenants: frozenset[str]
    service: str | None = None
    groups: frozenset[str] = frozenset()
    credential: str = ""
    """SHA-256 of the key used for authentication; empty for callers inside the process."""

    @property
    def every_tenant(self) -> bool:
        return ANY in self.tenants

    def require(self, scope: str) -> None:
        if scope not in self.scopes:
            raise Rejected(RejectCode.FORBIDDEN_SCOPE, f"this needs a key with the scope {scope}")

    def require_any(self, *scopes: str) -> None:
        if not self.scopes.intersection(scopes):
            raise Rejected(RejectCode.FORBIDDEN_SCOPE, f"this needs a key with the scope {' or '.join(scopes)}")

    def require_tenant(self, tenant_id: str) -> None:
        if not self.sees(tenant_id):
            raise Rejected(RejectCode.FORBIDDEN_TENANT, f"this key is not good for tenant {tenant_id}")

    def require_every_tenant(self, why: str) -> None:
        if not self.every_tenant:
            message = f'{why}: this needs a key that is good for every tenant (tenants: ["{ANY}"])'
            raise Rejected(RejectCode.FORBIDDEN_TENANT, message)

    @property
    def seen_tenants(self) -> frozenset[str] | None:
        """Tenants that the key may access; None for all."""
        return None if self.every_tenant else self.tenants

    def sees(self, tenant_id: str) -> bool:
        return self.every_tenant or tenant_id in self.tenants

    @property
    def serves_tenants(self) -> frozenset[str] | None:
        """Tenants whose directives the key may pull; None for all. A serve key without tenants serves all of them."""
        return None if self.every_tenant or not self.tenants else self.tenants

    def require_service(self, service: str) -> None:
        self.require("serve")
        if self.service not in (None, ANY, service):
            raise Rejected(RejectCode.FORBIDDEN_SCOPE, f"this key serves {self.service}, not {service}")


def hash_key(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def dev_key(key: str) -> ApiKey:
    """Return the key that `lucius dev` starts with: every scope, tenant, service and group."""
    return ApiKey(name="dev", sha256=hash_key(key), scopes=ALL_SCOPES, tenants=(ANY,), service=ANY, groups=(ANY,))


class Authenticator:
    """Authenticates by the keys of the config in force and those that the process was started with."""

    def __init__(self, started_with: tuple[ApiKey, ...] = (), dev: bool = False) -> None:
        """With `dev`, keys of any length are accepted."""
        self._min_chars = 0 if dev else MIN_API_KEY_CHARS
        self._started_with = started_with
        self._principals: dict[str, Principal] = {}
        self._watchers: dict[str, dict[Callable[[], object], None]] = {}

    def use(self, config: Config) -> None:
        """Adopt the keys of a config. Removed and changed keys are revoked, for live streams and polls too."""
        keys = (*config.api_keys, *self._started_with)
        before, self._principals = self._principals, {key.sha256: _principal(key) for key in keys}
        revoked = [who for who in before.values() if not self.is_current(who)]
        if revoked:
            log.info("API keys were revoked or changed", names=[who.name for who in revoked])
        for who in revoked:
            for notify in list(self._watchers.get(who.credential, ())):
                notify()

    @property
    def key_count(self) -> int:
        return len(self._principals)

    @property
    def watched_keys(self) -> KeysView[str]:
        """Credentials of the keys whose revocation is waited for."""
        return self._watchers.keys()

    def is_current(self, who: Principal) -> bool:
        """Return True if the key is still in force with the rights that it had when it was authenticated.

        Callers inside the process have no key and stay current.
        """
        return not who.credential or self._principals.get(who.credential) == who

    def require_current(self, who: Principal) -> None:
        if not self.is_current(who):
            raise Rejected(RejectCode.UNAUTHENTICATED, "this API key was revoked or changed")

    @contextmanager
    def watch(self, who: Principal, revoked: Callable[[], object]) -> Iterator[None]:
        """Call `revoked` if the key is revoked or changed while the block runs."""
        watchers = self._watchers.setdefault(who.credential, {})
        watchers[revoked] = None
        try:
            yield
        finally:
            watchers.pop(revoked, None)
            if not watchers:
                self._watchers.pop(who.credential, None)

    def authenticate(self, key: str | None) -> Principal:
        if not key:
            raise Rejected(RejectCode.UNAUTHENTICATED, "send an API key as `Authorization: Bearer <key>`")
        principal = self._principals.get(hash_key(key)) if len(key) >= self._min_chars else None
        if principal is None:
            raise Rejected(RejectCode.UNAUTHENTICATED, "this API key is not known")
        return principal


def _principal(key: ApiKey) -> Principal:
    scopes, tenants, groups = frozenset(key.scopes), frozenset(key.tenants), frozenset(key.groups)
    return Principal(key.name, scopes, tenants, key.service, groups, key.sha256)
