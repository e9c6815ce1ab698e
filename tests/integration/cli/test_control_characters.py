"""Text of clients and services can't control the terminal, whichever command prints it."""

import io
import json
import re
from typing import Any

import msgspec
import pytest
import structlog

from lucius.cli.render import out, print_json
from lucius.cli.watch import render_job
from lucius.contract import JobView
from lucius.observability.logs import configure_logging
from lucius.terminal import escape_json, strip_controls
from tests.integration.cli.support import NOW, Stub, at, attempt, event, job, problem, step, stream
from tests.integration.cli.test_audit import audit_view
from tests.integration.cli.test_review import item
from tests.integration.cli.test_service_list import service

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\x00\r\x7f\u202egnp\u2066\u200f\u2028"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def poison(value: Any, member: str = "") -> Any:
    """Return the answer with HOSTILE appended to every text that a client or service may have written."""
    match value:
        case str() if value == NOW or member in ("status", "jobId", "next_cursor"):
            return value
        case str():
            return value + HOSTILE
        case list():
            return [poison(one) for one in value]
        case dict():
            return {name: poison(one, name) for name, one in value.items()}
        case _:
            return value


def _serve_hostile_answers(stub: Stub) -> None:
    error = {"code": "BOOM", "message": "it broke"}
    blocked = {"reason": "ACK", "message": "waits", "since": NOW, "until": None}
    shown = job("j-1", "FAILED_FINAL", error=error, blocked_on=blocked, doc_id="d", idempotency_key="k")
    tried = step(attempts=[attempt(1, "FAILED", error=error)], result={"a": "b"}, last_error=error)
    happened = [event(1, "JOB_FAILED_FINAL", stepId="ocr", attempt_no=1, data={"error": "it broke", "by": "eve"})]
    protocol = {
        "protocol_id": "ocr",
        "request_type": "OCR",
        "version": 1,
        "title": "Reads",
        "aliases": ["READ"],
        "steps": [{"step_id": "ocr", "service": "ocr", "step_type": "OCR"}],
        "status": "PUBLISHED",
        "policies": {},
    }
    seen = {"instance": "host-1:7", "agent": "sdk/1", "last_seen_at": NOW, "last_pull_at": NOW}
    for route, answer in {
        "GET /v1/jobs": {"jobs": [shown], "next_cursor": None},
        "GET /v1/jobs/j-1": shown,
        "GET /v1/jobs/j-1/steps": {"steps": [tried]},
        "GET /v1/jobs/j-1/events": {"events": happened, "next_cursor": None},
        "GET /v1/jobs/j-1/audit": audit_view("j-1", (3, "was edited")),
        "GET /v1/review": {"items": [item()], "next_cursor": None},
        "GET /v1/services": {"services": [service("ocr", instances=[seen])]},
        "GET /v1/protocols": {"protocols": [protocol], "problems": [{"file": "a.yaml", "reason": "no", "line": 1}]},
    }.items():
        stub.routes[route] = (200, poison(answer))
    stub.routes["STREAM /v1/jobs/j-1/events"] = stream(*poison(happened))
    stub.routes["POST /v1/jobs/j-1:cancel"] = (409, poison(problem("FORBIDDEN", "no", 409, [("/a", "bad")])))


COMMANDS = {
    "jobs list": ("jobs", "list"),
    "jobs show": ("jobs", "show", "j-1"),
    "jobs watch": ("jobs", "watch", "j-1"),
    "refusal": ("jobs", "cancel", "j-1"),
    "explain": ("explain", "j-1"),
    "audit": ("audit", "verify", "j-1"),
    "review": ("review", "list"),
    "protocols": ("protocols", "list"),
    "services": ("services",),
    "list as json": ("jobs", "list", "--json"),
    "show as json": ("jobs", "show", "j-1", "--json"),
    "explain as json": ("explain", "j-1", "--json"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_print_no_control_characters_of_clients_and_services(stub: Stub, command: tuple[str, ...]) -> None:
    _serve_hostile_answers(stub)
    result = at(stub, *command)
    told = result.stdout + result.stderr
    assert "[2J]0;owned" in told or "--json" in command, "the rest of the text is shown"
    assert CONTROL.findall(told) == []
    if "--json" in command:
        assert HOSTILE in _texts(json.loads(result.stdout)), "JSON is the same value as before"


def _texts(value: Any) -> str:
    match value:
        case str():
            return value
        case list():
            return "\n".join(map(_texts, value))
        case dict():
            return "\n".join(map(_texts, value.values()))
        case _:
            return ""


def test_live_view_prints_no_control_sequences_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(text: str) -> str:
        written = _Terminal()
        monkeypatch.setattr("sys.stdout", written)
        out().print(render_job(msgspec.convert(job(current_step_id=text, tenant_id=text), JobView), []))
        return written.getvalue()

    assert shown("acme" + HOSTILE) == shown("acme" + strip_controls(HOSTILE))


def test_json_output_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": f"ü{HOSTILE}"})
    printed = capsys.readouterr().out
    assert CONTROL.findall(printed) == []
    assert json.loads(printed) == {"text": f"ü{HOSTILE}"}
    assert "ü" in printed
    assert escape_json('"\ud800"') == '"\\ud800"'


@pytest.mark.parametrize("name", ["tenant_id", "event"])
def test_console_logs_have_no_control_characters_of_clients(name: str) -> None:
    written = io.StringIO()
    configure_logging("info", "console", written)
    structlog.get_logger().info(**{"event": "JOB_ACCEPTED", name: f"acme{HOSTILE}"})
    assert "acme[2J" in written.getvalue()
    assert CONTROL.findall(written.getvalue()) == []


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
