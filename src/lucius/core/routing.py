"""From a tenant and a document to a lane: the one place that decides where a job's directives go.

The result is pinned on every attempt and never recomputed, so a change here only ever affects new jobs.
"""

import re
import zlib

from lucius.core.model import Mode, Routing

LANES = 16

_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


def normalise_tenant(tenant_id: str) -> str | None:
    """The tenant id as it is used everywhere behind the door, or None if it is not a tenant id."""
    tenant = tenant_id.strip()
    # Lower-casing maps a few foreign letters onto ASCII (the Kelvin sign becomes "k"): two tenants must not meet there.
    if not tenant.isascii():
        return None
    tenant = tenant.lower()
    return tenant if _TENANT.fullmatch(tenant) else None


def normalise_doc(doc_id: str | None) -> str:
    """The document's part of a routing key; empty if there is none."""
    return doc_id.strip().lower() if doc_id else ""


def resolved(mode: Mode) -> Mode:
    """SAFE is another word for DEFAULT."""
    return Mode.BURST if mode is Mode.BURST else Mode.DEFAULT


def routing_key(tenant: str, doc_id: str | None, mode: Mode) -> str:
    """Sticky per tenant, or spread by document under BURST. Plain concatenation, as finally decided."""
    if mode is not Mode.BURST:
        return tenant
    doc = normalise_doc(doc_id)
    if not doc:
        raise ValueError("BURST routing needs a doc_id")
    return tenant + doc


def lane_of(key: str) -> int:
    return zlib.crc32(key.encode()) % LANES


def topic(layout: str, mode: Mode, lane: int) -> str:
    """Where a lane's directives are published. Only the isolated layout keeps the two modes apart."""
    match layout:
        case "shared":
            return f"global-bus-p{lane}"
        case "isolated":
            return f"global-{resolved(mode).lower()}-p{lane}"
        case _:
            raise ValueError(f"unknown topic layout {layout!r}: it is shared or isolated")


def route(tenant: str, doc_id: str | None, mode: Mode, source: str, reason: str) -> Routing:
    """The routing of a new job. `tenant` is normalised already; BURST without a doc_id is the caller's to refuse."""
    key = routing_key(tenant, doc_id, mode)
    return Routing(
        resolved_mode=resolved(mode),
        lane=lane_of(key),
        routing_key_used=key,
        decision_source=source,
        decision_reason=reason,
    )
