"""Approvals: permitted voters, quorum, reject and timeout paths; second and late votes are refused."""

import pytest
from msgspec.structs import replace

from lucius.adapters.expressions.expressions import CelTools
from lucius.core.model.decision import Applied, Ignored
from lucius.core.model.records import NEVER
from lucius.core.model.statuses import AttemptOutcome, BlockedReason, JobStatus
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, T0, Story
from tests.unit.core.shapes import approval, each, parallel, pause_for, protocol, task


def awaiting_approval(**fields: object) -> Story:
    return Story(protocol(approval("ok", **fields), task("a"), task("b"))).dispatched()  # type: ignore[arg-type]


class TestAsking:
    def test_job_that_waits_only_for_approval_has_its_own_status(self) -> None:
        story = awaiting_approval(timeout_ms=MINUTE)
        assert (story.status, story.status_of("ok")) == (JobStatus.WAITING_APPROVAL, "AWAITING_APPROVAL")
        assert story.job.blocked is not None
        assert (story.job.blocked.reason, story.job.blocked.until) == (BlockedReason.APPROVAL, T0 + MINUTE)
        assert story.records.events[-1].data == {"approvers": ["ada", "bob", "cleo"], "until": T0 + MINUTE}

    def test_approval_without_a_timeout_has_no_deadline(self) -> None:
        assert awaiting_approval().job.due_at == NEVER

    def test_job_is_in_progress_while_a_task_runs_beside_the_approval(self) -> None:
        story = Story(protocol(parallel("p", approval("ok"), task("a")))).dispatched()
        assert story.status == "IN_PROGRESS"
        story.do("a")
        assert story.status == "WAITING_APPROVAL"

    def test_job_with_only_a_timer_beside_the_approval_is_waiting_for_approval(self) -> None:
        story = Story(protocol(parallel("p", pause_for("w", MINUTE), approval("ok")))).dispatched()
        assert story.status is JobStatus.WAITING_APPROVAL
        assert story.job.blocked is not None
        assert story.job.blocked.step_id == "ok"

    def test_prompt_is_rendered_from_the_input(self) -> None:
        shape = protocol(approval("ok", prompt="pay ${input.sum} EUR?"))
        story = Story(shape, payload={"sum": 7}).dispatched()
        assert story.steps["ok"].result == {"prompt": "pay 7 EUR?"}

    def test_a_prompt_is_shown_without_the_escapes_of_templates(self) -> None:
        shape = protocol(approval("ok", prompt="pay $${sum} for ${input.what}?"))
        story = Story(shape, payload={"what": "${secrets.KEY}"})
        story.env = replace(story.env, tools=CelTools())
        story.dispatched()
        assert story.steps["ok"].result == {"prompt": "pay ${sum} for ${secrets.KEY}?"}

    @pytest.mark.parametrize(
        ("template", "shown"),
        [
            ("pay ${input.a.sum} to ${input.a.iban}?", "pay 7 to [redacted]?"),
            ("pay ${input.a.sum}, ${input.a.pin + 1}?", "[redacted]"),
            ("pay ${input.a}?", 'pay {"sum":7,"iban":"[redacted]","pin":"[redacted]"}?'),
        ],
    )
    def test_prompt_shows_no_redacted_value(self, template: str, shown: str) -> None:
        shape = replace(protocol(approval("ok", prompt=template)), redact=("/a/iban", "/a/pin"))
        story = Story(shape, payload={"a": {"sum": 7, "iban": "DE02", "pin": 4711}})
        story.env = replace(story.env, tools=CelTools())
        story.dispatched()
        assert story.steps["ok"].result == {"prompt": shown}

    @pytest.mark.parametrize(
        ("items", "pointer", "template", "shown"),
        [
            ("input.people", "/people", "pay ${item.name}?", "[redacted]"),
            ("input.people", "/people", "pay ${item}?", "pay [redacted]?"),
            ("input.people", "/people/0/iban", "pay ${item.name} at ${item.iban}?", "pay Ann at [redacted]?"),
            ("input.people", "/people/iban", "pay ${item}?", "pay [redacted]?"),
            ("input.people.map(p, p.iban)", "/people/0/iban", "pay ${item}?", "pay [redacted]?"),
            ("input.people.filter(p, p.iban == 'DE02')", "/people/0/iban", "pay ${item.name}?", "[redacted]"),
            ("input.people.filter(p, p.iban != 'DE03')", "/people/0/iban", "pay ${item.name}?", "pay Ann?"),
            ("input.names", "/people", "pay ${item}?", "pay Bob?"),
            ("steps.find.result", "/people", "pay ${item}, no. ${item_index}?", "pay Cleo, no. 0?"),
        ],
    )
    def test_prompt_in_a_map_shows_no_redacted_value(self, items: str, pointer: str, template: str, shown: str) -> None:
        shape = protocol(task("find"), each("m", items, approval("ok", prompt=template)))
        payload = {"people": [{"name": "Ann", "iban": "DE02"}], "names": ["Bob"]}
        story = Story(replace(shape, redact=(pointer,)), payload=payload)
        story.env = replace(story.env, tools=CelTools())
        story.dispatched().do("find", result=["Cleo"])
        assert story.steps["ok.0"].result == {"prompt": shown}

    def test_prompt_in_a_nested_map_shows_no_redacted_value(self) -> None:
        inner = each("inner", "item.ibans", approval("ok", prompt="pay ${item}?"))
        shape = replace(protocol(each("outer", "input.people", inner)), redact=("/people/0/ibans/0",))
        story = Story(shape, payload={"people": [{"ibans": ["DE02", "DE03"]}]})
        story.env = replace(story.env, tools=CelTools())
        story.dispatched()
        prompts = [story.steps[f"ok.0.{number}"].result for number in range(2)]
        assert prompts == [{"prompt": "pay [redacted]?"}, {"prompt": "pay DE03?"}]


