"""Protocols and reviews for the blocking client: every method runs the asynchronous one on the bridge."""

from collections.abc import Generator, Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from lucius.client.bridge import Bridge, documented_as
from lucius.client.protocols import AsyncProtocols
from lucius.client.reviews import AsyncReviews
from lucius.contract.control import Act, ReviewDetail, ReviewGroupList, ReviewItemView, ReviewOutcome
from lucius.contract.protocols import (
    ProtocolDiff,
    ProtocolList,
    ProtocolValidation,
    ProtocolVersionList,
    ProtocolView,
)


@documented_as(AsyncProtocols)
class Protocols:
    def __init__(self, protocols: AsyncProtocols, bridge: Bridge) -> None:
        self._protocols = protocols
        self._bridge = bridge

    def list(self, *, status: str = "PUBLISHED") -> ProtocolList:
        return self._bridge.run(self._protocols.list(status=status))

    def get(self, request_type: str, *, version: int | None = None) -> ProtocolView:
        return self._bridge.run(self._protocols.get(request_type, version=version))

    def versions(self, request_type: str) -> ProtocolVersionList:
        return self._bridge.run(self._protocols.versions(request_type))

    def diff(self, request_type: str, before: int, after: int) -> ProtocolDiff:
        return self._bridge.run(self._protocols.diff(request_type, before, after))

    def validate(self, document: Mapping[str, Any]) -> ProtocolValidation:
        return self._bridge.run(self._protocols.validate(document))

    def draft(self, document: Mapping[str, Any]) -> ProtocolView:
        return self._bridge.run(self._protocols.draft(document))

    def publish(
        self, request_type: str, version: int, *, reason: str | None = None, digest: str | None = None
    ) -> ProtocolView:
        return self._bridge.run(self._protocols.publish(request_type, version, reason=reason, digest=digest))

    def deprecate(
        self, request_type: str, version: int, *, reason: str, successor: Mapping[str, Any] | None = None
    ) -> ProtocolView:
        return self._bridge.run(self._protocols.deprecate(request_type, version, reason=reason, successor=successor))

    def delete(self, request_type: str, version: int) -> ProtocolView:
        return self._bridge.run(self._protocols.delete(request_type, version))


@documented_as(AsyncReviews)
class Reviews:
    def __init__(self, reviews: AsyncReviews, bridge: Bridge) -> None:
        self._reviews = reviews
        self._bridge = bridge

    def list(
        self,
        *,
        tenant: str | None = None,
        status: str = "OPEN",
        kind: str | None = None,
        signature: str | None = None,
        job_id: str | None = None,
        limit: int | None = None,
    ) -> Generator[ReviewItemView, None, None]:
        found = self._reviews.list(
            tenant=tenant, status=status, kind=kind, signature=signature, job_id=job_id, limit=limit
        )
        return self._bridge.iterate(found)

    def groups(self, *, tenant: str | None = None, kind: str | None = None) -> ReviewGroupList:
        return self._bridge.run(self._reviews.groups(tenant=tenant, kind=kind))

    def get(self, review_id: str) -> ReviewDetail:
        return self._bridge.run(self._reviews.get(review_id))

    def act(
        self,
        review_id: str,
        act: Act,
        *,
        reason: str,
        from_step: str | None = None,
        result: Any | UnsetType = UNSET,
        dry_run: bool = False,
    ) -> ReviewOutcome:
        acting = self._reviews.act(review_id, act, reason=reason, from_step=from_step, result=result, dry_run=dry_run)
        return self._bridge.run(acting)
