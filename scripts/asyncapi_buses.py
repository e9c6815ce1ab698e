"""Parts of the AsyncAPI document specific to one bus: its actual addresses, fields and headers."""

from typing import Any

from lucius.api.request_headers import CORRELATION_HEADER, PROCESS_HEADERS
from lucius.core.model.routing import LANES

Json = dict[str, Any]

SERVERS: Json = {
    "api": {
        "host": "lucius.example.com",
        "protocol": "https",
        "description": "Lucius itself. Services call back there, and on the `local:` bus pull their directives there.",
    },
    "redis": {
        "host": "redis.example.com:6379",
        "protocol": "redis",
        "description": "`LUCIUS_BUS_URL=redis://…`: Redis streams. docs/operations.md lists the rights needed.",
    },
    "topics": {
        "host": "broker.example.com",
        "protocol": "amqp",
        "description": "A broker with topics and message properties. None is supported yet: the names are reserved.",
    },
}
API_KEY: Json = {"type": "http", "scheme": "bearer", "description": "An API key of scope `serve` for the service"}

LANE: Json = {"enum": [str(lane) for lane in range(LANES)], "description": "CRC32 of the routing key, mod 16"}
MODE: Json = {"enum": ["default", "burst"], "description": "The resolved mode, in lower case"}
SERVICE: Json = {"description": "The service that is asked, such as `ocr`"}
PREFIX: Json = {"default": "lucius:", "description": "The `?prefix=` of `LUCIUS_BUS_URL`"}

IDS: Json = {
    "job_id": {"type": "string"},
    "step_id": {"type": "string"},
    "tenant_id": {"type": "string"},
    "attempt_no": {"type": "string", "pattern": "^[0-9]+$"},
    "lease_id": {"type": "string"},
}
ENTRY: Json = {
    "type": "object",
    "description": "The fields of a stream's entry; Redis keeps each as text. There are no headers.",
    "properties": {
        **IDS,
        "ack_deadline_ms": {"type": "string", "pattern": "^[0-9]+$", "description": "Milliseconds since 1970, in UTC"},
        "directive": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/Directive"},
            "description": "The directive as JSON",
        },
    },
    "required": [*IDS, "ack_deadline_ms", "directive"],
}
DEAD_LETTER: Json = {
    "type": "object",
    "description": "The fields of an entry that was put aside, with as many ids of it as could be read.",
    "properties": {
        "reason": {"type": "string", "examples": ["UNREADABLE", "DELIVERED_TOO_OFTEN"]},
        "deliveries": {"type": "string", "pattern": "^[0-9]+$", "description": "How often it was given out"},
        "stream": {"type": "string", "description": "Where it was"},
        **IDS,
    },
    "required": ["reason", "deliveries"],
}

CONTEXT_HEADERS = {
    CORRELATION_HEADER: "The directive's `correlation_id`",
    "traceparent": "W3C Trace Context, as the directive has it",
    "tracestate": "W3C Trace Context, as the directive has it; goes along with `traceparent`",
}

ON_API = {"servers": [{"$ref": "#/servers/api"}]}
ON_REDIS = {"servers": [{"$ref": "#/servers/redis"}]}
ON_TOPICS = {"servers": [{"$ref": "#/servers/topics"}]}


def channels() -> Json:
    return {
        "pull": {
            **ON_API,
            "address": "/v1/services/{service}/directives:pull",
            "title": "Directives over HTTP",
            "description": "`LUCIUS_BUS_URL=local:`, the default: a service asks for directives and waits for one.",
            "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in ("pull", "pulled", "problem")},
            "parameters": {"service": SERVICE},
        },
        "callback_batch": {
            **ON_API,
            "address": "/v1/callbacks:batch",
            "title": "Many callbacks at once",
            "description": "Up to 500, each with its own `callback_token`, answered one by one.",
            "messages": {
                name: {"$ref": f"#/components/messages/{name}"} for name in ("callbacks", "callback_answers", "problem")
            },
        },
        "redis_shared": _stream("{prefix}global-bus-p{lane}:{service}", {"lane": LANE}, "shared"),
        "redis_isolated": _stream("{prefix}global-{mode}-p{lane}:{service}", {"mode": MODE, "lane": LANE}, "isolated"),
        "redis_dead": {
            **ON_REDIS,
            "address": "{prefix}dead",
            "title": "Entries that no service could take",
            "description": (
                "A Redis stream, with the consumer group `lucius` for the engines. A service puts an entry there that "
                "it can't read, or that was given out too often; the job then asks a person."
            ),
            "messages": {"dead_letter": {"$ref": "#/components/messages/dead_letter"}},
            "parameters": {"prefix": PREFIX},
            "bindings": {"redis": {}},
        },
    }


