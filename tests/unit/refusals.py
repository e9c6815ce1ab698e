"""How to get each refusal: a table of (code, the pointer of its first fault, what to do)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from lucius.adapters.bus_memory import MemoryBus
from lucius.ports.errors import LedgerFull, VersionConflict
from lucius.service.auth import hash_key
from lucius.service.errors import RejectCode
from lucius.service.tokens import Claims, TokenSigner
from tests.support.api import SECRET, Answer, Api, identity, serving, settings_for
from tests.unit.api.kinds import approval, break_, do, protocol, task, wait, write_protocols

C = RejectCode
WHY = {"reason": "it must be"}
Provoke = Callable[[Api], Awaitable[Answer]]

TABLE: list[tuple[RejectCode, str | None, Provoke]] = []


def provokes(code: RejectCode, pointer: str | None = None) -> Callable[[Provoke], Provoke]:
    def note(provoke: Provoke) -> Provoke:
        TABLE.append((code, pointer, provoke))
        return provoke

    return note


def command(code: RejectCode, pointer: str | None = None, *, key: str | None = None, **changes: Any) -> None:
    """A command that is refused for what is changed in it."""

    async def provoke(api: Api) -> Answer:
        return await api.post("/v1/commands", api.command(**changes), key=key)

    TABLE.append((code, pointer, provoke))


def request(
    code: RejectCode, method: str, path: str, body: Any = None, pointer: str | None = None, **more: Any
) -> None:
    async def provoke(api: Api) -> Answer:
        return await api.call(method, path, body, **more)

    TABLE.append((code, pointer, provoke))


command(C.INVALID_ENVELOPE, "/payload", payload=[])
command(C.UNKNOWN_FIELD, "/colour", colour="red")
command(C.UNSUPPORTED_SCHEMA_VERSION, "/schema_version", schema_version="v9")
command(C.UNKNOWN_REQUEST_TYPE, "/request_type", request_type="NOPE")
command(C.UNKNOWN_PROTOCOL_VERSION, "/protocol_version", protocol_version=99)
command(C.INVALID_PAYLOAD, "/payload/sis/prompt_set", request_type="SIS")
command(C.FORBIDDEN_REF, "/output_ref", output_ref="ftp://host/file")
command(C.INVALID_TENANT, "/tenant_id", tenant_id="a b")
command(C.MODE_NOT_PERMITTED, None, tenant_id="initech", mode="BURST", doc_id="d")
command(C.DOC_ID_REQUIRED, None, tenant_id="globex", mode="BURST")
command(C.CALLBACK_URL_FORBIDDEN, "/callback_urls/ack", callback_urls={"ack": "https://elsewhere.example/a"})
command(C.NUMBER_NOT_REPRESENTABLE, "/payload/ocr/more", payload={"ocr": {"more": 2**60}})
command(C.TENANT_LIMIT, tenant_id="full")
command(C.MODE_LIMIT, tenant_id="globex", mode="BURST", doc_id="d")
command(C.PROTOCOL_LIMIT, request_type="EMBEDDING")
command(C.UNAUTHENTICATED, key="unknown")
command(C.FORBIDDEN_SCOPE, key="reads")
command(C.FORBIDDEN_TENANT, key="submits", tenant_id="globex")
request(C.MALFORMED_JSON, "POST", "/v1/commands", b"{", pointer="")
request(C.BODY_TOO_LARGE, "POST", "/v1/commands", b" " * 2_000_000)
request(C.UNSUPPORTED_MEDIA_TYPE, "POST", "/v1/commands", b"{}", headers={"content-type": "text/plain"})
request(C.BATCH_TOO_LARGE, "POST", "/v1/commands:batch", {"commands": [0] * 501})
request(C.JOB_NOT_FOUND, "GET", "/v1/jobs/unknown")
request(C.NOT_FOUND, "GET", "/v2")
request(C.METHOD_NOT_ALLOWED, "DELETE", "/v1/jobs")
request(C.INVALID_QUERY, "GET", "/v1/jobs?limit=0", pointer="limit")
request(C.INVALID_CURSOR, "GET", "/v1/jobs?cursor=nonsense")
request(C.REVIEW_NOT_FOUND, "GET", "/v1/review/unknown")


@provokes(C.IDEMPOTENCY_KEY_REUSED)
async def _(api: Api) -> Answer:
    await api.submit(idempotency_key="k")
    return await api.post("/v1/commands", api.command(idempotency_key="k", input_ref="blob://in/other"))


async def draft(api: Api, **changes: Any) -> Answer:
    steps = [{"step_id": "upper", "step_type": "UPPER", "service": "upper"}]
    document = {"protocol_id": "upper", "version": 1, "request_type": "UPPER", "steps": steps}
    return await api.post("/v1/protocols", {**document, **changes})


@provokes(C.INVALID_PROTOCOL, "/steps")
async def _(api: Api) -> Answer:
    return await draft(api, steps=[])


@provokes(C.PROTOCOL_IMMUTABLE, "/version")
async def _(api: Api) -> Answer:
    return await draft(api, protocol_id="ocr", request_type="OCR")


@provokes(C.PROTOCOL_STATE)
async def _(api: Api) -> Answer:
    await draft(api)
    return await api.post("/v1/protocols/UPPER/versions/1:deprecate", {"reason": "nobody uses it"})


@provokes(C.PROTOCOL_DEPRECATED, "/request_type")
async def _(api: Api) -> Answer:
    await api.post("/v1/protocols/OCR/versions/1:deprecate", {"reason": "use the whole pipeline"})
    return await api.post("/v1/commands", api.command())


@provokes(C.GLOBAL_LIMIT)
async def _(api: Api) -> Answer:
    await asyncio.gather(*(api.submit(idempotency_key=str(i)) for i in range(5)))
    return await api.post("/v1/commands", api.command())


@provokes(C.JOB_TERMINAL)
async def _(api: Api) -> Answer:
    job_id = await api.submit()
    await api.finish(job_id)
    return await api.post(f"/v1/jobs/{job_id}:cancel")


@provokes(C.JOB_LIVE)
async def _(api: Api) -> Answer:
    return await api.post(f"/v1/jobs/{await api.submit()}:retry")


@provokes(C.JOB_CANCELLING)
async def _(api: Api) -> Answer:
    job_id = await api.submit()
    await api.pull_one()
    await api.post(f"/v1/jobs/{job_id}:cancel")
    return await api.post(f"/v1/jobs/{job_id}:pause")


@provokes(C.COMPENSATING)
async def _(api: Api) -> Answer:
    job_id = await booked(api, "AUTO")
    return await api.post(f"/v1/jobs/{job_id}:cancel")


@provokes(C.COMPENSATED)
async def _(api: Api) -> Answer:
    job_id = await booked(api, "AUTO")
    await do(api, "unbook")
    return await api.post(f"/v1/review/{job_id}~run1:skip", {**WHY, "result": None})


@provokes(C.REVIEW_OPEN)
async def _(api: Api) -> Answer:
    return await api.post(f"/v1/jobs/{await booked(api, 'MANUAL')}:resume")


@provokes(C.NOTHING_TO_COMPENSATE)
async def _(api: Api) -> Answer:
    return await api.post(f"/v1/review/{await failed(api)}:compensate", WHY)


@provokes(C.REVIEW_CLOSED)
async def _(api: Api) -> Answer:
    review_id = await failed(api)
    await api.post(f"/v1/review/{review_id}:discard", WHY)
    return await api.post(f"/v1/review/{review_id}:discard", WHY)


@provokes(C.ACT_NOT_APPLICABLE)
async def _(api: Api) -> Answer:
    return await api.post(f"/v1/review/{await failed(api)}:adopt", WHY)


@provokes(C.STEP_NOT_REACHED)
async def _(api: Api) -> Answer:
    job_id = await api.submit(request_type="AUTO")
    await break_(api, "book")
    return await api.post(f"/v1/jobs/{job_id}:retry", {"from_step": "pay"})


@provokes(C.STEP_SUCCEEDED)
async def _(api: Api) -> Answer:
    stale = await directive_of(api)
    await api.sweep(after=31)
    await api.sweep(after=61)
    await api.succeed(stale)
    await do(api, "ocr")
    (item,) = (await api.get("/v1/review")).ok()["items"]
    return await api.post(f"/v1/review/{item['review_id']}:adopt", WHY)


@provokes(C.UNKNOWN_SIGNAL)
async def _(api: Api) -> Answer:
    return await api.post(f"/v1/jobs/{await api.submit()}:signal", {"name": "nobody-waits"})


@provokes(C.TOO_MANY_SIGNALS)
async def _(api: Api) -> Answer:
    path = f"/v1/jobs/{await api.submit(request_type='SIGNED')}:signal"
    for _ in range(32):
        (await api.post(path, {"name": "go"})).ok(202)
    return await api.post(path, {"name": "go"})


@provokes(C.VALUE_TOO_LARGE, "/payload")
async def _(api: Api) -> Answer:
    path = f"/v1/jobs/{await api.submit(request_type='SIGNED')}:signal"
    return await api.post(path, {"name": "go", "payload": "x" * 9_000})


async def vote(api: Api, key: str, act: str = "approve") -> Answer:
    (job_id,) = await api.jobs()
    return await api.post(f"/v1/jobs/{job_id}/steps/sign:{act}", key=key)


@provokes(C.NOT_AN_APPROVER)
async def _(api: Api) -> Answer:
    await api.submit(request_type="SIGNED")
    return await vote(api, "stranger")


@provokes(C.ALREADY_VOTED)
async def _(api: Api) -> Answer:
    await api.submit(request_type="SIGNED")
    await vote(api, "ada")
    return await vote(api, "ada")


@provokes(C.APPROVAL_ENDED)
async def _(api: Api) -> Answer:
    await api.submit(request_type="SIGNED")
    await vote(api, "ada", "reject")
    return await vote(api, "ada")


async def directive_of(api: Api) -> dict[str, Any]:
    await api.submit()
    return await api.pull_one()


@provokes(C.INVALID_CALLBACK, "/status")
async def _(api: Api) -> Answer:
    return await api.callback("result", await directive_of(api))


@provokes(C.INVALID_CALLBACK_TOKEN)
async def _(api: Api) -> Answer:
    return await api.callback("ack", await directive_of(api), token="forged.token")


@provokes(C.CALLBACK_TOKEN_EXPIRED)
async def _(api: Api) -> Answer:
    directive = await directive_of(api)
    api.clock.advance(3 * 86_400)
    return await api.callback("ack", directive)


@provokes(C.CALLBACK_TOKEN_MISMATCH)
async def _(api: Api) -> Answer:
    return await api.callback("ack", await directive_of(api), attempt_no=2)


@provokes(C.STEP_NOT_FOUND)
async def _(api: Api) -> Answer:
    """A genuine token for a step that the ledger, restored from a backup, does not know of."""
    body = {**identity(await directive_of(api)), "stepId": "sis"}
    claims = Claims("acme", body["jobId"], "sis", 1, body["lease_id"], 2**60)
    return await api.post("/v1/callbacks/ack", body, key=TokenSigner((SECRET.encode(),)).sign(claims))


@provokes(C.STALE_CALLBACK)
async def _(api: Api) -> Answer:
    directive = await directive_of(api)
    await api.sweep(after=31)
    await api.sweep(after=61)
    return await api.succeed(directive)


@provokes(C.LEDGER_FULL)
async def _(api: Api) -> Answer:
    """The ledger's own tests fill a real disk; tests/unit/api/test_disk.py does it through the API."""

    async def full(_: Any) -> None:
        raise LedgerFull("no space left")

    api.runtime.store.commit = full  # type: ignore[method-assign, assignment]
    return await api.post("/v1/commands", api.command())


