"""`lucius protocols graph` and `lucius simulate`: arguments, output and exit codes."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.support import Stub, at, lucius

EXAMPLES = Path(__file__).parents[3] / "examples" / "protocols"
INVOICE = str(EXAMPLES / "invoice_approval.yaml")
ACME = ("--input", '{"supplier": "Acme"}')
LARGE = ("--result", 'extract={"amount": 9000}')


def test_a_graph_is_mermaid_unless_asked_otherwise() -> None:
    result = lucius("protocols", "graph", INVOICE)
    assert result.exit_code == 0
    assert "flowchart TD\n" in result.stdout
    assert lucius("protocols", "graph", INVOICE, "--format", "svg").stdout.startswith("<svg ")


def test_a_graph_can_be_written_to_a_file_whose_name_says_the_format(tmp_path: Path) -> None:
    out = tmp_path / "a.svg"
    result = lucius("protocols", "graph", INVOICE, "-o", str(out))
    assert (result.exit_code, result.stdout) == (0, "")
    assert out.read_text().startswith("<svg ")
    gone = lucius("protocols", "graph", INVOICE, "-o", str(tmp_path / "no" / "a.svg"))
    assert (gone.exit_code, gone.stdout) == (2, "")


def test_a_graph_can_be_that_of_the_servers_protocol(stub: Stub) -> None:
    steps = [{"step_id": "ocr", "step_type": "OCR", "service": "ocr"}]
    told = {"protocol_id": "ocr", "version": 4, "request_type": "OCR", "steps": steps, "status": "PUBLISHED"}
    stub.routes["GET /v1/protocols/OCR"] = (200, told)
    result = at(stub, "protocols", "graph", "--request-type", "OCR", "--version", "4")
    assert result.stdout.startswith("%% OCR version 4")
    assert stub.asked[0].query == {"version": "4"}


@pytest.mark.parametrize("arguments", [(), (INVOICE, "--request-type", "OCR")])
def test_a_graph_is_of_a_file_or_of_the_servers_protocol(arguments: tuple[str, ...]) -> None:
    result = lucius("protocols", "graph", *arguments)
    assert (result.exit_code, result.stderr) == (
        2,
        "lucius: name either a file or, with --request-type, a protocol of the server\n",
    )


def test_a_file_that_is_no_protocol_is_neither_drawn_nor_simulated(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("protocol_id: x\nversion: 1\nrequest_type: X\nsteps:\n  - step_id: a\n    servce: q\n")
    for result in (lucius("protocols", "graph", str(bad)), lucius("simulate", str(bad))):
        assert result.exit_code == 1
        assert result.stderr.startswith(f"lucius: {bad}:6: ")


def test_a_simulation_tells_a_timeline_the_steps_the_path_and_how_it_ended() -> None:
    result = lucius("simulate", INVOICE, *ACME, *LARGE, "--reject", "sign=anna:finance")
    assert result.exit_code == 0
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert "0:01:01  sign           rejected by anna" in lines
    assert any("… waiting for approval by finance" in line for line in lines)
    assert "Path: extract → by_amount → sign → tell_rejected (on_failure)" in lines
    assert "Review item OPEN: JOB_FAILED, REJECTED in sign" in lines
    assert lines[-1].startswith("FAILED_FINAL after 1 min 2 s of virtual time, with 4 attempts")
    assert any(line.split()[:3] == ["escalate", "human_approval", "SKIPPED"] for line in lines)


def test_the_same_is_told_to_machines() -> None:
    arguments = ("simulate", INVOICE, *ACME, *LARGE, "--fail", "extract:TRANSIENT:2", "--approve", "sign", "--json")
    told = json.loads(lucius(*arguments).stdout)
    assert (told["status"], told["ended"], told["stands_still"]) == ("SUCCEEDED", True, None)
    assert [attempt["outcome"] for attempt in told["steps"][0]["attempts"]] == ["FAILED", "FAILED", "SUCCEEDED"]
    assert json.loads(lucius(*arguments).stdout) == told
    assert json.loads(lucius(*arguments, "--seed", "5").stdout) != told


def test_a_job_that_would_wait_for_ever_is_told_so_and_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    asked = "{step_id: a, kind: human_approval, human_approval: {approvers: [finance]}}"
    path.write_text(f"protocol_id: p\nversion: 1\nrequest_type: P\nsteps:\n  - {asked}\n")
    result = lucius("simulate", str(path))
    assert result.exit_code == 0
    assert "Would wait for ever" in result.stdout
    assert "waiting for approval by finance" in result.stdout.splitlines()[-1]


def test_one_that_takes_too_long_is_stopped() -> None:
    result = lucius("simulate", INVOICE, *ACME, *LARGE, "--max-time", "1h")
    assert result.exit_code == 1
    assert "it would take longer than 1 h: waiting for approval by finance" in result.stderr


def test_the_payload_may_be_in_a_file_and_is_checked_as_at_the_door(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text('{"supplier": 3}')
    result = lucius("simulate", INVOICE, "--input", f"@{path}")
    assert result.exit_code == 2
    assert result.stderr.startswith("lucius: --input would be refused: /payload/supplier: ")
    path.write_text('{"supplier": "Acme"}')
    assert lucius("simulate", INVOICE, "--input", f"@{path}", *LARGE).exit_code == 0


def test_of_one_step_timeouts_come_before_failures_and_a_no_before_any_yes() -> None:
    said = ("--fail", "extract:TRANSIENT", "--timeout", "extract", "--approve", "sign", "--reject", "sign")
    told = json.loads(lucius("simulate", INVOICE, *ACME, *LARGE, *said, "--json").stdout)
    assert [attempt["outcome"] for attempt in told["steps"][0]["attempts"]] == ["LEASE_EXPIRED", "FAILED", "SUCCEEDED"]
    assert told["error"]["code"] == "REJECTED"


def test_times_have_units() -> None:
    arguments = ("--duration", "extract=2h", "--pause-at", "90m", "--resume-at", "1d", "--json")
    told = json.loads(lucius("simulate", INVOICE, *ACME, "--result", 'extract={"amount": 1}', *arguments).stdout)
    assert told["took_ms"] == 86_400_000 + 2_000


def test_the_start_can_be_set_for_protocols_that_wait_for_an_instant() -> None:
    given = ("--input", '{"send_at": "2030-05-05T10:00:00Z"}', "--start", "2030-05-05T09:59:00Z", "--json")
    signal = ("--signal", 'signed={"outcome": "SIGNED"}')
    told = json.loads(lucius("simulate", str(EXAMPLES / "signature.yaml"), *given, *signal).stdout)
    assert told["took_ms"] == 60_000 + 1_000 + 60_000 + 1_000


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--fail", "extract"), "--fail extract: must be STEP:CLASS or STEP:CLASS:TIMES"),
        (("--fail", "extract:BAD"), "--fail extract:BAD: the class must be one of TRANSIENT, "),
        (("--fail", "extract:TRANSIENT:0"), "how often must be a number from 1 to 1000"),
        (("--fail", "nix:TRANSIENT"), "there is no step nix; there are extract, "),
        (("--timeout", "extract:never"), "--timeout extract:never: never must be ack, lease or step"),
        (("--timeout", "extract:ack:2:2"), "must be STEP, STEP:ack|lease|step or"),
        (("--timeout", "sign"), "step sign (human_approval) can't fail or time out by itself"),
        (("--result", "extract"), "--result extract: must be STEP=JSON"),
        (("--result", "extract={"), "--result: this is not JSON: {"),
        (("--respond", "post=9"), "must be STEP=STATUS or STEP=STATUS:JSON"),
        (("--respond", "post=200", "--result", "post=1"), "both say how post is answered"),
        (("--approve", "sign="), "--approve sign=: must be STEP, STEP=WHO or STEP=WHO:GROUP"),
        (("--signal", "go"), "no step waits for a signal go; known: none"),
        (("--duration", "extract=long"), "must be seconds, or a number with ms, s, m, h or d"),
        (("--pause-at", "noon"), "--pause-at noon: must be seconds"),
        (("--start", "noon"), "--start noon: must be an instant such as"),
        (("--input", "[]"), "--input must be an object"),
        (("--input", "@gone.json"), "can't read --input from gone.json"),
    ],
)
def test_wrong_arguments_are_told_with_exit_code_2(arguments: tuple[str, ...], why: str) -> None:
    result = lucius("simulate", INVOICE, *ACME, *arguments)
    assert result.exit_code == 2
    assert why in result.stderr
    assert len(result.stderr.splitlines()) == 1
