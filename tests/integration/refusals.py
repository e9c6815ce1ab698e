"""A table of how to provoke each refusal: code, pointer of its first fault, and action."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import uvicorn
from msgspec.structs import replace
from uvicorn.server import ServerState

from lucius.cli.connections import Connections, limited_protocol
from lucius.ports.errors import LedgerFull, VersionConflict
from lucius.usecases.access.auth import hash_key
from lucius.usecases.callbacks.tokens import Claims, TokenSigner
from lucius.usecases.errors import RejectCode
from lucius.usecases.submit import tenant_pacing
from tests.integration.api.protocols import approval, complete_step, fail_step, protocol, task, wait, write_protocols
from tests.support.api import SECRET, Answer, Api, identity, serving, settings_for
from tests.support.until import until

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
    """Add a command that is refused because of `changes`."""

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
command(C.NUMBER_NOT_REPRESENTABLE, "/payload/ocr/pages/0", payload={"ocr": {"pages": [2**60]}})
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


@provokes(C.TENANT_PACED)
async def _(api: Api) -> Answer:
    """Simulate load: the pacer's unit tests use real floods; here only the newest window counts, without waiting."""
    costly: dict[str, Any] = {"MAX_UNIT_SECONDS": 1.0, "MAX_COST_RAISE": 10_000.0}
    with patch.multiple(tenant_pacing, SMOOTHING=1.0, MAX_WAIT_SECONDS=0, MIN_UNITS=1, **costly):
        api.runtime.store.blocked_time.seconds += 1_000
        for number, tenant_id in enumerate(("acme", "acme", "globex")):
            await api.submit(idempotency_key=str(number), tenant_id=tenant_id)
        for _ in range(10_000):
            answer = await api.post("/v1/commands", api.command(idempotency_key="0"))
            if answer.status == 429:
                break
    return answer


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
    await complete_step(api, "unbook")
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
    await fail_step(api, "book")
    return await api.post(f"/v1/jobs/{job_id}:retry", {"from_step": "pay"})


@provokes(C.STEP_SUCCEEDED)
async def _(api: Api) -> Answer:
    stale = await directive_of(api)
    await api.sweep(after=31)
    await api.sweep(after=61)
    await api.succeed(stale)
    await complete_step(api, "ocr")
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
    """Use a genuine token for a step that is not in the ledger, which was restored from a backup."""
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
    """Simulate a full disk: the ledger's tests fill a real one; tests/integration/api/test_disk.py uses the API."""

    async def full(_: Any) -> None:
        raise LedgerFull("no space left")

    api.runtime.store.ledger.commit = full  # type: ignore[method-assign, assignment]
    return await api.post("/v1/commands", api.command())


@provokes(C.LEDGER_CONTENDED)
async def _(api: Api) -> Answer:
    job_id = await api.submit()

    async def moved(_: Any) -> None:
        raise VersionConflict("it moved")

    api.runtime.store.ledger.commit = moved  # type: ignore[method-assign, assignment]
    return await api.post(f"/v1/jobs/{job_id}:cancel")


@provokes(C.PUSH_BUS)
async def _(api: Api) -> Answer:
    folder = api.runtime.settings.data_dir / "push"
    folder.mkdir()
    async with serving(settings_for(folder, dev_api_key=api.key, bus_url="memory:")) as with_broker:
        return await with_broker.post("/v1/services/ocr/directives:pull", {}, key=api.key)


@provokes(C.STREAM_LIMIT)
async def _(api: Api) -> Answer:
    job_id, settings = await api.submit(), api.runtime.settings
    with ExitStack() as held:
        for _ in range(settings.max_streams_per_key):
            slots = api.app.app.state.streams  # type: ignore[attr-defined]
            held.enter_context(slots.hold("dev", "acme"))
        return await api.get(f"/v1/jobs/{job_id}/events", headers={"accept": "text/event-stream"})


@provokes(C.LONG_POLL_LIMIT)
async def _(api: Api) -> Answer:
    job_id, settings = await api.submit(), api.runtime.settings
    with ExitStack() as held:
        for _ in range(settings.max_long_polls_per_key):
            slots = api.app.app.state.long_polls  # type: ignore[attr-defined]
            held.enter_context(slots.hold("dev", "acme"))
        return await api.get(f"/v1/jobs/{job_id}?wait=1")


@provokes(C.PULL_LIMIT)
async def _(api: Api) -> Answer:
    with ExitStack() as held:
        for _ in range(api.runtime.settings.max_waiting_pulls_per_key):
            slots = api.app.app.state.waiting_pulls  # type: ignore[attr-defined]
            held.enter_context(slots.hold("dev", None))
        return await api.post("/v1/services/ocr/directives:pull", {"wait_seconds": 1})


async def over_a_socket(api: Api, sent: bytes, **limits: Any) -> Answer:
    """Return the answer to the second connection, once the first one is counted."""
    connections = Connections(replace(api.runtime.settings, trusted_proxies=(), **limits), api.runtime.metrics)
    config, state = uvicorn.Config(api.app, lifespan="off", log_config=None, ws="none"), ServerState()
    kind: Any = limited_protocol(connections)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10), await loop.create_server(lambda: kind(config, state, {}), "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        first = await asyncio.open_connection(*address)
        await until(lambda: bool(state.connections))
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        for each in (first[1], writer):
            each.close()
    lines = head.decode().lower().split("\r\n")
    return Answer(int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:]), body)


@provokes(C.ADDRESS_LIMIT)
async def _(api: Api) -> Answer:
    return await over_a_socket(api, b"", max_connections_per_address=1)


@provokes(C.CONNECTION_LIMIT)
async def _(api: Api) -> Answer:
    return await over_a_socket(api, b"", max_connections=1)


@provokes(C.REQUEST_TIMEOUT)
async def _(api: Api) -> Answer:
    return await over_a_socket(api, b"GET", header_timeout=0.1)


@provokes(C.HEADERS_TOO_LARGE)
async def _(api: Api) -> Answer:
    return await over_a_socket(api, b"GET /" + b"a" * 40_000)


@provokes(C.NOT_READY)
async def _(api: Api) -> Answer:
    await api.runtime.loops.stop()
    return await api.get("/readyz")


@provokes(C.INTERNAL)
async def _(api: Api) -> Answer:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("a bug of ours")

    api.runtime.intake.submit = broken  # type: ignore[method-assign, assignment]
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
    """Return a job that was booked and failed to pay."""
    job_id = await api.submit(request_type=request_type)
    await complete_step(api, "book")
    await fail_step(api, "pay")
    return job_id


async def failed(api: Api) -> str:
    """Return the id of the review item of a failed job."""
    job_id = await api.submit()
    await fail_step(api, "ocr")
    return f"{job_id}~run1"


@asynccontextmanager
async def server(tmp_path: Path) -> AsyncIterator[Api]:
    (tmp_path / "lucius.yaml").write_text(CONFIG)
    folder = write_protocols(tmp_path / "protocols", *PROTOCOLS)
    async with serving(settings_for(tmp_path, config_path=tmp_path / "lucius.yaml", protocols_dir=folder)) as api:
        yield api
