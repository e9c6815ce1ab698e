"""What autoscalers ask for: how much waits for a service, by lane."""

import pytest

from lucius.ports.config import ApiKey, Scope
from lucius.ports.ledger import Oldest
from lucius.service.auth import hash_key
from tests.support.api import Api

LANE_OF_ACME = "14"


def with_keys(api: Api, tenant: str, **keys: tuple[tuple[Scope, ...], str | None]) -> None:
    """Keys by their names: each of some scopes, and bound to a service."""
    config = api.runtime.config.current()
    api.runtime.auth._started_with += tuple(
        ApiKey(name=name, sha256=hash_key(name), scopes=scopes, tenants=(tenant,), service=service)
        for name, (scopes, service) in keys.items()
    )
    api.runtime.auth.use(config)


async def test_what_waits_for_a_service_is_told_by_lane(api: Api) -> None:
    await api.submit(idempotency_key="k1")
    api.clock.advance(5)
    second = await api.submit(idempotency_key="k2")
    api.clock.advance(5)
    await api.submit(idempotency_key="k3")
    elsewhere = await api.submit(idempotency_key="other", doc_id="a-document", mode="BURST")
    lane = str((await api.step(elsewhere))["lane"])
    assert lane != LANE_OF_ACME
    await api.pull(max=1, lanes=[int(LANE_OF_ACME)])
    said = (await api.get("/v1/services/ocr/backlog")).ok()
    assert said == {
        "service": "ocr",
        "pending": 3,
        "unacked": 1,
        "lanes": {LANE_OF_ACME: 2, lane: 1},
        "oldest_at": (await api.job(second))["created_at"],
    }
    assert (await api.get("/v1/backlog")).ok() == {"services": [said]}


async def test_a_service_with_nothing_to_do_has_a_backlog_of_nothing(api: Api) -> None:
    job_id = await api.submit()
    await api.finish(job_id)
    nothing = {"service": "ocr", "pending": 0, "unacked": 0, "lanes": {}, "oldest_at": None}
    assert (await api.get("/v1/services/ocr/backlog")).ok() == nothing
    assert (await api.get("/v1/backlog")).ok() == {"services": []}


async def test_where_not_all_tenants_were_asked_the_answer_says_so(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def backlog(now: int, service: str | None = None) -> dict[str, Oldest]:
        return {"ocr": Oldest(now, older_possible=True)}

    await api.submit()
    assert "older_possible" not in (await api.get("/v1/services/ocr/backlog")).ok()
    monkeypatch.setattr(api.runtime.store, "backlog", backlog)
    assert (await api.get("/v1/services/ocr/backlog")).ok()["older_possible"] is True
    assert (await api.get("/v1/backlog")).ok()["services"][0]["older_possible"] is True


async def test_what_is_paused_waits_for_no_service(api: Api) -> None:
    job_id = await api.submit()
    (await api.post(f"/v1/jobs/{job_id}:pause")).ok(202)
    assert (await api.get("/v1/services/ocr/backlog")).ok()["pending"] == 0


async def test_a_key_of_the_service_is_enough_and_anothers_is_not(api: Api) -> None:
    with_keys(api, "*", reads=(("read",), None))
    with_keys(api, "acme", serves=(("serve",), "ocr"), both=(("read", "serve"), "ocr"), submits=(("submit",), None))
    for key in ("reads", "serves", "both"):
        assert (await api.get("/v1/services/ocr/backlog", key=key)).ok()["service"] == "ocr"
    (await api.get("/v1/services/sis/backlog", key="serves")).problem(403, "FORBIDDEN_SCOPE")
    (await api.get("/v1/services/ocr/backlog", key="submits")).problem(403, "FORBIDDEN_SCOPE")
    (await api.get("/v1/backlog", key="serves")).problem(403, "FORBIDDEN_SCOPE")
    (await api.get("/v1/services/ocr/backlog", key="")).problem(401, "UNAUTHENTICATED")
    (await api.get("/v1/services/Not%20one/backlog")).problem(422, "INVALID_QUERY")


async def test_a_key_of_one_tenant_is_not_told_of_the_others(api: Api) -> None:
    with_keys(api, "acme", reads=(("read",), None), both=(("read", "serve"), "ocr"))
    (await api.get("/v1/services/ocr/backlog", key="reads")).problem(403, "FORBIDDEN_TENANT")
    (await api.get("/v1/services/sis/backlog", key="both")).problem(403, "FORBIDDEN_SCOPE")
    for key in ("reads", "both"):
        (await api.get("/v1/backlog", key=key)).problem(403, "FORBIDDEN_TENANT")
