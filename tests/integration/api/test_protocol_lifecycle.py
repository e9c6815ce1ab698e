"""Draft, published, deprecated: permitted changes, the recorded history, and warnings to clients."""

import asyncio
import threading
from typing import Any

import pytest

from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.errors import VersionConflict
from tests.integration.api.conftest import Start, key_entry
from tests.support.api import Answer, Api

V = "/v1/protocols/UPPER/versions"


@pytest.fixture
def api(api: Api) -> Api:
    """Return an API that knows an instance of service `upper` from its pull."""
    api.runtime.services.note_pull("upper")
    return api


def document(version: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "protocol_id": "upper",
        "version": version,
        "request_type": "UPPER",
        "steps": [{"step_id": "upper", "step_type": "UPPER", "service": "upper"}],
        **changes,
    }


async def publish(api: Api, version: int = 1, **changes: Any) -> Any:
    answer = await api.post("/v1/protocols", document(version, **changes))
    assert answer.status in (200, 201), answer.body
    name = changes.get("request_type", "UPPER")
    return (await api.post(f"/v1/protocols/{name}/versions/{version}:publish", {"reason": "it is good"})).ok()


async def deprecate(api: Api, version: int = 1, **asked: Any) -> Any:
    return (await api.post(f"{V}/{version}:deprecate", {"reason": "too slow", **asked})).ok()


async def submit(api: Api, **changes: Any) -> Answer:
    return await api.post("/v1/commands", api.command(request_type="UPPER", **changes))


async def statuses(api: Api, name: str = "UPPER") -> dict[int, str]:
    listed = (await api.get(f"/v1/protocols/{name}/versions")).ok()["versions"]
    return {version["version"]: version["status"] for version in listed}


class TestDrafts:
    async def test_draft_is_stored_and_not_served(self, api: Api) -> None:
        drafted = (await api.post("/v1/protocols", document(title="Louder"))).ok(201)
        assert (drafted["status"], drafted["title"], drafted["findings"]) == ("DRAFT", "Louder", [])
        assert drafted["created"]["by"] == "dev"
        assert (await api.get(f"{V}/1")).ok() == drafted
        (await submit(api)).problem(422, "UNKNOWN_REQUEST_TYPE")
        (await submit(api, protocol_version=1)).problem(422, "UNKNOWN_REQUEST_TYPE")
        (await api.get("/v1/protocols/UPPER")).problem(404, "NOT_FOUND")

    async def test_draft_can_be_replaced_and_shows_when_it_changed(self, api: Api) -> None:
        first = (await api.post("/v1/protocols", document())).ok(201)
        api.clock.advance(5)
        second = (await api.post("/v1/protocols", document(title="Louder"))).ok(200)
        assert second["created"] == first["created"]
        assert second["changed"]["at"] > first["created"]["at"]
        assert second["digest"] != first["digest"]

    async def test_deleted_draft_is_gone(self, api: Api) -> None:
        drafted = (await api.post("/v1/protocols", document())).ok(201)
        assert (await api.call("DELETE", f"{V}/1")).ok() == drafted
        (await api.call("DELETE", f"{V}/1")).problem(404, "NOT_FOUND")
        (await api.get(V)).problem(404, "NOT_FOUND")

    @pytest.mark.parametrize(
        ("change", "pointer"),
        [
            ({"steps": []}, "/steps"),
            ({"version": 0}, "/version"),
            ({"colour": "red"}, "/colour"),
            ({"steps": [{"step_id": "a", "payload_schema": "schemas/a.yaml"}]}, "/steps/0/payload_schema"),
            ({"steps": [{"step_id": "a", "map": {"items": "x", "steps": []}}]}, "/steps/0/map/steps"),
        ],
    )
    async def test_invalid_protocol_is_refused_with_the_pointer_of_its_fault(
        self, api: Api, change: dict[str, Any], pointer: str
    ) -> None:
        problem = (await api.post("/v1/protocols", document(**change))).problem(422, "INVALID_PROTOCOL")
        assert problem["errors"][0]["pointer"] == pointer
        (await api.get(V)).problem(404, "NOT_FOUND")

    async def test_deeply_nested_or_malformed_body_is_refused(self, api: Api) -> None:
        deep: dict[str, Any] = {}
        for _ in range(150):
            deep = {"not": deep}
        body = document(input_schema=deep)
        assert "deep" in (await api.post("/v1/protocols", body)).problem(422, "INVALID_PROTOCOL")["detail"]
        assert (await api.post("/v1/protocols:validate", body)).ok()["valid"] is False
        (await api.post("/v1/protocols", b"[]")).problem(422, "INVALID_ENVELOPE")
        for broken in (b"{", b'{"title": "\\ud800"}'):
            (await api.post("/v1/protocols", broken)).problem(400, "MALFORMED_JSON")


