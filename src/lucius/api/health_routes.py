"""For whoever keeps the process running: is it alive, is it to be sent work, and how is it doing. Open to everyone."""

import msgspec
from fastapi import APIRouter, Response

from lucius import contract
from lucius.api.openapi import answers, plain_text
from lucius.api.problems import MEDIA_TYPE, problem, problem_headers
from lucius.api.routes import Wired, ok
from lucius.service.errors import RejectCode, Rejected

router = APIRouter(tags=["health"])


@router.get("/healthz", **answers(contract.Health))
async def healthz() -> Response:
    """The process is up: that this was answered says that its loop turns."""
    return ok(contract.Health(status="ok"))


@router.get("/readyz", **answers(contract.Ready))
async def readyz(runtime: Wired) -> Response:
    """Whether to send it work, with every check by name. 503 as soon as it is asked to stop."""
    ready, checks = await runtime.readiness.look()
    if ready:
        return ok(contract.Ready(status="ready", checks=checks))
    faults = "; ".join(f"{name}: {check.detail}" for name, check in checks.items() if not check.ok)
    refusal = Rejected(RejectCode.NOT_READY, faults, retry_after_seconds=1)
    said = msgspec.structs.replace(problem(refusal), checks=checks)
    return Response(msgspec.json.encode(said), 503, headers=problem_headers(refusal), media_type=MEDIA_TYPE)


@router.get("/metrics", **plain_text())
async def metrics(runtime: Wired) -> Response:
    """Prometheus exposition."""
    return Response(await runtime.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")
