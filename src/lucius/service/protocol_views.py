"""Protocol versions as the API shows them."""

from collections.abc import Iterable
from typing import Any

import msgspec

from lucius import contract_protocols as contract
from lucius.ports.protocols import Mark, ProtocolVersion, VersionStatus
from lucius.service.catalog import Catalog
from lucius.service.protocol_diff import protocol_changes
from lucius.service.timestamps import timestamp


def protocol_view(
    version: ProtocolVersion, catalog: Catalog, findings: Iterable[contract.ProtocolFinding] = ()
) -> contract.ProtocolView:
    document = msgspec.to_builtins(version.protocol)
    return contract.ProtocolView(**document, **_life(version, catalog), findings=list(findings))


def version_view(version: ProtocolVersion, catalog: Catalog) -> contract.ProtocolVersionView:
    request_type, number = version.key
    title = version.protocol.title
    return contract.ProtocolVersionView(
        request_type=request_type, version=number, title=title, **_life(version, catalog)
    )


def diff_view(before: ProtocolVersion, after: ProtocolVersion) -> contract.ProtocolDiff:
    changes = protocol_changes(before.protocol, after.protocol)
    old, new = before.protocol.plan.places, after.protocol.plan.places
    return contract.ProtocolDiff(
        request_type=after.protocol.request_type,
        from_version=before.protocol.version,
        to_version=after.protocol.version,
        steps_added=[step_id for step_id in new if step_id not in old],
        steps_removed=[step_id for step_id in old if step_id not in new],
        steps_changed=[s for s in new if s in old and any(change.stepId == s for change in changes)],
        changes=changes,
    )


def _life(version: ProtocolVersion, catalog: Catalog) -> dict[str, Any]:
    serving = catalog.resolve(version.protocol.request_type)
    return {
        "status": str(version.status),
        "digest": version.digest,
        "file": version.file,
        "created": _act(version.created),
        "changed": _act(version.changed),
        "published": _act(version.published),
        "deprecated": _act(version.deprecated),
        "successor": _successor(version, catalog),
        "serving_version": serving.version if serving else None,
    }


def _successor(version: ProtocolVersion, catalog: Catalog) -> contract.ProtocolSuccessor | None:
    found = catalog.successor(version) if version.status is VersionStatus.DEPRECATED else None
    return contract.ProtocolSuccessor(found.request_type, found.version) if found else None


def _act(mark: Mark | None) -> contract.ProtocolAct | None:
    return contract.ProtocolAct(mark.by, timestamp(mark.at), mark.reason) if mark else None
