"""Finished jobs, created through the real API on a SQLite file."""

from pathlib import Path
from typing import Any

import yaml

from tests.support.api import Api, serving, settings_for
from tests.support.clock import ManualClock


async def make_finished(folder: Path, count: int, clock: ManualClock | None = None) -> list[str]:
    settings = settings_for(folder, ledger_url=f"sqlite:///{folder / 'ledger.db'}")
    async with serving(settings, clock) as api:
        return [await _finished(api, number) for number in range(count)]


async def make_finished_scan(folder: Path, *, redact: list[str], payload: dict[str, Any]) -> str:
    """Create a finished job whose protocol redacts parts of its payload and uses it for map items; return its id."""
    scan = {"step_id": "scan", "step_type": "SCAN", "service": "scan"}
    inner = {"step_id": "page", "step_type": "PAGE", "service": "page"}
    each = {"step_id": "each", "kind": "map", "map": {"items": "input.scan.pins", "steps": [inner]}}
    document = {"protocol_id": "scan", "version": 1, "request_type": "SCAN", "redact": redact, "steps": [scan, each]}
    (folder / "protocols").mkdir()
    (folder / "protocols" / "scan.yaml").write_text(yaml.safe_dump(document))
    ledger_url = f"sqlite:///{folder / 'ledger.db'}"
    async with serving(settings_for(folder, ledger_url=ledger_url, protocols_dir=folder / "protocols")) as api:
        job_id = await api.submit(request_type="SCAN", payload=payload)
        for service in ("scan", "page"):
            (await api.succeed(await api.pull_one(service))).ok()
        assert (await api.job(job_id))["status"] == "SUCCEEDED"
    return job_id


async def _finished(api: Api, number: int) -> str:
    """Finish a job at its second attempt, so that its history has a failed attempt; return its id."""
    job_id = await api.submit(idempotency_key=f"key-{number}")
    await api.fail(await api.pull_one())
    await api.sweep(after=400)
    (await api.succeed(await api.pull_one(), result={"pages": number})).ok()
    return job_id
