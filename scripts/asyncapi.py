"""The AsyncAPI document: what goes over the bus, and how a service answers it over HTTP."""

from typing import Any

import msgspec

from lucius import __version__, contract
from lucius.api import document as examples
from lucius.core.routing import LANES

COMPONENTS = "#/components/schemas/{name}"
Json = dict[str, Any]

ABOUT = """\
Lucius asks platform services for work with directives and takes their answers over HTTP.

A directive goes to the topic of its lane. A service subscribes to the lanes it serves, takes the messages whose
`service` is its own, ignores one it has had already (by `jobId, stepId, attempt_no, lease_id`), and calls back: ack
when it takes it, heartbeat while it works, result when it is done. Each callback is a POST with the directive's
`callback_token` as bearer token. Fields may be added to every message: ignore those you do not know.

On `redis://` a topic has one stream for each service, `lucius:{topic}:{service}` (the prefix is the bus URL's), with
one consumer group, named after the service. An entry has the message as `directive`, and `job_id, step_id, tenant_id,
attempt_no, lease_id, ack_deadline_ms` beside it; there are no other headers. It is acknowledged and deleted (XACK,
XDEL) once its result was answered, touched (XCLAIM JUSTID) by whoever is at work, and claimed by others when it was not
for 60 s. A step that may not be repeated is acknowledged and deleted first, and begun only if its ack was answered
APPLIED. What was delivered five times, or can't be read, goes to the stream `lucius:dead`: the ids, `reason` and
`deliveries`."""

DIRECTIVE: Json = {
    "message_id": "01JAZ3Y8Q5W2R7T9V1X4B6D8F0/ocr/1",
    "jobId": "01JAZ3Y8Q5W2R7T9V1X4B6D8F0",
    "stepId": "ocr",
    "tenant_id": "acme",
    "protocol_id": "ocr_embedding_sis",
    "protocol_version": 1,
    "request_type": "OCR_EMBEDDING_SIS",
    "step_type": "OCR",
    "kind": "task",
    "service": "ocr",
    "attempt_no": 1,
    "lease_id": "7b0f3c2e9d5a4f16",
    "lease_seconds": 900,
    "ack_deadline": "2026-01-31T12:00:30.000Z",
    "idempotency_key": "5d1f0c3b9a7e4d2c8b6a0f1e3d5c7b9a5d1f0c3b9a7e4d2c8b6a0f1e3d5c7b9a",
    "lane": 14,
    "mode": "DEFAULT",
    "routing_key_used": "acme",
    "input_ref": "blob://in/contract.pdf",
    "workspace_ref": "file:///workspace/lucius/acme/01JAZ3Y8Q5W2R7T9V1X4B6D8F0",
    "output_ref": "blob://out/contract.json",
    "payload": {"language": "en"},
    "callback_urls": {
        name: f"https://lucius.example.com/v1/callbacks/{name}" for name in ("ack", "result", "heartbeat")
    },
    "callback_token": "<signed>",
    "correlation_id": "01JAZ3Y8Q5W2R7T9V1X4B6D8F0",
    "last_step": False,
    "inputs": {},
}

PROPERTIES: Json = {
    "message_id": "`{jobId}/{stepId}/{attempt_no}`: the broker's message id, for its duplicate detection",
    "message_key": "`routing_key_used`: the broker's partition key or session id, where it has one",
    "service": "The service that is asked, for subscriptions that filter",
    "mode": "DEFAULT or BURST: for metrics and filters, never for routing",
    "correlation_id": "As the client gave it, else the job's id",
    "content_type": "application/json",
}

CALLBACKS = {
    "ack": (contract.AckCallback, "A service took the directive", examples.ACK),
    "heartbeat": (contract.HeartbeatCallback, "It still works on it", examples.HEARTBEAT),
    "result": (contract.ResultCallback, "It is done, or failed", examples.SUCCEEDED),
}


def asyncapi() -> Json:
    kinds = [
        contract.Directive,
        contract.CallbackAnswer,
        contract.Problem,
        *(kind for kind, _, _ in CALLBACKS.values()),
    ]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=COMPONENTS)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Lucius", "version": __version__, "description": ABOUT, "license": {"name": "Apache-2.0"}},
        "defaultContentType": "application/json",
        "channels": {**_topics(), **{kind: _callback_channel(kind) for kind in CALLBACKS}},
        "operations": {**_sends(), **{f"receive_{kind}": _receives(kind) for kind in CALLBACKS}},
        "components": {
            "messages": _messages(),
            "schemas": schemas,
            "securitySchemes": {
                "callbackToken": {"type": "http", "scheme": "bearer", "description": "The directive's `callback_token`"}
            },
        },
    }


