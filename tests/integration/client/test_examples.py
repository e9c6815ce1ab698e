"""The examples of the docs run, and a type checker knows every method that they use."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.client.support import Server
from tests.support.api import KEY, Api

REPO = Path(__file__).parents[3]
EXAMPLES = REPO / "examples"
PAGE = REPO / "docs" / "how-to" / "python-client.md"
WRONG = """
from lucius.client import AsyncClient, Client

async def main(lucius: AsyncClient, blocking: Client) -> None:
    await lucius.submit("OCR", tenant="t", input="i", output="o", idempotency_keyy="k")
    await lucius.submit("OCR", tenant="t", input="i")
    await lucius.submit("OCR", tenant="t", input="i", output="o", mode="FAST")
    blocking.submit("OCR", tenant="t", input="i", output="o", doc_id=7)
    lucius.wait("j").status
    blocking.wait("j", timeout="soon")
    async for event in lucius.events("j"):
        event.number
    for job in blocking.jobs(tenant=1):
        pass
"""


@asynccontextmanager
async def services(api: Api) -> AsyncIterator[None]:
    """Complete every step at once, in the background."""

    async def work(name: str) -> None:
        while True:
            for directive in await api.pull(name, max=10, wait_seconds=5):
                await api.succeed(directive)

    working = [asyncio.create_task(work(name)) for name in ("ocr", "embedding", "sis")]
    try:
        yield
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


async def run(path: Path, **env: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(path), env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, said
    return said.decode()


async def test_examples_run(server: Server) -> None:
    env = {"LUCIUS_URL": server.url, "LUCIUS_API_KEY": KEY}
    async with services(server.api):
        told = (await run(EXAMPLES / "client_async.py", **env)).splitlines()
        assert told[0].split() == ["1", "JOB_ACCEPTED"]
        assert told[-2].split()[1] == "JOB_SUCCEEDED"
        assert told[-1] == "3 of 3 succeeded"
        assert re.fullmatch(
            r"job \S+ SUCCEEDED: blob://out/contract.txt\n", await run(EXAMPLES / "client_sync.py", **env)
        )


@pytest.mark.timeout(300)
def test_type_checker_accepts_the_examples_and_finds_mistakes(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    files = [*EXAMPLES.glob("client_*.py"), tmp_path / "wrong.py"]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, files)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [int(line.split(":")[1]) for line in found] == [5, 6, 7, 8, 9, 10, 12, 13], done.stdout + done.stderr
    assert all("wrong.py" in line for line in found)


def test_page_links_to_the_examples() -> None:
    text = PAGE.read_text()
    for name in ("client_async.py", "client_sync.py"):
        assert f"../../examples/{name}" in text


async def test_first_program_of_the_page_runs(server: Server, tmp_path: Path) -> None:
    program = PAGE.read_text().split("```python\n")[1].split("```")[0]
    assert "http://127.0.0.1:8080" in program
    path = tmp_path / "program.py"
    path.write_text(program.replace("http://127.0.0.1:8080", server.url).replace("…", KEY))
    async with services(server.api):
        assert (await run(path)).startswith("SUCCEEDED ")
