"""The OpenAPI document: FastAPI's, with the hot routes described as fully as the rest."""

from typing import Any

from fastapi import FastAPI

from lucius import contract as c
from lucius.api.openapi_parts import WITH_BODY, content, published, ref, refusals
from lucius.api.request_headers import HEADERS, PULL_PATH
from lucius.api.requests import CHECKED_PREFIX

COMMAND = {
    "tenant_id": "acme",
    "request_type": "OCR_EMBEDDING_SIS",
    "input_ref": "blob://in/contract.pdf",
    "output_ref": "blob://out/contract.json",
    "payload": {"sis": {"prompt_set": ["What must the supplier deliver?"]}},
    "schema_version": "v1",
    "idempotency_key": "contract-2026-001",
}
ACK = {
    "jobId": "01JAZ3Y8Q5W2R7T9V1X4B6D8F0",
    "stepId": "ocr",
    "tenant_id": "acme",
    "attempt_no": 1,
    "lease_id": "7b0f3c2e9d5a4f16",
}
HEARTBEAT = {**ACK, "progress": {"done": 7, "total": 20, "unit": "page"}}
SUCCEEDED = {
    **ACK,
    "status": "SUCCEEDED",
    "result": {"pages": 12},
    "artifact_refs": ["file:///workspace/lucius/acme/01JAZ3Y8Q5W2R7T9V1X4B6D8F0/ocr/1/text.json"],
}
FAILED = {
    **ACK,
    "status": "FAILED",
    "failure_class": "RATE_LIMITED",
    "error": {"code": "UPSTREAM_BUSY", "message": "the model answers 429"},
    "retry_after_seconds": 30,
}
TOKEN = "<the directive's callback_token>"

API_KEY: list[dict[str, list[str]]] = [{"apiKey": []}]
CALLBACK_TOKEN: list[dict[str, list[str]]] = [{"callbackToken": []}]
SECURITY_SCHEMES = {
    "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key with the scope that the route needs"},
    "callbackToken": {"type": "http", "scheme": "bearer", "description": "The directive's `callback_token`"},
}

SERVERS = [{"url": "/", "description": "The server that this document comes from"}]

Json = dict[str, Any]


def _post(operation_id: str, summary: str, tag: str, body: type, kind: type, *problems: int, status: int = 200) -> Json:
    responses = {status: content(kind), **refusals((*WITH_BODY, 507, *problems))}
    return {
        "operationId": operation_id,
        "summary": summary,
        "tags": [tag],
        "requestBody": {"required": True, "content": {"application/json": {"schema": ref(body)}}},
        "responses": {str(code): entry for code, entry in responses.items()},
        "security": API_KEY,
    }


def _examples(operation: Json, **examples: Json) -> Json:
    shown = {name: {"value": value} for name, value in examples.items()}
    operation["requestBody"]["content"]["application/json"]["examples"] = shown
    return operation


def _header(name: str, what: str) -> Json:
    return {"name": name, "in": "header", "required": False, "description": what, "schema": {"type": "string"}}


def _commands() -> Json:
    submit = _post(
        "submit_command", "Submit a command", "commands", c.CommandEnvelope, c.Accepted, 401, 403, 409, 429, status=202
    )
    submit["description"] = (
        "Accepted means durable. A repeat, by `idempotency_key` or without one by the same content, gets the job that "
        "is there already. What `payload` may hold is up to the protocol: see `/v1/protocols/{request_type}`."
    )
    where = {"description": "The job", "required": True, "schema": {"type": "string"}}
    submit["responses"]["202"]["headers"] = {"Location": where}
    batch = _post(
        "submit_commands", "Submit up to 500 commands", "commands", c.CommandBatch, c.CommandBatchAnswer, 401, 403
    )
    batch["description"] = "Each command is answered on its own, in order; one that is refused does not touch others."
    return {
        "/v1/commands": {"post": _examples(submit, contract=COMMAND)},
        "/v1/commands:batch": {"post": _examples(batch, two={"commands": [COMMAND, {**COMMAND, "mode": "SAFE"}]})},
    }


def _callback(kind: str, summary: str, body: type, **examples: Json) -> Json:
    operation = _post(f"callback_{kind}", summary, "callbacks", body, c.CallbackAnswer, 401, 403, 404, 409)
    operation["security"] = CALLBACK_TOKEN
    operation["description"] = (
        "Counts only for the step's current attempt and lease. `disposition` says what became of it; STALE is 409. "
        "Fields that are not listed here are kept with the job's events."
    )
    return {"post": _examples(operation, **examples)}


