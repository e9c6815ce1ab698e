"""Every protocol with its life: what files say and what came over HTTP, kept in one store.

A file in a protocol folder is a published version. Once its number is recorded, other content under that number is
refused and what was published stays in force: after a restart, and when the file is gone. To take a version out of
use, deprecate it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace

from lucius.contract_protocols import DeprecateRequest, ProtocolFinding, PublishRequest
from lucius.core.check import Finding
from lucius.core.protocol import Protocol, digest
from lucius.ports.clock import Clock
from lucius.ports.errors import LedgerDown, LedgerError, ProtocolError, VersionConflict
from lucius.ports.protocols import Mark, ProtocolSource, ProtocolStore, ProtocolVersion, VersionStatus
from lucius.service import lifecycle
from lucius.service.errors import RejectCode, Rejected
from lucius.service.protocol_documents import Check, finding, read_document, require_sound
from lucius.service.protocol_index import Index

log = structlog.get_logger(__name__)

FILES = "protocol files"  # who published what a file says
MAX_CONFLICTS = 20
UNREAD = -1

Key = tuple[str, int]
T = TypeVar("T")


class _Stock(Struct, frozen=True):
    """What serves, what the files add that is not recorded yet, and what of them is refused."""

    index: Index
    fresh: dict[Key, ProtocolVersion]
    refused: tuple[ProtocolError, ...]


class Catalog:
    """Answers commands from memory; `refresh` looks at files and store. Acts are durable when they return."""

    def __init__(self, files: ProtocolSource, store: ProtocolStore, clock: Clock, check: Check) -> None:
        self._files = files
        self._store = store
        self._clock = clock
        self._check = check
        self._turn = asyncio.Lock()
        self._checks = asyncio.Lock()
        self._revision = UNREAD
        self._kept: dict[Key, ProtocolVersion] = {}
        self._recorded = False
        self._stock = self._take_stock()

    # What commands need

    def resolve(self, request_type: str, version: int | None = None) -> Protocol | None:
        """The protocol that serves new commands of a request type or alias: that version, or the newest."""
        return self._stock.index.resolve(request_type, version)

    def retired(self, request_type: str, version: int | None = None) -> ProtocolVersion | None:
        """The deprecated version that would have served."""
        return self._stock.index.retired(request_type, version)

    def successor(self, version: ProtocolVersion) -> Protocol | None:
        """What to use instead of a deprecated version."""
        return self._stock.index.successor(version)

    def request_type(self, name: str) -> str | None:
        """The request type behind a name: itself, or what it is an alias of."""
        return self._stock.index.request_type(name)

    def list(self) -> tuple[Protocol, ...]:
        """Every version that serves new commands, by request type, oldest version first."""
        return self._stock.index.list()

    def problems(self) -> tuple[ProtocolError, ...]:
        """Files that were refused."""
        return (*self._files.problems(), *self._stock.refused)

    # Files, and other processes

    async def refresh(self) -> bool:
        """Take over what changed in the files or was changed elsewhere; True if anything did."""
        async with self._turn:
            changed = self._files.refresh()
            changed |= await self._catch_up()
            if changed or self._stock.fresh:
                await self._record(loud=changed)
            return changed

    async def _catch_up(self, *, surely: bool = False) -> bool:
        """The revision may be the last that this process has heard of; who was refused knows that there is another."""
        if not surely and await self._store.protocol_revision() == self._revision:
            return False
        read = await self._store.protocol_versions()
        before = self._kept
        self._kept = {version.key: _same(before.get(version.key), version) for version in read.versions}
        self._revision = read.revision
        self._stock = self._take_stock()
        return True

    async def _record(self, *, loud: bool) -> None:
        """Make durable what the files add; only then does it serve."""
        try:
            await self._put_fresh()
            self._recorded = True
        except LedgerError as error:
            self._recorded = False
            if loud:
                say = log.warning if isinstance(error, LedgerDown) else log.error
                say("protocol files are not recorded yet", reason=str(error))
        self._stock = self._take_stock()

    async def _put_fresh(self) -> None:
        for _ in range(MAX_CONFLICTS):
            fresh = {key: self._with_file(version) for key, version in self._take_stock().fresh.items()}
            if not fresh:
                return
            try:
                self._revision = await self._store.put_protocols(tuple(fresh.values()), self._revision)
            except VersionConflict:
                await self._catch_up(surely=True)
                continue
            self._kept |= fresh
            return
        raise VersionConflict("the protocols are changing too fast")

    def _take_stock(self) -> _Stock:
        trial = Index(self._kept.values())
        fresh: dict[Key, ProtocolVersion] = {}
        refused: list[ProtocolError] = []
        for protocol in self._files.list():
            found = self._judge(trial, protocol)
            if isinstance(found, str):
                file, line = self._files.place(protocol)
                refused.append(ProtocolError(found, file=file, line=line))
            elif found is not None:
                fresh[found.key] = found
                trial.add(found)
        # On a full disk a command must be refused for that, and not for an unknown request type.
        return _Stock(Index(self._kept.values()) if self._recorded else trial, fresh, tuple(refused))

    def _judge(self, index: Index, protocol: Protocol) -> ProtocolVersion | str | None:
        """What a file adds, or why it is refused; None if it says what is kept. A draft makes way for it."""
        known = self._kept.get((protocol.request_type, protocol.version))
        address = digest(protocol)
        if known is not None and known.status is not VersionStatus.DRAFT:
            what = f"version {protocol.version} of {protocol.request_type}"
            other = f"{what} was published with other content, which stays in force; use a higher version"
            return None if known.digest == address else other
        if clash := index.clash(protocol):
            return clash[1]
        mark = Mark(FILES, self._clock.now())
        status = VersionStatus.PUBLISHED
        created = known.created if known else mark
        return ProtocolVersion(protocol=protocol, digest=address, status=status, created=created, published=mark)

    def _with_file(self, version: ProtocolVersion) -> ProtocolVersion:
        return replace(version, file=self._files.place(version.protocol)[0])

    # What people look at

    async def everything(self) -> Sequence[ProtocolVersion]:
        """Every version in every state, by request type, oldest version first."""
        async with self._turn:
            await self._catch_up()
            return [version for _, version in sorted(({**self._kept, **self._stock.fresh}).items())]

    async def versions(self, name: str) -> Sequence[ProtocolVersion]:
        """All versions of a request type or alias. Raises Rejected (NOT_FOUND) if there are none."""
        found = await self.everything()
        for kind in (name, self.request_type(name)):  # a draft's request type may be an alias of another
            if versions := [version for version in found if version.protocol.request_type == kind]:
                return versions
        raise Rejected(RejectCode.NOT_FOUND, f"there is no protocol {name[:128]!r}")

    async def version(self, name: str, number: int | None = None) -> ProtocolVersion:
        """That version; without a number the one that serves, or the newest that did."""
        async with self._turn:
            await self._catch_up()
            return self._required(name, number)

    async def validate(self, document: Any) -> Sequence[ProtocolFinding]:
        """All that would be said about a document if it were published now."""
        try:
            protocol = read_document(document)
        except Rejected as refused:
            return [ProtocolFinding(fault.pointer, fault.message, True) for fault in refused.faults]
        said = await self._said(protocol)
        async with self._turn:
            await self._catch_up()
            return self._findings(protocol, said)

    async def _said(self, protocol: Protocol) -> Sequence[Finding]:
        """Beside the event loop, and one after the other: a large document is much to read."""
        async with self._checks:
            return await asyncio.to_thread(lambda: tuple(self._check(protocol)))

    def _findings(self, protocol: Protocol, checked: Sequence[Finding]) -> Sequence[ProtocolFinding]:
        found = [finding(said.path, said.reason, fatal=said.fatal) for said in checked]
        if clash := self._stock.index.clash(protocol):
            found.append(finding(*clash))
        known = self._kept.get((protocol.request_type, protocol.version))
        if known and known.status is not VersionStatus.DRAFT and known.digest != digest(protocol):
            found.append(finding(("version",), f"{lifecycle.named(known)} is published with other content"))
        return found

    # What people do

    async def draft(self, document: Any, who: str) -> tuple[ProtocolVersion, bool, Sequence[ProtocolFinding]]:
        """Keep a document as a draft; whether it is new, and what would stand in the way of publishing it."""
        protocol = read_document(document)
        key = protocol.request_type, protocol.version

        async def act() -> tuple[ProtocolVersion, bool]:
            before = self._kept.get(key)
            mark = Mark(who, self._clock.now())
            return await self._put(lifecycle.drafted(before, protocol, mark)), before is None

        version, is_new = await self._change(act)
        return version, is_new, self._findings(protocol, await self._said(protocol))

    async def publish(self, name: str, number: int, asked: PublishRequest, who: str) -> ProtocolVersion:
        """From now on it serves new commands and never changes."""

        async def act() -> ProtocolVersion:
            mark = Mark(who, self._clock.now(), asked.reason or "")
            version = lifecycle.published(self._required(name, number), mark, asked.digest)
            require_sound(self._findings(version.protocol, await self._said(version.protocol)))
            return await self._put(version)

        return await self._change(act)

    async def deprecate(self, name: str, number: int, asked: DeprecateRequest, who: str) -> ProtocolVersion:
        """From now on new commands are refused with its successor named. Running jobs go on."""

        async def act() -> ProtocolVersion:
            mark = Mark(who, self._clock.now(), asked.reason)
            version = self._required(name, number)
            return await self._put(lifecycle.deprecated(version, mark, self._stock.index, asked.successor))

        return await self._change(act)

    async def delete(self, name: str, number: int, who: str) -> ProtocolVersion:
        """Forget a draft; answers with what it was."""

        async def act() -> ProtocolVersion:
            draft = self._required(name, number)
            lifecycle.require_draft(draft, "deleted")
            self._revision = await self._store.delete_protocol(*draft.key, self._revision)
            del self._kept[draft.key]
            log.info("protocol draft deleted", request_type=draft.key[0], version=number, by=who)
            return draft

        return await self._change(act)

    async def _change(self, act: Callable[[], Awaitable[T]]) -> T:
        """Decide on what is kept now; again if somebody else was faster. Raises Rejected."""
        async with self._turn:
            await self._catch_up()
            for _ in range(MAX_CONFLICTS):
                try:
                    return await act()
                except VersionConflict:
                    await self._catch_up(surely=True)
        message = "the protocols are changing too fast; try again"
        raise Rejected(RejectCode.LEDGER_CONTENDED, message, retry_after_seconds=1)

    async def _put(self, version: ProtocolVersion) -> ProtocolVersion:
        self._revision = await self._store.put_protocols((version,), self._revision)
        self._kept[version.key] = version
        self._stock = self._take_stock()
        mark = version.deprecated or version.published or version.changed or version.created
        request_type, number = version.key
        log.info(
            "protocol " + version.status.lower(), request_type=request_type, version=number, by=mark.by, why=mark.reason
        )
        return version

    def _required(self, name: str, number: int | None) -> ProtocolVersion:
        everything = {**self._kept, **self._stock.fresh}
        if number is None:
            serving, retired = self.resolve(name), self.retired(name)
            found = everything[serving.request_type, serving.version] if serving else retired
        else:
            found = everything.get((name, number)) or everything.get((self.request_type(name) or name, number))
        if found is None:
            which = f"has no version {number}" if number else "serves no commands"
            raise Rejected(RejectCode.NOT_FOUND, f"{name[:128]!r} {which}")
        return found


def _same(before: ProtocolVersion | None, now: ProtocolVersion) -> ProtocolVersion:
    """With the same protocol object as before, so that what is cached for it stays cached."""
    if before is None or before.digest != now.digest:
        return now
    return replace(now, protocol=before.protocol)
