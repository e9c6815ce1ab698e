"""What every store of protocol versions promises (`lucius.ports.protocols`)."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from lucius.core.protocol import digest
from lucius.ports.errors import LedgerError, VersionConflict, VersionPublished
from lucius.ports.protocols import Mark, ProtocolVersion, Successor, Versions, VersionStatus
from tests.conformance.builders import protocol
from tests.conformance.conftest import FullLedger

DRAFT, PUBLISHED, DEPRECATED = VersionStatus


def version(number: int = 1, status: VersionStatus = DRAFT, **fields: Any) -> ProtocolVersion:
    content = protocol(number, **fields)
    return ProtocolVersion(protocol=content, digest=digest(content), status=status, created=Mark("ann", 1_000))


def everything() -> ProtocolVersion:
    """A version that has been through all of it."""
    return replace(
        version(input_schema={"type": "object", "maxProperties": 3}, aliases=("an→alias",)),
        status=DEPRECATED,
        changed=Mark("bob", 2_000),
        published=Mark("cy", 3_000, "it works"),
        deprecated=Mark("di", 4_000, "it doesn't"),
        successor=Successor("SIS", 7),
        file="/p/ocr.yaml",
    )


async def test_an_empty_store_is_at_revision_zero(ledger: FullLedger) -> None:
    assert await ledger.protocol_versions() == Versions(0, ())
    assert await ledger.protocol_revision() == 0


async def test_a_version_is_read_as_it_was_put(ledger: FullLedger) -> None:
    kept = everything()
    assert await ledger.put_protocols([kept], expected=0) == 1
    assert await ledger.protocol_versions() == Versions(1, (kept,))
    assert await ledger.protocol_revision() == 1


async def test_versions_come_by_request_type_and_then_by_number(ledger: FullLedger) -> None:
    put = [version(10), version(9), version(2, request_type="A"), version(1, request_type="B")]
    await ledger.put_protocols(put, expected=0)
    kept = (await ledger.protocol_versions()).versions
    assert [v.key for v in kept] == [("A", 2), ("B", 1), ("OCR", 9), ("OCR", 10)]


async def test_a_draft_can_be_replaced_and_deleted(ledger: FullLedger) -> None:
    await ledger.put_protocols([version(title="one"), version(2)], expected=0)
    await ledger.put_protocols([version(title="two")], expected=1)
    assert [v.protocol.title for v in (await ledger.protocol_versions()).versions] == ["two", ""]
    assert await ledger.delete_protocol("OCR", 1, expected=2) == 3
    assert (await ledger.protocol_versions()) == Versions(3, (version(2),))


async def test_a_change_decided_on_an_older_revision_is_refused_and_changes_nothing(ledger: FullLedger) -> None:
    await ledger.put_protocols([version(1)], expected=0)
    for expected in (0, 2):
        with pytest.raises(VersionConflict):
            await ledger.put_protocols([version(2)], expected=expected)
        with pytest.raises(VersionConflict):
            await ledger.delete_protocol("OCR", 1, expected=expected)
    assert await ledger.protocol_versions() == Versions(1, (version(1),))


async def test_of_two_who_race_one_wins(ledger: FullLedger) -> None:
    await ledger.put_protocols([version()], expected=0)
    racers = [replace(version(), status=PUBLISHED, published=Mark(name, 5_000)) for name in ("ann", "bob")]
    outcomes = await asyncio.gather(
        *(ledger.put_protocols([racer], expected=1) for racer in racers), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {int, VersionConflict}
    won = racers[outcomes.index(2)]
    assert (await ledger.protocol_versions()).versions == (won,)


@pytest.mark.parametrize("status", [PUBLISHED, DEPRECATED])
async def test_what_is_published_is_neither_changed_nor_deleted(ledger: FullLedger, status: VersionStatus) -> None:
    kept = version(status=status)
    await ledger.put_protocols([kept], expected=0)
    for other in (version(status=status, title="other"), version(status=DRAFT)):
        with pytest.raises(VersionPublished):
            await ledger.put_protocols([version(2), other], expected=1)
    with pytest.raises(VersionPublished):
        await ledger.delete_protocol("OCR", 1, expected=1)
    assert await ledger.protocol_versions() == Versions(1, (kept,))


async def test_what_is_deprecated_stays_so(ledger: FullLedger) -> None:
    await ledger.put_protocols([version(status=PUBLISHED)], expected=0)
    await ledger.put_protocols([version(status=DEPRECATED)], expected=1)
    with pytest.raises(VersionPublished):
        await ledger.put_protocols([version(status=PUBLISHED)], expected=2)


async def test_versions_and_jobs_are_kept_apart(ledger: FullLedger) -> None:
    await ledger.put_protocols([version()], expected=0)
    assert await ledger.counters("") == {}
    assert (await ledger.job("OCR")) is None


async def test_a_closed_store_says_so(ledger: FullLedger) -> None:
    await ledger.close()
    with pytest.raises(LedgerError):
        await ledger.put_protocols([version()], expected=0)
