"""Parts of the OpenAPI document. Schemas come from the message contract, so that what is published is checked."""

import json
import re
from typing import Any

import msgspec
from fastapi import Response

from lucius.api.json_schemas import clarify_schema, with_absent_fields
from lucius.contract import Problem

COMPONENTS = "#/components/schemas/{name}"
REFERENCE = re.compile(COMPONENTS.format(name=r"(\w+)"))
PROBLEM_TITLES = {
    400: "The body is not JSON",
    401: "No valid credentials",
    403: "The credentials are not good for this",
    404: "There is no such thing",
    409: "Conflicts with the state",
    413: "The body is too large",
    415: "The body is not declared as JSON",
    422: "Well-formed but invalid; `errors` lists the faults",
    429: "Over a limit; try again later",
    500: "Internal error",
    503: "Not able to take this now; try again later",
    507: "The ledger is full; nothing was kept",
}
ALWAYS = (500, 503)
WITH_BODY = (400, 413, 415, 422)
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer", "minimum": 0}}}

_used: dict[str, type] = {"Problem": Problem}


def ref(kind: type) -> dict[str, str]:
    """Return a reference to the schema of a contract class, which is then published under its own name."""
    _used[kind.__name__] = kind
    return {"$ref": COMPONENTS.format(name=kind.__name__)}


def published(request_bodies: list[Any]) -> dict[str, Any]:
    """Return the schemas of every class that was referred to, and of those that these refer to in turn.

    A default is stated as such only where the field is always sent.
    """
    _, schemas = msgspec.json.schema_components(_used.values(), ref_template=COMPONENTS)
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schemas))  # a default may be a tuple
    may_be_absent = _reachable(request_bodies, plain) | _omitting_defaults()
    return {
        name: (with_absent_fields if name in may_be_absent else clarify_schema)(schema)
        for name, schema in plain.items()
    }


def _omitting_defaults() -> set[str]:
    """Return the names of the classes that leave out fields with their default value when they are sent."""
    found: set[str] = set()
    seen: set[type] = set()
    pending: list[Any] = list(msgspec.inspect.multi_type_info(_used.values()))
    while pending:
        kind = pending.pop()
        if isinstance(kind, msgspec.inspect.StructType):
            if kind.cls in seen:
                continue
            seen.add(kind.cls)
            if kind.cls.__struct_config__.omit_defaults:
                found.add(kind.cls.__name__)
        if isinstance(kind, msgspec.inspect.Type | msgspec.inspect.Field):
            members = [getattr(kind, name) for name in kind.__struct_fields__]
            pending += [part for member in members for part in (member if isinstance(member, tuple) else (member,))]
    return found


def _reachable(start: list[Any], schemas: dict[str, Any]) -> set[str]:
    """Return the names of the components that these parts of the document refer to, directly or not."""
    found: set[str] = set()
    pending = set(REFERENCE.findall(json.dumps(start)))
    while pending:
        name = pending.pop()
        found.add(name)
        pending |= set(REFERENCE.findall(json.dumps(schemas[name]))) - found
    return found


def answers(kind: type, *problems: int) -> dict[str, Any]:
    """Return FastAPI arguments for a route that answers with `kind` or one of these problems."""
    return {"response_class": Response, "responses": {200: content(kind), **refusals(problems)}}


def takes(body: type, kind: type, status: int, *problems: int) -> dict[str, Any]:
    """Return FastAPI arguments for a route with a JSON body, which is optional if it has no required field."""
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
    """Return FastAPI arguments as `answers` does, for a route that also serves text/event-stream."""
    route = answers(kind, *problems)
    route["responses"][200]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    route["responses"][204] = {"description": "A stream was resumed after the last event of a job that has ended"}
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
