"""The AsyncAPI document: messages on the bus, and a service's answers over HTTP."""

import json
from typing import Any

import msgspec

from lucius import contract
from lucius.api import openapi_doc as examples
from lucius.api.json_schemas import clarify_schema
from lucius.version import __version__
from scripts import asyncapi_buses as buses

COMPONENTS = "#/components/schemas/{name}"
Json = dict[str, Any]

ABOUT = """\
Lucius asks platform services for work with directives and takes their answers over HTTP.

A directive reaches its service over one of two buses. On `local:` the service pulls it over HTTP (channel `pull`). On
`redis://` it is an entry of a stream (`redis_shared` or `redis_isolated`), whose fields are the ids and the directive
as JSON. A service ignores a directive that it has had already (by `jobId, stepId, attempt_no, lease_id`), and calls
back: ack when it takes it, heartbeat while it works, result when it is done. Each callback is a POST with the
directive's `callback_token` as bearer token. Fields may be added to every message: ignore those you do not know.

On Redis an entry is acknowledged and deleted (XACK, XDEL) once its result was answered, touched (XCLAIM JUSTID) by the
consumer that works on it, and claimed by others when it was not touched for 60 s. A step that may not be repeated is
acknowledged and deleted first, and begun only if its ack was answered APPLIED. An entry that was delivered five times,
or can't be read, goes to `redis_dead`.

`shared` and `isolated` are the names of lanes as topics, for brokers that have topics and message properties; neither
`local:` nor `redis://` uses these addresses and headers."""

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
        contract.PullRequest,
        contract.PullAnswer,
        contract.CallbackBatch,
        contract.CallbackBatchAnswer,
        contract.CallbackAnswer,
        contract.Problem,
        *(kind for kind, _, _ in CALLBACKS.values()),
    ]
    _, described = msgspec.json.schema_components(kinds, ref_template=COMPONENTS)
    schemas = {name: clarify_schema(schema) for name, schema in json.loads(msgspec.json.encode(described)).items()}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Lucius", "version": __version__, "description": ABOUT, "license": {"name": "Apache-2.0"}},
        "defaultContentType": "application/json",
        "servers": buses.SERVERS,
        "channels": {**_topics(), **{kind: _callback_channel(kind) for kind in CALLBACKS}, **buses.channels()},
        "operations": {
            **_sends(),
            **{f"receive_{kind}": _receives(kind) for kind in CALLBACKS},
            **buses.operations(),
        },
        "components": {
            "messages": _messages(),
            "schemas": schemas,
            "securitySchemes": {
                "apiKey": buses.API_KEY,
                "callbackToken": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The directive's `callback_token`",
                },
            },
        },
    }


def _topics() -> Json:
    message = {"directive": {"$ref": "#/components/messages/directive"}}
    return {
        "shared": {
            **buses.ON_TOPICS,
            "address": "global-bus-p{lane}",
            "title": "Topic of a lane, for both modes",
            "description": "`LUCIUS_TOPIC_LAYOUT=shared`, the default. On Redis it is `redis_shared`.",
            "messages": message,
            "parameters": {"lane": buses.LANE},
        },
        "isolated": {
            **buses.ON_TOPICS,
            "address": "global-{mode}-p{lane}",
            "title": "Topic of a lane, for one mode",
            "description": "`LUCIUS_TOPIC_LAYOUT=isolated`: BURST traffic cannot hold up the rest. On Redis it is "
            "`redis_isolated`.",
            "messages": message,
            "parameters": {"lane": buses.LANE, "mode": buses.MODE},
        },
    }


def _callback_channel(kind: str) -> Json:
    return {
        **buses.ON_API,
        "address": f"/v1/callbacks/{kind}",
        "title": CALLBACKS[kind][1],
        "description": "HTTP at the directive's `callback_urls`; many at once go to `callback_batch`.",
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
    callback = buses.callback_headers()
    answer = {"disposition": "APPLIED", "lease_expires_at": "2026-01-31T12:15:00.000Z", "cancel_requested": False}
    return {
        "directive": directive,
        **{kind: {**_message(*CALLBACKS[kind]), "bindings": callback} for kind in CALLBACKS},
        "answer": _message(contract.CallbackAnswer, "What became of the callback", answer),
        "problem": {
            **_message(contract.Problem, "The request was refused; docs/errors.md has every code", {}),
            "contentType": "application/problem+json",
            "examples": [{"payload": _stale()}],
        },
        **_http_messages(answer),
        **_redis_messages(),
    }


def _http_messages(answer: Json) -> Json:
    item = {"type": "ack", "callback_token": examples.TOKEN, **examples.ACK}
    pull = _message(contract.PullRequest, "Asks for directives", {"max": 10, "wait_seconds": 30})
    callbacks = _message(contract.CallbackBatch, "Callbacks, in order", {"callbacks": [item]})
    answers = _message(
        contract.CallbackBatchAnswer,
        "What became of each",
        {"results": [{"status_code": 200, "status": 200, **answer}]},
    )
    return {
        "pull": {**pull, "bindings": buses.pull_headers()},
        "pulled": _message(contract.PullAnswer, "Directives for the service", {"directives": [DIRECTIVE]}),
        "callbacks": {**callbacks, "bindings": buses.batch_headers()},
        "callback_answers": answers,
    }


def _redis_messages() -> Json:
    ids = {
        "job_id": DIRECTIVE["jobId"],
        "step_id": DIRECTIVE["stepId"],
        "tenant_id": DIRECTIVE["tenant_id"],
        "attempt_no": str(DIRECTIVE["attempt_no"]),
        "lease_id": DIRECTIVE["lease_id"],
    }
    entry = {**ids, "ack_deadline_ms": "1769860830000", "directive": json.dumps(DIRECTIVE)}
    return {
        "entry": {
            "name": "entry",
            "summary": "Asks a service for one attempt",
            "payload": buses.ENTRY,
            "examples": [{"payload": entry}],
        },
        "dead_letter": {
            "name": "dead_letter",
            "summary": "An attempt that no service could take",
            "payload": buses.DEAD_LETTER,
            "examples": [{"payload": {"reason": "UNREADABLE", "deliveries": "1", **ids}}],
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
