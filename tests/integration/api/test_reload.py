"""Files change under a running server: valid ones take effect; invalid ones are refused, listed, and harmless."""

import asyncio
import io
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from lucius.adapters import yaml_with_lines
from lucius.adapters.config import file
from lucius.adapters.config.file import ConfigFile
from lucius.bootstrap import reload
from lucius.bootstrap.settings import load_settings
from tests.integration.api.conftest import Start, key_entry, write_config
from tests.support.api import WITHIN, Api, serving, settings_for
from tests.support.until import until

PROTOCOL: dict[str, Any] = {
    "protocol_id": "upper",
    "version": 1,
    "request_type": "UPPER",
    "steps": [{"step_id": "upper", "step_type": "UPPER", "service": "upper"}],
}


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds: the server reads its files every few hundredths of a second."""
    async with asyncio.timeout(WITHIN):
        while not await holds():  # noqa: ASYNC110 - a file has no event to wait for
            await asyncio.sleep(0.01)


async def problems(api: Api) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await api.get("/v1/protocols")).ok()["problems"]
    return listed


async def test_limits_and_keys_change_while_running(start: Start, tmp_path: Path) -> None:
    keys = [key_entry("old", "submit", tenants=("acme",))]
    api = await start({"limits": {"tenant_max_inflight": 1}, "api_keys": keys})
    await api.submit(idempotency_key="1")
    (await api.post("/v1/commands", api.command(idempotency_key="2"))).problem(429, "TENANT_LIMIT")
    keys = [key_entry("new", "submit", tenants=("acme",))]
    write_config(tmp_path, {"limits": {"tenant_max_inflight": 2}, "api_keys": keys})

    async def new_key_works() -> bool:
        return (await api.post("/v1/commands", api.command(idempotency_key="2"), key="new")).status == 202

    await eventually(new_key_works)
    (await api.post("/v1/commands", api.command(), key="old")).problem(401, "UNAUTHENTICATED")
    (await api.post("/v1/commands", api.command(idempotency_key="3"))).problem(429, "TENANT_LIMIT")


async def test_invalid_config_is_listed_and_the_last_valid_one_stays_in_force(start: Start, tmp_path: Path) -> None:
    api = await start({"limits": {"tenant_max_inflight": 1}})
    await api.submit(idempotency_key="1")
    (tmp_path / "lucius.yaml").write_text("limits:\n  tenant_max_inflight: many\n")

    async def listed() -> bool:
        return bool(await problems(api))

    await eventually(listed)
    (problem,) = await problems(api)
    assert (Path(problem["file"]).name, problem["line"]) == ("lucius.yaml", 2)
    assert problem["reason"]
    (await api.post("/v1/commands", api.command(idempotency_key="2"))).problem(429, "TENANT_LIMIT")
    write_config(tmp_path, {"limits": {"tenant_max_inflight": 5}})

    async def mended() -> bool:
        return not await problems(api)

    await eventually(mended)
    await api.submit(idempotency_key="2")


@pytest.mark.parametrize("damage", ["{", "protocol_id: [", "x: 1\n", "\x00", "- 1\n", "steps: &a [*a]\n"])
async def test_invalid_protocol_file_is_listed_and_published_versions_stay_in_force(
    start: Start, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "protocols"
    folder.mkdir()
    api = await start(protocols_dir=folder)
    (await api.post("/v1/commands", api.command(request_type="UPPER"))).problem(422, "UNKNOWN_REQUEST_TYPE")
    (folder / "upper.yaml").write_text(yaml.safe_dump(PROTOCOL))

    async def accepted() -> bool:
        return (await api.post("/v1/commands", api.command(request_type="UPPER"))).status == 202

    await eventually(accepted)
    (folder / "upper.yaml").write_text(damage)

    async def listed() -> bool:
        return bool(await problems(api))

    await eventually(listed)
    for problem in await problems(api):
        assert Path(problem["file"]).name == "upper.yaml"
        assert problem["reason"]
    await api.submit(request_type="UPPER", idempotency_key="still in force")
    await api.submit(request_type="OCR")


async def test_file_system_that_does_not_answer_holds_up_nothing_else(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_stream: io.StringIO
) -> None:
    answers, read = threading.Event(), yaml_with_lines.read_bytes

    def read_once_it_answers(path: Path) -> bytes:
        if path.name == "lucius.yaml":
            answers.wait(60)
        return read(path)

    folder = tmp_path / "protocols"
    folder.mkdir()
    api = await start({"limits": {"tenant_max_inflight": 1}}, protocols_dir=folder)
    for module in (reload, file):
        monkeypatch.setattr(module, "MAX_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(yaml_with_lines, "read_bytes", read_once_it_answers)
    write_config(tmp_path, {"limits": {"tenant_max_inflight": 2}})
    await until(lambda: "no answer from the file system" in log_stream.getvalue())
    (folder / "upper.yaml").write_text(yaml.safe_dump(PROTOCOL))

    async def accepted() -> bool:
        return (await api.post("/v1/commands", api.command(request_type="UPPER"))).status == 202

    await eventually(accepted)
    assert [thread.name for thread in threading.enumerate()].count("lucius-config-file") == 1
    (await api.post("/v1/commands", api.command())).problem(429, "TENANT_LIMIT")
    (problem,) = await problems(api)
    assert problem["reason"] == "can't be read: its file system does not answer"
    assert (await api.get("/readyz")).ok()["checks"]["config"]["ok"] is False
    answers.set()

    async def accepts_another() -> bool:
        return (await api.post("/v1/commands", api.command())).status == 202

    await eventually(accepts_another)
    assert not await problems(api)


async def test_announced_protocols_do_not_hasten_the_second_look_at_the_config_file(
    start: Start, tmp_path: Path
) -> None:
    api = await start({"limits": {"tenant_max_inflight": 1}}, reload_interval=0.5)
    write_config(tmp_path, {"limits": {"tenant_max_inflight": 2}})
    loop = asyncio.get_running_loop()
    changed_at = loop.time()
    while api.runtime.config.current().limits.tenant_max_inflight == 1:
        api.runtime.notifier.protocols.set()
        await asyncio.sleep(0.01)
    assert loop.time() - changed_at >= 0.5


async def test_server_stops_while_the_file_system_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(ConfigFile, "refresh", lambda self: answers.wait(60) and False)
    async with serving(settings_for(tmp_path)):
        await until(lambda: "lucius-config-file" in [thread.name for thread in threading.enumerate()])
    (hanging,) = (thread for thread in threading.enumerate() if thread.name == "lucius-config-file")
    assert hanging.daemon
    answers.set()
    hanging.join(WITHIN)


async def test_job_keeps_the_protocol_of_its_acceptance(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "protocols"
    folder.mkdir()
    (folder / "upper.yaml").write_text(yaml.safe_dump(PROTOCOL))
    api = await start(protocols_dir=folder)
    job_id = await api.submit(request_type="UPPER")
    other = {"version": 2, "steps": [{"step_id": "lower", "step_type": "LOWER", "service": "lower"}]}
    (folder / "upper.yaml").write_text(yaml.safe_dump({**PROTOCOL, **other}))

    async def replaced() -> bool:
        return bool((await api.get("/v1/protocols/UPPER")).ok()["version"] == 2)

    await eventually(replaced)
    (await api.succeed(await api.pull_one("upper"))).ok()
    assert (await api.job(job_id))["status"] == "SUCCEEDED"


def publish_mount(folder: Path, generation: str, files: dict[str, Any]) -> Path:
    """Write files as Kubernetes updates a ConfigMap volume: one rename moves all names to the new generation."""
    target = folder / f"..{generation}"
    target.mkdir(parents=True)
    for name, content in files.items():
        (target / name).write_text(yaml.safe_dump(content))
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    (folder / "..data_tmp").symlink_to(target.name)
    os.replace(folder / "..data_tmp", folder / "..data")
    return target


def publish_release(folder: Path, generation: str, files: dict[str, Any]) -> Path:
    """Write files as `ln -sfn` does: the folder itself is a link to the release."""
    target = folder.with_name(f"{folder.name}-{generation}")
    target.mkdir(parents=True)
    for name, content in files.items():
        (target / name).write_text(yaml.safe_dump(content))
    folder.with_name("next").symlink_to(target.name)
    os.replace(folder.with_name("next"), folder)
    return target


@pytest.mark.parametrize("publish", [publish_mount, publish_release])
async def test_linked_config_and_protocols_are_followed_to_their_new_target(
    start: Start, tmp_path: Path, publish: Callable[[Path, str, dict[str, Any]], Path]
) -> None:
    config, protocols = tmp_path / "etc", tmp_path / "flows"
    keys = [key_entry(name, "read", tenants=("acme",)) for name in ("stays", "leaked")]
    publish(config, "1", {"lucius.yaml": {"api_keys": keys}})
    publish(protocols, "1", {"upper.yaml": PROTOCOL})
    env = {"LUCIUS_CONFIG": f"{config}/lucius.yaml", "LUCIUS_PROTOCOLS_DIR": str(protocols)}
    settings = load_settings(env)
    api = await start(config_path=settings.config_path, protocols_dir=settings.protocols_dir)
    (await api.get("/v1/protocols/UPPER", key="leaked")).ok()

    changed = [
        publish(config, "2", {"lucius.yaml": {"api_keys": keys[:1]}}),
        publish(protocols, "2", {"upper.yaml": {**PROTOCOL, "version": 2}}),
    ]

    async def revoked() -> bool:
        return (await api.get("/v1/protocols/UPPER", key="leaked")).status == 401

    async def replaced() -> bool:
        return bool((await api.get("/v1/protocols/UPPER", key="stays")).ok()["version"] == 2)

    await eventually(revoked)
    await eventually(replaced)
    assert (await api.get("/readyz")).ok()["checks"]["config"] == {"ok": True}

    for folder in changed:
        shutil.rmtree(folder)
    await until(lambda: bool(api.runtime.config.problems()) and bool(api.runtime.protocols.problems()))
    checks = (await api.get("/readyz")).ok()["checks"]
    assert checks["config"]["ok"] is False
    assert "older version is used" in checks["config"]["detail"]
    assert (await api.get("/v1/protocols/UPPER", key="stays")).ok()["version"] == 2


@pytest.mark.parametrize("publish", [publish_mount, publish_release])
async def test_name_and_current_target_of_linked_files_are_files_of_lucius(
    start: Start, tmp_path_factory: pytest.TempPathFactory, publish: Callable[[Path, str, dict[str, Any]], Path]
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    config, protocols = outside / "etc", outside / "flows"
    permitted = {"refs": {"schemes": ["blob", "file"]}}
    publish(config, "1", {"lucius.yaml": permitted})
    publish(protocols, "1", {"upper.yaml": PROTOCOL})
    env = {"LUCIUS_CONFIG": f"{config}/lucius.yaml", "LUCIUS_PROTOCOLS_DIR": str(protocols)}
    settings = load_settings(env)
    api = await start(config_path=settings.config_path, protocols_dir=settings.protocols_dir)
    targets = [publish(config, "2", {"lucius.yaml": permitted}) / "lucius.yaml"]
    targets.append(publish(protocols, "2", {"upper.yaml": PROTOCOL}) / "upper.yaml")
    for path in (config / "lucius.yaml", protocols / "upper.yaml", *targets):

        async def refused(path: Path = path) -> bool:
            command = api.command(output_ref=f"file://{path}", idempotency_key=uuid4().hex)
            answer = await api.post("/v1/commands", command)
            return (
                answer.status == 422 and "is a file of Lucius itself" in answer.problem(422, "FORBIDDEN_REF")["detail"]
            )

        await eventually(refused)


class Panic(BaseException):
    """Raised by extension modules, past every `except Exception`."""


async def test_look_that_ends_by_a_base_exception_fails_once_and_the_next_one_reads_again() -> None:
    outcomes: list[BaseException | None] = [Panic("in a parser"), None]

    def read() -> str:
        failure = outcomes.pop(0)
        if failure is not None:
            raise failure
        return "content"

    look = reload.FileLook("test", read)
    with pytest.raises(RuntimeError, match="Panic: in a parser"):
        await look.result()
    assert await look.result() == "content"


async def test_look_without_a_thread_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    look = reload.FileLook("test", lambda: "content")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            await look.result()
    assert await look.result() == "content"
