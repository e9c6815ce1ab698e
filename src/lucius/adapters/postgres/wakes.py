"""What processes tell each other: LISTEN/NOTIFY, with a look at the database now and then in case nobody did.

A notification is sent after the commit it speaks of, in a transaction of its own that waits for no disk: inside the
commit it would make all commits queue up behind one lock. Should a process die in between, the others find out when
they look by themselves.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import suppress

import asyncpg
import msgspec
import structlog
from asyncpg import Record
from msgspec import Struct

from lucius.adapters.postgres.clock import DatabaseClock
from lucius.adapters.postgres.database import Database
from lucius.core.decision import Decision
from lucius.core.model import Instant, OutboxRow, OutboxStatus
from lucius.ports.errors import LedgerError
from lucius.ports.peers import ANY_LANE, Wake

log = structlog.get_logger(__name__)

POLL_SECONDS = 2.0
LOOKERS = 4
MOST_STRETCH, MOST_SWEEPERS_STRETCH = 8.0, 4.0
HELLO_SECONDS = 60.0
ALONE_AFTER_SECONDS = 150.0
FIRST_BACKOFF, MAX_BACKOFF = 0.05, 5.0
MAX_IDS = 100
MAX_LANES = 40
MOST_UNSAID = 10_000
"""A notification holds 8,000 bytes. More jobs go into the next one; of many lanes only the services are named."""
NEAR_MS = 2_500
UNACKED = "unacked/"

_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"
# Whoever comes later says so.
_COMPANY = "SELECT count(*) AS others FROM pg_stat_activity WHERE application_name = $1"
_POLL = "SELECT now, revision, services FROM poll_1()"


NOTHING = Wake()


class _Note(Struct, omit_defaults=True):
    """On the wire: who says it, and what."""

    sender: int
    wake: Wake = NOTHING
    revision: int = 0
    sweeps: bool = False


_decode = msgspec.json.Decoder(_Note).decode
_encode = msgspec.json.Encoder().encode


class Wakes:
    def __init__(
        self,
        database: Database,
        clock: DatabaseClock,
        me: int,
        *,
        on_wake: Callable[[Wake], None],
        on_gap: Callable[[], None],
        on_revision: Callable[[int], None],
    ) -> None:
        self._database = database
        self._clock = clock
        self._me = me
        self._on_wake = on_wake
        self._on_gap = on_gap
        self._on_revision = on_revision
        self._channel = f"lucius_{database.schema}"
        self._company_until = 0.0
        self._company: dict[int, float] = {}
        self._sweepers: dict[int, float] = {}
        self._sweeps = False
        self._said_hello = 0.0
        self._ready: dict[tuple[str, int], None] = {}
        self._picked_up: dict[str, None] = {}
        self._changed: dict[str, bool] = {}
        self._due: Instant | None = None
        self._revision = 0
        self._listens = asyncio.Event()
        self._speaking: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        if (await self._database.rows(_COMPANY, self._channel))[0]["others"]:
            self._company_until = self._clock.steady() + ALONE_AFTER_SECONDS
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._poll())]
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._listens.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._speaking is not None:
            await asyncio.gather(self._speaking, return_exceptions=True)

    def alone(self) -> bool:
        return self._clock.steady() > self._company_until

    def tell(self, decisions: Iterable[Decision], held: Callable[[OutboxRow], bool]) -> None:
        """The others, of what became durable here; rows that we hold are nobody else's business."""
        if self.alone():
            return
        for decision in decisions:
            self._note(decision, held)
        self._speak()

    def tell_wake(self, wake: Wake) -> None:
        if not self.alone():
            self._ready |= dict.fromkeys(wake.ready)
            self._speak()

    def tell_revision(self, revision: int) -> None:
        self._revision = revision
        self._speak()

    def _note(self, decision: Decision, held: Callable[[OutboxRow], bool]) -> None:
        job = decision.job
        self._changed[job.job_id] = not job.live
        for row in decision.outbox:
            if row.status is OutboxStatus.PENDING and row.next_attempt_at is None and not held(row):
                self._ready[row.service, row.lane] = None
        for counter, move in decision.counters.items():
            if move < 0 and counter.startswith(UNACKED):
                self._picked_up[counter.removeprefix(UNACKED)] = None
        if job.due_at is not None and job.due_at - job.updated_at <= NEAR_MS:
            self._due = job.due_at if self._due is None else min(self._due, job.due_at)

    def _speak(self) -> None:
        if self._speaking is None or self._speaking.done():
            self._speaking = asyncio.create_task(self._say_all())

    async def _say_all(self) -> None:
        """What comes up while one notification is on its way goes into the next."""
        while self._changed or self._ready or self._revision:
            ids = [self._changed.popitem() for _ in range(min(len(self._changed), MAX_IDS))]
            services = {service: None for service, _ in self._ready}
            wake = Wake(
                ready=tuple(self._ready if len(self._ready) <= MAX_LANES else ((name, ANY_LANE) for name in services)),
                picked_up=tuple(self._picked_up),
                changed=tuple(job_id for job_id, ended in ids if not ended),
                ended=tuple(job_id for job_id, ended in ids if ended),
                due=self._due,
            )
            note = self._greeting(wake)
            self._ready, self._picked_up, self._due, self._revision = {}, {}, None, 0
            try:
                await self._say(note)
            except LedgerError as error:
                log.info("could not tell the other processes, they will look by themselves", reason=str(error))
                self._keep(note, dict(ids))
                await asyncio.sleep(POLL_SECONDS / 4)

    def _keep(self, note: _Note, ids: dict[str, bool]) -> None:
        """To be said when somebody can hear it; not more than a memory can bear."""
        if len(self._changed) < MOST_UNSAID:
            self._changed = {**ids, **self._changed}
        self._ready |= dict.fromkeys(note.wake.ready)
        self._picked_up |= dict.fromkeys(note.wake.picked_up)
        self._revision = max(self._revision, note.revision)

    def _greeting(self, wake: Wake = NOTHING) -> _Note:
        return _Note(self._me, wake, self._revision, self._sweeps)

    async def _say(self, note: _Note) -> None:
        async with self._database.connection() as connection:
            await connection.execute(_NOTIFY, self._channel, _encode(note).decode())

    async def _listen(self) -> None:
        """On a connection of its own, for as long as it lasts; then on the next."""
        backoff = FIRST_BACKOFF
        while True:
            try:
                await self._listen_on(await self._database.connect(application_name=self._channel))
                backoff = FIRST_BACKOFF
            except LedgerError as error:
                log.warning("can't listen to the other processes", reason=str(error))
            except Exception:
                log.exception("listening to the other processes failed")
            await asyncio.sleep(random.uniform(0.5, 1) * backoff)
            backoff = min(backoff * 2, MAX_BACKOFF)

    async def _listen_on(self, connection: "asyncpg.Connection[Record]") -> None:
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        try:
            await connection.add_listener(self._channel, self._heard)
            self._on_gap()  # whatever was said while nobody listened
            await self._say(self._greeting())
            self._listens.set()
            await ended.wait()
        finally:
            connection.terminate()

    def _heard(self, connection: object, pid: int, channel: str, payload: object) -> None:
        try:
            note = _decode(str(payload))
        except msgspec.DecodeError:
            return  # of a version to come, or somebody else's: we will look by ourselves
        if note.sender == self._me:
            return
        self._meet(note.sender, note.sweeps)
        if note.revision:
            self._on_revision(note.revision)
        self._on_wake(note.wake)

    def _meet(self, sender: int, sweeps: bool) -> None:
        now = self._clock.steady()
        if self.alone():
            self._on_gap()  # from now on what we keep to ourselves would be missed
        self._company_until = now + ALONE_AFTER_SECONDS
        self._company[sender] = now
        if sweeps:
            self._sweepers[sender] = now

    def stretch(self) -> float:
        """Together they look twice a second, however many they are: what one finds, it tells the others."""
        return min(self._shared_by(self._company), MOST_STRETCH)

    def sweepers_stretch(self) -> float:
        """The same of those who mind the deadlines. Whoever asks is one of them."""
        self._sweeps = True
        return min(self._shared_by(self._sweepers), MOST_SWEEPERS_STRETCH)

    def _shared_by(self, seen: dict[int, float]) -> float:
        oldest = self._clock.steady() - ALONE_AFTER_SECONDS
        for sender in [sender for sender, at in seen.items() if at < oldest]:
            del seen[sender]
        return max(1.0, (len(seen) + 1) / LOOKERS)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS * self.stretch() * random.uniform(0.75, 1.25))
            try:
                await self.look()
                await self._greet()
            except LedgerError as error:
                log.info("could not look at the ledger", reason=str(error))
            except Exception:
                log.exception("looking at the ledger failed")

    async def look(self) -> None:
        asked = self._clock.steady()
        row = await self._database.row(_POLL)
        assert row is not None
        self._clock.heard(row["now"], asked, self._clock.steady())
        self._on_revision(row["revision"])
        if row["services"]:
            wake = Wake(ready=tuple((service, ANY_LANE) for service in row["services"]))
            self._on_wake(wake)
            self.tell_wake(wake)

    async def _greet(self) -> None:
        """So that the others know that there is somebody to tell."""
        now = self._clock.steady()
        if now - self._said_hello > HELLO_SECONDS:
            self._said_hello = now
            await self._say(self._greeting())
