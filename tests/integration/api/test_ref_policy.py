"""The ref policy at ingress, and in the directives, where services check it again."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from lucius.bootstrap.own_files import ref_defaults
from lucius.bootstrap.settings import load_settings
from lucius.contract import Directive
from lucius.contract.reserved_names import DATA_FILES
from lucius.ports.errors import SettingsError
from lucius.worker import FailureClass, StepFailure
from lucius.worker.workspace import Files, Places
from tests.integration.api.conftest import Start, write_config
from tests.support.api import Api, command
from tests.support.until import until

ISOLATED = {"refs": {"prefixes": ["in/{tenant}", "out/{tenant}"]}}


@pytest.fixture
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of clients' files outside the data directory."""
    return tmp_path_factory.mktemp("documents")


async def refusal(api: Api, **fields: Any) -> tuple[str, list[dict[str, str]]]:
    """Submit a command that must be refused; return code and faults."""
    answer = await api.post("/v1/commands", api.command(**fields))
    assert answer.status == 422, answer.body
    return answer.json["code"], answer.json["errors"]


@pytest.mark.parametrize(
    ("field", "ref", "setting"),
    [
        ("input_ref", "file:///etc/passwd", "refs.input_schemes"),
        ("input_ref", "s3://bucket/a", "refs.input_schemes"),
        ("output_ref", "file:///srv/lucius.yaml", "refs.output_schemes"),
        ("output_ref", "https://files.example.com/out", "refs.output_schemes"),
    ],
)
async def test_default_schemes_are_blob_and_https_for_inputs_and_blob_for_outputs(
    start: Start, field: str, ref: str, setting: str
) -> None:
    api = await start()
    code, (fault,) = await refusal(api, **{field: ref})
    assert (code, fault["pointer"]) == ("FORBIDDEN_REF", f"/{field}")
    assert setting in fault["message"]
    await api.submit(input_ref="https://files.example.com/a.pdf", output_ref="blob://out/a")


@pytest.mark.parametrize("host", ["10.0.0.1", "[::1]", "[::ffff:10.0.0.1]", "167772161"])
async def test_input_at_an_address_that_no_service_reads_is_refused_unless_the_config_lists_it(
    start: Start, host: str
) -> None:
    ref = f"https://{host}/a.pdf"
    code, (fault,) = await refusal(await start(), input_ref=ref)
    assert (code, fault["pointer"]) == ("FORBIDDEN_REF", "/input_ref")
    assert "refs.hosts in the config file" in fault["message"]
    listed = await start({"refs": {"hosts": [host]}})
    await listed.submit(input_ref=ref)


async def test_prefix_with_a_tenant_placeholder_separates_all_tenants(start: Start) -> None:
    api = await start(ISOLATED)
    for tenant in ("acme", "globex"):
        own = {"tenant_id": tenant, "input_ref": f"blob://in/{tenant}/a", "output_ref": f"blob://out/{tenant}/a"}
        await api.submit(**own)
        for field in ("input_ref", "output_ref"):
            code, (fault,) = await refusal(api, **{**own, field: "blob://in/initech/a"})
            assert (code, fault["pointer"]) == ("FORBIDDEN_REF", f"/{field}")
            assert "refs.prefixes" in fault["message"]
        await refusal(api, **{**own, "input_ref": f"blob://in/{tenant}2/a"})
        await refusal(api, **{**own, "input_ref": f"blob://in/{tenant}/%2e%2e/initech/a"})


async def test_policy_applies_to_each_command_of_a_batch(start: Start) -> None:
    api = await start(ISOLATED)
    good = command(input_ref="blob://in/acme/a", output_ref="blob://out/acme/a")
    answer = await api.post("/v1/commands:batch", {"commands": [good, {**good, "input_ref": "blob://in/globex/a"}]})
    results = answer.json["results"]
    assert [result["status_code"] for result in results] == [202, 422]
    assert results[1]["code"] == "FORBIDDEN_REF"


