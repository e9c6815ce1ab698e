"""OpenAPI and AsyncAPI documents: complete, with valid examples, and protected against removals."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import jsonschema_rs
import pytest
from openapi_spec_validator import validate
from scripts.additive_documents import asyncapi_breaks, openapi_breaks
from scripts.schemas import FOLDER

from lucius import contract
from lucius.contract import control, protocols
from lucius.core.protocol import definition

Json = Any
Mutate = Callable[[Json], object]

OPENAPI: Json = json.loads((FOLDER / "openapi.json").read_text(encoding="utf-8"))
ASYNCAPI: Json = json.loads((FOLDER / "asyncapi.json").read_text(encoding="utf-8"))
OPERATIONS = [(path, method, entry) for path, item in OPENAPI["paths"].items() for method, entry in item.items()]
IDS = [f"{method.upper()} {path}" for path, method, _ in OPERATIONS]


def submit(document: Json) -> Json:
    return document["paths"]["/v1/commands"]["post"]


def listing(document: Json) -> Json:
    return document["paths"]["/v1/jobs"]["get"]


def schema(document: Json, name: str) -> Json:
    return document["components"]["schemas"][name]


BREAKS_OPENAPI: dict[str, Mutate] = {
    "a path is removed": lambda d: d["paths"].pop("/v1/jobs"),
    "a method is removed": lambda d: d["paths"]["/v1/jobs"].pop("get"),
    "a response is removed": lambda d: submit(d)["responses"].pop("409"),
    "a response has another type": lambda d: submit(d)["responses"]["202"].update(content={"text/plain": {}}),
    "a response's header is removed": lambda d: submit(d)["responses"]["202"].pop("headers"),
    "an operation has another id": lambda d: submit(d).update(operationId="post_command"),
    "a parameter is removed": lambda d: listing(d)["parameters"].pop(),
    "a parameter is required": lambda d: listing(d)["parameters"][0].update(required=True),
    "a new parameter is required": lambda d: listing(d)["parameters"].append(
        {"name": "new", "in": "query", "required": True, "schema": {}}
    ),
    "a parameter takes less": lambda d: next(p for p in listing(d)["parameters"] if p["name"] == "limit")[
        "schema"
    ].update(maximum=10),
    "a body is required": lambda d: d["paths"]["/v1/jobs/{job_id}:cancel"]["post"]["requestBody"].update(required=True),
    "a body is no longer taken": lambda d: submit(d).pop("requestBody"),
    "a field of a body is required": lambda d: schema(d, "CommandEnvelope")["required"].append("doc_id"),
    "a field of a body is removed": lambda d: schema(d, "CommandEnvelope")["properties"].pop("doc_id"),
    "a field of an answer is removed": lambda d: schema(d, "StepView")["properties"].pop("lane"),
    "a field of an answer may be null": lambda d: schema(d, "Accepted")["properties"].update(
        jobId={"anyOf": [{"type": "string"}, {"type": "null"}]}
    ),
    "credentials are needed": lambda d: d["paths"]["/healthz"]["get"].update(security=[{"apiKey": []}]),
    "other credentials are needed": lambda d: submit(d).update(security=[{"callbackToken": []}]),
}

GOOD_FOR_OPENAPI: dict[str, Mutate] = {
    "a new path": lambda d: d["paths"].update({"/v1/new": {"get": {"responses": {}}}}),
    "a new method": lambda d: d["paths"]["/v1/jobs"].update(put={"responses": {}}),
    "a new response": lambda d: listing(d)["responses"].update({"418": {"description": "short and stout"}}),
    "a new parameter": lambda d: listing(d)["parameters"].append({"name": "new", "in": "query", "schema": {}}),
    "a new field of a body": lambda d: schema(d, "CommandEnvelope")["properties"].update(new={"type": "string"}),
    "a new field of an answer": lambda d: schema(d, "JobView")["properties"].update(new={"type": "string"}),
    "another security scheme": lambda d: submit(d)["security"].append({"oidc": []}),
    "another description": lambda d: submit(d).update(summary="Ask for something", description="Politely"),
    "a parameter takes more": lambda d: next(p for p in listing(d)["parameters"] if p["name"] == "limit")[
        "schema"
    ].update(maximum=1000),
}

BREAKS_ASYNCAPI: dict[str, Mutate] = {
    "a channel is removed": lambda d: d["channels"].pop("isolated"),
    "a channel has another address": lambda d: d["channels"]["shared"].update(address="bus-{lane}"),
    "a lane is removed": lambda d: d["channels"]["shared"]["parameters"]["lane"]["enum"].pop(),
    "a message leaves its channel": lambda d: d["channels"]["ack"]["messages"].pop("answer"),
    "an operation is removed": lambda d: d["operations"].pop("receive_heartbeat"),
    "an operation turns round": lambda d: d["operations"]["receive_ack"].update(action="send"),
    "a directive loses a field": lambda d: schema(d, "Directive")["properties"].pop("lane"),
    "a directive's field may be missing": lambda d: schema(d, "Directive")["required"].remove("lane"),
    "a directive's property may be missing": lambda d: d["components"]["messages"]["directive"]["headers"][
        "required"
    ].remove("mode"),
    "a callback needs a field": lambda d: schema(d, "AckCallback")["required"].append("acked_at"),
    "a callback's status is refused": lambda d: schema(d, "ResultCallback")["properties"]["status"]["enum"].remove(
        "FAILED_RETRY"
    ),
    "the answer loses a field": lambda d: schema(d, "CallbackAnswer")["properties"].pop("cancel_requested"),
}

GOOD_FOR_ASYNCAPI: dict[str, Mutate] = {
    "a new channel": lambda d: d["channels"].update(new={"address": "new", "messages": {}}),
    "a new lane": lambda d: d["channels"]["shared"]["parameters"]["lane"]["enum"].append("16"),
    "a new field of a directive": lambda d: schema(d, "Directive")["properties"].update(new={"type": "string"}),
    "a new optional field of a callback": lambda d: schema(d, "AckCallback")["properties"].update(
        new={"type": "string"}
    ),
    "a new disposition": lambda d: schema(d, "CallbackAnswer")["properties"]["disposition"]["enum"].append("NEW"),
}


def mutated(document: Json, mutate: Mutate) -> Json:
    changed = deepcopy(document)
    mutate(changed)
    assert changed != document
    return changed


@pytest.mark.parametrize("mutate", BREAKS_OPENAPI.values(), ids=BREAKS_OPENAPI)
def test_removal_from_the_api_is_detected(mutate: Mutate) -> None:
    assert openapi_breaks(OPENAPI, mutated(OPENAPI, mutate))


@pytest.mark.parametrize("mutate", GOOD_FOR_OPENAPI.values(), ids=GOOD_FOR_OPENAPI)
def test_addition_to_the_api_is_additive(mutate: Mutate) -> None:
    assert openapi_breaks(OPENAPI, mutated(OPENAPI, mutate)) == []


@pytest.mark.parametrize("mutate", BREAKS_ASYNCAPI.values(), ids=BREAKS_ASYNCAPI)
def test_removal_from_the_bus_document_is_detected(mutate: Mutate) -> None:
    assert asyncapi_breaks(ASYNCAPI, mutated(ASYNCAPI, mutate))


@pytest.mark.parametrize("mutate", GOOD_FOR_ASYNCAPI.values(), ids=GOOD_FOR_ASYNCAPI)
def test_addition_to_the_bus_document_is_additive(mutate: Mutate) -> None:
    assert asyncapi_breaks(ASYNCAPI, mutated(ASYNCAPI, mutate)) == []


def validator(document: Json, reference: Json) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for({**reference, "components": document["components"]})


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=IDS)
def test_every_operation_is_fully_described(path: str, method: str, operation: Json) -> None:
    assert operation["operationId"]
    assert operation["summary"]
    assert operation["tags"]
    assert "security" in operation
    assert {"500", "503"} <= operation["responses"].keys()
    if operation["security"]:
        assert {"401", "403"} <= operation["responses"].keys()
    if "requestBody" in operation:
        assert {"400", "413", "415", "422", "507"} <= operation["responses"].keys()
    for status, response in operation["responses"].items():
        if status == "204":
            assert "content" not in response
            continue
        media_types = response["content"].keys()
        assert media_types == {"application/problem+json"} if int(status) >= 400 else media_types


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=IDS)
def test_examples_of_each_operation_fit_its_schema(path: str, method: str, operation: Json) -> None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    for example in content.get("examples", {}).values():
        validator(OPENAPI, content["schema"]).validate(example["value"])
    if "/v1/commands" in path or "/v1/callbacks" in path:
        assert content["examples"]


@pytest.mark.parametrize("name", ASYNCAPI["components"]["messages"])
def test_examples_of_each_message_fit_its_schema(name: str) -> None:
    message = ASYNCAPI["components"]["messages"][name]
    for example in message["examples"]:
        validator(ASYNCAPI, message["payload"]).validate(example["payload"])
        if "headers" in message:
            jsonschema_rs.validator_for(message["headers"]).validate(example["headers"])


def test_api_passes_the_specification_validator() -> None:
    validate(OPENAPI)


def schemas_of(document: Json) -> list[tuple[str, Json]]:
    """Return every schema below the components, with its path."""
    found: list[tuple[str, Json]] = []
    pending = [(f"/{name}", schema) for name, schema in document["components"]["schemas"].items()]
    while pending:
        path, schema = pending.pop()
        found.append((path, schema))
        inner = schema.get("properties", {}).items()
        listed = enumerate(schema.get("anyOf", ()))
        single = [
            (name, schema[name]) for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)
        ]
        pending += [(f"{path}/{name}", part) for name, part in (*inner, *listed, *single)]
    return found


@pytest.mark.parametrize("document", [OPENAPI, ASYNCAPI], ids=["openapi", "asyncapi"])
def test_schemas_have_no_null_defaults_and_objects_declare_their_members(document: Json) -> None:
    schemas = schemas_of(document)
    assert len(schemas) > 100
    assert [path for path, schema in schemas if "default" in schema and schema["default"] is None] == []
    objects = [(path, schema) for path, schema in schemas if schema.get("type") == "object"]
    assert [path for path, schema in objects if not {"properties", "additionalProperties"} & schema.keys()] == []


def test_request_fields_have_no_schema_defaults() -> None:
    """Client generators make a field with a `default` required, also in requests."""
    assert schema(OPENAPI, "PullRequest")["properties"]["max"]["description"] == "Default: `1`"
    for name in ("CommandEnvelope", "CallbackItem", "PullRequest", "StepSpec", "Problem"):
        fields = schema(OPENAPI, name)["properties"].values()
        assert [field for field in fields if "default" in field] == [], name


def test_components_are_named_as_in_the_contract() -> None:
    modules = (contract, control, protocols, definition)
    ours = {kind.__name__ for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    assert OPENAPI["components"]["schemas"].keys() - ours <= {"JobStatus", "BlockedReason"}
    assert set(OPENAPI["components"]["securitySchemes"]) == {"apiKey", "callbackToken"}
    assert len({operation["operationId"] for _, _, operation in OPERATIONS}) == len(OPERATIONS)


def test_protocol_documents_are_called_protocol() -> None:
    assert "Protocol" in OPENAPI["components"]["schemas"]
    document = json.loads((FOLDER / "v1" / "protocol_document.json").read_text(encoding="utf-8"))
    assert document["$ref"] == "#/$defs/Protocol"


def test_references_can_be_resolved() -> None:
    for document in (OPENAPI, ASYNCAPI):
        for reference in _references(document):
            target = document
            for part in reference.removeprefix("#/").split("/"):
                target = target[part]


def _references(value: Json) -> list[str]:
    if isinstance(value, list):
        return [found for item in value for found in _references(item)]
    if not isinstance(value, dict):
        return []
    here = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return here + [found for item in value.values() for found in _references(item)]


def test_both_layouts_of_topics_are_published() -> None:
    addresses = {name: channel["address"] for name, channel in ASYNCAPI["channels"].items()}
    assert addresses["shared"] == "global-bus-p{lane}"
    assert addresses["isolated"] == "global-{mode}-p{lane}"
    assert ASYNCAPI["channels"]["shared"]["parameters"]["lane"]["enum"] == [str(lane) for lane in range(16)]
