"""Protocols and their lives: looking is for readers, changing for those with the scope `admin` and every tenant."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from lucius import contract_protocols as contract
from lucius.api.openapi import answers, content, takes
from lucius.api.routes import Reader, Wired, body_of, ok, principal_of
from lucius.core.protocol import Protocol
from lucius.service.auth import Principal
from lucius.service.protocol_views import diff_view, protocol_view, version_view

router = APIRouter(tags=["protocols"])

StatusName = Literal["DRAFT", "PUBLISHED", "DEPRECATED", "ANY"]
Number = Annotated[int, Path(ge=1, le=2**31 - 1)]
VERSION = "/v1/protocols/{request_type}/versions/{version}"


async def admin(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    """Protocols are shared by all tenants, so who changes one acts on all of them."""
    principal.require("admin")
    principal.require_every_tenant("protocols are shared by all tenants")
    return principal


Admin = Annotated[Principal, Depends(admin)]

_DRAFTS: dict[str, Any] = takes(Protocol, contract.ProtocolView, 201, 401, 403, 409)
_DRAFTS["responses"][200] = content(contract.ProtocolView)


@router.get("/v1/protocols", **answers(contract.ProtocolList, 401, 403, 422))
async def list_protocols(who: Reader, runtime: Wired, status: StatusName = "PUBLISHED") -> Response:
    """Protocols that serve new commands, or those in another state; and files, of protocols and of the config, that
    were refused with the reason."""
    problems = [
        contract.ProtocolProblem(file=problem.file, line=problem.line, reason=problem.reason)
        for problem in (*runtime.protocols.problems(), *runtime.config.problems())
    ]
    found = [version for version in await runtime.protocols.everything() if status in ("ANY", version.status)]
    protocols = [protocol_view(version, runtime.protocols) for version in found]
    return ok(contract.ProtocolList(protocols=protocols, problems=problems))


@router.get("/v1/protocols/{request_type}", **answers(contract.ProtocolView, 401, 403, 404, 422))
async def get_protocol(
    request_type: str, who: Reader, runtime: Wired, version: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None
) -> Response:
    """By request type or alias. Without `version`, the one that serves new commands."""
    found = await runtime.protocols.version(request_type, version)
    return ok(protocol_view(found, runtime.protocols))


@router.get("/v1/protocols/{request_type}/versions", **answers(contract.ProtocolVersionList, 401, 403, 404))
async def list_protocol_versions(request_type: str, who: Reader, runtime: Wired) -> Response:
    """Every version in every state, oldest first, with who did what to it, when and why."""
    found = await runtime.protocols.versions(request_type)
    versions = [version_view(version, runtime.protocols) for version in found]
    return ok(contract.ProtocolVersionList(request_type=found[0].protocol.request_type, versions=versions))


@router.get(VERSION, **answers(contract.ProtocolView, 401, 403, 404, 422))
async def get_protocol_version(request_type: str, version: Number, who: Reader, runtime: Wired) -> Response:
    found = await runtime.protocols.version(request_type, version)
    return ok(protocol_view(found, runtime.protocols))


@router.get(VERSION + "/diff/{other}", **answers(contract.ProtocolDiff, 401, 403, 404, 422))
async def diff_protocol_versions(
    request_type: str, version: Number, other: Number, who: Reader, runtime: Wired
) -> Response:
    """What changed from `version` to `other`. Steps are matched by their ids."""
    before = await runtime.protocols.version(request_type, version)
    after = await runtime.protocols.version(request_type, other)
    return ok(diff_view(before, after))


@router.post("/v1/protocols:validate", **takes(Protocol, contract.ProtocolValidation, 200, 401, 403))
async def validate_protocol(request: Request, who: Reader, runtime: Wired) -> Response:
    """Whether a document could be published now, and what there is to say about it. Keeps nothing."""
    findings = await runtime.protocols.validate(await body_of(request, dict))
    valid = not any(finding.fatal for finding in findings)
    return ok(contract.ProtocolValidation(valid=valid, findings=list(findings)))


@router.post("/v1/protocols", **_DRAFTS)
async def draft_protocol(request: Request, who: Admin, runtime: Wired) -> Response:
    """Keep a document as a draft, or replace the draft of that version (200). `findings` says what would keep it from
    being published."""
    version, is_new, findings = await runtime.protocols.draft(await body_of(request, dict), who.name)
    return ok(protocol_view(version, runtime.protocols, findings), 201 if is_new else 200)


@router.delete(VERSION, **answers(contract.ProtocolView, 401, 403, 404, 409, 422, 507))
async def delete_protocol_draft(request_type: str, version: Number, who: Admin, runtime: Wired) -> Response:
    """Only a draft can be deleted. Answers with what it was."""
    return ok(protocol_view(await runtime.protocols.delete(request_type, version, who.name), runtime.protocols))


@router.post(VERSION + ":publish", **takes(contract.PublishRequest, contract.ProtocolView, 200, 401, 403, 404, 409))
async def publish_protocol(
    request: Request, request_type: str, version: Number, who: Admin, runtime: Wired
) -> Response:
    """From now on it serves new commands, and it never changes again. Checked like a file."""
    asked = await body_of(request, contract.PublishRequest)
    published = await runtime.protocols.publish(request_type, version, asked, who.name)
    return ok(protocol_view(published, runtime.protocols))


@router.post(VERSION + ":deprecate", **takes(contract.DeprecateRequest, contract.ProtocolView, 200, 401, 403, 404, 409))
async def deprecate_protocol(
    request: Request, request_type: str, version: Number, who: Admin, runtime: Wired
) -> Response:
    """From now on new commands for it are refused with the successor named; those that name no version go to
    `serving_version`, the newest that is still published. Running jobs go on."""
    asked = await body_of(request, contract.DeprecateRequest)
    deprecated = await runtime.protocols.deprecate(request_type, version, asked, who.name)
    return ok(protocol_view(deprecated, runtime.protocols))