async def test_tenant_policy_narrows_and_never_widens_the_default(start: Start) -> None:
    tenants = {
        "acme": {"refs": {"schemes": ["blob", "s3"], "containers": ["acme"], "hosts": ["hooks.acme.com"]}},
        "globex": {},
    }
    api = await start({"tenants": tenants})
    own = {"input_ref": "blob://acme/a", "output_ref": "blob://acme/b"}
    await api.submit(**own)
    _, (fault,) = await refusal(api, **{**own, "input_ref": "blob://globex/a"})
    assert "tenants.acme.refs.containers" in fault["message"]
    _, faults = await refusal(api, **{**own, "input_ref": "https://hooks.acme.com/a"})
    assert "tenants.acme.refs.input_schemes" in faults[0]["message"]
    _, faults = await refusal(api, **{**own, "input_ref": "s3://acme/a"})
    assert "(refs.input_schemes in" in faults[0]["message"]
    await api.submit(tenant_id="globex", input_ref="blob://globex/a", output_ref="blob://x/b")
    code, (fault,) = await refusal(api, **own, callback_urls={"job": "https://evil.example/hook"})
    assert (code, fault["pointer"]) == ("CALLBACK_URL_FORBIDDEN", "/callback_urls/job")
    assert "tenants.acme.refs.callback_hosts" in fault["message"]
    await api.submit(**{**own, "output_ref": "blob://acme/c"}, callback_urls={"job": "https://hooks.acme.com/hook"})


@pytest.mark.parametrize(
    "narrowed",
    [
        {"callbacks": {"hosts": ["a.example.com"]}},
        {
            "callbacks": {"hosts": ["a.example.com", "b.example.com"]},
            "tenants": {"acme": {"refs": {"callback_hosts": ["a.example.com"]}}},
        },
    ],
    ids=["by the deployment", "by the tenant's policy"],
)
async def test_tokens_are_not_sent_to_callback_hosts_that_are_no_longer_permitted(
    start: Start, tmp_path: Path, narrowed: dict[str, Any]
) -> None:
    api = await start({"callbacks": {"hosts": ["a.example.com", "b.example.com"]}})
    given = {"ack": "https://a.example.com/ack", "result": "https://b.example.com/result"}
    for key in ("before", "after"):
        await api.submit(idempotency_key=key, callback_urls=given)
    sent = (await api.pull_one())["callback_urls"]
    assert {name: sent[name] for name in given} == given
    before = api.runtime.config.current()
    write_config(tmp_path, narrowed)
    await until(lambda: api.runtime.config.current() != before)
    sent = (await api.pull_one())["callback_urls"]
    assert sent["ack"] == given["ack"]
    assert sent["result"] == sent["heartbeat"].replace("heartbeat", "result")


async def test_sdk_refuses_refs_that_the_directive_does_not_permit(start: Start, tmp_path: Path) -> None:
    api = await start(ISOLATED)
    await api.submit(input_ref="blob://in/acme/a", output_ref="blob://out/acme/b")
    directive = msgspec.convert(await api.pull_one(), Directive)
    for name in ("in/acme/a", "in/acme2/a", "in/globex/a"):
        path = tmp_path / "blobs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    files = Files(directive, Places(blob_root=tmp_path / "blobs", file_roots=(tmp_path,)))
    assert files.read("blob://in/acme/a") == b"in/acme/a"
    files.write_output(b"b")
    assert (tmp_path / "blobs/out/acme/b").read_bytes() == b"b"
    for ref in (
        "blob://in/globex/a",
        "blob://in/acme2/a",
        "blob://in/acme/../globex/a",
        "blob://in/acme/%2e%2e/globex/a",
        "blob://in//globex/a",
        f"file://{tmp_path}/blobs/in/acme/a",  # `file` is no permitted scheme here
    ):
        assert_forbidden(files, ref)


def assert_forbidden(files: Files, ref: str) -> None:
    for act in (lambda: files.read(ref), lambda: files.write_output(b"mine", ref=ref)):
        with pytest.raises(StepFailure) as refused:
            act()
        assert (refused.value.code, refused.value.failure_class) == ("FORBIDDEN_REF", FailureClass.NON_RETRYABLE)


