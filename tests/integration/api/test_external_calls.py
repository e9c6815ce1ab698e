"""A protocol with external calls, with the real wiring: config file, environment, engine, API."""

import asyncio
import json
from pathlib import Path

import pytest

from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import load_settings
from lucius.ports.errors import SettingsError
from tests.integration.api.conftest import Start, write_config
from tests.support.api import Api, serving, settings_for
from tests.support.peer import always, peer
from tests.support.until import until

PROTOCOL = {
    "protocol_id": "pay",
    "version": 1,
    "request_type": "PAY",
    "input_schema": {"type": "object", "required": ["amount"]},
    "steps": [
        {
            "step_id": "charge",
            "kind": "external_call",
            "external_call": {
                "url": "%s/charges",
                "headers": {"Authorization": "Bearer ${secrets.bank-key}"},
                "body": {"amount": "${input.amount}"},
                "result": "response.body.id",
            },
        },
        {
            "step_id": "tell",
            "kind": "notify",
            "notify": {"url": "%s/hooks", "type": "charge.made", "data": {"charge": "${steps.charge.result}"}},
        },
    ],
}
SECRETS = {"BANK_KEY": "the-banks-key"}
WEBHOOK_SECRETS = {"DEFAULT": "whsec_YW4gb2xkIHNlY3JldCBvZiAyNCBieXRl"}


def write_protocol(folder: Path, url: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "pay.json").write_text(json.dumps(PROTOCOL).replace("%s", url))
    return folder


async def submit_payment(api: Api) -> str:
    command = api.command(request_type="PAY", payload={"amount": 12})
    answer = (await api.post("/v1/commands", command)).ok(202)
    job_id: str = answer["jobId"]
    return job_id


async def test_job_performs_an_external_call_and_a_notification(start: Start, tmp_path: Path) -> None:
    async with peer() as remote:
        remote.answer = always(200, {"id": "ch_1"})
        calls = {"hosts": [f"127.0.0.1:{remote.port}"], "allow_http": True, "allow_private": True}
        api = await start(
            {"calls": calls},
            protocols_dir=write_protocol(tmp_path / "protocols", remote.url),
            secrets=SECRETS,
            webhook_secrets=WEBHOOK_SECRETS,
        )
        job_id = await submit_payment(api)
        job = (await api.get(f"/v1/jobs/{job_id}?wait=5")).ok()
        assert job["status"] == "SUCCEEDED", job
        charge, hook = remote.seen
        assert charge.headers["authorization"] == "Bearer the-banks-key"
        assert hook.json["data"] == {"charge": "ch_1"}
        assert [step["service"] for step in job["steps"]] == ["lucius.http", "lucius.http"]


async def test_external_call_is_refused_without_a_call_configuration(start: Start, tmp_path: Path) -> None:
    async with peer() as remote:
        api = await start(protocols_dir=write_protocol(tmp_path / "protocols", remote.url), secrets=SECRETS)
        job = (await api.get(f"/v1/jobs/{await submit_payment(api)}?wait=5")).ok()
        assert (job["status"], job["error"]["code"]) == ("FAILED_FINAL", "BAD_URL")
        assert remote.seen == []


async def test_changed_config_applies_to_the_next_call(start: Start, tmp_path: Path) -> None:
    async with peer() as remote:
        remote.answer = always(200, {"id": "ch_1"})
        api = await start(
            {"calls": {"hosts": ["a.example.com"], "allow_http": True, "allow_private": True}},
            protocols_dir=write_protocol(tmp_path / "protocols", remote.url),
            secrets=SECRETS,
            webhook_secrets=WEBHOOK_SECRETS,
        )
        refused = (await api.get(f"/v1/jobs/{await submit_payment(api)}?wait=5")).ok()
        assert refused["error"]["code"] == "HOST_NOT_ALLOWED"
        before = api.runtime.config.current()
        write_config(tmp_path, {"calls": {"hosts": ["127.0.0.1"], "allow_http": True, "allow_private": True}})
        await until(lambda: api.runtime.config.current() is not before)
        job = (await api.post("/v1/commands", api.command(request_type="PAY", payload={"amount": 13}))).ok(202)
        assert (await api.get(f"/v1/jobs/{job['jobId']}?wait=5")).ok()["status"] == "SUCCEEDED"


async def test_stopping_server_lets_a_running_call_finish(tmp_path: Path) -> None:
    calls = {"hosts": ["127.0.0.1"], "allow_http": True, "allow_private": True}
    async with peer() as remote:
        settings = settings_for(
            tmp_path,
            ledger_url=f"sqlite:///{tmp_path / 'ledger.db'}",
            config_path=write_config(tmp_path, {"calls": calls}),
            protocols_dir=write_protocol(tmp_path / "protocols", remote.url),
            secrets=SECRETS,
        )
        remote.answer = always(404)
        remote.gate.clear()
        async with serving(settings) as api:
            job_id = await submit_payment(api)
            await remote.saw(1)
            asyncio.get_running_loop().call_later(0.1, remote.gate.set)
        async with serving(settings) as api:
            job = await api.job(job_id)
        assert (job["status"], job["error"]["code"]) == ("FAILED_FINAL", "HTTP_404")


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"LUCIUS_WEBHOOK_SECRET_BILLING": "not-a-secret"}, "LUCIUS_WEBHOOK_SECRET_BILLING: "),
        ({"LUCIUS_ORCHESTRATOR_URL": "lucius.example.com"}, "LUCIUS_ORCHESTRATOR_URL: "),
    ],
)
async def test_unusable_setting_is_named_at_the_start(tmp_path: Path, env: dict[str, str], named: str) -> None:
    settings = load_settings(env, data_dir=tmp_path, ledger_url="memory:")
    with pytest.raises(SettingsError, match=named):
        async with open_runtime(settings):
            pass


async def test_engine_service_cannot_be_pulled(api: Api) -> None:
    assert (await api.post("/v1/services/lucius.http/directives:pull", {})).status == 404
