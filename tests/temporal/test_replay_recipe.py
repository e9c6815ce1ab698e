"""The documented recipe replays histories that were exported from a real server."""

import asyncio
import base64
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.e2e.support import REPO
from tests.support.api import settings_for
from tests.support.temporal import TemporalServer, binary
from tests.temporal.twin_api import FollowingApi, serving_over

PAGE = (REPO / "docs" / "how-to" / "temporal.md").read_text()
KEY = b"0123456789abcdef0123456789abcdef"


@pytest.fixture(params=[{}, {"2026": KEY}], ids=["plain", "encrypted"])
def keys(request: pytest.FixtureRequest) -> dict[str, bytes]:
    return dict(request.param)


@pytest.fixture
async def api(tmp_path: Path, temporal_server: TemporalServer, keys: dict[str, bytes]) -> AsyncIterator[FollowingApi]:
    async with serving_over(replace(settings_for(tmp_path), temporal_keys=keys), temporal_server) as api:
        yield api


async def run(words: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, words, cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=60, check=False
    )


def of_another_workflow(history: str) -> str:
    """Return the history as if its first local activity had been a later one."""
    changed = json.loads(history)
    marker = next(event for event in changed["events"] if "MARKER" in event["eventType"])
    (payload,) = marker["markerRecordedEventAttributes"]["details"]["data"]["payloads"]
    said = json.loads(base64.b64decode(payload["data"])) | {"seq": 99}
    payload["data"] = base64.b64encode(json.dumps(said).encode()).decode()
    return json.dumps(changed)


async def test_exported_history_replays_and_a_changed_one_does_not(
    api: FollowingApi, temporal_server: TemporalServer, keys: dict[str, bytes], tmp_path: Path
) -> None:
    job_id = await api.submit()
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    (await api.succeed(directive)).ok()
    assert await api.end(job_id) == "SUCCEEDED"
    (export,) = re.findall(r"^(temporal workflow show .*--output json) >JOB\.json$", PAGE, re.MULTILINE)
    (replays,) = re.findall(r"^python (examples/\S+) JOB\.json$", PAGE, re.MULTILINE)
    words = [job_id if word == "JOB" else word for word in shlex.split(export)[1:]]
    shown = await run([binary(), *words, "--address", temporal_server.address], tmp_path, {})
    assert shown.returncode == 0, shown.stderr
    (tmp_path / "JOB.json").write_text(shown.stdout)
    (tmp_path / "changed.json").write_text(of_another_workflow(shown.stdout))
    env = {"LUCIUS_TEMPORAL_KEYS": ",".join(f"{name}:{base64.b64encode(key).decode()}" for name, key in keys.items())}
    done = await run([sys.executable, str(REPO / replays), "JOB.json"], tmp_path, env)
    assert (done.returncode, done.stdout) == (0, "JOB.json: replays\n"), done.stderr[-2000:]
    both = await run([sys.executable, str(REPO / replays), "JOB.json", "changed.json"], tmp_path, env)
    assert both.returncode == 1
    printed = [line for line in both.stdout.splitlines() if ".json: " in line]  # the SDK logs to stdout, too
    assert printed[0] == "JOB.json: replays"
    assert re.match(r"changed\.json: .*[Nn]ondeterminism", printed[-1]), both.stdout
