"""Catalog of protocol versions, from files and from the API, kept in one store.

A file in a protocol folder is a published version. Once its number is recorded, other content under that number is
refused, and the recorded content stays in force after a restart and when the file is deleted. To retire a version,
deprecate it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace

from lucius.contract.protocols import DeprecateRequest, ProtocolFinding, PublishRequest
from lucius.core.protocol.definition import ProtocolDefinition, digest
from lucius.core.protocol.validation.document import check_document
from lucius.core.protocol.validation.locations import lay_out
from lucius.core.protocol.validation.protocol import Finding
from lucius.ports.clock import Clock
from lucius.ports.errors import LedgerDown, LedgerError, ProtocolError, VersionConflict
from lucius.ports.protocols import Mark, ProtocolSource, ProtocolStore, ProtocolVersion, VersionStatus
from lucius.usecases.catalog import lifecycle
from lucius.usecases.catalog.documents import Check, finding, read_document, require_sound
from lucius.usecases.catalog.index import Index
from lucius.usecases.errors import RejectCode, Rejected

log = structlog.get_logger(__name__)

FILES = "protocol files"  # recorded as the publisher of versions from files
OUTDATED = (
    "this ledger has other content under these versions of shipped protocols, which stays in force: {}; to use what is "
    "shipped now, copy the files into LUCIUS_PROTOCOLS_DIR and raise their version, or start with a new data directory"
)
MAX_CONFLICTS = 20
MAX_WAITING_CHECKS = 16
UNREAD = -1

Key = tuple[str, int]
T = TypeVar("T")
DescribeUnseen = Callable[[Iterable[str]], Awaitable[Mapping[str, str]]]


class _Stock(Struct, frozen=True):
    """The index in force, versions from files that are not recorded yet, and refused files."""

    index: Index
    fresh: dict[Key, ProtocolVersion]
    refused: tuple[ProtocolError, ...]


async def _know_all(services: Iterable[str]) -> Mapping[str, str]:
    return {}


class Catalog:
    """Serves protocols from memory; `refresh` reads the files and the store. Changes are durable on return."""

    def __init__(
        self, files: ProtocolSource, store: ProtocolStore, clock: Clock, check: Check, shipped: Path | None = None
    ) -> None:
        """`shipped` is the folder of the protocols that come with Lucius."""
        self._files = files
        self._shipped = shipped
        self._store = store
        self._clock = clock
        self._check = check
        self._turn = asyncio.Lock()
        self._checks = asyncio.Lock()
        self._waiting_checks = 0
        self.describe_unseen: DescribeUnseen = _know_all
        self._revision = UNREAD
        self._kept: dict[Key, ProtocolVersion] = {}
        self._recorded = False
        self._files_changed = False
        """True if files were read that `refresh` has not adopted yet."""
        self._stock = self._take_stock()

    # Look-ups for commands

    def resolve(self, request_type: str, version: int | None = None) -> ProtocolDefinition | None:
        """Return the protocol for new commands of a request type or alias: that version, or the newest; or None."""
        return self._stock.index.resolve(request_type, version)

    def retired(self, request_type: str, version: int | None = None) -> ProtocolVersion | None:
        """Return the deprecated version that would have served; None if there is none."""
        return self._stock.index.retired(request_type, version)

    def successor(self, version: ProtocolVersion) -> ProtocolDefinition | None:
        """Return the protocol to use instead of a deprecated version; None if there is none."""
        return self._stock.index.successor(version)

    def request_type(self, name: str) -> str | None:
        """Return the request type that a name stands for: itself, or the one it is an alias of; or None."""
        return self._stock.index.request_type(name)

    def list(self) -> tuple[ProtocolDefinition, ...]:
        """Return every version that serves new commands, by request type, oldest version first."""
        return self._stock.index.list()

    def problems(self) -> tuple[ProtocolError, ...]:
        """Return the errors of refused files."""
        return (*self._files.problems(), *self._stock.refused)

    # Changes in files and by other processes

    def read_files(self) -> None:
        """Read changed files, for the next `refresh`. Can run in a thread, one call at a time."""
        if self._files.refresh():
            self._files_changed = True

    async def refresh(self, *, reads_files: bool = True) -> bool:
        """Adopt changes of files and of other processes; return True if there were any.

        Without `reads_files`, adopt what `read_files` has read.
        """
        async with self._turn:
            if reads_files:
                self.read_files()
            changed = await self._catch_up()
            if self._files_changed:
                self._files_changed, changed = False, True
            if changed or self._stock.fresh:
                await self._record(loud=changed)
            return changed

    async def _catch_up(self, *, surely: bool = False) -> bool:
        """Read the store if its revision changed; return True if it was read.

        With `surely`, read it in any case: the revision seen may lag behind, and a conflict proves that there is
        a newer one.
        """
        if not surely and await self._store.protocol_revision() == self._revision:
            return False
        read = await self._store.protocol_versions()
        before = self._kept
        self._kept = {version.key: _same(before.get(version.key), version) for version in read.versions}
        self._revision = read.revision
        self._stock = self._take_stock()
        return True

    async def _record(self, *, loud: bool) -> None:
        """Record the versions that files add; a failure is logged, and `refresh` tries again."""
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
        outdated: list[str] = []
        for protocol in self._files.list():
            found = self._judge(trial, protocol)
            if isinstance(found, str):
                file, line = self._files.place(protocol)
                if self._shipped is not None and Path(file).parent == self._shipped and self._is_kept(protocol):
                    outdated.append(f"{protocol.request_type} {protocol.version}")
                    continue
                refused.append(ProtocolError(found, file=file, line=line))
            elif found is not None:
                fresh[found.key] = found
                trial.add(found)
        if outdated:
            refused.append(ProtocolError(OUTDATED.format(", ".join(outdated)), file=str(self._shipped)))
        # If recording failed (the disk is full), a command must be refused for that, not for an unknown request type.
        return _Stock(Index(self._kept.values()) if self._recorded else trial, fresh, tuple(refused))

    def _is_kept(self, protocol: ProtocolDefinition) -> bool:
        known = self._kept.get((protocol.request_type, protocol.version))
        return known is not None and known.status is not VersionStatus.DRAFT

    def _judge(self, index: Index, protocol: ProtocolDefinition) -> ProtocolVersion | str | None:
        """Return the version that a file adds, or why it is refused; None if it is recorded. It replaces a draft."""
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

    # Reads for people

    async def everything(self) -> Sequence[ProtocolVersion]:
        """Return every version in every state, by request type, oldest version first."""
        async with self._turn:
            await self._catch_up()
            return [version for _, version in sorted(({**self._kept, **self._stock.fresh}).items())]

    async def versions(self, name: str) -> Sequence[ProtocolVersion]:
        """Return all versions of a request type or alias. Raises Rejected (NOT_FOUND) if there are none."""
        found = await self.everything()
        for kind in (name, self.request_type(name)):  # a draft's request type may be an alias of another
            if versions := [version for version in found if version.protocol.request_type == kind]:
                return versions
        raise Rejected(RejectCode.NOT_FOUND, f"there is no protocol {name[:128]!r}")

    async def version(self, name: str, number: int | None = None) -> ProtocolVersion:
        """Return a version; without a number the serving one, else the newest deprecated one. Raises Rejected."""
        async with self._turn:
            await self._catch_up()
            return self._required(name, number)

    async def validate(self, document: Any) -> Sequence[ProtocolFinding]:
        """Return all findings about a document that publishing it now would meet."""
        try:
            protocol = read_document(document)
        except Rejected as refused:
            return [ProtocolFinding(fault.pointer, fault.message, True) for fault in refused.faults]
        said = await self._said(protocol)
        async with self._turn:
            await self._catch_up()
            return self._findings(protocol, (*said, *await self._warnings(protocol, document)))

    async def _said(self, protocol: ProtocolDefinition) -> Sequence[Finding]:
        """Check documents one at a time. Raises Rejected (NOT_READY) if too many are waiting."""
        if self._waiting_checks >= MAX_WAITING_CHECKS:
            message = f"{MAX_WAITING_CHECKS} protocols are waiting to be checked; try again"
            raise Rejected(RejectCode.NOT_READY, message, retry_after_seconds=1)
        self._waiting_checks += 1
        try:
            async with self._checks:
                return await self._check(protocol)
        finally:
            self._waiting_checks -= 1

    async def _warnings(self, protocol: ProtocolDefinition, document: Any) -> Sequence[Finding]:
        """Return warnings of what a document leaves out, and of services that were never seen."""
        tasks = [site for site in lay_out(protocol).sites if site.spec.kind == "task"]
        unseen = await self.describe_unseen({site.spec.service for site in tasks})
        return [
            *check_document(document),
            *(
                Finding((*site.path, "service"), f"{reason}; check the name, or start the service", fatal=False)
                for site in tasks
                if (reason := unseen.get(site.spec.service))
            ),
        ]

    def _findings(self, protocol: ProtocolDefinition, checked: Sequence[Finding]) -> Sequence[ProtocolFinding]:
        found = [finding(said.path, said.reason, fatal=said.fatal) for said in checked]
        if clash := self._stock.index.clash(protocol):
            found.append(finding(*clash))
        known = self._kept.get((protocol.request_type, protocol.version))
        if known and known.status is not VersionStatus.DRAFT and known.digest != digest(protocol):
            found.append(finding(("version",), f"{lifecycle.named(known)} is published with other content"))
        return found

    # Changes by people

    async def draft(self, document: Any, who: str) -> tuple[ProtocolVersion, bool, Sequence[ProtocolFinding]]:
        """Store a document as a draft; return it, whether it is new, and the findings about publishing it."""
        protocol = read_document(document)
        key = protocol.request_type, protocol.version

        async def act() -> tuple[ProtocolVersion, bool]:
            before = self._kept.get(key)
            mark = Mark(who, self._clock.now())
            return await self._put(lifecycle.drafted(before, protocol, mark)), before is None

        version, is_new = await self._change(act)
        said = (*await self._said(protocol), *await self._warnings(protocol, document))
        return version, is_new, self._findings(protocol, said)

    async def publish(self, name: str, number: int, asked: PublishRequest, who: str) -> ProtocolVersion:
        """Publish a draft: it serves new commands from now on, and never changes. Raises Rejected."""

        async def act() -> ProtocolVersion:
            mark = Mark(who, self._clock.now(), asked.reason or "")
            version = lifecycle.published(self._required(name, number), mark, asked.digest)
            require_sound(self._findings(version.protocol, await self._said(version.protocol)))
            return await self._put(version)

        return await self._change(act)

    async def deprecate(self, name: str, number: int, asked: DeprecateRequest, who: str) -> ProtocolVersion:
        """Deprecate a version: new commands are refused with its successor named; running jobs go on."""

        async def act() -> ProtocolVersion:
            mark = Mark(who, self._clock.now(), asked.reason)
            version = self._required(name, number)
            return await self._put(lifecycle.deprecated(version, mark, self._stock.index, asked.successor))

        return await self._change(act)

    async def delete(self, name: str, number: int, who: str) -> ProtocolVersion:
        """Delete a draft and return it."""

        async def act() -> ProtocolVersion:
            draft = self._required(name, number)
            lifecycle.require_draft(draft, "deleted")
            self._revision = await self._store.delete_protocol(*draft.key, self._revision)
            del self._kept[draft.key]
            log.info("protocol draft deleted", request_type=draft.key[0], version=number, by=who)
            return draft

        return await self._change(act)

    async def _change(self, act: Callable[[], Awaitable[T]]) -> T:
        """Run `act` on the current versions; repeat it if another process changed them. Raises Rejected."""
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
    """Return `now`; if its content is unchanged, with the same protocol object, so that its caches stay valid."""
    if before is None or before.digest != now.digest:
        return now
    return replace(now, protocol=before.protocol)
