"""Service sightings do not depend on the engine."""

import asyncio
from pathlib import Path

import pytest

from lucius.usecases.timestamps import timestamp
from tests.support.api import settings_for
from tests.support.temporal import TemporalServer
from tests.temporal.twin_api import FollowingApi, serving_over

pytestmark = pytest.mark.usefixtures("each_fastpath")

WITHIN = 10.0


def named(instance: str) -> dict[str, str]:
    return {"x-lucius-instance": instance, "user-agent": "my-sdk/2"}


async def last_seen(api: FollowingApi) -> str:
    (service,) = (await api.get("/v1/services")).ok()["services"]
    return str(service["last_seen_at"])


async def test_heartbeat_counts_as_a_sighting_of_its_service(tmp_path: Path, temporal_server: TemporalServer) -> None:
    async with serving_over(settings_for(tmp_path), temporal_server) as api:
        await api.submit()
        directive = await api.pull_one()
        (await api.callback("ack", directive)).ok()
        await api.followed()
        before = await last_seen(api)
        async with asyncio.timeout(WITHIN):
            while timestamp(api.clock.now()) <= before:  # noqa: ASYNC110 - only time can pass
                await asyncio.sleep(0)
        (await api.callback("heartbeat", directive, headers=named("host-1:7"))).ok()
        assert await last_seen(api) > before
        (await api.succeed(directive, headers=named("host-2:7"))).ok()
        (service,) = (await api.get("/v1/services")).ok()["services"]
        assert {seen["instance"]: seen["agent"] for seen in service["instances"]} == {
            "host-1:7": "my-sdk/2",
            "host-2:7": "my-sdk/2",
        }
