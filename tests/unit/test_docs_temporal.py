"""The docs about Temporal name every setting, and no setting that does not exist."""

import re
from pathlib import Path

import pytest

from lucius.bootstrap.settings import load_settings
from lucius.core.model.statuses import JobStatus
from lucius.engine.temporal.search import state_of
from lucius.ports.errors import SettingsError

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"LUCIUS_TEMPORAL_[A-Z_]+[A-Z]")


def test_reference_lists_exactly_the_existing_settings() -> None:
    reference = (ROOT / "docs/reference/settings.md").read_text()
    table = reference.partition("### Temporal")[2].partition("\n#")[0]
    known = set(NAME.findall((ROOT / "src/lucius/bootstrap/settings.py").read_text()))
    assert set(NAME.findall("\n".join(line for line in table.splitlines() if line.startswith("|")))) == known
    named = set(NAME.findall((ROOT / "docs/how-to/temporal.md").read_text()))
    assert named
    assert named <= known


def test_page_names_states_that_temporal_shows_as_another() -> None:
    page = (ROOT / "docs/how-to/temporal.md").read_text()
    section = page.partition("## Look at jobs")[2].partition("\n## ")[0]
    shown_as_another = [status for status in JobStatus if state_of(status) != status]
    assert shown_as_another
    assert [status for status in shown_as_another if f"`{status}`" not in section] == []


@pytest.mark.parametrize(
    "value",
    [
        "temporal.internal",
        "temporal.internal:",
        ":7233",
        "7233",
        "temporal.internal:0",
        "temporal.internal:65536",
        "temporal.internal:+7233",
        "temporal.internal:https",
        "https://temporal.internal:7233",
        "temporal.internal:7233/",
        "ada@temporal.internal:7233",
        "two words:7233",
        "::1:7233",
        "[::1:7233",
        "[nowhere]:7233",
    ],
)
def test_temporal_address_must_be_a_host_and_a_port(value: str) -> None:
    with pytest.raises(SettingsError, match="LUCIUS_TEMPORAL_ADDRESS must be a host and a port, like") as refused:
        load_settings({"LUCIUS_TEMPORAL_ADDRESS": value})
    assert str(refused.value).endswith(f"and is {value!r}")


@pytest.mark.parametrize("value", ["temporal.internal:7233", "127.0.0.1:1", "[::1]:65535", "my_temporal-1:7233"])
def test_temporal_address_accepts_host_names_and_ip_addresses(value: str) -> None:
    assert load_settings({"LUCIUS_TEMPORAL_ADDRESS": value}).temporal_address == value


@pytest.mark.parametrize("value", ["9091", "localhost:9091", "0.0.0.0:", "0.0.0.0:0", "0.0.0.0:70000", "[::1:9091x"])
def test_temporal_metrics_must_be_an_ip_address_and_a_port(value: str) -> None:
    with pytest.raises(SettingsError, match="LUCIUS_TEMPORAL_METRICS must be an IP address and a port"):
        load_settings({"LUCIUS_TEMPORAL_METRICS": value})


@pytest.mark.parametrize("value", ["0.0.0.0:9091", "127.0.0.1:1", "[::]:9091"])
def test_temporal_metrics_accept_ipv4_and_ipv6_addresses(value: str) -> None:
    assert load_settings({"LUCIUS_TEMPORAL_METRICS": value}).temporal_metrics == value


def test_new_jobs_use_temporal_if_it_is_the_engine_unless_switched_off() -> None:
    assert load_settings({}).new_jobs_engine == ""
    assert load_settings({"LUCIUS_ENGINE": "temporal"}).new_jobs_engine == "temporal"
    assert load_settings({"LUCIUS_ENGINE": "temporal", "LUCIUS_TEMPORAL_NEW_JOBS": "off"}).new_jobs_engine == ""


def test_ui_links_contain_the_namespace() -> None:
    assert load_settings({}).temporal_workflows_url == ""
    env = {"LUCIUS_TEMPORAL_UI_URL": "https://temporal.internal/", "LUCIUS_TEMPORAL_NAMESPACE": "docs"}
    assert load_settings(env).temporal_workflows_url == "https://temporal.internal/namespaces/docs/workflows"