class TestPublishing:
    async def test_published_version_is_served_and_records_by_whom_when_and_why(self, api: Api) -> None:
        published = await publish(api, aliases=["LOUD"])
        assert published["status"] == "PUBLISHED"
        assert published["published"] == {"by": "dev", "at": "2027-01-15T08:00:00.000Z", "reason": "it is good"}
        assert (await submit(api)).status == 202
        assert (await api.post("/v1/commands", api.command(request_type="LOUD", idempotency_key="2"))).status == 202
        assert (await api.get("/v1/protocols/LOUD")).ok()["digest"] == published["digest"]

    async def test_published_version_is_immutable(self, api: Api) -> None:
        published = await publish(api)
        for body in (document(), document(title="other")):
            problem = (await api.post("/v1/protocols", body)).problem(409, "PROTOCOL_IMMUTABLE")
            assert "higher version" in problem["detail"]
        (await api.call("DELETE", f"{V}/1")).problem(409, "PROTOCOL_IMMUTABLE")
        (await api.post(f"{V}/1:publish")).problem(409, "PROTOCOL_STATE")
        assert (await api.get(f"{V}/1")).ok() == published

    async def test_newest_published_version_is_served_despite_newer_drafts(self, api: Api) -> None:
        await publish(api, 2)
        await publish(api, 1)
        await api.post("/v1/protocols", document(3))
        assert (await api.get("/v1/protocols/UPPER")).ok()["version"] == 2
        job = (await submit(api)).ok(202)["jobId"]
        assert (await api.job(job))["protocol_version"] == 2
        assert await statuses(api) == {1: "PUBLISHED", 2: "PUBLISHED", 3: "DRAFT"}

    @pytest.mark.parametrize(
        ("change", "pointer"),
        [
            ({"aliases": ["X", "OCR"]}, "/aliases/1"),
            ({"protocol_id": "ocr"}, "/protocol_id"),
            ({"request_type": "LOUD", "protocol_id": "loud"}, "/request_type"),
            ({"version": 2, "protocol_id": "other"}, "/protocol_id"),
        ],
    )
    async def test_version_with_a_name_of_another_protocol_is_not_published(
        self, api: Api, change: dict[str, Any], pointer: str
    ) -> None:
        await publish(api, 1, aliases=["LOUD"])
        body = {**document(2), **change}
        drafted = (await api.post("/v1/protocols", body)).ok(201)
        assert [(finding["pointer"], finding["fatal"]) for finding in drafted["findings"]] == [(pointer, True)]
        assert (await api.post("/v1/protocols:validate", body)).ok()["findings"] == drafted["findings"]
        path = f"/v1/protocols/{body['request_type']}/versions/2:publish"
        problem = (await api.post(path)).problem(422, "INVALID_PROTOCOL")
        assert [fault["pointer"] for fault in problem["errors"]] == [pointer]
        (await api.call("DELETE", path.removesuffix(":publish"))).ok()

    async def test_publishing_with_an_outdated_digest_is_refused(self, api: Api) -> None:
        read = (await api.post("/v1/protocols", document())).ok(201)["digest"]
        changed = (await api.post("/v1/protocols", document(title="other"))).ok(200)["digest"]
        problem = (await api.post(f"{V}/1:publish", {"digest": read})).problem(409, "PROTOCOL_STATE")
        assert changed in problem["detail"]
        (await api.post(f"{V}/1:publish", {"digest": changed})).ok()

    async def test_concurrent_publishing_succeeds_once(self, api: Api) -> None:
        await api.post("/v1/protocols", document())
        answers = await asyncio.gather(*(api.post(f"{V}/1:publish", {"reason": str(n)}) for n in range(5)))
        assert sorted(answer.status for answer in answers) == [200, 409, 409, 409, 409]
        (won,) = [answer.json for answer in answers if answer.status == 200]
        assert (await api.get(f"{V}/1")).ok()["published"] == won["published"]

    async def test_revision_conflict_with_another_process_is_decided_anew(self, api: Api) -> None:
        store, real = api.runtime.store, api.runtime.store.protocols.put_protocols
        await api.post("/v1/protocols", document())
        raced: list[bool] = []

        async def put(versions: Any, expected: int) -> int:
            if not raced:
                raced.append(True)
                await real((), expected)  # another process moved the revision
            return await real(versions, expected)

        store.protocols.put_protocols = put  # type: ignore[method-assign]
        (await api.post(f"{V}/1:publish")).ok()

        async def never(*_: Any) -> int:
            raise VersionConflict("it moved")

        store.protocols.put_protocols = never  # type: ignore[method-assign, assignment]
        (await api.post("/v1/protocols", document(2))).problem(503, "LEDGER_CONTENDED")
        assert await statuses(api) == {1: "PUBLISHED"}


