"""What `lucius dev` prints, and the service that takes its time."""

import asyncio
import json
import shlex
from pathlib import Path
from typing import cast

import msgspec
import pytest

from lucius.cli.serve import _say_ready, try_it
from lucius.cli.services import Slowed
from lucius.contract import CommandEnvelope, Directive
from lucius.settings import Settings
from lucius.worker import Output, Places, PlatformService, Task


def test_the_curl_to_try_is_a_whole_command() -> None:
    words = shlex.split(try_it("http://127.0.0.1:8080", "dev-key").replace("\\\n", " "))
    assert words[:3] == ["curl", "-sS", "http://127.0.0.1:8080/v1/commands"]
    assert "Authorization: Bearer dev-key" in words
    assert "Content-Type: application/json" in words
    msgspec.convert(json.loads(words[words.index("-d") + 1]), CommandEnvelope)


def test_it_says_where_the_secret_of_webhooks_is(capsys: pytest.CaptureFixture[str]) -> None:
    _say_ready("http://127.0.0.1:8080", "dev-key", Settings(data_dir=Path("/data")), with_services=False)
    assert "signed with /data/webhook.secret" in capsys.readouterr().out
    given = Settings(webhook_secrets={"DEFAULT": "whsec_x"})
    _say_ready("http://127.0.0.1:8080", "dev-key", given, with_services=False)
    assert "signed with LUCIUS_WEBHOOK_SECRET_DEFAULT" in capsys.readouterr().out


class Quick(PlatformService):
    service = "quick"

    async def execute(self, task: Task) -> Output:
        return Output({"done": True})


async def test_a_slowed_service_does_the_same_and_tells_its_progress() -> None:
    task = Task(cast(Directive, None), Places())
    slowed = Slowed(Quick(), 0.001)
    assert slowed.service == "quick"
    assert await slowed.execute(task) == Output({"done": True})
    assert task.last_progress == 0.9


async def test_a_slowed_service_can_be_cancelled() -> None:
    working = asyncio.create_task(Slowed(Quick(), 3600).execute(Task(cast(Directive, None), Places())))
    await asyncio.sleep(0)
    working.cancel()
    assert (await asyncio.gather(working, return_exceptions=True))[0].__class__ is asyncio.CancelledError
