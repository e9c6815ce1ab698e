"""`lucius conformance`, for people and for scripts."""

import json
import shlex
from pathlib import Path

import msgspec
from typer.testing import CliRunner, Result

from lucius.cli.main import app
from lucius.conformance.cases import all_cases
from lucius.conformance.model import Report
from tests.integration.conformance_kit.support import RIGHT, wrong


def run_conformance(*arguments: str, command: list[str] | None = None) -> Result:
    started = ["--service-command", shlex.join(command)] if command else []
    return CliRunner().invoke(app, ["conformance", *started, *arguments])


def test_list_has_a_line_for_each_case() -> None:
    lines = run_conformance("--list").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [case.id for case in all_cases()]


def test_correct_service_gets_a_table_without_colour_and_exit_code_0() -> None:
    told = run_conformance("--case", "bad-payload", "--bad-payload", '{"seconds": []}', command=RIGHT)
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines()[0].split() == ["CASE", "OUTCOME", "SECONDS", "WHAT", "WAS", "SEEN"]
    assert told.stdout.splitlines()[1].split()[:2] == ["bad-payload", "PASS"]
    assert "plain keeps the contract: 1 case" in told.stdout
    assert "\x1b" not in told.output


def test_faulty_service_gets_exit_code_1_with_expectation_evidence_and_reference() -> None:
    told = run_conformance("--case", "result", command=wrong("invalid-result"))
    assert told.exit_code == 1
    assert "expected callbacks that fit the contract" in told.stdout
    assert "Invalid enum value 'OK'" in told.stdout
    assert "read docs/how-to/conformance.md#result" in told.stdout
    assert "| " in told.stdout.partition("the service's last lines:")[2]


def test_strict_makes_a_warning_fail() -> None:
    assert run_conformance("--case", "result", command=wrong("no-output")).exit_code == 0
    assert run_conformance("--case", "result", "--strict", command=wrong("no-output")).exit_code == 1


def test_json_and_report_file_are_equal_and_alone_on_stdout(tmp_path: Path) -> None:
    file = tmp_path / "reports" / "kit.json"
    told = run_conformance("--case", "bad-payload", "--json", "--report", str(file), command=RIGHT)
    assert json.loads(told.stdout) == json.loads(file.read_text())
    report = msgspec.json.decode(told.stdout, type=Report)
    assert (report.schema, report.cases[0].outcome.value) == ("lucius.conformance/1", "SKIPPED")
    assert told.stderr == "SKIPPED bad-payload (0.0 s)\n"


def test_misuse_is_one_line_and_exit_code_2() -> None:
    for arguments, words in [
        ([], "--service-command"),
        (["--case", "nonsense"], "there is no case 'nonsense'"),
        (["--bus", "kafka://x"], "not kafka:"),
        (["--payload", "x"], "--payload is not JSON"),
        (["--report", "/dev/null/x"], "can't write --report"),
    ]:
        told = run_conformance(*arguments, command=RIGHT if arguments else None)
        assert told.exit_code == 2, told.output
        assert words in told.stderr
        assert len(told.stderr.splitlines()) == 1
