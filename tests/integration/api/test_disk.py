"""A full or invalid ledger: nothing is lost, and each caller gets an answer that says what to do."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lucius.adapters.ledger.sqlite.store import SqliteStore
from lucius.observability import readiness as readiness_module
from lucius.ports.errors import ExpectedError, LedgerBusy, LedgerCorrupt, LedgerTooNew, ProtocolError, SettingsError
from tests.integration.api.conftest import Start
from tests.support.api import Api, serving, settings_for

ROOM = 120  # pages: enough for the empty ledger and a few dozen jobs


@pytest.fixture(autouse=True)
def without_cached_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness_module, "PROBE_CACHE_SECONDS", 0.0)


async def fill(api: Api) -> tuple[list[str], dict[str, Any]]:
    """Submit until the disk is full; return the accepted jobs and the refused command."""
    accepted: list[str] = []
    for i in range(1000):
        body = api.command(idempotency_key=f"k{i}", input_ref="blob://in/" + "x" * 3000)
        answer = await api.post("/v1/commands", body)
        if answer.status != 202:
            assert "nothing of this request was kept" in answer.problem(507, "LEDGER_FULL")["detail"]
            return accepted, body
        accepted.append(answer.json["jobId"])
    raise AssertionError("the disk never became full")


def connection(api: Api) -> sqlite3.Connection:
    assert isinstance(api.runtime.store, SqliteStore)
    return api.runtime.store.file.connection


async def readiness(api: Api) -> tuple[int, str]:
    """Return the status of `/readyz` and the ledger's detail."""
    answer = await api.get("/readyz")
    return answer.status, answer.json["checks"]["ledger"].get("detail", "")


async def test_server_that_refused_for_a_full_disk_is_ready_again_after_a_while(start: Start, tmp_path: Path) -> None:
    api = await start(ledger_url=f"sqlite:///{tmp_path}/ledger.db", ledger_max_pages=ROOM)
    await fill(api)
    assert (await readiness(api))[0] == 503
    api.clock.advance(16)
    assert (await readiness(api))[0] == 200


async def test_full_disk_refuses_commands_creates_nothing_and_recovers_with_space(start: Start, tmp_path: Path) -> None:
    api = await start(ledger_url=f"sqlite:///{tmp_path}/ledger.db", ledger_max_pages=ROOM)
    accepted, refused = await fill(api)
    assert accepted
    counters = await api.runtime.store.jobs.counters("")
    assert counters["jobs"] == len(accepted)
    results = (await api.post("/v1/commands:batch", {"commands": [refused, 5]})).ok()["results"]
    assert [result["status_code"] for result in results] == [507, 422]

    listed = (await api.get("/v1/jobs?limit=200")).ok()["jobs"]
    assert {job["jobId"] for job in listed} == set(accepted)
    assert (await api.job(accepted[0]))["status"] == "DISPATCHING"
    assert await readiness(api) == (503, "the ledger cannot be used right now (LedgerFull)")
    assert "LEDGER_FULL" in (await api.get("/metrics")).body.decode()
    repeat = {**refused, "idempotency_key": "k0"}
    assert (await api.post("/v1/commands", repeat)).ok(202)["jobId"] == accepted[0]

    connection(api).execute(f"PRAGMA max_page_count = {ROOM * 10}")
    assert (await api.post("/v1/commands", refused)).ok(202)["duplicate"] is False
    assert await readiness(api) == (200, "")
    await api.finish(accepted[0])
    assert (await api.job(accepted[0]))["status"] == "SUCCEEDED"


async def test_callback_refused_for_a_full_disk_can_be_repeated(start: Start, tmp_path: Path) -> None:
    api = await start(ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    await api.submit()
    directive = await api.pull_one()
    pages = connection(api).execute("PRAGMA page_count").fetchone()[0]
    connection(api).execute(f"PRAGMA max_page_count = {pages}")
    result = {"text": "x" * 200_000}
    (await api.succeed(directive, result=result)).problem(507, "LEDGER_FULL")
    assert (await api.step(directive["jobId"]))["status"] == "INITIATED"
    connection(api).execute(f"PRAGMA max_page_count = {pages * 10}")
    assert (await api.succeed(directive, result=result)).ok()["disposition"] == "APPLIED"
    assert (await api.step(directive["jobId"]))["result"] == result


async def start_error(settings: Any) -> ExpectedError:
    with pytest.raises(ExpectedError) as refused:
        async with serving(settings):
            pass
    return refused.value


async def test_server_does_not_start_on_a_file_that_is_no_ledger(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    path = tmp_path / "ledger.db"
    path.write_bytes(b"this is a shopping list, and no ledger\n" * 50)
    error = await start_error(settings)
    assert isinstance(error, LedgerCorrupt)
    assert str(path) in str(error)
    assert path.read_bytes().startswith(b"this is a shopping list")


async def test_a_server_does_not_start_on_a_damaged_ledger(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    async with serving(settings) as api:
        for i in range(20):
            await api.submit(idempotency_key=str(i), input_ref="blob://in/" + "x" * 2000)
    path = tmp_path / "ledger.db"
    raw = bytearray(path.read_bytes())
    for offset in range(4096, len(raw), 4096):
        raw[offset : offset + 64] = b"\xff" * 64
    path.write_bytes(raw)
    error = await start_error(settings)
    assert isinstance(error, LedgerCorrupt)
    assert "backup" in str(error)


async def test_a_server_does_not_start_on_a_newer_ledger(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    async with serving(settings):
        pass
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        other.execute("PRAGMA user_version = 999")
    error = await start_error(settings)
    assert isinstance(error, LedgerTooNew)
    assert "999" in str(error)


async def test_a_second_server_does_not_start_on_the_same_ledger(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    async with serving(settings):
        assert isinstance(await start_error(settings), LedgerBusy)
    async with serving(settings):
        pass


async def test_invalid_setting_stops_the_start_naming_its_source(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("limits: {max_inflight: x}\n")
    cases = {
        "LUCIUS_LEDGER_URL": settings_for(tmp_path, ledger_url="redis://x"),
        "LUCIUS_BUS_URL": settings_for(tmp_path, bus_url="amqp://x"),
        "bad.yaml:1": settings_for(tmp_path, config_path=tmp_path / "bad.yaml"),
        "missing.yaml": settings_for(tmp_path, config_path=tmp_path / "missing.yaml"),
    }
    for named, settings in cases.items():
        error = await start_error(settings)
        assert isinstance(error, SettingsError | ProtocolError)
        assert named in str(error)


@pytest.mark.parametrize(
    "url",
    [
        {"bus_url": "redis://a:s3/cret@b/0"},
        {"gate_url": "redis://a:s3/cret@b/0"},
        {"ledger_url": "postgresql://a:s3/cret@b/c"},
    ],
)
async def test_malformed_url_is_refused_without_its_password(tmp_path: Path, url: dict[str, str]) -> None:
    refused = str(await start_error(settings_for(tmp_path, **url)))
    assert "write special characters in a password as %XX" in refused
    assert "s3" not in refused


async def test_token_secret_survives_a_restart(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, token_secrets=(), ledger_url=f"sqlite:///{tmp_path}/ledger.db")
    async with serving(settings) as api:
        await api.submit()
        directive = await api.pull_one()
    assert (tmp_path / "token.secret").stat().st_mode & 0o077 == 0
    async with serving(settings) as api:
        assert (await api.succeed(directive)).ok()["disposition"] == "APPLIED"
