"""`lucius webhooks listen` shows received webhooks and marks forged ones."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook
from typer.testing import Result

from lucius.cli.webhook_signature import find_fault
from tests.integration.cli.support import Stub, at
from tests.support.ports import free_port

OLD, NEW = "whsec_YW4gb2xkIHNlY3JldCBvZiAyNCBieXRl", "whsec_YSBuZXcgc2VjcmV0IG9mIDI0IGJ5dGVz"
BODY = json.dumps({"type": "job.succeeded", "data": {"jobId": "j-1", "status": "SUCCEEDED"}})


def _signed(secret: str, body: str = BODY, at_second: float | None = None) -> dict[str, str]:
    moment = datetime.fromtimestamp(at_second or time.time(), UTC)
    stamp = str(int(moment.timestamp()))
    signature = Webhook(secret).sign("j-1~run1", moment, body)
    return {"webhook-id": "j-1~run1", "webhook-timestamp": stamp, "webhook-signature": signature}


def test_signature_by_either_secret_of_a_rotation_is_valid() -> None:
    for secret in (OLD, NEW):
        assert find_fault([NEW, OLD], _signed(secret), BODY.encode()) is None


@pytest.mark.parametrize(
    ("changes", "body", "said"),
    [
        ({}, BODY + " ", "no signature fits"),
        ({"webhook-signature": "v1,bm8= v1"}, BODY, "no signature fits"),
        ({"webhook-timestamp": "²"}, BODY, "not within 300 s"),
    ],
)
def test_invalid_signature_is_explained(changes: dict[str, str], body: str, said: str) -> None:
    assert said in (find_fault([NEW, OLD], _signed(OLD) | changes, body.encode()) or "")


def test_old_and_unsigned_webhooks_are_explained() -> None:
    assert "not within 300 s" in (find_fault([OLD], _signed(OLD, at_second=1_000_000), BODY.encode()) or "")
    assert "no header webhook-id" in (find_fault([OLD], {}, BODY.encode()) or "")


def test_listener_shows_webhooks_and_refuses_invalid_signatures(stub: Stub) -> None:
    stub.routes["GET /v1/tenants/acme/webhook-secrets"] = (200, {"tenant_id": "acme", "secrets": [NEW, OLD]})
    port, results = free_port(), list[Result]()
    listening = ("webhooks", "listen", "--tenant", "acme", "--port", str(port), "--count", "2")
    thread = threading.Thread(target=lambda: results.append(at(stub, *listening)))
    thread.start()
    assert _post(port, _signed(OLD)) == 204
    assert _post(port, _signed(OLD) | {"webhook-id": "forged"}) == 401
    thread.join(20)
    (result,) = results
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "j-1~run1: job j-1 is SUCCEEDED; signature is valid",
        "forged: job j-1 is SUCCEEDED; NOT VALID: no signature fits the tenant's secrets",
    ]
    assert "1 webhook had no valid signature" in result.stderr


def test_webhook_of_another_tenant_is_distinguished_from_a_forged_one(stub: Stub) -> None:
    stub.routes["GET /v1/tenants/acme/webhook-secrets"] = (200, {"tenant_id": "acme", "secrets": [NEW]})
    port, results = free_port(), list[Result]()
    listening = ("webhooks", "listen", "--tenant", "acme", "--port", str(port), "--count", "1")
    thread = threading.Thread(target=lambda: results.append(at(stub, *listening)))
    thread.start()
    body = json.dumps({"data": {"jobId": "j-1", "status": "SUCCEEDED", "tenant_id": "globex"}})
    assert _post(port, _signed(OLD, body), body) == 401
    thread.join(20)
    (result,) = results
    assert "NOT VALID: for tenant globex; this command uses acme's secrets" in result.stdout


def test_request_that_is_no_webhook_is_shown_without_placeholders(stub: Stub) -> None:
    stub.routes["GET /v1/tenants/acme/webhook-secrets"] = (200, {"tenant_id": "acme", "secrets": [NEW]})
    port, results = free_port(), list[Result]()
    listening = ("webhooks", "listen", "--tenant", "acme", "--port", str(port), "--count", "3")
    thread = threading.Thread(target=lambda: results.append(at(stub, *listening)))
    thread.start()
    for body in ("hello", '{"data": {}}', '{"data": {"jobId": "j-1"}}'):
        assert _post(port, {}, body) == 401
    thread.join(20)
    (result,) = results
    assert result.stdout.splitlines() == [
        "request without webhook-id: no job is named; NOT VALID: there is no header webhook-id",
        "request without webhook-id: no job is named; NOT VALID: there is no header webhook-id",
        "request without webhook-id: job j-1; NOT VALID: there is no header webhook-id",
    ]


def test_occupied_port_is_named_with_the_reason(stub: Stub) -> None:
    stub.routes["GET /v1/tenants/acme/webhook-secrets"] = (200, {"tenant_id": "acme", "secrets": [NEW]})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = at(stub, "webhooks", "listen", "--tenant", "acme", "--port", str(port)).stderr
    assert f"can't listen on 127.0.0.1 port {port}: Address already in use; choose another with --port" in said


def _post(port: int, headers: dict[str, str], body: str = BODY) -> int:
    """Post once the listener accepts connections; return the status."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/hook", body.encode(), headers, method="POST")
    for _ in range(400):
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except urllib.error.URLError:
            time.sleep(0.05)
    raise AssertionError("nobody listens")


def test_submit_sends_the_webhook_url(stub: Stub) -> None:
    stub.routes["POST /v1/commands"] = (202, {"jobId": "j-1", "status": "DISPATCHING", "duplicate": False})
    command = ("submit", "OCR", "--tenant", "acme", "--input", "blob://in/a", "--output", "blob://out/a")
    assert at(stub, *command, "--callback", "http://127.0.0.1:8090/").exit_code == 0
    assert stub.asked[0].body["callback_urls"] == {"job": "http://127.0.0.1:8090/"}
