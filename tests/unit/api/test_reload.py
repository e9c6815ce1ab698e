"""Files change under a running server: good ones take effect, bad ones are refused, listed, and hurt nobody."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.api import WITHIN, Api
from tests.unit.api.conftest import Start, key_entry, write_config

PROTOCOL: dict[str, Any] = {
    "protocol_id": "upper",
    "version": 1,
    "request_type": "UPPER",
    "steps": [{"step_id": "upper", "step_type": "UPPER", "service": "upper"}],
}


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """The server looks at its files every few hundredths of a second."""
    async with asyncio.timeout(WITHIN):
        while not await holds():  # noqa: ASYNC110 - a file has no event to wait for
            await asyncio.sleep(0.01)


async def problems(api: Api) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await api.get("/v1/protocols")).ok()["problems"]
    return listed


async def test_limits_and_keys_change_live(start: Start, tmp_path: Path) -> None:
    keys = [key_entry("old", "submit", tenants=("acme",))]
    api = await start({"limits": {"tenant_max_inflight": 1}, "api_keys": keys})
    await api.submit(idempotency_key="1")
    (await api.post("/v1/commands", api.command(idempotency_key="2"))).problem(429, "TENANT_LIMIT")
    keys = [key_entry("new", "submit", tenants=("acme",))]
    write_config(tmp_path, {"limits": {"tenant_max_inflight": 2}, "api_keys": keys})

    async def new_key_works() -> bool:
        return (await api.post("/v1/commands", api.command(idempotency_key="2"), key="new")).status == 202

    await eventually(new_key_works)
    (await api.post("/v1/commands", api.command(), key="old")).problem(401, "UNAUTHENTICATED")
    (await api.post("/v1/commands", api.command(idempotency_key="3"))).problem(429, "TENANT_LIMIT")


async def test_a_bad_config_is_listed_and_the_last_good_one_stays(start: Start, tmp_path: Path) -> None:
    api = await start({"limits": {"tenant_max_inflight": 1}})
    await api.submit(idempotency_key="1")
    (tmp_path / "lucius.yaml").write_text("limits:\n  tenant_max_inflight: many\n")

    async def listed() -> bool:
        return bool(await problems(api))

    await eventually(listed)
    (problem,) = await problems(api)
    assert (Path(problem["file"]).name, problem["line"]) == ("lucius.yaml", 2)
    assert problem["reason"]
    (await api.post("/v1/commands", api.command(idempotency_key="2"))).problem(429, "TENANT_LIMIT")
    write_config(tmp_path, {"limits": {"tenant_max_inflight": 5}})

    async def mended() -> bool:
        return not await problems(api)

    await eventually(mended)
    await api.submit(idempotency_key="2")


@pytest.mark.parametrize("damage", ["{", "protocol_id: [", "x: 1\n", "\x00", "- 1\n", "steps: &a [*a]\n"])
async def test_a_bad_protocol_file_is_listed_and_takes_nothing_down(start: Start, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "protocols"
    folder.mkdir()
    api = await start(protocols_dir=folder)
    (await api.post("/v1/commands", api.command(request_type="UPPER"))).problem(422, "UNKNOWN_REQUEST_TYPE")
    (folder / "upper.yaml").write_text(yaml.safe_dump(PROTOCOL))

    async def accepted() -> bool:
        return (await api.post("/v1/commands", api.command(request_type="UPPER"))).status == 202

    await eventually(accepted)
    (folder / "upper.yaml").write_text(damage)

    async def listed() -> bool:
        return bool(await problems(api))

    await eventually(listed)
    (problem,) = await problems(api)
    assert Path(problem["file"]).name == "upper.yaml"
    assert problem["reason"]
    await api.submit(request_type="UPPER", idempotency_key="still in force")
    await api.submit(request_type="OCR")


async def test_a_job_keeps_the_protocol_it_was_accepted_under(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "protocols"
    folder.mkdir()
    (folder / "upper.yaml").write_text(yaml.safe_dump(PROTOCOL))
    api = await start(protocols_dir=folder)
    job_id = await api.submit(request_type="UPPER")
    other = {"version": 2, "steps": [{"step_id": "lower", "step_type": "LOWER", "service": "lower"}]}
    (folder / "upper.yaml").write_text(yaml.safe_dump({**PROTOCOL, **other}))

    async def replaced() -> bool:
        return bool((await api.get("/v1/protocols/UPPER")).ok()["version"] == 2)

    await eventually(replaced)
    (await api.succeed(await api.pull_one("upper"))).ok()
    assert (await api.job(job_id))["status"] == "SUCCEEDED"
