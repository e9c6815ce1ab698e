"""The documented nginx configuration, with a real nginx in front of a real server."""

import asyncio
import getpass
import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lucius.bootstrap.drain import Drain
from lucius.cli.control_plane import base_url, listen
from lucius.cli.control_plane import serving as serving_control_plane
from tests.support.api import KEY, command, identity, settings_for
from tests.support.ports import free_port
from tests.support.until import until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nginx" / "lucius.conf"
NO_NGINX = "nginx is not installed: run scripts/test_servers.sh"
MAIN = """
daemon off;
user {user};
pid nginx.pid;
error_log error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include {example};
}}
"""


def nginx_program() -> str:
    program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None and os.environ.get("CI"):
        pytest.fail(NO_NGINX)
    if program is None:
        pytest.skip(NO_NGINX)
    return program


@contextmanager
def nginx_before(folder: Path, upstream: int) -> Iterator[int]:
    """Run nginx with the example, changed only in its two ports; yield its port."""
    program, port = nginx_program(), free_port()
    example = EXAMPLE.read_text(encoding="utf-8")
    assert example.count("127.0.0.1:8080") == example.count("listen 8000") == 1
    (folder / "lucius.conf").write_text(
        example.replace("127.0.0.1:8080", f"127.0.0.1:{upstream}").replace("listen 8000", f"listen 127.0.0.1:{port}")
    )
    (folder / "nginx.conf").write_text(MAIN.format(user=getpass.getuser(), example=folder / "lucius.conf"))
    arguments = [program, "-e", "error.log", "-p", str(folder), "-c", "nginx.conf"]
    subprocess.run([*arguments, "-t"], check=True, capture_output=True)
    process = subprocess.Popen(arguments)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
async def proxied(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a session with a control plane behind nginx."""
    settings = settings_for(tmp_path, drain_seconds=1.0)
    with listen("127.0.0.1", 0) as listener:
        async with serving_control_plane(settings, listener, Drain()):
            with nginx_before(tmp_path, int(base_url(listener).rpartition(":")[2])) as port:
                await until(lambda: _listens(port))
                headers = {"Authorization": f"Bearer {KEY}"}
                timeout = aiohttp.ClientTimeout(total=20)
                async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers, timeout=timeout) as http:
                    yield http


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def post(http: aiohttp.ClientSession, path: str, body: Any, token: str = KEY) -> Any:
    async with http.post(path, json=body, headers={"Authorization": f"Bearer {token}"}) as response:
        assert response.status < 300, await response.text()
        return await response.json()


async def test_events_long_polls_and_large_batches_pass_through_nginx(proxied: aiohttp.ClientSession) -> None:
    job_id = (await post(proxied, "/v1/commands", command()))["jobId"]
    pulling = post(proxied, "/v1/services/ocr/directives:pull", {"max": 1, "wait_seconds": 10})
    accept = {"Accept": "text/event-stream"}
    async with proxied.get(f"/v1/jobs/{job_id}/events", headers=accept) as stream:
        assert stream.headers["Cache-Control"] == "no-cache"
        assert await _next_event(stream) == "JOB_ACCEPTED", "while the job runs: nothing is held back"
        (directive,) = (await pulling)["directives"]
        waiting = asyncio.create_task(_await_end(proxied, job_id))
        said = {**identity(directive), "status": "SUCCEEDED"}
        await post(proxied, "/v1/callbacks/result", said, directive["callback_token"])
        assert await waiting == "SUCCEEDED"
        seen = []
        while (event := await _next_event(stream)) != "end":
            seen.append(event)
        assert seen[-1] == "JOB_SUCCEEDED"
    large = json.dumps({"commands": [command(idempotency_key="large")]}).encode() + b" " * 2_000_000
    headers = {"Content-Type": "application/json"}
    async with proxied.post("/v1/commands:batch", data=large, headers=headers) as response:
        assert response.status == 200, await response.text()


async def _await_end(http: aiohttp.ClientSession, job_id: str) -> str:
    async with http.get(f"/v1/jobs/{job_id}?wait=15") as response:
        return str((await response.json())["status"])


async def _next_event(stream: aiohttp.ClientResponse) -> str:
    async with asyncio.timeout(10):
        while line := await stream.content.readline():
            if line.startswith(b"event: "):
                return line.removeprefix(b"event: ").decode().strip()
    raise AssertionError("the stream ended")
