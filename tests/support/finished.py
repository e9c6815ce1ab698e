"""Jobs that have ended, by the real API on a SQLite file."""

from pathlib import Path

from tests.support.api import Api, serving, settings_for
from tests.support.clock import ManualClock


async def make_finished(folder: Path, count: int, clock: ManualClock | None = None) -> list[str]:
    settings = settings_for(folder, ledger_url=f"sqlite:///{folder / 'ledger.db'}")
    async with serving(settings, clock) as api:
        return [await _finished(api, number) for number in range(count)]


async def _finished(api: Api, number: int) -> str:
    """Done at the second attempt, so that there is a failed one in its history."""
    job_id = await api.submit(idempotency_key=f"key-{number}")
    await api.fail(await api.pull_one())
    await api.sweep(after=400)
    (await api.succeed(await api.pull_one(), result={"pages": number})).ok()
    return job_id
