"""Kills and freezes the processes of a stack under load. The moments are random, the plan is seeded."""

import asyncio
import json
import random
import signal
from pathlib import Path

from tests.e2e.load import Load
from tests.e2e.support import Json, Stack, Zygote

SERVICES = ("ocr", "embedding", "sis")
ACK_TIMEOUT = 0.8
LEASE = 1.0
SHORT_TIMES = {
    "LUCIUS_ACK_TIMEOUT": str(ACK_TIMEOUT),
    "LUCIUS_LEASE": str(LEASE),
    "LUCIUS_BACKOFF_SCALE": "0.001",
    "LUCIUS_SWEEP_INTERVAL": "0.05",
    "LUCIUS_REPAIR_INTERVAL": "1",
    "LUCIUS_MAX_ATTEMPTS": "60",
}
PROGRESS_SECONDS = 60.0


class Chaos:
    """Random kills and freezes. Each waits for progress of the load since the last, so that all hit work."""

    def __init__(self, stack: Stack, load: Load, rng: random.Random) -> None:
        self._stack = stack
        self._load = load
        self._rng = rng
        self.kills = dict.fromkeys(("server", *SERVICES), 0)
        self.freezes = dict.fromkeys(("server", *SERVICES), 0)

    async def run(self, rounds: int) -> None:
        """Kill every process once per round, in random order, and freeze one, each process in its turn."""
        names = list(self.kills)
        self._rng.shuffle(names)
        for number in range(rounds):
            acts = [("kill", name) for name in names]
            acts.append(("freeze", names[number % len(names)]))
            self._rng.shuffle(acts)
            for act, name in acts:
                await self._some_progress()
                await (self._kill(name) if act == "kill" else self._freeze(name))

    async def _some_progress(self) -> None:
        wanted = self._load.accepted + self._load.finished + self._rng.randint(2, 14)
        async with asyncio.timeout(PROGRESS_SECONDS):
            while self._load.accepted + self._load.finished < wanted:
                self._load.moved.clear()
                await self._load.moved.wait()
        await asyncio.sleep(self._rng.random() * 0.03)  # any moment, not just those right after an answer

    async def _kill(self, name: str) -> None:
        if name == "server":
            self._load.more.set()  # so that some submissions are under way at that moment
            await asyncio.sleep(self._rng.random() * 0.01)
        await asyncio.to_thread(self._stack.processes[name].kill)
        if name == "server":
            self._load.more.set()  # these find no server, even if every earlier submission was answered in time
        self.kills[name] += 1
        away = self._rng.choice((0.0, 0.02, 0.1, 0.3, ACK_TIMEOUT * 1.3 if name == "server" else 0.5))
        await asyncio.sleep(away)
        if name == "server":
            await asyncio.to_thread(self._stack.serve)
        else:
            await asyncio.to_thread(self._stack.start_service, name)

    async def _freeze(self, name: str) -> None:
        """Freeze for longer than ACK timeout plus lease: a service then reports on fenced attempts."""
        if name == "server":
            process = self._stack.processes[name]
            process.send(signal.SIGSTOP)
            await asyncio.sleep((ACK_TIMEOUT + LEASE) * self._rng.uniform(1.2, 1.6))
            process.send(signal.SIGCONT)
        else:
            async with asyncio.timeout(PROGRESS_SECONDS):
                while not await self._freeze_until_fenced(name):
                    pass
        self.freezes[name] += 1

    async def _freeze_until_fenced(self, name: str) -> bool:
        """Freeze a service that began an attempt; return False if it had already reported that attempt's end."""
        attempt = await self._next_attempt(name)
        process = self._stack.processes[name]
        process.send(signal.SIGSTOP)
        try:
            while True:
                step = await asyncio.to_thread(self._stack.api.step, attempt["jobId"], attempt["stepId"])
                if step["attempt_no"] > attempt["attempt_no"]:
                    return True
                if step["status"] == "SUCCEEDED":
                    return False
                await asyncio.sleep(0.05)
        finally:
            process.send(signal.SIGCONT)

    async def _next_attempt(self, name: str) -> Json:
        """Return the next attempt that a service begins, by its diary."""
        diary = self._stack.data_dir / f"service-{name}" / "diary.jsonl"
        diary.touch()  # the service may not have opened it yet
        seen = diary.stat().st_size
        self._load.more.set()
        while diary.stat().st_size == seen:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        with diary.open("rb") as file:
            file.seek(seen)
            attempt: Json = json.loads(file.readline())
        return attempt


class Outcome:
    def __init__(self, stack: Stack, load: Load, chaos: Chaos) -> None:
        self.stack = stack
        self.load = load
        self.chaos = chaos


async def survive(
    zygote: Zygote, folder: Path, seed: int, *, rounds: int, at_least: int, clients: int, **env: str
) -> Outcome:
    """Run a load through `rounds` of chaos and to its end; every process is up afterwards."""
    rng = random.Random(seed)
    stack = Stack(zygote, folder, **SHORT_TIMES, **env)
    await asyncio.to_thread(stack.serve)
    for name in SERVICES:
        stack.start_service(name)
    load = Load(stack, random.Random(rng.random()), clients)
    chaos = Chaos(stack, load, rng)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(at_least))
        await chaos.run(rounds)
        load.finish()
    return Outcome(stack, load, chaos)
