"""The review queue on the command line: reading, acting on one item, and acting on many after listing them."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lucius.cli import review
from lucius.cli.main import app
from tests.integration.cli.support import NOW, Answer, Asked, Stub, at, problem

REVIEW_ID = "j-1~run1"


def item(review_id: str = REVIEW_ID, **fields: Any) -> dict[str, Any]:
    return {
        "review_id": review_id,
        "jobId": review_id.partition("~")[0],
        "tenant_id": "acme",
        "request_type": "OCR",
        "kind": "JOB_FAILED",
        "status": "OPEN",
        "signature": "ocr/ocr/JOB_FAILED/NON_RETRYABLE/BROKEN",
        "created_at": NOW,
        "updated_at": NOW,
        "run_no": 1,
        "stepId": "ocr",
        "failure_class": "NON_RETRYABLE",
        "error": {"code": "BROKEN", "message": "it broke"},
        **fields,
    }


def outcome(review_id: str = REVIEW_ID, said: str = "APPLIED", **fields: Any) -> dict[str, Any]:
    effect = {"re_executes": ["ocr"], "runs": ["sis"], "keeps": ["scan"], "re_executes_total": 1, "keeps_total": 1}
    job = {"jobId": "j-1", "job_status": "DISPATCHING", "run_no": 2}
    return {"review_id": review_id, "act": "retry", "outcome": said, **job, **effect, **fields}


def test_listing_shows_errors_and_resolutions(stub: Stub) -> None:
    closed = item("j-2~run1", status="DISCARDED", resolved_by="ada", act="discard", reason="a test")
    stub.routes["GET /v1/review"] = (200, {"items": [item(), closed], "next_cursor": None})
    result = at(stub, "review", "list", "--status", "any", "--kind", "job_failed", "--job", "j-1", "--tenant", "acme")
    shown = result.stdout
    assert "step ocr: BROKEN (NON_RETRYABLE): it broke" in shown
    assert "discard by ada at 2026-01-02 03:04:05 UTC: a test" in shown
    expected = {"status": "ANY", "kind": "JOB_FAILED", "jobId": "j-1", "tenant_id": "acme", "limit": "20"}
    assert stub.asked[0].query == expected


def test_listing_continues_with_the_next_page(stub: Stub) -> None:
    def page(asked: Asked) -> Answer:
        if asked.query.get("cursor") == "c":
            return 200, {"items": [item("j-3~run1")], "next_cursor": None}
        return 200, {"items": [item("j-1~run1"), item("j-2~run1")], "next_cursor": "c"}

    stub.routes["GET /v1/review"] = page
    found = json.loads(at(stub, "review", "list", "--all", "--json").stdout)["items"]
    assert [one["jobId"] for one in found] == ["j-1", "j-2", "j-3"]


def test_empty_queue_is_reported(stub: Stub) -> None:
    stub.routes["GET /v1/review"] = (200, {"items": [], "next_cursor": None})
    stub.routes["GET /v1/review/groups"] = (200, {"groups": []})
    for command in ("list", "groups"):
        result = at(stub, "review", command)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "nothing to review\n")


def test_groups_show_count_and_signature(stub: Stub) -> None:
    group = {"signature": "ocr/BROKEN", "kind": "JOB_FAILED", "count": 12, "newest": item()}
    stub.routes["GET /v1/review/groups"] = (200, {"groups": [group]})
    shown = at(stub, "review", "groups").stdout
    assert "12     JOB_FAILED" in shown
    assert "ocr/BROKEN" in shown


def test_show_prints_the_effect_of_each_act(stub: Stub) -> None:
    acts = [
        {"act": "retry", "allowed": True, "re_executes": ["ocr"], "runs": ["sis"], "re_executes_total": 1},
        {"act": "compensate", "allowed": False, "code": "NOTHING_TO_COMPENSATE", "message": "no handler"},
        {"act": "discard", "allowed": True},
    ]
    detail = item(job_status="FAILED_FINAL", job_error={"code": "BROKEN", "message": "it broke"}, acts=acts)
    stub.routes[f"GET /v1/review/{REVIEW_ID}"] = (200, detail)
    shown = at(stub, "review", "show", REVIEW_ID).stdout
    assert "job is       FAILED_FINAL: it broke" in shown
    assert "retry       runs again: ocr; then for the first time: sis" in shown
    assert "compensate  not possible: no handler" in shown
    assert "discard     closes the item and runs nothing" in shown
    assert json.loads(at(stub, "review", "show", REVIEW_ID, "--json").stdout) == detail


@pytest.mark.parametrize(
    ("act", "options", "extra"),
    [
        ("retry", (), {}),
        ("retry", ("--from-step", "scan"), {"from_step": "scan"}),
        ("skip", ("--result", '{"text": "typed"}'), {"result": {"text": "typed"}}),
        ("compensate", (), {}),
        ("adopt", (), {}),
        ("discard", (), {}),
    ],
)
def test_act_on_one_item_is_sent_with_its_reason(
    stub: Stub, act: str, options: tuple[str, ...], extra: dict[str, Any]
) -> None:
    stub.routes[f"POST /v1/review/{REVIEW_ID}:{act}"] = (200, outcome())
    result = at(stub, "review", act, REVIEW_ID, "--reason", "seen", *options)
    assert result.exit_code == 0, result.stderr
    assert stub.asked[0].body == {"reason": "seen", "dry_run": False, **extra}
    told = "job j-1 is DISPATCHING, run 2; runs again: ocr; then for the first time: sis; keeps: scan\n"
    assert result.stdout == told


def test_dry_run_needs_no_reason_and_prints_the_prediction(stub: Stub) -> None:
    stub.routes[f"POST /v1/review/{REVIEW_ID}:retry"] = (200, outcome(said="WOULD"))
    result = at(stub, "review", "retry", REVIEW_ID, "--dry-run")
    assert result.stdout.startswith(f"retry {REVIEW_ID} would: runs again: ocr")
    assert stub.asked[0].body["dry_run"] is True


def test_refusal_is_one_line(stub: Stub) -> None:
    refused = problem("REVIEW_CLOSED", f"review item {REVIEW_ID} is DISCARDED already, by ada", 409)
    stub.routes[f"POST /v1/review/{REVIEW_ID}:retry"] = (409, refused)
    result = at(stub, "review", "retry", REVIEW_ID, "--reason", "again")
    assert result.exit_code == 1
    assert result.stderr == f"lucius: review item {REVIEW_ID} is DISCARDED already, by ada [REVIEW_CLOSED]\n"


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (("retry", REVIEW_ID), "--reason is required"),
        (("retry", REVIEW_ID, "--reason", " "), "--reason is required"),
        (("retry", "--reason", "x"), "give review items, or --all"),
        (("retry", REVIEW_ID, "--all", "--reason", "x"), "give review items, or --all"),
        (("discard", "--all", "--reason", "x"), "--all needs --signature"),
        (("discard", REVIEW_ID, "--kind", "poison", "--reason", "x"), "need --all"),
        (("skip", REVIEW_ID, "--reason", "x", "--result", "text"), "--result is not JSON"),
    ],
)
def test_invalid_arguments_are_misuse(stub: Stub, said: tuple[str, ...], says: str) -> None:
    result = at(stub, "review", *said)
    assert result.exit_code == 2
    assert says in result.stderr
    assert stub.asked == []


class TestManyItems:
    """The stub answers a dry run with what the act would do, and then does it."""

    @pytest.fixture(autouse=True)
    def queue(self, stub: Stub) -> None:
        def act(asked: Asked) -> Answer:
            ids = asked.body.get("ids") or ["j-1~run1", "j-2~run1", "j-3~run1"]
            said = "WOULD" if asked.body["dry_run"] else "APPLIED"
            results = [outcome(review_id, said) for review_id in ids if review_id != "j-3~run1"]
            if "j-3~run1" in ids:
                results.append(outcome("j-3~run1", "REFUSED", code="JOB_LIVE", message="it runs", re_executes=[]))
            refused = len(ids) - sum(result["outcome"] == said for result in results)
            applied = 0 if asked.body["dry_run"] else len(ids) - refused
            return 200, {"results": results, "applied": applied, "refused": refused, "more": True}

        stub.routes["POST /v1/review:act"] = act

    @staticmethod
    def retry_all(stub: Stub, *options: str, answer: str | None = None) -> Result:
        said = ("review", "retry", "--all", "--signature", "ocr/BROKEN", "--reason", "mended", *options)
        return at(stub, *said) if answer is None else _typing(stub, answer, *said)

    def test_yes_acts_on_the_items_that_accept_the_act(self, stub: Stub) -> None:
        result = self.retry_all(stub, "--yes")
        assert result.exit_code == 0, result.stderr
        dry, real = stub.asked
        assert (dry.body["dry_run"], dry.body["signature"], dry.body["limit"]) == (True, "ocr/BROKEN", 500)
        assert real.body == {
            "act": "retry",
            "reason": "mended",
            "dry_run": False,
            "ids": ["j-1~run1", "j-2~run1"],
        }
        assert "2 done, 0 refused" in result.stderr
        assert "more items match" in result.stderr

    def test_bulk_act_without_yes_and_without_a_terminal_changes_nothing(self, stub: Stub) -> None:
        result = self.retry_all(stub)
        assert result.exit_code == 2
        assert "runs again: ocr" in result.stderr
        assert "retry 2 items; 2 steps would run again; 1 item would be refused: confirm with --yes" in result.stderr
        assert [asked.body["dry_run"] for asked in stub.asked] == [True]

    @pytest.mark.parametrize(("answer", "calls"), [("y\n", 2), ("n\n", 1), ("\n", 1)])
    def test_bulk_act_on_a_terminal_asks_for_confirmation(
        self, stub: Stub, monkeypatch: pytest.MonkeyPatch, answer: str, calls: int
    ) -> None:
        monkeypatch.setattr(review, "_is_interactive", lambda: True)
        result = self.retry_all(stub, answer=answer)
        assert len(stub.asked) == calls
        assert result.exit_code == (0 if calls == 2 else 1)
        assert "Continue?" in result.stderr

    def test_dry_run_changes_nothing(self, stub: Stub) -> None:
        result = self.retry_all(stub, "--dry-run")
        assert result.exit_code == 0
        assert [asked.body["dry_run"] for asked in stub.asked] == [True]
        assert "it runs [JOB_LIVE]" in result.stdout
        assert "2 steps would run again" in result.stderr

    def test_several_named_items_are_sent_in_one_request(self, stub: Stub) -> None:
        result = at(stub, "review", "discard", "j-1~run1", "j-2~run1", "--reason", "tests", "--yes", "--json")
        assert json.loads(result.stdout)["applied"] == 2
        assert stub.asked[0].body["ids"] == ["j-1~run1", "j-2~run1"]

    def test_items_refused_at_the_end_set_the_exit_code(self, stub: Stub) -> None:
        def refused(asked: Asked) -> Answer:
            said = "WOULD" if asked.body["dry_run"] else "REFUSED"
            results = [outcome(review_id, said, code="X", message="no") for review_id in ("j-1~run1", "j-2~run1")]
            return 200, {"results": results, "applied": 0, "refused": 0 if said == "WOULD" else 2}

        stub.routes["POST /v1/review:act"] = refused
        result = self.retry_all(stub, "--yes")
        assert result.exit_code == 1
        assert "2 of 2 items refused" in result.stderr


def _typing(stub: Stub, answer: str, *said: str) -> Result:
    return CliRunner().invoke(app, ["--url", stub.url, "--api-key", "k", *said], input=answer)


class TestSkippedPages:
    @staticmethod
    def cursors_sent(stub: Stub, code: str) -> list[str | None]:
        """Let the first page be refused with `code` and the second succeed; return the cursors sent."""

        def act(asked: Asked) -> tuple[int, dict[str, Any]]:
            first = "ids" not in asked.body and "cursor" not in asked.body
            said = "WOULD" if asked.body["dry_run"] else "APPLIED"
            results = [outcome("j-1~run1", "REFUSED", code=code) if first else outcome("j-2~run1", said)]
            more = {"more": first, "next_cursor": "there" if first else None}
            return 200, {"results": results, "applied": int(said == "APPLIED"), "refused": int(first), **more}

        stub.routes["POST /v1/review:act"] = act
        at(stub, "review", "compensate", "--all", "--kind", "JOB_FAILED", "--reason", "gone", "--yes")
        return [asked.body.get("cursor") for asked in stub.asked]

    def test_page_without_applicable_items_is_skipped(self, stub: Stub) -> None:
        assert self.cursors_sent(stub, "NOTHING_TO_COMPENSATE") == [None, "there", None]
        assert stub.asked[-1].body["ids"] == ["j-2~run1"]

    def test_page_refused_for_a_limit_is_not_skipped(self, stub: Stub) -> None:
        assert self.cursors_sent(stub, "TENANT_LIMIT") == [None]


def test_skip_needs_a_result(stub: Stub) -> None:
    result = at(stub, "review", "skip", REVIEW_ID, "--reason", "seen")
    assert (result.exit_code, stub.asked) == (2, [])
    assert "--result is required" in result.stderr
