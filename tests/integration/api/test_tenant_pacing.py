"""Which requests the pacer admits and charges, and to whom."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lucius.bootstrap import lifecycle
from lucius.usecases.submit.tenant_pacing import TenantPacer
from tests.support.api import Api, serving, settings_for
from tests.support.clock import ManualClock


class SpyPacer(TenantPacer):
    """Records what is admitted and charged."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0, max_share=0.5)
        self.admitted: list[tuple[str, int]] = []
        self.lists: list[tuple[str, int]] = []
        self.found: list[tuple[str, int]] = []
        self.charged: Counter[str] = Counter()

    async def admit(self, account: str, weight: int = 1) -> None:
        self.admitted.append((account, weight))

    async def admit_list(self, account: str, weight: int) -> None:
        self.lists.append((account, weight))

    def count_list(self, account: str, units: int) -> None:
        self.found.append((account, units))

    @contextmanager
    def charge(self, account: str) -> Iterator[None]:
        self.charged[account] += 1
        yield


@pytest.fixture
async def spied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Api, SpyPacer]]:
    pacer = SpyPacer()
    monkeypatch.setattr(lifecycle, "TenantPacer", lambda *_, **__: pacer)
    async with serving(settings_for(tmp_path), ManualClock()) as api:
        yield api, pacer


async def test_command_is_admitted_by_its_size_and_charged_although_it_is_refused(spied: tuple[Api, SpyPacer]) -> None:
    api, pacer = spied
    body = api.command(tenant_id="acme", payload={"nothing": ["x" * 8] * 2_000})
    assert (await api.post("/v1/commands", body)).status == 422
    ((account, weight),) = pacer.admitted
    assert (account, pacer.charged["acme"]) == ("acme", 3)
    assert weight > 4


async def test_undecodable_command_is_charged_to_the_tenant_it_names_or_to_its_key(spied: tuple[Api, SpyPacer]) -> None:
    api, pacer = spied
    assert (await api.post("/v1/commands", {"tenant_id": "acme", "nothing": 1})).status == 422
    assert (await api.post("/v1/commands", {"nothing": 1})).status == 422
    first, second = pacer.charged
    assert first == "acme"
    assert second.startswith("key:")


async def test_list_is_charged_for_the_jobs_that_it_found(spied: tuple[Api, SpyPacer]) -> None:
    api, pacer = spied
    for n in range(9):
        assert (await api.post("/v1/commands", api.command(tenant_id="acme", idempotency_key=str(n)))).status == 202
    assert (await api.get("/v1/jobs?limit=200&tenant_id=acme")).status == 200
    assert (await api.get("/v1/jobs?limit=200&tenant_id=globex")).status == 200
    assert pacer.found == [("acme", 1), ("globex", 0)]


async def test_lists_are_charged_to_their_tenant_or_key(spied: tuple[Api, SpyPacer]) -> None:
    api, pacer = spied
    assert (await api.get("/v1/jobs?limit=100&tenant_id=acme")).status == 200
    assert (await api.get("/v1/jobs")).status == 200
    (tenant, units), (key, fewer_units) = pacer.lists
    assert (tenant, units) == ("acme", 13)
    assert key.startswith("key:")
    assert fewer_units == 7
