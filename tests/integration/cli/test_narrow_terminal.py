"""Every table on a terminal of 80 columns: ids and names are whole, and no column wraps letter by letter."""

from typing import Any

import pytest
from rich.console import Console

from lucius.cli.render import ListingRow, listing
from tests.integration.cli.support import NOW, Stub, attempt, event, job, lucius, step
from tests.integration.cli.test_review import item
from tests.integration.cli.test_service_list import service

JOB = "01a1ef38-0da2-783b-99f4-e66c1d491de3"
TENANT = "a-rather-long-tenant-name-gmbh"
TYPE = "OCR_EMBEDDING_SIS"
STEP = "sign_off_by_finance"
SERVICE = "invoice-line-item-extractor-of-the-finance-department"
INSTANCE = "invoice-line-item-extractor-5d8f7c9b6d-x2v9q:1"
AGENT = "invoice-line-item-extractor/12.10.3 lucius-worker/0.1.0"
BY = "ada.lovelace@example.com"
WHY = "waiting for ocr to acknowledge attempt 2 of step ocr, times out at 10:02:41 UTC"
ERROR = {"code": "LEASE_EXPIRED", "message": "the service fell silent while it was reading page 7 of 20"}
WIDTH = 80


def _serve(stub: Stub) -> None:
    blocked = {"reason": "ACK", "message": WHY, "since": NOW, "until": None}
    named: dict[str, Any] = {"tenant_id": TENANT, "request_type": TYPE, "current_step_id": STEP}
    waiting = job(JOB, "WAITING_APPROVAL", blocked_on=blocked, **named)
    tried = [attempt(1, "LEASE_EXPIRED", error=ERROR, failure_class="TRANSIENT"), attempt(2, run_no=2)]
    approval = step(STEP, kind="human_approval", status="AWAITING_APPROVAL", attempts=[], wake_at=NOW)
    reviewed = item(f"{JOB}~run1", tenant_id=TENANT, request_type=TYPE, error=ERROR, stepId=STEP)
    act = {"by": BY, "at": NOW, "reason": "first version of the pipeline for the board"}
    seen = {"instance": INSTANCE, "agent": AGENT, "last_seen_at": NOW, "last_pull_at": NOW}
    protocol = {
        "protocol_id": "ocr_embedding_sis",
        "request_type": TYPE,
        "version": 1,
        "title": "Reads a document, embeds it and answers a prompt set",
        "aliases": ["OCR→EMBEDDING→SIS"],
        "steps": [
            {"step_id": STEP, "service": "ocr", "step_type": "SIGN", "payload_schema": {"required": ["prompt_set"]}}
        ],
        "status": "PUBLISHED",
        "policies": {},
        "published": act,
    }
    for route, answer in {
        "/v1/jobs": {"jobs": [waiting], "next_cursor": None},
        f"/v1/jobs/{JOB}": waiting,
        f"/v1/jobs/{JOB}/steps": {"steps": [step(attempts=tried), approval]},
        f"/v1/jobs/{JOB}/events": {"events": [event(1, "JOB_ACCEPTED")], "next_cursor": None},
        "/v1/review": {"items": [reviewed], "next_cursor": None},
        "/v1/review/groups": {
            "groups": [{"signature": reviewed["signature"], "kind": "JOB_FAILED", "count": 1234, "newest": reviewed}]
        },
        "/v1/services": {"services": [service(SERVICE, oldest_waiting_at=NOW, backlog=1234, instances=[seen])]},
        "/v1/protocols": {"protocols": [protocol], "problems": []},
        f"/v1/protocols/{TYPE}": protocol,
        f"/v1/protocols/{TYPE}/versions": {"request_type": TYPE, "versions": [protocol]},
    }.items():
        stub.routes[f"GET {route}"] = (200, answer)


@pytest.mark.parametrize(
    ("command", "whole"),
    [
        (("jobs", "list"), (JOB, TENANT, TYPE, STEP, "WAITING_APPROVAL")),
        (("jobs", "show", JOB), (JOB, TENANT, TYPE, STEP, "AWAITING_APPROVAL", "03:04:05.678")),
        (("review", "list"), (f"{JOB}~run1", TENANT, TYPE, "JOB_FAILED", "OPEN")),
        (("review", "groups"), ("ocr/ocr/JOB_FAILED/NON_RETRYABLE/BROKEN", "1234")),
        (("services",), (SERVICE, INSTANCE, AGENT, "1234")),
        (("protocols", "list"), (TYPE, "PUBLISHED", STEP, "OCR→EMBEDDING→SIS")),
        (("protocols", "show", TYPE), (STEP, "prompt_set")),
        (("protocols", "versions", TYPE), (BY, NOW, "PUBLISHED")),
        (("conformance", "--list"), ("orchestrator-restart",)),
    ],
    ids=lambda given: " ".join(given) if "--" not in given[0] else "",
)
def test_table_fits_80_columns_with_every_name_whole(
    stub: Stub, command: tuple[str, ...], whole: tuple[str, ...]
) -> None:
    _serve(stub)
    result = lucius("--url", stub.url, "--api-key", "k", *command, env={"COLUMNS": str(WIDTH)})
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    missing = [name for name in whole if not any(name in line for line in lines)]
    assert missing == [], result.stdout
    assert "…" not in result.stdout
    soft_wrapped = 3 if "show" in command else 0
    assert sum(len(line) > WIDTH for line in lines) <= soft_wrapped, result.stdout


def test_ref_that_does_not_fit_is_whole_on_its_own_line(stub: Stub) -> None:
    _serve(stub)
    ref = f"file:///home/ada/projects/board/.lucius/workspace/lucius/{TENANT}/{JOB}"
    stub.routes[f"GET /v1/jobs/{JOB}"] = (200, job(JOB, workspace_ref=ref))
    command = ("--url", stub.url, "--api-key", "k", "jobs", "show", JOB)
    lines = lucius(*command, env={"COLUMNS": str(WIDTH)}).stdout.splitlines()
    assert lines[lines.index("workspace") + 1].strip() == ref
    assert f"workspace    {ref}" in lucius(*command, env={"COLUMNS": "200"}).stdout


def test_listing_keeps_its_columns_if_there_is_room() -> None:
    console = Console(width=120, no_color=True)
    with console.capture() as captured:
        console.print(listing(("JOB", "TENANT", "WHY"), [ListingRow((JOB, TENANT, WHY[:20]))]))
    assert [line.split() for line in captured.get().splitlines()][1][:2] == [JOB, TENANT]
    assert len(captured.get().splitlines()) == 2


def test_listing_wraps_its_last_column_between_words() -> None:
    console = Console(width=WIDTH, no_color=True)
    with console.capture() as captured:
        console.print(listing(("JOB", "WHY"), [ListingRow((JOB, WHY))]))
    words = " ".join(captured.get().split())
    assert words == f"JOB WHY {JOB} {WHY}"
