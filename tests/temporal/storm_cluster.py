"""APIs, Temporal workers and services on one PostgreSQL and one Temporal, under random faults.

Every process and both servers are killed, frozen or restarted.
"""

import asyncio
import random
import subprocess
import sys
import threading
from pathlib import Path

from tests.e2e.replicas import Clients, Cluster, Weather
from tests.e2e.support import REPO, Zygote
from tests.support.fastpath import fastpath_env
from tests.support.postgres import PostgresServer
from tests.support.temporal import TemporalServer

TASK_SECONDS = 10.0
"""Time after which Temporal gives the task of a silent worker to another one."""


class TemporalZygote(Zygote):
    """Zygote that has imported the Temporal engine, too."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.temporal.storm_zygote"],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._turn = threading.Lock()


class TemporalCluster(Cluster):
    """Cluster with `engines`, which are `lucius temporal-worker`s; its workers are platform services."""

    def __init__(
        self,
        zygote: Zygote,
        folder: Path,
        ledger_url: str,
        temporal: TemporalServer,
        bus_url: str = "local:",
        *,
        apis: int = 2,
        engines: int = 2,
        workers: int = 2,
    ) -> None:
        super().__init__(zygote, folder, ledger_url, bus_url, apis=apis, reconcilers=0, workers=workers)
        self._env |= {"LUCIUS_ENGINE": "temporal", "LUCIUS_TEMPORAL_ADDRESS": temporal.address} | fastpath_env()
        self.engines = [f"engine-{n}" for n in range(engines)]
        self.names += self.engines

    def _command(self, name: str) -> tuple[str, list[str]]:
        return ("lucius", ["temporal-worker"]) if name in self.engines else super()._command(name)


class Storm(Weather):
    """Weather that also restarts or kills Temporal, in turn with PostgreSQL, and freezes a Temporal worker.

    The freeze lasts so long that Temporal takes the worker's tasks away.
    """

    def __init__(
        self,
        cluster: TemporalCluster,
        clients: Clients,
        postgres: PostgresServer,
        temporal: TemporalServer,
        chance: random.Random,
    ) -> None:
        super().__init__(cluster, clients, postgres, None, chance)
        self._engines = cluster.engines
        self._temporal = temporal
        self._frozen = ""
        self._thawed = asyncio.Event()
        self.restarts |= {"temporal killed": 0, "temporal stopped": 0}

    async def storm(self, rounds: int, *, wipe: bool = False) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._freeze_an_engine())
            await super().storm(rounds, wipe=wipe)
            for how in [how for how, times in self.restarts.items() if not times]:
                await self._restart(how)

    async def _freeze_an_engine(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, 2.0))
        self._frozen = self._chance.choice(self._engines)
        self._thawed.clear()
        self._cluster.freeze(self._frozen)
        await asyncio.sleep(TASK_SECONDS * self._chance.uniform(1.1, 1.3))
        self._cluster.thaw(self._frozen)
        self._thawed.set()
        self.freezes += 1

    async def _kill(self, name: str) -> None:
        if name == self._frozen:
            await self._thawed.wait()
        await super()._kill(name)

    async def _freeze(self, name: str) -> None:
        if name not in self._engines:
            await super()._freeze(name)

    async def _restarter(self) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(2.0, 4.0))
            how = min(self.restarts, key=lambda how: (self.restarts[how], self._chance.random()))
            restart = asyncio.create_task(self._restart(how))
            try:
                await asyncio.shield(restart)
            except asyncio.CancelledError:
                await restart  # a server that was stopped must be started again
                raise

    async def _restart(self, how: str) -> None:
        self.restarts[how] += 1
        if not how.startswith("temporal"):
            await asyncio.to_thread(self._postgres.restart, crash=how == "crash")
            return
        await asyncio.to_thread(self._temporal.stop, crash=how == "temporal killed")
        await asyncio.sleep(self._chance.choice((0.0, 0.5, 2.0)))
        await asyncio.to_thread(self._temporal.start)
