"""The SDK without the rest of Lucius: its imports, which suffice to run a service."""

import ast
import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.worker.support import API_KEY, FakeOrchestrator, directive

SDK = Path(__file__).parents[3] / "src" / "lucius" / "worker"
THIRD_PARTY = {"aiohttp", "msgspec", "prometheus_client", "structlog", "yarl"}  # yarl is aiohttp's URL type
OURS = (
    "lucius.worker",
    "lucius.public_addresses",
    "lucius.contract",
    "lucius.ports.bus",
    "lucius.ports.errors",
    "lucius.private_files",
    "lucius.retry_after",
    "lucius.terminal",
    "lucius.backoff",
    "lucius.durable_files",
    "lucius.version",
)
CONTRACT = (
    "callbacks",
    "commands",
    "directives",
    "fields",
    "problems",
    "process_headers",
    "refs",
    "reserved_names",
    "trace_context",
    "views",
)
ONLY_IN = {"redis": "idempotency_redis.py", "lucius.adapters": "connect.py"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", sorted(SDK.glob("*.py")), ids=lambda path: path.name)
def test_the_sdk_imports_little(path: Path) -> None:
    for name in imported(path):
        top = name.partition(".")[0]
        if top == "lucius":
            special = name.startswith("lucius.adapters.bus.") and path.name == ONLY_IN["lucius.adapters"]
            assert special or name.startswith(OURS), f"{path.name} imports {name}"
        elif top == "redis":
            assert path.name == ONLY_IN["redis"]
        else:
            assert top in THIRD_PARTY or top in sys.stdlib_module_names, f"{path.name} imports {name}"


# Runs a service under an import hook that refuses everything else.
MAIN = """
import json, sys, time

class Refusing:
    allowed = ("lucius", "lucius.worker", "lucius.public_addresses", "lucius.contract", "lucius.ports",
               "lucius.ports.bus", "lucius.ports.errors", "lucius.private_files", "lucius.terminal", "lucius.backoff",
               "lucius.version", "lucius.durable_files", "lucius.retry_after",
               "lucius.adapters", "lucius.adapters.bus", "lucius.adapters.bus.local",
               *(f"lucius.contract.{part}" for part in @@CONTRACT@@))
    refused = ("fastapi", "starlette", "uvicorn", "typer", "click", "rich", "yaml", "cel_expr_python", "jsonschema_rs",
               "jsonschema", "pydantic", "rfc8785", "redis", "pytest")

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        ours = top == "lucius" and name not in self.allowed and not name.startswith("lucius.worker.")
        if ours or top in self.refused:
            raise ModuleNotFoundError(f"{name} is refused", name=name)
        return None

sys.meta_path.insert(0, Refusing())
began = time.process_time()
from lucius.worker import Service, StepContext, StepResult
import lucius.worker.run
took = time.process_time() - began

service = Service("ocr")

@service.step("OCR")
async def on_loop(ctx: StepContext) -> StepResult:
    ref = await ctx.workspace.write("a.txt", b"a")
    with open("/proc/self/status") as status:
        kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    return StepResult({"import_seconds": took, "rss_mib": kib / 1024, "modules": sorted(sys.modules)}, [ref])

@service.step("THREAD")
def in_thread(ctx: StepContext) -> StepResult:
    return StepResult("thread")

@service.step("PROCESS", run_in="process")
def in_process(ctx: StepContext) -> StepResult:
    return StepResult("process")

if __name__ == "__main__":
    service.run()
"""


async def test_a_service_runs_with_nothing_else_of_lucius(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    main = tmp_path / "main.py"
    main.write_text(MAIN.replace("@@CONTRACT@@", repr(CONTRACT)))
    for number, step_type in enumerate(("OCR", "THREAD", "PROCESS")):
        orchestrator.offer(
            directive(
                orchestrator.url,
                number,
                step_type=step_type,
                ack_deadline="2100-01-01T00:00:00Z",
                workspace_ref=f"file://{tmp_path}/workspace",
            )
        )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(main),
        env={
            **kept,
            "LUCIUS_ORCHESTRATOR_URL": orchestrator.url,
            "LUCIUS_API_KEY": API_KEY,
            "LUCIUS_DATA_DIR": str(tmp_path / "data"),
            "LUCIUS_HEALTH_PORT": "0",
        },
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            while len(orchestrator.of_type("result")) < 3 and process.returncode is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        if process.returncode is None:
            process.terminate()
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    results = {item["jobId"]: item for item in orchestrator.of_type("result")}
    assert [results[f"job-{number}"].get("error") for number in range(3)] == [None] * 3, json.dumps(results)
    figures = results["job-0"]["result"]
    loaded = {name for name in figures["modules"] if name.startswith("lucius.")}
    assert {name for name in loaded if not name.startswith("lucius.worker")} == {
        "lucius.adapters",
        "lucius.adapters.bus",
        "lucius.adapters.bus.local",
        "lucius.public_addresses",
        "lucius.contract",
        *(f"lucius.contract.{part}" for part in CONTRACT),
        "lucius.ports",
        "lucius.ports.bus",
        "lucius.ports.errors",
        "lucius.private_files",
        "lucius.retry_after",
        "lucius.terminal",
        "lucius.backoff",
        "lucius.durable_files",
        "lucius.version",
    }
    assert figures["import_seconds"] < 5
    assert figures["rss_mib"] < 150
