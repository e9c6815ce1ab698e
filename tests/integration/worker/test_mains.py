"""Two ways to start a service's process, `python service.py` and `lucius service module:attribute`, end alike."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.worker.support import API_KEY, FakeOrchestrator, directive

FAR = "2100-01-01T00:00:00Z"
STUCK = """
import asyncio, threading, time
from lucius.worker import Service, StepContext, StepResult

service = Service("ocr")
gate = threading.Event()


@service.step("IN_THE_LOOPS_THREADS")
async def hide(ctx: StepContext) -> StepResult:
    await asyncio.to_thread(gate.wait)
    return StepResult()


{more}

if __name__ == "__main__":
    service.run()
"""
STARTUP = """
@service.startup
def load() -> None:
    print("loading", flush=True)
    gate.wait()
"""
SHUTDOWN = """
@service.shutdown
def close() -> None:
    print("closing", flush=True)
    gate.wait()
"""
COMMANDS = {
    "python": [sys.executable, "stuck.py"],
    "lucius": [str(Path(sys.executable).parent / "lucius"), "service", "stuck:service"],
}

by_either = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


@asynccontextmanager
async def started(
    folder: Path, command: list[str], more: str = "", **environ: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    (folder / "stuck.py").write_text(STUCK.format(more=more))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**kept, "LUCIUS_GRACE": "0", "LUCIUS_API_KEY": API_KEY, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def seconds_to_end(process: asyncio.subprocess.Process) -> float:
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    await asyncio.wait_for(process.communicate(), 20)
    return time.monotonic() - began


async def expect_line(process: asyncio.subprocess.Process, word: str) -> None:
    assert process.stdout is not None
    assert (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip() == word


@by_either
async def test_blocking_startup_does_not_delay_the_end_of_the_process(
    orchestrator: FakeOrchestrator, tmp_path: Path, command: list[str]
) -> None:
    async with started(tmp_path, command, STARTUP, LUCIUS_ORCHESTRATOR_URL=orchestrator.url) as process:
        await expect_line(process, "loading")
        assert await seconds_to_end(process) < 6
        assert process.returncode == 0


@by_either
async def test_step_blocking_a_default_thread_does_not_delay_the_end_of_the_process(
    orchestrator: FakeOrchestrator, tmp_path: Path, command: list[str]
) -> None:
    orchestrator.offer(directive(orchestrator.url, step_type="IN_THE_LOOPS_THREADS", ack_deadline=FAR))
    async with started(tmp_path, command, LUCIUS_ORCHESTRATOR_URL=orchestrator.url) as process:
        async with asyncio.timeout(30):
            while not orchestrator.of_type("ack"):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
        assert await seconds_to_end(process) < 6
        assert process.returncode == 0
    assert [item["error"]["code"] for item in orchestrator.of_type("result")] == ["SERVICE_STOPPING"]


@by_either
async def test_second_signal_ends_a_blocking_shutdown(
    orchestrator: FakeOrchestrator, tmp_path: Path, command: list[str]
) -> None:
    async with started(tmp_path, command, SHUTDOWN, LUCIUS_ORCHESTRATOR_URL=orchestrator.url) as process:
        async with asyncio.timeout(30):
            while not orchestrator.pulls:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        await expect_line(process, "closing")
        assert await seconds_to_end(process) < 6
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"LUCIUS_LANES": "x"}, "LUCIUS_LANES must be"),
        ({"LUCIUS_IDEMPOTENCY_URL": "nowhere:"}, "LUCIUS_IDEMPOTENCY_URL: no idempotency store"),
        ({"LUCIUS_HEALTH_PORT": "{taken}"}, "LUCIUS_HEALTH_PORT: can't listen on"),
        ({"MORE": "service._steps.clear()"}, "service ocr has no step"),
        ({"MORE": "service.step()(lambda ctx: None)", "LUCIUS_JOURNAL_SYNC": "yes"}, "LUCIUS_JOURNAL_SYNC must be"),
    ],
)
@by_either
async def test_invalid_configuration_is_reported_in_one_line_with_exit_code_2(
    orchestrator: FakeOrchestrator, tmp_path: Path, command: list[str], environ: dict[str, str], said: str
) -> None:
    told = {name: value.format(taken=orchestrator.port) for name, value in environ.items()}
    more = told.pop("MORE", "")
    async with started(tmp_path, command, more, LUCIUS_ORCHESTRATOR_URL=orchestrator.url, **told) as process:
        _, err = await asyncio.wait_for(process.communicate(), 30)
    words = [line for line in err.decode().splitlines() if not line.startswith("{")]
    assert (process.returncode, len(words)) == (2, 1)
    assert words[0].removeprefix("lucius: ").startswith(said)
