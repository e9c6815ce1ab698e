import hashlib
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lucius.adapters.config.file import ConfigFile, read_config
from lucius.bootstrap.settings import load_settings
from lucius.contract import RefRules
from lucius.core.model.inputs import Cap
from lucius.core.model.statuses import Mode
from lucius.core.protocol.definition import Policies, ProtocolDefinition, StepSpec
from lucius.ports.config import (
    ApiKey,
    CallbackPolicy,
    CallPolicy,
    Config,
    ConfigSource,
    Limits,
    RefPolicy,
    TenantPolicy,
    TenantRefPolicy,
)
from lucius.ports.errors import LimitReached, ProtocolError
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.submit.limits import LimitDefaults, ModeChoice, caps, over_limit, resolve_mode
from lucius.usecases.submit.ref_policy import RefDefaults, RefPolicies

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
OCR = ProtocolDefinition(
    protocol_id="ocr", version=1, request_type="OCR", steps=(StepSpec(step_id="ocr", step_type="OCR", service="ocr"),)
)


def write(path: Path, text: str) -> None:
    """Write a file so that the change is seen even within one tick of the file system's clock."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def code_of(config: Config, requested: str | None, tenant: str, doc_id: str | None) -> RejectCode:
    with pytest.raises(Rejected) as refused:
        resolve_mode(config, requested, tenant, doc_id)
    return refused.value.code


def test_documented_example_config_has_the_documented_effects() -> None:
    config = read_config(EXAMPLE, dev=True)
    assert resolve_mode(config, None, "acme", "d").mode is Mode.BURST
    assert code_of(config, "BURST", "stranger", "d") is RejectCode.MODE_NOT_PERMITTED
    assert config.api_keys[0].sha256 == hashlib.sha256(b"acme-example-key").hexdigest()
    assert caps(config, LimitDefaults(), "acme", Mode.BURST, OCR)[0] == Cap("jobs/tenant/acme", 500)


def test_calls_have_no_allowed_hosts_by_default() -> None:
    assert Config().calls == CallPolicy(hosts=(), allow_http=False, allow_private=False, per_host=8)
    assert read_config(EXAMPLE, dev=True).calls.hosts == (
        "api.example.com",
        "*.hooks.example.com",
        "ledger.example.com:8443",
    )


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


def test_burst_is_permitted_to_all_tenants_without_a_tenant_policy() -> None:
    assert resolve_mode(DEV, "BURST", "anyone", "d").mode is Mode.BURST


@pytest.mark.parametrize("tenant", ["initech", "stranger"])
def test_burst_needs_permission_under_a_tenant_policy(tenant: str) -> None:
    assert code_of(GOVERNED, "BURST", tenant, "d") is RejectCode.MODE_NOT_PERMITTED
    assert resolve_mode(GOVERNED, "BURST", "globex", "d").mode is Mode.BURST


@pytest.mark.parametrize("doc_id", [None, "", "  "])
@pytest.mark.parametrize("requested", ["BURST", None])
def test_burst_mode_needs_a_doc_id(requested: str | None, doc_id: str | None) -> None:
    assert code_of(GOVERNED, requested, "acme", doc_id) is RejectCode.DOC_ID_REQUIRED


def test_unlisted_tenants_use_the_star_entry() -> None:
    config = Config(tenants={"*": TenantPolicy(allow_burst=True, max_inflight=3), "acme": TenantPolicy()})
    assert resolve_mode(config, "BURST", "stranger", "d").mode is Mode.BURST
    assert code_of(config, "BURST", "acme", "d") is RejectCode.MODE_NOT_PERMITTED
    assert Cap("jobs/tenant/stranger", 3) in caps(config, LimitDefaults(), "stranger", Mode.DEFAULT, OCR)


def test_settings_limit_tenants_and_all_jobs_without_a_config() -> None:
    assert caps(DEV, LimitDefaults(100, 10), "acme", Mode.SAFE, OCR) == (Cap("jobs/tenant/acme", 10), Cap("jobs", 100))


def test_config_limits_tenant_mode_protocol_and_all_jobs() -> None:
    limits = Limits(max_inflight=50, tenant_max_inflight=9, modes={Mode.DEFAULT: 7}, protocols={"ocr": 0})
    config = Config(tenants=GOVERNED.tenants, limits=limits)
    rest = (Cap("jobs/mode/DEFAULT", 7), Cap("jobs/protocol/ocr", 0), Cap("jobs", 50))
    assert caps(config, LimitDefaults(), "acme", Mode.SAFE, OCR) == (Cap("jobs/tenant/acme", 5), *rest)
    assert caps(config, LimitDefaults(), "globex", Mode.SAFE, OCR) == (Cap("jobs/tenant/globex", 9), *rest)
    assert Cap("jobs/mode/DEFAULT", 7) not in caps(config, LimitDefaults(), "acme", Mode.BURST, OCR)


def test_config_overrides_the_limit_of_a_protocol() -> None:
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
def test_each_exceeded_limit_has_its_own_code(counter: str, code: RejectCode) -> None:
    refused = over_limit(LimitReached(counter, 5))
    assert refused.code is code
    assert refused.retry_after_seconds
    assert "5 jobs" in refused.detail


KEY = "0" * 64
SERVE_KEY = f"api_keys:\n  - name: a\n    sha256: '{KEY}'\n    scopes: [serve]\n    service: ocr"
BAD: list[tuple[str, int, str]] = [
    ("default_mode: DEFAULT\nlimit: {}", 2, "unknown field limit"),
    ("default_mode: FAST", 1, "Invalid enum value 'FAST'"),
    ("limits:\n  max_inflight: many", 2, "Expected int"),
    ("limits:\n  max_inflight: -1", 2, "Expected int >= 0"),
    ("limits:\n  modes:\n    FAST: 1", 3, "Invalid enum value 'FAST'"),
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
    ("refs:\n  schemes:", 2, "length >= 1"),
    ("default_mode:", 1, "Expected str, got null"),
    ("api_keys:\n  -", 2, "Expected object, got null"),
    ("limits:", 1, "limits is null: write `{}` for none"),
    ("limits:\n  modes:", 2, "limits.modes is null: write `{}` for none"),
    ("limits:\n  protocols: ~", 2, "limits.protocols is null"),
    ("refs: null", 1, "refs is null: write `{}` for none"),
    ("callbacks:", 1, "callbacks is null"),
    ("tenants:\n  acme: {}\n  globex:", 3, "tenants.globex is null"),
    ("tenants:\n  acme:\n    refs:", 3, "tenants.acme.refs is null: write `{}` for none"),
    ("null", 1, "Expected object, got null"),
    ("refs:\n  schemes:\n    - blob\n    - HTTPS", 4, "lower case"),
    ("refs:\n  hosts:\n    - https://example.com", 3, "not a host"),
    ("refs:\n  output_schemes: [BLOB]", 2, "lower case"),
    ("refs:\n  prefixes: ['in/{tenent}']", 2, "the only name in braces is {tenant}"),
    ("refs:\n  prefixes:\n    - in\n    - 'in/../x'", 4, "is not a prefix"),
    ("refs:\n  prefixes: ['/']", 2, "is not a prefix"),
    ("refs:\n  schemes: ['https:']", 2, "'https:' is not a scheme"),
    ("refs:\n  containers: ['{tenant}']", 2, "'{tenant}' is not a container"),
    ("tenants:\n  acme:\n    refs:\n      containers:\n        - in\n        - in/acme", 6, "is not a container"),
    ("tenants:\n  acme:\n    refs:\n      hosts: [A.com]", 4, "not a host"),
    ("tenants:\n  acme:\n    refs:\n      callback_hosts: ['a:1']", 4, "not a host"),
    ("tenants:\n  acme:\n    refs:\n      prefix: [in]", 4, "unknown field prefix"),
    ("callbacks:\n  hosts: ['a.*.com']", 2, "not a host"),
    ("callbacks:\n  job_hosts: [a.com, 'https://a.com']", 2, "'https://a.com' is not a host"),
    ("callbacks:\n  job_hosts: [A.com]", 2, "'A.com' is not a host"),
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
    (f"{SERVE_KEY}\n    tenants:", 6, "name at least one tenant, or leave `tenants` out for every tenant"),
    (f"{SERVE_KEY}\n    tenants: []", 6, "name at least one tenant"),
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
def test_duplicate_key_name_or_hash_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    key = {"name": "a", "sha256": KEY, "scopes": ["read"], "tenants": ["acme"]}
    file = tmp_path / "lucius.json"
    file.write_text(json.dumps({"api_keys": [key, {**key, **change}]}))
    with pytest.raises(ProtocolError, match=r"is used twice|same key"):
        read_config(file)


@pytest.mark.parametrize(
    "tenants",
    [
        "{a: {webhook_secrets: [SHARED]}, b: {webhook_secrets: [OWN, SHARED]}}",
        '{"*": {webhook_secrets: [SHARED]}}',
        "{a: {webhook_secrets: [DEFAULT]}}",
        "{a: {webhook_secrets: [lower-case]}}",
    ],
)
def test_tenants_can_not_share_a_webhook_secret(tmp_path: Path, tenants: str) -> None:
    file = tmp_path / "lucius.yaml"
    file.write_text(f"tenants: {tenants}")
    with pytest.raises(ProtocolError, match=r"webhook secret|matching regex"):
        read_config(file)
    file.write_text("tenants: {a: {webhook_secrets: [A_2, derived]}, b: {webhook_secrets: [B, derived]}}")
    assert (read_config(file).tenants or {})["a"].webhook_secrets == ("A_2", "derived")


def keys_file(*names: str, fault: str = "") -> str:
    entries = [
        {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "scopes": ["read"], "tenants": ["acme"]}
        for name in names
    ]
    return f"api_keys: {json.dumps(entries)}\n{fault}\n"


def key_names(source: ConfigFile) -> list[str]:
    return [key.name for key in source.current().api_keys]


def looks(source: ConfigFile) -> list[bool]:
    """Return whether each of three looks put another config in force."""
    return [source.refresh() for _ in range(3)]


def test_a_key_is_revoked_although_the_file_has_another_fault(tmp_path: Path) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, keys_file("stays", "leaked", "narrowed"))
    source = ConfigFile(file)
    narrowed = keys_file("stays", "new", "narrowed", fault="limits: 7")
    write(file, narrowed.replace('"name": "narrowed"', '"name": "renamed"'))
    assert not source.refresh()
    assert source.problems()
    assert source.refresh()
    assert key_names(source) == ["stays"]
    assert source.problems()
    write(file, keys_file("stays", "new"))
    assert looks(source) == [False, True, False]
    assert key_names(source) == ["stays", "new"]
    assert source.problems() == ()


def test_the_only_key_is_revoked_although_the_file_has_another_fault(tmp_path: Path) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, keys_file("leaked"))
    source = ConfigFile(file)
    write(file, keys_file("new", fault="limits: 7"))
    assert not source.refresh()
    assert source.refresh()
    assert key_names(source) == []


@pytest.mark.parametrize("emptied", ["null", "[]"])
def test_key_whose_tenants_are_emptied_is_revoked_and_never_serves_every_tenant(tmp_path: Path, emptied: str) -> None:
    file = tmp_path / "lucius.yaml"
    stays = f"  - {{name: stays, sha256: '{'1' * 64}', scopes: [serve], service: ocr, groups: null}}\n"
    write(file, f"{SERVE_KEY}\n    tenants: [acme]\n{stays}")
    source = ConfigFile(file)
    write(file, f"{SERVE_KEY}\n    tenants: {emptied}\n{stays}")
    assert not source.refresh()
    assert [key.tenants for key in source.current().api_keys] == [("acme",), ()]
    assert source.refresh()
    assert key_names(source) == ["stays"]
    assert "name at least one tenant" in source.problems()[0].reason


@pytest.mark.parametrize(
    "emptied", ["refs:", "limits:", "tenants: {acme: {refs: }}", "tenants: {acme: }", "callbacks:"]
)
def test_emptied_section_keeps_limits_and_isolation_and_is_a_problem(tmp_path: Path, emptied: str) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, "limits: {max_inflight: 1}\nrefs: {hosts: [a.com]}\ntenants: {acme: {refs: {containers: [in]}}}\n")
    source = ConfigFile(file)
    before = source.current()
    write(file, emptied)
    assert [source.refresh() for _ in range(3)] == [False] * 3
    assert source.current() == before
    assert "is null: write `{}` for none" in source.problems()[0].reason


@pytest.mark.parametrize("fault", ["tenants: [", "api_keys: {}", "\t- x: :"])
def test_key_missing_from_an_unreadable_file_is_revoked_at_the_second_refresh(tmp_path: Path, fault: str) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, keys_file("stays", "leaked"))
    source = ConfigFile(file)
    gone = hashlib.sha256(b"leaked").hexdigest()
    write(file, keys_file("stays", fault=f"  # {gone}\n{fault}"))
    assert not source.refresh()
    assert key_names(source) == ["stays", "leaked"]
    assert source.refresh()
    assert key_names(source) == ["stays"]
    assert not source.refresh()


BLOCK_KEYS = "".join(
    f"  - name: {name}\n    sha256: {hashlib.sha256(name.encode()).hexdigest()}\n"
    "    scopes: [read]\n    tenants: [acme]\n"
    for name in ("first", "second")
)


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        " \n",
        "# nothing\n",
        "\x00" * 100,
        "limits: [\n",
        *[f"api_keys:\n{BLOCK_KEYS}"[:-cut] for cut in (5, 15, 30, 80, 130, 150, 200, 250)],
    ],
)
def test_empty_or_truncated_file_revokes_no_key_and_is_a_problem(tmp_path: Path, damaged: str) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, f"api_keys:\n{BLOCK_KEYS}")
    source = ConfigFile(file)
    write(file, damaged)
    assert [source.refresh() for _ in range(3)] == [False] * 3
    assert key_names(source) == ["first", "second"]
    assert source.problems()


@pytest.mark.parametrize("emptied", ["api_keys:", "api_keys: null", "api_keys:\n  # - name: first\n", "api_keys: ~"])
@pytest.mark.parametrize("fault", ["", "limits: 7", "limits: {max_inflight: 3}"])
def test_a_null_list_of_keys_revokes_all_at_the_second_look(tmp_path: Path, emptied: str, fault: str) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, f"api_keys:\n{BLOCK_KEYS}")
    source = ConfigFile(file)
    write(file, f"{emptied}\n{fault}\n")
    assert not source.refresh()
    assert key_names(source) == ["first", "second"]
    assert source.refresh()
    assert key_names(source) == []
    assert bool(source.problems()) == (fault == "limits: 7")
    assert not source.refresh()


def test_a_half_written_file_revokes_nothing_and_changes_no_limit(tmp_path: Path) -> None:
    file = tmp_path / "lucius.yaml"
    written = f"limits:\n  max_inflight: 1\nrefs:\n  hosts: [a.com]\napi_keys:\n{BLOCK_KEYS}"
    write(file, written)
    source = ConfigFile(file)
    before = source.current()
    ends = [position for position, character in enumerate(written) if character in "\n:"]
    for cut in {position + shift for position in ends for shift in (-1, 0, 1)} - {len(written)}:
        write(file, written[:cut])
        assert not source.refresh(), written[:cut]
        write(file, written)
        assert not source.refresh()
        assert source.current() == before
        assert source.problems() == ()


def test_a_version_that_only_shortens_the_file_is_in_force_at_the_second_look(tmp_path: Path) -> None:
    file = tmp_path / "lucius.yaml"
    entry, other = BLOCK_KEYS[: len(BLOCK_KEYS) // 2], BLOCK_KEYS[len(BLOCK_KEYS) // 2 :]
    write(file, f"api_keys:\n{entry}{other}")
    source = ConfigFile(file)
    write(file, f"api_keys:\n{entry}")
    assert not source.refresh()
    assert source.refresh()
    assert len(source.current().api_keys) == 1


EDITED = (
    f"limits:\n  max_inflight: 7\nrefs:\n  hosts: [a.com]\ntenants:\n  acme: {{}}\n  b: {{}}\napi_keys:\n{BLOCK_KEYS}"
)


@pytest.mark.parametrize(
    "last", ["refs:\n", "hosts: [a.com]\n", "acme: {}\n", "b: {}\n", "api_keys:\n", "sha256: ", "[read]\n", "[acme]\n"]
)
@pytest.mark.parametrize("fault", ["", "surprise: 7\n"])
def test_half_written_edit_of_the_beginning_changes_nothing(tmp_path: Path, last: str, fault: str) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, EDITED.replace("7", "1", 1))
    source = ConfigFile(file)
    before = source.current()
    edited = fault + EDITED
    write(file, edited[: edited.index(last) + len(last)])
    assert not source.refresh()
    assert source.current() == before
    write(file, EDITED)
    assert looks(source) == [False, True, False]
    assert source.current().limits.max_inflight == 7
    assert source.current().api_keys == before.api_keys
    assert source.problems() == ()


@pytest.mark.parametrize(
    "lacking",
    [
        EDITED.replace("refs:\n  hosts: [a.com]\n", ""),
        EDITED.replace("  b: {}\n", ""),
        EDITED.replace("tenants: [acme]", "tenants: [globex]", 1),
        EDITED.removesuffix(BLOCK_KEYS[len(BLOCK_KEYS) // 2 :]),
    ],
    ids=["section", "tenant", "changed key", "key"],
)
def test_a_version_that_lacks_a_key_or_a_section_is_in_force_at_the_second_look(tmp_path: Path, lacking: str) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, EDITED)
    source = ConfigFile(file)
    write(file, lacking.replace("7", "8", 1))
    assert not source.refresh()
    assert source.current() == read_config_text(tmp_path, EDITED)
    assert source.refresh()
    assert source.current() == read_config_text(tmp_path, lacking.replace("7", "8", 1))
    assert not source.refresh()


@pytest.mark.parametrize(
    ("written", "cut"),
    [
        (f"{SERVE_KEY}\n    tenants: [acme]\n", "\n    tenants"),
        ("tenants:\n  b: {}\n  acme:\n    refs:\n      containers: [in]\n      hosts: [a.com]\n", "      hosts"),
        ("limits: {}\nrefs:\n  containers: [in]\n  hosts: [a.com]\n", "  hosts"),
    ],
    ids=["tenants of a new key", "refs of a new tenant", "hosts of new refs"],
)
def test_new_section_that_is_half_written_never_permits_more_than_the_whole(
    tmp_path: Path, written: str, cut: str
) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, "default_mode: DEFAULT\n")
    source = ConfigFile(file)
    before = source.current()
    write(file, written[: written.index(cut)])
    assert not source.refresh()
    write(file, written)
    assert not source.refresh()
    assert source.current() == before
    assert source.refresh()
    assert source.current() == read_config_text(tmp_path, written)


def test_file_that_is_rewritten_unchanged_before_each_look_is_in_force_at_the_second(tmp_path: Path) -> None:
    path = tmp_path / "lucius.yaml"
    write(path, "{}")
    source = ConfigFile(path)
    changed = "limits: {tenant_max_inflight: 5}"
    write(path, changed)
    assert not source.refresh()
    write(path, changed)
    assert source.refresh()


def test_second_look_must_find_the_same_content(tmp_path: Path) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, EDITED)
    source = ConfigFile(file)
    before = source.current()
    first, *rest = (EDITED.replace("7", number, 1).removesuffix(BLOCK_KEYS) for number in "89")
    write(file, first + "  []\n")
    assert not source.refresh()
    mtime = file.stat().st_mtime_ns
    file.write_text(rest[0] + "  []\n")
    os.utime(file, ns=(mtime, mtime))
    assert not source.refresh()
    assert source.current() == before
    assert source.refresh()
    assert source.current().limits.max_inflight == 9


@pytest.mark.parametrize("bad", ["", "surprise: 7\n"])
def test_each_look_reads_the_file_once(tmp_path: Path, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, EDITED)
    source = ConfigFile(file)
    write(file, bad + EDITED)
    reads: list[Path] = []
    original = Path.open

    def counting(self: Path, *args: Any, **kwargs: Any) -> Any:
        reads.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", counting)
    source.refresh()
    assert reads == [file]


def read_config_text(folder: Path, text: str) -> Config:
    (folder / "other.yaml").write_text(text)
    return read_config(folder / "other.yaml")


EMPTY_SECTIONS: dict[str, Config] = {
    "tenants:": Config(tenants={}),
    "tenants:\n  acme:\n    refs:\n      callback_hosts:": Config(
        tenants={"acme": TenantPolicy(refs=TenantRefPolicy(callback_hosts=()))}
    ),
    "tenants:\n  acme:\n    webhook_secrets:": Config(tenants={"acme": TenantPolicy()}),
    "limits:\n  max_inflight:": Config(),
    "refs:\n  hosts:": Config(refs=RefPolicy(hosts=())),
    "refs:\n  containers:\n  prefixes:": Config(refs=RefPolicy(containers=(), prefixes=())),
    "callbacks:\n  hosts:": Config(),
    "callbacks:\n  job_hosts:": Config(callbacks=CallbackPolicy(job_hosts=())),
    "calls:": Config(),
    "calls:\n  hosts:": Config(),
    "api_keys:": Config(),
    f"{SERVE_KEY}\n    groups:": Config(
        api_keys=(ApiKey(name="a", sha256=KEY, scopes=("serve",), service="ocr"),),
    ),
}


@pytest.mark.parametrize("text", EMPTY_SECTIONS)
def test_null_is_empty_where_empty_does_not_permit_more(tmp_path: Path, text: str) -> None:
    (tmp_path / "lucius.yaml").write_text(text)
    assert read_config(tmp_path / "lucius.yaml") == EMPTY_SECTIONS[text]


def test_a_misspelt_api_keys_section_revokes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, keys_file("stays"))
    source = ConfigFile(file)
    write(file, keys_file("stays").replace("api_keys", "api_key"))
    assert [source.refresh() for _ in range(3)] == [False] * 3
    assert key_names(source) == ["stays"]
    file.unlink()
    assert [source.refresh() for _ in range(3)] == [False] * 3
    assert key_names(source) == ["stays"]


def test_config_without_a_file_is_the_development_config() -> None:
    source: ConfigSource = ConfigFile(None)
    assert source.current() == Config()
    (named,) = RefPolicies(source).named_rules("acme")
    assert (named.rules.input_schemes, named.rules.output_schemes) == (["blob", "https"], ["blob"])
    assert not source.refresh()
    assert source.problems() == ()


def test_ref_rules_of_a_tenant_narrow_the_common_ones_and_fill_in_its_name(tmp_path: Path) -> None:
    write(
        tmp_path / "lucius.yaml",
        "refs: {schemes: [blob, s3], output_schemes: [blob], prefixes: ['in/{tenant}', 'out/{tenant}']}\n"
        "tenants: {acme: {refs: {schemes: [blob], containers: [in]}}, globex: {},\n"
        "  '*': {refs: {hosts: [a.com, 'b.com:8443']}}}\n",
    )
    refs = RefPolicies(ConfigFile(tmp_path / "lucius.yaml"))
    deployment, own = refs.named_rules("acme")
    assert (deployment.setting, own.setting) == ("refs", "tenants.acme.refs")
    assert deployment.rules == RefRules(
        input_schemes=["blob", "s3"], output_schemes=["blob"], prefixes=["in/acme", "out/acme"]
    )
    assert own.rules == RefRules(input_schemes=["blob"], output_schemes=["blob"], containers=["in"])
    for tenant in ("globex", "initech"):  # a tenant without refs of its own has those of "*"
        deployment, own = refs.named_rules(tenant)
        assert deployment.rules.prefixes == [f"in/{tenant}", f"out/{tenant}"]
        assert (own.setting, own.rules) == ("tenants.*.refs", RefRules(hosts=["a.com", "b.com:8443"]))
        assert refs.callback_hosts(tenant) == ("tenants.*.refs.callback_hosts", ("a.com", "b.com:8443"))
    assert refs.callback_hosts("acme") is None


def test_a_changed_config_changes_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, "refs: {schemes: [blob]}")
    source = ConfigFile(file)
    refs = RefPolicies(source)
    assert refs.rules("acme")[0].input_schemes == ["blob"]
    write(file, "refs: {schemes: [blob, file, https]}")
    assert looks(source) == [False, True, False]
    assert refs.rules("acme")[0].input_schemes == ["blob", "file", "https"]


def test_protected_folders_are_in_the_rules_only_if_file_refs_are_permitted(tmp_path: Path) -> None:
    own = RefDefaults(protected=("/data",), reachable=("/data/blobs",))
    assert RefPolicies(ConfigFile(None), own).rules("acme")[0].protected == []
    write(tmp_path / "lucius.yaml", "refs: {input_schemes: [file]}")
    (rules,) = RefPolicies(ConfigFile(tmp_path / "lucius.yaml"), own).rules("acme")
    assert (rules.protected, rules.reachable, rules.file_roots) == (["/data"], ["/data/blobs"], None)


def test_bad_or_missing_config_file_at_startup_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="No such file"):
        ConfigFile(tmp_path / "missing.yaml")
    write(tmp_path / "bad.yaml", "limits: 7")
    with pytest.raises(ProtocolError, match=r"bad\.yaml:1: "):
        ConfigFile(tmp_path / "bad.yaml")


def test_changed_config_is_applied_and_a_bad_change_keeps_the_last_good_one(tmp_path: Path) -> None:
    file = tmp_path / "lucius.yaml"
    write(file, "limits: {max_inflight: 1}")
    source = ConfigFile(file)
    assert not source.refresh()
    write(file, "limits: {max_inflight: 2}")
    assert looks(source) == [False, True, False]
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
    assert looks(source) == [False, True, False]
    assert source.current().limits.max_inflight == 3
    assert source.problems() == ()