class TestDeprecation:
    async def test_new_command_for_a_deprecated_version_is_refused_naming_the_successor(self, api: Api) -> None:
        await publish(api, 1)
        await publish(api, 2)
        gone = await deprecate(api, 1)
        assert gone["successor"] == {"request_type": "UPPER", "version": 2}
        assert (gone["deprecated"]["by"], gone["deprecated"]["reason"]) == ("dev", "too slow")
        problem = (await submit(api, protocol_version=1)).problem(409, "PROTOCOL_DEPRECATED")
        assert problem["detail"] == "UPPER version 1 is deprecated (too slow); use UPPER version 2"
        assert problem["errors"][0]["pointer"] == "/protocol_version"
        assert (await submit(api)).status == 202

    async def test_request_type_without_a_published_version_is_refused(self, api: Api) -> None:
        await publish(api, 1, aliases=["LOUD"])
        await deprecate(api, 1, successor={"request_type": "OCR"})
        for name in ("UPPER", "LOUD"):
            answer = await api.post("/v1/commands", api.command(request_type=name))
            problem = answer.problem(409, "PROTOCOL_DEPRECATED")
            assert "use OCR version 1" in problem["detail"]
            assert problem["errors"][0]["pointer"] == "/request_type"
        (await submit(api, protocol_version=9)).problem(422, "UNKNOWN_PROTOCOL_VERSION")
        assert (await api.get("/v1/protocols/UPPER")).ok()["status"] == "DEPRECATED"
        listed = (await api.get("/v1/protocols")).ok()["protocols"]
        assert "UPPER" not in [protocol["request_type"] for protocol in listed]

    async def test_new_version_restores_a_deprecated_request_type(self, api: Api) -> None:
        await publish(api, 1)
        await deprecate(api, 1)
        assert "no successor" in (await submit(api)).problem(409, "PROTOCOL_DEPRECATED")["detail"]
        await publish(api, 2)
        assert (await submit(api)).status == 202
        assert (await api.get(f"{V}/1")).ok()["successor"] == {"request_type": "UPPER", "version": 2}

    @pytest.mark.parametrize("reason", ["", "  ", "\n"])
    async def test_blank_deprecation_reason_is_refused(self, api: Api, reason: str) -> None:
        await publish(api, 1)
        asked = {"reason": reason}
        problem = (await api.post(f"{V}/1:deprecate", asked)).problem(422, "INVALID_ENVELOPE")
        assert problem["errors"][0]["pointer"] == "/reason"

    async def test_deprecated_successor_is_replaced_by_its_own_successor(self, api: Api) -> None:
        for version in (1, 2, 3):
            await publish(api, version)
        await deprecate(api, 1, successor={"version": 2})
        await deprecate(api, 2, successor={"version": 3})
        assert "use UPPER version 3" in (await submit(api, protocol_version=1)).json["detail"]

    async def test_running_job_continues_and_a_repeat_finds_it_after_deprecation(self, api: Api) -> None:
        await publish(api)
        jobs = [(await submit(api, **more)).ok(202)["jobId"] for more in ({}, {"idempotency_key": "k"})]
        await deprecate(api)
        for job, more in zip(jobs, ({}, {"idempotency_key": "k"}), strict=True):
            repeat = (await submit(api, **more)).ok(202)
            assert (repeat["jobId"], repeat["duplicate"]) == (job, True)
        reused = await submit(api, idempotency_key="k", input_ref="blob://in/other")
        reused.problem(409, "IDEMPOTENCY_KEY_REUSED")
        (await submit(api, input_ref="blob://in/other")).problem(409, "PROTOCOL_DEPRECATED")
        for directive in await api.pull("upper", max=10):
            (await api.succeed(directive)).ok()
        assert [(await api.job(job))["status"] for job in jobs] == ["SUCCEEDED"] * 2

    async def test_deprecated_request_type_refuses_only_its_own_command_of_a_batch(self, api: Api) -> None:
        await publish(api)
        await deprecate(api)
        commands = [api.command(request_type="UPPER"), api.command()]
        results = (await api.post("/v1/commands:batch", {"commands": commands})).ok()["results"]
        assert [result["status_code"] for result in results] == [409, 202]

    async def test_only_a_published_version_can_be_deprecated_and_only_once(self, api: Api) -> None:
        await api.post("/v1/protocols", document())
        (await api.post(f"{V}/1:deprecate", {"reason": "x"})).problem(409, "PROTOCOL_STATE")
        await api.post(f"{V}/1:publish")
        await deprecate(api)
        problem = (await api.post(f"{V}/1:deprecate", {"reason": "x"})).problem(409, "PROTOCOL_STATE")
        assert "by dev" in problem["detail"]
        for path, method in ((f"{V}/1:publish", "POST"), (f"{V}/1", "DELETE")):
            assert (await api.call(method, path)).status == 409

    @pytest.mark.parametrize(
        ("successor", "code", "pointer"),
        [
            ({"request_type": "NOPE"}, "UNKNOWN_REQUEST_TYPE", "/successor/request_type"),
            ({"version": 1}, "UNKNOWN_PROTOCOL_VERSION", "/successor/version"),
            ({"version": 2}, "UNKNOWN_PROTOCOL_VERSION", "/successor/version"),
            ({"request_type": "OCR", "version": 7}, "UNKNOWN_PROTOCOL_VERSION", "/successor/version"),
        ],
    )
    async def test_successor_must_be_published(
        self, api: Api, successor: dict[str, Any], code: str, pointer: str
    ) -> None:
        await publish(api)
        await api.post("/v1/protocols", document(2))
        problem = (await api.post(f"{V}/1:deprecate", {"reason": "x", "successor": successor})).problem(422, code)
        assert problem["errors"][0]["pointer"] == pointer
        assert await statuses(api) == {1: "PUBLISHED", 2: "DRAFT"}

    async def test_missing_deprecation_reason_is_refused(self, api: Api) -> None:
        await publish(api)
        for body in (None, {}, {"reason": ""}):
            problem = (await api.post(f"{V}/1:deprecate", body)).problem(422, "INVALID_ENVELOPE")
            assert problem["errors"][0]["pointer"] == "/reason"


