"""Protocols and their versions. Reading needs `read`; validating and changing need `admin` and every tenant."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from lucius.api.dependencies import Config, Protocols, Reader, body_of, ok, principal_of
from lucius.api.openapi_parts import answers, content, takes
from lucius.contract import protocols as contract
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.usecases.access.auth import Principal
from lucius.usecases.catalog.views import diff_view, problem_view, protocol_view, version_view

router = APIRouter(tags=["protocols"])

StatusName = Literal["DRAFT", "PUBLISHED", "DEPRECATED", "ANY"]
Number = Annotated[int, Path(ge=1, le=2**31 - 1)]
VERSION = "/v1/protocols/{request_type}/versions/{version}"
VERSION_ITSELF = "/v1/protocols/{request_type}/versions/{version:name}"


async def admin(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    """Require `admin` for every tenant: protocols are shared, so a change acts on all of them."""
    principal.require("admin")
    principal.require_every_tenant("protocols are shared by all tenants")
    return principal


Admin = Annotated[Principal, Depends(admin)]

_DRAFTS: dict[str, Any] = takes(ProtocolDefinition, contract.ProtocolView, 201, 401, 403, 409)
_DRAFTS["responses"][200] = content(contract.ProtocolView)


@router.get("/v1/protocols", **answers(contract.ProtocolList, 401, 403, 422))
async def list_protocols(who: Reader, catalog: Protocols, config: Config, status: StatusName = "PUBLISHED") -> Response:
    """List protocols that serve new commands, or those in another state, and refused protocol files with the reason.

    A key that is good for every tenant also sees faults of the config file, which names tenants, and the paths of the
    files; other keys see their names.
    """
    config_problems = config.problems() if who.every_tenant else ()
    problems = [
        problem_view(problem, who)
        for refused in (*catalog.problems(), *config_problems)
        for problem in refused.everything
    ]
    found = [version for version in await catalog.everything() if status in ("ANY", version.status)]
    protocols = [protocol_view(version, catalog, who) for version in found]
    return ok(contract.ProtocolList(protocols=protocols, problems=problems))


@router.get("/v1/protocols/{request_type}", **answers(contract.ProtocolView, 401, 403, 404, 422))
async def get_protocol(
    request_type: str, who: Reader, catalog: Protocols, version: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None
) -> Response:
    """Get a protocol by request type or alias: without `version`, the one that serves new commands."""
    found = await catalog.version(request_type, version)
    return ok(protocol_view(found, catalog, who))


@router.get("/v1/protocols/{request_type}/versions", **answers(contract.ProtocolVersionList, 401, 403, 404))
async def list_protocol_versions(request_type: str, who: Reader, catalog: Protocols) -> Response:
    """List every version in every state, oldest first, with its changes: by whom, when and why."""
    found = await catalog.versions(request_type)
    versions = [version_view(version, catalog, who) for version in found]
    return ok(contract.ProtocolVersionList(request_type=found[0].protocol.request_type, versions=versions))


@router.get(VERSION_ITSELF, **answers(contract.ProtocolView, 401, 403, 404, 422))
async def get_protocol_version(request_type: str, version: Number, who: Reader, catalog: Protocols) -> Response:
    found = await catalog.version(request_type, version)
    return ok(protocol_view(found, catalog, who))


@router.get(VERSION + "/diff/{other}", **answers(contract.ProtocolDiff, 401, 403, 404, 422))
async def diff_protocol_versions(
    request_type: str, version: Number, other: Number, who: Reader, catalog: Protocols
) -> Response:
    """List the changes from `version` to `other`. Steps are matched by their ids."""
    before = await catalog.version(request_type, version)
    after = await catalog.version(request_type, other)
    return ok(diff_view(before, after))


@router.post("/v1/protocols:validate", **takes(ProtocolDefinition, contract.ProtocolValidation, 200, 401, 403))
async def validate_protocol(request: Request, who: Admin, catalog: Protocols) -> Response:
    """Check whether a document could be published now, and list all findings. Stores nothing. Needs the rights that
    publishing needs, because a check costs work."""
    findings = await catalog.validate(await body_of(request, dict))
    valid = not any(finding.fatal for finding in findings)
    return ok(contract.ProtocolValidation(valid=valid, findings=list(findings)))


@router.post("/v1/protocols", **_DRAFTS)
async def draft_protocol(request: Request, who: Admin, catalog: Protocols) -> Response:
    """Store a document as a draft, or replace the draft of that version (200).

    `findings` lists what would prevent its publication.
    """
    version, is_new, findings = await catalog.draft(await body_of(request, dict), who.name)
    return ok(protocol_view(version, catalog, who, findings), 201 if is_new else 200)


@router.delete(VERSION_ITSELF, **answers(contract.ProtocolView, 401, 403, 404, 409, 422, 507))
async def delete_protocol_draft(request_type: str, version: Number, who: Admin, catalog: Protocols) -> Response:
    """Delete a draft; other versions can't be deleted. Answers with the deleted version."""
    return ok(protocol_view(await catalog.delete(request_type, version, who.name), catalog, who))


@router.post(VERSION + ":publish", **takes(contract.PublishRequest, contract.ProtocolView, 200, 401, 403, 404, 409))
async def publish_protocol(
    request: Request, request_type: str, version: Number, who: Admin, catalog: Protocols
) -> Response:
    """Publish a draft: it serves new commands and never changes again. It is checked like a file."""
    asked = await body_of(request, contract.PublishRequest)
    published = await catalog.publish(request_type, version, asked, who.name)
    return ok(protocol_view(published, catalog, who))


@router.post(VERSION + ":deprecate", **takes(contract.DeprecateRequest, contract.ProtocolView, 200, 401, 403, 404, 409))
async def deprecate_protocol(
    request: Request, request_type: str, version: Number, who: Admin, catalog: Protocols
) -> Response:
    """Deprecate a version: new commands for it are refused, and the refusal names the successor.

    Commands that name no version go to `serving_version`, the newest that is still published. Running jobs go on.
    """
    asked = await body_of(request, contract.DeprecateRequest)
    deprecated = await catalog.deprecate(request_type, version, asked, who.name)
    return ok(protocol_view(deprecated, catalog, who))
