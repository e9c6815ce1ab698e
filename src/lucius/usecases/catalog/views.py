"""Converts protocol versions to their API representation."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from lucius.contract import protocols as contract
from lucius.ports.errors import ProtocolError
from lucius.ports.protocols import Mark, ProtocolVersion, VersionStatus
from lucius.usecases.access.auth import Principal
from lucius.usecases.catalog.catalog import Catalog
from lucius.usecases.catalog.diff import protocol_changes
from lucius.usecases.timestamps import timestamp


def protocol_view(
    version: ProtocolVersion, catalog: Catalog, who: Principal, findings: Iterable[contract.ProtocolFinding] = ()
) -> contract.ProtocolView:
    document = msgspec.to_builtins(version.protocol)
    return contract.ProtocolView(**document, **_life(version, catalog, who), findings=list(findings))


def version_view(version: ProtocolVersion, catalog: Catalog, who: Principal) -> contract.ProtocolVersionView:
    request_type, number = version.key
    title = version.protocol.title
    return contract.ProtocolVersionView(
        request_type=request_type, version=number, title=title, **_life(version, catalog, who)
    )


def problem_view(problem: ProtocolError, who: Principal) -> contract.ProtocolProblem:
    return contract.ProtocolProblem(file=_shown_file(problem.file, who), line=problem.line, reason=problem.reason)


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


def _shown_file(file: str, who: Principal) -> str:
    """Return the path for a key that is good for every tenant; for others the name below the protocols directory."""
    path = Path(file)
    if who.every_tenant:
        return file
    return f"schemas/{path.name}" if path.parent.name == "schemas" else path.name


def _life(version: ProtocolVersion, catalog: Catalog, who: Principal) -> dict[str, Any]:
    serving = catalog.resolve(version.protocol.request_type)
    return {
        "status": str(version.status),
        "digest": version.digest,
        "file": _shown_file(version.file, who),
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
