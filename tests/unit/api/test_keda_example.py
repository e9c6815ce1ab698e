"""The autoscaler in examples/ asks for something that is there, with a key that is enough."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from lucius.worker.settings import settings_from
from tests.support.api import Api
from tests.unit.api.test_backlog import with_keys

EXAMPLE = Path(__file__).parents[3] / "examples" / "kubernetes" / "keda.yaml"


@pytest.fixture
def scaled() -> dict[str, Any]:
    parts = {part["kind"]: part for part in yaml.safe_load_all(EXAMPLE.read_text())}
    (trigger,) = parts["ScaledObject"]["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == parts["TriggerAuthentication"]["metadata"]["name"]
    (secret,) = parts["TriggerAuthentication"]["spec"]["secretTargetRef"]
    assert secret["name"] == parts["Secret"]["metadata"]["name"]
    assert secret["key"] in parts["Secret"]["stringData"]
    metadata: dict[str, Any] = trigger["metadata"]
    return metadata


async def test_it_reads_a_number_that_grows_with_the_work(api: Api, scaled: dict[str, Any]) -> None:
    with_keys(api, "*", serves=(("serve",), "ocr"))
    path, where = urlsplit(scaled["url"]).path, scaled["valueLocation"]
    assert (await api.get(path, key="serves")).ok()[where] == 0
    await api.submit()
    assert (await api.get(path, key="serves")).ok()[where] == 1


def test_a_replica_is_added_for_as_much_as_one_takes(scaled: dict[str, Any]) -> None:
    assert (
        int(scaled["targetValue"])
        == settings_from({"LUCIUS_ORCHESTRATOR_URL": "http://x", "LUCIUS_API_KEY": "k"}).concurrency
    )
