"""The page about Temporal names every setting, and none that is not there."""

import re
from pathlib import Path

import pytest

from lucius.core.model import JobStatus
from lucius.engine.temporal.search import state_of
from lucius.settings import SettingsError, load_settings

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"LUCIUS_TEMPORAL_[A-Z_]+[A-Z]")


def test_every_setting_is_in_the_table_and_only_those() -> None:
    page = (ROOT / "docs/how-to/temporal.md").read_text()
    table = page.partition("## Settings")[2].partition("\n## ")[0]
    known = set(NAME.findall((ROOT / "src/lucius/settings.py").read_text()))
    assert set(NAME.findall("\n".join(line for line in table.splitlines() if line.startswith("|")))) == known
    assert set(NAME.findall(page)) == known


def test_states_that_temporal_does_not_tell_apart_are_named() -> None:
    page = (ROOT / "docs/how-to/temporal.md").read_text()
    section = page.partition("## Look at jobs")[2].partition("\n## ")[0]
    told_as_another = [status for status in JobStatus if state_of(status) != status]
    assert told_as_another
    assert [status for status in told_as_another if f"`{status}`" not in section] == []


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
def test_where_temporal_is_must_be_a_host_and_a_port(value: str) -> None:
    with pytest.raises(SettingsError, match="LUCIUS_TEMPORAL_ADDRESS must be a host and a port, like") as refused:
        load_settings({"LUCIUS_TEMPORAL_ADDRESS": value})
    assert str(refused.value).endswith(f"and is {value!r}")


@pytest.mark.parametrize("value", ["temporal.internal:7233", "127.0.0.1:1", "[::1]:65535", "my_temporal-1:7233"])
def test_hosts_by_name_and_by_number_are_taken(value: str) -> None:
    assert load_settings({"LUCIUS_TEMPORAL_ADDRESS": value}).temporal_address == value


@pytest.mark.parametrize("value", ["9091", "localhost:9091", "0.0.0.0:", "0.0.0.0:0", "0.0.0.0:70000", "[::1:9091x"])
def test_where_the_sdks_metrics_can_be_read_is_an_address_and_a_port(value: str) -> None:
    with pytest.raises(SettingsError, match="LUCIUS_TEMPORAL_METRICS must be an IP address and a port"):
        load_settings({"LUCIUS_TEMPORAL_METRICS": value})


@pytest.mark.parametrize("value", ["0.0.0.0:9091", "127.0.0.1:1", "[::]:9091"])
def test_addresses_of_both_kinds_are_taken(value: str) -> None:
    assert load_settings({"LUCIUS_TEMPORAL_METRICS": value}).temporal_metrics == value


def test_new_jobs_go_to_temporal_if_it_is_the_engine_and_nobody_says_otherwise() -> None:
    assert load_settings({}).new_jobs_engine == ""
    assert load_settings({"LUCIUS_ENGINE": "temporal"}).new_jobs_engine == "temporal"
    assert load_settings({"LUCIUS_ENGINE": "temporal", "LUCIUS_TEMPORAL_NEW_JOBS": "off"}).new_jobs_engine == ""


def test_links_lead_into_the_namespace() -> None:
    assert load_settings({}).temporal_workflows_url == ""
    env = {"LUCIUS_TEMPORAL_UI_URL": "https://temporal.internal/", "LUCIUS_TEMPORAL_NAMESPACE": "docs"}
    assert load_settings(env).temporal_workflows_url == "https://temporal.internal/namespaces/docs/workflows"
