"""Secrets that sign a tenant's job webhooks; tenants never share one.

A tenant's secrets are those that the config file names for it or, without names, secrets derived from the deployment's
master secret. During a rotation there are several; every webhook carries a signature by each.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping

import structlog

from lucius.ports.config import DERIVED, ConfigSource

log = structlog.get_logger(__name__)

PREFIX = "whsec_"


class WebhookSecrets:
    """Resolves the webhook secrets of tenants.

    `named` are the deployment's webhook secrets by name, `master` is one or several master secrets, newest first. Each
    is `whsec_` and base64; several are separated by spaces.
    """

    def __init__(self, named: Mapping[str, str], master: str, config: ConfigSource) -> None:
        self._named = named
        self._master = master
        self._config = config

    def secrets(self, tenant_id: str) -> list[str]:
        """Return the tenant's secrets, newest first; at least one."""
        policy = (self._config.current().tenants or {}).get(tenant_id)
        found: list[str] = []
        for name in policy.webhook_secrets if policy is not None else ():
            if name == DERIVED:
                found += self._derived(tenant_id)
            elif secret := self._named.get(name):
                found += secret.split()
            else:
                log.error(
                    "a tenant's webhook secret is not set", tenant_id=tenant_id, set=f"LUCIUS_WEBHOOK_SECRET_{name}"
                )
        return found or self._derived(tenant_id)

    def _derived(self, tenant_id: str) -> list[str]:
        return [derive_secret(master, tenant_id) for master in self._master.split()]


def derive_secret(master: str, tenant_id: str) -> str:
    """Derive a tenant's secret, which reveals neither the master secret nor another tenant's."""
    encoded = master.removeprefix(PREFIX)
    key = b64decode(encoded + "=" * (-len(encoded) % 4))
    derived = hmac.digest(key, f"lucius webhook secret of tenant {tenant_id}".encode(), hashlib.sha256)
    return PREFIX + b64encode(derived).decode()