def _topics() -> Json:
    lane = {"enum": [str(lane) for lane in range(LANES)], "description": "CRC32 of the routing key, mod 16"}
    mode = {"enum": ["default", "burst"], "description": "The resolved mode, in lower case"}
    message = {"directive": {"$ref": "#/components/messages/directive"}}
    return {
        "shared": {
            "address": "global-bus-p{lane}",
            "title": "Both modes share the lanes",
            "description": "`LUCIUS_TOPIC_LAYOUT=shared`, the default.",
            "messages": message,
            "parameters": {"lane": lane},
            "bindings": {"redis": {}},
        },
        "isolated": {
            "address": "global-{mode}-p{lane}",
            "title": "Each mode has its own lanes",
            "description": "`LUCIUS_TOPIC_LAYOUT=isolated`: BURST traffic cannot hold up the rest.",
            "messages": message,
            "parameters": {"lane": lane, "mode": mode},
            "bindings": {"redis": {}},
        },
    }


def _callback_channel(kind: str) -> Json:
    return {
        "address": f"/v1/callbacks/{kind}",
        "title": CALLBACKS[kind][1],
        "description": "HTTP at the directive's `callback_urls`; many at once go to `/v1/callbacks:batch`.",
        "messages": {
            kind: {"$ref": f"#/components/messages/{kind}"},
            "answer": {"$ref": "#/components/messages/answer"},
            "problem": {"$ref": "#/components/messages/problem"},
        },
    }


def _sends() -> Json:
    return {
        f"send_{layout}": {
            "action": "send",
            "channel": {"$ref": f"#/channels/{layout}"},
            "summary": "Ask a service for one attempt at one step",
            "messages": [{"$ref": f"#/channels/{layout}/messages/directive"}],
        }
        for layout in ("shared", "isolated")
    }


def _receives(kind: str) -> Json:
    channel = f"#/channels/{kind}"
    return {
        "action": "receive",
        "channel": {"$ref": channel},
        "summary": CALLBACKS[kind][1],
        "security": [{"$ref": "#/components/securitySchemes/callbackToken"}],
        "bindings": {"http": {"method": "POST", "bindingVersion": "0.3.0"}},
        "messages": [{"$ref": f"{channel}/messages/{kind}"}],
        "reply": {
            "channel": {"$ref": channel},
            "messages": [{"$ref": f"{channel}/messages/answer"}, {"$ref": f"{channel}/messages/problem"}],
        },
    }


def _messages() -> Json:
    headers = {
        "type": "object",
        "properties": {name: {"type": "string", "description": what} for name, what in PROPERTIES.items()},
        "required": ["message_id", "message_key", "mode", "service"],
    }
    directive = _message(contract.Directive, "Asks a service for one attempt", DIRECTIVE)
    shown = {name: DIRECTIVE[name] for name in ("message_id", "service", "mode")}
    directive["headers"] = headers
    directive["examples"][0]["headers"] = {**shown, "message_key": DIRECTIVE["routing_key_used"]}
    answer = {"disposition": "APPLIED", "lease_expires_at": "2026-01-31T12:15:00.000Z", "cancel_requested": False}
    return {
        "directive": directive,
        **{kind: _message(*CALLBACKS[kind]) for kind in CALLBACKS},
        "answer": _message(contract.CallbackAnswer, "What became of the callback", answer),
        "problem": {
            **_message(contract.Problem, "The callback was refused; docs/errors.md has every code", {}),
            "contentType": "application/problem+json",
            "examples": [{"payload": _stale()}],
        },
    }


def _message(kind: type, summary: str, example: Json) -> Json:
    return {
        "name": kind.__name__,
        "summary": summary,
        "contentType": "application/json",
        "payload": {"$ref": COMPONENTS.format(name=kind.__name__)},
        "examples": [{"payload": example}],
    }


def _stale() -> Json:
    return {
        "type": "https://lucius.dev/problems/stale-callback",
        "title": "Another attempt of the step is current",
        "status": 409,
        "code": "STALE_CALLBACK",
        "disposition": "STALE",
    }
