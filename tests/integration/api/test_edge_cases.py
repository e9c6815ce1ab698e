"""Combinations of two rules that a hostile review once found open."""

import asyncio
import io
import json
from pathlib import Path

import pytest

from lucius.adapters.bus.memory import MemoryBus
from lucius.adapters.ledger.memory.store import MemoryStore
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import load_settings
from lucius.core.model.decision import Decision, Defaults
from lucius.core.policies.failure_classes import failure_class
from lucius.observability.logs import configure_logging, log
from lucius.ports.errors import SettingsError
from tests.integration.api.conftest import Start, write_config
from tests.support.api import WITHIN, Api, identity, settings_for
from tests.support.until import until

DAY = 86_400


async def test_directive_delayed_by_a_bus_outage_has_a_future_deadline_and_a_valid_token(
    start: Start, ledger_url: str
) -> None:
    api = await start(ledger_url=ledger_url, bus_url="memory:", outbox_retry_interval=0.01)
    bus = api.runtime.publisher
    assert isinstance(bus, MemoryBus)
    bus.down = True
    job_id = await api.submit()
    api.clock.advance(26 * 3600)
    bus.down = False
    (directive,) = await bus.consumer("ocr").pull(1, WITHIN)
    assert directive.jobId == job_id
    assert directive.ack_deadline > "2027-01-16T10:00:00"
    said = {"jobId": job_id, "stepId": "ocr", "tenant_id": "acme", "attempt_no": 1, "lease_id": directive.lease_id}
    (await api.post("/v1/callbacks/ack", said, key=directive.callback_token)).ok()


async def test_job_whose_deadline_cannot_be_handled_does_not_stop_other_deadlines(
    start: Start, log_stream: io.StringIO
) -> None:
    api = await start(defaults=Defaults(ack_timeout_ms=8_000))
    store = api.runtime.store
    assert isinstance(store, MemoryStore)
    poisoned, healthy = await api.submit(), await api.submit(idempotency_key="other")
    await api.pull(max=2)
    commit = store.ledger.commit

    async def fails_for_one(decision: Decision) -> None:
        if decision.job.job_id == poisoned:
            raise RuntimeError("a bug of ours")
        await commit(decision)

    store.ledger.commit = fails_for_one  # type: ignore[method-assign]
    await api.sweep(after=9)
    assert (await api.step(healthy))["status"] == "FAILED_RETRY"
    assert (await api.step(poisoned))["status"] == "INITIATED"
    assert "could not process job" in log_stream.getvalue()
    store.ledger.commit = commit  # type: ignore[method-assign]
    assert await api.sweep() == 0  # it is not tried again for a while
    await api.sweep(after=31)
    assert (await api.step(poisoned))["status"] != "INITIATED"


async def test_empty_token_secret_file_is_replaced_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "token.secret").write_bytes(b"")  # created, but not written before power was lost
    settings = settings_for(tmp_path, token_secrets=())
    for _ in range(2):
        async with open_runtime(settings):
            pass
    assert len((tmp_path / "token.secret").read_bytes()) == 64


async def test_short_token_secret_is_refused_naming_its_setting(tmp_path: Path) -> None:
    settings = load_settings({"LUCIUS_TOKEN_SECRET": "short"}, data_dir=tmp_path, ledger_url="memory:")
    with pytest.raises(SettingsError, match="LUCIUS_TOKEN_SECRET"):
        async with open_runtime(settings):
            pass


async def test_token_stays_valid_when_the_ack_period_is_restarted(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, late_window_ms=60_000)
    await api.submit()
    directive = await api.pull_one()
    await api.sweep(after=DAY)  # Lucius was down for longer than deadline, lease and window together
    assert (await api.succeed(directive)).ok()["disposition"] == "APPLIED"


