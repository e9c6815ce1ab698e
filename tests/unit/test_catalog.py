"""When a version from a file serves, and what a catalog does when its store is slow, full or shared."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lucius.adapters.ledger.memory.versions import MemoryVersions
from lucius.core.protocol.definition import ProtocolDefinition, StepSpec
from lucius.core.protocol.validation.protocol import Finding
from lucius.ports.errors import LedgerDown, LedgerFull, ProtocolError, VersionConflict
from lucius.ports.protocols import ProtocolVersion
from lucius.usecases.catalog.catalog import Catalog
from tests.support.clock import ManualClock


class Files:
    """A protocol folder whose content the test sets."""

    def __init__(self, *protocols: ProtocolDefinition) -> None:
        self.protocols = protocols
        self.changed = False

    def put(self, *protocols: ProtocolDefinition) -> None:
        self.protocols, self.changed = protocols, True

    def resolve(self, request_type: str, version: int | None = None) -> ProtocolDefinition | None:
        raise NotImplementedError

    def list(self) -> tuple[ProtocolDefinition, ...]:
        return self.protocols

    def refresh(self) -> bool:
        changed, self.changed = self.changed, False
        return changed

    def problems(self) -> tuple[ProtocolError, ...]:
        return ()

    def place(self, protocol: ProtocolDefinition) -> tuple[str, int | None]:
        return "p.yaml", 3


class Store(MemoryVersions):
    """A store whose next writes can be refused or delayed."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: list[Exception] = []
        self.held = asyncio.Event()
        self.held.set()

    async def put_protocols(self, versions: Sequence[ProtocolVersion], expected: int) -> int:
        await self.held.wait()
        if self.refuses:
            raise self.refuses.pop(0)
        return await super().put_protocols(versions, expected)


def protocol(version: int = 1, **fields: Any) -> ProtocolDefinition:
    steps = (StepSpec(step_id="a", step_type="A", service="a"),)
    return ProtocolDefinition(**{"protocol_id": "x", "version": version, "request_type": "X", "steps": steps, **fields})


@pytest.fixture
def files() -> Files:
    return Files(protocol())


@pytest.fixture
def store() -> Store:
    return Store()


async def find_nothing(_: ProtocolDefinition) -> list[Finding]:
    return []


def catalog(files: Files, store: Store) -> Catalog:
    return Catalog(files, store, ManualClock(), find_nothing)


async def test_catalog_answers_from_its_files_before_its_first_refresh(files: Files, store: Store) -> None:
    assert catalog(files, store).resolve("X") == protocol()
    assert not (await store.protocol_versions()).versions


async def test_new_file_serves_only_after_it_is_recorded(files: Files, store: Store) -> None:
    made, other = catalog(files, store), catalog(Files(), store)
    await made.refresh()
    files.put(protocol(), protocol(2))
    await other.draft({"protocol_id": "y", "version": 7, "request_type": "Y", "steps": [{"step_id": "a"}]}, "ann")
    store.held.clear()
    refreshing = asyncio.create_task(made.refresh())
    await asyncio.sleep(0)
    assert not refreshing.done()
    assert made.resolve("X", 2) is None
    store.held.set()
    assert await refreshing
    assert made.resolve("X") == protocol(2)
    assert [version.file for version in (await store.protocol_versions()).versions] == ["p.yaml", "p.yaml", ""]


