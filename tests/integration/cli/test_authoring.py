"""`lucius protocols graph` and `lucius simulate`: arguments, output and exit codes."""

import json
from pathlib import Path

import pytest

from tests.integration.cli.support import Stub, at, lucius

EXAMPLES = Path(__file__).parents[3] / "examples" / "protocols"
INVOICE = str(EXAMPLES / "invoice_approval.yaml")
ACME = ("--input", '{"supplier": "Acme"}')
LARGE = ("--result", 'extract={"amount": 9000}')


def test_graph_is_mermaid_by_default() -> None:
    result = lucius("protocols", "graph", INVOICE)
    assert result.exit_code == 0
    assert "flowchart TD\n" in result.stdout
    assert lucius("protocols", "graph", INVOICE, "--format", "svg").stdout.startswith("<svg ")


def test_graph_is_written_to_a_file_in_the_format_of_its_name(tmp_path: Path) -> None:
    out = tmp_path / "a.svg"
    result = lucius("protocols", "graph", INVOICE, "-o", str(out))
    assert (result.exit_code, result.stdout) == (0, "")
    assert out.read_text().startswith("<svg ")
    gone = lucius("protocols", "graph", INVOICE, "-o", str(tmp_path / "no" / "a.svg"))
    assert (gone.exit_code, gone.stdout) == (2, "")


def test_graph_can_be_of_a_protocol_of_the_server(stub: Stub) -> None:
    steps = [{"step_id": "ocr", "step_type": "OCR", "service": "ocr"}]
    told = {"protocol_id": "ocr", "version": 4, "request_type": "OCR", "steps": steps, "status": "PUBLISHED"}
    stub.routes["GET /v1/protocols/OCR"] = (200, told)
    result = at(stub, "protocols", "graph", "--request-type", "OCR", "--version", "4")
    assert result.stdout.startswith("%% OCR version 4")
    assert stub.asked[0].query == {"version": "4"}


@pytest.mark.parametrize("arguments", [(), (INVOICE, "--request-type", "OCR")])
def test_graph_needs_either_a_file_or_a_request_type(arguments: tuple[str, ...]) -> None:
    result = lucius("protocols", "graph", *arguments)
    assert (result.exit_code, result.stderr) == (
        2,
        "lucius: give either a file or --request-type\n",
    )


