"""The parts of the OpenAPI document: schemas come from the message contract, so that what is published is checked."""

from typing import Any

import msgspec
from fastapi import Response

from lucius.contract import Problem

COMPONENTS = "#/components/schemas/{name}"
PROBLEM_TITLES = {
    400: "The body is not JSON",
    401: "No valid credentials",
    403: "The credentials are not good for this",
    404: "There is no such thing",
    409: "Conflicts with the state",
    413: "The body is too large",
    415: "The body is not declared as JSON",
    422: "Well-formed, and wrong; `errors` says where",
    429: "Over a limit; try again later",
    500: "Something went wrong on our side",
    503: "Not able to take this now; try again later",
    507: "The ledger is full; nothing was kept",
}
ALWAYS = (500, 503)
WITH_BODY = (400, 413, 415, 422)
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer", "minimum": 0}}}

_used: dict[str, type] = {"Problem": Problem}


def ref(kind: type) -> dict[str, str]:
    """A reference to the schema of a contract class, which is then published under its own name."""
    _used[kind.__name__] = kind
    return {"$ref": COMPONENTS.format(name=kind.__name__)}


def published() -> dict[str, Any]:
    """The schemas of every class that was referred to, and of what these refer to."""
    _, schemas = msgspec.json.schema_components(_used.values(), ref_template=COMPONENTS)
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schemas))  # a default may be a tuple
    return plain


def answers(kind: type, *problems: int) -> dict[str, Any]:
    """FastAPI arguments for a route that answers with `kind` or one of these problems."""
    return {"response_class": Response, "responses": {200: content(kind), **refusals(problems)}}


def takes(body: type, kind: type, status: int, *problems: int) -> dict[str, Any]:
    """The same for a route that changes something, with a JSON body; optional if nothing in it is required."""
    said: dict[str, Any] = {"content": {"application/json": {"schema": ref(body)}}}
    if any(field.required for field in msgspec.structs.fields(body)):
        said["required"] = True
    return {
        "response_class": Response,
        "status_code": status,
        "responses": {status: content(kind), **refusals((*WITH_BODY, 507, *problems))},
        "openapi_extra": {"requestBody": said},
    }


def streams(kind: type, *problems: int) -> dict[str, Any]:
    """The same for a route that also speaks text/event-stream."""
    route = answers(kind, *problems)
    route["responses"][200]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return route


def plain_text() -> dict[str, Any]:
    ok = {"description": "OK", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"response_class": Response, "responses": {200: ok, **refusals(())}}


def content(kind: type) -> dict[str, Any]:
    return {"description": "OK", "content": {"application/json": {"schema": ref(kind)}}}


def refusals(statuses: tuple[int, ...]) -> dict[int | str, Any]:
    return {status: _refusal(status) for status in sorted({*statuses, *ALWAYS})}


def _refusal(status: int) -> dict[str, Any]:
    said = {"description": PROBLEM_TITLES[status], "content": {"application/problem+json": {"schema": ref(Problem)}}}
    return {**said, "headers": RETRY_AFTER} if status in (429, 503) else said
