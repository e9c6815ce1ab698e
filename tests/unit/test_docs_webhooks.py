"""docs/how-to/webhooks.md describes what is sent, and its snippet accepts only genuine webhooks."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lucius.adapters.http.signing import parse_keys, signed_headers
from lucius.core.decide.job_webhook import BACKOFF_MS
from lucius.core.model.decision import JobSnapshot
from lucius.engine.outbound.job_webhooks import TIMEOUT_MS, webhook_body
from lucius.ports.clock import SystemClock
from tests.conformance.builders import PROTOCOL, dispatch

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "webhooks.md").read_text(encoding="utf-8")
OLD, NEW = "whsec_YW4gb2xkIHNlY3JldCBvZiAyNCBieXRl", "whsec_YSBuZXcgc2VjcmV0IG9mIDI0IGJ5dGVz"


def snippet(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def is_genuine() -> Callable[..., bool]:
    (code,) = snippet("python")
    names: dict[str, Any] = {}
    exec(code, names)
    function: Callable[..., bool] = names["is_genuine"]
    return function


def test_snippet_accepts_only_genuine_webhooks() -> None:
    check, body, now = is_genuine(), b'{"type": "job.succeeded"}', SystemClock().now()
    headers = signed_headers("j~run1", now, body, parse_keys(f"{NEW} {OLD}"))
    assert check(OLD, headers, body)
    assert check(NEW, headers, body)
    assert not check(NEW, headers, body + b" ")
    assert not check(NEW, {**headers, "webhook-id": "other"}, body)
    assert not check(NEW, signed_headers("j~run1", now, body, parse_keys(OLD)), body)
    assert not check(OLD, signed_headers("j~run1", now - 400_000, body, parse_keys(OLD)), body)


def test_webhook_body_on_the_page_is_the_one_sent() -> None:
    shown = json.loads(snippet("json")[1])
    sent = webhook_body(JobSnapshot(dispatch("j1").job, PROTOCOL, {}), 1)
    assert (list(shown), list(shown["data"])) == (list(sent), list(sent["data"]))


def test_page_names_the_retry_delays_and_the_timeout() -> None:
    words = {1_000: "s", 60_000: "min", 3_600_000: "h"}
    told = [
        next(f"{ms // unit} {word}" for unit, word in sorted(words.items(), reverse=True) if ms >= unit)
        for ms in BACKOFF_MS
    ]
    assert f"after {', '.join(told[:-1])} and {told[-1]}" in " ".join(PAGE.split())
    assert f"within {TIMEOUT_MS // 1000} seconds" in PAGE