def test_invalid_protocol_file_is_neither_drawn_nor_simulated(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("protocol_id: x\nversion: 1\nrequest_type: X\nsteps:\n  - step_id: a\n    servce: q\n")
    for result in (lucius("protocols", "graph", str(bad)), lucius("simulate", str(bad))):
        assert result.exit_code == 1
        assert result.stderr.startswith(f"lucius: {bad}:6: ")


def test_simulation_prints_timeline_steps_path_and_end() -> None:
    result = lucius("simulate", INVOICE, *ACME, *LARGE, "--reject", "sign=anna:finance")
    assert result.exit_code == 0
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert "0:01:01  sign           rejected by anna" in lines
    assert any("… waiting for approval by finance" in line for line in lines)
    assert "Path: extract → by_amount → sign → tell_rejected (on_failure)" in lines
    assert "Review item OPEN: JOB_FAILED, REJECTED in sign" in lines
    assert lines[-1].startswith("FAILED_FINAL after 1 min 2 s of virtual time, with 4 attempts")
    assert any(line.split()[:3] == ["escalate", "human_approval", "SKIPPED"] for line in lines)


def test_simulation_as_json_is_reproducible() -> None:
    arguments = ("simulate", INVOICE, *ACME, *LARGE, "--fail", "extract:TRANSIENT:2", "--approve", "sign", "--json")
    told = json.loads(lucius(*arguments).stdout)
    assert (told["status"], told["ended"], told["stands_still"]) == ("SUCCEEDED", True, None)
    assert [attempt["outcome"] for attempt in told["steps"][0]["attempts"]] == ["FAILED", "FAILED", "SUCCEEDED"]
    assert json.loads(lucius(*arguments).stdout) == told
    assert json.loads(lucius(*arguments, "--seed", "5").stdout) != told


def test_simulated_job_that_would_wait_forever_is_reported_without_an_error(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    asked = "{step_id: a, kind: human_approval, human_approval: {approvers: [finance]}}"
    path.write_text(f"protocol_id: p\nversion: 1\nrequest_type: P\nsteps:\n  - {asked}\n")
    result = lucius("simulate", str(path))
    assert result.exit_code == 0
    assert "Would wait for ever" in result.stdout
    assert "waiting for approval by finance" in result.stdout.splitlines()[-1]


def test_simulation_over_its_maximum_time_is_stopped() -> None:
    result = lucius("simulate", INVOICE, *ACME, *LARGE, "--max-time", "1h")
    assert result.exit_code == 1
    assert "it would take longer than 1 h: waiting for approval by finance" in result.stderr


def test_simulation_input_can_be_a_file_and_is_validated(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text('{"supplier": 3}')
    result = lucius("simulate", INVOICE, "--input", f"@{path}")
    assert result.exit_code == 2
    assert result.stderr.startswith("lucius: --input would be refused: /payload/supplier: ")
    path.write_text('{"supplier": "Acme"}')
    assert lucius("simulate", INVOICE, "--input", f"@{path}", *LARGE).exit_code == 0


def test_simulated_timeouts_precede_failures_and_rejections_precede_approvals() -> None:
    said = ("--fail", "extract:TRANSIENT", "--timeout", "extract", "--approve", "sign", "--reject", "sign")
    told = json.loads(lucius("simulate", INVOICE, *ACME, *LARGE, *said, "--json").stdout)
    assert [attempt["outcome"] for attempt in told["steps"][0]["attempts"]] == ["LEASE_EXPIRED", "FAILED", "SUCCEEDED"]
    assert told["error"]["code"] == "REJECTED"


def test_simulation_times_have_units() -> None:
    arguments = ("--duration", "extract=2h", "--pause-at", "90m", "--resume-at", "1d", "--json")
    told = json.loads(lucius("simulate", INVOICE, *ACME, "--result", 'extract={"amount": 1}', *arguments).stdout)
    assert told["took_ms"] == 86_400_000 + 2_000


def test_simulation_start_can_be_set() -> None:
    given = ("--input", '{"send_at": "2030-05-05T10:00:00Z"}', "--start", "2030-05-05T09:59:00Z", "--json")
    signal = ("--signal", 'signed={"outcome": "SIGNED"}')
    told = json.loads(lucius("simulate", str(EXAMPLES / "signature.yaml"), *given, *signal).stdout)
    assert told["took_ms"] == 60_000 + 1_000 + 60_000 + 1_000


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--fail", "extract"), "--fail extract: must be STEP:CLASS or STEP:CLASS:TIMES"),
        (("--fail", "extract:BAD"), "--fail extract:BAD: the class must be one of TRANSIENT, "),
        (("--fail", "extract:TRANSIENT:0"), "TIMES must be a number from 1 to 1000"),
        (("--fail", "nix:TRANSIENT"), "there is no step nix; there are extract, "),
        (("--timeout", "extract:never"), "--timeout extract:never: never must be ack, lease or step"),
        (("--timeout", "extract:ack:2:2"), "must be STEP, STEP:ack|lease|step or"),
        (("--timeout", "sign"), "step sign (human_approval) can't fail or time out by itself"),
        (("--result", "extract"), "--result extract: must be STEP=JSON"),
        (("--result", "extract={"), "--result is not JSON: "),
        (("--respond", "post=9"), "must be STEP=STATUS or STEP=STATUS:JSON"),
        (("--respond", "post=200", "--result", "post=1"), "both set the answer of post"),
        (("--approve", "sign="), "--approve sign=: must be STEP, STEP=WHO or STEP=WHO:GROUP"),
        (("--signal", "go"), "no step waits for a signal go; known: none"),
        (("--duration", "extract=long"), "must be seconds, or a number with ms, s, m, h or d"),
        (("--pause-at", "noon"), "--pause-at noon: must be seconds"),
        (("--start", "noon"), "--start noon: must be a time such as"),
        (("--input", "[]"), "--input must be a JSON object"),
        (("--input", "@gone.json"), "can't read --input from gone.json"),
    ],
)
def test_invalid_simulation_arguments_are_refused_with_exit_code_2(arguments: tuple[str, ...], why: str) -> None:
    result = lucius("simulate", INVOICE, *ACME, *arguments)
    assert result.exit_code == 2
    assert why in result.stderr
    assert len(result.stderr.splitlines()) == 1
