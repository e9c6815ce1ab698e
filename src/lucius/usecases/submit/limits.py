"""Derives the mode of a command and the limits it must pass from the config file and the settings."""

from msgspec import Struct

from lucius.core.model.inputs import Cap
from lucius.core.model.routing import normalise_doc, resolved
from lucius.core.model.statuses import Mode
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.config import ANY, Config, TenantPolicy
from lucius.ports.errors import LimitReached
from lucius.usecases.errors import RejectCode, Rejected

REQUEST = "REQUEST"
TENANT_CONFIG = "TENANT_CONFIG"
GLOBAL_CONFIG = "GLOBAL_CONFIG"


class LimitDefaults(Struct, frozen=True):
    """LUCIUS_GLOBAL_INFLIGHT and LUCIUS_TENANT_INFLIGHT: limits for what the config file leaves out."""

    global_inflight: int = 100_000
    tenant_inflight: int = 10_000


class ModeChoice(Struct, frozen=True):
    """The mode of a job, with the source of the choice and the reason, as pinned on every attempt."""

    mode: Mode
    source: str
    reason: str


def resolve_mode(config: Config, requested: str | None, tenant: str, doc_id: str | None) -> ModeChoice:
    """Resolve the mode: request, else tenant config, else global default.

    Raises Rejected: MODE_NOT_PERMITTED or DOC_ID_REQUIRED.
    """
    choice = _choose(config, requested, tenant)
    if choice.mode is Mode.BURST:
        if not _burst_permitted(config, tenant):
            raise Rejected(RejectCode.MODE_NOT_PERMITTED, f"tenant {tenant} may not use BURST")
        if not normalise_doc(doc_id):
            raise Rejected(RejectCode.DOC_ID_REQUIRED, f"BURST spreads by doc_id, and there is none ({choice.reason})")
    return choice


def _choose(config: Config, requested: str | None, tenant: str) -> ModeChoice:
    if requested is not None:
        return ModeChoice(resolved(Mode(requested)), REQUEST, f"the request asks for {requested}")
    policy = _policy(config, tenant)
    if policy is not None and policy.mode is not None:
        return ModeChoice(resolved(policy.mode), TENANT_CONFIG, f"the tenant's mode is {policy.mode}")
    return ModeChoice(resolved(config.default_mode), GLOBAL_CONFIG, f"the default mode is {config.default_mode}")


def _policy(config: Config, tenant: str) -> TenantPolicy | None:
    if config.tenants is None:
        return None
    return config.tenants.get(tenant) or config.tenants.get(ANY)


def _burst_permitted(config: Config, tenant: str) -> bool:
    if config.tenants is None:  # no config file governs tenants: development
        return True
    policy = _policy(config, tenant)
    return policy is not None and policy.allow_burst


def caps(
    config: Config, defaults: LimitDefaults, tenant: str, mode: Mode, protocol: ProtocolDefinition
) -> tuple[Cap, ...]:
    """Return the limits that one more job must pass, the most specific first: its error is the most informative."""
    limits = config.limits
    policy = _policy(config, tenant)
    mode = resolved(mode)
    found = (
        (
            f"jobs/tenant/{tenant}",
            _first(policy.max_inflight if policy else None, limits.tenant_max_inflight, defaults.tenant_inflight),
        ),
        (f"jobs/mode/{mode}", limits.modes.get(mode)),
        (
            f"jobs/protocol/{protocol.protocol_id}",
            _first(limits.protocols.get(protocol.protocol_id), protocol.policies.max_inflight),
        ),
        ("jobs", _first(limits.max_inflight, defaults.global_inflight)),
    )
    return tuple(Cap(counter, limit) for counter, limit in found if limit is not None)


def _first(*limits: int | None) -> int | None:
    return next((limit for limit in limits if limit is not None), None)


_LIMIT_CODES = {
    "jobs/tenant/": RejectCode.TENANT_LIMIT,
    "jobs/mode/": RejectCode.MODE_LIMIT,
    "jobs/protocol/": RejectCode.PROTOCOL_LIMIT,
}


def over_limit(error: LimitReached, retry_after_seconds: int = 1) -> Rejected:
    """Return the refusal for a reached cap; the counter's name selects the code, by default the global limit's."""
    code = next(
        (code for prefix, code in _LIMIT_CODES.items() if error.counter.startswith(prefix)), RejectCode.GLOBAL_LIMIT
    )
    detail = f"the limit is {error.limit} jobs in flight ({error.counter})"
    return Rejected(code, detail, retry_after_seconds=retry_after_seconds)
