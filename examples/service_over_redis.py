"""A service over Redis without our SDK: its commands, word by word, and callbacks over HTTP.

    LUCIUS_BUS_URL=redis://127.0.0.1:6379/0 SERVICE=ocr python examples/service_over_redis.py [COUNT]

Takes one directive after the other, COUNT of them or until it is stopped. Needs the `redis` package, for the connection
only. What a service must do beside this, to be relied on, is in docs/how-to/write-a-service-without-sdk.md.
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
ME = f"{os.uname().nodename}-{os.getpid()}"
STREAMS = [f"lucius:global-bus-p{lane}:{GROUP}" for lane in range(16)]
DEAD = "lucius:dead"
IDLE_MS = "60000"  # untouched for so long, a message is anybody's
DELIVERIES = 5
ABOUT = ("job_id", "step_id", "attempt_no", "lease_id", "tenant_id")


def ask(*words: str | bytes | int) -> Any:
    BUS.send_command(*words)
    return BUS.read_response()


def all_or_nothing(*commands: tuple[str | bytes | int, ...]) -> list[Any]:
    for words in (("MULTI",), *commands):
        ask(*words)
    answers: list[Any] = ask("EXEC")
    return answers


def groups() -> None:
    """One group on each lane, from the first message on. As after a wipe: whoever comes first makes them."""
    for stream in STREAMS:
        try:
            ask("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM")
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise


def messages() -> Iterator[tuple[str, str, dict[str, bytes]]]:
    """Those that somebody died with, then new ones. COUNT is by stream: take no more lanes than you have room for."""
    while True:
        for stream in STREAMS:
            stale = ask("XAUTOCLAIM", stream, GROUP, ME, IDLE_MS, "0-0", "COUNT", "1")
            for entry, fields in stale[1]:
                yield stream, entry.decode(), named(fields)
        newest = [">"] * len(STREAMS)
        read = ask(*("XREADGROUP", "GROUP", GROUP, ME, "COUNT", "1", "BLOCK", "1000", "STREAMS", *STREAMS, *newest))
        for stream, entries in read or ():
            for entry, fields in entries:
                yield stream.decode(), entry.decode(), named(fields)


def named(fields: list[bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in zip(fields[::2], fields[1::2], strict=True)}


def settle(stream: str, entry: str) -> bool:
    """After the RESULT was answered, and not before: whatever kills us until then, somebody gets it again."""
    acknowledged, _ = all_or_nothing(("XACK", stream, GROUP, entry), ("XDEL", stream, entry))
    return bool(acknowledged)


def bury(stream: str, entry: str, fields: dict[str, bytes], reason: str, deliveries: int) -> None:
    """Nobody can take it: the orchestrator ends the attempt, and asks a person."""
    about = [part for name in ABOUT for part in (name, fields.get(name, b""))]
    letter = ("XADD", DEAD, "*", "reason", reason, "deliveries", deliveries, *about)
    all_or_nothing(letter, ("XACK", stream, GROUP, entry), ("XDEL", stream, entry))


def call_back(kind: str, directive: dict[str, Any], **said: Any) -> dict[str, Any]:
    """The answer; or the refusal, which has a `code`."""
    names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
    body = json.dumps({name: directive[name] for name in names} | said).encode()
    headers = {"Authorization": f"Bearer {directive['callback_token']}", "Content-Type": "application/json"}
    request = urllib.request.Request(directive["callback_urls"][kind], body, headers)
    try:
        with urllib.request.urlopen(request) as response:
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as refusal:  # 409: another attempt counts now
        answer = json.load(refusal)
    print(kind, answer)
    return answer


def is_wanted(answer: dict[str, Any], once: bool) -> bool:
    """What may not be repeated begins only if ours was the first ACK: Redis may have forgotten that another has it."""
    if answer.get("disposition") == "APPLIED":
        return True
    return not once and answer.get("lease_expires_at") is not None


def main(count: int) -> None:
    groups()
    for stream, entry, fields in messages():
        ((_, _, _, deliveries),) = ask("XPENDING", stream, GROUP, entry, entry, "1")
        try:
            directive = json.loads(fields["directive"])
        except (KeyError, ValueError):
            bury(stream, entry, fields, "UNREADABLE", deliveries)
            continue
        if deliveries > DELIVERIES:
            bury(stream, entry, fields, "DELIVERED_TOO_OFTEN", deliveries)
            continue
        once = directive["retry_safety"] == "NOT_SAFE_TO_RETRY"
        if once and not settle(stream, entry):  # before it is begun; who is answered 1 is the only one
            continue
        if not is_wanted(call_back("ack", directive), once):
            settle(stream, entry)
            continue
        # While at work, every third of IDLE_MS: it is still ours. With the heartbeats, which go to the orchestrator.
        ask("XCLAIM", stream, GROUP, ME, "0", entry, "JUSTID")
        call_back("heartbeat", directive, progress=0.5)
        call_back("result", directive, status="SUCCEEDED", result={"by": "redis"}, artifact_refs=[])
        if not once:
            settle(stream, entry)
        count -= 1
        if not count:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else -1)