async def test_file_ref_cannot_reach_a_blob_of_another_tenant(start: Start, tmp_path: Path, documents: Path) -> None:
    schemes = {"schemes": ["blob", "file"], "prefixes": ["in/{tenant}", "out/{tenant}"]}
    api = await start({"refs": schemes})
    await api.submit(input_ref="blob://in/acme/a", output_ref="blob://out/acme/b")
    blobs = tmp_path / "blobs"
    for tenant in ("acme", "globex"):
        (blobs / "in" / tenant).mkdir(parents=True)
        (blobs / "in" / tenant / "a").write_bytes(tenant.encode())
    files = Files(msgspec.convert(await api.pull_one(), Directive), Places(blob_root=blobs, file_roots=(documents,)))
    assert files.read(f"file://{blobs}/in/acme/a") == b"acme"
    (documents / "link").symlink_to(blobs / "in/globex")
    for path in (f"{blobs}/in/globex/a", f"{documents}/link/a"):
        assert_forbidden(files, f"file://{path}")


async def test_server_files_are_refused_at_ingress_and_in_the_sdk_if_file_refs_are_permitted(
    start: Start, documents: Path
) -> None:
    api = await start({"refs": {"schemes": ["blob", "file"]}})
    config = api.runtime.settings.config_path
    data_dir = api.runtime.settings.data_dir
    assert config is not None
    for path in (config, data_dir / "token.secret", data_dir / "workspace/lucius/globex/job-1/ocr/1/text.txt"):
        code, (fault,) = await refusal(api, output_ref=path.as_uri())
        assert (code, fault["message"]) == ("FORBIDDEN_REF", "is a file of Lucius itself")
    await api.submit(input_ref=(documents / "a.txt").as_uri())
    before = config.read_bytes()
    (documents / "innocent.txt").symlink_to(config)
    files = Files(msgspec.convert(await api.pull_one(), Directive), Places(file_roots=(Path("/"),)))
    assert_forbidden(files, config.as_uri())
    assert_forbidden(files, (documents / "innocent.txt").as_uri())
    assert config.read_bytes() == before


async def test_server_file_below_the_blob_folder_is_not_readable_as_a_blob(start: Start, tmp_path: Path) -> None:
    protocols = tmp_path / "blobs/in/protocols"
    protocols.mkdir(parents=True)
    api = await start(protocols_dir=protocols)
    await api.submit()
    directive = msgspec.convert(await api.pull_one(), Directive)
    assert [rules.protected for rules in directive.ref_rules] == [[str(protocols)]]
    files = Files(directive, Places(blob_root=tmp_path / "blobs"))
    assert_forbidden(files, "blob://in/protocols/a.yaml")


async def test_server_files_are_not_readable_as_blobs_of_a_wider_blob_folder(start: Start, documents: Path) -> None:
    config, protocols = write_config(documents, {}), documents / "flows"
    protocols.mkdir()
    api = await start(config_path=config, protocols_dir=protocols)
    await api.submit()
    directive = msgspec.convert(await api.pull_one(), Directive)
    assert [rules.protected for rules in directive.ref_rules] == [[str(config), str(protocols)]]
    files = Files(directive, Places(blob_root=documents.parent))
    for name in (config.name, "flows/new.yaml"):
        assert_forbidden(files, f"blob://{documents.name}/{name}")


async def test_files_that_settings_name_in_the_data_directory_are_no_blobs(
    start: Start, tmp_path: Path, documents: Path
) -> None:
    config = write_config(tmp_path, {}).rename(tmp_path / "settings.yaml")
    api = await start(config_path=config, workspace_root=documents.as_uri())
    for name in DATA_FILES:
        (tmp_path / name).unlink(missing_ok=True)  # as if the environment had all secrets
    await api.submit()
    files = Files(msgspec.convert(await api.pull_one(), Directive), Places(blob_root=tmp_path.parent))
    assert_forbidden(files, f"blob://{tmp_path.name}/settings.yaml")


async def test_directive_omits_server_files_that_no_blob_ref_can_reach(start: Start) -> None:
    api = await start()
    await api.submit()
    directive = msgspec.convert(await api.pull_one(), Directive)
    assert [rules.protected for rules in directive.ref_rules] == [[]]


