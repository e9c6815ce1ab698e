"""Notifications between replicas by LISTEN/NOTIFY, with regular polling in case one is lost.

A notification is sent after the commit it announces, in a transaction of its own with `synchronous_commit` off: inside
the commit, NOTIFY would serialise all commits behind one lock. If a replica dies in between, the others find the change
by polling.
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

from lucius.adapters.ledger.postgres.clock import DatabaseClock
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.notify_buffer import NotifyBuffer
from lucius.adapters.ledger.postgres.peer_registry import PeerRegistry
from lucius.adapters.ledger.postgres.text_encoding import quote_identifier
from lucius.adapters.ledger.sql_files import load_statements
from lucius.backoff import Backoff
from lucius.core.model.decision import Decision
from lucius.core.model.records import OutboxRow
from lucius.ports.errors import LedgerBusy, LedgerCorrupt, LedgerDown, LedgerError
from lucius.ports.peers import ANY_LANE, Wake

log = structlog.get_logger(__name__)

POLL_SECONDS = 2.0
HEARTBEAT_SECONDS = 60.0
ECHO_TIMEOUT_SECONDS = 10.0
"""Within this time a replica receives its own heartbeat, or its listening connection is dead."""
CLOSE_TIMEOUT_SECONDS = 1.0
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.05, 5.0

EMPTY_WAKE = Wake()
SWEEPER_SUFFIX = " sweeps"

_SQL = load_statements(__package__, "notify")
_NOTIFY = _SQL["notify"]
_LISTENERS = _SQL["listeners"]
_NEEDS = _SQL["needs"]
_POLL = _SQL["poll"]


class Payload(Struct, omit_defaults=True):
    """NOTIFY payload: the sender and its changes."""

    sender: int
    wake: Wake = EMPTY_WAKE
    revision: int = 0
    sweeps: bool = False


_decode = msgspec.json.Decoder(Payload).decode
_encode = msgspec.json.Encoder().encode


class PeerNotifier:
    """Publishes this replica's commits to its peers and receives theirs.

    `on_gap` is called when notifications may have been missed, or when cached state may rest on having had no peers.
    """

    def __init__(
        self,
        database: Database,
        clock: DatabaseClock,
        replica_id: int,
        peers: PeerRegistry,
        *,
        on_wake: Callable[[Wake], None],
        on_gap: Callable[[], None],
        on_revision: Callable[[int], None],
    ) -> None:
        self._database = database
        self._clock = clock
        self._replica_id = replica_id
        self._on_wake = on_wake
        self._on_gap = on_gap
        self._on_revision = on_revision
        self.channel = f"lucius_{database.schema}"
        self.peers = peers
        self._buffer = NotifyBuffer()
        self._revision = 0
        self._heartbeat_sent_at = self._echo_received_at = self._counted_at = 0.0
        self._announced_sweeper = self._is_labelled = False
        self._next_release_at: dict[str, float] = {}
        self.listener: asyncpg.Connection[Record] | None = None
        self._listening = asyncio.Event()
        self._label_lock = asyncio.Lock()
        self._sending: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def has_unsent(self) -> bool:
        """True if announcements wait to be sent."""
        return bool(self._buffer) or bool(self._revision)

    @property
    def hears_itself(self) -> bool:
        """True if the last heartbeat has come back: the listener works."""
        return self._echo_received_at >= self._heartbeat_sent_at

    async def start(self) -> None:
        """Start listening and polling; return when the listener is ready, or after POLL_SECONDS."""
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._poll_loop())]
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._listening.wait()

    async def close(self) -> None:
        """Stop, after at most CLOSE_TIMEOUT_SECONDS for notifications that are being sent."""
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=CLOSE_TIMEOUT_SECONDS)
            self._tasks.append(self._sending)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def publish(self, decisions: Iterable[Decision], held: Callable[[OutboxRow], bool]) -> None:
        """Announce committed decisions to the peers, if there are any."""
        if not self.peers.is_alone():
            for decision in decisions:
                self._buffer.add_decision(decision, held)
            self._start_sending()

    def publish_ready(self, ready: Iterable[tuple[str, int]]) -> None:
        """Announce (service, lane) pairs that have ready outbox rows."""
        if not self.peers.is_alone():
            self._buffer.add_ready(ready)
            self._start_sending()

    def publish_released(self, ready: Iterable[tuple[str, int]]) -> None:
        """Announce rows that this replica gave back, at most once per POLL_SECONDS and service.

        Rows that no replica can hand over would otherwise pass between replicas in a loop.
        """
        now = self._clock.steady()
        due = [(service, lane) for service, lane in ready if now >= self._next_release_at.get(service, now)]
        if due:
            self._next_release_at |= {service: now + POLL_SECONDS for service, _ in due}
            self.publish_ready(due)

    def publish_inbox_ids(self, message_ids: Collection[str]) -> None:
        """Announce inbox messages to the peers."""
        if not self.peers.is_alone():
            self._buffer.add_inbox_ids(message_ids)
            self._start_sending()

    def publish_revision(self, revision: int) -> None:
        """Announce a new revision of the protocols."""
        self._revision = revision
        self._start_sending()

    def _start_sending(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_buffered())

    async def _send_buffered(self) -> None:
        """Send notifications until the buffer is empty; changes made meanwhile go into the next one."""
        while self._buffer or self._revision:
            payload = self._build_payload(self._buffer.take())
            self._revision = 0
            try:
                await self.send(payload)
            except (LedgerDown, LedgerBusy) as error:
                log.info("could not notify the other replicas, will retry", reason=str(error))
                self._buffer.restore(payload.wake)
                self._revision = max(self._revision, payload.revision)
                await asyncio.sleep(POLL_SECONDS / 4)
            except LedgerError as error:
                log.error("could not notify the other replicas, they will poll", reason=str(error))

    def _build_payload(self, wake: Wake) -> Payload:
        return Payload(self._replica_id, wake, self._revision, self.peers.is_sweeper)

    async def send(self, payload: Payload) -> None:
        async with self._database.connection() as connection:
            await connection.execute(_NOTIFY, self.channel, _encode(payload).decode())

    async def _listen(self) -> None:
        """Listen on a dedicated connection and reconnect with backoff when it ends."""
        backoff = Backoff(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while True:
            try:
                await self._listen_on(await self._database.connect(application_name=self.channel))
                backoff.went_well()
            except LedgerError as error:
                log.warning("cannot listen for notifications of the other replicas", reason=str(error))
            except Exception:
                log.exception("listening for notifications failed")
            await asyncio.sleep(backoff.pause())

    async def _listen_on(self, connection: "asyncpg.Connection[Record]") -> None:
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        try:
            with self._database.translate_errors():
                await connection.add_listener(self.channel, self._on_notification)
            self.listener = connection
            self._on_gap()  # notifications sent before this connection listened were missed
            await self.send_heartbeat()
            self._listening.set()
            await ended.wait()
        finally:
            self.listener, self._is_labelled = None, False
            self.peers.mark_disconnected()
            connection.terminate()

    def _on_notification(self, connection: object, pid: int, channel: str, text: object) -> None:
        try:
            payload = _decode(str(text))
        except msgspec.DecodeError:
            return  # from a newer version or a foreign sender; polling finds what it announces
        if payload.sender == self._replica_id:
            self._echo_received_at = self._clock.steady()
            return
        if self.peers.is_alone():
            self._on_gap()  # rows kept in memory only while alone must now be visible to the peer
        self.peers.record_peer(payload.sender, payload.sweeps)
        if payload.revision:
            self._on_revision(payload.revision)
        self._on_wake(payload.wake)

    async def _poll_loop(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS * self.peers.poll_backoff() * random.uniform(0.75, 1.25))
            try:
                await self.poll()
                self.drop_dead_listener()
                await self._refresh_peers()
            except LedgerError as error:
                log.info("could not poll the ledger", reason=str(error))
            except Exception:
                log.exception("polling the ledger failed")

    async def poll(self) -> None:
        """Read the database's time, the protocol revision, the required version and services with ready rows."""
        asked_at = self._clock.steady()
        try:
            row = await self._database.fetch_row(_POLL, self.peers.accepts_callbacks())
        except LedgerCorrupt:  # a migration that excludes this version may have dropped the poll function
            found = await self._database.fetch_row(_NEEDS)
            self._database.require_version((found and found["needs"]) or 0)
            raise
        assert row is not None
        self._database.require_version(row["needs"] or 0)
        self._clock.add_sample(row["now"], asked_at, self._clock.steady())
        self._on_revision(row["revision"])
        if row["services"]:
            ready = tuple((service, ANY_LANE) for service in row["services"])
            self._on_wake(Wake(ready=ready))
            self.publish_ready(ready)

    def drop_dead_listener(self) -> None:
        """Terminate a listener that did not receive its own heartbeat: firewalls drop idle connections silently."""
        is_dead = self._echo_received_at < self._heartbeat_sent_at < self._clock.steady() - ECHO_TIMEOUT_SECONDS
        if is_dead and self.listener is not None:
            log.warning("the listening connection is dead, opening another")
            self.listener.terminate()

    async def _refresh_peers(self) -> None:
        """Send a heartbeat or count the peers when it is time.

        A heartbeat wakes all peers, so replicas send fewer the more of them there are.
        """
        now, is_new_sweeper = self._clock.steady(), self.peers.is_sweeper and not self._announced_sweeper
        if is_new_sweeper or now - self._heartbeat_sent_at > HEARTBEAT_SECONDS * self.peers.poll_backoff():
            await self.send_heartbeat()
        elif now - self._counted_at > HEARTBEAT_SECONDS:
            await self.count_peers()

    async def send_heartbeat(self) -> None:
        """Announce this replica to its peers; its own echo shows that the listener works."""
        self._heartbeat_sent_at = self._clock.steady()
        self._announced_sweeper = self.peers.is_sweeper
        await self.send(self._build_payload(EMPTY_WAKE))
        await self.count_peers()
        await self._label_listener()

    async def count_peers(self) -> None:
        """Count the listening connections."""
        self._counted_at = queried_at = self._clock.steady()
        listeners = (await self._database.fetch_rows(_LISTENERS, self.channel, self.channel + SWEEPER_SUFFIX))[0]
        others, sweepers = listeners["n"] - 1, listeners["sweepers"] - self._is_labelled
        if self.listener is not None and self.peers.record_count(others, sweepers, queried_at):
            self._on_gap()  # cached state may date from the time when there were peers

    async def _label_listener(self) -> None:
        """Mark the listening connection as a sweeper's, for peers that count connections."""
        async with self._label_lock:
            listener = self.listener
            if listener is None or self._is_labelled or not self.peers.is_sweeper:
                return
            try:
                with self._database.translate_errors():
                    name = quote_identifier(self.channel + SWEEPER_SUFFIX)
                    await listener.execute(f"SET application_name = {name}", timeout=ECHO_TIMEOUT_SECONDS)
            except LedgerError:
                listener.terminate()
                raise
            self._is_labelled = True
