import hashlib
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lucius.adapters.config_file import ConfigFile, read_config
from lucius.core.inputs import Cap
from lucius.core.model import Mode
from lucius.core.protocol import Policies, Protocol, StepSpec
from lucius.ports.config import CallPolicy, Config, ConfigSource, Limits, TenantPolicy
from lucius.ports.errors import LimitReached, ProtocolError
from lucius.service.config import LimitDefaults, ModeChoice, caps, over_limit, resolve_mode
from lucius.service.errors import RejectCode, Rejected
from lucius.settings import load_settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "lucius.yaml"
DEV = Config()
GOVERNED = Config(
    default_mode=Mode.SAFE,
    tenants={
        "acme": TenantPolicy(mode=Mode.BURST, allow_burst=True, max_inflight=5),
        "globex": TenantPolicy(allow_burst=True),
        "initech": TenantPolicy(),
    },
)
OCR = Protocol(
    protocol_id="ocr", version=1, request_type="OCR", steps=(StepSpec(step_id="ocr", step_type="OCR", service="ocr"),)
)


def write(path: Path, text: str) -> None:
    """Write a file so that its change is seen even within one tick of the file system's clock."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def code_of(config: Config, requested: str | None, tenant: str, doc_id: str | None) -> RejectCode:
    with pytest.raises(Rejected) as refused:
        resolve_mode(config, requested, tenant, doc_id)
    return refused.value.code


def test_the_documented_example_loads_and_means_what_it_says() -> None:
    config = read_config(EXAMPLE)
    assert resolve_mode(config, None, "acme", "d").mode is Mode.BURST
    assert code_of(config, "BURST", "stranger", "d") is RejectCode.MODE_NOT_PERMITTED
    assert config.api_keys[0].sha256 == hashlib.sha256(b"acme-example-key").hexdigest()
    assert caps(config, LimitDefaults(), "acme", Mode.BURST, OCR)[0] == Cap("jobs/tenant/acme", 500)


def test_calls_go_nowhere_unless_the_config_says_where() -> None:
    assert Config().calls == CallPolicy(hosts=(), allow_http=False, allow_private=False, per_host=8)
    assert read_config(EXAMPLE).calls.hosts == ("api.example.com", "*.hooks.example.com", "ledger.example.com:8443")


def test_secrets_are_read_from_the_environment_by_name() -> None:
    env = {
        "LUCIUS_SECRET_STRIPE_KEY": "sk_1",
        "LUCIUS_SECRET_EMPTY": " ",
        "LUCIUS_SECRET_": "nameless",
        "LUCIUS_WEBHOOK_SECRET_DEFAULT": "whsec_a whsec_b",
    }
    settings = load_settings(env)
    assert settings.secrets == {"STRIPE_KEY": "sk_1"}
    assert settings.webhook_secrets == {"DEFAULT": "whsec_a whsec_b"}


def test_the_request_decides_the_mode_before_tenant_and_global_config() -> None:
    assert resolve_mode(GOVERNED, "DEFAULT", "acme", None) == ModeChoice(
        Mode.DEFAULT, "REQUEST", "the request asks for DEFAULT"
    )
    assert resolve_mode(GOVERNED, None, "acme", "d") == ModeChoice(
        Mode.BURST, "TENANT_CONFIG", "the tenant's mode is BURST"
    )
    assert resolve_mode(GOVERNED, None, "globex", None) == ModeChoice(
        Mode.DEFAULT, "GLOBAL_CONFIG", "the default mode is SAFE"
    )
    assert resolve_mode(DEV, None, "any", None).source == "GLOBAL_CONFIG"


def test_safe_resolves_to_default() -> None:
    assert resolve_mode(DEV, "SAFE", "acme", None).mode is Mode.DEFAULT


def test_without_a_config_that_governs_tenants_everyone_may_use_burst() -> None:
    assert resolve_mode(DEV, "BURST", "anyone", "d").mode is Mode.BURST


@pytest.mark.parametrize("tenant", ["initech", "stranger"])
def test_where_a_config_governs_tenants_burst_needs_permission(tenant: str) -> None:
    assert code_of(GOVERNED, "BURST", tenant, "d") is RejectCode.MODE_NOT_PERMITTED
    assert resolve_mode(GOVERNED, "BURST", "globex", "d").mode is Mode.BURST


@pytest.mark.parametrize("doc_id", [None, "", "  "])
@pytest.mark.parametrize("requested", ["BURST", None])
def test_burst_needs_a_doc_id_whoever_chose_it(requested: str | None, doc_id: str | None) -> None:
    assert code_of(GOVERNED, requested, "acme", doc_id) is RejectCode.DOC_ID_REQUIRED


def test_tenants_that_are_not_listed_share_the_star_entry() -> None:
    config = Config(tenants={"*": TenantPolicy(allow_burst=True, max_inflight=3), "acme": TenantPolicy()})
    assert resolve_mode(config, "BURST", "stranger", "d").mode is Mode.BURST
    assert code_of(config, "BURST", "acme", "d") is RejectCode.MODE_NOT_PERMITTED
    assert Cap("jobs/tenant/stranger", 3) in caps(config, LimitDefaults(), "stranger", Mode.DEFAULT, OCR)


def test_without_a_config_the_settings_limit_tenants_and_the_whole() -> None:
    assert caps(DEV, LimitDefaults(100, 10), "acme", Mode.SAFE, OCR) == (Cap("jobs/tenant/acme", 10), Cap("jobs", 100))


def test_the_config_limits_tenant_mode_protocol_and_the_whole() -> None:
    limits = Limits(max_inflight=50, tenant_max_inflight=9, modes={Mode.DEFAULT: 7}, protocols={"ocr": 0})
    config = Config(tenants=GOVERNED.tenants, limits=limits)
    rest = (Cap("jobs/mode/DEFAULT", 7), Cap("jobs/protocol/ocr", 0), Cap("jobs", 50))
    assert caps(config, LimitDefaults(), "acme", Mode.SAFE, OCR) == (Cap("jobs/tenant/acme", 5), *rest)
    assert caps(config, LimitDefaults(), "globex", Mode.SAFE, OCR) == (Cap("jobs/tenant/globex", 9), *rest)
    assert Cap("jobs/mode/DEFAULT", 7) not in caps(config, LimitDefaults(), "acme", Mode.BURST, OCR)


def test_a_protocol_limits_itself_unless_the_config_says_otherwise() -> None:
    limited = msgspec.structs.replace(OCR, policies=Policies(max_inflight=4))
    assert Cap("jobs/protocol/ocr", 4) in caps(DEV, LimitDefaults(), "acme", Mode.DEFAULT, limited)
    config = Config(limits=Limits(protocols={"ocr": 8}))
    assert Cap("jobs/protocol/ocr", 8) in caps(config, LimitDefaults(), "acme", Mode.DEFAULT, limited)


@pytest.mark.parametrize(
    ("counter", "code"),
    [
        ("jobs", RejectCode.GLOBAL_LIMIT),
        ("jobs/tenant/acme", RejectCode.TENANT_LIMIT),
        ("jobs/mode/BURST", RejectCode.MODE_LIMIT),
        ("jobs/protocol/ocr", RejectCode.PROTOCOL_LIMIT),
    ],
)
def test_each_limit_is_refused_by_its_own_code(counter: str, code: RejectCode) -> None:
    refused = over_limit(LimitReached(counter, 5))
    assert refused.code is code
    assert refused.retry_after_seconds
    assert "5 jobs" in refused.detail


KEY = "0" * 64
BAD: list[tuple[str, int, str]] = [
    ("default_mode: DEFAULT\nlimit: {}", 2, "unknown field limit"),
    ("default_mode: FAST", 1, "Invalid enum value 'FAST'"),
    ("limits:\n  max_inflight: many", 2, "Expected int"),
    ("limits:\n  max_inflight: -1", 2, "Expected int >= 0"),
    ("limits:\n  modes:\n    FAST: 1", 2, "Invalid enum value 'FAST'"),
    ("limits:\n  modes:\n    SAFE: 1", 3, "SAFE counts as DEFAULT"),
    ("tenants:\n  acme: {}\n  globex:\n    alow_burst: true", 4, "unknown field alow_burst at tenants.globex"),
    ("tenants:\n  acme: {}\n  acme: {}", 3, "the key acme is given twice"),
    ("tenants:\n  Acme: {}", 2, "not a tenant id"),
    ("tenants:\n  acme: 7", 2, "Expected object"),
    ("tenants: [acme]", 1, "Expected object"),
    ("tenants:\n  acme: {mode: BURST}", 2, "acme gets BURST but may not use it"),
    ("default_mode: BURST\ntenants:\n  acme: {allow_burst: true}", 1, "tenants that are not listed may not use"),
    ("default_mode: BURST\ntenants:\n  '*': {allow_burst: true}\n  acme: {}", 4, "acme gets BURST"),
    ("refs:\n  schemes: []", 2, "length >= 1"),
    ("refs:\n  schemes:\n    - blob\n    - HTTPS", 4, "lower case"),
    ("refs:\n  hosts:\n    - https://example.com", 3, "not a host"),
    ("callbacks:\n  hosts: ['a.*.com']", 2, "not a host"),
    ("calls:\n  hosts: [a.example.com, 'b.*.com']", 2, "'b.*.com' is not a host"),
    ("calls:\n  hosts: ['https://a.example.com']", 2, "with or without a port"),
    ("calls:\n  hosts: [A.example.com]", 2, "in lower case"),
    ("calls:\n  hosts: ['a.example.com:']", 2, "'a.example.com:' is not a host"),
    ("calls:\n  hosts: ['*']", 2, "'*' is not a host"),
    ("calls:\n  per_host: 0", 2, "Expected int >= 1"),
    (f"api_keys:\n  - name: a\n    sha256: {KEY[1:]}g\n    scopes: [read]\n    tenants: [acme]", 3, "matching regex"),
    (f"api_keys:\n  - name: a\n    sha256: '{KEY}'\n    scopes: [root]\n    tenants: [acme]", 4, "Invalid enum value"),
    (f"api_keys:\n  - name: a\n    sha256: '{KEY}'\n    scopes: []", 4, "length >= 1"),
    (f"api_keys:\n  - name: a\n    sha256: '{KEY}'\n    scopes: [read]", 2, "a key needs tenants"),
    (f"api_keys:\n  - name: a\n    sha256: '{KEY}'\n    scopes: [serve]", 4, "if and only if"),
    (f"api_keys:\n  - name: a\n    sha256: '{KEY}'\n    scopes: [read]\n    tenants: [A]", 5, "not a tenant id"),
    ("api_keys:\n  - name: a\n    sha256: [", 3, "is not YAML"),
    ("", 1, "is empty"),
]


@pytest.mark.parametrize(("text", "line", "reason"), BAD, ids=[bad[2] for bad in BAD])
def test_a_bad_config_is_refused_with_file_line_and_reason(tmp_path: Path, text: str, line: int, reason: str) -> None:
    file = tmp_path / "lucius.yaml"
    file.write_text(text)
    with pytest.raises(ProtocolError) as refused:
        read_config(file)
    assert reason in refused.value.reason
    assert (refused.value.file, refused.value.line) == (str(file), line)


@pytest.mark.parametrize("change", [{"name": "b"}, {"sha256": "1" * 64}], ids=["same hash", "same name"])
def test_two_keys_may_share_neither_name_nor_hash(tmp_path: Path, change: dict[str, Any]) -> None:
    key = {"name": "a", "sha256": KEY, "scopes": ["read"], "tenants": ["acme"]}
    file = tmp_path / "lucius.json"
    file.write_text(json.dumps({"api_keys": [key, {**key, **change}]}))
    with pytest.raises(ProtocolError, match=r"is used twice|same key"):
        read_config(file)


def test_without_a_file_the_config_is_that_of_development() -> None:
    source: ConfigSource = ConfigFile(None)
    assert source.current() == Config()
    assert source.current().refs.schemes == ("blob", "https", "file")
    assert not source.refresh()
    assert source.problems() == ()


def test_at_the_start_a_bad_or_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="No such file"):
        ConfigFile(tmp_path / "missing.yaml")
    write(tmp_path / "bad.yaml", "limits: 7")
    with pytest.raises(ProtocolError, match=r"bad\.yaml:1: "):
        ConfigFile(tmp_path / "bad.yaml")


def test_a_change_is_taken_over_and_a_bad_one_leaves_the_last_good_in_force(tmp_path: Path) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, "limits: {max_inflight: 1}")
    source = ConfigFile(file)
    assert not source.refresh()
    write(file, "limits: {max_inflight: 2}")
    assert source.refresh()
    assert source.current().limits.max_inflight == 2
    write(file, "limits: {max_inflight: x}")
    assert not source.refresh()
    assert source.current().limits.max_inflight == 2
    assert [problem.line for problem in source.problems()] == [1]
    file.unlink()
    assert not source.refresh()
    assert source.current().limits.max_inflight == 2
    assert "can't be read" in source.problems()[0].reason
    file.write_text("limits: {max_inflight: 3}")
    assert source.refresh()
    assert source.current().limits.max_inflight == 3
    assert source.problems() == ()
