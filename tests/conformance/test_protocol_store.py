"""Guarantees of every store of protocol versions (`lucius.ports.protocols`)."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from lucius.core.protocol.definition import digest
from lucius.ports.errors import LedgerError, VersionConflict, VersionPublished
from lucius.ports.protocols import Mark, ProtocolVersion, Successor, Versions, VersionStatus
from lucius.ports.store import Store
from tests.conformance.builders import protocol

DRAFT, PUBLISHED, DEPRECATED = VersionStatus


def version(number: int = 1, status: VersionStatus = DRAFT, **fields: Any) -> ProtocolVersion:
    content = protocol(number, **fields)
    return ProtocolVersion(protocol=content, digest=digest(content), status=status, created=Mark("ann", 1_000))


def everything() -> ProtocolVersion:
    """Return a version with every field set."""
    return replace(
        version(input_schema={"type": "object", "maxProperties": 3}, aliases=("an→alias",)),
        status=DEPRECATED,
        changed=Mark("bob", 2_000),
        published=Mark("cy", 3_000, "it works"),
        deprecated=Mark("di", 4_000, "it doesn't"),
        successor=Successor("SIS", 7),
        file="/p/ocr.yaml",
    )


async def test_an_empty_store_is_at_revision_zero(store: Store) -> None:
    assert await store.protocols.protocol_versions() == Versions(0, ())
    assert await store.protocols.protocol_revision() == 0


async def test_version_is_read_as_it_was_stored(store: Store) -> None:
    kept = everything()
    assert await store.protocols.put_protocols([kept], expected=0) == 1
    assert await store.protocols.protocol_versions() == Versions(1, (kept,))
    assert await store.protocols.protocol_revision() == 1


async def test_versions_are_sorted_by_request_type_and_number(store: Store) -> None:
    put = [version(10), version(9), version(2, request_type="A"), version(1, request_type="B")]
    await store.protocols.put_protocols(put, expected=0)
    kept = (await store.protocols.protocol_versions()).versions
    assert [v.key for v in kept] == [("A", 2), ("B", 1), ("OCR", 9), ("OCR", 10)]


async def test_a_draft_can_be_replaced_and_deleted(store: Store) -> None:
    await store.protocols.put_protocols([version(title="one"), version(2)], expected=0)
    await store.protocols.put_protocols([version(title="two")], expected=1)
    assert [v.protocol.title for v in (await store.protocols.protocol_versions()).versions] == ["two", ""]
    assert await store.protocols.delete_protocol("OCR", 1, expected=2) == 3
    assert (await store.protocols.protocol_versions()) == Versions(3, (version(2),))


async def test_a_change_decided_on_an_older_revision_is_refused_and_changes_nothing(store: Store) -> None:
    await store.protocols.put_protocols([version(1)], expected=0)
    for expected in (0, 2):
        with pytest.raises(VersionConflict):
            await store.protocols.put_protocols([version(2)], expected=expected)
        with pytest.raises(VersionConflict):
            await store.protocols.delete_protocol("OCR", 1, expected=expected)
    assert await store.protocols.protocol_versions() == Versions(1, (version(1),))


async def test_only_one_of_two_concurrent_changes_is_stored(store: Store) -> None:
    await store.protocols.put_protocols([version()], expected=0)
    racers = [replace(version(), status=PUBLISHED, published=Mark(name, 5_000)) for name in ("ann", "bob")]
    outcomes = await asyncio.gather(
        *(store.protocols.put_protocols([racer], expected=1) for racer in racers), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {int, VersionConflict}
    won = racers[outcomes.index(2)]
    assert (await store.protocols.protocol_versions()).versions == (won,)


@pytest.mark.parametrize("status", [PUBLISHED, DEPRECATED])
async def test_published_version_can_be_neither_changed_nor_deleted(store: Store, status: VersionStatus) -> None:
    kept = version(status=status)
    await store.protocols.put_protocols([kept], expected=0)
    for other in (version(status=status, title="other"), version(status=DRAFT)):
        with pytest.raises(VersionPublished):
            await store.protocols.put_protocols([version(2), other], expected=1)
    with pytest.raises(VersionPublished):
        await store.protocols.delete_protocol("OCR", 1, expected=1)
    assert await store.protocols.protocol_versions() == Versions(1, (kept,))


async def test_deprecated_version_cannot_be_published_again(store: Store) -> None:
    await store.protocols.put_protocols([version(status=PUBLISHED)], expected=0)
    await store.protocols.put_protocols([version(status=DEPRECATED)], expected=1)
    with pytest.raises(VersionPublished):
        await store.protocols.put_protocols([version(status=PUBLISHED)], expected=2)


async def test_versions_and_pinned_protocols_of_jobs_are_independent(store: Store) -> None:
    await store.protocols.put_protocols([version()], expected=0)
    assert await store.jobs.counters("") == {}
    assert (await store.jobs.job("OCR")) is None


async def test_closed_store_raises_ledger_error(store: Store) -> None:
    await store.close()
    with pytest.raises(LedgerError):
        await store.protocols.put_protocols([version()], expected=0)
