"""Files in the protocol folder are published versions, and published versions outlive the file and the process."""

import shutil
from pathlib import Path
from shutil import copy2
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from lucius.adapters.ledger.sqlite.store import SqliteStore, open_sqlite
from lucius.adapters.protocols.directory import SHIPPED
from lucius.core.protocol.definition import digest
from lucius.ports.errors import VersionPublished
from lucius.ports.protocols import ProtocolVersion, VersionStatus
from tests.integration.api.conftest import Start, key_entry
from tests.integration.api.test_protocol_lifecycle import V, deprecate, document, publish, statuses, submit
from tests.integration.api.test_reload import eventually, problems
from tests.support.api import Api, serving, settings_for
from tests.support.until import until


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


class TestProtocolFiles:
    async def test_file_is_a_published_version(self, settings: Any, folder: Path) -> None:
        path = write(folder)
        async with serving(settings) as api:
            shown = (await api.get(f"{V}/1")).ok()
            assert (shown["status"], shown["file"], shown["published"]["by"]) == (
                "PUBLISHED",
                str(path),
                "protocol files",
            )
            (await api.post("/v1/protocols", document(title="x"))).problem(409, "PROTOCOL_IMMUTABLE")

    async def test_changed_content_of_a_published_version_is_refused_while_running_and_after_a_restart(
        self, settings: Any, folder: Path
    ) -> None:
        write(folder, title="first")

        async def refused(api: Api) -> bool:
            return bool(await problems(api))

        async with serving(settings) as api:
            write(folder, title="second")
            await eventually(lambda: refused(api))
            await self.check_refusal(api, folder)
            assert (await submit(api)).status == 202
        for _ in range(2):
            async with serving(settings) as api:
                await self.check_refusal(api, folder)
        write(folder, title="second", version=2)
        async with serving(settings) as api:
            assert await problems(api) == []
            assert (await api.get("/v1/protocols/UPPER")).ok()["title"] == "second"
            assert (await api.get(f"{V}/1")).ok()["title"] == "first"

    async def check_refusal(self, api: Api, folder: Path) -> None:
        (problem,) = await problems(api)
        line = (folder / "upper.yaml").read_text().splitlines().index("request_type: UPPER") + 1
        assert (problem["file"], problem["line"]) == (str(folder / "upper.yaml"), line)
        assert "published with other content" in problem["reason"]
        assert "use a higher version" in problem["reason"]
        assert (await api.get("/v1/protocols/UPPER")).ok()["title"] == "first"

    async def test_version_survives_the_removal_of_its_file(self, settings: Any, folder: Path) -> None:
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

    async def test_versions_published_over_http_survive_a_restart_and_stay_immutable(self, settings: Any) -> None:
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

    async def test_acknowledged_publication_and_deprecation_survive_a_kill(self, settings: Any, tmp_path: Path) -> None:
        async with serving(settings) as api:
            await publish(api, 1)
            await deprecate(api, 1)
            for name in ("ledger.db", "ledger.db-wal"):  # the files as a kill at this moment would leave them
                copy2(tmp_path / name, tmp_path / f"killed-{name}")
        (tmp_path / "killed-ledger.db-wal").rename(tmp_path / "killed.db-wal")
        store = open_sqlite((tmp_path / "killed-ledger.db").rename(tmp_path / "killed.db"))
        kept = await store.protocols.protocol_versions()
        (version,) = [version for version in kept.versions if version.protocol.request_type == "UPPER"]
        assert version.status is VersionStatus.DEPRECATED
        changed = replace(version, protocol=replace(version.protocol, title="other"))
        with pytest.raises(VersionPublished):
            await store.protocols.put_protocols([changed], kept.revision)
        await store.close()

    async def test_draft_is_replaced_by_a_file_of_its_version(self, settings: Any, folder: Path) -> None:
        async with serving(settings) as api:
            drafted = (await api.post("/v1/protocols", document(title="draft"))).ok(201)
            write(folder, title="file")

            async def published() -> bool:
                return (await statuses(api))[1] == "PUBLISHED"

            await eventually(published)
            shown = (await api.get(f"{V}/1")).ok()
            assert (shown["title"], shown["created"]) == ("file", drafted["created"])

    async def test_file_with_an_alias_published_over_http_is_refused(self, settings: Any, folder: Path) -> None:
        async with serving(settings) as api:
            await publish(api, aliases=["LOUD"])
        write(folder, request_type="LOUD", protocol_id="loud")
        async with serving(settings) as api:
            (problem,) = await problems(api)
            assert problem["reason"] == "the name LOUD already stands for UPPER"
            assert (await submit(api)).status == 202

    async def test_version_stored_by_another_process_is_found_by_the_next_refresh(self, settings: Any) -> None:
        async with serving(settings) as api:
            store = api.runtime.store
            await publish(api)
            kept = await store.protocols.protocol_versions()
            other = next(version for version in kept.versions if version.protocol.request_type == "UPPER")
            moved = _as(other, 2)
            await store.protocols.put_protocols([moved], kept.revision)
            assert (await api.get(f"{V}/2")).ok()["version"] == 2

            async def serves() -> bool:
                protocol = api.runtime.protocols.resolve("UPPER")
                return protocol is not None and protocol.version == 2

            await eventually(serves)

    async def test_refresh_reads_nothing_if_nothing_changed(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with serving(settings) as api:
            await api.runtime.protocols.refresh()
            monkeypatch.setattr(type(api.runtime.store.protocols), "protocol_versions", _fail)
            monkeypatch.setattr(type(api.runtime.store.protocols), "put_protocols", _fail)
            assert await api.runtime.protocols.refresh() is False


async def test_key_of_one_tenant_sees_names_of_protocol_files_and_no_path(start: Start, folder: Path) -> None:
    keys = [key_entry("one", "read", tenants=("acme",)), key_entry("all", "read", tenants=("*",))]
    (folder / "schemas").mkdir()
    (folder / "schemas" / "bad.yaml").write_text("type: objekt\n")
    file = write(folder)
    (folder / "broken.yaml").write_text("steps: [")
    (folder / "later.yaml").write_text(yaml.safe_dump(document()))
    (folder / "shipped.yaml").write_text(yaml.safe_dump(document(request_type="OCR", protocol_id="ocr")))
    for number, schema in enumerate(("schemas/bad.yaml", "schemas/none.yaml"), 1):
        other = document(request_type=f"OTHER_{number}", protocol_id=f"other_{number}", input_schema=schema)
        (folder / f"other_{number}.yaml").write_text(yaml.safe_dump(other))
    api = await start({"api_keys": keys}, protocols_dir=folder)

    whole = (await api.get("/v1/protocols", key="all")).ok()
    named = {protocol["request_type"]: protocol["file"] for protocol in whole["protocols"]}
    assert (named["UPPER"], named["SIS"]) == (str(folder / "later.yaml"), str(SHIPPED / "sis.yaml"))
    seen = {problem["file"] for problem in whole["problems"]}
    assert {str(file), str(folder / "schemas/bad.yaml")} <= seen

    listed = (await api.get("/v1/protocols", key="one")).ok()
    assert {protocol["request_type"]: protocol["file"] for protocol in listed["protocols"]} == {
        name: Path(path).name for name, path in named.items()
    }
    assert sorted((problem["file"], problem["reason"][:55]) for problem in listed["problems"]) == [
        ("broken.yaml", "is not YAML: expected the node content, but found '<str"),
        ("other_2.yaml", "there is no file schemas/none.yaml"),
        ("schemas/bad.yaml", "is not a JSON Schema: there is no type 'objekt'; it can"),
        ("shipped.yaml", "version 1 of OCR is already given by the shipped ocr.ya"),
        ("upper.yaml", "version 1 of UPPER is already given by later.yaml; use "),
    ]
    for path in ("/v1/protocols", "/v1/protocols/UPPER", V, f"{V}/1", "/v1/protocols/OCR/versions"):
        answer = await api.get(path, key="one")
        assert answer.status == 200
        for server_path in (folder, folder.parent, SHIPPED):
            assert str(server_path).encode() not in answer.body

    shutil.rmtree(folder)
    await until(lambda: any(problem.file == str(folder) for problem in api.runtime.protocols.problems()))
    assert str(folder.parent).encode() not in (await api.get("/v1/protocols", key="one")).body


def _as(version: ProtocolVersion, number: int) -> ProtocolVersion:
    protocol = replace(version.protocol, version=number)
    return replace(version, protocol=protocol, digest=digest(protocol))


async def _fail(*_: Any) -> Any:
    raise AssertionError


async def test_full_disk_at_the_first_start_is_reported_and_recovered(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "ledger.db"
    await open_sqlite(path).close()
    pages = path.stat().st_size // 4096  # the size of its tables, without room for more
    api = await start(ledger_url=f"sqlite:///{path}", ledger_max_pages=pages)
    (await api.post("/v1/commands", api.command(payload={"ocr": {"pages": [12_345] * 9_000}}))).problem(
        507, "LEDGER_FULL"
    )
    (await api.post("/v1/protocols", document(description="x" * 4_096))).problem(507, "LEDGER_FULL")
    assert not (await api.runtime.store.protocols.protocol_versions()).versions
    assert (await api.get("/v1/protocols/OCR")).ok()["status"] == "PUBLISHED"
    assert isinstance(api.runtime.store, SqliteStore)
    api.runtime.store.file.connection.execute("PRAGMA max_page_count = 2000")

    async def recorded() -> bool:
        return bool((await api.runtime.store.protocols.protocol_versions()).versions)

    await eventually(recorded)
    await api.submit()
