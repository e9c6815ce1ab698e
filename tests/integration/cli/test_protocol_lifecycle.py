"""The life cycle of a protocol version on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.cli.support import Stub, at, lucius, problem

DOCUMENT = {
    "protocol_id": "upper",
    "version": 2,
    "request_type": "UPPER",
    "title": "Louder",
    "steps": [{"step_id": "upper", "step_type": "UPPER", "service": "upper"}],
}
CREATED = {"by": "ann", "at": "2026-01-02T03:04:05.678Z"}
PUBLISHED = {"by": "bob", "at": "2026-01-03T03:04:05.678Z", "reason": "it is good"}
DEPRECATED = {"by": "cy", "at": "2026-01-04T03:04:05.678Z", "reason": "too slow"}
GONE = {
    **DOCUMENT,
    "version": 1,
    "status": "DEPRECATED",
    "created": CREATED,
    "published": PUBLISHED,
    "deprecated": DEPRECATED,
    "successor": {"request_type": "UPPER", "version": 2},
}
V = "/v1/protocols/UPPER/versions"


def test_listing_can_be_filtered_by_status(stub: Stub) -> None:
    stub.routes["GET /v1/protocols"] = (200, {"protocols": [GONE], "problems": []})
    lines = at(stub, "protocols", "list", "--status", "deprecated").stdout.splitlines()
    assert lines[1].split()[:4] == ["UPPER", "1", "DEPRECATED", "upper"]
    at(stub, "protocols", "list")
    assert [asked.query["status"] for asked in stub.asked] == ["DEPRECATED", "PUBLISHED"]


def test_show_prints_who_created_published_and_deprecated_a_version(stub: Stub) -> None:
    stub.routes["GET /v1/protocols/UPPER"] = (200, GONE)
    lines = at(stub, "protocols", "show", "UPPER", "--version", "1").stdout.splitlines()
    assert lines[:5] == [
        "UPPER version 1 (DEPRECATED): Louder",
        "created 2026-01-02T03:04:05.678Z by ann",
        "published 2026-01-03T03:04:05.678Z by bob: it is good",
        "deprecated 2026-01-04T03:04:05.678Z by cy: too slow",
        "use UPPER version 2 instead",
    ]


def test_show_indents_nested_steps(stub: Stub) -> None:
    leaf = {"step_id": "leaf"}
    steps = [
        {"step_id": "each", "kind": "map", "map": {"items": "input.list", "steps": [leaf]}},
        {"step_id": "both", "kind": "parallel", "parallel": {"branches": {"l": [{"step_id": "left"}]}}},
        {"step_id": "pay", "compensation": {"step_id": "refund"}},
    ]
    stub.routes["GET /v1/protocols/UPPER"] = (200, {**DOCUMENT, "steps": steps})
    lines = at(stub, "protocols", "show", "UPPER").stdout.splitlines()[-6:]
    assert [line[: len(line) - len(line.lstrip())] + line.split()[0] for line in lines] == [
        "each",
        "  leaf",
        "both",
        "  left",
        "pay",
        "  refund",
    ]


def test_versions_show_actor_reason_and_successor(stub: Stub) -> None:
    newer = {"version": 2, "request_type": "UPPER", "status": "DRAFT", "created": CREATED}
    stub.routes[f"GET {V}"] = (200, {"request_type": "UPPER", "versions": [GONE, newer]})
    first, second = at(stub, "protocols", "versions", "UPPER").stdout.splitlines()[1:]
    assert first.split() == f"1 DEPRECATED {DEPRECATED['at']} cy too slow UPPER version 2 Louder".split()
    assert second.split() == f"2 DRAFT {CREATED['at']} ann".split()
    told = json.loads(at(stub, "protocols", "versions", "UPPER", "--json").stdout)
    assert [version["version"] for version in told["versions"]] == [1, 2]


def test_create_sends_the_file_with_its_schemas_embedded(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "upper.yaml").write_text("{type: object}")
    step = {**DOCUMENT["steps"][0], "payload_schema": "schemas/upper.yaml"}  # type: ignore[index]
    (tmp_path / "p.yaml").write_text(yaml.safe_dump({**DOCUMENT, "steps": [step]}))
    finding = {"pointer": "/steps/0", "message": "can't be reached", "fatal": True}
    noted = {"pointer": "/steps/1", "message": "is never used", "fatal": False}
    stub.routes["POST /v1/protocols"] = (201, {**DOCUMENT, "status": "DRAFT", "findings": [finding, noted]})
    result = at(stub, "protocols", "create", str(tmp_path / "p.yaml"))
    assert result.exit_code == 0
    assert result.stdout == "UPPER version 2 (DRAFT): Louder\n"
    assert result.stderr == "/steps/0: can't be reached\nnote: /steps/1: is never used\n"
    assert stub.asked[0].body["steps"][0]["payload_schema"] == {"type": "object"}


def test_create_sends_explicit_default_values(stub: Stub, tmp_path: Path) -> None:
    """Without the field, the server would warn that the step relies on the default."""
    step = {**DOCUMENT["steps"][0], "retry_safety": "SAFE_TO_RETRY"}  # type: ignore[index]
    (tmp_path / "p.yaml").write_text(yaml.safe_dump({**DOCUMENT, "steps": [step]}))
    stub.routes["POST /v1/protocols"] = (201, {**DOCUMENT, "status": "DRAFT"})
    assert at(stub, "protocols", "create", str(tmp_path / "p.yaml")).exit_code == 0
    assert stub.asked[0].body["steps"] == [step]


def test_invalid_file_is_not_sent(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("protocol_id: x\nversion: soon\n")
    result = at(stub, "protocols", "create", str(tmp_path / "p.yaml"))
    assert result.exit_code == 1
    assert f"{tmp_path / 'p.yaml'}:2: " in result.stderr
    assert stub.asked == []


def test_create_reports_the_same_faults_as_validate(stub: Stub, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("protocol_id: x\nversion: soon\nrequest_type: X\nstpes: []\nsteps: 5\n")
    validated = lucius("protocols", "validate", str(path)).stdout.splitlines()
    assert len(validated) > 1
    result = at(stub, "protocols", "create", str(path))
    assert result.exit_code == 1
    *faults, last = result.stderr.splitlines()
    assert faults == validated
    assert last == f"lucius: {path} has {len(faults)} faults; nothing was sent"
    assert stub.asked == []


def test_publish_prints_the_new_status(stub: Stub) -> None:
    stub.routes[f"POST {V}/2:publish"] = (200, {**DOCUMENT, "status": "PUBLISHED"})
    result = at(stub, "protocols", "publish", "UPPER", "2", "--reason", "it is good", "--digest", "abc")
    assert result.stdout == "UPPER version 2 (PUBLISHED): Louder\n"
    assert stub.asked[0].body == {"reason": "it is good", "digest": "abc"}
    at(stub, "protocols", "publish", "UPPER", "2")
    assert stub.asked[1].body == {}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([], {}),
        (["--successor", "OCR"], {"successor": {"request_type": "OCR"}}),
        (["--successor", "OCR:3"], {"successor": {"request_type": "OCR", "version": 3}}),
        (["--successor", ":3"], {"successor": {"version": 3}}),
    ],
)
def test_deprecate_sends_reason_and_successor(stub: Stub, given: list[str], sent: dict[str, Any]) -> None:
    stub.routes[f"POST {V}/1:deprecate"] = (200, GONE)
    assert at(stub, "protocols", "deprecate", "UPPER", "1", "--reason", "too slow", *given).exit_code == 0
    assert stub.asked[0].body == {"reason": "too slow", **sent}


@pytest.mark.parametrize(
    ("serving", "told"),
    [
        (2, "UPPER version 2 now serves commands without a version"),
        (None, "no version of UPPER now serves new commands"),
    ],
)
def test_deprecate_prints_the_version_served_now(stub: Stub, serving: int | None, told: str) -> None:
    stub.routes[f"POST {V}/1:deprecate"] = (200, {**GONE, "serving_version": serving})
    lines = at(stub, "protocols", "deprecate", "UPPER", "1", "--reason", "too slow").stdout.splitlines()
    assert lines == ["UPPER version 1 (DEPRECATED): Louder", told]


def test_invalid_successor_is_misuse(stub: Stub) -> None:
    result = at(stub, "protocols", "deprecate", "UPPER", "1", "--reason", "x", "--successor", "OCR:new")
    assert result.exit_code == 2
    assert stub.asked == []


def test_delete_removes_a_draft_and_prints_a_refusal_in_one_line(stub: Stub) -> None:
    stub.routes[f"DELETE {V}/2"] = (200, DOCUMENT)
    assert at(stub, "protocols", "delete", "UPPER", "2").stdout == "deleted the draft of UPPER version 2\n"
    stub.routes[f"DELETE {V}/1"] = (409, problem("PROTOCOL_IMMUTABLE", "UPPER version 1 is published", 409))
    result = at(stub, "protocols", "delete", "UPPER", "1")
    assert result.exit_code == 1
    assert result.stderr == "lucius: UPPER version 1 is published [PROTOCOL_IMMUTABLE]\n"


def test_diff_is_printed_step_by_step(stub: Stub) -> None:
    def change(kind: str, pointer: str, step: str | None = None, **values: Any) -> dict[str, Any]:
        return {"change": kind, "pointer": pointer, "stepId": step, **values}

    changes = [
        change("CHANGED", "/title", before="Loud", after="Louder"),
        change("ADDED", "/steps/0", "read", after={"step_id": "read"}),
        change("CHANGED", "/steps/1/timeout_ms", "upper", before=1, after=2),
        change("REMOVED", "/steps/1/name", "upper", before="x" * 200),
        change("REMOVED", "/steps/1", "old", before={"step_id": "old"}),
        change("MOVED", "/steps", before=["a", "b"], after=["b", "a"]),
    ]
    steps = {"steps_added": ["read"], "steps_removed": ["old"], "steps_changed": ["upper"]}
    whole = {"request_type": "UPPER", "from_version": 1, "to_version": 2, **steps, "changes": changes}
    stub.routes[f"GET {V}/1/diff/2"] = (200, whole)
    assert at(stub, "protocols", "diff", "UPPER", "1", "2").stdout.splitlines() == [
        "UPPER version 1 → 2",
        '  ~ /title: "Loud" → "Louder"',
        "+ step read  (/steps/0)",
        "  upper",
        "    ~ /steps/1/timeout_ms: 1 → 2",
        f'    - /steps/1/name: "{"x" * 98}…',
        "- step old  (/steps/1)",
        '  ↕ /steps: ["a","b"] → ["b","a"]',
    ]
    assert json.loads(at(stub, "protocols", "diff", "UPPER", "1", "2", "--json").stdout) == whole
    stub.routes[f"GET {V}/1/diff/2"] = (200, {**whole, "changes": []})
    assert at(stub, "protocols", "diff", "UPPER", "1", "2").stdout.splitlines()[1:] == ["no change"]
