"""What an author may say, and what is told of what makes no sense."""

from pathlib import Path
from typing import Any

import pytest

from lucius.conformance.given import options_of
from lucius.conformance.model import Misuse


def test_a_command_is_split_as_a_shell_would() -> None:
    assert options_of(service_command="python -m 'my svc'").command == ["python", "-m", "my svc"]


def test_a_payload_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"pages": [1]}')
    assert options_of(service_command="x", payload=f"@{tmp_path / 'p.json'}").payload == {"pages": [1]}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"service_command": ""}, "--service-command is empty"),
        ({"service_command": "a 'b"}, "--service-command can't be read"),
        ({"payload": "{"}, "--payload is not JSON"),
        ({"slow_payload": "[1]"}, "--slow-payload must be a JSON object"),
        ({"bad_payload": "@/no/such"}, "can't read --bad-payload from /no/such"),
        ({"input_file": "/no/such"}, "--input: there is no file"),
        ({"env": ["A"]}, "--env 'A' is not NAME=VALUE"),
        ({"bus": "kafka://localhost"}, "over local: and redis://, not over kafka:"),
        ({"bus": "redis://localhost"}, "say --service"),
        ({"ack_seconds": 0.5}, "--ack-seconds must be at least 2"),
    ],
)
def test_what_makes_no_sense_is_told_with_its_option(given: dict[str, Any], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        options_of(**{"service_command": "x", **given})
