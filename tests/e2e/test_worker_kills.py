"""A service process killed 100 times at random instants neither loses nor repeats what it has spooled.

After each kill its journal is read from outside. A result there must reach the orchestrator unchanged, at least
once, and its step must not run again. Everything else may fail, but must be retried and succeed.
"""

import asyncio
import json
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from lucius.worker.idempotency import AttemptKey
from tests.e2e.redelivery import Json, Orchestrator
from tests.e2e.support import KEY, Process, Zygote

SERVICE = "victim"
STARTING = 0.08
LONGEST_LIFE = 0.5
END_SECONDS = 30.0

Row = tuple[bytes, str | None, bytes | None]


class Evidence:
    """Contents of the journal after each kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.spooled: dict[AttemptKey, bytes] = {}
        self.runs_then: dict[AttemptKey, int] = {}
        self.undelivered = 0
        self.unfinished = 0

    @property
    def diary(self) -> Path:
        return self._folder / "diary"

    def runs(self) -> Counter[AttemptKey]:
        whole, _, _cut_by_a_kill = self.diary.read_text().rpartition("\n") if self.diary.exists() else ("", "", "")
        words = (line.split() for line in whole.splitlines())
        return Counter(AttemptKey(job, "ocr", int(attempt_no), lease) for job, attempt_no, lease in words)

    def take(self, *, others_live: bool = False) -> None:
        rows = self.journal(others_live=others_live)
        runs = self.runs()
        for encoded, owner, result in rows:
            key = AttemptKey(*json.loads(encoded))
            self.undelivered += owner is not None and result is not None
            self.unfinished += owner is not None and result is None
            if result is not None:
                assert self.spooled.setdefault(key, result) == result, f"the result of {key} was another before"
                self.runs_then.setdefault(key, runs[key])

    def journal(self, *, others_live: bool = False) -> list[Row]:
        """Return the journal's rows from a copy, since opening a journal after a crash repairs it.

        The repair is up to the service. With `others_live`, read the original.
        """
        source = self._folder / "services" / SERVICE
        if others_live:
            return rows_of(source)
        with tempfile.TemporaryDirectory() as copy:
            for path in source.glob("journal.db*"):
                if not path.name.endswith("-shm"):
                    shutil.copy(path, copy)
            return rows_of(Path(copy))


def rows_of(folder: Path) -> list[Row]:
    if not (folder / "journal.db").exists():
        return []
    with closing(sqlite3.connect(folder / "journal.db")) as opened:
        if not opened.execute("SELECT 1 FROM sqlite_master WHERE name = 'attempts'").fetchone():
            return []
        return opened.execute("SELECT key, owner, result FROM attempts").fetchall()


class Killer:
    def __init__(self, forks: Zygote, folder: Path, url: str, chance: random.Random) -> None:
        self._forks = forks
        self._folder = folder
        self._chance = chance
        self._env = {
            "LUCIUS_ORCHESTRATOR_URL": url,
            "LUCIUS_API_KEY": KEY,
            "LUCIUS_DATA_DIR": str(folder),
            "LUCIUS_CONCURRENCY": "6",
            "LUCIUS_LOG_LEVEL": "warning",
            "LUCIUS_GRACE": "5",
        }
        self.log = folder / "victim.log"

    async def start(self) -> Process:
        args = [SERVICE, str(self._folder / "diary")]
        return await asyncio.to_thread(self._forks.spawn, "victim", args, self._env, self.log)

    async def let_live(self) -> None:
        """Sleep for a random part of a process's life, sometimes too short for its start."""
        longest = STARTING if self._chance.random() < 0.2 else LONGEST_LIFE
        await asyncio.sleep(longest * self._chance.random())

    async def kill(self, process: Process) -> None:
        assert await asyncio.to_thread(process.wait, 0) is None, f"it ended by itself: {self.log.read_text()}"
        await asyncio.to_thread(process.kill)


