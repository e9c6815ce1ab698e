"""What processes tell each other: LISTEN/NOTIFY, with a look at the database now and then in case nobody did.

A notification is sent after the commit it speaks of, in a transaction of its own that waits for no disk: inside the
commit it would make all commits queue up behind one lock. Should a process die in between, the others find out when
they look by themselves.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

import asyncpg
import msgspec
import structlog
from asyncpg import Record
from msgspec import Struct

from lucius.adapters.postgres.clock import DatabaseClock
from lucius.adapters.postgres.company import Company
from lucius.adapters.postgres.database import Database
from lucius.adapters.postgres.news import News
from lucius.adapters.postgres.texts import quoted
from lucius.core.decision import Decision
from lucius.core.model import OutboxRow
from lucius.ports.errors import LedgerBusy, LedgerCorrupt, LedgerDown, LedgerError
from lucius.ports.peers import ANY_LANE, Wake

log = structlog.get_logger(__name__)

POLL_SECONDS = 2.0
HELLO_SECONDS = 60.0
ECHO_SECONDS = 10.0
"""Within which we hear our own hello, or the line that we listen on is dead."""
LAST_WORDS_SECONDS = 1.0
FIRST_BACKOFF, MAX_BACKOFF = 0.05, 5.0

NOTHING = Wake()
SWEEPS = " sweeps"

_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"
# All who listen, ourselves among them, and those of them who mind the deadlines. Whoever comes later says so.
_LISTENERS = """
    SELECT count(*) AS n, count(*) FILTER (WHERE application_name = $2) AS sweepers FROM pg_stat_activity
    WHERE application_name IN ($1, $2) AND datname = current_database()