class TestReading:
    async def test_listing_is_filtered_by_status_and_defaults_to_published(self, api: Api) -> None:
        await publish(api, 1)
        await publish(api, 2)
        await deprecate(api, 1)
        await api.post("/v1/protocols", document(3))

        async def listed(query: str) -> list[tuple[str, int]]:
            found = (await api.get(f"/v1/protocols{query}")).ok()["protocols"]
            assert all(protocol["status"] in query or query in ("", "?status=ANY") for protocol in found)
            return [(p["request_type"], p["version"]) for p in found if p["request_type"] in ("OCR", "UPPER")]

        assert await listed("") == await listed("?status=PUBLISHED") == [("OCR", 1), ("UPPER", 2)]
        assert await listed("?status=DRAFT") == [("UPPER", 3)]
        assert await listed("?status=DEPRECATED") == [("UPPER", 1)]
        assert await listed("?status=ANY") == [("OCR", 1), ("UPPER", 1), ("UPPER", 2), ("UPPER", 3)]
        (await api.get("/v1/protocols?status=OTHER")).problem(422, "INVALID_QUERY")

    async def test_version_shows_its_whole_document(self, api: Api) -> None:
        body = document(
            title="Louder",
            aliases=["LOUD"],
            policies={"timeout_ms": 1000},
            input_schema={"properties": {"x": True}},
            output_schema={"type": "object"},
        )
        shown = await publish(api, **body)
        assert {name: shown[name] for name in body} == body

    async def test_view_shows_every_member_of_a_protocol(self, api: Api) -> None:
        members = document(
            title="Louder",
            description="says it louder",
            aliases=["LOUD"],
            policies={"timeout_ms": 60_000},
            input_schema={"properties": {"text": {}, "secret": {}}},
            output_schema={"type": "object"},
            redact=["/secret"],
        )
        assert members.keys() == set(ProtocolDefinition.__struct_fields__), "give the new member a value here"
        drafted = (await api.post("/v1/protocols", members)).ok(201)
        assert {name: drafted[name] for name in members} == members
        published = (await api.post(f"{V}/1:publish", {"reason": "it is good"})).ok()
        assert published["redact"] == ["/secret"]
        protocols = (await api.get("/v1/protocols")).ok()["protocols"]
        (listed,) = [one for one in protocols if one["request_type"] == "UPPER"]
        assert listed["redact"] == ["/secret"]

    async def test_unknown_version_is_not_found(self, api: Api) -> None:
        await publish(api)
        for path in ("/v1/protocols/NOPE", "/v1/protocols/NOPE/versions", f"{V}/2", f"{V}/1/diff/2", f"{V}/2/diff/1"):
            (await api.get(path)).problem(404, "NOT_FOUND")
        for path in (f"{V}/2:publish", f"{V}/2:deprecate"):
            (await api.post(path, {"reason": "x"})).problem(404, "NOT_FOUND")
        for number in ("0", "x", str(2**31)):
            (await api.get(f"{V}/{number}")).problem(422, "INVALID_QUERY")

    async def test_diff_names_each_change_with_before_and_after(self, api: Api) -> None:
        await publish(api, 1)
        steps = [{"step_id": "read"}, {"step_id": "upper", "step_type": "UPPER", "service": "louder"}]
        await api.post("/v1/protocols", document(2, title="Louder", steps=steps))
        diff = (await api.get(f"{V}/1/diff/2")).ok()
        assert (diff["from_version"], diff["to_version"], diff["request_type"]) == (1, 2, "UPPER")
        assert (diff["steps_added"], diff["steps_removed"], diff["steps_changed"]) == (["read"], [], ["upper"])
        assert {change["pointer"]: change for change in diff["changes"]} == {
            "/title": {"change": "ADDED", "pointer": "/title", "stepId": None, "after": "Louder"},
            "/steps/0": {"change": "ADDED", "pointer": "/steps/0", "stepId": "read", "after": {"step_id": "read"}},
            "/steps/1/service": {
                "change": "CHANGED",
                "pointer": "/steps/1/service",
                "stepId": "upper",
                "before": "upper",
                "after": "louder",
            },
        }
        assert (await api.get(f"{V}/2/diff/2")).ok()["changes"] == []

    async def test_jobs_are_listed_by_an_alias_of_a_deprecated_version(self, api: Api) -> None:
        await publish(api, aliases=["LOUD"])
        job = (await submit(api)).ok(202)["jobId"]
        await deprecate(api)
        assert await api.jobs("request_type=LOUD") == [job]

    async def test_validating_stores_nothing(self, api: Api) -> None:
        assert (await api.post("/v1/protocols:validate", document())).ok() == {"valid": True, "findings": []}
        answer = (await api.post("/v1/protocols:validate", document(steps=[]))).ok()
        assert answer["valid"] is False
        assert answer["findings"][0]["pointer"] == "/steps"
        assert answer["findings"][0]["fatal"] is True
        (await api.get(V)).problem(404, "NOT_FOUND")
        await publish(api)
        assert (await api.post("/v1/protocols:validate", document())).ok()["valid"] is True
        answer = (await api.post("/v1/protocols:validate", document(title="x"))).ok()
        assert [(f["pointer"], f["fatal"]) for f in answer["findings"]] == [("/version", True)]


