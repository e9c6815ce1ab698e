"""Replicas on one PostgreSQL, with services and clients, and faults that kill and restart all of them."""

import asyncio
import json
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e import dossier
from tests.e2e.balancer import Balancer
from tests.e2e.checker_at_rest import Histories, lines
from tests.e2e.support import KEY, Json, Process, Zygote
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer

ACK_TIMEOUT, LEASE = 2.0, 2.5
SETTINGS = {
    "LUCIUS_DEV_API_KEY": KEY,
    "LUCIUS_TOKEN_SECRET": "one-secret-that-all-replicas-share",
    "LUCIUS_LOG_LEVEL": "warning",
    "LUCIUS_ACK_TIMEOUT": str(ACK_TIMEOUT),
    "LUCIUS_LEASE": str(LEASE),
    "LUCIUS_BACKOFF_SCALE": "0.001",
    "LUCIUS_MAX_ATTEMPTS": "200",
    "LUCIUS_REPAIR_INTERVAL": "2",
    "LUCIUS_OUTBOX_RETRY_INTERVAL": "0.5",
}
TENANTS = ("acme", "globex", "initech", "umbrella")
TASKS_ONLY = ("OCR_EMBEDDING_SIS", "OCR_EMBEDDING_SIS", "OCR_EMBEDDING", "EMBEDDING_SIS", "OCR")
DOSSIER_EVERY = 6
SLOWEST_STEP = 0.3
NOT_NOW = frozenset({408, 429, 502, 503, 504})
PATIENCE = 120.0
CANCELS = 0.05
TOO_LATE = ("JOB_TERMINAL", "APPROVAL_ENDED", "ALREADY_VOTED")
LEDGER_AWAY = "can't be reached"