class TestVoting:
    def test_single_vote_approves_by_default(self) -> None:
        story = awaiting_approval()
        assert story.approve("ok", comment="fine") == Applied()
        assert story.steps["ok"].result == {"approvals": [{"by": "ada", "comment": "fine", "at": T0}]}
        assert (story.status, story.job.active) == (JobStatus.IN_PROGRESS, ("a",))

    def test_quorum_counts_different_voters(self) -> None:
        story = awaiting_approval(quorum=2)
        story.approve("ok", "ada")
        assert code_of(story.approve("ok", "ada")) == "ALREADY_VOTED"
        assert code_of(story.reject("ok", "ada")) == "ALREADY_VOTED"
        assert story.status is JobStatus.WAITING_APPROVAL
        story.approve("ok", "bob")
        assert story.job.active == ("a",)

    def test_single_rejection_rejects_whatever_the_quorum(self) -> None:
        story = awaiting_approval(quorum=2)
        story.approve("ok", "ada")
        story.reject("ok", "bob", comment="too dear")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "REJECTED"
        assert "rejected by bob: too dear" in story.job.error.message
        assert story.steps["ok"].attempt.outcome is AttemptOutcome.REJECTED

    def test_rejection_takes_the_failure_path(self) -> None:
        story = awaiting_approval(on_failure="b", on_timeout="a")
        story.reject("ok")
        assert story.job.active == ("b",)

    def test_approval_timeout_takes_the_timeout_path(self) -> None:
        story = awaiting_approval(on_failure="a", on_timeout="b", timeout_ms=MINUTE)
        assert isinstance(story.wait(MINUTE - 1).tick(), Ignored)
        story.wait(1).tick()
        assert story.job.active == ("b",)
        assert story.steps["ok"].last_error is not None
        assert story.steps["ok"].last_error.code == "APPROVAL_TIMEOUT"

    @pytest.mark.parametrize("decide", ["approve", "reject"])
    def test_a_vote_after_the_decision_is_refused(self, decide: str) -> None:
        story = awaiting_approval(on_failure="b")
        getattr(story, decide)("ok", "ada")
        assert code_of(story.approve("ok", "bob")) == "APPROVAL_ENDED"
        story.cancel()
        assert code_of(story.approve("ok", "bob")) == "APPROVAL_ENDED"

    def test_a_vote_after_the_jobs_end_is_refused(self) -> None:
        story = awaiting_approval()
        story.cancel()
        assert code_of(story.approve("ok")) == "APPROVAL_ENDED"

    def test_vote_of_an_unlisted_person_is_refused(self) -> None:
        story = awaiting_approval()
        assert code_of(story.approve("ok", "mallory")) == "NOT_AN_APPROVER"
        assert code_of(story.reject("ok", "mallory")) == "NOT_AN_APPROVER"

    def test_member_of_an_approver_group_can_vote(self) -> None:
        story = Story(protocol(approval("ok", "finance"))).dispatched()
        assert code_of(story.approve("ok", "zoe", groups=("sales",))) == "NOT_AN_APPROVER"
        assert story.approve("ok", "zoe", groups=("sales", "finance")) == Applied()

    def test_submitter_cannot_vote_under_four_eyes(self) -> None:
        shape = protocol(approval("ok", "key:tests", "ada", four_eyes=True))
        story = Story(shape).dispatched()
        assert code_of(story.approve("ok", "key:tests")) == "NOT_AN_APPROVER"
        assert story.approve("ok", "ada") == Applied()

    @pytest.mark.parametrize("step_id", ["a", "nothing", "ok.1"])
    def test_vote_on_a_step_without_an_approval_is_refused(self, step_id: str) -> None:
        assert code_of(awaiting_approval().approve(step_id)) == "STEP_NOT_FOUND"

    def test_vote_on_a_later_approval_is_refused(self) -> None:
        story = Story(protocol(task("a"), approval("ok"))).dispatched()
        assert code_of(story.approve("ok")) == "STEP_NOT_FOUND"

    def test_each_vote_is_audited(self) -> None:
        story = awaiting_approval(quorum=2, on_failure="b")
        story.approve("ok", "ada", comment="yes")
        story.reject("ok", "bob", comment="no")
        votes = [event for event in story.records.events if event.type in ("STEP_APPROVED", "STEP_REJECTED")]
        assert [(e.type, e.data) for e in votes] == [
            ("STEP_APPROVED", {"by": "ada", "comment": "yes"}),
            ("STEP_REJECTED", {"by": "bob", "comment": "no"}),
        ]

    def test_new_run_starts_the_vote_from_zero(self) -> None:
        story = awaiting_approval(quorum=2)
        story.approve("ok", "ada")
        story.reject("ok", "bob")
        story.retry()
        assert story.status is JobStatus.WAITING_APPROVAL
        assert story.steps["ok"].votes == ()
        story.approve("ok", "bob")
        story.approve("ok", "ada")
        assert story.job.active == ("a",)


class TestJobTimeout:
    def test_job_timeout_ends_a_pending_approval(self) -> None:
        story = Story(protocol(approval("ok"), task("a"), timeout_ms=MINUTE)).dispatched()
        assert story.job.due_at == T0 + MINUTE
        story.tick_when_due()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "JOB_TIMEOUT"
        assert story.statuses("ok", "a") == ["FAILED_FINAL", "SKIPPED"]
        assert story.steps["ok"].attempt.outcome is AttemptOutcome.JOB_TIMEOUT
