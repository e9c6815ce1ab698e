"""Files in the protocol folder are published versions, and what was published outlives file and process."""

from pathlib import Path
from shutil import copy2
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from lucius.adapters.ledger_sqlite import SqliteLedger
from lucius.core.protocol import digest
from lucius.ports.errors import VersionPublished
from lucius.ports.protocols import ProtocolVersion, VersionStatus
from tests.support.api import Api, serving, settings_for
from tests.unit.api.conftest import Start
from tests.unit.api.test_protocol_life import V, deprecate, document, publish, statuses, submit
from tests.unit.api.test_reload import eventually, problems


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "protocols"
    folder.mkdir()
    return folder


@pytest.fixture
def settings(tmp_path: Path, folder: Path) -> Any:
    return settings_for(tmp_path, ledger_url=f"sqlite:///{tmp_path}/ledger.db", protocols_dir=folder)


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "upper.yaml"
    path.write_text(yaml.safe_dump(document(**changes)))
    return path


class TestFiles:
    async def test_a_file_is_a_published_version(self, settings: Any, folder: Path) -> None:
        path = write(folder)
        async with serving(settings) as api:
            shown = (await api.get(f"{V}/1")).ok()
            assert (shown["status"], shown["file"], shown["published"]["by"]) == (
                "PUBLISHED",
                str(path),
                "protocol files",
            )
            (await api.post("/v1/protocols", document(title="x"))).problem(409, "PROTOCOL_IMMUTABLE")

    async def test_other_content_under_a_published_number_is_refused_while_running_and_after_a_restart(
        self, settings: Any, folder: Path
    ) -> None:
        write(folder, title="first")

        async def refused(api: Api) -> bool:
            return bool(await problems(api))

        async with serving(settings) as api:
            write(folder, title="second")
            await eventually(lambda: refused(api))
            await self.look_at_the_refusal(api, folder)
            assert (await submit(api)).status == 202
        for _ in range(2):
            async with serving(settings) as api:
                await self.look_at_the_refusal(api, folder)
        write(folder, title="second", version=2)
        async with serving(settings) as api:
            assert await problems(api) == []
            assert (await api.get("/v1/protocols/UPPER")).ok()["title"] == "second"
            assert (await api.get(f"{V}/1")).ok()["title"] == "first"

    async def look_at_the_refusal(self, api: Api, folder: Path) -> None:
        (problem,) = await problems(api)
        line = (folder / "upper.yaml").read_text().splitlines().index("request_type: UPPER") + 1
        assert (problem["file"], problem["line"]) == (str(folder / "upper.yaml"), line)
        assert "published with other content" in problem["reason"]
        assert "use a higher version" in problem["reason"]
        assert (await api.get("/v1/protocols/UPPER")).ok()["title"] == "first"

    async def test_a_version_outlives_its_file(self, settings: Any, folder: Path) -> None:
        path = write(folder)
        async with serving(settings) as api:
            path.unlink()
            api.clock.advance(1)
        async with serving(settings) as api:
            assert (await submit(api)).status == 202
            await deprecate(api)
            (await submit(api, idempotency_key="2")).problem(409, "PROTOCOL_DEPRECATED")
        write(folder)
        async with serving(settings) as api:
            assert await problems(api) == []
            (await submit(api, idempotency_key="2")).problem(409, "PROTOCOL_DEPRECATED")

    async def test_what_came_over_http_is_there_after_a_restart_and_still_immutable(self, settings: Any) -> None:
        async with serving(settings) as api:
            await publish(api, 1)
            await publish(api, 2)
            await api.post("/v1/protocols", document(3))
            await deprecate(api, 1)
            before = (await api.get(V)).ok()
        async with serving(settings) as api:
            assert (await api.get(V)).ok() == before
            (await api.post("/v1/protocols", document(2, title="x"))).problem(409, "PROTOCOL_IMMUTABLE")
            (await api.call("DELETE", f"{V}/2")).problem(409, "PROTOCOL_IMMUTABLE")
            (await submit(api, protocol_version=1)).problem(409, "PROTOCOL_DEPRECATED")
            assert (await submit(api)).status == 202
            (await api.post("/v1/protocols", document(3, title="x"))).ok(200)

    async def test_what_was_answered_survives_a_kill(self, settings: Any, tmp_path: Path) -> None:
        async with serving(settings) as api:
            await publish(api, 1)
            await deprecate(api, 1)
            for name in ("ledger.db", "ledger.db-wal"):  # as a kill here and now would leave them
                copy2(tmp_path / name, tmp_path / f"killed-{name}")
        (tmp_path / "killed-ledger.db-wal").rename(tmp_path / "killed.db-wal")
        ledger = SqliteLedger.open((tmp_path / "killed-ledger.db").rename(tmp_path / "killed.db"))
        kept = await ledger.protocol_versions()
        (version,) = [version for version in kept.versions if version.protocol.request_type == "UPPER"]
        assert version.status is VersionStatus.DEPRECATED
        changed = replace(version, protocol=replace(version.protocol, title="other"))
        with pytest.raises(VersionPublished):
            await ledger.put_protocols([changed], kept.revision)
        await ledger.close()

    async def test_a_draft_makes_way_for_a_file(self, settings: Any, folder: Path) -> None:
        async with serving(settings) as api:
            drafted = (await api.post("/v1/protocols", document(title="draft"))).ok(201)
            write(folder, title="file")

            async def published() -> bool:
                return (await statuses(api))[1] == "PUBLISHED"

            await eventually(published)
            shown = (await api.get(f"{V}/1")).ok()
            assert (shown["title"], shown["created"]) == ("file", drafted["created"])

    async def test_a_file_with_a_name_that_was_published_over_http_is_refused(
        self, settings: Any, folder: Path
    ) -> None:
        async with serving(settings) as api:
            await publish(api, aliases=["LOUD"])
        write(folder, request_type="LOUD", protocol_id="loud")
        async with serving(settings) as api:
            (problem,) = await problems(api)
            assert problem["reason"] == "the name LOUD already stands for UPPER"
            assert (await submit(api)).status == 202

    async def test_another_process_is_heard_of_at_the_next_look(self, settings: Any) -> None:
        async with serving(settings) as api:
            store = api.runtime.store
            await publish(api)
            kept = await store.protocol_versions()
            other = next(version for version in kept.versions if version.protocol.request_type == "UPPER")
            moved = _as(other, 2)
            await store.put_protocols([moved], kept.revision)
            assert (await api.get(f"{V}/2")).ok()["version"] == 2

            async def serves() -> bool:
                protocol = api.runtime.protocols.resolve("UPPER")
                return protocol is not None and protocol.version == 2

            await eventually(serves)

    async def test_a_look_reads_nothing_when_nothing_changed(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with serving(settings) as api:
            await api.runtime.protocols.refresh()
            monkeypatch.setattr(type(api.runtime.store), "protocol_versions", _fail)
            monkeypatch.setattr(type(api.runtime.store), "put_protocols", _fail)
            assert await api.runtime.protocols.refresh() is False


def _as(version: ProtocolVersion, number: int) -> ProtocolVersion:
    protocol = replace(version.protocol, version=number)
    return replace(version, protocol=protocol, digest=digest(protocol))


async def _fail(*_: Any) -> Any:
    raise AssertionError


async def test_a_full_disk_at_the_first_start_is_told_as_such(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "ledger.db"
    await SqliteLedger.open(path).close()
    pages = path.stat().st_size // 4096  # its tables, and no room for more
    api = await start(ledger_url=f"sqlite:///{path}", ledger_max_pages=pages)
    (await api.post("/v1/commands", api.command(payload={"ocr": {"x": "x" * 50_000}}))).problem(507, "LEDGER_FULL")
    (await api.post("/v1/protocols", document(description="x" * 4_096))).problem(507, "LEDGER_FULL")
    assert not (await api.runtime.store.protocol_versions()).versions
    assert (await api.get("/v1/protocols/OCR")).ok()["status"] == "PUBLISHED"
    connection = api.runtime.store._store.connection  # type: ignore[attr-defined]
    connection.execute("PRAGMA max_page_count = 2000")

    async def recorded() -> bool:
        return bool((await api.runtime.store.protocol_versions()).versions)

    await eventually(recorded)
    await api.submit()
