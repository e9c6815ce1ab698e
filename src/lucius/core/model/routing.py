"""Routing from tenant and document to a lane. No other code decides where a job's directives go.

The result is pinned on every attempt and never recomputed, so a change here affects only new jobs.
"""

import re
import zlib

from lucius.core.model.records import Routing
from lucius.core.model.statuses import Mode

LANES = 16

_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


def normalise_tenant(tenant_id: str) -> str | None:
    """Return the normalised tenant id, or None if it is invalid."""
    tenant = tenant_id.strip()
    # Lower-casing maps a few non-ASCII letters onto ASCII (the Kelvin sign becomes "k"): two tenants must not collide.
    if not tenant.isascii():
        return None
    tenant = tenant.lower()
    return tenant if _TENANT.fullmatch(tenant) else None


def normalise_doc(doc_id: str | None) -> str:
    """Return the document's part of a routing key; empty if there is none."""
    return doc_id.strip().lower() if doc_id else ""


def resolved(mode: Mode) -> Mode:
    """Return the mode that routing uses: SAFE is the same as DEFAULT."""
    return Mode.BURST if mode is Mode.BURST else Mode.DEFAULT


def routing_key(tenant: str, doc_id: str | None, mode: Mode) -> str:
    """Return the tenant or, in BURST mode, tenant and document concatenated.

    Raises ValueError for BURST without a doc_id.
    """
    if mode is not Mode.BURST:
        return tenant
    doc = normalise_doc(doc_id)
    if not doc:
        raise ValueError("BURST routing needs a doc_id")
    return tenant + doc


def lane_of(key: str) -> int:
    return zlib.crc32(key.encode()) % LANES


def topic(layout: str, mode: Mode, lane: int) -> str:
    """Return the topic of a lane; only the isolated layout separates the modes.

    Raises ValueError for an unknown layout.
    """
    match layout:
        case "shared":
            return f"global-bus-p{lane}"
        case "isolated":
            return f"global-{resolved(mode).lower()}-p{lane}"
        case _:
            raise ValueError(f"unknown topic layout {layout!r}: it is shared or isolated")


def route(tenant: str, doc_id: str | None, mode: Mode, source: str, reason: str) -> Routing:
    """Return the routing of a new job for a normalised tenant. Raises ValueError for BURST without a doc_id."""
    key = routing_key(tenant, doc_id, mode)
    return Routing(
        resolved_mode=resolved(mode),
        lane=lane_of(key),
        routing_key_used=key,
        decision_source=source,
        decision_reason=reason,
    )
