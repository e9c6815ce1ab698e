"""API keys that are too short, or known from an example, work only with `lucius dev`."""

import io
from pathlib import Path

import pytest

from lucius.ports.config import EXAMPLE_KEYS
from lucius.ports.errors import ProtocolError, SettingsError
from lucius.usecases.access.auth import hash_key
from tests.integration.api.conftest import Start, key_entry, write_config
from tests.support.api import serving, settings_for

GOOD = "a-key-of-twenty-chars"
EXAMPLES = ("acme-example-key", "operations-example-key", "ocr-example-key")


def test_keys_of_the_example_file_are_known() -> None:
    assert {hash_key(key) for key in EXAMPLES} == EXAMPLE_KEYS
    text = (Path(__file__).parents[3] / "examples" / "lucius.yaml").read_text()
    assert all(f'"{key}"' in text and hash_key(key) in text for key in EXAMPLES)


async def test_short_key_authenticates_in_dev(start: Start) -> None:
    keys = [key_entry(key, "read", tenants=("*",)) for key in ("short", GOOD, GOOD[:19])]
    dev = await start({"api_keys": keys})
    for key in ("short", GOOD, GOOD[:19]):
        (await dev.get("/v1/jobs", key=key)).ok()


async def test_short_key_never_authenticates_outside_dev(start: Start) -> None:
    keys = [key_entry(key, "read", tenants=("*",)) for key in ("short", GOOD, GOOD[:19])]
    api = await start({"api_keys": keys}, dev=False, dev_api_key=GOOD + "-2")
    (await api.get("/v1/jobs", key=GOOD)).ok()
    for key in ("short", GOOD[:19]):
        (await api.get("/v1/jobs", key=key)).problem(401, "UNAUTHENTICATED")
        (await api.get("/v1/jobs/j", key=key)).problem(401, "UNAUTHENTICATED")


@pytest.mark.parametrize("key", EXAMPLES)
async def test_key_of_an_example_is_refused_outside_dev(tmp_path: Path, key: str) -> None:
    path = write_config(tmp_path, {"api_keys": [key_entry(key, "read", tenants=("*",))]})
    with pytest.raises(ProtocolError, match=r"lucius\.yaml:\d+: .* is the published key of an example"):
        async with serving(settings_for(tmp_path, config_path=path, dev=False, dev_api_key=GOOD)):
            pass
    async with serving(settings_for(tmp_path, config_path=path)) as dev:
        (await dev.get("/v1/jobs", key=key)).ok()


@pytest.mark.parametrize("key", ["short", GOOD[:19], *EXAMPLES])
async def test_weak_key_from_the_environment_stops_the_start_outside_dev(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError, match=r"LUCIUS_DEV_API_KEY: .*20 characters"):
        async with serving(settings_for(tmp_path, dev=False, dev_api_key=key)):
            pass
    async with serving(settings_for(tmp_path, dev=False, dev_api_key=GOOD)) as api:
        (await api.get("/v1/jobs", key=GOOD)).ok()


async def test_start_without_any_key_warns(start: Start, log_stream: io.StringIO) -> None:
    await start(dev_api_key="")
    assert "NO API KEY IS CONFIGURED" in log_stream.getvalue()


async def test_start_with_a_key_does_not_warn(start: Start, log_stream: io.StringIO) -> None:
    await start({"api_keys": [key_entry(GOOD, "read", tenants=("*",))]}, dev_api_key="")
    assert "NO API KEY IS CONFIGURED" not in log_stream.getvalue()