class Cluster:
    """Processes by name; each can be killed and started again with the same settings."""

    def __init__(
        self,
        zygote: Zygote,
        folder: Path,
        ledger_url: str,
        bus_url: str,
        *,
        apis: int = 4,
        reconcilers: int = 3,
        workers: int = 3,
        most_per_tenant: int = 10_000,
    ) -> None:
        self._zygote = zygote
        self.folder = folder
        (folder / "logs").mkdir(parents=True)
        self.balancer_port, office_port = free_port(), free_port()
        self.office = dossier.Office(office_port)
        dossier.write_protocol(folder / "protocols", f"http://127.0.0.1:{office_port}")
        dossier.write_config(folder / "lucius.yaml", office_port)
        self.ports = {f"api-{n}": free_port() for n in range(apis)}
        self._env = SETTINGS | {
            "LUCIUS_LEDGER_URL": ledger_url,
            "LUCIUS_BUS_URL": bus_url,
            "LUCIUS_TENANT_INFLIGHT": str(most_per_tenant),
            "LUCIUS_ORCHESTRATOR_URL": f"http://127.0.0.1:{self.balancer_port}",
            "LUCIUS_WORKSPACE_ROOT": (folder / "workspace").as_uri(),
            "LUCIUS_PROTOCOLS_DIR": str(folder / "protocols"),
            "LUCIUS_CONFIG": str(folder / "lucius.yaml"),
        }
        self._turn = threading.RLock()
        self.running: dict[str, Process] = {}
        self.mended = 0
        self.stopped_by_force: dict[int, float] = {}
        """Time at which each process was first killed or frozen, by pid."""
        self.names = [*self.ports, *(f"reconciler-{n}" for n in range(reconcilers))]
        self.workers = [f"worker-{n}" for n in range(workers)]

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports.values()]

    def start(self, name: str) -> None:
        role, args = self._command(name)
        env = self._env | {"LUCIUS_DATA_DIR": str(self.folder / name)}
        if role == "recorder":
            env |= {"LUCIUS_API_KEY": KEY, "LUCIUS_CONCURRENCY": "8", "LUCIUS_GRACE": "5"}
        with self._turn:
            self.running[name] = self._zygote.spawn(role, args, env, self.folder / "logs" / name)

    def _command(self, name: str) -> tuple[str, list[str]]:
        if name in self.ports:
            return "lucius", ["api", "--port", str(self.ports[name])]
        if name in self.workers:
            return "recorder", [str(self.folder / "diaries" / name), str(SLOWEST_STEP)]
        return "lucius", ["reconciler"]

    def start_all(self) -> None:
        for name in (*self.names, *self.workers):
            self.start(name)

    def kill(self, name: str) -> None:
        with self._turn:
            process = self.running.pop(name)
            self.stopped_by_force.setdefault(process.pid, time.time())
            process.kill()

    def freeze(self, name: str) -> None:
        self.stopped_by_force.setdefault(self.running[name].pid, time.time())
        self.running[name].send(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.running[name].send(signal.SIGCONT)

    def kill_all(self) -> None:
        for name in list(self.running):
            self.kill(name)

    def mend(self) -> None:
        """Restart processes that ended because they could not open the ledger, as a supervisor would."""
        for name in (*self.names, *self.workers):
            with self._turn:
                process = self.running.get(name)
                if process is not None and process.wait(0) is not None:
                    assert LEDGER_AWAY in self.log(name), f"{name} ended with {process.exit_code}: {self.log(name)}"
                    self.start(name)
                    self.mended += 1

    def stop_all(self) -> None:
        """Stop services before replicas, as an operator would, so that their last callbacks are taken."""
        for name in (*self.workers, *self.names):
            with self._turn:
                process = self.running.pop(name)
                process.send(signal.SIGTERM)
                code = process.wait(30)
                # A process that has just started may not handle signals yet.
                assert code in (0, -signal.SIGTERM), f"{name} ended with {code}: {self.log(name)}"

    def errors(self) -> list[str]:
        """Return error lines and tracebacks in the replicas' logs; an outage must not cause any."""
        logs = {name: self.folder / "logs" / name for name in self.names}
        said = [(name, line) for name, path in logs.items() for line in path.read_text(errors="replace").splitlines()]
        return [f"{name}: {line}" for name, line in said if '"level": "error"' in line or "Traceback" in line]

    def log(self, name: str) -> str:
        return (self.folder / "logs" / name).read_text(errors="replace")[-4000:]

    def histories(self, orders: list["Order"]) -> Histories:
        diaries = self.folder / "diaries"
        return Histories(
            orders=[order.told() for order in orders],
            began=lines(diaries.glob("*/began.jsonl")),
            finished=lines(diaries.glob("*/finished.jsonl")),
            killed=self.stopped_by_force,
            filed=self.office.filed,
            told=self.office.told,
        )


class Order:
    """One command, and every answer that its client got."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.number = number
        self.key = f"key-{number}" if chance.random() < 0.7 else None
        self.is_dossier = number % DOSSIER_EVERY == 0
        request_type = dossier.REQUEST_TYPE if self.is_dossier else chance.choice(TASKS_ONLY)
        dossiers = number // DOSSIER_EVERY
        self.cancel = dossiers % 7 == 3 if self.is_dossier else chance.random() < CANCELS
        self.cancel_in = (None, "APPROVAL", "SIGNAL")[dossiers // 7 % 3] if self.is_dossier else None
        """`blocked_on` reason at which the job is cancelled; None cancels at once."""
        self.command: Json = {
            "tenant_id": chance.choice(TENANTS),
            "request_type": request_type,
            "input_ref": f"blob://in/{number}",
            "output_ref": f"blob://out/{number}",
            "payload": {"sis": {"prompt_set": ["Who pays?"]}},
            "schema_version": "v1",
        }
        if self.is_dossier:
            pages = dossiers % (dossier.MAX_PAGES + 1)  # every page count occurs, even with few orders
            self.command["payload"] = {"pages": list(range(pages))}
        elif not self.command["request_type"].endswith("SIS"):
            self.command["payload"] = {}
        if chance.random() < 0.4:
            self.command |= {"mode": "BURST", "doc_id": f"doc-{number}"}
        if self.key:
            self.command["idempotency_key"] = self.key
        self.patience = 0.2 if self.is_dossier else 2.0
        self.answers: list[str] = []
        self.status: str | None = None

    def told(self) -> Json:
        return {
            "number": self.number,
            "tenant_id": self.command["tenant_id"],
            "key": self.key,
            "input_ref": self.command["input_ref"],
            "answers": self.answers,
            "cancel": self.cancel,
            "status": self.status,
        }


class Clients:
    """Closed loop of clients; each asks a random replica, and another one if that does not answer."""

    def __init__(self, urls: list[str], chance: random.Random) -> None:
        self._urls = urls
        self._chance = chance
        self._numbers: Iterator[int] = iter(())
        self.orders: list[Order] = []
        self.asked_again = 0
        self.steps_forward = 0
        """Number of commands accepted and jobs ended; only grows."""
        self.moved = asyncio.Event()
        self.enough = asyncio.Event()

    async def run(self, clients: int, orders: int = 1_000_000) -> None:
        """Run until `enough` is set or this many orders are made, and then until every job has ended."""
        self._numbers = iter(range(1, orders + 1))
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(headers=headers) as session, asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client(session))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        for number in self._numbers:
            if self.enough.is_set():
                return
            order = Order(number, self._chance)
            self.orders.append(order)
            await self._submit(session, order)
            if self._chance.random() < 0.1:
                await self._submit(session, order)  # as if the answer had been lost
            path = f"/v1/jobs/{order.answers[0]}"
            if order.cancel and order.cancel_in is None:
                await self._cancel(session, path)
            await self._await_end(session, order, path)

    async def _submit(self, session: aiohttp.ClientSession, order: Order) -> None:
        answer = await self._insist(session, "POST", "/v1/commands", (202,), order.command)
        order.answers.append(answer["jobId"])
        self._moved()

    async def _await_end(self, session: aiohttp.ClientSession, order: Order, path: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while order.status is None:
                    job = await self._insist(session, "GET", f"{path}?wait={order.patience}", (200,))
                    order.status = job["status"] if job["completed_at"] else None
                    waits_for = (job["blocked_on"] or {}).get("reason")
                    if order.cancel and waits_for and waits_for == order.cancel_in:
                        await self._cancel(session, path)
                    else:
                        await self._help(session, path, waits_for)
        except TimeoutError:
            history = await self._insist(session, "GET", f"{path}/events?limit=500", (200,))
            told = [f"{event['at']} {event['type']} {event.get('attempt_no')}" for event in history["events"]]
            raise AssertionError(f"{path} does not end: {job['blocked_on']} {told[-60:]}") from None
        self._moved()

    async def _help(self, session: aiohttp.ClientSession, path: str, waits_for: str | None) -> None:
        """Approve or signal if the job waits for it; a conflict means that an earlier, unanswered act was applied."""
        if waits_for == "APPROVAL":
            await self._insist(session, "POST", f"{path}/steps/agree:approve", (200, *TOO_LATE), {"comment": "fine"})
        elif waits_for == "SIGNAL":
            await self._insist(session, "POST", f"{path}:signal", (202, *TOO_LATE), {"name": "signed", "payload": {}})

    async def _cancel(self, session: aiohttp.ClientSession, path: str) -> None:
        await self._insist(session, "POST", f"{path}:cancel", (200, 202, *TOO_LATE), {"reason": "changed my mind"})

    def _moved(self) -> None:
        self.steps_forward += 1
        self.moved.set()

    async def progress(self, steps: int) -> None:
        """Wait until this many more commands were accepted or jobs ended."""
        wanted = self.steps_forward + steps
        while self.steps_forward < wanted:
            self.moved.clear()
            await self.moved.wait()

    async def _insist(
        self, session: aiohttp.ClientSession, method: str, path: str, wanted: tuple[int | str, ...], body: Any = None
    ) -> Json:
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = await self._try(session, method, self._chance.choice(self._urls) + path, body)
                if answer is not None:
                    assert answer[0] in wanted or answer[1].get("code") in wanted, f"{method} {path} answered {answer}"
                    return answer[1]
                self.asked_again += 1
                await asyncio.sleep(0.05)  # no replica answered

    async def _try(self, session: aiohttp.ClientSession, method: str, url: str, body: Any) -> tuple[int, Json] | None:
        """Return status and body, or None if the outcome is unknown."""
        try:
            async with session.request(method, url, json=body, timeout=aiohttp.ClientTimeout(total=10)) as response:
                if response.status in NOT_NOW:
                    return None
                return response.status, await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError, json.JSONDecodeError):
            return None


class Weather:
    """Random kills, freezes and restarts, with counts that show that they happened.

    Each kill waits for progress of the clients since the last one, so that all hit work on slow machines too.
    """

    def __init__(
        self,
        cluster: Cluster,
        clients: Clients,
        postgres: PostgresServer,
        redis: RedisServer | None,
        chance: random.Random,
    ) -> None:
        self._cluster = cluster
        self._clients = clients
        self._postgres = postgres
        self._redis = redis
        self._chance = chance
        self.kills = dict.fromkeys((*cluster.names, *cluster.workers), 0)
        self.freezes = 0
        self.restarts = {"crash": 0, "fast": 0}
        self.wiped = 0

    async def storm(self, rounds: int, *, wipe: bool = False) -> None:
        """Hit every process once per round, in random order, and freeze one of them.

        Meanwhile PostgreSQL is restarted every few seconds and, with `wipe`, Redis is emptied once.
        """
        restarter = asyncio.create_task(self._restarter())
        wiped_in = self._chance.randrange(rounds) if wipe and self._redis is not None else -1
        try:
            for number in range(rounds):
                acts = self._chance.sample(list(self.kills), len(self.kills))
                acts.insert(self._chance.randrange(len(acts)), f"freeze {self._chance.choice(acts)}")
                if number == wiped_in:
                    acts.insert(self._chance.randrange(len(acts)), "wipe")
                for act in acts:
                    await self._some_progress()
                    await self._do(act)
        finally:
            restarter.cancel()
            await asyncio.wait([restarter])

    async def _some_progress(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._clients.progress(self._chance.randint(2, 12))
        await asyncio.sleep(self._chance.random() * 0.05)  # any moment, not just those right after an answer

    async def _do(self, act: str) -> None:
        what, _, name = act.rpartition(" ")
        if name == "wipe":
            await self._wipe()
        elif what == "freeze":
            await self._freeze(name)
        else:
            await self._kill(name)

    async def _kill(self, name: str) -> None:
        await asyncio.to_thread(self._cluster.kill, name)
        self.kills[name] += 1
        await asyncio.sleep(self._chance.choice((0.0, 0.02, 0.2, 1.0)))
        await asyncio.to_thread(self._cluster.start, name)

    async def _freeze(self, name: str) -> None:
        """Freeze for longer than the deadlines of its work: others take over, and then it continues."""
        self._cluster.freeze(name)
        await asyncio.sleep(max(ACK_TIMEOUT, LEASE) * self._chance.uniform(1.1, 1.4))
        self._cluster.thaw(name)
        self.freezes += 1

    async def _restarter(self) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(2.0, 4.0))
            how = min(self.restarts, key=lambda how: (self.restarts[how], self._chance.random()))
            await _to_the_end(asyncio.to_thread(self._postgres.restart, crash=how == "crash"))
            self.restarts[how] += 1

    async def _wipe(self) -> None:
        assert self._redis is not None
        self._redis.stop()
        await asyncio.sleep(self._chance.uniform(0.0, 1.0))
        await asyncio.to_thread(self._redis.start)
        self.wiped += 1


async def _to_the_end(act: Coroutine[Any, Any, None]) -> None:
    """Finish `act` even if cancelled, since it must leave its server running."""
    task = asyncio.create_task(act)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


@asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[None]:
    """Start everything, with one address before all APIs, and kill it in the end."""
    async with Balancer(cluster.balancer_port, list(cluster.ports.values())):
        try:
            await cluster.office.open()
            await asyncio.to_thread(cluster.start_all)
            async with asyncio.TaskGroup() as group:
                supervisor = group.create_task(_supervise(cluster))
                yield
                supervisor.cancel()
        finally:
            await asyncio.to_thread(cluster.kill_all)
            await cluster.office.close()


async def _supervise(cluster: Cluster) -> None:
    while True:
        await asyncio.sleep(0.1)
        await _to_the_end(asyncio.to_thread(cluster.mend))
