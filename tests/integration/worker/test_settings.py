"""A service process's environment variables, and the messages about invalid ones."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lucius.adapters.bus.local import LocalConsumer
from lucius.worker.connect import open_consumer, open_store
from lucius.worker.idempotency import MemoryIdempotency
from lucius.worker.idempotency_sqlite import SqliteIdempotency
from lucius.worker.journal import Journal
from lucius.worker.settings import BadSetting, WorkerSettings, settings_from
from tests.integration.worker.support import API_KEY, FakeOrchestrator, directive

FAR = "2100-01-01T00:00:00Z"


def test_empty_environment_means_the_defaults() -> None:
    assert settings_from({}) == WorkerSettings()
    assert settings_from(dict.fromkeys(("LUCIUS_GRACE", "LUCIUS_API_KEY", "LUCIUS_LANES"), "")) == WorkerSettings()
    assert WorkerSettings().places.blob_root is None


def test_each_variable_is_read() -> None:
    environ = {
        "LUCIUS_ORCHESTRATOR_URL": " https://lucius.example/base ",
        "LUCIUS_API_KEY": "k\n",
        "LUCIUS_BUS_URL": "local:",
        "LUCIUS_IDEMPOTENCY_URL": "memory:",
        "LUCIUS_DATA_DIR": "/data",
        "LUCIUS_JOURNAL_SYNC": "1",
        "LUCIUS_BLOB_ROOT": "/blobs",
        "LUCIUS_FILE_ROOTS": os.pathsep.join(("/in", "/out", "")),
        "LUCIUS_LANES": "0, 3,15",
        "LUCIUS_CONCURRENCY": "7",
        "LUCIUS_GRACE": "0",
        "LUCIUS_SERVICE_DELAY": "1.5",
        "LUCIUS_HEALTH_PORT": "0",
        "LUCIUS_HEALTH_HOST": "0.0.0.0",
    }
    settings = settings_from(environ)
    assert settings == WorkerSettings(
        orchestrator_url="https://lucius.example/base",
        api_key="k",
        idempotency_url="memory:",
        data_dir=Path("/data"),
        journal_sync=True,
        blob_root=Path("/blobs"),
        file_roots=(Path("/in"), Path("/out")),
        lanes=(0, 3, 15),
        concurrency=7,
        grace_seconds=0.0,
        delay_seconds=1.5,
        health_port=0,
        health_host="0.0.0.0",
    )
    assert settings.places.blob_root == Path("/blobs")
    assert settings_from({"LUCIUS_DATA_DIR": "/data"}).places.blob_root == Path("/data/blobs")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LUCIUS_CONCURRENCY", "0"),
        ("LUCIUS_CONCURRENCY", "many"),
        ("LUCIUS_CONCURRENCY", "1.5"),
        ("LUCIUS_GRACE", "-1"),
        ("LUCIUS_GRACE", "nan"),
        ("LUCIUS_GRACE", "inf"),
        ("LUCIUS_SERVICE_DELAY", "soon"),
        ("LUCIUS_HEALTH_PORT", "65536"),
        ("LUCIUS_LANES", "1,16"),
        ("LUCIUS_LANES", "1,,2"),
        ("LUCIUS_ORCHESTRATOR_URL", "lucius:8080"),
        ("LUCIUS_ORCHESTRATOR_URL", "ftp://lucius"),
    ],
)
def test_invalid_value_is_refused_naming_its_variable(name: str, value: str) -> None:
    with pytest.raises(BadSetting, match=f"^{name} "):
        settings_from({name: value})


def test_invalid_url_is_quoted_without_its_password() -> None:
    with pytest.raises(BadSetting) as refused:
        settings_from({"LUCIUS_ORCHESTRATOR_URL": "redis://me:secret@host"})
    assert "secret" not in str(refused.value)


async def test_urls_choose_buses_and_stores() -> None:
    consumer = open_consumer(WorkerSettings(), "ocr")
    assert isinstance(consumer, LocalConsumer)
    with pytest.raises(BadSetting, match="LUCIUS_BUS_URL"):
        open_consumer(WorkerSettings(bus_url="kafka://x"), "ocr")
    journal = Journal(None)
    assert isinstance(open_store("", journal), SqliteIdempotency)
    assert isinstance(open_store("memory:", journal), MemoryIdempotency)
    with pytest.raises(BadSetting, match="LUCIUS_IDEMPOTENCY_URL"):
        open_store("paper:", journal)


# The process

MAIN = """
import asyncio, sys, time
from lucius.worker import Service, StepContext, StepResult

service = Service("ocr")

@service.step("QUICK")
async def quick(ctx: StepContext) -> StepResult:
    return StepResult("done")

@service.step("IN_A_THREAD")
def in_a_thread(ctx: StepContext) -> StepResult:
    time.sleep(600)

@service.step("HIDDEN_THREAD")
async def hidden_thread(ctx: StepContext) -> StepResult:
    await asyncio.to_thread(time.sleep, 600)

@service.step("DEAF")
async def deaf(ctx: StepContext) -> StepResult:
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

@service.startup
def load() -> None:
    print("started", flush=True)

