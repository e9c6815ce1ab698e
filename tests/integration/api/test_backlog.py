"""The backlog that autoscalers read: steps waiting for a service, by lane."""

import pytest

from lucius.ports.config import ApiKey, KeyScope
from lucius.ports.readers import Oldest
from lucius.usecases.access.auth import hash_key
from tests.support.api import Api

LANE_OF_ACME = "14"


def add_keys(api: Api, tenant: str, **keys: tuple[tuple[KeyScope, ...], str | None]) -> None:
    """Add keys by name, each with scopes and the service it is bound to."""
    config = api.runtime.config.current()
    api.runtime.auth._started_with += tuple(
        ApiKey(name=name, sha256=hash_key(name), scopes=scopes, tenants=(tenant,), service=service)
        for name, (scopes, service) in keys.items()
    )
    api.runtime.auth.use(config)


async def test_backlog_of_a_service_is_counted_by_lane(api: Api) -> None:
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


async def test_backlog_of_an_idle_service_is_empty(api: Api) -> None:
    job_id = await api.submit()
    await api.finish(job_id)
    nothing = {"service": "ocr", "pending": 0, "unacked": 0, "lanes": {}, "oldest_at": None}
    assert (await api.get("/v1/services/ocr/backlog")).ok() == nothing
    assert (await api.get("/v1/backlog")).ok() == {"services": []}


async def test_backlog_marks_that_older_rows_are_possible(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def backlog(now: int, service: str | None = None) -> dict[str, Oldest]:
        return {"ocr": Oldest(now, older_possible=True)}

    await api.submit()
    assert "older_possible" not in (await api.get("/v1/services/ocr/backlog")).ok()
    monkeypatch.setattr(api.runtime.store.jobs, "backlog", backlog)
    assert (await api.get("/v1/services/ocr/backlog")).ok()["older_possible"] is True
    assert (await api.get("/v1/backlog")).ok()["services"][0]["older_possible"] is True


async def test_paused_job_is_not_in_the_backlog(api: Api) -> None:
    job_id = await api.submit()
    (await api.post(f"/v1/jobs/{job_id}:pause")).ok(202)
    assert (await api.get("/v1/services/ocr/backlog")).ok()["pending"] == 0


async def test_backlog_needs_a_read_key_or_a_serve_key_of_the_service(api: Api) -> None:
    add_keys(api, "*", reads=(("read",), None))
    add_keys(api, "*", serves=(("serve",), "ocr"), both=(("read", "serve"), "ocr"))
    add_keys(api, "acme", submits=(("submit",), None))
    for key in ("reads", "serves", "both"):
        assert (await api.get("/v1/services/ocr/backlog", key=key)).ok()["service"] == "ocr"
    (await api.get("/v1/services/sis/backlog", key="serves")).problem(403, "FORBIDDEN_SCOPE")
    (await api.get("/v1/services/ocr/backlog", key="submits")).problem(403, "FORBIDDEN_SCOPE")
    (await api.get("/v1/backlog", key="serves")).problem(403, "FORBIDDEN_SCOPE")
    (await api.get("/v1/services/ocr/backlog", key="")).problem(401, "UNAUTHENTICATED")
    (await api.get("/v1/services/Not%20one/backlog")).problem(422, "INVALID_QUERY")


async def test_key_of_one_tenant_may_not_read_the_backlog(api: Api) -> None:
    add_keys(api, "acme", reads=(("read",), None), both=(("read", "serve"), "ocr"), serves=(("serve",), "ocr"))
    for key in ("reads", "both", "serves"):
        (await api.get("/v1/services/ocr/backlog", key=key)).problem(403, "FORBIDDEN_TENANT")
    (await api.get("/v1/services/sis/backlog", key="both")).problem(403, "FORBIDDEN_SCOPE")
    for key in ("reads", "both"):
        (await api.get("/v1/backlog", key=key)).problem(403, "FORBIDDEN_TENANT")