async def test_dev_permits_files_below_its_folder(start: Start, documents: Path) -> None:
    api = await start(dev_file_roots=(str(documents / "here"),))
    own = {"input_ref": (documents / "here/a.txt").as_uri(), "output_ref": (documents / "here/b.txt").as_uri()}
    await api.submit(**own)
    _, (fault,) = await refusal(api, **{**own, "input_ref": (documents / "here2/a.txt").as_uri()})
    assert fault["message"].startswith(f"a file reference must lie below {documents}/here (`lucius dev` permits ")


@pytest.mark.parametrize(
    ("name", "says"), [(".bashrc", "the hidden name .bashrc"), ("new/lucius.yaml", "lucius.yaml, which is reserved")]
)
async def test_dev_refuses_hidden_and_reserved_names_at_ingress(
    start: Start, documents: Path, name: str, says: str
) -> None:
    api = await start(dev_file_roots=(str(documents),))
    code, (fault,) = await refusal(api, output_ref=(documents / name).as_uri())
    assert (code, fault["pointer"]) == ("FORBIDDEN_REF", "/output_ref")
    assert says in fault["message"]


async def test_reserved_name_of_a_blob_is_refused_at_ingress(start: Start) -> None:
    api = await start({"tenants": {"acme": {"refs": {"containers": ["data"]}}}})
    code, (fault,) = await refusal(api, input_ref="blob://data/a", output_ref="blob://data/token.secret")
    assert (code, fault["pointer"]) == ("FORBIDDEN_REF", "/output_ref")
    assert "the name token.secret, which is reserved" in fault["message"]


async def test_blob_may_end_in_key(start: Start, documents: Path) -> None:
    api = await start()
    await api.submit(input_ref="blob://in/Board%20deck.key", output_ref="blob://out/Board%20deck.key")
    (documents / "in").mkdir()
    (documents / "in/Board deck.key").write_bytes(b"slides")
    files = Files(msgspec.convert(await api.pull_one(), Directive), Places(blob_root=documents))
    assert files.read("blob://in/Board%20deck.key") == b"slides"
    files.write_output(b"copy")
    assert (documents / "out/Board deck.key").read_bytes() == b"copy"


async def test_directive_carries_the_ref_rules(start: Start) -> None:
    api = await start()
    await api.submit()
    directive = msgspec.convert(await api.pull_one(), Directive)
    assert [rules.input_schemes for rules in directive.ref_rules] == [["blob", "https"]]


def test_relative_ledger_is_protected_with_its_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    settings = load_settings({"LUCIUS_LEDGER_URL": "sqlite:///linked/ledger.db", "LUCIUS_DATA_DIR": "/srv/data"})
    protected = ref_defaults(settings).protected
    for ending in ("", "-wal", "-shm", "-journal", ".lock"):
        assert f"{tmp_path}/linked/ledger.db{ending}" in protected
        assert f"{tmp_path.resolve()}/real/ledger.db{ending}" in protected


def test_key_files_of_connections_are_protected(tmp_path: Path) -> None:
    urls = {
        "LUCIUS_LEDGER_URL": f"postgresql://db/x?sslmode=verify-full&sslkey={tmp_path}/ledger%20tls",
        "LUCIUS_BUS_URL": f"rediss://bus?ssl_keyfile={tmp_path}/bus",
        "LUCIUS_GATE_URL": f"rediss://gates?ssl_certfile={tmp_path}/gates",
    }
    protected = ref_defaults(load_settings(urls)).protected
    assert {f"{tmp_path}/{name}" for name in ("ledger tls", "bus", "gates")} <= set(protected)


@pytest.mark.parametrize(
    "root",
    [
        *("blob://work", "https://acct.blob.core.windows.net/work", "file:work", "work"),
        *("file:///srv/../x", "file:///srv/%2e%2e/x", "file:///srv/%00x", "file:///a%5Cb"),
    ],
)
async def test_unwritable_workspace_root_is_refused_at_start(start: Start, root: str) -> None:
    with pytest.raises(SettingsError, match="LUCIUS_WORKSPACE_ROOT"):
        await start(workspace_root=root)