async def test_reading_needs_the_read_scope_and_changing_the_admin_scope(start: Start) -> None:
    keys = [key_entry("reads", "read", tenants=("*",)), key_entry("operates", "operate", "submit", tenants=("*",))]
    api = await start({"api_keys": keys})
    await publish(api)
    for path in ("/v1/protocols", "/v1/protocols/UPPER", V, f"{V}/1", f"{V}/1/diff/1"):
        (await api.get(path, key="reads")).ok()
        (await api.get(path, key="operates")).problem(403, "FORBIDDEN_SCOPE")
        (await api.get(path, key="")).problem(401, "UNAUTHENTICATED")
    for key in ("reads", "operates"):
        for method, path, body in (
            ("POST", "/v1/protocols", document(2)),
            ("POST", "/v1/protocols:validate", document()),
            ("POST", f"{V}/1:deprecate", {"reason": "x"}),
            ("POST", f"{V}/1:publish", {}),
            ("DELETE", f"{V}/1", None),
        ):
            (await api.call(method, path, body, key=key)).problem(403, "FORBIDDEN_SCOPE")
    assert await statuses(api) == {1: "PUBLISHED"}


async def test_protocols_are_changed_only_with_a_key_for_all_tenants(start: Start) -> None:
    keys = [key_entry("one", "admin", "read", tenants=("acme",)), key_entry("all", "admin", tenants=("*",))]
    api = await start({"api_keys": keys})
    await publish(api)
    (await api.post("/v1/protocols", document(2))).ok(201)
    acts: list[tuple[str, str, Any]] = [
        ("POST", "/v1/protocols", document(2, title="Mine")),
        ("POST", "/v1/protocols", document(3)),
        ("POST", f"{V}/2:publish", {}),
        ("POST", f"{V}/1:deprecate", {"reason": "x"}),
        ("DELETE", f"{V}/2", None),
    ]
    acts.insert(0, ("POST", "/v1/protocols:validate", document(2)))
    for method, path, body in acts:
        problem = (await api.call(method, path, body, key="one")).problem(403, "FORBIDDEN_TENANT")
        assert "good for every tenant" in problem["detail"]
    assert await statuses(api) == {1: "PUBLISHED", 2: "DRAFT"}
    for method, path, body in acts[:-1]:
        assert (await api.call(method, path, body, key="all")).status in (200, 201)