async def test_ack_committed_with_a_refused_hand_over_wakes_the_pull(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, max_unacked=1)
    await api.submit()
    second = await api.submit(idempotency_key="second")
    first = await api.pull_one()
    callbacks = api.runtime.callbacks
    verified = await callbacks.parse("ack", identity(first), callbacks.verify(first["callback_token"]))
    pull = asyncio.create_task(api.runtime.directive_pulls.pull("ocr", 1, WITHIN))
    await asyncio.sleep(0)  # the pull has queued its hand-over; the ACK joins the same commit
    ack = asyncio.create_task(callbacks.apply(verified.job_id, [verified.callback]))
    async with asyncio.timeout(WITHIN / 2):
        assert [directive.jobId for directive in await pull] == [second]
    await ack


async def test_callbacks_for_one_step_are_split_into_small_decisions(api: Api) -> None:
    sizes: list[int] = []
    await api.submit()
    directive = await api.pull_one()
    api.runtime.notifier.observers.append(lambda decision: sizes.append(len(decision.events)))
    said = {"type": "ack", "callback_token": directive["callback_token"], **identity(directive)}
    answers = (await api.post("/v1/callbacks:batch", {"callbacks": [said] * 100})).ok()["results"]
    assert [answer["disposition"] for answer in answers] == ["APPLIED"] + ["DUPLICATE"] * 99
    assert max(sizes) <= 20


async def test_config_refused_while_running_is_logged(start: Start, tmp_path: Path, log_stream: io.StringIO) -> None:
    api = await start({"default_mode": "DEFAULT"})
    write_config(tmp_path, {"default_mode": "SIDEWAYS"})
    await until(lambda: "config refused" in log_stream.getvalue())
    assert (await api.get("/readyz")).status == 200


async def test_idempotency_key_that_looks_like_a_hash_matches_no_hash(api: Api) -> None:
    first = await api.submit()
    job = (await api.get(f"/v1/jobs/{first}")).ok()
    assert job["idempotency_key"] is None
    view = await api.runtime.store.jobs.job(first)
    assert view is not None
    lookalike = f"sha256:{view.job.command.idempotency_hash}"
    assert await api.submit(idempotency_key=lookalike) != first


@pytest.mark.parametrize("word", ["non-retryable", "NON_RETRYABLE", " Non-Retryable "])
def test_older_spelling_of_a_failure_class_is_understood(word: str) -> None:
    assert failure_class(word, "FAILED") == "NON_RETRYABLE"


def test_logger_used_before_configuration_follows_the_later_configuration() -> None:
    early, later = io.StringIO(), io.StringIO()
    configure_logging("info", "json", early)
    log.info("said to the first")
    configure_logging("warning", "json", later)
    log.info("not loud enough")
    log.warning("said to the second")
    assert "said to the first" in early.getvalue()
    (line,) = later.getvalue().splitlines()
    assert "said to the second" in line


async def test_step_log_line_names_step_attempt_and_cause(api: Api, log_stream: io.StringIO) -> None:
    await api.submit()
    (await api.fail(await api.pull_one())).ok()
    (line,) = [line for line in log_stream.getvalue().splitlines() if "STEP_RETRY_SCHEDULED" in line]
    told = json.loads(line)
    assert (told["step_id"], told["attempt_no"], told["cause"]) == ("ocr", 1, "FAILED")


async def test_json_with_the_default_content_type_of_curl_is_accepted(api: Api) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    (await api.post("/v1/commands", api.command(), headers=headers)).ok(202)


async def test_pull_from_a_push_bus_is_refused_and_takes_nothing(start: Start) -> None:
    api = await start(bus_url="memory:")
    bus = api.runtime.publisher
    assert isinstance(bus, MemoryBus)
    bus.down = True
    job_id = await api.submit()
    (await api.post("/v1/services/ocr/directives:pull", {})).problem(409, "PUSH_BUS")
    assert (await api.step(job_id))["status"] == "DISPATCHING"


async def test_filter_for_an_unused_status_finds_no_job(api: Api) -> None:
    await api.submit()
    assert await api.jobs("status=PAUSED") == await api.jobs("blocked_on=TIMER") == []
