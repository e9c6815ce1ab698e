"""Every failure is one line on stderr with the right exit code."""

import socket

import pytest

from tests.integration.cli.support import Stub, at, lucius, problem


def test_refusal_names_every_fault_by_its_pointer(stub: Stub) -> None:
    faults = [("/payload/sis/prompt_set", "required member is missing"), ("/output_ref", "is not a URI")]
    stub.routes["POST /v1/commands"] = (422, problem("INVALID_PAYLOAD", "2 faults", 422, faults))
    result = at(stub, "submit", "SIS", "--tenant", "acme", "--input", "blob://in/a", "--output", "blob://out/a")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "lucius: /payload/sis/prompt_set: required member is missing; /output_ref: is not a URI [INVALID_PAYLOAD]\n"
    )


def test_refusal_without_faults_shows_its_detail(stub: Stub) -> None:
    stub.routes["GET /v1/jobs/nope"] = (404, problem("JOB_NOT_FOUND", "there is no job nope", 404))
    result = at(stub, "explain", "nope")
    assert (result.exit_code, result.stderr) == (1, "lucius: there is no job nope [JOB_NOT_FOUND]\n")


def test_unreachable_server_is_exit_code_3_with_a_hint() -> None:
    with socket.socket() as taken:  # bound but not listening: connections are refused, and the port stays reserved
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = lucius("--url", url, "--api-key", "k", "jobs", "list")
    assert result.exit_code == 3
    assert result.stderr == f"lucius: no control plane answers at {url}; start one with `lucius dev`, or give --url\n"


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://127.0.0.1:1", "http://[::1"])
def test_invalid_url_is_exit_code_3(url: str) -> None:
    result = lucius("--url", url, "--api-key", "k", "jobs", "list")
    assert result.exit_code == 3
    assert "give --url as http://host:port" in result.stderr
    assert result.stderr.count("\n") == 1


def test_server_that_is_not_lucius_is_exit_code_3(stub: Stub) -> None:
    stub.routes["GET /v1/jobs"] = (200, {"hello": "world"})
    result = at(stub, "jobs", "list")
    assert result.exit_code == 3
    assert "does not answer as Lucius does" in result.stderr
    stub.routes["GET /v1/jobs"] = (502, "bad gateway")
    result = at(stub, "jobs", "list")
    assert result.exit_code == 3
    assert "answered 502, not as Lucius does" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("submit", "OCR", "--tenant", "acme", "--input", "blob://a", "--output", "blob://b", "--doc-id", "d\udc9b"),
        ("jobs", "show", "j-1234567\udc9b"),
        ("jobs", "cancel", "j-1", "--reason", "no \udc9b"),
    ],
    ids=["body", "path", "reason"],
)
def test_argument_that_is_not_utf_8_is_refused_in_one_line(stub: Stub, command: tuple[str, ...]) -> None:
    result = at(stub, *command)
    assert result.exit_code == 2, result.exception
    assert "not UTF-8 text" in result.stderr
    assert result.stderr.count("\n") == 1
    assert stub.asked == []


def test_command_without_a_key_sends_nothing(stub: Stub) -> None:
    result = lucius("--url", stub.url, "jobs", "list")
    assert result.exit_code == 2
    assert "no API key" in result.stderr
    assert stub.asked == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "list", "--status", "nonsense"),
        ("jobs", "list", "--limit", "0"),
        ("submit", "OCR"),
        ("nonsense",),
        ("service", "nonsense", "--api-key", "k"),
        ("service",),
        ("dev", "--port", "70000"),
        ("demo", "--jobs", "1"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = lucius(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr


def test_invalid_setting_is_named() -> None:
    result = lucius("dev", "--port", "0", env={"LUCIUS_ACK_TIMEOUT": "soon"})
    assert (result.exit_code, result.stderr) == (2, "lucius: LUCIUS_ACK_TIMEOUT must be a number, and is 'soon'\n")


def test_unknown_engine_is_refused() -> None:
    result = lucius("dev", "--port", "0", "--engine", "steam")
    assert result.exit_code == 2
    assert "LUCIUS_ENGINE" in result.stderr


def test_occupied_port_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = lucius("api", "--port", str(port), "--data-dir", "data")
    assert result.exit_code == 1
    assert f"port {port} on 127.0.0.1 is in use" in result.stderr


@pytest.mark.parametrize("ledger", ["sqlite:///x.db", "memory:"])
def test_reconciler_refuses_a_ledger_of_a_single_process(ledger: str) -> None:
    result = lucius("reconciler", env={"LUCIUS_LEDGER_URL": ledger})
    assert result.exit_code == 2
    assert "belongs to one process" in result.stderr


def test_output_in_a_pipe_has_no_colour(stub: Stub) -> None:
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [], "next_cursor": None})
    result = at(stub, "jobs", "list")
    assert "\x1b" not in result.stdout + result.stderr


def test_version_option_prints_the_version() -> None:
    result = lucius("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("lucius 0.")
