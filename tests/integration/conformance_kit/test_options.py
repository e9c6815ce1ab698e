"""Options that an author may set, and the messages for invalid ones."""

from pathlib import Path
from typing import Any

import pytest

from lucius.conformance.model import Misuse
from lucius.conformance.options import options_of


def test_command_is_split_as_by_a_shell() -> None:
    assert options_of(service_command="python -m 'my svc'").command == ["python", "-m", "my svc"]


def test_payload_can_come_from_a_file(tmp_path: Path) -> None:
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
        ({"input_file": "/no/such"}, "--input: .no.such does not exist"),
        ({"env": ["A"]}, "--env 'A' is not NAME=VALUE"),
        ({"bus": "kafka://localhost"}, "local: and redis://, not kafka:"),
        ({"bus": "redis://localhost"}, "--service is required"),
        ({"ack_seconds": 0.5}, "--ack-seconds must be at least 2"),
        ({"patience": 101.0}, "--patience must be more than 0 and at most 100"),
    ],
)
def test_invalid_option_is_refused_naming_it(given: dict[str, Any], words: str) -> None:
    with pytest.raises(Misuse, match=words):
        options_of(**{"service_command": "x", **given})
