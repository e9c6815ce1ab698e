"""What FastAPI passes to the routes: the caller with the scope a route needs, the body, and one use case each."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Path, Request, Response

from lucius.api.request_parsing import decode, read_body, read_headers, refuse_encoded, require_json
from lucius.api.slots import RequestSlots
from lucius.bootstrap.control_plane import ControlPlane
from lucius.core.model.routing import normalise_tenant
from lucius.observability.metrics import Metrics
from lucius.observability.readiness import Readiness
from lucius.ports.config import ConfigSource
from lucius.usecases.access.auth import Principal
from lucius.usecases.access.webhook_secrets import WebhookSecrets
from lucius.usecases.catalog.catalog import Catalog
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.operations.operations import Operations
from lucius.usecases.operations.reviews import Reviews
from lucius.usecases.queries.backlog import Backlogs
from lucius.usecases.queries.jobs import Queries
from lucius.usecases.queries.services import ServiceRegistry
from lucius.usecases.submit.duplicate_members import refuse_duplicates
from lucius.usecases.submit.submit import CommandIntake

Part = TypeVar("Part")
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def ok(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")


async def _runtime_of(request: Request) -> ControlPlane:  # async, or FastAPI would run it in a thread
    runtime: ControlPlane | None = request.app.state.runtime
    if runtime is None:
        raise Rejected(RejectCode.NOT_READY, "the server is starting or stopping", retry_after_seconds=1)
    return runtime


async def principal_of(request: Request) -> Principal:
    key, _, _ = read_headers(request.scope["headers"])
    return (await _runtime_of(request)).auth.authenticate(key)


async def reader(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    principal.require("read")
    return principal


async def operator(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    principal.require("operate")
    return principal


async def canceller(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    principal.require_any("operate", "submit")
    return principal


ServiceName = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
Caller = Annotated[Principal, Depends(principal_of)]
Reader = Annotated[Principal, Depends(reader)]
Operator = Annotated[Principal, Depends(operator)]
Canceller = Annotated[Principal, Depends(canceller)]


def _part(pick: Callable[[ControlPlane], Part]) -> Callable[[Request], Awaitable[Part]]:
    """Return a dependency that passes one part of the running control plane to a route, and no other."""

    async def provide(request: Request) -> Part:
        return pick(await _runtime_of(request))

    return provide


ListAdmission = Annotated[CommandIntake, Depends(_part(lambda runtime: runtime.intake))]
Jobs = Annotated[Queries, Depends(_part(lambda runtime: runtime.queries))]
JobControl = Annotated[Operations, Depends(_part(lambda runtime: runtime.operations))]
ReviewQueue = Annotated[Reviews, Depends(_part(lambda runtime: runtime.reviews))]
Services = Annotated[ServiceRegistry, Depends(_part(lambda runtime: runtime.services))]
ServiceBacklogs = Annotated[Backlogs, Depends(_part(lambda runtime: runtime.backlogs))]
Protocols = Annotated[Catalog, Depends(_part(lambda runtime: runtime.protocols))]
Config = Annotated[ConfigSource, Depends(_part(lambda runtime: runtime.config))]
TenantSecrets = Annotated[WebhookSecrets, Depends(_part(lambda runtime: runtime.webhook_secrets))]
ProcessMetrics = Annotated[Metrics, Depends(_part(lambda runtime: runtime.metrics))]
ProcessReadiness = Annotated[Readiness, Depends(_part(lambda runtime: runtime.readiness))]


async def _stream_slots(request: Request) -> RequestSlots:
    await _runtime_of(request)
    slots: RequestSlots = request.app.state.streams
    return slots


EventStreams = Annotated[RequestSlots, Depends(_stream_slots)]


async def body_of(request: Request, kind: type[T]) -> T:
    """Read a small JSON body; an empty one stands for all defaults. Raises Rejected."""
    limit = (await _runtime_of(request)).settings.max_body_bytes
    _, declared, media_type = read_headers(request.scope["headers"])
    require_json(media_type)
    refuse_encoded(request.scope["headers"])
    raw = await read_body(request.receive, limit, declared)
    value: T = decode(raw or b"{}", msgspec.json.Decoder(kind).decode, kind)
    refuse_duplicates(raw or b"{}")
    return value


def tenants_asked(principal: Principal, tenant_id: str | None) -> frozenset[str] | None:
    if tenant_id is None:
        return None
    tenant = normalise_tenant(tenant_id)
    if tenant is None:
        raise Rejected(RejectCode.INVALID_TENANT, "tenant_id is not a tenant id")
    principal.require_tenant(tenant)
    return frozenset({tenant})
