"""A whole service whose steps run in processes: killed, interrupted, and started incorrectly."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.worker.processes import alive, seen, written
from tests.integration.worker.support import API_KEY, FakeOrchestrator, directive

REPO = Path(__file__).parents[3]

SERVICE = """
from tests.integration.worker import step_functions
service = step_functions.in_processes()
{guard}service.run()
"""


def service_process(folder: Path, orchestrator: FakeOrchestrator, *, guarded: bool) -> "subprocess.Popen[bytes]":
    main = folder / "main.py"
    main.write_text(SERVICE.format(guard="if __name__ == '__main__': " if guarded else ""))
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(REPO), os.environ.get("PYTHONPATH", ""))),
        "LUCIUS_ORCHESTRATOR_URL": orchestrator.url,
        "LUCIUS_API_KEY": API_KEY,
        "LUCIUS_GRACE": "5",
    }
    return subprocess.Popen([sys.executable, str(main)], env=environ, stderr=(folder / "log").open("wb"))


@pytest.mark.parametrize("step_type", ["ignore_stop", "hold_the_interpreter"])
async def test_step_process_does_not_outlive_a_killed_service(
    orchestrator: FakeOrchestrator, tmp_path: Path, step_type: str
) -> None:
    payload = {"mark": str(tmp_path / "mark"), "seconds": 60}
    orchestrator.offer(
        directive(orchestrator.url, step_type=step_type, payload=payload, ack_deadline="2100-01-01T00:00:00Z")
    )
    service = service_process(tmp_path, orchestrator, guarded=True)
    try:
        pid = int(await written(tmp_path / "mark"))
        assert alive(pid)
    finally:
        service.kill()
        await asyncio.to_thread(service.wait)
    await seen(lambda: not alive(pid))


async def test_ctrl_c_lets_a_step_in_a_process_finish(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    payload = {"mark": str(tmp_path / "mark"), "seconds": 0.5}
    orchestrator.offer(
        directive(orchestrator.url, step_type="ignore_stop", payload=payload, ack_deadline="2100-01-01T00:00:00Z")
    )
    service = service_process(tmp_path, orchestrator, guarded=True)
    pid = int(await written(tmp_path / "mark"))
    for process in (pid, service.pid):  # as the terminal does to all of them
        os.kill(process, signal.SIGINT)
    assert await asyncio.to_thread(service.wait, 20) == 0
    (result,) = orchestrator.of_type("result")
    assert result["result"] == "done"
    assert not alive(pid)


async def test_main_that_runs_on_import_fails_the_attempt_with_an_explanation(
    orchestrator: FakeOrchestrator, tmp_path: Path
) -> None:
    orchestrator.offer(
        directive(orchestrator.url, step_type="DOUBLE", payload={"number": 1}, ack_deadline="2100-01-01T00:00:00Z")
    )
    service = service_process(tmp_path, orchestrator, guarded=False)
    try:
        await asyncio.wait_for(orchestrator.got_result.wait(), 20)
    finally:
        service.terminate()
        await asyncio.to_thread(service.wait, 20)
    (result,) = orchestrator.of_type("result")
    assert result["error"]["code"] == "PROCESS_NOT_STARTED"
    assert "__main__" in result["error"]["message"]
    assert "call run() under" in (tmp_path / "log").read_text()
