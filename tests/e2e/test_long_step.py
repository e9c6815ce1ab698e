"""A step of a minute keeps a lease of five seconds, however it blocks."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.long_steps import NAMES
from tests.e2e.support import KEY, REPO, Json, Stack, Zygote, until

SECONDS = 60
LEASE = 5
STEPS = {"IN_THREAD": "steady", "IN_PROCESS": "steady", "ON_LOOP": "careless"}

PROTOCOL = """
protocol_id: {name}
version: 1
request_type: {step_type}
title: A long step
steps:
  - step_id: work
    step_type: {step_type}
    service: {service}
"""


@pytest.fixture
def stack(forks: Zygote, tmp_path: Path) -> Iterator[Stack]:
    folder = tmp_path / "protocols"
    folder.mkdir()
    for step_type, service in STEPS.items():
        name = step_type.lower()
        (folder / f"{name}.yaml").write_text(PROTOCOL.format(name=name, step_type=step_type, service=service))
    settings = {
        "LUCIUS_PROTOCOLS_DIR": str(folder),
        "LUCIUS_LEASE": str(LEASE),
        "LUCIUS_ACK_TIMEOUT": str(LEASE),
        "LUCIUS_SWEEP_INTERVAL": "0.05",
    }
    with contextlib.closing(Stack(forks, tmp_path, **settings)) as stack:
        stack.serve()
        yield stack


@contextlib.contextmanager
def service(name: str, stack: Stack) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the service as its author would."""
    env = {
        **os.environ,
        "LUCIUS_ORCHESTRATOR_URL": stack.api.base_url,
        "LUCIUS_API_KEY": KEY,
        "LUCIUS_DATA_DIR": str(stack.folder / f"service-{name}"),
        "LUCIUS_BLOB_ROOT": str(stack.folder),
    }
    with (stack.logs / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.long_steps", name], cwd=REPO, env=env, stderr=log, start_new_session=True
        )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def submit(stack: Stack, number: int, step_type: str) -> str:
    command = stack.command(number, step_type, payload={"work": {"seconds": SECONDS}})
    return stack.api.submit(command)


class Watched:
    """Progress and leases of a step, as seen through the API."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.progress: list[float] = []
        self.leases: set[str] = set()

    def look(self, stack: Stack) -> bool:
        """Record the step's state, and return True if it has ended."""
        step: Json = stack.api.step(self.job_id, "work")
        if step["lease_id"]:
            self.leases.add(step["lease_id"])
        if step["progress"] is not None and step["progress"] not in self.progress[-1:]:
            self.progress.append(step["progress"])
        return bool(step["status"] in ("SUCCEEDED", "FAILED_FINAL"))


@pytest.mark.timeout(180)
def test_step_that_blocks_for_a_minute_keeps_a_lease_of_five_seconds(stack: Stack) -> None:
    with contextlib.ExitStack() as services:
        for name in NAMES:
            services.enter_context(service(name, stack))
        watched = {kind: Watched(submit(stack, number, kind)) for number, kind in enumerate(STEPS)}
        began = time.monotonic()
        running = set(watched)

        def all_ended() -> bool:
            for kind in list(running):
                if watched[kind].look(stack):
                    running.discard(kind)
            time.sleep(0.3)
            return not running

        until(all_ended, f"all end; still running: {running}", SECONDS + 60)
        assert time.monotonic() - began >= SECONDS
    for kind, seen in watched.items():
        job = stack.api.get(f"/v1/jobs/{seen.job_id}")
        step = stack.api.step(seen.job_id, "work")
        events = [event["type"] for event in stack.api.events(seen.job_id)]
        assert (job["status"], job["attempts_total"], step["attempt_no"]) == ("SUCCEEDED", 1, 1), kind
        assert step["result"]["attempt_no"] == 1
        assert len(seen.leases) == 1, f"{kind}: the lease was never lost"
        assert not {"LEASE_EXPIRED", "ACK_TIMEOUT"} & set(events), events
        assert len(seen.progress) >= 10, f"{kind}: progress is seen meanwhile: {seen.progress}"
        assert seen.progress == sorted(seen.progress), kind
    assert "the event loop is blocked" in stack.log("careless")
    assert "the event loop is blocked" not in stack.log("steady")