"""
_NEEDS = "SELECT max(compatible_with) AS needs FROM schema_version"
_POLL = f"SELECT now, revision, services, ({_NEEDS}) AS needs FROM poll_2($1)"


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
        self.company = Company(clock.steady)
        self._news = News()
        self._revision = 0
        self._said_hello = self._heard_hello = self._counted = 0.0
        self._said_sweeps = self._named = False
        self._put_back_again: dict[str, float] = {}
        self._listener: asyncpg.Connection[Record] | None = None
        self._listens = asyncio.Event()
        self._naming = asyncio.Lock()
        self._speaking: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._poll())]
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._listens.wait()

    async def close(self) -> None:
        if self._speaking is not None:
            await asyncio.wait({self._speaking}, timeout=LAST_WORDS_SECONDS)
            self._tasks.append(self._speaking)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def tell(self, decisions: Iterable[Decision], held: Callable[[OutboxRow], bool]) -> None:
        """The others, of what became durable here."""
        if not self.company.alone():
            for decision in decisions:
                self._news.note(decision, held)
            self._speak()

    def tell_ready(self, ready: Iterable[tuple[str, int]]) -> None:
        if not self.company.alone():
            self._news.note_ready(ready)
            self._speak()

    def tell_put_back(self, ready: Iterable[tuple[str, int]]) -> None:
        """No more often than everybody looks by himself: what nobody can hand over would go round in a circle."""
        now = self._clock.steady()
        news = [(service, lane) for service, lane in ready if now >= self._put_back_again.get(service, now)]
        if news:
            self._put_back_again |= {service: now + POLL_SECONDS for service, _ in news}
            self.tell_ready(news)

    def tell_letters(self, letter_ids: Collection[str]) -> None:
        if not self.company.alone():
            self._news.note_told(letter_ids)
            self._speak()

    def tell_revision(self, revision: int) -> None:
        self._revision = revision
        self._speak()

    def _speak(self) -> None:
        if self._speaking is None or self._speaking.done():
            self._speaking = asyncio.create_task(self._say_all())

    async def _say_all(self) -> None:
        """What comes up while one notification is on its way goes into the next."""
        while self._news or self._revision:
            note = self._note(self._news.take())
            self._revision = 0
            try:
                await self._say(note)
            except (LedgerDown, LedgerBusy) as error:
                log.info("could not tell the other processes, will try again", reason=str(error))
                self._news.put_back(note.wake)
                self._revision = max(self._revision, note.revision)
                await asyncio.sleep(POLL_SECONDS / 4)
            except LedgerError as error:
                log.error("could not tell the other processes, they will look by themselves", reason=str(error))

    def _note(self, wake: Wake) -> _Note:
        return _Note(self._me, wake, self._revision, self.company.sweeps)

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
            with self._database.in_words():
                await connection.add_listener(self._channel, self._heard)
            self._listener = connection
            self._on_gap()  # whatever was said while nobody listened
            await self._greet()
            self._listens.set()
            await ended.wait()
        finally:
            self._listener, self._named = None, False
            self.company.hear_nobody()
            connection.terminate()

    def _heard(self, connection: object, pid: int, channel: str, payload: object) -> None:
        try:
            note = _decode(str(payload))
        except msgspec.DecodeError:
            return  # of a version to come, or somebody else's: we will look by ourselves
        if note.sender == self._me:
            self._heard_hello = self._clock.steady()
            return
        if self.company.alone():
            self._on_gap()  # from now on what we keep to ourselves would be missed
        self.company.meet(note.sender, note.sweeps)
        if note.revision:
            self._on_revision(note.revision)
        self._on_wake(note.wake)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS * self.company.stretch() * random.uniform(0.75, 1.25))
            try:
                await self.look()
                self._leave_a_dead_line()
                await self._keep_company()
            except LedgerError as error:
                log.info("could not look at the ledger", reason=str(error))
            except Exception:
                log.exception("looking at the ledger failed")

    async def look(self) -> None:
        asked = self._clock.steady()
        try:
            row = await self._database.row(_POLL, self.company.serves())
        except LedgerCorrupt:  # what we look with may be gone because nobody needs it any more
            found = await self._database.row(_NEEDS)
            self._database.needs((found and found["needs"]) or 0)
            raise
        assert row is not None
        self._database.needs(row["needs"] or 0)
        self._clock.heard(row["now"], asked, self._clock.steady())
        self._on_revision(row["revision"])
        if row["services"]:
            ready = tuple((service, ANY_LANE) for service in row["services"])
            self._on_wake(Wake(ready=ready))
            self.tell_ready(ready)

    def _leave_a_dead_line(self) -> None:
        """A firewall that has forgotten a connection says nothing."""
        unheard = self._heard_hello < self._said_hello < self._clock.steady() - ECHO_SECONDS
        if unheard and self._listener is not None:
            log.warning("the line to the other processes is dead, taking another")
            self._listener.terminate()

    async def _keep_company(self) -> None:
        """Each hello wakes all others: the more there are, the more seldom they say it."""
        now, is_news = self._clock.steady(), self.company.sweeps and not self._said_sweeps
        if is_news or now - self._said_hello > HELLO_SECONDS * self.company.stretch():
            await self._greet()
        elif now - self._counted > HELLO_SECONDS:
            await self._count()

    async def _greet(self) -> None:
        """So that the others know that there is somebody to tell, and we whether we hear them."""
        self._said_hello = self._clock.steady()
        self._said_sweeps = self.company.sweeps
        await self._say(self._note(NOTHING))
        await self._count()
        await self._name_the_line()

    async def _count(self) -> None:
        self._counted = asked = self._clock.steady()
        there = (await self._database.rows(_LISTENERS, self._channel, self._channel + SWEEPS))[0]
        others, sweepers = there["n"] - 1, there["sweepers"] - self._named
        if self._listener is not None and self.company.counted(others, sweepers, asked):
            self._on_gap()  # what we remember may be from the time when somebody was there

    async def _name_the_line(self) -> None:
        """It shows the others, when they count, that we mind the deadlines."""
        async with self._naming:
            line = self._listener
            if line is None or self._named or not self.company.sweeps:
                return
            try:
                with self._database.in_words():
                    name = quoted(self._channel + SWEEPS)
                    await line.execute(f"SET application_name = {name}", timeout=ECHO_SECONDS)
            except LedgerError:
                line.terminate()
                raise
            self._named = True