async def test_slow_check_delays_no_other_request(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr("lucius.adapters.protocols.check.patterns", lambda schema: [""] * (not go_on.wait(10)))
    checking = asyncio.create_task(api.post("/v1/protocols:validate", document()))
    drafting = asyncio.create_task(api.post("/v1/protocols", document()))
    await asyncio.sleep(0.05)
    (await api.get("/v1/protocols")).ok()
    assert not checking.done()
    assert not drafting.done()
    go_on.set()
    assert (await checking).ok()["valid"] is True
    (await drafting).ok(201)


async def test_check_is_refused_if_too_many_are_waiting(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr("lucius.adapters.protocols.check.patterns", lambda schema: [""] * (not go_on.wait(10)))
    checking = [asyncio.create_task(api.post("/v1/protocols:validate", document())) for _ in range(17)]
    refused = (await next(asyncio.as_completed(checking))).problem(503, "NOT_READY")
    assert refused["retry_after_seconds"] == 1
    go_on.set()
    assert sorted(answer.status for answer in await asyncio.gather(*checking)) == [200] * 16 + [503]


BACKTRACKING = r"(?<=(a))(a+)+b"
LONG = "a" * 200_000


@pytest.mark.parametrize(
    ("schema", "where", "reason"),
    [
        (
            {"properties": {"x": {"pattern": BACKTRACKING, "default": LONG}}},
            "/properties/x/pattern",
            "can't be matched in linear time",
        ),
        (
            {"patternProperties": {f"(?={i}(a+)+b)x": {} for i in range(90)}},
            "/patternProperties/(?=0(a+)+b)x",
            "can't be matched in linear time",
        ),
        (
            {"properties": {"x": {"items": {"enum": [i + 0.5 for i in range(9_000)]}, "default": [1.5] * 9_000}}},
            "",
            "defaults are too large",
        ),
    ],
)
async def test_costly_schema_is_refused_while_other_requests_are_served(
    api: Api, schema: dict[str, Any], where: str, reason: str
) -> None:
    checking = asyncio.create_task(api.post("/v1/protocols:validate", document(input_schema=schema)))
    worst = 0.0
    while not checking.done():
        before = asyncio.get_running_loop().time()
        await asyncio.wait({checking}, timeout=0.005)
        (await api.get("/healthz")).ok()
        worst = max(worst, asyncio.get_running_loop().time() - before)
    answer = (await checking).ok()
    assert [(f["pointer"], f["fatal"]) for f in answer["findings"]] == [(f"/input_schema{where}", True)]
    assert reason in answer["findings"][0]["message"]
    assert worst < 2


async def test_deprecation_answer_names_the_version_served_now(api: Api) -> None:
    for number in (1, 2, 3):
        assert (await publish(api, number))["serving_version"] == number
    assert (await deprecate(api, 3))["serving_version"] == 2
    job = (await submit(api)).ok(202)
    assert (await api.get(f"/v1/jobs/{job['jobId']}")).ok()["protocol_version"] == 2
    assert (await deprecate(api, 1))["serving_version"] == 2
    assert (await deprecate(api, 2))["serving_version"] is None
    (await submit(api, idempotency_key="later")).problem(409, "PROTOCOL_DEPRECATED")


INPUT = {
    "additionalProperties": False,
    "required": ["invoice"],
    "properties": {"invoice": {"type": "string"}, "currency": {"enum": ["EUR", "USD"], "default": "EUR"}},
}


class TestInput:
    async def test_whole_payload_must_fit_the_input_schema(self, api: Api) -> None:
        await publish(api, input_schema=INPUT)
        for payload, pointer in (
            ({}, "/payload/invoice"),
            ({"invoice": 7}, "/payload/invoice"),
            ({"invoice": "i", "currency": "DM"}, "/payload/currency"),
            ({"invoice": "i", "more": 1}, "/payload/more"),
            ({"invoice": "i", "upper": 1}, "/payload/upper"),
        ):
            problem = (await submit(api, payload=payload)).problem(422, "INVALID_PAYLOAD")
            assert problem["errors"][0]["pointer"] == pointer

    async def test_input_schema_members_and_step_payloads_are_both_kept(self, api: Api) -> None:
        await publish(api, input_schema=INPUT)
        job = (await submit(api, payload={"invoice": "i", "upper": {"loud": True}})).ok(202)["jobId"]
        assert (await api.pull_one("upper"))["payload"] == {"loud": True}
        view = await api.runtime.store.jobs.job(job)
        assert view is not None
        assert view.job.command.payload == {"currency": "EUR", "invoice": "i", "upper": {"loud": True}}


class TestFindings:
    async def test_invalid_draft_is_stored_with_its_findings_and_not_published(self, api: Api) -> None:
        steps = [
            {"step_id": "upper", "step_type": "UPPER", "service": "upper", "on_success": "nowhere"},
            {"step_id": "d", "kind": "decision", "decision": {"choices": [{"when": "1 +", "then": "SUCCEED"}]}},
        ]
        drafted = (await api.post("/v1/protocols", document(steps=steps))).ok(201)
        fatal = {finding["pointer"] for finding in drafted["findings"] if finding["fatal"]}
        assert {"/steps/0/on_success", "/steps/1/decision/choices/0/when"} <= fatal
        problem = (await api.post(f"{V}/1:publish")).problem(422, "INVALID_PROTOCOL")
        assert {fault["pointer"] for fault in problem["errors"]} == fatal
        assert (await api.post("/v1/protocols:validate", document(steps=steps))).ok() == {
            "valid": False,
            "findings": drafted["findings"],
        }
        assert await statuses(api) == {1: "DRAFT"}
        (await api.post("/v1/protocols", document())).ok(200)
        (await api.post(f"{V}/1:publish")).ok()

    async def test_service_that_was_never_seen_is_warned_about(self, api: Api) -> None:
        inner = {"step_id": "inner", "step_type": "UPPER", "service": "uper"}
        each = {"step_id": "each", "kind": "map", "map": {"items": "input.list", "steps": [inner]}}
        body = document(steps=[*document()["steps"], each])
        answer = (await api.post("/v1/protocols:validate", body)).ok()
        reason = "no service has ever pulled for uper; check the name, or start the service"
        warning = {"pointer": "/steps/1/map/steps/0/service", "message": reason, "fatal": False}
        assert answer == {"valid": True, "findings": [warning]}
        assert (await api.post("/v1/protocols", body)).ok(201)["findings"] == [warning]
        (await api.post(f"{V}/1:publish")).ok()
        api.runtime.services.note_pull("uper")
        assert (await api.post("/v1/protocols:validate", body)).ok()["findings"] == []

    async def test_warning_names_the_lack_of_callbacks_where_directives_are_pushed(self, start: Start) -> None:
        api = await start(bus_url="memory:")
        findings = (await api.post("/v1/protocols:validate", document())).ok()["findings"]
        reason = "no service has ever called back for upper; check the name, or start the service"
        assert [finding["message"] for finding in findings] == [reason]

    async def test_all_structural_faults_are_listed(self, api: Api) -> None:
        steps = [{"step_id": "a", "kind": "taks"}, {"service": "s"}]
        body = {**document(titel="x", steps=steps), "version": "1"}
        answer = (await api.post("/v1/protocols:validate", body)).ok()
        kinds = "task, decision, wait, external_call, notify, human_approval, parallel, map"
        assert [(found["pointer"], found["message"]) for found in answer["findings"]] == [
            ("/version", "Expected int, got str"),
            ("/steps/0/kind", f"Invalid enum value 'taks'; it can be {kinds}; did you mean task?"),
            ("/steps/1/step_id", "required field is missing"),
            ("/titel", "unknown field; did you mean title?"),
        ]
        problem = (await api.post("/v1/protocols", body)).problem(422, "INVALID_PROTOCOL")
        assert [fault["pointer"] for fault in problem["errors"]] == [f["pointer"] for f in answer["findings"]]

    @pytest.mark.parametrize(
        ("schema", "where"),
        [
            ({"type": "nothing"}, "/type"),
            ({"properties": 1}, "/properties"),
            ({"$ref": "https://example.com/a.json"}, ""),
            ({"properties": {"n": {"type": "integer", "default": "one"}}}, "/properties/n"),
            ({"pattern": "("}, "/pattern"),
        ],
    )
    async def test_schema_must_compile_and_its_defaults_must_fit(
        self, api: Api, schema: dict[str, Any], where: str
    ) -> None:
        inner = {"step_id": "inner", "step_type": "UPPER", "service": "upper", "payload_schema": schema}
        steps = [{"step_id": "each", "kind": "map", "map": {"items": "input.list", "steps": [inner]}}]
        for body, root in (
            (document(input_schema=schema), "/input_schema"),
            (document(output_schema=schema), "/output_schema"),
            (document(steps=steps), "/steps/0/map/steps/0/payload_schema"),
        ):
            findings = (await api.post("/v1/protocols:validate", body)).ok()["findings"]
            assert [(f["pointer"], f["fatal"]) for f in findings] == [(f"{root}{where}", True)]