async def come_and_go(orchestrator: Orchestrator, chance: random.Random) -> None:
    """Take the orchestrator away at random, so that results pile up."""
    while True:
        await asyncio.sleep(0.4 * chance.random())
        orchestrator.away = not orchestrator.away


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("processes", "kills"), [(1, 100), (3, 30)], ids=["alone", "three share a folder"])
async def test_spooled_result_survives_kills_and_is_not_computed_again(
    forks: Zygote, tmp_path: Path, processes: int, kills: int
) -> None:
    chance = random.Random(kills)
    orchestrator = Orchestrator(SERVICE, chance, jobs_at_once=12)
    killer = Killer(forks, tmp_path, await orchestrator.start(), chance)
    evidence = Evidence(tmp_path)
    weather = asyncio.create_task(come_and_go(orchestrator, chance))
    running = [await killer.start() for _ in range(processes)]
    for _ in range(kills):
        await killer.let_live()
        await killer.kill(running.pop(chance.randrange(processes)))
        evidence.take(others_live=processes > 1)
        running.append(await killer.start())
    weather.cancel()
    orchestrator.away = False
    orchestrator.no_more_jobs()
    await all_done(orchestrator, killer)
    codes = [await asyncio.to_thread(process.stop) for process in running]
    await orchestrator.stop()
    evidence.take()
    assert codes == [0] * processes, killer.log.read_text()
    check(orchestrator, evidence)
    if processes == 1:
        check_each_ran_once(orchestrator, evidence)
    print(told(orchestrator, evidence))


async def all_done(orchestrator: Orchestrator, killer: Killer) -> None:
    try:
        async with asyncio.timeout(END_SECONDS):
            while orchestrator.open:  # noqa: ASYNC110 - the end of a test sends no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{orchestrator.open} attempts never got a result: {killer.log.read_text()}") from None


def check(orchestrator: Orchestrator, evidence: Evidence) -> None:
    for key, tried in orchestrator.attempts.items():
        assert tried.results, f"{key} has no result"
        assert all(said == tried.results[0] for said in tried.results), f"{key} has two results: {tried.results}"
    runs = evidence.runs()
    for key, spooled in evidence.spooled.items():
        assert orchestrator.attempts[key].results[0] == fields(spooled), f"{key}: its spooled result was lost"
        assert runs[key] == evidence.runs_then[key], f"{key} ran again though its result was spooled"
    assert not [row for row in evidence.journal() if row[1] is not None], "all was delivered, and the journal knows"
    jobs = {key.jobId for key in orchestrator.attempts}
    assert orchestrator.succeeded == jobs


def check_each_ran_once(orchestrator: Orchestrator, evidence: Evidence) -> None:
    """With one process at a time, not even an unfinished attempt is started twice: it is reported as cut off."""
    twice = {key: runs for key, runs in evidence.runs().items() if runs > 1}
    assert not twice
    assert evidence.undelivered > 20, "kills met results that waited"
    assert evidence.unfinished > 20, "kills met steps that ran"
    assert any(tried.deliveries > 1 for tried in orchestrator.attempts.values())
    assert any(len(tried.results) > 1 for tried in orchestrator.attempts.values())


def fields(result: bytes) -> Json:
    said: Json = json.loads(result)
    return {name: said[name] for name in sorted(said)}


def told(orchestrator: Orchestrator, evidence: Evidence) -> str:
    attempts = orchestrator.attempts.values()
    return (
        f"{len(orchestrator.succeeded)} jobs, {len(attempts)} attempts, {sum(evidence.runs().values())} runs, "
        f"{sum(tried.deliveries for tried in attempts)} deliveries, {sum(len(tried.results) for tried in attempts)} "
        f"results, {orchestrator.lost_answers} answers lost; kills met {evidence.undelivered} undelivered results and "
        f"{evidence.unfinished} unfinished attempts"
    )
