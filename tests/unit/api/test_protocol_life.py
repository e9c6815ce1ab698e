"""Draft, published, deprecated: what each state allows, what is kept of it, and what clients are told."""

import asyncio
import threading
from typing import Any

import pytest

from lucius.ports.errors import VersionConflict
from tests.support.api import Answer, Api
from tests.unit.api.conftest import Start, key_entry

V = "/v1/protocols/UPPER/versions"


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
    async def test_a_draft_is_kept_and_serves_nobody(self, api: Api) -> None:
        drafted = (await api.post("/v1/protocols", document(title="Louder"))).ok(201)
        assert (drafted["status"], drafted["title"], drafted["findings"]) == ("DRAFT", "Louder", [])
        assert drafted["created"]["by"] == "dev"
        assert (await api.get(f"{V}/1")).ok() == drafted
        (await submit(api)).problem(422, "UNKNOWN_REQUEST_TYPE")
        (await submit(api, protocol_version=1)).problem(422, "UNKNOWN_REQUEST_TYPE")
        (await api.get("/v1/protocols/UPPER")).problem(404, "NOT_FOUND")

    async def test_a_draft_is_replaced_and_says_when(self, api: Api) -> None:
        first = (await api.post("/v1/protocols", document())).ok(201)
        api.clock.advance(5)
        second = (await api.post("/v1/protocols", document(title="Louder"))).ok(200)
        assert second["created"] == first["created"]
        assert second["changed"]["at"] > first["created"]["at"]
        assert second["digest"] != first["digest"]

    async def test_a_draft_is_deleted_for_good(self, api: Api) -> None:
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
    async def test_what_is_no_protocol_is_refused_where_it_is_wrong(
        self, api: Api, change: dict[str, Any], pointer: str
    ) -> None:
        problem = (await api.post("/v1/protocols", document(**change))).problem(422, "INVALID_PROTOCOL")
        assert problem["errors"][0]["pointer"] == pointer
        (await api.get(V)).problem(404, "NOT_FOUND")

    async def test_a_body_that_goes_too_deep_is_refused(self, api: Api) -> None:
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
    async def test_a_published_version_serves_and_says_who_and_why(self, api: Api) -> None:
        published = await publish(api, aliases=["LOUD"])
        assert published["status"] == "PUBLISHED"
        assert published["published"] == {"by": "dev", "at": "2027-01-15T08:00:00.000Z", "reason": "it is good"}
        assert (await submit(api)).status == 202
        assert (await api.post("/v1/commands", api.command(request_type="LOUD", idempotency_key="2"))).status == 202
        assert (await api.get("/v1/protocols/LOUD")).ok()["digest"] == published["digest"]

    async def test_a_published_version_never_changes(self, api: Api) -> None:
        published = await publish(api)
        for body in (document(), document(title="other")):
            problem = (await api.post("/v1/protocols", body)).problem(409, "PROTOCOL_IMMUTABLE")
            assert "higher version" in problem["detail"]
        (await api.call("DELETE", f"{V}/1")).problem(409, "PROTOCOL_IMMUTABLE")
        (await api.post(f"{V}/1:publish")).problem(409, "PROTOCOL_STATE")
        assert (await api.get(f"{V}/1")).ok() == published

    async def test_the_newest_published_version_serves_whatever_drafts_there_are(self, api: Api) -> None:
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
    async def test_a_name_that_belongs_to_another_is_not_published(
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

    async def test_who_publishes_can_say_what_they_have_read(self, api: Api) -> None:
        read = (await api.post("/v1/protocols", document())).ok(201)["digest"]
        changed = (await api.post("/v1/protocols", document(title="other"))).ok(200)["digest"]
        problem = (await api.post(f"{V}/1:publish", {"digest": read})).problem(409, "PROTOCOL_STATE")
        assert changed in problem["detail"]
        (await api.post(f"{V}/1:publish", {"digest": changed})).ok()

    async def test_of_those_who_publish_at_once_one_wins(self, api: Api) -> None:
        await api.post("/v1/protocols", document())
        answers = await asyncio.gather(*(api.post(f"{V}/1:publish", {"reason": str(n)}) for n in range(5)))
        assert sorted(answer.status for answer in answers) == [200, 409, 409, 409, 409]
        (won,) = [answer.json for answer in answers if answer.status == 200]
        assert (await api.get(f"{V}/1")).ok()["published"] == won["published"]

    async def test_a_conflict_with_another_process_is_decided_anew(self, api: Api) -> None:
        store, real = api.runtime.store, api.runtime.store.put_protocols
        await api.post("/v1/protocols", document())
        raced: list[bool] = []

        async def put(versions: Any, expected: int) -> int:
            if not raced:
                raced.append(True)
                await real((), expected)  # somebody else moved the revision
            return await real(versions, expected)

        store.put_protocols = put  # type: ignore[method-assign]
        (await api.post(f"{V}/1:publish")).ok()

        async def never(*_: Any) -> int:
            raise VersionConflict("it moved")

        store.put_protocols = never  # type: ignore[method-assign, assignment]
        (await api.post("/v1/protocols", document(2))).problem(503, "LEDGER_CONTENDED")
        assert await statuses(api) == {1: "PUBLISHED"}


class TestDeprecation:
    async def test_new_commands_are_refused_with_the_successor_named(self, api: Api) -> None:
        await publish(api, 1)
        await publish(api, 2)
        gone = await deprecate(api, 1)
        assert gone["successor"] == {"request_type": "UPPER", "version": 2}
        assert (gone["deprecated"]["by"], gone["deprecated"]["reason"]) == ("dev", "too slow")
        problem = (await submit(api, protocol_version=1)).problem(409, "PROTOCOL_DEPRECATED")
        assert problem["detail"] == "UPPER version 1 is deprecated (too slow); use UPPER version 2"
        assert problem["errors"][0]["pointer"] == "/protocol_version"
        assert (await submit(api)).status == 202

    async def test_without_a_published_version_the_whole_request_type_is_refused(self, api: Api) -> None:
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

    async def test_a_new_version_brings_the_request_type_back(self, api: Api) -> None:
        await publish(api, 1)
        await deprecate(api, 1)
        assert "no successor" in (await submit(api)).problem(409, "PROTOCOL_DEPRECATED")["detail"]
        await publish(api, 2)
        assert (await submit(api)).status == 202
        assert (await api.get(f"{V}/1")).ok()["successor"] == {"request_type": "UPPER", "version": 2}

    @pytest.mark.parametrize("reason", ["", "  ", "\n"])
    async def test_it_needs_a_reason(self, api: Api, reason: str) -> None:
        await publish(api, 1)
        asked = {"reason": reason}
        problem = (await api.post(f"{V}/1:deprecate", asked)).problem(422, "INVALID_ENVELOPE")
        assert problem["errors"][0]["pointer"] == "/reason"

    async def test_a_successor_that_is_deprecated_itself_passes_on(self, api: Api) -> None:
        for version in (1, 2, 3):
            await publish(api, version)
        await deprecate(api, 1, successor={"version": 2})
        await deprecate(api, 2, successor={"version": 3})
        assert "use UPPER version 3" in (await submit(api, protocol_version=1)).json["detail"]

    async def test_a_job_that_runs_goes_on_and_a_repeat_still_finds_it(self, api: Api) -> None:
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

    async def test_one_command_of_a_batch_is_refused_alone(self, api: Api) -> None:
        await publish(api)
        await deprecate(api)
        commands = [api.command(request_type="UPPER"), api.command()]
        results = (await api.post("/v1/commands:batch", {"commands": commands})).ok()["results"]
        assert [result["status_code"] for result in results] == [409, 202]

    async def test_only_what_is_published_can_be_deprecated_and_only_once(self, api: Api) -> None:
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
    async def test_a_successor_must_be_able_to_serve(
        self, api: Api, successor: dict[str, Any], code: str, pointer: str
    ) -> None:
        await publish(api)
        await api.post("/v1/protocols", document(2))
        problem = (await api.post(f"{V}/1:deprecate", {"reason": "x", "successor": successor})).problem(422, code)
        assert problem["errors"][0]["pointer"] == pointer
        assert await statuses(api) == {1: "PUBLISHED", 2: "DRAFT"}

    async def test_a_reason_must_be_given(self, api: Api) -> None:
        await publish(api)
        for body in (None, {}, {"reason": ""}):
            problem = (await api.post(f"{V}/1:deprecate", body)).problem(422, "INVALID_ENVELOPE")
            assert problem["errors"][0]["pointer"] == "/reason"


class TestLooking:
    async def test_a_listing_is_by_status_and_shows_what_serves_if_none_is_asked_for(self, api: Api) -> None:
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

    async def test_a_version_shows_its_whole_document(self, api: Api) -> None:
        body = document(
            title="Louder",
            aliases=["LOUD"],
            policies={"timeout_ms": 1000},
            input_schema={"properties": {"x": True}},
            output_schema={"type": "object"},
        )
        shown = await publish(api, **body)
        assert {name: shown[name] for name in body} == body

    async def test_what_is_not_there_is_not_found(self, api: Api) -> None:
        await publish(api)
        for path in ("/v1/protocols/NOPE", "/v1/protocols/NOPE/versions", f"{V}/2", f"{V}/1/diff/2", f"{V}/2/diff/1"):
            (await api.get(path)).problem(404, "NOT_FOUND")
        for path in (f"{V}/2:publish", f"{V}/2:deprecate"):
            (await api.post(path, {"reason": "x"})).problem(404, "NOT_FOUND")
        for number in ("0", "x", str(2**31)):
            (await api.get(f"{V}/{number}")).problem(422, "INVALID_QUERY")

    async def test_a_diff_names_what_changed_with_before_and_after(self, api: Api) -> None:
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

    async def test_jobs_are_listed_by_an_alias_of_what_is_deprecated(self, api: Api) -> None:
        await publish(api, aliases=["LOUD"])
        job = (await submit(api)).ok(202)["jobId"]
        await deprecate(api)
        assert await api.jobs("request_type=LOUD") == [job]

    async def test_validating_keeps_nothing(self, api: Api) -> None:
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


async def test_looking_needs_read_and_changing_needs_admin(start: Start) -> None:
    keys = [key_entry("reads", "read", tenants=("*",)), key_entry("operates", "operate", "submit", tenants=("*",))]
    api = await start({"api_keys": keys})
    await publish(api)
    for path in ("/v1/protocols", "/v1/protocols/UPPER", V, f"{V}/1", f"{V}/1/diff/1"):
        (await api.get(path, key="reads")).ok()
        (await api.get(path, key="operates")).problem(403, "FORBIDDEN_SCOPE")
        (await api.get(path, key="")).problem(401, "UNAUTHENTICATED")
    (await api.post("/v1/protocols:validate", document(), key="reads")).ok()
    for key in ("reads", "operates"):
        for method, path, body in (
            ("POST", "/v1/protocols", document(2)),
            ("POST", f"{V}/1:deprecate", {"reason": "x"}),
            ("POST", f"{V}/1:publish", {}),
            ("DELETE", f"{V}/1", None),
        ):
            (await api.call(method, path, body, key=key)).problem(403, "FORBIDDEN_SCOPE")
    assert await statuses(api) == {1: "PUBLISHED"}


async def test_what_all_tenants_share_is_changed_by_those_who_may_for_all_of_them(start: Start) -> None:
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
    for method, path, body in acts:
        problem = (await api.call(method, path, body, key="one")).problem(403, "FORBIDDEN_TENANT")
        assert "good for every tenant" in problem["detail"]
    assert await statuses(api) == {1: "PUBLISHED", 2: "DRAFT"}
    (await api.post("/v1/protocols:validate", document(2), key="one")).ok()
    for method, path, body in acts[:-1]:
        assert (await api.call(method, path, body, key="all")).status in (200, 201)


async def test_a_check_that_takes_long_keeps_nobody_else_waiting(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr("lucius.adapters.protocol_check.patterns", lambda schema: 0 * go_on.wait(10))
    checking = asyncio.create_task(api.post("/v1/protocols:validate", document()))
    drafting = asyncio.create_task(api.post("/v1/protocols", document()))
    await asyncio.sleep(0.05)
    (await api.get("/v1/protocols")).ok()
    assert not checking.done()
    assert not drafting.done()
    go_on.set()
    assert (await checking).ok()["valid"] is True
    (await drafting).ok(201)


async def test_a_deprecation_tells_which_version_serves_now(api: Api) -> None:
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
    async def test_the_whole_payload_must_fit_the_input_schema(self, api: Api) -> None:
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

    async def test_its_members_and_those_of_the_steps_are_both_there(self, api: Api) -> None:
        await publish(api, input_schema=INPUT)
        job = (await submit(api, payload={"invoice": "i", "upper": {"loud": True}})).ok(202)["jobId"]
        assert (await api.pull_one("upper"))["payload"] == {"loud": True}
        view = await api.runtime.store.job(job)
        assert view is not None
        assert view.job.command.payload == {"currency": "EUR", "invoice": "i", "upper": {"loud": True}}


class TestFindings:
    async def test_a_draft_may_be_wrong_and_says_so_and_is_not_published(self, api: Api) -> None:
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
    async def test_a_schema_must_compile_and_its_defaults_must_fit(
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
