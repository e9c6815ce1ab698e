"""After kill -9 at chosen moments, answered requests are on disk, and a downtime of the server fences no attempt."""

import contextlib
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support import KEY, Json, Stack, Zygote, until

PERIOD = 2.5
SHORT = {
    "LUCIUS_ACK_TIMEOUT": str(PERIOD),
    "LUCIUS_LEASE": str(PERIOD),
    "LUCIUS_SWEEP_INTERVAL": "0.05",
    "LUCIUS_BACKOFF_SCALE": "0.0001",
}
ROUNDS = 12


@pytest.fixture
def stack(forks: Zygote, tmp_path: Path) -> Iterator[Stack]:
    with contextlib.closing(Stack(forks, tmp_path)) as stack:
        stack.serve()
        yield stack


@pytest.fixture
def stack_with_short_deadlines(forks: Zygote, tmp_path: Path) -> Iterator[Stack]:
    """Yield a server with short deadlines."""
    with contextlib.closing(Stack(forks, tmp_path, **SHORT)) as stack:
        stack.serve()
        yield stack


def post_and_kill(stack: Stack, path: str, body: Json, token: str = KEY, kill_after: float | None = None) -> bytes:
    """Return the answer's first bytes; kill -9 the server when they arrive or after `kill_after` seconds."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", stack.port), timeout=20) as connection:
        connection.sendall(head.encode() + data)
        if kill_after is not None:
            connection.settimeout(kill_after)
        try:
            first = connection.recv(65_536)
        except (TimeoutError, ConnectionError):
            first = b""
        stack.server.kill()
    return first


class TestAcceptedCommands:
    def test_job_answered_with_202_survives_a_kill(self, stack: Stack) -> None:
        for number in range(ROUNDS):
            command = stack.command(number)
            first = post_and_kill(stack, "/v1/commands", command)
            assert b" 202 " in first.partition(b"\r\n")[0]
            stack.serve()
            again = stack.api.call("POST", "/v1/commands", command)[1]
            assert again["duplicate"]
            assert f"/v1/jobs/{again['jobId']}\r\n".encode() in first, "the Location that the client was given"
            job = stack.api.get(f"/v1/jobs/{again['jobId']}")
            assert job["input_ref"] == command["input_ref"]
            assert job["blocked_on"]["reason"] == "HANDOVER"
        assert len(stack.api.pull("ocr", 100)) == ROUNDS

    def test_key_sent_again_after_a_broken_connection_makes_one_job(self, stack: Stack) -> None:
        rng = random.Random(7)
        answered = 0
        for number in range(ROUNDS):
            command = stack.command(number, idempotency_key=f"key-{number}")
            answered += bool(post_and_kill(stack, "/v1/commands", command, kill_after=0.0005 + rng.random() * 0.006))
            stack.serve()
            stack.api.submit(command)
        assert len(stack.api.get("/v1/jobs?limit=200")["jobs"]) == ROUNDS
        assert len(stack.api.pull("ocr", 100)) == ROUNDS


def pulled(stack: Stack, request_type: str = "OCR", number: int = 1) -> tuple[str, Json]:
    job_id = stack.api.submit(stack.command(number, request_type))
    (directive,) = stack.api.pull("ocr")
    assert directive["jobId"] == job_id
    return job_id, directive


def finish(stack: Stack, directive: Json) -> str:
    status, answer = stack.api.call_back("result", directive, status="SUCCEEDED", result={"ok": True})
    assert status == 200, answer
    return str(answer["disposition"])


class TestAttemptsAcrossRestarts:
    def test_attempt_survives_a_kill_between_hand_over_and_ack(self, stack: Stack) -> None:
        job_id, directive = pulled(stack)
        stack.restart_after_kill()
        assert stack.api.pull("ocr") == [], "it was handed over, and is not handed over twice"
        assert stack.api.call_back("ack", directive)[1]["disposition"] == "APPLIED"
        assert finish(stack, directive) == "APPLIED"
        assert stack.api.get(f"/v1/jobs/{job_id}")["status"] == "SUCCEEDED"

    def test_attempt_survives_a_kill_between_ack_and_result(self, stack: Stack) -> None:
        job_id, directive = pulled(stack)
        assert stack.api.call_back("ack", directive)[0] == 200
        stack.restart_after_kill()
        assert stack.api.get(f"/v1/jobs/{job_id}")["blocked_on"]["reason"] == "RESULT"
        assert stack.api.call_back("ack", directive)[1]["disposition"] == "DUPLICATE"
        assert finish(stack, directive) == "APPLIED"
        assert stack.api.get(f"/v1/jobs/{job_id}")["attempts_total"] == 1

    def test_result_answered_with_200_survives_a_kill(self, stack: Stack) -> None:
        for number in range(4):
            job_id, directive = pulled(stack, "OCR_EMBEDDING", number)
            names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
            body = {name: directive[name] for name in names} | {"status": "SUCCEEDED", "result": {"ok": True}}
            first = post_and_kill(stack, "/v1/callbacks/result", body, directive["callback_token"])
            assert b" 200 " in first.partition(b"\r\n")[0]
            stack.serve()
            step = stack.api.step(job_id, "ocr")
            assert (step["status"], step["result"]) == ("SUCCEEDED", {"ok": True})
            assert finish(stack, directive) == "DUPLICATE"
            (following,) = stack.api.pull("embedding")
            assert following["jobId"] == job_id
            assert following["inputs"]["ocr"]["result"] == {"ok": True}

    def test_directive_lost_with_the_server_is_retried_after_the_ack_deadline(
        self, stack_with_short_deadlines: Stack
    ) -> None:
        """The hand-over was committed and the answer never arrived: the ACK deadline brings the next attempt."""
        job_id = stack_with_short_deadlines.api.submit(stack_with_short_deadlines.command())
        body = {"max": 1, "wait_seconds": 0}
        post_and_kill(stack_with_short_deadlines, "/v1/services/ocr/directives:pull", body)
        stack_with_short_deadlines.serve()
        (directive,) = stack_with_short_deadlines.api.pull("ocr", wait_seconds=30)
        assert (directive["jobId"], directive["attempt_no"]) == (job_id, 2)
        assert finish(stack_with_short_deadlines, directive) == "APPLIED"


def await_instant(instant: float) -> None:
    until(lambda: time.time() > instant, "time passes", 30)


class TestDowntimeGrace:
    """Attempts that were with a service during a downtime get one fresh period."""

    @pytest.fixture
    def with_services(self, stack_with_short_deadlines: Stack) -> dict[str, Json]:
        """Return one unacknowledged and one acknowledged directive, by step status."""
        held = {
            "INITIATED": pulled(stack_with_short_deadlines, number=1)[1],
            "PROCESSING": pulled(stack_with_short_deadlines, number=2)[1],
        }
        assert stack_with_short_deadlines.api.call_back("ack", held["PROCESSING"])[0] == 200
        return held

    def check_untouched(self, stack_with_short_deadlines: Stack, held: dict[str, Json]) -> None:
        for status, directive in held.items():
            step = stack_with_short_deadlines.api.step(directive["jobId"], "ocr")
            assert (step["status"], step["lease_id"]) == (status, directive["lease_id"])
            assert finish(stack_with_short_deadlines, directive) == "APPLIED"
            job = stack_with_short_deadlines.api.get(f"/v1/jobs/{directive['jobId']}")
            assert (job["status"], job["attempts_total"]) == ("SUCCEEDED", 1)

    def extended(self, stack_with_short_deadlines: Stack, held: dict[str, Json]) -> bool:
        return all(
            any(
                event["type"] == "DEADLINE_EXTENDED"
                for event in stack_with_short_deadlines.api.events(directive["jobId"])
            )
            for directive in held.values()
        )

    def test_result_after_a_downtime_beyond_the_deadline_is_applied(
        self, stack_with_short_deadlines: Stack, with_services: dict[str, Json]
    ) -> None:
        stack_with_short_deadlines.server.kill()
        await_instant(time.time() + PERIOD * 1.2)
        stack_with_short_deadlines.serve()
        until(lambda: self.extended(stack_with_short_deadlines, with_services), "overdue attempts got a fresh period")
        self.check_untouched(stack_with_short_deadlines, with_services)

    def test_attempt_silent_after_its_fresh_period_is_replaced(
        self, stack_with_short_deadlines: Stack, with_services: dict[str, Json]
    ) -> None:
        stack_with_short_deadlines.server.kill()
        await_instant(time.time() + PERIOD * 1.2)
        stack_with_short_deadlines.serve()
        again = until(lambda: stack_with_short_deadlines.api.pull("ocr", 2, 5), "a new attempt", 30)
        assert again[0]["attempt_no"] == 2
        assert again[0]["jobId"] in {directive["jobId"] for directive in with_services.values()}

    def test_freeze_of_the_server_fences_no_attempt(
        self, stack_with_short_deadlines: Stack, with_services: dict[str, Json]
    ) -> None:
        stack_with_short_deadlines.server.send(signal.SIGSTOP)
        await_instant(time.time() + PERIOD * 1.2)
        stack_with_short_deadlines.server.send(signal.SIGCONT)
        until(lambda: self.extended(stack_with_short_deadlines, with_services), "overdue attempts got a fresh period")
        self.check_untouched(stack_with_short_deadlines, with_services)

    def test_result_sent_to_a_frozen_server_is_applied(
        self, stack_with_short_deadlines: Stack, with_services: dict[str, Json]
    ) -> None:
        stack_with_short_deadlines.server.send(signal.SIGSTOP)
        await_instant(time.time() + PERIOD * 1.2)
        taken: list[str] = []
        senders = [
            threading.Thread(
                target=lambda d=directive: taken.append(finish(stack_with_short_deadlines, d)), daemon=True
            )
            for directive in with_services.values()
        ]
        for sender in senders:
            sender.start()
        stack_with_short_deadlines.server.send(signal.SIGCONT)
        for sender in senders:
            sender.join(20)
        assert taken == ["APPLIED", "APPLIED"]
        assert all(
            stack_with_short_deadlines.api.get(f"/v1/jobs/{d['jobId']}")["attempts_total"] == 1
            for d in with_services.values()
        )
