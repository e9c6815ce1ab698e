"""Keys that are removed from the config file, or changed in it, while their requests are open."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.integration.api.conftest import Start, key_entry, write_config
from tests.support.api import Api
from tests.support.until import until

READS = key_entry("reads", "read", tenants=("*",))
SERVES = key_entry("ocrs", "serve", service="ocr")
PULL = "/v1/services/ocr/directives:pull"


@pytest.fixture
async def keyed(start: Start) -> Api:
    return await start({"api_keys": [READS, SERVES]})


def rewrite(tmp_path: Path, **config: Any) -> None:
    write_config(tmp_path, config)


async def test_stream_ends_when_its_key_is_revoked(keyed: Api, tmp_path: Path) -> None:
    job_id = await keyed.submit()
    headers = {"authorization": "Bearer reads"}
    async with keyed.stream(f"/v1/jobs/{job_id}/events", **headers) as stream:
        await stream.event()
        rewrite(tmp_path, api_keys=[SERVES])
        assert "end" not in [event["event"] for event in await stream.rest()]
    (await keyed.get(f"/v1/jobs/{job_id}", key="reads")).problem(401, "UNAUTHENTICATED")


async def test_stream_of_another_key_continues(keyed: Api, tmp_path: Path) -> None:
    job_id = await keyed.submit()
    async with keyed.stream(f"/v1/jobs/{job_id}/events", authorization="Bearer reads") as stream:
        await stream.event()
        rewrite(tmp_path, api_keys=[READS])
        await until(lambda: keyed.runtime.auth.key_count == 2)
        await keyed.finish(job_id)
        assert (await stream.rest())[-1]["event"] == "end"


async def test_long_poll_ends_when_its_key_is_changed(keyed: Api, tmp_path: Path) -> None:
    job_id = await keyed.submit()
    waiting = asyncio.create_task(keyed.get(f"/v1/jobs/{job_id}?wait=60", key="reads"))
    await until(lambda: bool(keyed.runtime.notifier.awaited_jobs))
    rewrite(tmp_path, api_keys=[SERVES, {**READS, "tenants": ["globex"]}])
    (await waiting).problem(401, "UNAUTHENTICATED")
    assert not keyed.runtime.auth.watched_keys


async def test_pull_ends_when_its_key_is_revoked_in_an_otherwise_invalid_file(keyed: Api, tmp_path: Path) -> None:
    waiting = asyncio.create_task(keyed.post(PULL, {"wait_seconds": 60}, key="ocrs"))
    await until(lambda: bool(keyed.runtime.notifier.pulls.waiting("ocr")))
    rewrite(tmp_path, api_keys=[READS], limits=7)
    (await waiting).problem(401, "UNAUTHENTICATED")
    await keyed.submit()
    assert len(await keyed.pull()) == 1


@pytest.mark.parametrize("fault", ["", "limits: 7"])
async def test_keys_are_revoked_when_their_list_is_emptied(keyed: Api, tmp_path: Path, fault: str) -> None:
    (tmp_path / "lucius.yaml").write_text(f"api_keys:\n{fault}\n")
    await until(lambda: keyed.runtime.auth.key_count == 1)  # the one that the server was started with
    (await keyed.get("/v1/protocols", key="reads")).problem(401, "UNAUTHENTICATED")
    (await keyed.post(PULL, {}, key="ocrs")).problem(401, "UNAUTHENTICATED")
    assert (await keyed.get("/readyz")).ok()["checks"]["config"]["ok"] is (fault == "")


async def test_stale_configuration_is_shown_in_readyz_and_metrics(keyed: Api, tmp_path: Path) -> None:
    assert (await keyed.get("/readyz")).ok()["checks"]["config"] == {"ok": True}
    rewrite(tmp_path, api_keys=[READS], limits=7)
    await until(lambda: bool(keyed.runtime.config.problems()))
    said = (await keyed.get("/readyz")).ok()
    assert said["status"] == "ready"
    assert said["checks"]["config"]["ok"] is False
    assert "older version is used" in said["checks"]["config"]["detail"]
    assert b"lucius_config_stale 1.0" in (await keyed.get("/metrics")).body
    rewrite(tmp_path, api_keys=[READS, SERVES])
    await until(lambda: not keyed.runtime.config.problems())
    assert b"lucius_config_stale 0.0" in (await keyed.get("/metrics")).body


async def test_revocation_and_reload_are_logged_differently(keyed: Api, tmp_path: Path) -> None:
    with capture_logs() as lines:
        rewrite(tmp_path, api_keys=[READS], limits=7)
        await until(lambda: any("revoked" in line["event"] for line in lines))
        assert "config reloaded" not in [line["event"] for line in lines]
        rewrite(tmp_path, api_keys=[READS, SERVES])
        await until(lambda: any(line["event"] == "config reloaded" for line in lines))


async def test_config_problems_are_shown_only_to_keys_for_every_tenant(start: Start, tmp_path: Path) -> None:
    bound = key_entry("acmes", "read", tenants=("acme",))
    api = await start({"api_keys": [READS, bound]})
    rewrite(tmp_path, api_keys=[READS, bound], tenants={"Globex": {}})
    await until(lambda: bool(api.runtime.config.problems()))
    (problem,) = (await api.get("/v1/protocols", key="reads")).ok()["problems"]
    assert "Globex" in problem["reason"]
    answer = await api.get("/v1/protocols", key="acmes")
    assert answer.ok()["problems"] == []
    assert b"lobex" not in answer.body
