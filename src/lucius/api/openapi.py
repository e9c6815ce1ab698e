"""The OpenAPI document: schemas come from the message contract, so that what is published is what is checked."""

from typing import Any

import msgspec
from fastapi import FastAPI, Response

from lucius import contract

COMPONENTS = "#/components/schemas/{name}"
PROBLEM_TITLES = {
    400: "Malformed JSON",
    401: "No valid credentials",
    403: "Not allowed",
    404: "Not found",
    409: "Conflicts with the state",
    413: "Body too large",
    415: "Not JSON",
    422: "Invalid",
    429: "Over a limit",
    503: "Not able to take this now",
    507: "Ledger full",
}

_used: dict[str, type] = {"Problem": contract.Problem}


def _ref(kind: type) -> dict[str, str]:
    _used[kind.__name__] = kind
    return {"$ref": COMPONENTS.format(name=kind.__name__)}


def answers(kind: type, *problems: int) -> dict[str, Any]:
    """FastAPI arguments for a route that answers with `kind` or one of these problems."""
    return {"response_class": Response, "responses": {200: _content(kind), **_problems(problems)}}


def takes(body: type, kind: type, status: int, *problems: int) -> dict[str, Any]:
    """The same for a route with an optional JSON body."""
    return {
        "response_class": Response,
        "status_code": status,
        "responses": {status: _content(kind), **_problems((400, 413, *problems))},
        "openapi_extra": {"requestBody": {"content": {"application/json": {"schema": _ref(body)}}}},
    }


def _content(kind: type) -> dict[str, Any]:
    return {"description": "OK", "content": {"application/json": {"schema": _ref(kind)}}}


def _problems(statuses: tuple[int, ...]) -> dict[int | str, Any]:
    schema = {"$ref": COMPONENTS.format(name="Problem")}
    return {
        status: {"description": PROBLEM_TITLES[status], "content": {"application/problem+json": {"schema": schema}}}
        for status in statuses
    }


def _hot(summary: str, tag: str, body: type, kind: type, status: int, problems: tuple[int, ...]) -> dict[str, Any]:
    statuses = (400, 401, 403, 413, 415, 422, 503, 507, *problems)
    responses = {str(code): entry for code, entry in {status: _content(kind), **_problems(statuses)}.items()}
    return {
        "post": {
            "summary": summary,
            "tags": [tag],
            "operationId": summary.lower().replace(" ", "_"),
            "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(body)}}},
            "responses": responses,
            "security": [{"callbackToken": []}] if tag == "callbacks" else [{"apiKey": []}],
        }
    }


def _callback(summary: str, body: type) -> dict[str, Any]:
    return _hot(summary, "callbacks", body, contract.CallbackAnswer, 200, (404, 409))


def _get_job() -> dict[str, Any]:
    responses = {str(status): entry for status, entry in _problems((401, 403, 404, 422, 503)).items()}
    wait = {"type": "number", "minimum": 0, "maximum": 60, "default": 0}
    return {
        "get": {
            "summary": "Get a job",
            "description": "`wait` answers as soon as the job has ended, or after that many seconds as it stands.",
            "tags": ["jobs"],
            "operationId": "get_job",
            "parameters": [
                {"name": "job_id", "in": "path", "required": True, "schema": {"type": "string"}},
                {"name": "wait", "in": "query", "required": False, "schema": wait},
            ],
            "responses": {"200": _content(contract.JobView), **responses},
        }
    }


def hot_paths() -> dict[str, Any]:
    c = contract
    pull = _hot("Pull directives", "services", c.PullRequest, c.PullAnswer, 200, ())
    pull["post"]["parameters"] = [
        {
            "name": "service",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"},
        }
    ]
    pull["post"]["requestBody"]["required"] = False
    return {
        "/v1/jobs/{job_id}": _get_job(),
        "/v1/commands": _hot("Submit a command", "commands", c.CommandEnvelope, c.Accepted, 202, (409, 429)),
        "/v1/commands:batch": _hot("Submit commands", "commands", c.CommandBatch, c.BatchAnswer, 200, ()),
        "/v1/callbacks/ack": _hot("Acknowledge", "callbacks", c.AckCallback, c.CallbackAnswer, 200, (404, 409)),
        "/v1/callbacks/heartbeat": _hot(
            "Heartbeat", "callbacks", c.HeartbeatCallback, c.CallbackAnswer, 200, (404, 409)
        ),
        "/v1/callbacks/result": _hot(
            "Report a result", "callbacks", c.ResultCallback, c.CallbackAnswer, 200, (404, 409)
        ),
        "/v1/callbacks:batch": _hot("Send callbacks", "callbacks", c.CallbackBatch, c.BatchAnswer, 200, ()),
        "/v1/services/{service}/directives:pull": pull,
    }


def describe(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document with the hot routes and the contract's schemas put in."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        document["paths"] = dict(sorted({**document["paths"], **hot_paths()}.items()))
        _, schemas = msgspec.json.schema_components(_used.values(), ref_template=COMPONENTS)
        components = document.setdefault("components", {})
        components["schemas"] = dict(sorted({**components.get("schemas", {}), **schemas}.items()))
        components["securitySchemes"] = {
            "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key"},
            "callbackToken": {"type": "http", "scheme": "bearer", "description": "The directive's callback_token"},
        }
        for path, item in document["paths"].items():
            for operation in item.values():
                if path.startswith("/v1/"):
                    operation.setdefault("security", [{"apiKey": []}])
        app.openapi_schema = document
    return app.openapi_schema