async def test_file_that_changes_while_the_store_is_down_serves_once_it_is_back(
    files: Files, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = catalog(files, store)
    await made.refresh()
    files.put(protocol(), protocol(2))

    async def is_down() -> int:
        raise LedgerDown("no connection")

    with monkeypatch.context() as outage:
        outage.setattr(store, "protocol_revision", is_down)
        with pytest.raises(LedgerDown):
            await made.refresh()
    assert await made.refresh()
    assert made.resolve("X") == protocol(2)
    assert not await made.refresh()


async def test_files_read_ahead_serve_from_the_next_refresh(files: Files, store: Store) -> None:
    made = catalog(files, store)
    await made.refresh()
    files.put(protocol(), protocol(2))
    assert not await made.refresh(reads_files=False)
    made.read_files()
    made.read_files()
    assert made.resolve("X") == protocol()
    assert await made.refresh(reads_files=False)
    assert made.resolve("X") == protocol(2)


async def test_file_that_cannot_be_recorded_is_recorded_later(files: Files, store: Store) -> None:
    made = catalog(files, store)
    await made.refresh()
    files.put(protocol(), protocol(2))
    store.refuses = [LedgerFull("full")] * 2
    assert await made.refresh()
    assert not await made.refresh()
    assert made.resolve("X") == protocol(2)
    assert [version.key for version in await made.everything()] == [("X", 1), ("X", 2)]
    assert len((await store.protocol_versions()).versions) == 1
    assert not await made.refresh()
    assert len((await store.protocol_versions()).versions) == 2


async def test_files_are_checked_again_after_a_conflicting_write(files: Files, store: Store) -> None:
    made, other = catalog(files, store), catalog(Files(protocol(title="other title")), store)
    store.held.clear()
    ours = asyncio.create_task(made.refresh())
    await asyncio.sleep(0)
    store.held.set()
    await other.refresh()
    await ours
    kept = (await store.protocol_versions()).versions
    assert len(kept) == 1
    assert made.resolve("X") == other.resolve("X") == kept[0].protocol
    refused = [str(problem) for problem in (*made.problems(), *other.problems())]
    assert refused == [
        "p.yaml:3: version 1 of X was published with other content, which stays in force; use a higher version"
    ]


async def test_changed_shipped_protocols_are_one_problem_that_names_the_remedy(files: Files, store: Store) -> None:
    await catalog(files, store).refresh()
    changed = Files(protocol(title="new"))
    made = Catalog(changed, store, ManualClock(), find_nothing, shipped=Path())
    await made.refresh()
    assert made.resolve("X") == protocol()
    (problem,) = made.problems()
    assert "which stays in force: X 1; to use what is shipped now, copy the files" in problem.reason
    assert "LUCIUS_PROTOCOLS_DIR and raise their version" in problem.reason


async def test_refresh_gives_up_after_many_conflicts_and_retries_at_the_next_refresh(
    files: Files, store: Store
) -> None:
    made = catalog(files, store)
    store.refuses = [VersionConflict("moved")] * 20
    await made.refresh()
    assert not (await store.protocol_versions()).versions
    assert made.resolve("X") == protocol()
    await made.refresh()
    assert len((await store.protocol_versions()).versions) == 1


async def test_conflicting_write_reads_the_store_again_without_a_known_newer_revision(files: Files) -> None:
    class WithoutRevisions(Store):
        async def protocol_revision(self) -> int:
            return 0

    store, other_files = WithoutRevisions(), Files()
    made, other = catalog(files, store), catalog(other_files, store)
    await other.refresh()
    await made.refresh()
    other_files.put(protocol(protocol_id="y", request_type="Y"))
    await other.refresh()
    assert [version.key for version in (await store.protocol_versions()).versions] == [("X", 1), ("Y", 1)]


async def test_unchanged_protocol_stays_the_same_object(files: Files, store: Store) -> None:
    made, other = catalog(files, store), catalog(Files(), store)
    await made.refresh()
    before = made.resolve("X")
    kept = await store.protocol_versions()
    decoded = replace(kept.versions[0], protocol=protocol())
    await store.put_protocols([decoded], kept.revision)
    assert await made.refresh()
    assert made.resolve("X") is before
    await other.refresh()
    assert other.resolve("X") == before
    assert not await made.refresh()


async def test_draft_named_like_an_alias_can_be_read(store: Store) -> None:
    made = catalog(Files(protocol(aliases=("Y",))), store)
    await made.refresh()
    draft = {"protocol_id": "y", "version": 7, "request_type": "Y", "steps": [{"step_id": "a"}]}
    await made.draft(draft, "ann")
    assert [version.key for version in await made.versions("Y")] == [("Y", 7)]
    assert (await made.version("Y")).key == ("X", 1)
    assert (await made.version("Y", 7)).key == ("Y", 7)
    assert (await made.version("Y", 1)).key == ("X", 1)
    await made.delete("Y", 7, "ann")
    assert [version.key for version in await made.versions("Y")] == [("X", 1)]