@service.shutdown
async def close() -> None:
    print("stopped", flush=True)

if __name__ == "__main__":
    service.run()
    print("after run", flush=True)
"""


class EndedProcess:
    def __init__(self, code: int, out: bytes, err: bytes, seconds: float) -> None:
        self.code = code
        self.out = out.decode().splitlines()
        self.err = err.decode().splitlines()
        self.seconds = seconds

    @property
    def words(self) -> list[str]:
        """Return the stderr lines that are not log lines."""
        return [line for line in self.err if not line.startswith("{")]


class Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def end(self, *signals: signal.Signals) -> EndedProcess:
        began = time.monotonic()
        for number in signals:
            self.process.send_signal(number)
            await asyncio.sleep(0.05)
        out, err = await asyncio.wait_for(self.process.communicate(), 40)
        return EndedProcess(self.process.returncode or 0, out, err, time.monotonic() - began)


@asynccontextmanager
async def service_process(folder: Path, **environ: str) -> AsyncIterator[Process]:
    main = folder / "main.py"
    main.write_text(MAIN)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(main),
        env={**kept, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def serving(orchestrator: FakeOrchestrator, **more: str) -> dict[str, str]:
    return {"LUCIUS_ORCHESTRATOR_URL": orchestrator.url, "LUCIUS_API_KEY": API_KEY, "LUCIUS_GRACE": "0.2", **more}


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "LUCIUS_API_KEY is not set"),
        ({"LUCIUS_API_KEY": "k", "LUCIUS_LANES": "x"}, "LUCIUS_LANES must be"),
        ({"LUCIUS_API_KEY": "k", "LUCIUS_BUS_URL": "kafka:"}, "LUCIUS_BUS_URL: no bus for such kafka: URLs"),
        ({"LUCIUS_API_KEY": "k", "LUCIUS_HEALTH_PORT": "{taken}"}, "LUCIUS_HEALTH_PORT: can't listen on"),
    ],
)
async def test_wrong_setting_ends_the_process_with_2_and_one_line(
    orchestrator: FakeOrchestrator, tmp_path: Path, environ: dict[str, str], said: str
) -> None:
    environ = {name: value.format(taken=orchestrator.port) for name, value in environ.items()}
    async with service_process(tmp_path, **environ) as process:
        ended = await process.end()
    assert ended.code == 2
    assert len(ended.words) == 1
    assert ended.words[0].startswith(said)
    assert ended.out == [], "nothing was loaded for it"


async def test_refused_key_ends_the_process_with_1_and_one_line(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    async with service_process(tmp_path, **serving(orchestrator, LUCIUS_API_KEY="wrong")) as process:
        ended = await process.end()
    assert ended.code == 1
    assert len(ended.words) == 1
    assert "does not know this API key" in ended.words[0]
    assert ended.out == ["started", "stopped"]


async def test_sigterm_ends_the_process_with_0_and_json_logs(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    orchestrator.offer(directive(orchestrator.url, step_type="QUICK", ack_deadline=FAR))
    async with service_process(tmp_path, **serving(orchestrator)) as process:
        await asyncio.wait_for(orchestrator.got_result.wait(), 30)
        ended = await process.end(signal.SIGTERM)
    assert (ended.code, ended.words) == (0, [])
    assert ended.out == ["started", "stopped", "after run"]
    assert "services started" in [json.loads(line)["event"] for line in ended.err]


async def test_unfinished_steps_do_not_keep_a_stopping_process(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    for number, step_type in enumerate(("IN_A_THREAD", "HIDDEN_THREAD", "DEAF")):
        orchestrator.offer(directive(orchestrator.url, number, step_type=step_type, ack_deadline=FAR))
    async with service_process(tmp_path, **serving(orchestrator)) as process:
        while len(orchestrator.of_type("ack")) < 3:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        ended = await process.end(signal.SIGTERM)
    results = orchestrator.of_type("result")
    assert {item["jobId"] for item in results} == {"job-0", "job-1", "job-2"}
    assert {(item["failure_class"], item["error"]["code"]) for item in results} == {("TRANSIENT", "SERVICE_STOPPING")}
    assert (ended.code, len(results)) == (0, 3)
    assert ended.seconds < 15


async def test_second_signal_skips_the_grace_period(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    orchestrator.offer(directive(orchestrator.url, step_type="IN_A_THREAD", ack_deadline=FAR))
    async with service_process(tmp_path, **serving(orchestrator, LUCIUS_GRACE="600")) as process:
        while not orchestrator.of_type("ack"):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        ended = await process.end(signal.SIGINT, signal.SIGINT)
    assert (ended.code, ended.seconds < 10) == (0, True)
    assert orchestrator.of_type("result")[0]["error"]["code"] == "SERVICE_STOPPING"


async def test_unusable_data_folder_is_reported_in_one_line(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with service_process(tmp_path, **serving(orchestrator, LUCIUS_DATA_DIR=str(tmp_path / "file"))) as process:
        ended = await process.end()
    assert ended.code == 1
    assert len(ended.words) == 1
    assert "journal" in ended.words[0]
