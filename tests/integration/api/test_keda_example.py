"""The autoscaler in examples/ queries an existing endpoint, with a sufficient key."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from lucius.worker.settings import settings_from
from tests.integration.api.test_backlog import add_keys
from tests.support.api import Api

EXAMPLE = Path(__file__).parents[3] / "examples" / "kubernetes" / "keda.yaml"


@pytest.fixture
def keda_trigger() -> dict[str, Any]:
    parts = {part["kind"]: part for part in yaml.safe_load_all(EXAMPLE.read_text())}
    (trigger,) = parts["ScaledObject"]["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == parts["TriggerAuthentication"]["metadata"]["name"]
    (secret,) = parts["TriggerAuthentication"]["spec"]["secretTargetRef"]
    assert secret["name"] == parts["Secret"]["metadata"]["name"]
    assert secret["key"] in parts["Secret"]["stringData"]
    metadata: dict[str, Any] = trigger["metadata"]
    return metadata


async def test_trigger_reads_a_number_that_grows_with_the_backlog(api: Api, keda_trigger: dict[str, Any]) -> None:
    add_keys(api, "*", serves=(("serve",), "ocr"))
    path, where = urlsplit(keda_trigger["url"]).path, keda_trigger["valueLocation"]
    assert (await api.get(path, key="serves")).ok()[where] == 0
    await api.submit()
    assert (await api.get(path, key="serves")).ok()[where] == 1


def test_target_value_equals_the_default_concurrency_of_a_service(keda_trigger: dict[str, Any]) -> None:
    assert (
        int(keda_trigger["targetValue"])
        == settings_from({"LUCIUS_ORCHESTRATOR_URL": "http://x", "LUCIUS_API_KEY": "k"}).concurrency
    )
