"""Liveness, readiness and metrics, for orchestrators and monitoring. Needs no credentials."""

import msgspec
from fastapi import APIRouter, Response

from lucius import contract
from lucius.api.dependencies import ProcessMetrics, ProcessReadiness, ok
from lucius.api.openapi_parts import answers, plain_text
from lucius.api.problems import MEDIA_TYPE, problem, problem_headers
from lucius.usecases.errors import RejectCode, Rejected

router = APIRouter(tags=["health"])


@router.get("/healthz", **answers(contract.Health))
async def healthz() -> Response:
    """Liveness: the process is up and its event loop runs."""
    return ok(contract.Health(status="ok"))


@router.get("/readyz", **answers(contract.Ready))
async def readyz(readiness: ProcessReadiness) -> Response:
    """Readiness, with every check by name. 503 as soon as the process is asked to stop."""
    ready, checks = await readiness.check()
    if ready:
        return ok(contract.Ready(status="ready", checks=checks))
    faults = "; ".join(f"{name}: {check.detail}" for name, check in checks.items() if not check.ok)
    refusal = Rejected(RejectCode.NOT_READY, faults, retry_after_seconds=1)
    said = msgspec.structs.replace(problem(refusal), checks=checks)
    return Response(msgspec.json.encode(said), 503, headers=problem_headers(refusal), media_type=MEDIA_TYPE)


@router.get("/metrics", **plain_text())
async def metrics(process_metrics: ProcessMetrics) -> Response:
    """Metrics in Prometheus exposition format."""
    return Response(await process_metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")
