"""Headers that the fast routes read, beside those that every request has, as the OpenAPI document describes them.

A handler sees the headers of its route in this table and no others, so that none is read without being documented.
"""

from collections.abc import Mapping

from lucius.contract.process_headers import INSTANCE_HEADER

CORRELATION_HEADER = "X-Correlation-ID"
PULL_PATH = "/v1/services/{service}/directives:pull"

TRACE_HEADERS = {
    CORRELATION_HEADER: "Counts as `correlation_id` where the envelope has none",
    "traceparent": "W3C Trace Context; counts where the envelope has none, and is replaced if it is invalid",
    "tracestate": "W3C Trace Context; goes along with a valid traceparent",
}
COMMAND_HEADERS = {"Idempotency-Key": "Counts as `idempotency_key` where the envelope has none", **TRACE_HEADERS}
PROCESS_HEADERS = {
    INSTANCE_HEADER: "Names the process, such as `host-1:77`; `GET /v1/services` lists it",
    "User-Agent": "Names the versions that the process runs, such as `ocr/2.1`; `GET /v1/services` lists them",
}

HEADERS: Mapping[str, Mapping[str, str]] = {
    "/v1/commands": COMMAND_HEADERS,
    "/v1/commands:batch": TRACE_HEADERS,  # one idempotency key can't identify many commands
    "/v1/callbacks/ack": PROCESS_HEADERS,
    "/v1/callbacks/heartbeat": PROCESS_HEADERS,
    "/v1/callbacks/result": PROCESS_HEADERS,
    "/v1/callbacks:batch": PROCESS_HEADERS,
    PULL_PATH: PROCESS_HEADERS,
}


def header_names(path: str) -> frozenset[bytes]:
    """Return the names of the headers that a route reads, in lower case, as ASGI has them."""
    return frozenset(name.lower().encode() for name in HEADERS[path])