def _stream(address: str, parameters: Json, layout: str) -> Json:
    return {
        **ON_REDIS,
        "address": address,
        "title": f"A stream for each lane and service, layout `{layout}`",
        "description": (
            f"`LUCIUS_TOPIC_LAYOUT={layout}`. A Redis stream with one consumer group, named after the service. An "
            "entry is acknowledged and deleted (XACK, XDEL) once its result was answered."
        ),
        "messages": {"entry": {"$ref": "#/components/messages/entry"}},
        "parameters": {"prefix": PREFIX, **parameters, "service": SERVICE},
        "bindings": {"redis": {}},
    }


def operations() -> Json:
    sends = {
        f"send_{name}": {
            "action": "send",
            "channel": {"$ref": f"#/channels/{name}"},
            "summary": "Ask a service for one attempt at one step (XADD)",
            "messages": [{"$ref": f"#/channels/{name}/messages/entry"}],
        }
        for name in ("redis_shared", "redis_isolated")
    }
    return {
        **sends,
        "receive_pull": {
            **_request("pull", "pull", "pulled", "A service asks for directives"),
            "security": [{"$ref": "#/components/securitySchemes/apiKey"}],
        },
        "receive_callback_batch": _request(
            "callback_batch", "callbacks", "callback_answers", "A service sends callbacks of several attempts"
        ),
        "receive_dead_letter": {
            "action": "receive",
            "channel": {"$ref": "#/channels/redis_dead"},
            "summary": "Hear of an attempt that no service could take (XREADGROUP)",
            "messages": [{"$ref": "#/channels/redis_dead/messages/dead_letter"}],
        },
    }


def _request(channel: str, asks: str, answers: str, summary: str) -> Json:
    messages = f"#/channels/{channel}/messages"
    return {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "bindings": {"http": {"method": "POST", "bindingVersion": "0.3.0"}},
        "messages": [{"$ref": f"{messages}/{asks}"}],
        "reply": {
            "channel": {"$ref": f"#/channels/{channel}"},
            "messages": [{"$ref": f"{messages}/{answers}"}, {"$ref": f"{messages}/problem"}],
        },
    }


def pull_headers() -> Json:
    """Return the headers of a pull as an HTTP message binding."""
    return _headers("An API key of scope `serve`", {})


def callback_headers() -> Json:
    """Return the headers of a callback as an HTTP message binding."""
    return _headers("The directive's `callback_token`", CONTEXT_HEADERS)


def batch_headers() -> Json:
    """Return the headers of a batch of callbacks as an HTTP message binding."""
    context = {name: f"{what}. Only if the batch is about one job" for name, what in CONTEXT_HEADERS.items()}
    return _headers("As for one callback", context, required=False)


def _headers(token: str, context: dict[str, str], *, required: bool = True) -> Json:
    properties = {
        "Authorization": {"type": "string", "pattern": "^Bearer .+$", "description": token},
        "Content-Type": {"const": "application/json"},
        **{name: {"type": "string", "description": what} for name, what in {**PROCESS_HEADERS, **context}.items()},
    }
    needed = ["Authorization", "Content-Type"] if required else ["Content-Type"]
    schema = {"type": "object", "properties": properties, "required": needed}
    return {"http": {"headers": schema, "bindingVersion": "0.3.0"}}