def _callbacks() -> Json:
    batch = _post(
        "send_callbacks", "Send up to 500 callbacks", "callbacks", c.CallbackBatch, c.CallbackBatchAnswer, 401, 403
    )
    batch["security"] = []
    batch["description"] = (
        "Each item brings its own `callback_token` and is answered on its own, in order. Without `Authorization` a "
        "batch may have 1 MiB and 100 items; with a callback token, or a key of scope `serve`, 16 MiB and 500."
    )
    ack = {"type": "ack", "callback_token": TOKEN, **ACK}
    result = {"type": "result", "callback_token": TOKEN, **SUCCEEDED}
    return {
        "/v1/callbacks/ack": _callback("ack", "Take a directive", c.AckCallback, ack=ACK),
        "/v1/callbacks/heartbeat": _callback("heartbeat", "Extend the lease", c.HeartbeatCallback, half=HEARTBEAT),
        "/v1/callbacks/result": _callback(
            "result", "Report success or failure", c.ResultCallback, succeeded=SUCCEEDED, failed=FAILED
        ),
        "/v1/callbacks:batch": {"post": _examples(batch, both={"callbacks": [ack, result]})},
    }


def _pull() -> Json:
    pull = _post("pull_directives", "Pull directives", "services", c.PullRequest, c.PullAnswer, 401, 403, 404, 429)
    pull["description"] = "For the `local:` bus. Needs a key of scope `serve` for this service; waits 50 s at most."
    pull["requestBody"]["required"] = False
    slug = {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"}
    pull["parameters"] = [{"name": "service", "in": "path", "required": True, "schema": slug}]
    return {PULL_PATH: {"post": _examples(pull, ten={"max": 10, "wait_seconds": 30})}}


def _get_job() -> Json:
    wait = {"type": "number", "minimum": 0, "default": 0}
    responses = {200: content(c.JobView), **refusals((401, 403, 404, 422, 429))}
    operation = {
        "operationId": "get_job",
        "summary": "Get a job",
        "description": (
            "`wait` answers as soon as the job has ended, or after that many seconds, 50 at most, as it stands."
        ),
        "tags": ["jobs"],
        "parameters": [
            {"name": "job_id", "in": "path", "required": True, "schema": {"type": "string"}},
            {"name": "wait", "in": "query", "required": False, "schema": wait},
        ],
        "responses": {str(status): entry for status, entry in responses.items()},
    }
    return {"/v1/jobs/{job_id}": {"get": operation}}


def describe(app: FastAPI) -> Json:
    """Return FastAPI's document with the hot routes and the contract's schemas added."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        document["servers"] = SERVERS
        paths = {**document["paths"], **_commands(), **_callbacks(), **_pull(), **_get_job()}
        for path, headers in HEADERS.items():
            declared = [_header(name, what) for name, what in headers.items()]
            paths[path]["post"]["parameters"] = [*paths[path]["post"].get("parameters", []), *declared]
        document["paths"] = dict(sorted(paths.items()))
        components = document.setdefault("components", {})
        schemas = published(_request_bodies(document["paths"]))
        components["schemas"] = dict(sorted({**components.get("schemas", {}), **schemas}.items()))
        components["securitySchemes"] = SECURITY_SCHEMES
        for path, item in document["paths"].items():
            for operation in item.values():
                _finish(path, operation)
        for unused in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(unused, None)
        app.openapi_schema = document
    return app.openapi_schema


def _request_bodies(paths: Json) -> list[Json]:
    operations = [operation for item in paths.values() for operation in item.values()]
    return [operation["requestBody"] for operation in operations if "requestBody" in operation]


def _finish(path: str, operation: Json) -> None:
    is_checked = path.startswith(CHECKED_PREFIX)
    operation.setdefault("security", API_KEY if is_checked else [])
    responses = operation["responses"]
    if "application/json" in responses.get("422", {}).get("content", {}):
        del responses["422"]  # FastAPI's own, which is never sent
    if is_checked and "422" not in responses:  # an unknown query parameter is refused at every address
        responses["422"] = refusals((422,))[422]
        operation["responses"] = dict(sorted(responses.items()))