@provokes(C.LEDGER_CONTENDED)
async def _(api: Api) -> Answer:
    job_id = await api.submit()

    async def moved(_: Any) -> None:
        raise VersionConflict("it moved")

    api.runtime.store.commit = moved  # type: ignore[method-assign, assignment]
    return await api.post(f"/v1/jobs/{job_id}:cancel")


@provokes(C.PUSH_BUS)
async def _(api: Api) -> Answer:
    msgspec.structs.force_setattr(api.runtime, "publisher", MemoryBus())
    return await api.post("/v1/services/ocr/directives:pull", {})


@provokes(C.NOT_READY)
async def _(api: Api) -> Answer:
    await api.runtime.engine.stop()
    return await api.get("/readyz")


@provokes(C.INTERNAL)
async def _(api: Api) -> Answer:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("a bug of ours")

    api.runtime.ingress.submit = broken  # type: ignore[method-assign, assignment]
    return await api.post("/v1/commands", api.command())


CONFIG = f"""
tenants:
  acme: {{}}
  globex: {{allow_burst: true}}
  initech: {{}}
  full: {{max_inflight: 0}}
limits: {{max_inflight: 5, modes: {{BURST: 0}}, protocols: {{embedding: 0}}}}
api_keys:
  - {{name: reads, sha256: {hash_key("reads")}, scopes: [read], tenants: ["*"]}}
  - {{name: submits, sha256: {hash_key("submits")}, scopes: [submit], tenants: [acme]}}
  - {{name: ada, sha256: {hash_key("ada")}, scopes: [approve], tenants: [acme], groups: [finance]}}
  - {{name: stranger, sha256: {hash_key("stranger")}, scopes: [approve], tenants: [acme]}}
"""
BOOK, PAY = task("book", compensation=task("unbook")), task("pay", retry_safety="NOT_SAFE_TO_RETRY")
PROTOCOLS = (
    protocol("AUTO", BOOK, PAY, policies={"compensation": "auto"}),
    protocol("MANUAL", BOOK, PAY, policies={"compensation": "manual"}),
    protocol("SIGNED", approval("sign", "finance", quorum=2), wait("go", signal="go")),
)


async def booked(api: Api, request_type: str) -> str:
    """Booked, and failed to pay."""
    job_id = await api.submit(request_type=request_type)
    await do(api, "book")
    await break_(api, "pay")
    return job_id


async def failed(api: Api) -> str:
    """The review item of a failed job."""
    job_id = await api.submit()
    await break_(api, "ocr")
    return f"{job_id}~run1"


@asynccontextmanager
async def server(tmp_path: Path) -> AsyncIterator[Api]:
    (tmp_path / "lucius.yaml").write_text(CONFIG)
    folder = write_protocols(tmp_path / "protocols", *PROTOCOLS)
    async with serving(settings_for(tmp_path, config_path=tmp_path / "lucius.yaml", protocols_dir=folder)) as api:
        yield api
