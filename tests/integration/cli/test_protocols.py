"""Protocols over HTTP, and files checked without a server."""

import json
from importlib.resources import files
from pathlib import Path

from lucius.adapters.protocols.directory import SHIPPED
from tests.integration.cli.support import Stub, at, lucius

OCR = {
    "protocol_id": "ocr",
    "version": 1,
    "request_type": "OCR",
    "title": "Read a document",
    "steps": [
        {
            "step_id": "ocr",
            "step_type": "OCR",
            "service": "ocr",
            "payload_schema": {"required": ["a"], "properties": {"a": {}, "b": {}}},
        }
    ],
}


def test_listing_shows_protocols_and_refused_files(stub: Stub) -> None:
    problem = {"file": "p/x.yaml", "line": 7, "reason": "unknown field [servce]"}
    stub.routes["GET /v1/protocols"] = (200, {"protocols": [OCR], "problems": [problem]})
    result = at(stub, "protocols", "list")
    assert result.stdout.splitlines()[1].split("  ")[0] == "OCR"
    assert result.stderr == "refused: p/x.yaml:7: unknown field [servce]\n"
    assert json.loads(at(stub, "protocols", "list", "--json").stdout)["protocols"] == [OCR]


def test_show_prints_optional_and_required_payload_members_of_a_step(stub: Stub) -> None:
    stub.routes["GET /v1/protocols/OCR"] = (200, OCR)
    last = at(stub, "protocols", "show", "OCR", "--version", "1").stdout.splitlines()[-1]
    assert last.split() == ["ocr", "OCR", "ocr", "b", "a"]
    assert stub.asked[0].query == {"version": "1"}


def test_shipped_protocols_are_valid() -> None:
    shipped = sorted(str(path) for path in SHIPPED.glob("*.yaml"))
    result = lucius("protocols", "validate", *shipped)
    assert result.exit_code == 0
    assert result.stdout.count(": valid (") == len(shipped)


def test_invalid_file_is_reported_with_line_and_reason(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("protocol_id: x\nversion: 1\nrequest_type: X\nsteps:\n  - step_id: a\n    servce: q\n")
    result = lucius("protocols", "validate", str(bad), "gone.yaml")
    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{bad}:6: ")
    assert second.startswith("gone.yaml: ")
    told = json.loads(lucius("protocols", "validate", str(bad), "--json").stdout)["files"][0]
    assert (told["valid"], told["line"]) == (False, 6)


def test_warning_is_printed_as_a_note_and_not_refused(tmp_path: Path) -> None:
    file = tmp_path / "wait.yaml"
    file.write_text(
        "protocol_id: x\nversion: 1\nrequest_type: X\nsteps:\n"
        "  - step_id: a\n    kind: wait\n    wait: {signal: signed}\n"
    )
    result = lucius("protocols", "validate", str(file))
    assert result.exit_code == 0
    good, note = result.stdout.splitlines()
    assert good == f"{file}: valid (X version 1, 1 step)"
    assert note.startswith(f"note: {file}:5: a waits for a signal without timeout_ms")
    told = json.loads(lucius("protocols", "validate", str(file), "--json").stdout)["files"][0]
    assert told["valid"] is True
    (warning,) = told["warnings"]
    assert warning["line"] == 5


def test_protocol_of_the_demo_is_valid() -> None:
    path = files("lucius.cli.demo") / "demo_review.yaml"
    assert lucius("protocols", "validate", str(path)).exit_code == 0
