"""The headers of requests that the AsyncAPI document has, to compare them with those that the SDK sends."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs

DOCUMENT: Any = json.loads((Path(__file__).parents[3] / "schemas" / "asyncapi.json").read_text())
MESSAGES = {"pull": "pull", "ack": "ack", "heartbeat": "heartbeat", "result": "result", "batch": "callbacks"}
OF_THE_TRANSPORT = {"host", "content-length", "accept", "accept-encoding", "connection"}


def check_headers(route: str, sent: dict[str, str]) -> None:
    """Assert that a request to `ack`, `batch`, … has all documented headers and no others, with valid values."""
    schema = DOCUMENT["components"]["messages"][MESSAGES[route]]["bindings"]["http"]["headers"]
    documented = {name.lower(): name for name in schema["properties"]}
    assert sent.keys() - OF_THE_TRANSPORT == documented.keys(), route
    jsonschema_rs.validator_for(schema).validate({name: sent[lower] for lower, name in documented.items()})
