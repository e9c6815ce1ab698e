"""`lucius services`."""

import json
from typing import Any

from tests.integration.cli.support import NOW, Stub, at


def service(name: str, **fields: Any) -> dict[str, Any]:
    given = {"last_pull_at": NOW, "last_seen_at": NOW, "at_work": 0, "unacked": 0, "backlog": 0, "instances": []}
    return {"service": name, **given, **fields}


def test_services_are_listed_with_work_and_instances(stub: Stub) -> None:
    instance = {"instance": "host-1:7", "agent": "lucius-worker/0.1.0", "last_seen_at": NOW, "last_pull_at": NOW}
    payer = service("payer", last_pull_at=None, last_seen_at=None, backlog=4, oldest_waiting_at=NOW)
    stub.routes["GET /v1/services"] = (200, {"services": [service("ocr", at_work=3, instances=[instance]), payer]})
    result = at(stub, "services")
    assert result.exit_code == 0, result.stderr
    heads, ocr, named, waiting = (line.split() for line in result.stdout.splitlines())
    assert heads == ["SERVICE", "LAST", "PULL", "LAST", "SEEN", "AT", "WORK", "UNACKED", "BACKLOG", "OLDEST"]
    assert (ocr[0], ocr[-3:]) == ("ocr", ["3", "0", "0"])
    assert named[:2] == ["host-1:7", "lucius-worker/0.1.0,"]
    assert waiting[:6] == ["payer", "never", "never", "0", "0", "4"]


def test_json_option_prints_the_services(stub: Stub) -> None:
    stub.routes["GET /v1/services"] = (200, {"services": [service("ocr")]})
    assert json.loads(at(stub, "services", "--json").stdout)["services"][0]["service"] == "ocr"


def test_empty_list_of_services_is_explained(stub: Stub) -> None:
    stub.routes["GET /v1/services"] = (200, {"services": []})
    result = at(stub, "services")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no service has pulled" in result.stderr
