"""A service over Redis without the SDK: its Redis commands, and callbacks over HTTP.

    LUCIUS_BUS_URL=redis://127.0.0.1:6379/0 SERVICE=ocr python examples/service_over_redis.py [COUNT]

Handles one directive after the other, COUNT of them or until it is stopped. Needs the `redis` package, for the
connection only. What else a reliable service must do is in docs/how-to/write-a-service-without-sdk.md.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import redis

BUS: Any = redis.ConnectionPool.from_url(os.environ["LUCIUS_BUS_URL"].partition("?")[0], protocol=2).get_connection()
GROUP = os.environ["SERVICE"]
CONSUMER = f"{os.uname().nodename}-{os.getpid()}"
STREAMS = [f"lucius:global-bus-p{lane}:{GROUP}" for lane in range(16)]
DEAD_LETTERS = "lucius:dead"
IDLE_MS = "60000"  # after this time without a renewal, any consumer may claim a message
MAX_DELIVERIES = 5
ID_FIELDS = ("job_id", "step_id", "attempt_no", "lease_id", "tenant_id")


def call_redis(*command: str | bytes | int) -> Any:
    BUS.send_command(*command)
    return BUS.read_response()


def run_transaction(*commands: tuple[str | bytes | int, ...]) -> list[Any]:
    for command in (("MULTI",), *commands):
        call_redis(*command)
    answers: list[Any] = call_redis("EXEC")
    return answers


def create_groups() -> None:
    """Create one consumer group per lane, from the first message on. After a wipe of Redis, any consumer creates it."""
    for stream in STREAMS:
        try:
            call_redis("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM")
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise


def take_messages() -> Iterator[tuple[str, str, dict[str, bytes]]]:
    """Yield messages of dead consumers, then new ones.

    COUNT applies to each stream, so read only as many lanes as you have room for.
    """
    while True:
        for stream in STREAMS:
            stale = call_redis("XAUTOCLAIM", stream, GROUP, CONSUMER, IDLE_MS, "0-0", "COUNT", "1")
            for entry, fields in stale[1]:
                yield stream, entry.decode(), to_dict(fields)
        newest = [">"] * len(STREAMS)
        reading = ("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", "1", "BLOCK", "1000", "STREAMS", *STREAMS, *newest)
        for stream, entries in call_redis(*reading) or ():
            for entry, fields in entries:
                yield stream.decode(), entry.decode(), to_dict(fields)


def to_dict(fields: list[bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in zip(fields[::2], fields[1::2], strict=True)}


def settle(stream: str, entry: str) -> bool:
    """Delete a message after its RESULT was answered; return whether it was still ours.

    Until then, if this process dies, another consumer gets the message.
    """
    acknowledged, _ = run_transaction(("XACK", stream, GROUP, entry), ("XDEL", stream, entry))
    return bool(acknowledged)


def dead_letter(stream: str, entry: str, fields: dict[str, bytes], reason: str, deliveries: int) -> None:
    """Move a message that no consumer can process: the orchestrator ends its attempt and opens a review item."""
    ids = [part for name in ID_FIELDS for part in (name, fields.get(name, b""))]
    copy = ("XADD", DEAD_LETTERS, "*", "reason", reason, "deliveries", deliveries, *ids)
    run_transaction(copy, ("XACK", stream, GROUP, entry), ("XDEL", stream, entry))


def call_back(kind: str, directive: dict[str, Any], **members: Any) -> dict[str, Any]:
    """Send a callback and return the answer; a refusal has a `code`."""
    names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
    body = json.dumps({name: directive[name] for name in names} | members).encode()
    process = {"X-Lucius-Instance": CONSUMER, "User-Agent": f"{GROUP}/example"}  # as `lucius services` shows it
    headers = {"Authorization": f"Bearer {directive['callback_token']}", "Content-Type": "application/json", **process}
    request = urllib.request.Request(directive["callback_urls"][kind], body, headers)
    try:
        with urllib.request.urlopen(request) as response:
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as refusal:  # 409: another attempt is current
        answer = json.load(refusal)
    print(kind, answer)
    return answer


def may_begin(answer: dict[str, Any], once: bool) -> bool:
    """Return whether to begin the step after this answer to the ACK.

    A step that is not safe to retry begins only if this ACK was the first: Redis may have lost the record that another
    consumer has the message.
    """
    if answer.get("disposition") == "APPLIED":
        return True
    return not once and answer.get("lease_expires_at") is not None


def main(count: int) -> None:
    create_groups()
    for stream, entry, fields in take_messages():
        ((_, _, _, deliveries),) = call_redis("XPENDING", stream, GROUP, entry, entry, "1")
        try:
            directive = json.loads(fields["directive"])
        except (KeyError, ValueError):
            dead_letter(stream, entry, fields, "UNREADABLE", deliveries)
            continue
        if deliveries > MAX_DELIVERIES:
            dead_letter(stream, entry, fields, "DELIVERED_TOO_OFTEN", deliveries)
            continue
        once = directive["retry_safety"] == "NOT_SAFE_TO_RETRY"
        if once and not settle(stream, entry):  # before the step begins: only one consumer gets the answer 1
            continue
        if not may_begin(call_back("ack", directive), once):
            settle(stream, entry)
            continue
        # During the step, renew the claim every third of IDLE_MS, and send heartbeats to the orchestrator.
        call_redis("XCLAIM", stream, GROUP, CONSUMER, "0", entry, "JUSTID")
        call_back("heartbeat", directive, progress={"done": 0, "total": 1, "unit": "document"})
        call_back("result", directive, status="SUCCEEDED", result={"by": "redis"}, artifact_refs=[])
        if not once:
            settle(stream, entry)
        count -= 1
        if not count:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else -1)
